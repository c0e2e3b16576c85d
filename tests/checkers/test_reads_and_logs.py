"""The checkers of reads and of replica logs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from checkers import logs, reads
from checkers.evidence import CheckSettings, RunEvidence
from checkers.verdict import Validity, Verdict
from checkers.violations import FaultModelExceeded, Tolerance
from tests.checkers import small_evidence
from tests.checkers.small_histories import Row, append, poll
from workloads.columns import FAIL, INFO


def kinds(verdict: Verdict) -> list[str]:
    return [finding.kind for finding in verdict.findings]


def read(rows: list[Row], recovered: bool = False, **more: Any) -> Verdict:
    settings = CheckSettings(**more.pop("settings", {}))
    recovery = {"recovered": recovered}
    return reads.check(RunEvidence(history=small_evidence.history(rows), recovery=recovery, settings=settings, **more))


def on_disk(**of_node: Any) -> dict[str, Any]:
    replicas, ends = small_evidence.logs(**of_node)
    return {"replicas": replicas, "replica_ends": ends}


# reads


def test_claims_that_agree_are_valid() -> None:
    rows = [append(7, 1, 2, 0), append(8, 1, outcome=INFO), poll(0, 3, 4, 7, 8)]
    assert read(rows, recovered=True, **on_disk(b1=[(1, 7), (1, 8)])).validity is Validity.VALID


def test_a_failed_append_that_is_read_or_on_a_disk_is_an_aborted_read() -> None:
    failed = append(7, 1, 2, outcome=FAIL)
    assert kinds(read([failed, poll(0, 3, 4, 7)])) == ["failed-append-seen"]
    verdict = read([failed], **on_disk(b1=[(4, 7)]))
    assert verdict.findings[0].lines == (
        "b1 holds value 7 at offset 0, leader epoch 4",
        "#0 append of value 7 by process 0 (1.000000 s to 2.000000 s) → fail",
        "value 7 at offset 0 is of an append that had failed",
    )


def test_a_record_nobody_wrote_is_a_phantom() -> None:
    assert kinds(read([append(7, 1, 2, 0), poll(0, 3, 4, 9)])) == ["phantom-value"]


def test_one_value_at_two_offsets_is_a_duplicate() -> None:
    rows = [append(7, 1, 2, 0), append(8, 1, outcome=INFO), poll(1, 3, 4, 7)]
    assert kinds(read(rows)) == ["duplicate"]
    in_one_log = on_disk(b1=[(1, 7), (1, 7)])
    in_one_log["replica_ends"] = small_evidence.marked(in_one_log["replica_ends"], b1=0)
    assert kinds(read([append(7, 1, outcome=INFO)], **in_one_log)) == ["duplicate"]


def test_one_offset_with_two_values_is_a_conflict() -> None:
    rows = [append(7, 1, outcome=INFO), append(8, 1, outcome=INFO), poll(0, 3, 4, 7), poll(0, 5, 6, 8)]
    verdict = read(rows)
    assert kinds(verdict) == ["conflicting-offset"]
    assert verdict.findings[0].operations == (2, 3)


@pytest.mark.parametrize(("lost_s", "validity"), [(6, Validity.UNKNOWN), (4, Validity.INVALID)])
@pytest.mark.parametrize(
    ("rows", "log", "marked"),
    [
        ([append(7, 5, 7, 0), poll(0, 8, 9, 7, 7)], [], 0),
        ([append(7, 5, 7, 0)], [(1, 7), (1, 7)], 0),
        ([append(7, 5, 7, 0), append(8, 9, 10, 0)], [], 0),
        ([append(7, 5, 7, 0), append(8, 9, outcome=INFO)], [(1, 8)], 1),
    ],
    ids=["duplicate", "duplicate in one log", "conflict", "conflict with a log"],
)
def test_a_loss_excuses_nothing_about_records_appended_after_it(
    rows: list[Row], log: list[tuple[int, int]], marked: int, lost_s: int, validity: Validity
) -> None:
    disks = on_disk(b1=log)
    disks["replica_ends"] = small_evidence.marked(disks["replica_ends"], b1=marked)
    lost = Tolerance(exceeded=(FaultModelExceeded(0, lost_s * small_evidence.S, ("lost",)),))
    assert reads.check_partition(small_evidence.history(rows), **disks, tolerance=lost).validity is validity


def test_a_conflict_that_was_read_before_an_unclean_election_is_one_whatever_disks_have() -> None:
    """A disk is read last, when the election may have replaced the record."""
    rows = [append(7, 1, outcome=INFO), append(8, 1, outcome=INFO), poll(0, 2, 3, 7), poll(0, 4, 5, 8)]
    history, elected = small_evidence.history(rows), Tolerance(unclean=True, unclean_since_ns=20 * small_evidence.S)
    for log in ([], [(1, 7)]):
        disks = on_disk(b1=log)
        verdict = reads.check_partition(history, **disks, acks=1, recovered=True, tolerance=elected)
        assert (verdict.validity, kinds(verdict)) == (Validity.INVALID, ["conflicting-offset"])
    rows = [append(9, 1, outcome=INFO), poll(0, 2, 3, 7), poll(0, 4, 5, 9)]
    third = small_evidence.history([*rows, append(7, 1, outcome=INFO), append(8, 1, outcome=INFO), poll(0, 30, 31, 8)])
    verdict = reads.check_partition(third, **on_disk(), acks=1, tolerance=elected)
    assert (verdict.validity, verdict.figures["allowed"]) == (Validity.INVALID, 1), "8 was read after it"


def test_a_disk_counts_below_its_high_watermark_or_after_recovery() -> None:
    rows = [append(7, 1, 2, 0), append(8, 1, outcome=INFO)]
    stale = on_disk(b1=[(1, 8)], b2=[(2, 7)])
    assert kinds(read(rows, **stale)) == ["conflicting-offset"]
    stale["replica_ends"] = small_evidence.marked(stale["replica_ends"], b1=0)
    assert read(rows, **stale).validity is Validity.VALID
    assert kinds(read(rows, recovered=True, **stale)) == ["conflicting-offset"]


def test_records_below_the_log_start_of_a_replica_are_no_claims_but_where_they_are_wrong_anywhere() -> None:
    rows = [append(7, 1, 2, 0), append(8, 1, outcome=INFO), append(9, 1, 2, outcome=FAIL)]
    diverged = on_disk(b1=[(1, 8), (2, 8)], b2=[(2, 7), (2, 8)])
    assert kinds(read(rows, recovered=True, **diverged)) == ["duplicate", "conflicting-offset"]
    diverged["replica_ends"] = small_evidence.starting(diverged["replica_ends"], b1=1)
    assert read(rows, recovered=True, **diverged).validity is Validity.VALID
    failed = on_disk(b1=[(1, 9)])
    failed["replica_ends"] = small_evidence.starting(failed["replica_ends"], b1=1)
    assert kinds(read(rows, **failed)) == ["failed-append-seen"]


def test_with_acks_1_an_acknowledged_offset_may_be_reused() -> None:
    rows = [append(7, 1, 2, 0), append(8, 3, 4, 0), poll(0, 5, 6, 8)]
    assert kinds(read(rows)) == ["conflicting-offset"]
    assert read(rows, settings={"acks": 1}).validity is Validity.VALID


def test_polls_are_in_order_and_from_the_position_asked() -> None:
    appends = [append(7, 1, 2, 0), append(8, 1, 2, 1)]
    backwards = replace(poll(0, 3, 4, 7, 8), records=((1, 8), (0, 7)))
    assert kinds(read([*appends, backwards])) == ["poll-order"]
    below = replace(poll(1, 3, 4), records=((0, 7), (1, 8)))
    assert read([*appends, below]).findings[0].lines[1] == "it returned offset 0 first, having been asked from 1 on"
    assert read([*appends, poll(0, 3, 4, 7), poll(0, 3, 4, 7)]).validity is Validity.VALID


# logs


def matched(
    recovered: bool,
    marks: dict[str, int] | None = None,
    unclean: bool = False,
    left: Sequence[str] = (),
    **of_node: Any,
) -> Verdict:
    replicas, ends = small_evidence.logs(**of_node)
    ends = small_evidence.marked(ends, **(marks or {}))
    settings = CheckSettings(replication_factor=len(of_node), unclean_election=unclean)
    recovery = {"recovered": recovered, "left_again": list(left)}
    return logs.check(RunEvidence(replicas=replicas, replica_ends=ends, settings=settings, recovery=recovery))


def test_after_recovery_replica_logs_must_be_equal() -> None:
    same = [(1, 7), (2, 8)]
    assert matched(True, b1=same, b2=same, b3=same).validity is Validity.VALID
    assert matched(False, b1=same, b2=same[:1]).validity is Validity.VALID
    behind = matched(True, b1=same, b2=same[:1])
    assert kinds(behind) == ["replicas-differ"]
    assert behind.findings[0].lines[0] == "b2's log ends at 1, b1's at 2"


def test_logs_of_a_cluster_that_was_not_whole_at_last_need_not_be_equal() -> None:
    left = ["b1 sees t-0 with ISR {1} of 2 replicas"]
    assert matched(True, left=left, b1=[(1, 7), (2, 8)], b2=[(1, 7)]).validity is Validity.VALID


def test_logs_may_diverge_above_the_high_watermark_until_recovery() -> None:
    parted = {"b1": [(1, 7), (1, 8)], "b2": [(1, 7), (2, 9)]}
    assert matched(False, {"b1": 1}, **parted).validity is Validity.VALID
    assert kinds(matched(False, **parted)) == ["log-divergence"]
    assert kinds(matched(True, {"b1": 1}, **parted)) == ["replicas-differ"]


def test_logs_of_an_unclean_topic_may_diverge_below_the_high_watermark_until_recovery() -> None:
    parted = {"b1": [(1, 7), (1, 8)], "b2": [(1, 7), (2, 9)]}
    assert matched(False, unclean=True, **parted).validity is Validity.VALID
    assert matched(True, unclean=True, **parted).validity is Validity.INVALID


def test_one_offset_and_epoch_is_one_record_even_above_the_high_watermark() -> None:
    marks = {"b1": 0, "b2": 0}
    verdict = matched(False, marks, b1=[(1, 7)], b2=[(1, 8)])
    assert kinds(verdict) == ["log-mismatch"]
    assert verdict.findings[0].lines == (
        "b1 holds value 7 at offset 0, written in leader epoch 1",
        "b2 holds value 8 at offset 0, written in leader epoch 1",
    )


def test_two_equal_records_have_equal_logs_before_them() -> None:
    marks = {"b1": 0, "b2": 0}
    verdict = matched(False, marks, unclean=True, b1=[(1, 7), (3, 9)], b2=[(2, 8), (3, 9)])
    assert kinds(verdict) == ["log-mismatch"]
    assert verdict.findings[0].offsets == (0,)


def test_a_hole_in_one_log_is_a_difference() -> None:
    verdict = matched(True, b1=[(1, 7), (1, 8), (1, 9)], b2=[(1, 7), None, (1, 9)])
    assert "replicas-differ" in kinds(verdict)
    assert any("b2 has no record at offset 1" in line for line in verdict.findings[0].lines)


def test_fewer_logs_than_replicas_are_unknown() -> None:
    replicas, ends = small_evidence.logs(b1=[(1, 7)])
    verdict = logs.check(RunEvidence(replicas=replicas, replica_ends=ends))
    assert (verdict.validity, kinds(verdict)) == (Validity.UNKNOWN, ["logs-missing"])
    assert logs.check(RunEvidence()).validity is Validity.UNKNOWN


def test_leader_epochs_do_not_fall_along_a_log() -> None:
    fallen = [(1, 7), (3, 8), (2, 9)]
    verdict = matched(False, b1=fallen, b2=fallen)
    assert kinds(verdict) == ["leader-epoch-fell", "leader-epoch-fell"]
    assert verdict.findings[0].offsets == (2,)
    assert matched(False, unclean=True, b1=fallen, b2=fallen).validity is Validity.INVALID


TWO_EPOCHS = [(0, 7), (0, 8), (2, 9)]
"""A log in which leader epoch 1 has no record."""


def checkpointed(
    *entries: tuple[int, int],
    recovered: bool = True,
    text: str = "",
    start: int = 0,
    fault: Any = None,
    **settings: Any,
) -> list[str]:
    """The findings about b1, whose checkpoint has these entries; those of the others are as they should be."""
    replicas, ends = small_evidence.logs(b1=TWO_EPOCHS, b2=TWO_EPOCHS, b3=TWO_EPOCHS)
    good, of_b1 = json.dumps([[0, 0], [2, 2]]), text or json.dumps(entries)
    ends = small_evidence.checkpointed(small_evidence.starting(ends, b1=start), b1=of_b1, b2=good, b3=good)
    verdict = logs.check(
        RunEvidence(
            replicas=replicas,
            replica_ends=ends,
            faults=small_evidence.faults(*([fault] if fault else [])),
            settings=CheckSettings(**{"has_epoch_checkpoints": True, **settings}),
            recovery={"recovered": recovered},
        )
    )
    assert all("b1" in finding.lines[0] for finding in verdict.findings)
    return kinds(verdict)


@pytest.mark.parametrize(
    "entries",
    [
        [(0, 0), (2, 2)],
        [(0, 0), (2, 2), (5, 3)],  # led in leader epoch 5, and appended nothing
        [(0, 0), (2, 2), (5, 7), (6, 9)],  # its log was truncated to 3
    ],
)
def test_an_epoch_checkpoint_may_have_entries_from_the_end_of_the_log_on(entries: list[tuple[int, int]]) -> None:
    assert checkpointed(*entries) == []


def test_an_epoch_checkpoint_has_the_leader_epoch_of_every_record() -> None:
    assert checkpointed((0, 0)) == ["epoch-checkpoint-lacks"]
    assert checkpointed((0, 0), recovered=False) == ["epoch-checkpoint-lacks"]
    assert checkpointed() == ["epoch-checkpoint-lacks"]
    assert checkpointed((1, 0), (2, 2)) == ["epoch-checkpoint-lacks"]
    assert checkpointed((0, 0), (2, 3)) == ["epoch-checkpoint-lacks"], "it begins after the record"
    assert checkpointed((2, 0)) == ["epoch-checkpoint-lacks"]


def test_entries_that_a_truncation_has_removed_are_gone_after_recovery() -> None:
    assert checkpointed((0, 0), (2, 1)) == ["epoch-checkpoint-stale"]
    assert checkpointed((0, 0), (1, 1), (2, 2)) == ["epoch-checkpoint-stale"]
    assert checkpointed((0, 0), (1, 1), (2, 2), recovered=False) == [], "the file is written in the background"


def test_epochs_and_offsets_rise_along_a_checkpoint_that_can_be_read() -> None:
    assert checkpointed((0, 0), (2, 2), (1, 3)) == ["epoch-checkpoint-unordered"]
    assert checkpointed((0, 0), (2, 2), (3, 2), recovered=False) == ["epoch-checkpoint-unordered"]
    assert checkpointed(text="damaged") == ["epoch-checkpoint-damaged"]


def test_a_checkpoint_begins_where_the_log_does_or_further_up_where_deletion_was_requested() -> None:
    deletion = {"asked_below": 1, "deleted": 1}
    request = small_evidence.fault("delete-records", ["b1"], 1, 2, deletion) | {"detail": '{"partition": 0}'}
    assert checkpointed((0, 1), (2, 2)) == ["epoch-checkpoint-lacks"]
    assert checkpointed((0, 1), (2, 2), start=1, fault=request) == []
    assert checkpointed((0, 1), (2, 2), fault=request) == []
    assert checkpointed((2, 2), fault=request) == ["epoch-checkpoint-lacks"], "deletion was requested below 1"
    assert checkpointed((2, 2), retention_ms=1000) == []
    assert checkpointed(retention_ms=1000) == ["epoch-checkpoint-lacks"], "the last entry stays"


def test_epoch_checkpoints_are_checked_where_they_are_kept_up_to_date_and_nothing_was_undone() -> None:
    assert checkpointed((0, 0), has_epoch_checkpoints=False) == []
    for numbers in ({"unsynced_bytes": 0, "lost_bytes": 0}, {"unknown_lost_bytes": 1}):
        assert checkpointed((0, 0), fault=small_evidence.fault("power-loss", ["b1"], 1, 2, numbers)) == []
    assert checkpointed((0, 0), fault=small_evidence.fault("fsync-lies", ["b1"], 1, 2, {"lies": 1})) == []
    killed = small_evidence.fault("kill", ["b1"], 1, 2, {"killed": 1})
    assert checkpointed((0, 0), fault=killed) == ["epoch-checkpoint-lacks"]
    of_another = small_evidence.fault("power-loss", ["b2"], 1, 2, {"unsynced_bytes": 9, "lost_bytes": 9})
    assert checkpointed((0, 0), fault=of_another) == ["epoch-checkpoint-lacks"]


@pytest.mark.parametrize(
    ("deletion", "settings", "found"),
    [
        (None, {}, ["log-starts-late"]),
        ({"asked_below": 1}, {}, ["log-starts-late"]),
        ({"asked_below": 2}, {}, []),
        ({"to_high_watermark": 1}, {}, []),
        (None, {"retention_ms": 1000}, []),
    ],
)
def test_a_log_starts_no_higher_than_deletion_was_requested(
    deletion: dict[str, int] | None, settings: dict[str, int], found: list[str]
) -> None:
    """b3 lacks its beginning, with a trace or without one, and nothing is left to compare it with there."""
    replicas, ends = small_evidence.logs(
        b1=[(1, 7), (1, 8), (1, 9)], b2=[(1, 7), (1, 8), (1, 9)], b3=[None, None, (1, 9)]
    )
    ends = small_evidence.starting(ends, b3=2)
    requests = [small_evidence.fault("delete-records", ["b1"], 1, 2, deletion)] if deletion else []
    for has_trace in (True, False):
        run = RunEvidence(
            replicas=replicas,
            replica_ends=ends,
            faults=small_evidence.faults(*requests),
            settings=CheckSettings(has_trace=has_trace, **settings),
            recovery={"recovered": True},
        )
        assert kinds(logs.check(run)) == found


def test_a_log_that_starts_late_on_a_disk_that_lied_is_unknown() -> None:
    replicas, ends = small_evidence.logs(b1=[(1, 7), (1, 8)], b2=[None, (1, 8)])
    ends = small_evidence.starting(ends, b2=1)
    lies = small_evidence.faults(small_evidence.fault("fsync-lies", ["b2"], 1, 2, {"lies": 1}))
    run = RunEvidence(replicas=replicas, replica_ends=ends, settings=CheckSettings(replication_factor=2))
    assert logs.check(run).validity is Validity.INVALID
    assert logs.check(replace(run, faults=lies)).validity is Validity.UNKNOWN


def damaged(damage: str, *, recovered: bool = True, faults: pa.Table | None = None) -> Verdict:
    replicas, ends = small_evidence.logs(b1=[(1, 7)], b2=[(1, 7)])
    rows = [row | {"unread_bytes": 30, "damage": damage} if row["node"] == "b2" else row for row in ends.to_pylist()]
    return logs.check(
        RunEvidence(
            replicas=replicas,
            replica_ends=pa.Table.from_pylist(rows, ends.schema),
            faults=faults or small_evidence.faults(),
            settings=CheckSettings(replication_factor=2),
            recovery={"recovered": recovered},
        )
    )


def test_a_log_is_whole_after_recovery() -> None:
    assert kinds(damaged("torn")) == ["torn-log"]
    assert kinds(damaged("corrupt")) == ["corrupt-log"]
    assert kinds(damaged("disordered")) == ["disordered-log"]
    assert damaged("disordered").findings[0].lines[0].startswith("b2's log is disordered: batches of 30 bytes begin")
    assert damaged("disordered", recovered=False).validity is Validity.VALID
    assert damaged("torn").findings[0].lines[0] == (
        "b2's log is torn: 30 bytes follow the last intact batch, at offset 1"
    )
    assert damaged("torn", recovered=False).validity is Validity.VALID
    assert damaged("torn", recovered=False).figures["torn_logs"] == 1


def test_a_log_that_is_damaged_on_a_disk_that_lied_is_unknown() -> None:
    lies = {"lies": 1}
    of_another = small_evidence.faults(small_evidence.fault("fsync-lies", ["b1"], 1, 2, lies))
    assert damaged("torn", faults=of_another).validity is Validity.INVALID
    of_its_own = small_evidence.faults(small_evidence.fault("fsync-lies", ["b2"], 1, 2, lies))
    assert damaged("torn", faults=of_its_own).validity is Validity.UNKNOWN
