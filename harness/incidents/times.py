"""CPU seconds of the shipped incidents, kept in a file: `make incidents` measures them, and the README shows them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from harness.incidents.telling import Telling


def read_times(path: Path) -> dict[str, float]:
    """CPU seconds by incident, all its variants together; empty where there is no file."""
    times: dict[str, float] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return times


def record_times(path: Path, tellings: Iterable[Telling]) -> None:
    """Enter the incidents that were told in all their variants, each as expected; other entries of the file stay."""
    of_incident = defaultdict(list)
    for telling in tellings:
        of_incident[telling.incident.name].append(telling)
    times = read_times(path)
    for name, told in of_incident.items():
        if len(told) == len(told[0].incident.variants) and all(telling.met for telling in told):
            times[name] = round(sum(telling.cpu_seconds for telling in told), 1)
    path.write_text(json.dumps(dict(sorted(times.items())), indent=1) + "\n", encoding="utf-8")
