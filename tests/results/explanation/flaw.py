"""A flaw that is no switch: a patch of the broker, and the sentence that names it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

TIME_LIMIT_S: Final = 60
HALF_A_MINUTE_S: Final = 30


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
    time_limit_s: int = TIME_LIMIT_S
