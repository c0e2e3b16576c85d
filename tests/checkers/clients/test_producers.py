"""Order, sequence numbers and ids of idempotent producers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from checkers.clients import producers
from checkers.deletions import ForgetfulAppend
from checkers.tables import REPLICAS
from checkers.verdict import Validity, Verdict
from checkers.violations import Deletion, Tolerance
from tests.checkers.small_evidence import S, history
from tests.checkers.small_histories import Row, append, poll
from workloads.columns import INFO

Record = tuple[int, int, int, int, int]
"""offset, value, producer id, producer epoch, sequence."""


def log(*records: Record, node: str = "b1") -> pa.Table:
    names = ("offset", "value", "producer_id", "producer_epoch", "sequence")
    whole = {"node": node, "topic": "t", "partition": 0, "leader_epoch": 0}
    rows = [whole | dict(zip(names, record, strict=True)) | {"batch_base": record[0]} for record in records]
    return pa.Table.from_pylist(rows, REPLICAS)


def verdict(rows: Sequence[Row], *logs: pa.Table, processes: Sequence[int] = (), **options: Any) -> Verdict:
    table = history(rows)
    if processes:
        table = table.set_column(1, table.schema.field("process"), pa.array(processes, pa.int32()))
    replicas = pa.concat_tables(logs or [log((0, 7, 1, 0, 0))])
    return producers.check_partition(table, replicas, topic="t", partition=0, **options)


def kinds(verdict: Verdict) -> list[str]:
    return [finding.kind for finding in verdict.findings]


ONE_AFTER_THE_OTHER = log((0, 7, 1, 0, 0), (1, 8, 1, 0, 1), (2, 9, 1, 0, 2))


def test_pipelined_appends_of_one_producer_keep_their_order() -> None:
    assert verdict([append(7, 0, 5, 0), append(8, 1, 4, 1)]).validity is Validity.VALID
    reordered = verdict([append(7, 0, 5, 1), append(8, 1, 4, 0)])
    assert kinds(reordered) == ["producer-order"]
    assert reordered.findings[0].operations == (0, 1)


def test_overlapping_appends_of_two_producers_have_no_order() -> None:
    rows = [append(7, 0, 5, 1), append(8, 1, 4, 0)]
    assert verdict(rows, processes=(0, 1)).validity is Validity.VALID


def test_an_append_of_unknown_outcome_is_in_no_order() -> None:
    rows = [append(7, 0, 5, outcome=INFO), append(8, 1, 4, 1), append(9, 2, 6, 2)]
    assert verdict(rows).validity is Validity.VALID


def test_with_acks_1_only_records_that_were_read_keep_their_order() -> None:
    rows = [append(7, 0, 5, 1), append(8, 1, 4, 0)]
    assert verdict(rows, acks=1).validity is Validity.VALID
    assert kinds(verdict([*rows, poll(0, 6, 7, 8, 7)], acks=1)) == ["producer-order"]


def test_order_is_excused_by_an_unclean_election() -> None:
    rows = [append(7, 0, 5, 1), append(8, 1, 4, 0)]
    permitted = producers.check_partition(history(rows), ONE_AFTER_THE_OTHER, tolerance=Tolerance(unclean=True))
    assert permitted.validity is Validity.VALID
    assert permitted.figures["allowed"] == 1


def test_sequence_numbers_follow_each_other_in_every_log() -> None:
    rows = [append(7, 0, 1, 0)]
    assert verdict(rows, ONE_AFTER_THE_OTHER).validity is Validity.VALID
    gap = log((0, 7, 1, 0, 0), (1, 9, 1, 0, 2), node="b2")
    assert kinds(verdict(rows, ONE_AFTER_THE_OTHER, gap)) == ["sequence-gap"]
    assert verdict(rows, ONE_AFTER_THE_OTHER, gap).findings[0].offsets == (0, 1)
    twice = log((0, 7, 1, 0, 0), (1, 7, 1, 0, 0))
    assert kinds(verdict(rows, twice)) == ["sequence-gap"]


def test_sequence_numbers_start_again_at_0_after_the_last_and_in_a_new_producer_epoch() -> None:
    last = (1 << 31) - 1
    assert verdict([append(7, 0, 1, 0)], log((0, 7, 1, 0, last), (1, 8, 1, 0, 0))).validity is Validity.VALID
    assert verdict([append(7, 0, 1, 0)], log((0, 7, 1, 0, 5), (1, 8, 1, 1, 0))).validity is Validity.VALID
    assert kinds(verdict([append(7, 0, 1, 0)], log((0, 7, 1, 0, 5), (1, 8, 1, 1, 6)))) == ["sequence-gap"]
    assert kinds(verdict([append(7, 0, 1, 0)], log((0, 7, 1, 1, 5), (1, 8, 1, 0, 6)))) == ["producer-epoch-fell"]


def test_a_log_may_begin_with_any_sequence_number() -> None:
    assert verdict([append(7, 0, 1, 0)], log((0, 7, 1, 3, 5), (1, 8, 2, 1, 9))).validity is Validity.VALID


def test_a_gap_behind_records_that_may_be_deleted_is_counted_only() -> None:
    gap = log((4, 7, 1, 0, 0), (5, 8, 1, 0, 3))
    for below, validity in ((5, Validity.VALID), (4, Validity.INVALID)):
        tolerance = Tolerance(deletions=(Deletion(0, below, below),))
        assert producers.check_partition(history([append(7, 0, 1)]), gap, tolerance=tolerance).validity is validity


def test_sequence_numbers_of_producers_that_expire_are_not_compared() -> None:
    gap = log((0, 7, 1, 0, 0), (1, 8, 1, 0, 3))
    assert verdict([append(7, 0, 100, 0)], gap, expiration_ms=60_000).validity is Validity.VALID
    assert verdict([append(7, 0, 100, 0)], gap, expiration_ms=86_400_000).validity is Validity.INVALID


@pytest.mark.parametrize(
    ("below", "leader_epoch", "validity"),
    [(1, 0, Validity.VALID), (0, 0, Validity.INVALID), (1, 1, Validity.INVALID)],
    ids=["the one before is forgotten", "it is not", "by another leader"],
)
def test_a_leader_that_has_forgotten_a_producer_accepts_any_sequence(
    below: int, leader_epoch: int, validity: Validity
) -> None:
    forgetful = {("t", 0): [ForgetfulAppend(range(1, 2), leader_epoch, below, 5, ())]}
    for epoch in (1, 0):
        gap = log((0, 7, 1, 1, 0), (1, 8, 1, epoch, 3))
        assert verdict([append(7, 0, 100, 0)], gap, forgetful=forgetful).validity is validity


def test_a_batch_appended_again_keeps_the_order_of_its_first_copy() -> None:
    rows = [append(7, 0, 9, 2), append(8, 1, 4, 1)]
    again = ForgetfulAppend(range(2, 3), 1, 2, 5, (range(1),))
    assert kinds(verdict(rows)) == ["producer-order"]
    assert verdict(rows, forgetful={("t", 0): [again]}).validity is Validity.VALID
    assert kinds(verdict(rows, forgetful={("t", 0): [again._replace(copies=())]})) == ["producer-order"]


def test_a_producer_id_belongs_to_one_producer() -> None:
    rows = [append(7, 0, 1, 0), append(8, 2, 3, 1), append(9, 4, 5, 2)]
    assert verdict(rows, ONE_AFTER_THE_OTHER, processes=(1, 1, 1)).validity is Validity.VALID
    assert kinds(verdict(rows, ONE_AFTER_THE_OTHER, processes=(1, 2, 2))) == ["producer-id-twice"]


@pytest.mark.parametrize(("lied_s", "validity"), [(1, Validity.UNKNOWN), (4, Validity.INVALID)])
def test_a_controller_forgets_no_producer_ids_before_its_disk_lies(lied_s: int, validity: Validity) -> None:
    rows = [append(7, 0, 1, 0), append(8, 2, 3, 1), append(9, 4, 5, 2)]
    lies = {"c1": lied_s * S, "c2": 90 * S}
    found = verdict(rows, ONE_AFTER_THE_OTHER, processes=(1, 2, 2), controllers_lied_since=lies)
    assert found.validity is validity


def test_without_a_log_the_verdict_is_unknown_unless_nothing_must_be_in_it() -> None:
    nothing = REPLICAS.empty_table()
    assert verdict([append(7, 0, 1, 0)], nothing).validity is Validity.UNKNOWN
    assert (
        verdict([append(7, 0, 1, 0)], nothing, tolerance=Tolerance(deletions=(Deletion(0, 1, 1),))).validity
        is Validity.VALID
    )
    assert (
        verdict([append(7, 0, 1, 1)], nothing, tolerance=Tolerance(deletions=(Deletion(0, 1, 1),))).validity
        is Validity.UNKNOWN
    )
    assert verdict([append(7, 0, 1, outcome=INFO)], nothing).validity is Validity.VALID
    assert verdict([append(7, 0, 1, 0)], nothing, tolerance=Tolerance(unclean=True)).validity is Validity.VALID
