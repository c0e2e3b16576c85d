"""Writing messages, and measuring bytes before kio reads them: code generated once for each message class.

kio's reader is compiled and fast, but it trusts an array's length and allocates memory for it: a few bytes of garbage
that claim 2^31 elements abort the whole process, which no `except` can stop. It also reads a null where the protocol
allows none, which a handler then does not expect. So every message is *measured* first. `measurer(cls)` walks the bytes
by the fields of the class, reads only lengths, and raises Malformed as soon as an array claims more elements than the
remaining bytes could hold, a length is negative, a field is null that must not be, a request has more than ELEMENTS_MAX
elements, or the message runs past its end. kio then reads the bytes safely, and decides whether they make sense.

kio's writer is interpreted and walks its description of the class for every field of every message. `writer(cls)`
produces the same bytes (the tests compare them for every class) three to four times as fast, by packing adjacent fields
of fixed size together. Most of the work in a simulated minute is messages, which justifies generated code.

Tagged fields are written if they differ from their default, in the order of their tags. A tag that the class does not
know raises UnknownTag: `unknown_tags.py` removes such fields, which kio would refuse.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import datetime, timedelta
from struct import Struct
from uuid import UUID

from kio.static.constants import EntityType

from images.wire.schema import Entity, FieldShape, shapes


class Malformed(Exception):
    """Bytes that do not encode the expected message."""


class UnknownTag(Malformed):
    """A tagged field that the message class does not know; perhaps the sender is newer."""


Measure = Callable[[bytes, int, int], int]
"""(bytes, start, end) → end of the message that begins at `start`, at most `end`. Raises Malformed."""

Write = Callable[[Entity, list[bytes]], None]
"""Appends the bytes of a message, in pieces, to a list."""

FIXED_FORMATS = {
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "float64": "d",
    "bool": "?",
    "error_code": "h",
    "uuid": "16s",
    "timedelta_i32": "i",
    "timedelta_i64": "q",
    "datetime_i64": "q",
}
"""Kafka type of fixed size → struct format; types whose value is written as it is come first."""
_CONVERTED = {
    "uuid": "uuid_bytes({})",
    "timedelta_i32": "milliseconds({})",
    "timedelta_i64": "milliseconds({})",
    "datetime_i64": "timestamp({})",
}

ELEMENTS_MAX = 50_000
"""The most elements that all arrays of a request may have together. Each costs memory and time far beyond its bytes:
10 MB of empty names would take over a gigabyte, and a minute during which nobody else is answered."""

_NULL, NOT_NULL = b"\xff", b"\x01"
"""Marker before a nullable struct (KIP-893)."""

_writers: dict[type, Write] = {}
_measurers: dict[type, Measure] = {}


def writer(message: type) -> Write:
    """The function that writes messages of a class."""
    known = _writers.get(message)
    if known is None:
        known = _writers[message] = _WriterSource().function(message)
    return known


def measurer(message: type) -> Measure:
    """The function that finds the end of a message of a class."""
    known = _measurers.get(message)
    if known is None:
        known = _measurers[message] = _MeasurerSource().function(message)
    return known


# -- what generated code calls -----------------------------------------------------------------------------------


def encode_varint(value: int) -> bytes:
    """An unsigned varint: seven bits per byte, the lowest first; the top bit marks that more bytes follow."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


class _Varints(dict[int, bytes]):
    """Varints by value; short ones, which nearly all lengths are, are cached."""

    def __missing__(self, value: int) -> bytes:
        return encode_varint(value)


_VARINTS = _Varints({value: encode_varint(value) for value in range(1024)})


def decode_varint(frame: bytes, start: int) -> tuple[int, int]:
    """The unsigned varint of at most five bytes at `start`, and its end. Raises Malformed."""
    if start < len(frame) and (byte := frame[start]) < 0x80:
        return byte, start + 1  # by far the usual case
    value = 0
    for shift in (0, 7, 14, 21, 28):
        if start >= len(frame):
            break
        byte = frame[start]
        start += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, start
    raise Malformed("a varint does not end")


def _milliseconds(value: timedelta) -> int:
    return round(value.total_seconds() * 1000) if value else 0  # nearly always it is a throttle time


def _timestamp(value: datetime | None) -> int:
    return -1 if value is None else round(value.timestamp() * 1000)


_NO_UUID = bytes(16)


def _uuid_bytes(value: UUID | None) -> bytes:
    return _NO_UUID if value is None else value.int.to_bytes(16)


def _measure_tags(frame: bytes, start: int, end: int, known: dict[int, Measure]) -> int:
    count, start = decode_varint(frame, start)
    for _ in range(count):
        tag, start = decode_varint(frame, start)
        size, start = decode_varint(frame, start)
        measure = known.get(tag)
        if measure is None:
            raise UnknownTag(f"unknown tagged field {tag}")
        if size > end - start or measure(frame, start, start + size) != start + size:
            raise Malformed(f"tagged field {tag} does not have the {size} bytes it says")
        start += size
    return start


# -- generating --------------------------------------------------------------------------------------------------


class _Source:
    """Lines of a generated Python function, and the values they refer to by name."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, object] = {}
        self.depth = 1

    def add(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def name(self, prefix: str, value: object) -> str:
        """A new name for `value` in the generated code."""
        name = f"{prefix}{len(self.names)}"
        self.names[name] = value
        return name

    def variable(self) -> str:
        return self.name("v", None)

    def compile(self, signature: str, last: str) -> object:
        source = "\n".join((f"def generated({signature}):", *self.lines, f"    {last}"))
        # Built from kio's class definitions alone. Compiled first: a KeyboardInterrupt that meets `exec` of text makes
        # CPython end by SIGINT later, even if it is handled.
        exec(compile(source, "generated", "exec"), self.names)
        return self.names["generated"]


class _WriterSource(_Source):
    def __init__(self) -> None:
        super().__init__()
        self.names.update(varint=_VARINTS, milliseconds=_milliseconds, timestamp=_timestamp, uuid_bytes=_uuid_bytes)
        self.run: list[tuple[str, str]] = []
        """(format, expression) of adjacent fields of fixed size, not written yet."""

    def function(self, message: type) -> Write:
        self.struct(message, "message")
        self.flush()
        return self.compiled()

    def tag(self, shape: FieldShape, flexible: bool) -> Callable[[Entity], bytes]:
        """A function that encodes a whole tagged field: tag, size, value."""
        self.value(shape, "message", flexible, nullable=False)
        self.flush()
        write = self.compiled()
        prefix = encode_varint(shape.tag or 0)

        def tagged(value: Entity) -> bytes:
            out: list[bytes] = []
            write(value, out)
            content = b"".join(out)
            return prefix + _VARINTS[len(content)] + content

        return tagged

    def compiled(self) -> Write:
        generated: Write = self.compile("message, out", "return None")  # type: ignore[assignment]
        return generated

    def flush(self, *, end_of_struct: bool = False) -> None:
        """Write the pending run, with the byte for no tagged fields at the end of a struct."""
        formats = "".join(part for part, _ in self.run) + ("x" if end_of_struct else "")
        if self.run:
            pack = self.name("pack", Struct(">" + formats).pack)
            self.add(f"out.append({pack}({', '.join(expression for _, expression in self.run)}))")
        elif end_of_struct:
            self.add(r"out.append(b'\0')")
        self.run.clear()

    def struct(self, message: type, of: str) -> None:
        flexible = bool(getattr(message, "__flexible__", False))
        tagged = []
        for shape in shapes(message):
            if shape.tag is None:
                self.value(shape, f"{of}.{shape.name}", flexible, nullable=shape.nullable)
            else:
                tagged.append(shape)
        if not flexible:
            return
        if not tagged:
            self.flush(end_of_struct=True)
            return
        self.flush()
        tags, value = self.variable(), self.variable()
        self.add(f"{tags} = []")
        for shape in sorted(tagged, key=lambda item: item.tag or 0):
            default = self.name("default", shape.default)
            write = self.name("tag", _WriterSource().tag(shape, flexible))
            self.add(f"{value} = {of}.{shape.name}")
            self.add(f"if {value} is not {default} and {value} != {default}: {tags}.append({write}({value}))")
        self.add(f"out.append(varint[len({tags})])")
        self.add(f"out.extend({tags})")

    def value(self, shape: FieldShape, of: str, flexible: bool, *, nullable: bool) -> None:
        if not shape.array:
            self.element(shape, of, flexible, nullable=nullable)
            return
        self.flush()
        value, item = self.variable(), self.variable()
        self.add(f"{value} = {of}")
        if nullable:
            self.length(f"-1 if {value} is None else len({value})", flexible, wide=True)
            self.add(f"for {item} in {value} or ():")
        else:
            self.length(f"len({value})", flexible, wide=True)
            self.add(f"for {item} in {value}:")
        self.depth += 1
        self.element(shape, item, flexible, nullable=False)
        self.flush()
        self.depth -= 1

    def element(self, shape: FieldShape, of: str, flexible: bool, *, nullable: bool) -> None:
        kind = shape.kafka_type
        if shape.struct:
            if nullable:
                self.flush()
                value = self.variable()
                self.add(f"{value} = {of}")
                self.add(f"if {value} is None: out.append({_NULL!r})")
                self.add("else:")
                self.depth += 1
                self.add(f"out.append({NOT_NULL!r})")
                self.struct(shape.element, value)
                self.flush()
                self.depth -= 1
                return
            self.struct(shape.element, of)
        elif kind in FIXED_FORMATS:
            self.run.append((FIXED_FORMATS[kind], _CONVERTED.get(kind, "{}").format(of)))
        else:
            self.flush()
            value = self.variable()
            encode = ".encode()" if kind == "string" else ""
            self.add(f"{value} = {of}")
            if nullable:
                self.add(f"if {value} is None:")
                self.depth += 1
                self.length("-1", flexible, wide=kind != "string")
                self.flush()
                self.depth -= 1
                self.add("else:")
                self.depth += 1
            if encode:
                self.add(f"{value} = {value}{encode}")
            self.length(f"len({value})", flexible, wide=kind != "string")
            self.flush()
            self.add(f"out.append({value})")
            if nullable:
                self.depth -= 1

    def length(self, expression: str, flexible: bool, *, wide: bool) -> None:
        if flexible:
            self.add(f"out.append(varint[1 + ({expression})])")
        else:
            self.run.append(("i" if wide else "h", expression))
            self.flush()


class _MeasurerSource(_Source):
    def __init__(self) -> None:
        super().__init__()
        self.names.update(
            Malformed=Malformed,
            varint=decode_varint,
            measure_tags=_measure_tags,
            int16=Struct(">h").unpack_from,
            int32=Struct(">i").unpack_from,
        )
        self.skip = 0
        """Bytes of fixed size not yet skipped."""
        self.bounded = False
        """Whether the elements of all arrays together are at most ELEMENTS_MAX."""

    def function(self, message: type) -> Measure:
        self.bounded = getattr(message, "__type__", None) is EntityType.request
        if self.bounded:
            self.add("elements = 0")
        self.struct(message)
        return self.compiled(message.__name__)

    def tag(self, shape: FieldShape, flexible: bool) -> Measure:
        self.value(shape, flexible, nullable=shape.nullable and not shape.struct)
        return self.compiled(shape.name)

    def compiled(self, what: str) -> Measure:
        self.flush()
        generated: Measure = self.compile("frame, at, end", "return at")  # type: ignore[assignment]

        def measure(frame: bytes, start: int, end: int) -> int:
            try:
                reached = generated(frame, start, end)
            except (IndexError, struct.error) as error:
                raise Malformed(f"{what} runs past its end") from error
            if reached > end:
                raise Malformed(f"{what} runs past its end")
            return reached

        return measure

    def flush(self) -> None:
        if self.skip:
            self.add(f"at += {self.skip}")
        self.skip = 0

    def struct(self, message: type) -> None:
        flexible = bool(getattr(message, "__flexible__", False))
        tagged: dict[int, Measure] = {}
        for shape in shapes(message):
            if shape.tag is None:
                self.value(shape, flexible, nullable=shape.nullable)
            else:
                tagged[shape.tag] = _MeasurerSource().tag(shape, flexible)
        if flexible:
            self.flush()
            known = self.name("known", tagged)
            self.add("if frame[at]: at = measure_tags(frame, at, end, " + known + ")")
            self.add("else: at += 1")

    def value(self, shape: FieldShape, flexible: bool, *, nullable: bool) -> None:
        if not shape.array:
            if shape.struct and nullable:
                self.nullable_struct(shape)
            else:
                self.element(shape, flexible, nullable=nullable)
            return
        self.flush()
        count = self.length(flexible, wide=True)
        if not nullable:
            self.refuse_null(shape, count)
        smallest = _smallest(shape, flexible)
        self.add(f"if {count} > 0:")
        self.depth += 1
        self.add(f"if {count} * {smallest} > end - at: raise Malformed('{shape.name} claims too many elements')")
        if self.bounded:
            self.add(f"elements += {count}")
            self.add(f"if elements > {ELEMENTS_MAX}: raise Malformed('more than {ELEMENTS_MAX} elements')")
        if not shape.struct and shape.kafka_type in FIXED_FORMATS:
            self.add(f"at += {count} * {smallest}")
        else:
            self.add(f"for _ in range({count}):")
            self.depth += 1
            self.element(shape, flexible, nullable=False)
            self.flush()
            self.depth -= 1
        self.depth -= 1

    def refuse_null(self, shape: FieldShape, length: str) -> None:
        self.add(f"if {length} < 0: raise Malformed('{shape.name} is null')")

    def nullable_struct(self, shape: FieldShape) -> None:
        self.flush()
        self.add("at += 1")
        self.add(f"if frame[at - 1] == {NOT_NULL[0]}:")
        self.depth += 1
        self.struct(shape.element)
        self.flush()
        self.depth -= 1
        self.add(f"elif frame[at - 1] != {_NULL[0]}: raise Malformed('{shape.name} is neither null nor there')")

    def element(self, shape: FieldShape, flexible: bool, *, nullable: bool) -> None:
        if shape.struct:
            self.struct(shape.element)
        elif shape.kafka_type in FIXED_FORMATS:
            self.skip += Struct(">" + FIXED_FORMATS[shape.kafka_type]).size
        else:
            self.flush()
            length = self.length(flexible, wide=shape.kafka_type != "string")
            if nullable:
                self.add(f"if {length} > 0: at += {length}")
            else:
                self.refuse_null(shape, length)
                self.add(f"at += {length}")

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
