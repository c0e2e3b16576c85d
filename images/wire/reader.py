"""Reading messages: code generated once for each message class, the counterpart of `codec.writer`.

kio's reader is compiled, but it trusts an array's length and allocates memory for it: a few bytes of garbage that claim
2^31 elements abort the whole process, which no `except` can stop. It also reads a null where the protocol allows none,
which a handler then does not expect, and refuses tagged fields that it does not know. `reader(cls)` reads the same
values from sound bytes (the tests compare them for every class). It raises Malformed as soon as an array claims more
elements than the remaining bytes could hold, a length is negative, a field is null that must not be, a request has more
than ELEMENTS_MAX elements, or the message runs past its end. Tagged fields that the class does not know are skipped: a
newer sender may write them (KIP-482).

Adjacent fields of fixed size are unpacked together. An id, an error code and a time-out that recur are one object.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import lru_cache
from struct import Struct
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.serial.readers import tz_aware_from_i64
from kio.static.constants import EntityType

from images.wire.codec import FIXED_FORMATS, NOT_NULL, NULL, GeneratedFunction, Malformed, decode_varint
from images.wire.construction import thawed
from images.wire.schema import Entity, FieldShape, shapes

Read = Callable[[bytes, int, int], tuple[Entity, int]]
"""(bytes, start, end) → the message that begins at `start`, and where it ends, at most `end`. Raises Malformed; of
values that the bytes cannot stand for ValueError, KeyError or OverflowError."""

ELEMENTS_MAX = 500_000
"""The most elements that all arrays of a request may have together, and those of each tagged field. Each costs memory
and time far beyond its bytes: 10 MB of empty names would take over a gigabyte, and a minute during which nobody else is
answered. A follower names all partitions of a leader in one request: a quarter of a million topics with one partition
each."""

_REMEMBERED = 1024
_ERRORS = {int(error): error for error in ErrorCode}
_CONVERTED = {
    "error_code": "errors[{}]",
    "uuid": "uuid_of({})",
    "timedelta_i32": "duration({})",
    "timedelta_i64": "duration({})",
    "datetime_i64": "moment({})",
}

_readers: dict[type, Read] = {}


def reader(message: type) -> Read:
    """The function that reads messages of a class."""
    known = _readers.get(message)
    if known is None:
        bounded = getattr(message, "__type__", None) is EntityType.request
        known = _readers[message] = _ReaderSource(bounded).function(message)
    return known


# -- what generated code calls -----------------------------------------------------------------------------------


@lru_cache(_REMEMBERED)
def _uuid(value: bytes) -> UUID | None:
    return UUID(bytes=value) if any(value) else None


@lru_cache(_REMEMBERED)
def _duration(milliseconds: int) -> timedelta:
    return timedelta(milliseconds=milliseconds)


def _moment(milliseconds: int) -> object:
    return None if milliseconds == -1 else tz_aware_from_i64(milliseconds)


def _read_tags(frame: bytes, start: int, end: int, known: Mapping[int, Read]) -> tuple[dict[int, object], int]:
    """The values of the tagged fields that are known, by tag, and where the fields end."""
    values: dict[int, object] = {}
    count, start = decode_varint(frame, start)
    for _ in range(count):
        tag, start = decode_varint(frame, start)
        size, start = decode_varint(frame, start)
        if size > end - start:
            raise Malformed(f"tagged field {tag} runs past the end")
        if (read := known.get(tag)) is not None:
            values[tag], reached = read(frame, start, start + size)
            if reached != start + size:
                raise Malformed(f"tagged field {tag} does not have the {size} bytes it says")
        start += size
    return values, start


# -- generating --------------------------------------------------------------------------------------------------


class _ReaderSource(GeneratedFunction):
    def __init__(self, bounded: bool) -> None:
        super().__init__()
        self.names.update(
            Malformed=Malformed,
            varint=decode_varint,
            read_tags=_read_tags,
            unpack_from=struct.unpack_from,
            int16=Struct(">h").unpack_from,
            int32=Struct(">i").unpack_from,
            errors=_ERRORS,
            uuid_of=_uuid,
            duration=_duration,
            moment=_moment,
            new=object.__new__,
        )
        self.run: list[tuple[str, str]] = []
        """(Kafka type, variable) of adjacent fields of fixed size, not read yet."""
        self.bounded = bounded
        """Whether the elements of all arrays together are at most ELEMENTS_MAX."""
        if bounded:
            self.add("elements = 0")

    def function(self, message: type) -> Read:
        return self.compiled(message.__name__, self.struct(message))

    def tag(self, shape: FieldShape, flexible: bool) -> Read:
        """A function that reads the value of a tagged field."""
        return self.compiled(shape.name, self.value(shape, flexible, nullable=shape.nullable and not shape.struct))

    def compiled(self, what: str, value: str) -> Read:
        self.flush()
        generated: Read = self.compile("frame, at, end", f"return {value}, at")  # type: ignore[assignment]

        def read(frame: bytes, start: int, end: int) -> tuple[Entity, int]:
            try:
                result = generated(frame, start, end)
            except (IndexError, struct.error) as error:
                raise Malformed(f"{what} runs past its end") from error
            if result[1] > end:
                raise Malformed(f"{what} runs past its end")
            return result

        return read

    def flush(self) -> None:
        """Read the pending run."""
        if not self.run:
            return
        packed = Struct(">" + "".join(FIXED_FORMATS[kind] for kind, _ in self.run))
        unpack = self.name("unpack", packed.unpack_from)
        self.add(f"({', '.join(variable for _, variable in self.run)},) = {unpack}(frame, at); at += {packed.size}")
        for kind, variable in self.run:
            if kind in _CONVERTED:
                self.add(f"{variable} = {_CONVERTED[kind].format(variable)}")
        self.run.clear()

    def struct(self, message: type) -> str:
        """Generate code that reads a struct; returns its variable."""
        flexible = bool(getattr(message, "__flexible__", False))
        values: dict[str, str] = {}
        tagged: list[FieldShape] = []
        for shape in shapes(message):
            if shape.tag is None:
                values[shape.name] = self.value(shape, flexible, nullable=shape.nullable)
            else:
                tagged.append(shape)
                values[shape.name] = self.variable()
        self.flush()
        if flexible:
            self.tags(tagged, values)
        entity = self.variable()
        self.add(f"{entity} = new({self.name('Thawed', thawed(message))})")
        for name, value in values.items():
            self.add(f"{entity}.{name} = {value}")
        self.add(f"{entity}.__class__ = {self.name('Message', message)}")
        return entity

    def tags(self, tagged: list[FieldShape], values: Mapping[str, str]) -> None:
        readers = {shape.tag: _ReaderSource(self.bounded).tag(shape, flexible=True) for shape in tagged}
        known = self.name("known", readers)
        defaults = {shape: self.name("default", shape.default) for shape in tagged}
        by_tag = self.variable()
        self.add("if frame[at]:")
        self.add(f"    {by_tag}, at = read_tags(frame, at, end, {known})")
        for shape, default in defaults.items():
            self.add(f"    {values[shape.name]} = {by_tag}.get({shape.tag}, {default})")
        self.add("else:")
        self.add("    at += 1")
        for shape, default in defaults.items():
            self.add(f"    {values[shape.name]} = {default}")

    def value(self, shape: FieldShape, flexible: bool, *, nullable: bool) -> str:
        """Generate code that reads a field, the last of it perhaps with the next `flush`; returns its variable."""
        if not shape.array:
            if shape.struct and nullable:
                return self.nullable_struct(shape)
            return self.element(shape, flexible, nullable=nullable)
        self.flush()
        value, count = self.variable(), self.length(flexible, wide=True)
        if not nullable:
            self.refuse_null(shape, count)
        smallest = _smallest(shape, flexible)
        self.add(f"if {count} > 0:")
        self.depth += 1
        self.add(f"if {count} * {smallest} > end - at: raise Malformed('{shape.name} claims too many elements')")
        if self.bounded:
            self.add(f"elements += {count}")
            self.add(f"if elements > {ELEMENTS_MAX}: raise Malformed('more than {ELEMENTS_MAX:,} elements')")
        kind = shape.kafka_type
        if kind in FIXED_FORMATS and kind not in _CONVERTED and not shape.struct:
            self.add(
                f"{value} = unpack_from('>%d{FIXED_FORMATS[kind]}' % {count}, frame, at); at += {count} * {smallest}"
            )
        else:
            items = self.variable()
            self.add(f"{items} = []")
            self.add(f"for _ in range({count}):")
            self.depth += 1
            item = self.element(shape, flexible, nullable=False)
            self.flush()
            self.add(f"{items}.append({item})")
            self.depth -= 1
            self.add(f"{value} = tuple({items})")
        self.depth -= 1
        self.add(f"else: {value} = None if {count} else ()")
        return value

    def refuse_null(self, shape: FieldShape, length: str) -> None:
        self.add(f"if {length} < 0: raise Malformed('{shape.name} is null')")

    def nullable_struct(self, shape: FieldShape) -> str:
        self.flush()
        value = self.variable()
        self.add("at += 1")
        self.add(f"if frame[at - 1] == {NOT_NULL[0]}:")
        self.depth += 1
        self.add(f"{value} = {self.struct(shape.element)}")
        self.depth -= 1
        self.add(f"elif frame[at - 1] == {NULL[0]}: {value} = None")
        self.add(f"else: raise Malformed('{shape.name} is neither null nor there')")
        return value

    def element(self, shape: FieldShape, flexible: bool, *, nullable: bool) -> str:
        if shape.struct:
            self.flush()
            return self.struct(shape.element)
        value = self.variable()
        if shape.kafka_type in FIXED_FORMATS:
            self.run.append((shape.kafka_type, value))
            return value
        self.flush()
        is_text = shape.kafka_type == "string"
        length = self.length(flexible, wide=not is_text)
        content = f"{value} = frame[at:at + {length}]{'.decode()' if is_text else ''}; at += {length}"
        if nullable:
            self.add(f"if {length} < 0: {value} = None")
            self.add(f"else: {content}")
        else:
            self.refuse_null(shape, length)
            self.add(content)
        return value

    def length(self, flexible: bool, *, wide: bool) -> str:
        """Generate code that reads a length, -1 for null; returns its variable."""
        length = self.variable()
        if flexible:
            self.add(f"{length} = frame[at] - 1; at += 1")
            self.add(f"if {length} > 126:")
            self.add(f"    {length}, at = varint(frame, at - 1)")
            self.add(f"    {length} -= 1")
        else:
            self.add(f"({length},) = int{32 if wide else 16}(frame, at); at += {4 if wide else 2}")
            self.add(f"if {length} < -1: raise Malformed('a length of %d' % {length})")
        return length


def _smallest(shape: FieldShape, flexible: bool) -> int:
    """The smallest size of one element of an array."""
    if shape.struct:
        own = sum(_smallest_value(item, flexible) for item in shapes(shape.element) if item.tag is None)
        return own + int(flexible)
    if shape.kafka_type in FIXED_FORMATS:
        return Struct(">" + FIXED_FORMATS[shape.kafka_type]).size
    return 1 if flexible else 2 if shape.kafka_type == "string" else 4


def _smallest_value(shape: FieldShape, flexible: bool) -> int:
    if shape.array:
        return 1 if flexible else 4
    if shape.struct and shape.nullable:
        return 1
    return _smallest(shape, flexible)
