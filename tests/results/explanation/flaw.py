"""A flaw that is no switch: a patch of the broker, and the sentence that names it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

ONE_MINUTE: Final[Mapping[str, Any]] = MappingProxyType({"time_limit": 60})
HALF_A_MINUTE: Final[Mapping[str, Any]] = MappingProxyType({"time_limit": 30})
VARIED_APPENDS: Final[Mapping[str, Any]] = MappingProxyType({"vary": True})
VARIED_GROUPS: Final[Mapping[str, Any]] = MappingProxyType({"vary": True, "workload": "groups"})


@dataclass(frozen=True, slots=True)
class Edit:
    """One change of a source: a text that it has once becomes another."""

    path: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Flaw:
    """A patch."""

    name: str
    meaning: str
    cause: str
    """The sentence that names the cause, written before any explanation of the flaw was seen."""
    edits: tuple[Edit, ...]
    spec: Mapping[str, Any] = field(default_factory=lambda: ONE_MINUTE)
    """Of the runs in which it is looked for."""
