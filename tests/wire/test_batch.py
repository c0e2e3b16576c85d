"""Record batches: what the header says, what damage is found, and what may be rewritten."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from images.wire import batch
from images.wire.batch import CorruptBatch, InvalidRecord, Record

VALUES = st.lists(st.binary(max_size=40), min_size=1, max_size=5)
UNCOVERED = {*range(8), *range(12, 16)}
"""Bytes no checksum covers: base offset and leader epoch, which each leader assigns."""


def sample(**fields: int) -> bytes:
    return batch.build([b"one", (b"key", b"two"), (None, None)], timestamp_ms=1_700_000_000_000, **fields)


def test_the_header_says_what_was_built() -> None:
    built = sample(producer_id=7, producer_epoch=3, base_sequence=40, leader_epoch=5, base_offset=100)
    header = batch.parse(built)
    assert header.base_offset == 100
    assert header.leader_epoch == 5
    assert header.magic == 2
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, 40)
    assert header.count == 3
    assert header.last_offset_delta == 2
    assert (header.last_offset, header.next_offset, header.last_sequence) == (102, 103, 42)
    assert header.base_timestamp == header.max_timestamp == 1_700_000_000_000
    assert header.size == len(built)
    assert batch.check(built) == header


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # kafka-python's own, on import
def test_another_implementation_reads_the_same_records() -> None:
    from kafka.record.default_records import DefaultRecordBatch

    theirs = DefaultRecordBatch(sample(producer_id=7, producer_epoch=3, base_sequence=40, base_offset=100))
    assert theirs.validate_crc()
    assert (theirs.base_offset, theirs.producer_id, theirs.producer_epoch, theirs.base_sequence) == (100, 7, 3, 40)
    assert [(record.offset, record.key, record.value) for record in theirs] == [
        (100, None, b"one"),
        (101, b"key", b"two"),
        (102, None, None),
    ]


def test_records_read_back_plain() -> None:
    time = 1_700_000_000_000
    expected = [Record(0, time, None, b"one"), Record(1, time, b"key", b"two"), Record(2, time, None, None)]
    assert batch.records(sample()) == expected


@pytest.mark.parametrize("compression", list(batch.Compression)[1:])
def test_records_read_back_compressed(compression: batch.Compression) -> None:
    packed = batch.build([b"a" * 1000, b"b" * 1000], timestamp_ms=1, compression=compression, base_offset=9)
    assert len(packed) < 300
    assert header_of_produced(batch.assign(packed, 0, -1)).attributes == compression
    assert [(record.offset, len(record.value or b"")) for record in batch.records(packed)] == [(9, 1000), (10, 1000)]


def test_records_that_cannot_be_read_are_corrupt_and_nothing_worse() -> None:
    lz4 = forged(sample(), attributes=3)
    assert batch.check(lz4).attributes == 3, "the broker passes any codec on"
    with pytest.raises(CorruptBatch):
        batch.records(lz4)
    with pytest.raises(CorruptBatch):
        batch.records(forged(sample(), attributes=1))  # says gzip, is not
    with pytest.raises(CorruptBatch):
        batch.records(forged(sample(), count=4, last_offset_delta=3))


@settings(max_examples=300)
@given(values=VALUES, sequence=st.integers(0, 100), data=st.data())
def test_every_flipped_bit_that_the_crc_can_know_of_is_found(
    values: list[bytes], sequence: int, data: st.DataObject
) -> None:
    intact = batch.build(values, timestamp_ms=1, producer_id=1, producer_epoch=0, base_sequence=sequence)
    at = data.draw(st.integers(0, len(intact) - 1).filter(lambda position: position not in UNCOVERED))
    damaged = flipped(intact, at, data.draw(st.integers(0, 7)))
    with pytest.raises(CorruptBatch):
        batch.check(damaged)


def test_every_single_flipped_bit_of_one_batch_is_found_but_for_offset_and_leader_epoch() -> None:
    intact = sample(producer_id=1, producer_epoch=0, base_sequence=0)
    found = set()
    for at in range(len(intact)):
        for bit in range(8):
            try:
                batch.check(flipped(intact, at, bit))
            except CorruptBatch:
                found.add((at, bit))
    assert found == {(at, bit) for at in range(len(intact)) if at not in UNCOVERED for bit in range(8)}


@given(values=VALUES, change=st.integers(-70, 70).filter(bool))
def test_a_batch_cut_short_or_with_bytes_behind_it_is_refused(values: list[bytes], change: int) -> None:
    intact = batch.build(values, timestamp_ms=1)
    with pytest.raises(CorruptBatch):
        batch.check(intact[:change] if change < 0 else intact + bytes(change))


@given(offset=st.integers(0, 2**63 - 1), epoch=st.integers(-1, 2**31 - 1))
def test_assigning_changes_offset_and_leader_epoch_and_nothing_else(offset: int, epoch: int) -> None:
    intact = sample(producer_id=7, producer_epoch=3, base_sequence=40)
    assigned = batch.assign(intact, offset, epoch)
    assert batch.check(assigned) == batch.check(intact)._replace(base_offset=offset, leader_epoch=epoch)
    assert [at for at in range(len(intact)) if at not in UNCOVERED and assigned[at] != intact[at]] == []


@given(batches=st.lists(VALUES, max_size=5), cut=st.integers(0, 100))
def test_iterating_gives_each_whole_batch_and_leaves_out_the_one_cut_short(
    batches: list[list[bytes]], cut: int
) -> None:
    built = [batch.build(values, timestamp_ms=1, base_offset=10 * at) for at, values in enumerate(batches)]
    whole = b"".join(built)
    cut = min(cut, len(whole))
    kept, end = [], 0
    for one in built:
        end += len(one)
        if end <= len(whole) - cut:
            kept.append(one)
    assert [part for _, part in batch.iterate(whole[: len(whole) - cut])] == kept
    assert all(header == batch.parse(part) for header, part in batch.iterate(whole))


def test_iterating_stops_at_bytes_that_begin_no_batch() -> None:
    stream = batch.iterate(sample() + bytes(100))
    assert next(stream)[0].count == 3
    with pytest.raises(CorruptBatch, match="magic 0"):
        next(stream)
    with pytest.raises(CorruptBatch, match="length 10"):
        list(batch.iterate(sample()[:8] + (10).to_bytes(4) + sample()[12:]))


def test_sequence_numbers_start_again_after_the_last() -> None:
    assert batch.parse(sample(producer_id=1, producer_epoch=0, base_sequence=2**31 - 2)).last_sequence == 0
    assert batch.parse(sample()).last_sequence == -1


def test_counts_that_cannot_be_are_corrupt_even_under_a_valid_crc() -> None:
    for fields in ({"count": -1}, {"count": 9}, {"last_offset_delta": -1}):
        with pytest.raises(CorruptBatch, match="do not fit"):
            batch.check(forged(sample(), **fields))


def test_a_producer_may_send_neither_gaps_nor_markers() -> None:
    gaps = forged(sample(), last_offset_delta=2**31 - 1)
    markers = forged(sample(), attributes=0x20)
    for odd in (gaps, markers):
        batch.check(odd)
        with pytest.raises(InvalidRecord, match="producer"):
            batch.check_produced(odd)
    assert batch.check_produced(sample()) == (batch.check(sample()), sample())


def test_a_producer_counts_its_offsets_from_0() -> None:
    with pytest.raises(InvalidRecord, match="base offset 7"):
        batch.check_produced(batch.assign(sample(), 7, -1))
    assert header_of_produced(batch.assign(sample(), 0, 7)).leader_epoch == 7


@pytest.mark.parametrize("count", [-1, 0, 2, 9])
def test_a_count_that_lies_is_an_invalid_record_and_damage_a_corrupt_batch(count: int) -> None:
    lying = forged(sample(), count=count)
    with pytest.raises(InvalidRecord, match="records for 3 offsets"):
        batch.check_produced(lying)
    with pytest.raises(CorruptBatch, match="CRC"):
        batch.check_produced(lying[:-1] + bytes((lying[-1] ^ 1,)))


@pytest.mark.parametrize(
    "torn",
    [b"", sample()[:-1], sample()[:61], sample()[:17], sample()[:5], b"\xff", b"x" * 16],
)
def test_a_torn_batch_after_the_first_is_ignored(torn: bytes) -> None:
    assert batch.produced_batch(sample() + torn) == sample()


def test_a_producer_sends_one_whole_batch_at_a_time() -> None:
    for several in (sample() + sample(), sample() * 3 + b"more", sample() + legacy(0)):
        with pytest.raises(InvalidRecord, match="more than one record batch"):
            batch.produced_batch(several)
    for none in (None, b"", sample()[:-1], sample()[:61], sample()[:10]):
        with pytest.raises(InvalidRecord, match="no whole record batch"):
            batch.produced_batch(none)
    for magic in (0, 1):
        with pytest.raises(InvalidRecord, match=f"magic {magic}"):
            batch.produced_batch(legacy(magic))


def test_lengths_and_magics_that_cannot_be_are_corrupt() -> None:
    whole = sample()
    for at, change in ((8, bytes(4)), (8, b"\xff" * 4), (16, b"\x03"), (16, b"\xff")):
        impossible = whole[:at] + change + whole[at + len(change) :]
        for records in (impossible, whole + impossible):
            with pytest.raises(CorruptBatch, match="no batch has length"):
                batch.produced_batch(records)
    with pytest.raises(CorruptBatch, match="too few"):
        batch.produced_batch(whole[:8] + (20).to_bytes(4) + whole[12:])


def test_the_transactional_bit_is_read_without_the_header() -> None:
    for attributes, expected in ((0, False), (0x0F, False), (0x10, True), (0xFF10, True), (0xFFEF, False)):
        assert batch.is_transactional(forged(sample(), attributes=attributes)) is expected


def legacy(magic: int) -> bytes:
    """A message of a format before record batches, as far as its length and magic."""
    return bytes(8) + (30).to_bytes(4) + bytes(4) + bytes((magic,)) + bytes(25)


def test_records_that_do_not_parse_or_whose_count_lies_are_invalid_from_a_producer() -> None:
    whole = sample()
    for count in (2, 4):
        with pytest.raises(InvalidRecord, match="cannot be read"):
            batch.check_produced(forged(whole, count=count, last_offset_delta=count - 1))
    with pytest.raises(InvalidRecord, match="cannot be read"):
        batch.check_produced(forged(whole[:61] + b"\xff" * (len(whole) - 61)))


@pytest.mark.parametrize("count", [2, 400])
@pytest.mark.parametrize("change", [-2, 2, 0x7E])
def test_offset_deltas_that_do_not_count_from_0_on_are_invalid_from_a_producer(count: int, change: int) -> None:
    """A batch is looked up by the offsets of its header: a log start in it would find no record at or above itself."""
    whole = batch.build([b"x" * 20] * count, timestamp_ms=1)
    at = 61 + 27 + 3  # the second record, after its length, attributes and timestamp
    assert whole[at] == 2, "1 as a zigzag varint"
    with pytest.raises(InvalidRecord, match="offset delta"):
        batch.check_produced(recomputed(whole[:at] + bytes((whole[at] + change & 0x7F,)) + whole[at + 1 :]))


@pytest.mark.parametrize("count", [3, 400])
@pytest.mark.parametrize("claimed", [-7, 4, 6, 1 << 62])
def test_the_largest_timestamp_of_a_batch_is_that_of_its_records_as_in_kafka(count: int, claimed: int) -> None:
    """Lookups by time, retention and the bound for times in the future go by the header."""
    whole = batch.build([b"x"] * count, timestamp_ms=5)
    header, appended = batch.check_produced(with_max_timestamp(whole, claimed))
    assert appended == whole
    assert header == batch.check(whole)


@pytest.mark.parametrize("compression", list(batch.Compression)[:2])
def test_no_timestamp_is_below_minus_1_in_a_header(compression: batch.Compression) -> None:
    """As in Kafka, -1 says that there is none; a lookup of the largest timestamp passes over all that is below."""
    built = batch.build([b"x"], timestamp_ms=-7, compression=compression)
    assert header_of_produced(built).max_timestamp == -1


@pytest.mark.parametrize("codec", [0, 1])
def test_a_producer_cannot_pass_its_time_off_as_that_of_the_log(codec: int) -> None:
    whole = forged(sample(), attributes=codec)
    assert batch.check_produced(forged(sample(), attributes=codec | 0x08)) == (batch.check(whole), whole)


def test_an_unknown_codec_is_invalid_and_compressed_records_are_not_looked_into() -> None:
    for codec in (5, 6, 7):
        with pytest.raises(InvalidRecord, match="codec"):
            batch.check_produced(forged(sample(), attributes=codec))
    for codec in (1, 2, 3, 4):  # gzip, snappy, lz4, zstd: a consumer finds out whether it is any
        assert header_of_produced(forged(sample(), attributes=codec)).count == 3


@pytest.mark.parametrize("at", [70, 80, 100])
def test_records_that_do_not_decompress_are_corrupt_even_under_a_valid_crc(at: int) -> None:
    whole = batch.build(
        [b"value %d" % number for number in range(50)], timestamp_ms=1, compression=batch.Compression.GZIP
    )
    with pytest.raises(CorruptBatch):
        batch.records(forged(whole[:at] + b"\xff\xff\xff" + whole[at + 3 :]))


@pytest.mark.parametrize("compression", list(batch.Compression))
@pytest.mark.parametrize("size", [10, 3 << 20])
def test_the_timestamps_of_a_batch_are_those_of_its_records(compression: batch.Compression, size: int) -> None:
    assert list(batch.timestamps(batch.build([bytes(size), b""], timestamp_ms=7, compression=compression))) == [7, 7]


@pytest.mark.parametrize("compression", [batch.Compression.GZIP, batch.Compression.LZ4, batch.Compression.ZSTD])
def test_records_that_would_fill_the_memory_are_not_decompressed(
    compression: batch.Compression, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six kilobytes of zstd may stand for 200 megabytes: each leader that is asked for a time would end of them."""
    whole = batch.build([bytes(5_000)], timestamp_ms=7, compression=compression)
    monkeypatch.setattr(batch, "DECOMPRESSED_BYTES_MAX", 5_000)
    with pytest.raises(CorruptBatch, match="cannot be read"):
        list(batch.timestamps(whole))


def test_a_batch_has_at_least_one_record() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        batch.build([], timestamp_ms=1)


def test_fewer_bytes_than_a_header_are_no_batch() -> None:
    with pytest.raises(CorruptBatch, match="60 bytes"):
        batch.parse(sample()[:60])
    with pytest.raises(CorruptBatch, match="0 bytes"):
        batch.parse(b"", 10)


def flipped(intact: bytes, at: int, bit: int) -> bytes:
    damaged = bytearray(intact)
    damaged[at] ^= 1 << bit
    return bytes(damaged)


def header_of_produced(records: bytes) -> batch.Header:
    return batch.check_produced(records)[0]


def forged(intact: bytes, *, attributes: int = 0, count: int = 3, last_offset_delta: int = 2) -> bytes:
    """A batch with other header fields and a CRC that covers for them."""
    body = bytearray(intact[21:])
    body[0:2] = attributes.to_bytes(2)
    body[2:6] = last_offset_delta.to_bytes(4, signed=True)
    body[36:40] = count.to_bytes(4, signed=True)
    return recomputed(intact[:21] + body)


def with_max_timestamp(intact: bytes, claimed: int) -> bytes:
    return recomputed(intact[:35] + claimed.to_bytes(8, signed=True) + intact[43:])


def recomputed(intact: bytes) -> bytes:
    """With the CRC of its content."""
    body = intact[21:]
    return intact[:17] + batch.crc32c(bytes(body)).to_bytes(4) + bytes(body)
