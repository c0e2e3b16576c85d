"""Checking the uncompressed records of a batch by runs of records that look alike.

A producer's records mostly have one shape for long stretches: the same size, the same lengths of key and value, numbers
of as many bytes. Then each byte that decides how the records are parsed lies at the same distance from one record to
the next, and a slice with that distance as its step holds this byte of the whole run: a comparison of a few slices
replaces parsing, at a sixth of the cost for records of 100 bytes.

A record, all numbers but the second zigzag varints (numbers that this module leaves alone in brackets):

    length | attributes (one byte) | [timestamp delta] | [offset delta] | key length | key | value length | value
    | count of headers, each a key and a value

The check is one-sided. If it succeeds, the records parse; if it does not, they may parse all the same: they vary too
much, have headers, or a number of more bytes than is usual. Then they have to be parsed.
"""

from __future__ import annotations

from itertools import chain
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
_FLIPPED = bytes(byte ^ _CONTINUED for byte in range(256))


class _Shape(NamedTuple):
    """The positions in the first record of a run at which the bytes of the others are looked at."""

    size: int
    """Bytes of the whole record."""
    equal: tuple[int, ...]
    """The same byte in every record: lengths, and the count of headers."""
    last: tuple[int, ...]
    """The last byte of a number. The attributes, which have no use yet, are taken for one, as the codec does."""
    continued: tuple[int, ...]
    """Any other byte of a number."""


def consists_of_runs(batch: bytes, start: int, count: int) -> bool:
    """Whether the bytes of `batch` from `start` on are certainly `count` records and nothing else."""
    at, left, window, runs = start, count, _FIRST_WINDOW, 0
    while left:
        shape = _shape(batch, at)
        most = min(left, window)
        run = _run_length(batch, at, shape, most) if shape is not None else 0
        runs += 1
        if shape is None or not run or runs > max(_FREE_RUNS, (count - left) // _RECORDS_PER_RUN):
            return False
        at += run * shape.size
        left -= run
        window = window * _WINDOW_FACTOR if run == most else _FIRST_WINDOW
    return at == len(batch)


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
        last=(length_end, timestamp_end - 1, offset_end - 1),
        continued=tuple(chain(range(length_end + 1, timestamp_end - 1), range(timestamp_end, offset_end - 1))),
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
    for positions, table in ((shape.last, None), (shape.continued, _FLIPPED)):
        for position in positions:
            column = batch[position : at + run * size : size]
            if table is not None:
                column = column.translate(table)
            if not column.isascii():
                run -= len(column.lstrip(_SEVEN_BITS))
    return run


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
