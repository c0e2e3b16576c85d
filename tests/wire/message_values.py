"""Values for kio's message classes, any version: one with every field filled, and a strategy for any at all."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from images.wire.messages import SUPPORTED, Api, request_class, response_class
from images.wire.schema import FieldShape, shapes

EVERY_VERSION = [(api, version) for api in Api for version in SUPPORTED[api]]
EVERY_CLASS = [
    message for api, version in EVERY_VERSION for message in (request_class(api, version), response_class(api, version))
]

_BITS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63, "uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64}


def class_name(message: Any) -> str:
    """A class's name with its version, for the names of tests."""
    return f"{message.__name__}-v{message.__version__}"


def filled(message: type, seed: int = 0) -> Any:
    """An instance in which no field has its default and hardly any two have the same value."""
    return _filled(message, Random(seed))


def _filled(message: type, random: Random) -> Any:
    values: dict[str, Any] = {}
    for shape in shapes(message):
        if shape.array:
            values[shape.name] = tuple(_filled_value(shape, random) for _ in range(2))
        else:
            values[shape.name] = _filled_value(shape, random)
    return message(**values)


def _filled_value(shape: FieldShape, random: Random) -> Any:
    if shape.struct:
        return _filled(shape.element, random)
    match shape.kafka_type:
        case "string":
            return f"{shape.name}-{random.randrange(10**6)}"
        case "bytes" | "records":
            return random.randbytes(random.randrange(1, 300))
        case "bool":
            return not shape.default
        case "uuid":
            return UUID(int=random.getrandbits(128))
        case "error_code":
            return random.choice([code for code in ErrorCode if code is not ErrorCode.none])
        case "timedelta_i32" | "timedelta_i64":
            return timedelta(milliseconds=random.randrange(1, 10**6))
        case "datetime_i64":
            return datetime.fromtimestamp(random.randrange(10**9, 2 * 10**9), UTC)
        case kind:
            return random.randrange(1, 2 ** _BITS[kind])


def instances(message: type) -> st.SearchStrategy[Any]:
    """Any instance of a message class that can be written."""
    return st.builds(message, **{shape.name: _values(shape) for shape in shapes(message)})


def _values(shape: FieldShape) -> st.SearchStrategy[Any]:
    one = _element(shape)
    if shape.array:
        values: st.SearchStrategy[Any] = st.lists(one, max_size=3).map(tuple)
        return values | st.none() if shape.nullable else values
    # A tagged field is absent where it has its default, so null has no bytes of its own; kio reads an id of zeros
    # as None.
    if shape.nullable and shape.tag is None and shape.kafka_type != "uuid":
        return one | st.none()
    return one


def _element(shape: FieldShape) -> st.SearchStrategy[Any]:
    if shape.struct:
        return instances(shape.element)
    match shape.kafka_type:
        case "string":
            return st.text(max_size=200)
        case "bytes" | "records":
            return st.binary(max_size=200)
        case "bool":
            return st.booleans()
        case "uuid":
            return st.none() | st.integers(1, 2**128 - 1).map(lambda number: UUID(int=number))
        case "error_code":
            return st.sampled_from(ErrorCode)
        case "timedelta_i32" | "timedelta_i64":
            return st.integers(-(2**31), 2**31 - 1).map(lambda ms: timedelta(milliseconds=ms))
        case "datetime_i64":
            return st.integers(0, 2 * 10**9).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))
        case kind if kind.startswith("u"):
            return st.integers(0, 2 ** _BITS[kind] - 1)
        case kind:
            return st.integers(-(2 ** _BITS[kind]), 2 ** _BITS[kind] - 1)


def leaves(entity: Any, path: tuple[object, ...] = ()) -> Iterator[tuple[tuple[object, ...], Any]]:
    """Every field of an entity that is no struct, by the way to it: names, and positions in arrays."""
    for shape in shapes(type(entity)):
        value = getattr(entity, shape.name)
        here = (*path, shape.name)
        if not shape.struct or value is None:
            yield here, value
        elif shape.array:
            yield (*here, "length"), len(value)
            for position, item in enumerate(value):
                yield from leaves(item, (*here, position))
        else:
            yield from leaves(value, here)
