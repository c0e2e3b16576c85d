"""Removing the tagged fields that a message class does not know (KIP-482): a newer sender may write them.

kio refuses them, so they are removed from the bytes before it reads these. The walk by the fields of the class is
interpreted and slow; it happens only after the measurer has met such a field.
"""

from __future__ import annotations

import struct
from struct import Struct

from kio.static.constants import EntityType

from images.wire.codec import (
    ELEMENTS_MAX,
    FIXED_FORMATS,
    NOT_NULL,
    Malformed,
    decode_varint,
    encode_varint,
)
from images.wire.schema import FieldShape, shapes

_INT16, _INT32 = Struct(">h"), Struct(">i")


def without_unknown_tags(message: type, frame: bytes, start: int) -> tuple[bytes, int]:
    """The bytes of the `message` that begins at `start`, without the tagged fields that its class does not know, and
    the number of bytes that follow it.

    Nothing else is checked: the result is to be measured. Raises Malformed if the message runs past the frame.
    """
    walk = _Walk(frame, start, bounded=getattr(message, "__type__", None) is EntityType.request)
    try:
        walk.struct(message)
    except (IndexError, struct.error) as error:
        raise Malformed(f"{message.__name__} runs past its end") from error
    return bytes(walk.out), len(frame) - walk.at


class _Walk:
    """`out` holds the bytes before `at`, without what was left out."""

    def __init__(self, frame: bytes, start: int, *, bounded: bool) -> None:
        self.out = bytearray()
        self._frame = frame
        self.at = start
        self._elements_left = ELEMENTS_MAX if bounded else len(frame)

    def struct(self, message: type) -> None:
        flexible = bool(getattr(message, "__flexible__", False))
        tagged = {}
        for shape in shapes(message):
            if shape.tag is None:
                self._value(shape, flexible, marked=shape.nullable)
            else:
                tagged[shape.tag] = shape
        if flexible:
            self._tags(tagged)

    def _tags(self, tagged: dict[int, FieldShape]) -> None:
        whole, known = self.out, []
        count, self.at = decode_varint(self._frame, self.at)
        for _ in range(count):
            tag, self.at = decode_varint(self._frame, self.at)
            size, self.at = decode_varint(self._frame, self.at)
            end = self.at + size
            if tag in tagged:
                self.out = bytearray()
                self._value(tagged[tag], True, marked=False)
                if self.at != end:
                    raise Malformed(f"tagged field {tag} does not have the {size} bytes it says")
                known.append(encode_varint(tag) + encode_varint(len(self.out)) + self.out)
            elif end > len(self._frame):
                raise Malformed("a tagged field runs past the end")
            self.at = end
        self.out = whole
        self.out += encode_varint(len(known)) + b"".join(known)

    def _value(self, shape: FieldShape, flexible: bool, *, marked: bool) -> None:
        """`marked`: a nullable struct has a marker before it, except in a tagged field."""
        if shape.array:
            count = self._length(flexible, wide=True)
            self._elements_left -= max(0, count)
            if self._elements_left < 0:
                raise Malformed(f"{shape.name} claims too many elements")
            for _ in range(count):
                self._element(shape, flexible)
        elif shape.struct and marked:
            self._copy(1)
            if self.out[-1:] == NOT_NULL:
                self.struct(shape.element)
        else:
            self._element(shape, flexible)

    def _element(self, shape: FieldShape, flexible: bool) -> None:
        if shape.struct:
            self.struct(shape.element)
        elif shape.kafka_type in FIXED_FORMATS:
            self._copy(Struct(">" + FIXED_FORMATS[shape.kafka_type]).size)
        else:
            self._copy(max(0, self._length(flexible, wide=shape.kafka_type != "string")))

    def _length(self, flexible: bool, *, wide: bool) -> int:
        if flexible:
            length, end = decode_varint(self._frame, self.at)
            self._copy(end - self.at)
            return length - 1
        fixed = _INT32 if wide else _INT16
        length = fixed.unpack_from(self._frame, self.at)[0]
        self._copy(fixed.size)
        return int(length)

    def _copy(self, size: int) -> None:
        end = self.at + size
        if end > len(self._frame):
            raise Malformed("a field runs past the end")
        self.out += self._frame[self.at : end]
        self.at = end
