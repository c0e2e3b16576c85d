"""Request frames that no client would send, drawn from a seed.

A frame begins as a request of `OddRequests`, whole and well-formed, and then suffers one damage:

    as it is   nothing: odd, but well-formed
    null       a string, byte string or array becomes null, whether the protocol allows it or not
    count      an array or a string claims another length: one more, one less, huge, negative
    flip       one to eight bits of the frame change
    cut        bytes are missing at its end; its length says so, or not
    extend     bytes follow its end
    garbage    random bytes of a plausible length

Lengths are found by walking the bytes as the message class says they lie (`lengths`), so that a null or a count hits
where it means something.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from struct import Struct
from typing import Any

from images.wire.codec import decode_varint, encode_varint
from images.wire.messages import SUPPORTED, Api, encode_request, read_request_header, request_class
from images.wire.schema import FieldShape, shapes
from tests.fuzz.requests import OddRequests

FRAME_BYTES_MAX = 1 << 20
_FIXED_BYTES = {
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "float64": 8,
    "bool": 1,
    "error_code": 2,
    "uuid": 16,
    "timedelta_i32": 4,
    "timedelta_i64": 8,
    "datetime_i64": 8,
}


@dataclass(frozen=True, slots=True)
class Length:
    """A length or count in a frame: where it stands, how many bytes it takes, how it is written."""

    at: int
    size: int
    flexible: bool
    """An unsigned varint of the length plus one; otherwise a signed integer of two or four bytes."""

    def encoded(self, value: int) -> bytes:
        """`value` as it would stand here; null is −1."""
        if self.flexible:
            return encode_varint((value + 1) & 0xFFFFFFFF)
        most = 1 << (8 * self.size - 1)
        return max(-most, min(most - 1, value)).to_bytes(self.size, signed=True)


def lengths(message: type, frame: bytes, start: int) -> tuple[Length, ...]:
    """Every length in the frame of a well-formed request whose message begins at `start`."""
    walk = _Walk(frame, start)
    walk.struct(message)
    if walk.at != len(frame):
        raise ValueError(f"{message.__name__} ends at {walk.at} of {len(frame)}")
    return tuple(walk.lengths)


class _Walk:
    def __init__(self, frame: bytes, start: int) -> None:
        self.lengths: list[Length] = []
        self.at = start
        self._frame = frame

    def struct(self, message: type) -> None:
        flexible = bool(getattr(message, "__flexible__", False))
        for shape in shapes(message):
            if shape.tag is None:
                self._value(shape, flexible)
        if flexible:
            count, self.at = decode_varint(self._frame, self.at)
            for _ in range(count):
                _, self.at = decode_varint(self._frame, self.at)
                size, self.at = decode_varint(self._frame, self.at)
                self.at += size

    def _value(self, shape: FieldShape, flexible: bool) -> None:
        if shape.array:
            for _ in range(self._length(flexible, wide=True)):
                self._element(shape, flexible)
        elif shape.struct and shape.nullable:
            self.at += 1
            if self._frame[self.at - 1] == 1:
                self.struct(shape.element)
        else:
            self._element(shape, flexible)

    def _element(self, shape: FieldShape, flexible: bool) -> None:
        if shape.struct:
            self.struct(shape.element)
        elif shape.kafka_type in _FIXED_BYTES:
            self.at += _FIXED_BYTES[shape.kafka_type]
        else:
            size = self._length(flexible, wide=shape.kafka_type != "string")
            self.at += size

    def _length(self, flexible: bool, *, wide: bool) -> int:
        """The length here, stepped over; 0 for null."""
        start = self.at
        if flexible:
            value, self.at = decode_varint(self._frame, start)
            value -= 1
        else:
            size = 4 if wide else 2
            value = int.from_bytes(self._frame[start : start + size], signed=True)
            self.at += size
        self.lengths.append(Length(start, self.at - start, flexible))
        return max(0, value)


class Frames:
    """Draws frames without end. `apis` are those that the server addressed has handlers for."""

    def __init__(self, random: Random, requests: OddRequests, apis: tuple[Api, ...]) -> None:
        self._random = random
        self._requests = requests
        self._every = [(api, version) for api in apis for version in SUPPORTED[api]]
        self._damages: tuple[tuple[str, Callable[[type, bytes], bytes]], ...] = (
            ("as it is", lambda message, frame: frame),
            ("null", self._null),
            ("count", self._count),
            ("flip", self._flip),
            ("cut", self._cut),
            ("extend", self._extend),
            ("garbage", self._garbage),
        )

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        """(API, version and damage in words, frame)."""
        while True:
            api, version = self._random.choice(self._every)
            message = request_class(api, version)
            damage, apply = self._random.choice(self._damages)
            whole = self.whole(message)
            yield f"{api.name} v{version}, {damage}", apply(message, whole)

    def whole(self, message: type) -> bytes:
        """The frame of a drawn request, undamaged."""
        while True:
            request: Any = self._requests.request(message)
            try:
                return encode_request(request, self._random.randrange(1 << 31), "fuzz")
            except (struct.error, OverflowError):
                continue  # drawn out of the range of its type: draw again

    def _length(self, message: type, frame: bytes) -> Length | None:
        head = read_request_header(frame)
        flexible_header = bool(message.__header_schema__.__flexible__)
        found = lengths(message, frame, head.end + flexible_header)
        return self._random.choice(found) if found else None

    def _null(self, message: type, frame: bytes) -> bytes:
        length = self._length(message, frame)
        return frame if length is None else _replaced(frame, length, -1)

    def _count(self, message: type, frame: bytes) -> bytes:
        length = self._length(message, frame)
        value = self._random.choice((-2, 0, 1, 2, 3, 100, 65_535, 1 << 20, (1 << 31) - 1))
        return frame if length is None else _replaced(frame, length, value)

    def _flip(self, message: type, frame: bytes) -> bytes:
        changed = bytearray(frame)
        for _ in range(self._random.randint(1, 8)):
            bit = self._random.randrange(4 * 8, len(frame) * 8)
            changed[bit // 8] ^= 1 << bit % 8
        return bytes(changed)

    def _cut(self, message: type, frame: bytes) -> bytes:
        cut = frame[: self._random.randrange(4, len(frame))]
        return _with_length(cut) if self._random.random() < 0.8 else cut

    def _extend(self, message: type, frame: bytes) -> bytes:
        longer = frame + self._random.randbytes(self._random.choice((1, 2, 8, 100)))
        return _with_length(longer) if self._random.random() < 0.8 else longer

    def _garbage(self, message: type, frame: bytes) -> bytes:
        return _with_length(bytes(4) + self._random.randbytes(self._random.choice((0, 1, 10, 100, 10_000))))


_INT32 = Struct(">i")


def _with_length(frame: bytes) -> bytes:
    return _INT32.pack(len(frame) - 4) + frame[4:]


def _replaced(frame: bytes, length: Length, value: int) -> bytes:
    return _with_length(frame[: length.at] + length.encoded(value) + frame[length.at + length.size :])
