"""Which produced batches are new, which are retries and which are refused (protocol notes §6)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from images.broker.log.producer_state import (
    BATCHES_KEPT,
    Accept,
    Duplicate,
    ProducerTable,
    Refuse,
    SequenceCheck,
    check_sequence,
    from_snapshot,
    record,
    to_snapshot,
    without_expired,
)
from images.broker.rules import Rules
from images.wire.batch import Header

RULES = Rules()
LAST = (1 << 31) - 1


def header(
    sequence: int,
    *,
    count: int = 1,
    offset: int = 0,
    epoch: int = 0,
    producer: int = 7,
    leader_epoch: int = 1,
    time_ms: int = 0,
) -> Header:
    return Header(offset, 49, leader_epoch, 2, 0, 0, count - 1, time_ms, time_ms, producer, epoch, sequence, count)


def table_of(*headers: Header) -> ProducerTable:
    table = ProducerTable()
    for appended in headers:
        table = record(table, appended)
    return table


def refused(sequence_check: SequenceCheck) -> ErrorCode:
    assert isinstance(sequence_check, Refuse)
    return sequence_check.error


TEN_AT_100 = table_of(header(0, count=10, offset=100))


def test_a_producer_nothing_is_known_of_may_start_anywhere() -> None:
    assert check_sequence(ProducerTable(), header(41), RULES) == Accept()
    assert check_sequence(TEN_AT_100, header(41, producer=8), RULES) == Accept()


def test_a_batch_without_a_producer_id_is_always_new() -> None:
    assert check_sequence(TEN_AT_100, header(-1, producer=-1, epoch=-1), RULES) == Accept()
    assert record(TEN_AT_100, header(-1, producer=-1, epoch=-1)) is TEN_AT_100


def test_the_next_sequence_is_accepted_and_a_gap_either_way_is_not() -> None:
    assert check_sequence(TEN_AT_100, header(10), RULES) == Accept()
    assert refused(check_sequence(TEN_AT_100, header(11), RULES)) is ErrorCode.out_of_order_sequence_number
    assert refused(check_sequence(TEN_AT_100, header(9), RULES)) is ErrorCode.out_of_order_sequence_number


def test_a_retry_is_answered_with_the_offsets_of_its_first_copy() -> None:
    table = table_of(header(0, count=10, offset=100), header(10, count=3, offset=120))
    assert check_sequence(table, header(0, count=10, offset=999), RULES) == Duplicate(100, 109)
    assert check_sequence(table, header(10, count=3), RULES) == Duplicate(120, 122)


def test_a_batch_of_other_bounds_is_no_retry() -> None:
    assert refused(check_sequence(TEN_AT_100, header(0, count=9), RULES)) is ErrorCode.out_of_order_sequence_number
    assert refused(check_sequence(TEN_AT_100, header(1, count=9), RULES)) is ErrorCode.out_of_order_sequence_number


def test_exactly_the_last_five_batches_are_remembered() -> None:
    table = table_of(*(header(sequence, offset=50 + sequence) for sequence in range(8)))
    for sequence in range(3, 8):
        assert check_sequence(table, header(sequence), RULES) == Duplicate(50 + sequence, 50 + sequence)
    assert refused(check_sequence(table, header(2), RULES)) is ErrorCode.out_of_order_sequence_number
    assert len(table[7].batches) == BATCHES_KEPT == 5


def test_a_lower_producer_epoch_is_refused_even_where_its_sequences_are_known() -> None:
    table = table_of(header(0, epoch=3))
    assert refused(check_sequence(table, header(0, epoch=2), RULES)) is ErrorCode.invalid_producer_epoch
    assert refused(check_sequence(table, header(1, epoch=2), RULES)) is ErrorCode.invalid_producer_epoch


def test_a_new_producer_epoch_starts_at_zero_and_forgets_the_old_batches() -> None:
    table = table_of(header(0), header(1, offset=1))
    assert refused(check_sequence(table, header(2, epoch=1), RULES)) is ErrorCode.out_of_order_sequence_number
    assert check_sequence(table, header(0, epoch=1), RULES) == Accept()
    table = record(table, header(0, epoch=1, offset=2))
    assert check_sequence(table, header(0, epoch=1), RULES) == Duplicate(2, 2)
    assert check_sequence(table, header(1, epoch=1), RULES) == Accept()
    assert refused(check_sequence(table, header(1), RULES)) is ErrorCode.invalid_producer_epoch


def test_sequences_start_again_at_zero_after_the_largest() -> None:
    table = table_of(header(LAST, offset=5))
    assert check_sequence(table, header(0), RULES) == Accept()
    assert refused(check_sequence(table, header(1), RULES)) is ErrorCode.out_of_order_sequence_number


def test_a_batch_may_lie_across_the_wrap() -> None:
    table = table_of(header(LAST - 1, count=4, offset=5))  # LAST - 1, LAST, 0, 1
    assert check_sequence(table, header(2), RULES) == Accept()
    assert check_sequence(table, header(LAST - 1, count=4), RULES) == Duplicate(5, 8)


def test_a_producer_id_without_a_sequence_is_refused() -> None:
    assert refused(check_sequence(ProducerTable(), header(-1), RULES)) is ErrorCode.invalid_record
    assert record(TEN_AT_100, header(-1)) is TEN_AT_100


def test_producers_do_not_see_each_other() -> None:
    table = table_of(header(0), header(0, producer=8, offset=1), header(1, offset=2))
    assert check_sequence(table, header(1, producer=8), RULES) == Accept()
    assert check_sequence(table, header(2), RULES) == Accept()


# ---- expiry ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("days", [-2, 2])
def test_the_time_of_a_batch_makes_no_other_one_expire(days: int) -> None:
    """Both may be in flight, and be sent again."""
    table = table_of(header(0, time_ms=1000), header(1, offset=1, time_ms=1000 + days * 86_400_000))
    assert check_sequence(table, header(0, time_ms=1000), RULES) == Duplicate(0, 0)
    assert check_sequence(table, header(1, time_ms=1000 + days * 86_400_000), RULES) == Duplicate(1, 1)
    assert refused(check_sequence(table, header(7), RULES)) is ErrorCode.out_of_order_sequence_number


def test_exactly_the_expired_producers_are_removed() -> None:
    table = table_of(header(0, time_ms=1000), header(0, producer=8, time_ms=1500))
    assert without_expired(table, 1999, 1000) is table
    assert without_expired(table, 2000, 1000) == table_of(header(0, producer=8, time_ms=1500))
    assert without_expired(table, 2500, 1000) == ProducerTable()


# ---- the two rules switched off --------------------------------------------------------------------------------------


def test_without_deduplication_a_retry_is_taken_as_new_and_gaps_are_still_refused() -> None:
    rules = RULES.without(["idempotent_dedupe"])
    table = table_of(*(header(sequence, offset=sequence) for sequence in range(5)))
    for sequence in range(5):
        assert check_sequence(table, header(sequence), rules) == Accept()
    assert refused(check_sequence(table, header(6), rules)) is ErrorCode.out_of_order_sequence_number
    table = record(table, header(2, offset=5))
    assert check_sequence(table, header(5), rules) == Accept(), (
        "the producer goes on where it was, after the second copy too"
    )
    assert check_sequence(table, header(2), RULES) == Duplicate(2, 2), "the first copy keeps its offsets"


def test_without_sequence_checks_nothing_is_refused_and_retries_are_still_found() -> None:
    rules = RULES.without(["producer_sequence_checked"])
    table = table_of(header(0, epoch=3))
    for strange in (header(9, epoch=3), header(0, epoch=2), header(4, epoch=4), header(-1)):
        assert check_sequence(table, strange, rules) == Accept()
    assert check_sequence(table, header(0, epoch=3), rules) == Duplicate(0, 0)


def test_with_both_off_every_batch_is_new() -> None:
    rules = RULES.without(["producer_sequence_checked", "idempotent_dedupe"])
    table = table_of(header(0, epoch=3))
    for any_header in (header(0, epoch=3), header(9, epoch=3), header(0, epoch=2), header(4, epoch=4)):
        assert check_sequence(table, any_header, rules) == Accept()


def test_followers_record_batches_that_a_leader_would_refuse() -> None:
    table = table_of(header(0), header(7, offset=1))
    assert check_sequence(table, header(8), RULES) == Accept()
    assert check_sequence(table, header(7), RULES) == Duplicate(1, 1)


# ---- against the whole history ---------------------------------------------------------------------------------------

SENT = st.builds(
    header,
    st.sampled_from([0, 1, 2, 3, 4, 5, 6, 7, LAST - 1, LAST]),
    count=st.integers(1, 3),
    epoch=st.integers(0, 2),
    producer=st.integers(1, 2),
)


def judge_from_history(appended: list[Header], sent: Header) -> SequenceCheck | ErrorCode:
    """The rules once more, from the full list of batches in the log."""
    mine = [one for one in appended if one.producer_id == sent.producer_id]
    if not mine:
        return Accept()
    epoch = mine[-1].producer_epoch
    if sent.producer_epoch < epoch:
        return ErrorCode.invalid_producer_epoch
    if sent.producer_epoch > epoch:
        return Accept() if sent.base_sequence == 0 else ErrorCode.out_of_order_sequence_number
    current = [one for one in mine if one.producer_epoch == epoch]
    for one in reversed(current[-5:]):
        if (one.base_sequence, one.count) == (sent.base_sequence, sent.count):
            return Duplicate(one.base_offset, one.base_offset + one.count - 1)
    last = current[-1]
    follows = (last.base_sequence + last.count) % (1 << 31) == sent.base_sequence
    return Accept() if follows else ErrorCode.out_of_order_sequence_number


@given(st.lists(SENT, max_size=40))
def test_the_table_knows_as_much_as_the_whole_log(sent: list[Header]) -> None:
    appended: list[Header] = []
    table = ProducerTable()
    for one in sent:
        sequence_check = check_sequence(table, one, RULES)
        expected = judge_from_history(appended, one)
        assert (sequence_check.error if isinstance(sequence_check, Refuse) else sequence_check) == expected
        if sequence_check == Accept():
            stored = one._replace(base_offset=appended[-1].next_offset if appended else 0)
            appended.append(stored)
            table = record(table, stored)
    assert from_snapshot(to_snapshot(table)) == table


# ---- snapshots -------------------------------------------------------------------------------------------------------

KEPT = table_of(
    *(header(sequence, offset=sequence) for sequence in range(7)),
    header(LAST, count=2, offset=1 << 40, epoch=32767, producer=(1 << 62) + 1),
)


def test_a_snapshot_brings_the_table_back() -> None:
    assert from_snapshot(to_snapshot(KEPT)) == KEPT
    assert from_snapshot(to_snapshot(ProducerTable())) == ProducerTable()


def test_equal_tables_have_equal_snapshots() -> None:
    one = table_of(header(0, producer=1), header(0, producer=2, offset=1))
    other = ProducerTable({2: one[2], 1: one[1]})
    assert hash(one) == hash(other)
    assert to_snapshot(one) == to_snapshot(other)


@given(st.data())
def test_a_damaged_snapshot_is_no_snapshot(data: st.DataObject) -> None:
    whole = to_snapshot(KEPT)
    length = data.draw(st.integers(0, len(whole) - 1))
    assert from_snapshot(whole[:length]) is None
    at = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytearray(whole)
    flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    assert from_snapshot(bytes(flipped)) is None


@pytest.mark.parametrize("data", [b"", b"\0" * 6, b"\0" * 64])
def test_garbage_is_no_snapshot(data: bytes) -> None:
    assert from_snapshot(data) is None
