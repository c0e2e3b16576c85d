"""The situations of a scope: all that exist in it, each with the shortest schedule to it.

`faultline explore --situations` writes them as JSON, and `faultline coverage --scope` reads them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from results.atomic_files import put_json, read_json
from results.errors import StoreError
from results.situations.situation import ProtocolSituation

_FORMAT: Final = 1


class ReachedSituation(NamedTuple):
    """A situation of the protocol, and the shortest schedule to it, in words."""

    situation: ProtocolSituation
    schedule: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The situation as one JSON object."""
        return {
            "id": self.situation.id,
            "code": self.situation.code,
            "sentence": self.situation.sentence,
            "schedule": list(self.schedule),
        }


@dataclass(frozen=True, slots=True)
class ScopeSituations:
    """All situations of an explored scope."""

    scope: str
    bounds: Mapping[str, Any]
    states: int
    reached: tuple[ReachedSituation, ...]
    """The nearest to the first state first."""

    def visited(self, codes: Collection[str]) -> list[ReachedSituation]:
        """Those with one of these codes."""
        return [it for it in self.reached if it.situation.code in codes]

    def not_visited(self, codes: Collection[str]) -> list[ReachedSituation]:
        """All others."""
        return [it for it in self.reached if it.situation.code not in codes]

    def write(self, path: Path) -> None:
        """Write them to a file. Raises StoreError."""
        reached = [it.to_json() for it in self.reached]
        put_json(
            path,
            {
                "format": _FORMAT,
                "scope": self.scope,
                "bounds": dict(self.bounds),
                "states": self.states,
                "situations": reached,
            },
        )


def read(path: Path) -> ScopeSituations:
    """The situations in a file. Raises StoreError with one line."""
    if not path.is_file():
        raise StoreError(f"{path}: there is no such file; faultline explore SCOPE --situations {path} writes it")
    values = read_json(path)
    try:
        if values["format"] != _FORMAT:
            raise StoreError(f"{path}: format: {values['format']!r} is not {_FORMAT}; explore the scope again")
        reached = tuple(
            ReachedSituation(ProtocolSituation(str(it["code"])), tuple(map(str, it["schedule"])))
            for it in values["situations"]
        )
        return ScopeSituations(str(values["scope"]), dict(values["bounds"]), int(values["states"]), reached)
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{path}: does not hold the situations of a scope: {type(error).__name__}: {error}") from None
