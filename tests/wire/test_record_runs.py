"""The check of a batch by runs of alike records accepts nothing that the codec of the records refuses."""

from __future__ import annotations

from random import Random

import pytest
from aiokafka.record._crecords import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import example, given
from hypothesis import strategies as st

from images.wire import batch
from images.wire.record_runs import consists_of_runs

Timed = tuple[int, bytes | None, bytes | None]
"""A record: its timestamp, key and value."""


def built(records: list[Timed], headers: list[tuple[str, bytes]] | None = None) -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 30,
    )
    for offset, (timestamp, key, value) in enumerate(records):
        builder.append(offset, timestamp, key, value, headers or [])
    return bytes(builder.build())


def parses(data: bytes, claimed: int | None = None) -> bool:
    """Whether the codec reads records with offset deltas 0, 1, 2, … and the largest timestamp delta of the header, or
    this one."""
    try:
        records = [(record.offset, record.timestamp) for record in DefaultRecordBatch(data)]
    except Exception:  # the codec has no common class for what nonsense makes it raise
        return False
    latest = timestamp_delta_max(data) if claimed is None else claimed
    counts = [offset for offset, _ in records] == list(range(len(records)))
    return counts and max(timestamp for _, timestamp in records) == batch.parse(data).base_timestamp + latest


def in_runs(data: bytes, claimed: int | None = None) -> bool:
    latest = timestamp_delta_max(data) if claimed is None else claimed
    return consists_of_runs(data, batch.HEADER_BYTES, batch.parse(data).count, latest)


def timestamp_delta_max(data: bytes) -> int:
    header = batch.parse(data)
    return header.max_timestamp - header.base_timestamp


@pytest.mark.parametrize(
    "records",
    [
        [(5, None, b"x" * 100)] * 9_000,
        [(5, b"key", b"x" * 70)] * 300,
        [(5, None, None)] * 300,
        [(5, b"", b"")] * 300,
        [(1 << 40, b"k" * 200, b"v" * 20_000)] * 40,
        [(number // 3, None, b"x" * 100) for number in range(9_000)],
        [(9_000 - number, None, b"x" * 100) for number in range(9_000)],
        [(5, None, b"x" * 100)] * 8_000 + [(5, None, b"x" * 99)] * 1_000,
        [(5 + (number == 70), None, b"x" * 100) for number in range(300)],
        [(5_000 * number, None, b"x" * 100) for number in range(300)],
        [(5, None, b"x" * 100)] * 300 + [(5, None, b"y" * 50)] * 300,
    ],
)
def test_records_that_look_alike_for_long_are_accepted(records: list[Timed]) -> None:
    data = built(records)
    assert parses(data)
    assert in_runs(data)


def test_records_that_vary_or_have_headers_are_left_to_the_codec() -> None:
    sizes = Random(1)
    varied = built([(5, None, b"x" * sizes.randint(1, 100)) for _ in range(1_000)])
    with_headers = built([(5, None, b"x")] * 300, [("name", b"value")])
    for data in (varied, with_headers):
        assert parses(data)
        assert not in_runs(data)


ALIKE = built([(number // 100, b"key", b"x" * 9) for number in range(400)])


@given(
    changes=st.lists(
        st.tuples(st.integers(batch.HEADER_BYTES, len(ALIKE) - 1), st.integers(0, 255)), min_size=1, max_size=3
    )
)
def test_a_damaged_batch_that_is_accepted_can_be_parsed(changes: list[tuple[int, int]]) -> None:
    damaged = bytearray(ALIKE)
    for position, value in changes:
        damaged[position] = value
    assert parses(bytes(damaged)) or not in_runs(bytes(damaged))


RISING = built([(7 * number, b"key", b"x" * 9) for number in range(400)])
"""Its timestamps take one, two and at last more bytes than the high half of the largest."""


@given(
    record=st.integers(0, 399),
    place=st.integers(0, 6),
    value=st.integers(0, 255),
    claimed=st.sampled_from([-1, 0, 63, 64, 2_792, 2_793, 2_794, 1 << 40]),
    data=st.sampled_from([ALIKE, RISING]),
)
def test_no_other_offset_and_no_other_largest_timestamp_is_accepted(
    record: int, place: int, value: int, claimed: int, data: bytes
) -> None:
    damaged = bytearray(data)
    size = (len(data) - batch.HEADER_BYTES) // 400
    damaged[batch.HEADER_BYTES + record * size + place] = value
    assert parses(bytes(damaged), claimed) or not in_runs(bytes(damaged), claimed)


def test_a_claim_about_the_largest_timestamp_is_held_against_the_records() -> None:
    for claimed in (-1, 0, 2_792, 2_794, 1 << 40):
        assert not in_runs(RISING, claimed)
    assert in_runs(RISING, 2_793)


@given(cut=st.integers(1, len(ALIKE) - batch.HEADER_BYTES), surplus=st.binary(min_size=1, max_size=40))
@example(cut=18, surplus=b"\0")
def test_a_batch_with_bytes_missing_or_left_over_is_not_accepted(cut: int, surplus: bytes) -> None:
    assert not in_runs(ALIKE[:-cut])
    assert not in_runs(ALIKE + surplus)


@pytest.mark.parametrize("count", [0, 1, 399, 401, 1 << 30])
def test_a_count_that_lies_is_not_accepted(count: int) -> None:
    assert not consists_of_runs(ALIKE, batch.HEADER_BYTES, count, timestamp_delta_max(ALIKE))


@given(
    head=st.binary(max_size=40),
    times=st.integers(1, 300),
)
def test_bytes_repeated_at_random_are_accepted_only_if_they_parse(head: bytes, times: int) -> None:
    """Numbers of odd lengths: overlong varints, negative lengths."""
    records = (bytes(((len(head) << 1) & 0x7F,)) + head) * times
    header = bytearray(ALIKE[: batch.HEADER_BYTES])
    header[8:12] = (batch.HEADER_BYTES - 12 + len(records)).to_bytes(4)
    header[57:61] = times.to_bytes(4)
    data = bytes(header) + records
    assert parses(data) or not consists_of_runs(data, batch.HEADER_BYTES, times, timestamp_delta_max(ALIKE))
