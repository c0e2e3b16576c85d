"""Queries by time: what time readers record, and what `time_offsets` and `visibility` say of the answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from checkers.clients import time_offsets
from checkers.verdict import Validity, Verdict
from checkers.violations import Deletion, FaultModelExceeded, Tolerance
from harness.environments.mistakes import Mistake
from harness.runner.run import Outcome, run_in_simulation
from harness.spec import parse
from results.run import evidence_loader
from tests.simulation.applied_mistake import apply_mistake
from workloads.columns import of_records
from workloads.history import SCHEMA

S: Final = 1_000_000_000

RUN: Final = {
    "seed": 7,
    "time_limit": 20,
    "clients": {"time_readers": 2},
    "settings": {"segment.bytes": "1024"},
    "faults": [{"at": at_s, "for": 3, "fault": "partition", "nodes": ["b1"]} for at_s in (4, 11)],
}
SEGMENT_STAYS_OLD: Final = Mistake(
    "segment_stays_old",
    "A segment that was asked once for its largest timestamp keeps it, whatever is appended to it.",
    "images.broker.log.segment:Segment._index_batch",
    replace="if self._max_timestamp is not None and header.max_timestamp > self._max_timestamp:",
    by="if self._max_timestamp == -1:",
)
UNCOMMITTED_TOLD: Final = Mistake(
    "uncommitted_told",
    "A query by time is answered with a record above the high watermark.",
    "images.broker.replication.replica:Replica.offset_for_time",
    replace="if record is not None and record[0] < leader.readable_end(self.state, self.limits):",
    by="if record is not None:",
)
DELETED_TOLD: Final = Mistake(
    "deleted_told",
    "A query by time finds a record below the start of the log, in the batch in which that lies.",
    "images.broker.log.time_index:first_not_older",
    replace="if record_timestamp >= timestamp and offset >= start:",
    by="if record_timestamp >= timestamp:",
)


def run(directory: Path | None = None, **changed: Any) -> Outcome:
    return run_in_simulation(parse(RUN | changed), directory)


def kinds(outcome: Outcome) -> set[tuple[str, str]]:
    return {(verdict.checker, finding.kind) for verdict in outcome.verdicts for finding in verdict.findings}


def test_time_readers_are_answered_and_believed(tmp_path: Path) -> None:
    outcome = run(tmp_path)
    assert outcome.validity is Validity.VALID, outcome.verdicts
    verdict = next(verdict for verdict in outcome.verdicts if verdict.checker == "time_offsets")
    assert verdict.figures["time_offsets"] > 20
    assert outcome.directory is not None
    asked = evidence_loader.load(outcome.directory).history.filter(pc.field("kind") == "time_offset").to_pylist()
    beginnings = [row["partition"] for row in asked if row["phase"] == "final" and row["value"] == 0]
    assert beginnings == [0, 1] * 2


def test_an_answer_that_passes_over_a_record_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    apply_mistake(monkeypatch, SEGMENT_STAYS_OLD)
    assert ("time_offsets", "time-offset-late") in kinds(run())


def test_an_answer_above_the_high_watermark_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    apply_mistake(monkeypatch, UNCOMMITTED_TOLD)
    assert ("visibility", "read-above-high-watermark") in kinds(run())


def test_a_deleted_record_in_an_answer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    deletions = [{"at": 10, "fault": "delete-records", "partition": partition} for partition in range(2)]
    batched = {"clients": {"time_readers": 1, "batch": 50, "linger": "1s"}, "faults": deletions}
    assert run(**batched).validity is Validity.VALID
    apply_mistake(monkeypatch, DELETED_TOLD)
    assert ("protocol", "offset-misstated") in kinds(run(**batched))


def test_another_record_than_the_newest_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("images.broker.log.log.largest", lambda *_: 0)
    assert ("protocol", "offset-misstated") in kinds(run())


def append(offset: int, invoked_s: float, completed_s: float, outcome: str = "ok") -> dict[str, Any]:
    return row("append", invoked_s, completed_s, value=100 + offset, offset=offset, outcome=outcome)


def poll(invoked_s: float, *offsets: int, epoch: int | None = 1) -> dict[str, Any]:
    values = [100 + offset for offset in offsets]
    return row("poll", invoked_s, invoked_s, offset=0, offsets=list(offsets), values=values, leader_epoch=epoch)


def asked(time_s: float, told: int, at_s: float = 9.0, epoch: int | None = 1) -> dict[str, Any]:
    return row("time_offset", at_s, at_s, value=round(time_s * 1000), offset=told, leader_epoch=epoch)


def row(kind: str, invoked_s: float, completed_s: float, **columns: Any) -> dict[str, Any]:
    times = {"invoked_ns": round(invoked_s * S), "completed_ns": round(completed_s * S)}
    place = {"process": 0, "phase": "main", "topic": "t", "partition": 0}
    return {"kind": kind, "outcome": "ok"} | place | times | columns


def check(*operations: dict[str, Any], **settings: Any) -> Verdict:
    history = pa.Table.from_pylist([{"index": at} | each for at, each in enumerate(operations)], SCHEMA)
    return time_offsets.check_partition(of_records(history), history, topic="t", partition=0, **settings)


APPENDS: Final = (append(0, 1.0, 1.1), append(1, 2.0, 2.1), append(2, 3.0, 3.1))


@pytest.mark.parametrize(
    ("time_s", "told", "kind"),
    [
        (1.5, 1, None),
        (2.05, 1, None),  # the record at 1 may be of any time from 2.0 to 2.1
        (2.05, 2, None),
        (1.5, 2, "time-offset-late"),
        (2.5, 1, "time-offset-early"),
        (3.5, -1, None),
    ],
)
def test_an_answer_is_the_first_record_that_is_not_older(time_s: float, told: int, kind: str | None) -> None:
    verdict = check(*APPENDS, asked(time_s, told))
    assert [finding.kind for finding in verdict.findings] == ([kind] if kind else [])


def test_a_record_may_be_as_much_older_or_younger_as_its_producers_clock_is_wrong() -> None:
    for asked_s, told in ((1.5, 2), (2.5, 1)):
        assert check(*APPENDS, asked(asked_s, told), clock_error_ms=600).validity is Validity.VALID
        assert check(*APPENDS, asked(asked_s, told), clock_error_ms=300).validity is Validity.INVALID


def test_an_append_without_an_end_may_be_of_any_later_time() -> None:
    unknown = append(1, 2.0, 9.5, outcome="info") | {"completed_ns": None, "offset": None}
    assert check(unknown, poll(4.0, 1), asked(8.0, 1)).validity is Validity.VALID
    assert check(unknown, poll(4.0, 1), asked(1.0, 2)).validity is Validity.INVALID


def test_a_record_that_an_unclean_election_puts_below_an_earlier_answer_contradicts_nothing() -> None:
    """Whoever asked at 4 s was told 2; the election of 5 s cut that log, and the append of 3.5 to 6 s stands at 1."""
    operations = append(0, 1.0, 1.1), asked(3.4, 2, at_s=4.0), append(1, 3.5, 6.0)
    assert check(*operations).validity is Validity.INVALID
    assert check(*operations, tolerance=Tolerance(unclean=True, unclean_since_ns=5 * S)).validity is Validity.VALID
    assert check(*operations, tolerance=Tolerance(unclean=True, unclean_since_ns=7 * S)).validity is Validity.INVALID


def test_acknowledgements_by_one_replica_place_no_record() -> None:
    assert check(*APPENDS, asked(1.5, 2), acks=1).validity is Validity.VALID
    assert check(*APPENDS, poll(4.0, 0, 1, 2), asked(1.5, 2), acks=1).validity is Validity.INVALID


@pytest.mark.parametrize(
    ("poll_epoch", "asked_epoch", "validity"),
    [
        (1, 1, Validity.INVALID),
        (1, 2, Validity.INVALID),
        (2, 1, Validity.VALID),  # a deposed leader, which has not heard of the record
        (1, None, Validity.VALID),
        (None, 1, Validity.VALID),
    ],
)
def test_there_is_no_such_record_only_while_no_leader_has_told_of_one(
    poll_epoch: int | None, asked_epoch: int | None, validity: Validity
) -> None:
    assert check(*APPENDS, poll(4.0, 2, epoch=poll_epoch), asked(2.5, -1, epoch=asked_epoch)).validity is validity
    assert check(*APPENDS, poll(9.5, 2, epoch=poll_epoch), asked(2.5, -1, epoch=asked_epoch)).validity is Validity.VALID


def test_deleted_records_may_be_passed_over_and_lost_ones_excuse() -> None:
    late = (*APPENDS, asked(1.5, 2))
    assert check(*late, tolerance=Tolerance(deletions=(Deletion(8 * S, 2, 2),))).validity is Validity.VALID
    assert check(*late, tolerance=Tolerance(deletions=(Deletion(10 * S, 2, 2),))).validity is Validity.INVALID
    assert check(*late, tolerance=Tolerance(deletions=(Deletion(8 * S, 1, 1),))).validity is Validity.INVALID
    lost = FaultModelExceeded(1, 8 * S, ("two replicas lost it",))
    assert check(*late, tolerance=Tolerance(exceeded=(lost,))).validity is Validity.UNKNOWN
