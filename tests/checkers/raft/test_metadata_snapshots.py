"""Which snapshots of the metadata a controller has, where its log begins, and whether it can read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from checkers.raft.metadata_snapshots import snapshot_findings
from tests.checkers import small_evidence

Event = dict[str, Any]


def opened(time_s: float, snapshots: Sequence[int] | None, start: int = 0, **detail: Any) -> Event:
    told = {} if snapshots is None else {"snapshots": list(snapshots)}
    return small_evidence.event(time_s, "c1", "quorum_recovered", told | detail, offset=start, log_end=50)


def written(time_s: float, end: int, start: int = 0) -> Event:
    return small_evidence.event(time_s, "c1", "metadata_snapshot", {"log_start": start}, log_end=end)


def trimmed(time_s: float, start: int) -> Event:
    return small_evidence.event(time_s, "c1", "metadata_trimmed", offset=start)


def restored(time_s: float, end: int) -> Event:
    return small_evidence.event(time_s, "c1", "metadata_restored", offset=end)


def kinds(*events: Event, faults: Sequence[Any] = ()) -> list[str]:
    found = snapshot_findings(small_evidence.trace(*events), small_evidence.faults(*faults))
    return [finding.kind for finding in found]


BORN = opened(0, [])
TWO = [BORN, written(1, 5), written(2, 10)]
EARLY = ["trimmed-before-snapshot"]


@pytest.mark.parametrize(
    ("start", "found"), [(5, []), (10, EARLY), (7, EARLY)], ids=["to the older", "to the latest", "to no end"]
)
def test_a_log_is_trimmed_to_a_snapshot_that_a_later_one_follows(start: int, found: list[str]) -> None:
    assert kinds(*TWO, trimmed(3, start)) == found


def test_a_log_is_not_trimmed_to_a_snapshot_that_it_has_not_any_more() -> None:
    assert kinds(*TWO, trimmed(3, 5), written(4, 20, start=5), trimmed(5, 10)) == []
    assert kinds(*TWO, trimmed(3, 5), written(4, 20, start=5), trimmed(5, 10), trimmed(6, 5)) == EARLY


def test_the_log_of_which_a_snapshot_is_written_begins_where_one_ends() -> None:
    assert kinds(BORN, written(1, 6, start=0)) == []
    assert kinds(BORN, written(1, 6, start=6)) == EARLY
    assert kinds(BORN, written(1, 6, start=3)) == EARLY


def test_the_snapshot_of_the_leader_takes_the_place_of_all() -> None:
    assert kinds(*TWO, restored(3, 30), written(4, 40, start=30), trimmed(5, 30)) == []
    assert kinds(*TWO, restored(3, 30), written(4, 40, start=10)) == EARLY


def test_a_log_that_is_opened_begins_where_a_snapshot_ends() -> None:
    assert kinds(*TWO, opened(3, [5, 10], start=5)) == []
    assert kinds(*TWO, opened(3, [10], start=5)) == EARLY
    assert kinds(*TWO, opened(3, [], start=0)) == []


def test_a_controller_tells_what_a_crash_kept_out_of_the_trace() -> None:
    """It was written, or came from the leader, and the process ended."""
    assert kinds(*TWO, opened(3, [10, 20], start=10), written(4, 30, start=10), trimmed(5, 20)) == []
    assert kinds(*TWO, opened(3, [30], start=30), written(4, 40, start=30), trimmed(5, 30)) == []


def test_one_that_does_not_tell_which_it_has_is_not_judged() -> None:
    assert kinds(opened(0, None), written(1, 5, start=3), trimmed(2, 5)) == []
    assert kinds(*TWO, opened(3, None, start=7), written(4, 20, start=7), trimmed(5, 20)) == []


DAMAGED = opened(3, [5], snapshots_damaged=["00000000000000000010-0000000001.checkpoint"])


def test_a_snapshot_that_a_controller_cannot_read_is_damaged() -> None:
    assert kinds(*TWO, DAMAGED) == ["metadata-snapshot-damaged"]


@pytest.mark.parametrize(
    "fault",
    [
        small_evidence.fault("fsync-lies", ["c1"], 0, 2, {"lies": 3}),
        small_evidence.fault("wipe", ["c1"], 0, 2, {}),
        small_evidence.fault("power-loss", ["c1"], 0, 2, {"killed": 1, "unknown_lost_bytes": 1}),
    ],
    ids=lambda fault: str(fault["fault"]),
)
@pytest.mark.parametrize("broken", [[*TWO, DAMAGED], [*TWO, trimmed(3, 10)]], ids=["damaged", "trimmed"])
def test_a_disk_that_loses_what_was_synced_is_not_judged(fault: Any, broken: list[Event]) -> None:
    assert kinds(*broken, faults=[fault]) == []
    of_another = fault | {"nodes": ["c2"]}
    assert len(kinds(*broken, faults=[of_another])) == 1
    later = fault | {"started_ns": 60 * small_evidence.S, "ended_ns": 61 * small_evidence.S}
    assert len(kinds(*broken, faults=[later])) == 1
