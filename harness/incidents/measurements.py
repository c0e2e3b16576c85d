"""Measurements of the shipped incidents, kept in a file for the README.

    {"two-power-losses": {"cpu_seconds": 0.6, "docker_tries": {"high watermarks": 1, "truncation on fetch": 2}}}

`make incidents` measures the CPU seconds of the simulation; `faultline incident run NAME --environment docker --record
FILE` the tries that each variant took in Docker. An entry is made of an incident that was told in all its variants,
each as expected; what another environment has measured of it stays.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.incidents.telling import Telling
from results.atomic_files import put_text, read_json
from results.errors import StoreError


@dataclass(frozen=True, slots=True)
class Measurement:
    """Of one incident."""

    cpu_seconds: float | None = None
    """In simulation, all its variants together."""
    docker_tries: Mapping[str, int] = field(default_factory=dict)
    """By variant; empty for one that has not been told in Docker."""

    def to_json(self) -> dict[str, Any]:
        """As JSON values, without what was not measured."""
        return {name: value for name, value in asdict(self).items() if value}


def read_measurements(path: Path) -> dict[str, Measurement]:
    """By incident; empty where there is no file. Raises StoreError."""
    try:
        return {name: Measurement(**entry) for name, entry in read_json(path).items()}
    except TypeError as error:
        raise StoreError(f"{path}: does not hold measurements of incidents: {error}") from None


def record_measurements(path: Path, tellings: Iterable[Telling]) -> None:
    """Enter what these tellings measure; other entries of the file stay. Raises StoreError."""
    of_incident = defaultdict(list)
    for telling in tellings:
        of_incident[telling.incident.name].append(telling)
    entries = read_measurements(path)
    for name, told in of_incident.items():
        names, variants = [telling.variant.name for telling in told], told[0].incident.variants
        if names == [variant.name for variant in variants] and all(telling.met for telling in told):
            entry = entries.get(name, Measurement())
            if told[0].variant.spec.environment == "sim":
                entry = replace(entry, cpu_seconds=round(sum(telling.cpu_seconds for telling in told), 1))
            else:
                entry = replace(entry, docker_tries={telling.variant.name: telling.tries for telling in told})
            entries[name] = entry
    values = {name: entries[name].to_json() for name in sorted(entries)}
    put_text(path, json.dumps(values, indent=1, ensure_ascii=False) + "\n")
