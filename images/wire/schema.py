"""The fields of kio's message classes, read from the classes once.

kio has one frozen dataclass for each struct of each version of each API. Versions of one struct share field names, so
`convert` translates a message between versions by name. `versions.py` has the differences that names do not cover (a
topic's name became its id, an error code did not exist yet).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from types import NoneType, UnionType
from typing import Any, get_args, get_origin
from uuid import UUID

from kio.schema.errors import ErrorCode

Entity = Any
"""An instance of any of kio's message classes."""

_ZERO_BY_TYPE: tuple[tuple[type, object], ...] = (
    (ErrorCode, ErrorCode.none),
    (bool, False),
    (int, 0),
    (float, 0.0),
    (str, ""),
    (bytes, b""),
    (timedelta, timedelta(0)),
    (datetime, datetime.fromtimestamp(0, UTC)),
    (UUID, UUID(int=0)),
)


@dataclass(frozen=True, slots=True)
class FieldShape:
    """One field of a message class."""

    name: str
    element: type
    """The type of the value, or of each element of an array, without `None`."""
    array: bool
    nullable: bool
    """Whether the value (of an array: the array) may be None."""
    struct: bool
    """Whether `element` is itself a message class."""
    tag: int | None
    kafka_type: str
    """Kafka's name of the wire type; empty for a struct."""
    default: object
    """The value of the field where a version lacks it."""


_shapes: dict[type, tuple[FieldShape, ...]] = {}


def shapes(message: type) -> tuple[FieldShape, ...]:
    """The fields of a message class, in wire order."""
    known = _shapes.get(message)
    if known is None:
        known = _shapes[message] = tuple(_shape(item) for item in fields(message))
    return known


def _shape(item: Field[Any]) -> FieldShape:
    declared: Any = item.type
    nullable = get_origin(declared) is UnionType and NoneType in get_args(declared)
    if nullable:
        declared = next(part for part in get_args(declared) if part is not NoneType)
    array = get_origin(declared) is tuple
    element: Any = get_args(declared)[0] if array else declared
    if get_origin(element) is UnionType:  # an array of ids, each of which may be the zero id that kio reads as None
        element = next(part for part in get_args(element) if part is not NoneType)
    struct = is_dataclass(element)
    if item.default is not MISSING:
        default: object = item.default
    elif nullable:
        default = None
    elif array:
        default = ()
    elif struct:
        default = element(**{shape.name: shape.default for shape in shapes(element)})
    else:
        default = next(zero for kind, zero in _ZERO_BY_TYPE if issubclass(element, kind))
    return FieldShape(
        name=item.name,
        element=element,
        array=array,
        nullable=nullable,
        struct=struct,
        tag=item.metadata.get("tag"),
        kafka_type=item.metadata.get("kafka_type", ""),
        default=default,
    )


def same_layout(one: type, other: type) -> bool:
    """Whether two message classes have the same fields in the same encoding, so that each reads the other's bytes."""
    return _layout(one) == _layout(other)


def _layout(message: type) -> tuple[bool, tuple[object, ...]]:
    fields = tuple(
        (shape.name, shape.array, shape.nullable, shape.tag, _layout(shape.element))
        if shape.struct
        else (shape.name, shape.array, shape.nullable, shape.tag, shape.kafka_type, shape.default)
        for shape in shapes(message)
    )
    return bool(getattr(message, "__flexible__", False)), fields


_converters: dict[tuple[type, type], Callable[[Entity], Entity]] = {}


def convert(entity: Entity, target: type) -> Entity:
    """`entity` as an instance of `target`, field by field by name, recursively.

    A field that the target lacks is dropped, one that the source lacks gets its default, and a null that the target
    does not allow becomes the type's empty value. An instance of `target` is returned unchanged.
    """
    source = type(entity)
    if source is target:
        return entity
    converter = _converters.get((source, target))
    if converter is None:
        converter = _converters[source, target] = _converter(source, target)
    return converter(entity)


def _converter(source: type, target: type) -> Callable[[Entity], Entity]:
    names = {shape.name for shape in shapes(source)}
    absent = {shape.name: shape.default for shape in shapes(target) if shape.name not in names}
    present = tuple(shape for shape in shapes(target) if shape.name in names)

    def converted(entity: Entity) -> Entity:
        values = dict(absent)
        for shape in present:
            value = getattr(entity, shape.name)
            if value is None:
                value = None if shape.nullable else shape.default
            elif shape.struct:
                element = shape.element
                value = tuple(convert(item, element) for item in value) if shape.array else convert(value, element)
            values[shape.name] = value
        return target(**values)

    return converted
