"""Checking the uncompressed records of a batch by runs of records that look alike.

A producer's records mostly have one shape for long stretches: the same size, the same lengths of key and value, numbers
of as many bytes. Then each byte that decides how the records are parsed lies at the same distance from one record to
the next, and a slice with that distance as its step holds this byte of the whole run: a comparison of a few slices
replaces parsing, at a sixth of the cost for records of 100 bytes.

A record, all numbers but the second zigzag varints:

    length | attributes (one byte) | timestamp delta | offset delta | key length | key | value length | value
    | count of headers, each a key and a value

Offset deltas count 0, 1, 2, …, so each of their bytes has one right column, which is known beforehand. Timestamps are
compared with the largest that the header of the batch claims: none is later, and one is equal.

The check is one-sided. If it succeeds, the records parse, and the claims are true; if it does not, both may be so all
the same: records vary too much, have headers, or a number of more bytes than is usual. Then they have to be parsed.
"""

from __future__ import annotations

from typing import NamedTuple

_FIRST_WINDOW = 64
"""Offset deltas of one byte end after so many records."""
_WINDOW_FACTOR = 4
_FREE_RUNS = 8
_RECORDS_PER_RUN = 32
"""The least number of records of a run for which runs are cheaper than parsing."""
_LENGTH_BYTES_MAX = 4
_TIMESTAMP_BYTES_MAX = 9
_CONTINUED = 0x80
"""The bit of each byte of a varint but the last."""
_SEVEN_BITS = bytes(range(_CONTINUED))
_NEGATIVE = bytes(range(1, 256, 2))
"""The first bytes of negative numbers."""
_UP_TO = tuple(bytes(range(byte + 1)) for byte in range(256))
_FLIPPED = bytes(byte ^ _CONTINUED for byte in range(256))


_OFFSETS_MAX = 1 << 16
"""The most records whose offset deltas are known beforehand, in varints of three bytes at most."""


def _offset_column(place: int, *, last: bool) -> bytes:
    """The byte at `place` in the varints of the offset deltas 0, 1, 2, …, as the last one or a continued one."""
    flag = 0 if last else _CONTINUED
    if place == 0:
        return bytes(2 * delta % _CONTINUED | flag for delta in range(_FIRST_WINDOW)) * (_OFFSETS_MAX // _FIRST_WINDOW)
    alike = _FIRST_WINDOW * _CONTINUED ** (place - 1)
    return b"".join(bytes((value % _CONTINUED | flag,)) * alike for value in range(_OFFSETS_MAX // alike))


_OFFSET_COLUMNS = tuple(
    tuple(
        _offset_column(place, last=place == size - 1)[: _FIRST_WINDOW * _CONTINUED ** (size - 1)]
        for place in range(size)
    )
    for size in (1, 2, 3)
)
"""For varints of so many bytes and one more: the column of each byte."""


class _Shape(NamedTuple):
    """The positions in the first record of a run at which the bytes of the others are looked at."""

    size: int
    """Bytes of the whole record."""
    equal: tuple[int, ...]
    """The same byte in every record: lengths, and the count of headers."""
    last: tuple[int, ...]
    """The last byte of the timestamp, and the attributes, which have no use yet and are taken for a number of one byte,
    as the codec does."""
    timestamp: range
    offset: range


def consists_of_runs(batch: bytes, start: int, count: int, timestamp_delta_max: int) -> bool:
    """Whether the bytes of `batch` from `start` on are certainly `count` records and nothing else, with offset deltas
    from 0 on and with this largest timestamp delta."""
    at, left, window, runs = start, count, _FIRST_WINDOW, 0
    reached = False
    while left:
        shape = _shape(batch, at)
        most = min(left, window)
        run = _run_length(batch, at, shape, most) if shape is not None else 0
        runs += 1
        if shape is None or not run or runs > max(_FREE_RUNS, (count - left) // _RECORDS_PER_RUN):
            return False
        latest = _latest(batch, at, shape, run, timestamp_delta_max)
        if latest is None or not _counts_offsets(batch, at, shape, run, count - left):
            return False
        reached = reached or latest
        at += run * shape.size
        left -= run
        window = window * _WINDOW_FACTOR if run == most else _FIRST_WINDOW
    return at == len(batch) and reached


def _shape(batch: bytes, at: int) -> _Shape | None:
    """The shape of the record at `at`; None if it does not parse, or is not an ordinary one."""
    try:
        length_end = _varint_end(batch, at)
        timestamp_end = _varint_end(batch, length_end + 1)
        offset_end = _varint_end(batch, timestamp_end)
        key_length_end = _varint_end(batch, offset_end)
        key_length = _zigzag(batch, offset_end, key_length_end)
        key_end = key_length_end + max(0, key_length)
        value_length_end = _varint_end(batch, key_end)
        value_length = _zigzag(batch, key_end, value_length_end)
        headers = value_length_end + max(0, value_length)
        size = length_end - at + _zigzag(batch, at, length_end)
        if batch[headers] != 0 or headers + 1 != at + size or min(key_length, value_length) < -1:
            return None
    except IndexError:
        return None
    lengths = (length_end - at, offset_end - timestamp_end, key_length_end - offset_end, value_length_end - key_end)
    if (
        max(lengths) > _LENGTH_BYTES_MAX
        or batch[length_end] & _CONTINUED
        or timestamp_end - length_end - 1 > _TIMESTAMP_BYTES_MAX
    ):
        return None
    return _Shape(
        size=size,
        equal=(
            *range(at, length_end),
            *range(offset_end, key_length_end),
            *range(key_end, value_length_end),
            headers,
        ),
        last=(length_end, timestamp_end - 1),
        timestamp=range(length_end + 1, timestamp_end),
        offset=range(timestamp_end, offset_end),
    )


def _run_length(batch: bytes, at: int, shape: _Shape, most: int) -> int:
    """How many of the records from `at` on, `most` at most, have the shape of the first."""
    size = shape.size
    run = min(most, (len(batch) - at) // size)
    for position in shape.equal:
        column = batch[position : at + run * size : size]
        byte = batch[position : position + 1]
        if column != byte * run:
            run -= len(column.lstrip(byte))
    for positions, table in ((shape.last, None), (shape.timestamp[:-1], _FLIPPED)):
        for position in positions:
            column = batch[position : at + run * size : size]
            if table is not None:
                column = column.translate(table)
            if not column.isascii():
                run -= len(column.lstrip(_SEVEN_BITS))
    return run


def _counts_offsets(batch: bytes, at: int, shape: _Shape, run: int, first: int) -> bool:
    """Whether the offset deltas of the run count on from `first`."""
    size, end = shape.size, at + run * shape.size
    if len(shape.offset) > len(_OFFSET_COLUMNS):
        return False
    columns = zip(shape.offset, _OFFSET_COLUMNS[len(shape.offset) - 1], strict=True)
    return all(batch[position:end:size] == column[first : first + run] for position, column in columns)


def _latest(batch: bytes, at: int, shape: _Shape, run: int, claimed: int) -> bool | None:
    """Whether the largest timestamp delta of the run is the one `claimed`; None if one may be larger."""
    size, end, places = shape.size, at + run * shape.size, shape.timestamp
    columns = [batch[position:end:size] for position in places]
    if all(column == column[:1] * run for column in columns):
        delta = _zigzag(batch, places.start, places.stop)
        return None if delta > claimed else delta == claimed
    if claimed < 0:
        return None
    if not columns[0].translate(None, _NEGATIVE):
        return False
    if claimed >> (7 * len(places) - 1):
        return False  # takes more bytes
    for place in reversed(range(len(places))):
        byte = (claimed << 1) >> 7 * place & (_CONTINUED - 1) | (_CONTINUED if place < len(places) - 1 else 0)
        column = columns[place]
        if column.translate(None, _UP_TO[byte] if place else _UP_TO[byte] + _NEGATIVE):
            return None
        first, last = column.find(byte), column.rfind(byte)
        if first < 0:
            return False
        if column.count(byte) != last - first + 1:
            return None
        columns = [other[first : last + 1] for other in columns]
    return True


def _varint_end(batch: bytes, at: int) -> int:
    """The end of the varint at `at`. Raises IndexError."""
    while batch[at] & _CONTINUED:
        at += 1
    return at + 1


def _zigzag(batch: bytes, at: int, end: int) -> int:
    value = 0
    for position in range(end - 1, at - 1, -1):
        value = value << 7 | batch[position] & (_CONTINUED - 1)
    return value >> 1 ^ -(value & 1)
