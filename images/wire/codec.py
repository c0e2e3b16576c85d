"""Writing messages: code generated once for each message class. `reader.py` has the code that reads them.

kio's writer is interpreted and walks its description of the class for every field of every message. `writer(cls)`
produces the same bytes (the tests compare them for every class) three to four times as fast, by packing adjacent fields
of fixed size together. Most of the work in a simulated minute is messages, which justifies generated code.

Tagged fields are written if they differ from their default, in the order of their tags.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from struct import Struct
from uuid import UUID

from images.wire.schema import Entity, FieldShape, shapes


class Malformed(Exception):
    """Bytes that do not encode the expected message."""


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

NULL, NOT_NULL = b"\xff", b"\x01"
"""Marker before a nullable struct (KIP-893)."""

_writers: dict[type, Write] = {}


def writer(message: type) -> Write:
    """The function that writes messages of a class."""
    known = _writers.get(message)
    if known is None:
        known = _writers[message] = _WriterSource().function(message)
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


# -- generating --------------------------------------------------------------------------------------------------


class GeneratedFunction:
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


class _WriterSource(GeneratedFunction):
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
                self.add(f"if {value} is None: out.append({NULL!r})")
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
