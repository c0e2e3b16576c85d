"""Specs for machines that may be busy: where injections take longer than the times between faults, all times grow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nemesis.fields import seconds

FACTORS = (1, 5)


def stretched(spec: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The spec as it is, then one with times five times as long, for a machine on which its faults missed."""
    for factor in FACTORS:
        faults = [_longer(fault, factor, "at", "for") for fault in spec["faults"]]
        yield {**_longer(spec, factor, "time_limit"), "faults": faults}


def _longer(values: Mapping[str, Any], factor: float, *names: str) -> dict[str, Any]:
    return {**values, **{name: seconds(values[name], name) * factor for name in names}}
