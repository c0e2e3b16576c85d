"""The runs of a night that have come into the tables of the store: how a search reads the results of its rounds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.compute as pc

from results.coverage import RULE_READ, SITUATION, TRANSITION
from results.errors import StoreError
from results.store import tables


class EndedRun(NamedTuple):
    """The verdict and the facts of one run, its situations and transitions, and the rules that it read."""

    validity: str | None
    """None where it could not be carried out."""
    facts: Mapping[str, Any]
    marks: Sequence[tuple[str, str]]
    """Kind and name of each (`results.coverage`)."""


class EndedRuns:
    """Reads every batch of a suite once."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._read: set[Path] = set()

    def new(self, suite: str) -> dict[str, EndedRun]:
        """The runs of `suite` that have come into the tables since the last call. StoreError if a file is damaged."""
        runs: dict[str, EndedRun] = {}
        for path in tables.files(self._store, "runs", suite):
            if path in self._read:
                continue
            self._read.add(path)
            marks: dict[str, list[tuple[str, str]]] = {}
            coverage = path.parents[2] / "coverage" / path.parent.name / path.name
            for row in _rows(coverage, "coverage", ("run", "kind", "name"), (RULE_READ, SITUATION, TRANSITION)):
                marks.setdefault(row["run"], []).append((row["kind"], row["name"]))
            for row in _rows(path, "runs", ("run", "validity", "facts")):
                runs[row["run"]] = EndedRun(row["validity"], json.loads(row["facts"]), marks.get(row["run"], []))
        return runs


def _rows(path: Path, table: str, columns: Sequence[str], kinds: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The rows of one file of the store; of some kinds of marks only, if they are given. StoreError if damaged."""
    rows = tables.load(path, table)
    if isinstance(rows, tables.DamagedFile):
        raise StoreError(f"{rows.path}: {rows.reason}")
    if kinds:
        rows = rows.filter(pc.field("kind").isin(list(kinds)))
    selected: list[dict[str, Any]] = rows.select(list(columns)).to_pylist()
    return selected
