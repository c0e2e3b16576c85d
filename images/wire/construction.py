"""Fast construction of kio's message classes, which are frozen dataclasses with slots.

The `__init__` that `dataclass` makes for a frozen class passes each value through `object.__setattr__`, by the name of
its field. A *thawed* class has the same slots and is not frozen. An instance of it is filled by plain assignments, the
fastest there are, and is then made one of the frozen class, which Python permits since both have the same layout: a
third to a half of the time. Nothing else about the message classes changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any

from images.wire.schema import shapes

_thawed: dict[type, type] = {}
_quickened: set[type] = set()


def thawed(message: Any) -> type:
    """The class whose instances become a `message` when that is assigned to their `__class__`."""
    known = _thawed.get(message)
    if known is None:
        known = _thawed[message] = type(f"Thawed{message.__name__}", (), {"__slots__": message.__slots__})
    return known


def quicken(message: Any) -> None:
    """Give a message class, and those of its structs, the fast `__init__`; it takes the same arguments."""
    if message in _quickened:
        return
    _quickened.add(message)
    message.__init__ = _initialiser(message)
    for shape in shapes(message):
        if shape.struct:
            quicken(shape.element)


def _initialiser(message: type) -> Callable[..., None]:
    defaults = {f"default_{item.name}": item.default for item in fields(message) if item.default is not MISSING}
    names = [item.name for item in fields(message)]
    taken = [f"{name}=default_{name}" if f"default_{name}" in defaults else name for name in names]
    signature = ", ".join(["self", "*", *taken] if taken else ["self"])
    lines = [
        "thaw(self, '__class__', Thawed)",
        *(f"self.{name} = {name}" for name in names),
        "self.__class__ = Message",
    ]
    source = "\n    ".join((f"def __init__({signature}):", *lines))
    names_in_it = {"thaw": object.__setattr__, "Thawed": thawed(message), "Message": message, **defaults}
    exec(compile(source, f"<{message.__name__}>", "exec"), names_in_it)
    initialiser: Callable[..., None] = names_in_it["__init__"]
    return initialiser
