"""Specs for machines that may be busy: where injections take longer than the times between faults, all times grow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

FACTORS = (1, 5)


def stretched(spec: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The spec as it is, then one with times five times as long, for a machine on which its faults missed."""
    for factor in FACTORS:
        faults = [{**fault, "at": fault["at"] * factor, "for": fault["for"] * factor} for fault in spec["faults"]]
        yield {**spec, "time_limit": spec["time_limit"] * factor, "faults": faults}
