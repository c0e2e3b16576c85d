"""Replica logs side by side: every difference is marked, and nothing that is merely shorter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from checkers.tables import REPLICA_ENDS, REPLICAS
from results.pages.browsing.replica_diff import ROWS_MAX, AlignedReplicas, align, section

Log = Sequence[tuple[int, int, int | None]]
"""Of each record: offset, leader epoch, value."""


def aligned(logs: Mapping[str, Log], ends: Mapping[str, tuple[int, int, int]]) -> AlignedReplicas:
    records = [
        {
            **dict.fromkeys(("producer_id", "producer_epoch", "sequence", "batch_base"), -1),
            "node": node,
            "topic": "t",
            "partition": 0,
            "offset": offset,
            "leader_epoch": epoch,
            "value": value,
        }
        for node, log in logs.items()
        for offset, epoch, value in log
    ]
    stands = [
        {"node": node, "topic": "t", "partition": 0, "log_start": a, "log_end": b, "high_watermark": c}
        | {"unread_bytes": 0, "damage": "", "epoch_checkpoint": ""}
        for node, (a, b, c) in ends.items()
    ]
    return align(pa.Table.from_pylist(records, REPLICAS), pa.Table.from_pylist(stands, REPLICA_ENDS), "t", 0)


def whole(log: Log) -> tuple[int, int, int]:
    return log[0][0], log[-1][0] + 1, log[-1][0] + 1


SAME = [(offset, 0, 100 + offset) for offset in range(50)]


def test_replicas_that_hold_the_same_are_folded_between_their_ends() -> None:
    alignment = aligned({"b1": SAME, "b2": SAME}, {"b1": whole(SAME), "b2": whole(SAME)})
    assert alignment.differing == ()
    assert [(row.first, row.last) for row in alignment.rows if not row.cells] == [(3, 46)]
    assert sum(row.records for row in alignment.rows) == 50


def test_another_value_at_an_offset_is_a_difference_and_the_odd_one_out_is_marked() -> None:
    other = [*SAME[:20], (20, 0, 7), *SAME[21:]]
    ends = dict.fromkeys(("b1", "b2", "b3"), whole(SAME))
    alignment = aligned({"b1": SAME, "b2": other, "b3": SAME}, ends)
    assert alignment.differing == (20,)
    (row,) = [row for row in alignment.rows if row.differs]
    assert [cell.odd for cell in row.cells] == [False, True, False]
    assert [cell.value for cell in row.cells] == [120, 7, 120]
    assert "The replicas differ at 1 offset, first at 20." in section(alignment, "t-0")


def test_another_leader_epoch_is_a_difference_even_with_the_same_value() -> None:
    other = [*SAME[:20], (20, 3, 120), *SAME[21:]]
    alignment = aligned({"b1": SAME, "b2": other}, {"b1": whole(SAME), "b2": whole(SAME)})
    assert alignment.differing == (20,)


def test_a_record_that_no_workload_wrote_differs_from_one_that_it_wrote() -> None:
    other = [*SAME[:20], (20, 0, None), *SAME[21:]]
    assert aligned({"b1": SAME, "b2": other}, {"b1": whole(SAME), "b2": whole(SAME)}).differing == (20,)
    both = aligned({"b1": other, "b2": other}, {"b1": whole(SAME), "b2": whole(SAME)})
    assert both.differing == ()


def test_a_hole_is_a_difference_but_an_earlier_end_or_a_later_start_is_not() -> None:
    behind, deleted, hole = SAME[:30], SAME[10:], [*SAME[:40], *SAME[41:]]
    ends = {"b1": whole(SAME), "b2": whole(behind), "b3": whole(deleted), "b4": whole(hole)}
    alignment = aligned({"b1": SAME, "b2": behind, "b3": deleted, "b4": hole}, ends)
    assert alignment.differing == (40,)
    (row,) = [row for row in alignment.rows if row.differs]
    assert [cell.state for cell in row.cells] == ["record", "ended", "record", "missing"]
    assert [cell.state for cell in alignment.rows[0].cells] == ["record", "record", "before", "record"]


def test_what_is_at_or_above_a_replicas_own_high_watermark_is_told_apart() -> None:
    alignment = aligned({"b1": SAME, "b2": SAME}, {"b1": (0, 50, 50), "b2": (0, 50, 49)})
    assert [cell.committed for cell in alignment.rows[-1].cells] == [True, False]


def test_every_place_where_a_leader_epoch_starts_is_shown() -> None:
    log = [(offset, offset // 25, offset) for offset in range(100)]
    alignment = aligned({"b1": log}, {"b1": whole(log)})
    assert {25, 50, 75} <= {row.first for row in alignment.rows if row.cells}


def test_offsets_as_far_apart_as_can_be_take_no_more_room_than_their_records() -> None:
    log = [(0, 0, 1), ((1 << 62) - 1, 0, 2)]
    alignment = aligned({"b1": log, "b2": log[:1]}, {"b1": whole(log), "b2": (0, 1, 1)})
    assert alignment.differing == ()


def test_logs_with_nothing_in_common_are_cut_and_the_cut_is_told() -> None:
    one, other = ([(offset, 0, offset + add) for offset in range(2 * ROWS_MAX)] for add in (0, 1))
    alignment = aligned({"b1": one, "b2": other}, {"b1": whole(one), "b2": whole(other)})
    assert len(alignment.differing) == 2 * ROWS_MAX
    assert (len(alignment.rows), alignment.left_out) == (ROWS_MAX, ROWS_MAX)
    assert f"{ROWS_MAX} more rows are not shown." in section(alignment, "t-0")


def test_a_partition_without_records_or_replicas_is_shown_as_that() -> None:
    assert aligned({"b1": []}, {"b1": (0, 0, 0)}).rows == ()
    assert "No replica&#39;s log was collected." in section(aligned({}, {}), "t-0")
