"""Kafka record batches, format v2 (magic 2): the 61-byte header, and the records.

The broker treats a batch as opaque bytes behind this header (big-endian):

offset  size  field                 |  offset  size  field
------  ----  --------------------  |  ------  ----  ------------------------------------------
     0     8  base offset           |      27     8  base timestamp (ms)
     8     4  length of the rest    |      35     8  max timestamp (ms)
    12     4  partition leader epoch|      43     8  producer id        (-1: not idempotent)
    16     1  magic (2)             |      51     2  producer epoch
    17     4  CRC-32C of bytes 21…  |      53     4  base sequence
    21     2  attributes            |      57     4  count of records
    23     4  last offset delta     |      61     …  records, compressed as the attributes say

Base offset and leader epoch lie before the bytes that the CRC covers, so a leader assigns them without computing a new
CRC. For the same reason the CRC does not detect damage to these two: the log compares them with the offset and epoch it
expects. `check` detects every other flipped bit.

`records` and `build` use aiokafka's compiled codec, and serve clients and the metadata log. The broker's data path uses
the header; uncompressed records from producers it checks by `record_runs`, or else has the same codec parse them, and
it looks into no others.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from functools import partial
from gzip import GzipFile
from io import BytesIO
from struct import Struct
from typing import Final, NamedTuple

import cramjam
from aiokafka.codec import lz4_encode, snappy_decode, snappy_encode, zstd_encode
from aiokafka.record._crecords import DefaultRecordBatch, DefaultRecordBatchBuilder
from google_crc32c import value as crc32c

from images.wire.record_runs import consists_of_runs

HEADER_BYTES = 61
MAGIC = 2
LENGTH_END = 12
"""Bytes before the part that the length field counts."""
CRC_START = 21
"""First byte the CRC covers."""
SEQUENCE_MODULUS = 1 << 31
"""Sequence numbers count 0 … 2^31 - 1 and start again at 0."""

_HEADER = Struct(">qiibIhiqqqhii")
_ASSIGNED = Struct(">q4si")
"""Base offset, length, leader epoch."""
_MAGIC_AT = 16
_ATTRIBUTES_END = 23
_CODEC_MASK = 0x07
_LOG_APPEND_TIME_BIT = 0x08
_CONTROL_BIT = 0x20
_TRANSACTIONAL_BIT = 0x10
_LEGACY_HEADER_BYTES = 14
"""The least length of a message of the formats before record batches."""
_NO_SIZE_LIMIT = (1 << 31) - 1
_RECORDS_FOR_RUNS = 160
"""The records of a smaller batch are parsed at once, which is cheaper."""
_NO_TIMESTAMP = -1
DECOMPRESSED_BYTES_MAX = 64 << 20
"""The most bytes of compressed records that are looked into for their timestamps."""
_DECOMPRESSED_BYTES = 1 << 20
"""The bytes that most batches have at most."""


class Compression(IntEnum):
    """How the records of a batch are compressed; the value is that of the attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_NEWEST_CODEC: Final = max(Compression)
_COMPRESSORS: Final[Mapping[Compression, Callable[[bytes], bytes]]] = {
    Compression.GZIP: partial(zlib.compress, wbits=zlib.MAX_WBITS + 16),
    Compression.SNAPPY: snappy_encode,
    Compression.LZ4: lz4_encode,
    Compression.ZSTD: zstd_encode,
}


class CorruptBatch(Exception):
    """Not a whole and intact batch (Kafka's CORRUPT_MESSAGE, 2). The message gives the reason."""


class InvalidRecord(Exception):
    """A batch that no producer may send, perhaps intact (Kafka's INVALID_RECORD, 87). The message gives the reason."""


class Header(NamedTuple):
    """The header of one batch. `length` counts the bytes after itself; `size` the whole batch."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # a field in Kafka's words; nobody counts values in a header

    @property
    def size(self) -> int:
        """Size of the whole batch in bytes."""
        return self.length + LENGTH_END

    @property
    def last_offset(self) -> int:
        """Offset of the last record."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """Offset after the last record."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record, wrapped as in Kafka; -1 without one."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) % SEQUENCE_MODULUS

    @property
    def is_control(self) -> bool:
        """Whether this is a control batch: transaction markers, which only a broker may write."""
        return bool(self.attributes & _CONTROL_BIT)


class Record(NamedTuple):
    """One record of a batch."""

    offset: int
    timestamp: int
    """Milliseconds since the epoch."""
    key: bytes | None
    value: bytes | None


def parse(buffer: bytes | bytearray | memoryview, offset: int = 0) -> Header:
    """The header at `offset`, unchecked. Raises CorruptBatch for fewer than 61 bytes."""
    if len(buffer) - offset < HEADER_BYTES:
        raise CorruptBatch(f"{max(0, len(buffer) - offset)} bytes are too few for a batch header")
    return Header._make(_HEADER.unpack_from(buffer, offset))


def first_offset(records: bytes) -> int:
    """The base offset of the first batch of some records, without the rest of its header."""
    return int.from_bytes(records[:8], "big")


def iterate(buffer: bytes) -> Iterator[tuple[Header, bytes]]:
    """Each whole batch in `buffer`, its header parsed and its content unchecked.

    A batch cut off by the end of the buffer is left out: a Fetch response may end in one. Raises CorruptBatch at an
    invalid header (another magic, a length shorter than a header), since the position of the next batch is then
    unknown.
    """
    start, end = 0, len(buffer)
    while end - start >= HEADER_BYTES:
        header = Header._make(_HEADER.unpack_from(buffer, start))
        _check_frame(header)
        stop = start + header.length + LENGTH_END
        if stop > end:
            return
        yield header, buffer if stop - start == end else buffer[start:stop]
        start = stop


def check(batch: bytes) -> Header:
    """The header of `batch`, which must be exactly one intact batch; else raises CorruptBatch.

    Checked are magic, length, CRC-32C, and that the counts are possible.
    """
    header = parse(batch)
    _check_frame(header)
    _check_content(batch, header)
    return header


def _check_content(batch: bytes, header: Header) -> None:
    _check_crc(batch, header)
    if not 0 <= header.count <= header.last_offset_delta + 1 or header.last_offset_delta < 0:
        raise CorruptBatch(f"{header.count} records do not fit a last offset delta of {header.last_offset_delta}")


def _check_crc(batch: bytes, header: Header) -> None:
    if header.length + LENGTH_END != len(batch):
        raise CorruptBatch(f"the batch says it has {header.length + LENGTH_END} bytes and has {len(batch)}")
    crc = crc32c(batch[CRC_START:])
    if crc != header.crc:
        raise CorruptBatch(f"CRC-32C is {crc:#010x}, the batch says {header.crc:#010x}")


def produced_batch(records: bytes | None) -> bytes:
    """The one whole batch in a Produce request, its content unchecked. As in Kafka, a torn batch after it is ignored.

    Raises InvalidRecord if there is no whole batch, more than one, or one of another format; CorruptBatch if a length
    or a magic is impossible.
    """
    size = _whole_entry(records or b"", 0)
    if records is None or not size:
        raise InvalidRecord("no whole record batch, and one is needed")
    if records[_MAGIC_AT] != MAGIC:
        raise InvalidRecord(f"magic {records[_MAGIC_AT]}, expected {MAGIC}")
    if size < HEADER_BYTES:
        raise CorruptBatch(f"{size} bytes are too few for a batch")
    if size == len(records):
        return records
    if _whole_entry(records, size):
        raise InvalidRecord("more than one record batch")
    return records[:size]


def is_transactional(batch: bytes) -> bool:
    """Whether a `produced_batch` belongs to a transaction."""
    return bool(batch[_ATTRIBUTES_END - 1] & _TRANSACTIONAL_BIT)


def _whole_entry(records: bytes, start: int) -> int:
    """The size of the batch at `start`, or of the message of an older format; 0 if it is not there as a whole."""
    if len(records) - start <= _MAGIC_AT:
        return 0
    length, magic = int.from_bytes(records[start + 8 : start + LENGTH_END], signed=True), records[start + _MAGIC_AT]
    if length < _LEGACY_HEADER_BYTES or magic > MAGIC:
        raise CorruptBatch(f"no batch has length {length} and magic {magic}")
    return length + LENGTH_END if start + length + LENGTH_END <= len(records) else 0


def check_produced(batch: bytes) -> tuple[Header, bytes]:
    """The header of a `produced_batch`, and the batch to append; raises CorruptBatch, or InvalidRecord for an intact
    batch.

    A batch from a producer, before compaction or transactions, has a record for each offset from 0 on, in their order,
    and no markers. Uncompressed records are parsed; compressed ones stay opaque, since only a consumer needs to
    decompress them. As in Kafka the largest timestamp that the header claims is replaced if the records have another
    one, and the timestamps are the producer's, even if the attributes say that they are the log's.
    """
    header = parse(batch)
    _check_frame(header)
    if header.base_offset != 0:
        raise InvalidRecord(f"base offset {header.base_offset} from a producer")
    _check_crc(batch, header)
    if header.count <= 0 or header.count != header.last_offset_delta + 1:
        raise InvalidRecord(f"{header.count} records for {header.last_offset_delta + 1} offsets from a producer")
    if header.attributes & _CONTROL_BIT:
        raise InvalidRecord("a control batch from a producer")
    codec = header.attributes & _CODEC_MASK
    if codec > _NEWEST_CODEC:
        raise InvalidRecord(f"unknown compression codec {codec}")
    if header.attributes & _LOG_APPEND_TIME_BIT:
        header, batch = _rewritten(batch, header._replace(attributes=header.attributes & ~_LOG_APPEND_TIME_BIT))
    if codec:
        max_timestamp = max(_NO_TIMESTAMP, header.max_timestamp)
    elif header.count >= _RECORDS_FOR_RUNS and _consists_of_runs(batch, header):
        max_timestamp = header.max_timestamp
    else:
        max_timestamp = _parse_records(batch)
    if max_timestamp != header.max_timestamp:
        return _rewritten(batch, header._replace(max_timestamp=max_timestamp))
    return header, batch


def _consists_of_runs(batch: bytes, header: Header) -> bool:
    # With these timestamps no sum of one and a delta exceeds 64 bits.
    first, last = header.base_timestamp, header.max_timestamp
    return first >= _NO_TIMESTAMP <= last and consists_of_runs(batch, HEADER_BYTES, header.count, last - first)


def _parse_records(batch: bytes) -> int:
    """The largest timestamp of the records, -1 if all are negative."""
    max_timestamp, expected = _NO_TIMESTAMP, 0
    try:
        for record in DefaultRecordBatch(batch):
            if record.offset != expected:
                raise InvalidRecord(f"offset delta {record.offset} where {expected} belongs")
            expected += 1
            if record.timestamp > max_timestamp:
                max_timestamp = record.timestamp
    except InvalidRecord:
        raise
    except Exception as error:  # the codec has no common class for what nonsense makes it raise
        raise InvalidRecord(f"the records cannot be read: {error}") from error
    return max_timestamp


def assign(batch: bytes, base_offset: int, leader_epoch: int) -> bytes:
    """The same batch at another offset and in another leader epoch. The CRC does not cover either."""
    head = _ASSIGNED.pack(base_offset, batch[8:LENGTH_END], leader_epoch)
    return b"".join((head, memoryview(batch)[_MAGIC_AT:]))


def build(
    records: Iterable[bytes | tuple[bytes | None, bytes | None]],
    *,
    timestamp_ms: int,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    leader_epoch: int = -1,
    base_offset: int = 0,
    compression: Compression = Compression.NONE,
) -> bytes:
    """One batch of `records`, each a value or a (key, value) pair, all with the same timestamp. At least one is
    required."""
    builder = DefaultRecordBatchBuilder(
        magic=MAGIC,
        compression_type=Compression.NONE,
        is_transactional=0,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        batch_size=_NO_SIZE_LIMIT,
    )
    delta = -1
    for delta, record in enumerate(records):
        key, value = record if isinstance(record, tuple) else (None, record)
        builder.append(delta, timestamp_ms, key, value, [])
    if delta < 0:
        raise ValueError("a batch needs at least one record")
    plain = bytes(builder.build())
    return assign(_compressed(plain, compression) if compression else plain, base_offset, leader_epoch)


def _compressed(plain: bytes, compression: Compression) -> bytes:
    """The batch `plain` with its records compressed. aiokafka's builder would write the time into gzip's header."""
    payload = _COMPRESSORS[compression](plain[HEADER_BYTES:])
    header = parse(plain)._replace(length=HEADER_BYTES - LENGTH_END + len(payload), attributes=compression)
    return _with_crc(header, payload)[1]


def _rewritten(batch: bytes, header: Header) -> tuple[Header, bytes]:
    """The batch with another header, and with the CRC of it."""
    return _with_crc(header, batch[HEADER_BYTES:])


def _with_crc(header: Header, payload: bytes) -> tuple[Header, bytes]:
    header = header._replace(crc=crc32c(_HEADER.pack(*header)[CRC_START:] + payload))
    return header, _HEADER.pack(*header) + payload


def timestamps(batch: bytes) -> Iterator[int]:
    """The timestamp of each record of one batch, after a CRC check. Raises CorruptBatch, also for more bytes of records
    than DECOMPRESSED_BYTES_MAX, since a few kilobytes may stand for gigabytes."""
    header = check(batch)
    try:
        codec = header.attributes & _CODEC_MASK
        if codec:
            plain = _decompressed(Compression(codec), batch[HEADER_BYTES:])
            header = header._replace(
                length=HEADER_BYTES - LENGTH_END + len(plain), attributes=header.attributes & ~_CODEC_MASK
            )
            batch = _HEADER.pack(*header) + plain
        for record in DefaultRecordBatch(batch):
            yield record.timestamp
    except Exception as error:  # as in `records`
        raise CorruptBatch(f"the records cannot be read: {error}") from error


def _decompressed(compression: Compression, payload: bytes) -> bytes:
    if compression is Compression.SNAPPY:
        return snappy_decode(payload)  # one byte stands for 21 at most
    if compression is Compression.GZIP:
        with GzipFile(fileobj=BytesIO(payload)) as file:
            plain = file.read(DECOMPRESSED_BYTES_MAX + 1)
        if len(plain) > DECOMPRESSED_BYTES_MAX:
            raise ValueError(f"more than {DECOMPRESSED_BYTES_MAX} bytes")
        return plain
    codec = cramjam.lz4 if compression is Compression.LZ4 else cramjam.zstd
    buffer = bytearray(min(_DECOMPRESSED_BYTES, DECOMPRESSED_BYTES_MAX))
    try:
        size = codec.decompress_into(payload, buffer)
    except cramjam.DecompressionError:  # too small, or nonsense
        buffer = bytearray(DECOMPRESSED_BYTES_MAX)
        size = codec.decompress_into(payload, buffer)
    return bytes(memoryview(buffer)[:size])


def records(batch: bytes) -> Sequence[Record]:
    """The records of one batch, after a CRC check. Raises CorruptBatch."""
    check(batch)
    try:
        return [
            Record(record.offset, record.timestamp, record.key, record.value) for record in DefaultRecordBatch(batch)
        ]
    except Exception as error:  # what a codec raises at nonsense is its own: ValueError, zlib.error, EOFError …
        raise CorruptBatch(f"the records cannot be read: {error}") from error


def _check_frame(header: Header) -> None:
    if header.magic != MAGIC:
        raise CorruptBatch(f"magic {header.magic}, expected {MAGIC}")
    if header.length < HEADER_BYTES - LENGTH_END:
        raise CorruptBatch(f"length {header.length} is shorter than a batch header")
