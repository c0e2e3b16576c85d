"""Kafka's messages as plain values: a dictionary for a struct, by kio's classes but with none of their checks.

The broker's own codec refuses to write what a broken client might send and to read an error code it does not know.
Here a null may stand where the schema has none, and every number that fits its bytes is written and read as it is.
Durations and times are whole milliseconds, error codes numbers, a zero UUID is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from importlib import import_module
from struct import Struct
from typing import Any
from uuid import UUID

from images.wire.schema import FieldShape, shapes

Plain = Any
"""A message, or a part of one, as plain values."""

_FIXED = {
    "int8": Struct(">b"),
    "int16": Struct(">h"),
    "int32": Struct(">i"),
    "int64": Struct(">q"),
    "uint16": Struct(">H"),
    "uint32": Struct(">I"),
    "float64": Struct(">d"),
    "bool": Struct(">?"),
    "error_code": Struct(">h"),
    "timedelta_i32": Struct(">i"),
    "timedelta_i64": Struct(">q"),
    "datetime_i64": Struct(">q"),
}
_HEAD = Struct(">hhih")


def message_class(api: str, version: int, kind: str) -> Any:
    """kio's class of a message: `message_class("list_offsets", 7, "request")`."""
    name = "".join(word.capitalize() for word in api.split("_")) + kind.capitalize()
    return getattr(import_module(f"kio.schema.{api}.v{version}.{kind}"), name)


def request_frame(
    api: str, version: int, values: Mapping[str, Plain], client_id: str, correlation_id: int = 0
) -> bytes:
    """The whole frame of a request, its length first. Raises KeyError for a field that the version does not have."""
    message = message_class(api, version, "request")
    client = client_id.encode()
    head = _HEAD.pack(message.__api_key__, version, correlation_id, len(client)) + client
    if message.__header_schema__.__flexible__:
        head += b"\0"
    return framed(head + write(message, values))


def framed(content: bytes) -> bytes:
    """`content` with its length before it."""
    return len(content).to_bytes(4) + content


def read_response(api: str, version: int, frame: bytes) -> Plain:
    """The message in a response frame without its length. Raises ValueError when bytes are left over."""
    message = message_class(api, version, "response")
    at = 4
    if message.__header_schema__.__flexible__:
        _, at = _skip_tags(frame, at)
    values, at = _read_struct(message, frame, at)
    if at != len(frame):
        raise ValueError(f"{len(frame) - at} bytes too many in {message.__name__} v{version}")
    return values


def default(shape: FieldShape) -> Plain:
    """The plain value that stands for a field of which nothing is said."""
    value = shape.default
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, timedelta):
        return value // timedelta(milliseconds=1)
    if isinstance(value, datetime):
        return int(value.timestamp() * 1000)
    if shape.kafka_type == "datetime_i64" and value is None:
        return -1
    if isinstance(value, UUID):
        return None
    if shape.struct and value is not None:
        return {item.name: default(item) for item in shapes(shape.element)}
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else value


# --- writing ----------------------------------------------------------------------------------------------------------


def write(message: type, values: Mapping[str, Plain]) -> bytes:
    """The bytes of a struct. Fields left out take their default."""
    flexible = bool(getattr(message, "__flexible__", False))
    unknown = set(values) - {shape.name for shape in shapes(message)}
    if unknown:
        raise KeyError(f"{message.__module__}.{message.__name__} has no {', '.join(sorted(unknown))}")
    out, tags = b"", []
    for shape in shapes(message):
        if shape.tag is None:
            out += _write_value(shape, values.get(shape.name, default(shape)), flexible)
        elif shape.name in values:
            content = _write_value(shape, values[shape.name], flexible)
            tags.append((shape.tag, _varint(shape.tag) + _varint(len(content)) + content))
    if not flexible:
        return out
    return out + _varint(len(tags)) + b"".join(content for _, content in sorted(tags))


def _write_value(shape: FieldShape, value: Plain, flexible: bool) -> bytes:
    if not shape.array:
        return _write_element(shape, value, flexible)
    if value is None:
        return _length(-1, flexible, 4)
    return _length(len(value), flexible, 4) + b"".join(_write_element(shape, item, flexible) for item in value)


def _write_element(shape: FieldShape, value: Plain, flexible: bool) -> bytes:
    if shape.struct:
        if shape.nullable and not shape.array:
            return b"\xff" if value is None else b"\x01" + write(shape.element, value)
        return write(shape.element, value)
    kind = shape.kafka_type
    if kind == "uuid":
        return bytes(16) if value is None else UUID(str(value)).bytes
    if kind in _FIXED:
        return _FIXED[kind].pack(value)
    size = 2 if kind == "string" else 4
    if value is None:
        return _length(-1, flexible, size)
    content = value.encode() if isinstance(value, str) else value
    return _length(len(content), flexible, size) + content


def _length(count: int, flexible: bool, size: int) -> bytes:
    return _varint(count + 1) if flexible else count.to_bytes(size, signed=True)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes((*out, number))


# --- reading ----------------------------------------------------------------------------------------------------------


def _read_struct(message: type, frame: bytes, at: int) -> tuple[Plain, int]:
    flexible = bool(getattr(message, "__flexible__", False))
    values: dict[str, Plain] = {}
    tagged = {}
    for shape in shapes(message):
        if shape.tag is None:
            values[shape.name], at = _read_value(shape, frame, at, flexible)
        else:
            tagged[shape.tag] = shape
            values[shape.name] = default(shape)
    if flexible:
        tags, at = _skip_tags(frame, at)
        for tag, start in tags:
            if tag in tagged:
                values[tagged[tag].name], _ = _read_value(tagged[tag], frame, start, flexible)
    return values, at


def _skip_tags(frame: bytes, at: int) -> tuple[list[tuple[int, int]], int]:
    count, at = _read_varint(frame, at)
    tags = []
    for _ in range(count):
        tag, at = _read_varint(frame, at)
        size, at = _read_varint(frame, at)
        tags.append((tag, at))
        at += size
    return tags, at


def _read_value(shape: FieldShape, frame: bytes, at: int, flexible: bool) -> tuple[Plain, int]:
    if not shape.array:
        if shape.struct and shape.nullable:
            at += 1
            return (None, at) if frame[at - 1] == 0xFF else _read_struct(shape.element, frame, at)
        return _read_element(shape, frame, at, flexible)
    count, at = _read_length(frame, at, flexible, 4)
    if count < 0:
        return None, at
    items = []
    for _ in range(count):
        item, at = _read_element(shape, frame, at, flexible)
        items.append(item)
    return items, at


def _read_element(shape: FieldShape, frame: bytes, at: int, flexible: bool) -> tuple[Plain, int]:
    if shape.struct:
        return _read_struct(shape.element, frame, at)
    kind = shape.kafka_type
    if kind == "uuid":
        value = UUID(bytes=frame[at : at + 16])
        return (str(value) if value.int else None), at + 16
    if kind in _FIXED:
        return _FIXED[kind].unpack_from(frame, at)[0], at + _FIXED[kind].size
    count, at = _read_length(frame, at, flexible, 2 if kind == "string" else 4)
    if count < 0:
        return None, at
    content = frame[at : at + count]
    return (content.decode() if kind == "string" else content), at + count


def _read_length(frame: bytes, at: int, flexible: bool, size: int) -> tuple[int, int]:
    if flexible:
        count, at = _read_varint(frame, at)
        return count - 1, at
    return int.from_bytes(frame[at : at + size], signed=True), at + size


def _read_varint(frame: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = frame[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7
