"""Mappings from YAML into frozen dataclasses, strictly.

Input is read by the annotations of the dataclass it stands for: an unknown name, a missing name or a value
of another type is refused with one line that names the field, the value, and what would be right. Nothing is guessed:
`"3"` is not a number and `yes` is not a list.

A duration is a number of seconds or a text such as `300ms`, `5s`, `2m`; it goes to fields whose name ends in `_s`, and
may be written without that ending (`at: 5s` fills `at_s`).
"""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import StrEnum
from functools import cache
from typing import Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

NUMBER_MAX: Final = 1e15
"""Of a number or a duration in seconds: nothing real is larger, and computing with it stays exact."""

_DURATION = re.compile(r"([0-9]{1,15}(?:\.\d+)?)\s*(ms|s|m)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0}


class FieldError(ValueError):
    """A field that cannot be used; the message is one line for the user."""


def read(cls: type[T], values: object, where: str = "") -> T:
    """The `cls` that the mapping `values` stands for. Raises FieldError; `where` precedes the names in messages."""
    if not isinstance(values, Mapping):
        raise FieldError(f"{where or cls.__name__.lower()}: {values!r} is not a mapping of names to values")
    kind: type = cls
    known, hints = _names(kind), _hints(kind)
    arguments: dict[str, Any] = {}
    for name, value in values.items():
        item = known.get(name) if isinstance(name, str) else None
        if item is None:
            raise FieldError(f"{_at(where, name)}: unknown field{_suggestion(str(name), known)}")
        if item.name in arguments:
            raise FieldError(f"{_at(where, item.name.removesuffix('_s'))}: given twice")
        arguments[item.name] = convert(value, hints[item.name], _at(where, name), duration=item.name.endswith("_s"))
    for item in known.values():
        if item.name not in arguments and item.default is MISSING and item.default_factory is MISSING:
            raise FieldError(f"{_at(where, item.name.removesuffix('_s'))}: missing")
    try:
        return cls(**arguments)
    except FieldError:
        raise
    except ValueError as error:
        raise FieldError(f"{where}: {error}" if where else str(error)) from None


def check_names(cls: type, names: Collection[object], *, beside: Sequence[str], instead: Mapping[str, str]) -> None:
    """Raises FieldError for a name that is neither a field of `cls` nor one of those `beside` its fields.

    `instead` has the fields that no user writes, each with the name to write. The message suggests none of them.
    """
    plain = dict.fromkeys(item.name.removesuffix("_s") for item in _names(cls).values())
    listed = [*beside, *(name for name in plain if name not in instead)]
    for name in names:
        if name in instead:
            raise FieldError(f"{name}: unknown field; did you mean {instead[str(name)]}?")
        if name not in listed and name not in _names(cls):
            raise FieldError(f"{name}: unknown field{_suggestion(str(name), listed)}")


def convert(value: object, kind: Any, where: str, *, duration: bool = False) -> Any:
    """`value` as the annotation `kind` asks for it. Raises FieldError naming `where`."""
    origin = get_origin(kind)
    if origin is Union or origin is types.UnionType:
        if value is None and type(None) in get_args(kind):
            return None
        (kind,) = (choice for choice in get_args(kind) if choice is not type(None))
        return convert(value, kind, where, duration=duration)
    if origin is tuple:
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",") if part.strip()]
        if not isinstance(value, Sequence):
            raise FieldError(f"{where}: {value!r} is not a list")
        element = get_args(kind)[0]
        return tuple(convert(part, element, f"{where}[{number}]") for number, part in enumerate(value))
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise FieldError(f"{where}: {value!r} is not a mapping of names to values")
        element = get_args(kind)[1]
        if get_origin(element) is not None:
            return {str(name): convert(part, element, _at(where, name)) for name, part in value.items()}
        if isinstance(element, type) and is_dataclass(element):
            return {str(name): read(element, part, _at(where, name)) for name, part in value.items()}
        return {str(name): _setting(part, _at(where, name)) for name, part in value.items()}
    if duration:
        return seconds(value, where)
    return _scalar(value, kind, where)


def seconds(value: object, where: str) -> float:
    """A duration: a number of seconds, or a text with its unit."""
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
        return _finite(value, where)
    if isinstance(value, str) and (match := _DURATION.fullmatch(value.strip())):
        return _finite(float(match[1]) * _SECONDS[match[2]], where)
    raise FieldError(f"{where}: {value!r} is not a duration such as 300ms, 5s, 2m or a number of seconds")


def _scalar(value: object, kind: Any, where: str) -> Any:
    if issubclass(kind, StrEnum):
        if isinstance(value, str) and value in set(kind):
            return kind(value)
        raise FieldError(f"{where}: {value!r} is not one of {', '.join(kind)}")
    if kind is bool:
        if isinstance(value, bool):
            return value
        raise FieldError(f"{where}: {value!r} is neither true nor false")
    if kind is int:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise FieldError(f"{where}: {value!r} is not a whole number")
    if kind is float:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return _finite(value, where)
        raise FieldError(f"{where}: {value!r} is not a number")
    if isinstance(value, str):
        return value
    raise FieldError(f"{where}: {value!r} is not a text; put it in quotes")


def _finite(value: float, where: str) -> float:
    if not abs(value) <= NUMBER_MAX:
        raise FieldError(f"{where}: {value!r} is not a finite number of at most {NUMBER_MAX:g}")
    return float(value)


def _setting(value: object, where: str) -> str:
    """A Kafka setting's value as its text: YAML reads `true` and `2` as themselves, properties know only text."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise FieldError(f"{where}: {value!r} is not a single value")


@cache
def _hints(cls: type) -> Mapping[str, Any]:
    return get_type_hints(cls)


@cache
def _names(cls: type) -> Mapping[str, Field[Any]]:
    known: dict[str, Field[Any]] = {}
    for item in fields(cls):
        if not item.init:
            continue
        known[item.name] = item
        if item.name.endswith("_s"):
            known[item.name.removesuffix("_s")] = item
    return known


def _at(where: str, name: object) -> str:
    return f"{where}.{name}" if where else str(name)


def _suggestion(name: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; one of: {', '.join(known)}"
