"""An offset index with few entries is found out in nothing: a run is the same, to the last byte that a node sends,
whatever the distance between two entries (`index.interval.bytes`) is.

So any mistake in what is found by walking from an entry shows as another run. The run has all that uses the index:
reads that end by size and at the high watermark, cuts inside a segment, segments opened after a clean stop and after a
kill, log starts inside a segment, and searches by time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from checkers.verdict import Validity
from harness.runner.outcome import Outcome
from harness.runner.run import run_in_simulation
from harness.spec import parse
from images.broker.log.segment import Segment
from tests.simulation.applied_mistake import replace_in
from tests.torture.mistakes.mistake import Patch

_SPEC: dict[str, Any] = {
    "seed": 1,
    "time_limit": "20s",
    "acks": 1,
    "clients": {"batch": 5, "fetch_bytes": 500, "time_readers": 1},
    "settings": {"segment.bytes": "40000", "replica.fetch.max.bytes": "500"},
    "faults": [
        {"at": 2, "for": 1, "fault": "delete-records"},
        {"at": 4, "for": 4, "fault": "partition", "shape": "isolate", "nodes": ["b1"]},
        {"at": 10, "for": 1, "fault": "kill", "nodes": ["b2"]},
        {"at": 13, "fault": "rolling-restart"},
    ],
}


def _run(interval: int) -> Outcome:
    settings = {**_SPEC["settings"], "index.interval.bytes": str(interval)}
    return run_in_simulation(parse({**_SPEC, "settings": settings}))


@pytest.fixture(scope="module")
def dense() -> str | None:
    """The digest of the run in which every batch has an entry."""
    outcome = _run(0)
    assert outcome.validity is Validity.VALID, outcome.verdicts
    return outcome.digest


@pytest.mark.parametrize("interval", [300, 4_096, 65_536])
def test_a_run_is_the_same_with_any_distance_between_index_entries(
    interval: int, dense: str | None, monkeypatch: Patch
) -> None:
    found: Counter[str] = Counter()
    for name in ("_position_of", "_boundary_at_or_below"):
        monkeypatch.setattr(Segment, name, _counting(getattr(Segment, name), found))
    assert _run(interval).digest == dense
    assert all(found[name] > 10 for name in ("_position_of", "_boundary_at_or_below")), found


def _counting(right: Callable[[Segment, int], int], found: Counter[str]) -> Callable[[Segment, int], int]:
    """Counts the batches that are found between two entries."""

    def find(self: Segment, wanted: int) -> int:
        position = right(self, wanted)
        found[right.__name__] += self._sparse and position not in self._positions
        return position

    return find


_SEGMENT = "images.broker.log.segment:Segment."
_MISTAKES = {
    "a batch too early": ("_position_of", "header.next_offset > offset", "header.next_offset >= offset"),
    "a batch too late": ("_position_of", "return position", "return position + header.size"),
    "not walked to": ("_add_to_index", "_interval:\n        self._sparse = True", "_interval:"),
    "more than asked for": ("_boundary_at_or_below", "return position", "return position + header.size"),
    "less than asked for": ("_boundary_at_or_below", "+ header.size > limit", "+ 2 * header.size > limit"),
    "entries of what is cut": ("truncate", "del self._offsets[keep:], self._positions[keep:]", "pass"),
    "the first entry left out": ("_build_index", "self._add_to_index(", "position and self._add_to_index("),
    "entries at the ends": ("_add_to_index", "self._offsets.append(base_offset)", "self._offsets.append(self.end)"),
}
"""What a search finds → the method, its line, and that of the mistake."""


@pytest.mark.parametrize("name", _MISTAKES)
def test_a_mistake_in_a_sparse_index_shows_as_another_run(name: str, dense: str | None, monkeypatch: Patch) -> None:
    method, right, wrong = _MISTAKES[name]
    replace_in(monkeypatch, _SEGMENT + method, right, wrong)
    assert _run(300).digest != dense
