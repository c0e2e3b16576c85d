"""The record of a campaign against mutants: one JSON file, which one night leaves to the next.

    {"searches": {MUTANT: {METHOD: [range, …]}}, "explorations": {MUTANT or "": {SCOPE: exploration}},
     "full_protocol": {"runs": N, "cpu_s": S}}

A range is complete once both boxes have found the mutant or RUNS_MOST runs were made. An incomplete one goes on where
it was left. Every range and exploration names the commits on which it rests, since the program may change between two
nights.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from harness.search.exclusive import kept_for_this_process
from harness.search.mutants.mutant import RUNS_MOST, Method
from harness.suites.boxes import BOXES, CPU_SECONDS
from results.atomic_files import put_text, read_json
from results.errors import StoreError

FULL_PROTOCOL: Final = ""
"""The name under which the explorations without any mutant stand."""


@dataclass(frozen=True, slots=True)
class Detection:
    """The first find of a mutant by one box, within one range."""

    runs: int
    """Runs of the range up to the one that finds it, which is counted."""
    cpu_s: float
    """Of those runs, with their checks; of a hunt also what choosing them took."""
    check: str
    """The checker, and the kind of its finding."""
    run: str
    """Night and run in the store in which it was found."""


@dataclass(slots=True)
class SeedRange:
    """The search in one range of seeds."""

    number: int
    runs: int = 0
    cpu_s: float = 0.0
    together: Detection | None = None
    white: Detection | None = None
    black: Detection | None = None
    commits: list[str] = field(default_factory=list)
    not_made: int = 0
    """Runs that are those of the full protocol (`harness.search.mutants.full_protocol`), and their processor time."""
    not_made_cpu_s: float = 0.0

    @property
    def complete(self) -> bool:
        """Whether nothing is left to do in it."""
        return self.runs >= RUNS_MOST or (self.white is not None and self.black is not None)

    def reset(self) -> None:
        """Begin it anew."""
        self.runs, self.cpu_s, self.commits = 0, 0.0, []
        self.together = self.white = self.black = None

    def take_not_made(self, cpu_s: float, commit: str) -> None:
        """Count a run, the next one of the range, that is one of the full protocol, so that no box finds anything."""
        self.take({CPU_SECONDS: cpu_s}, "", commit)
        self.not_made += 1
        self.not_made_cpu_s = round(self.not_made_cpu_s + cpu_s, 3)

    def take(self, facts: Mapping[str, Any], run: str, commit: str) -> None:
        """Count a run, the next one of the range, with these facts."""
        self.runs += 1
        self.cpu_s = round(self.cpu_s + facts.get(CPU_SECONDS, 0.0), 3)
        if commit not in self.commits:
            self.commits.append(commit)
        for box in BOXES:
            if facts.get(box) and getattr(self, box) is None:
                setattr(self, box, Detection(self.runs, self.cpu_s, facts[box], run))


@dataclass(frozen=True, slots=True)
class Exploration:
    """The exploration of one shipped scope."""

    states: int
    steps: int
    depth: int
    cpu_s: float
    broken: str
    """The promise; empty where every state keeps every promise."""
    commit: str
    rules_read: list[str] | None = None
    """The safety rules on which any step depended; None where that is not known."""


@dataclass(slots=True)
class CampaignRecord:
    """See the module's docstring."""

    path: Path
    searches: dict[str, dict[str, list[SeedRange]]] = field(default_factory=dict)
    explorations: dict[str, dict[str, Exploration]] = field(default_factory=dict)
    full_runs: int = 0
    """Runs of the full protocol that were made, and their processor time."""
    full_cpu_s: float = 0.0

    @classmethod
    @contextmanager
    def locked(cls, path: Path) -> Iterator[CampaignRecord]:
        """Load the record, and keep its file for this process. StoreError when another one has it."""
        lock_file, taken = path.with_name(f".{path.name}.lock"), "another campaign is going on with this record"
        with kept_for_this_process(path, lock_file, path.parent, taken):
            yield cls.load(path)

    @classmethod
    def load(cls, path: Path) -> CampaignRecord:
        """The record in a file; an empty one where there is none. StoreError when the file is damaged."""
        values = read_json(path)
        try:
            if not values:
                return cls(path)
            searches = {
                mutant: {method: [_range(each) for each in ranges] for method, ranges in methods.items()}
                for mutant, methods in values["searches"].items()
            }
            explorations = {
                mutant: {scope: Exploration(**each) for scope, each in scopes.items()}
                for mutant, scopes in values["explorations"].items()
            }
            full = values.get("full_protocol", {"runs": 0, "cpu_s": 0.0})
            return cls(path, searches, explorations, full["runs"], full["cpu_s"])
        except (AttributeError, KeyError, TypeError) as error:
            raise StoreError(f"{path}: is not the record of a campaign against mutants: {error}") from None

    def save(self) -> None:
        """Write the file, a line for each search. StoreError when that fails."""
        searches = {
            mutant: {method: [asdict(each) for each in ranges] for method, ranges in methods.items()}
            for mutant, methods in self.searches.items()
        }
        explorations = {
            mutant: {scope: asdict(each) for scope, each in scopes.items()}
            for mutant, scopes in self.explorations.items()
        }
        parts = ",\n".join(
            f'"{name}": {{\n' + ",\n".join(_lines(values)) + "\n}"
            for name, values in (("searches", searches), ("explorations", explorations))
        )
        full = json.dumps({"runs": self.full_runs, "cpu_s": self.full_cpu_s})
        put_text(self.path, f'{{\n{parts},\n"full_protocol": {full}\n}}\n', parents=True, durable=True)

    def ranges(self, mutant: str, method: Method) -> list[SeedRange]:
        """The ranges of a search that have begun, in order."""
        return self.searches.get(mutant, {}).get(method, [])

    def range_of(self, mutant: str, method: Method, wanted: int) -> SeedRange | None:
        """The range in which a search goes on, a new one if the last is complete; None when all `wanted` are."""
        ranges = self.searches.setdefault(mutant, {}).setdefault(method, [])
        if ranges and not ranges[-1].complete:
            return ranges[-1]
        if len(ranges) >= wanted:
            return None
        ranges.append(SeedRange(len(ranges)))
        return ranges[-1]

    def runs(self, mutant: str, method: Method) -> int:
        """The runs of a search so far: its evidence."""
        return sum(each.runs for each in self.ranges(mutant, method))

    def made(self, mutant: str, method: Method) -> int:
        """Those of them that were made for this search: its cost."""
        return sum(each.runs - each.not_made for each in self.ranges(mutant, method))


def _range(values: Mapping[str, Any]) -> SeedRange:
    found = {box: Detection(**values[box]) if values[box] else None for box in BOXES}
    for name in ("number", "runs", "not_made"):
        if not isinstance(values.get(name, 0), int):
            raise TypeError(f"{name}: {values[name]!r} is not a whole number")
    return SeedRange(**{**values, **found})


def _lines(values: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return [
        json.dumps(outer)
        + ": {\n"
        + ",\n".join(f"  {json.dumps(inner)}: {json.dumps(value)}" for inner, value in inners.items())
        + "}"
        for outer, inners in values.items()
    ]
