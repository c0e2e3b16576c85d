"""Suites: specs × settings × seeds, as YAML.

    seeds: 100                     # so many runs a cell: first_seed, first_seed + 1 …
    first_seed: 0
    base: {time_limit: 60s}        # what every spec begins with; a spec, see harness/spec.py
    specs:                         # name → what it has on top of the base
      append: {}
      groups: {workload: groups}
    settings:                      # name → what each of the specs has on top once more; may be left out
      min.isr 2: {settings: {min.insync.replicas: 2}}
      min.isr 1: {settings: {min.insync.replicas: 1}}

    reference: append              # the cell whose faults all have, word for word; each draws its own if left out

A *cell* is a spec with settings, named `append, min.isr 2`, or `append` where there are no settings. Every cell is run
with every seed, in the simulation. A run is named for its cell and seed, the same whenever it is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Any

from harness.spec import SEEDS, Spec, SpecError, loads
from harness.suites.reading import check_distinct, how_many, is_whole, known, layered, mapping, one_of, plain, read
from nemesis.schedule import Schedule

SHIPPED = Path(str(files("harness"))) / "suites"
_FIELDS = ("seeds", "first_seed", "base", "specs", "settings", "reference")


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run to make, small enough to be sent by the thousand."""

    run: str
    cell: str
    seed: int


@dataclass(frozen=True, slots=True)
class Suite:
    """What is to be run."""

    name: str
    seeds: int
    first_seed: int
    cells: Mapping[str, Spec]
    reference: str = ""
    """The cell whose faults all have, so that two runs of a seed differ in their settings and in nothing else."""

    def jobs(self) -> Iterator[PlannedRun]:
        """Every run, seed by seed, so that a suite cut short has tested every cell."""
        for seed in range(self.first_seed, self.first_seed + self.seeds):
            for cell in self.cells:
                yield PlannedRun(f"{plain(cell)}-seed{seed}", cell, seed)

    def spec(self, job: PlannedRun) -> Spec:
        """What a job is to run."""
        spec = replace(self.cells[job.cell], name=plain(job.cell), seed=job.seed)
        return replace(spec, families=(), script=self._schedule(job.seed)) if self.reference else spec

    def _schedule(self, seed: int) -> Schedule:
        drawn_for = replace(self.cells[self.reference], seed=seed)
        brokers = [f"b{number}" for number in range(1, drawn_for.brokers + 1)]
        controllers = [f"c{number}" for number in range(1, drawn_for.controllers + 1)]
        random = Random(blake2b(f"{seed}/comparison".encode(), digest_size=8).digest())
        return drawn_for.schedule(brokers, controllers, random)

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        return {
            "name": self.name,
            "seeds": self.seeds,
            "first_seed": self.first_seed,
            "cells": {cell: spec.to_yaml() for cell, spec in self.cells.items()},
            "reference": self.reference,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Suite:
        """The inverse of `to_json`. Raises SpecError."""
        cells = {cell: loads(text) for cell, text in values["cells"].items()}
        return cls(values["name"], values["seeds"], values["first_seed"], cells, values["reference"])


def load(named: str, *, seeds: int | None = None, first_seed: int | None = None) -> Suite:
    """The suite in the file `named`, or the one shipped by that name. Raises SpecError."""
    name, values = read(named, SHIPPED)
    try:
        return _suite(name, values, seeds, first_seed)
    except SpecError as error:
        raise SpecError(f"{named}: {error}") from None


def _suite(name: str, values: object, seeds: int | None, first_seed: int | None) -> Suite:
    fields = known("a suite is a mapping with seeds, base, specs and settings", values, _FIELDS)
    base = mapping("base", fields.get("base"))
    specs, settings = mapping("specs", fields.get("specs")), mapping("settings", fields.get("settings"))
    if not specs:
        raise SpecError("specs: there is none")
    cells: dict[str, Spec] = {}
    for spec, changes in specs.items():
        for setting, further in settings.items() or (("", None),):
            cell = f"{spec}, {setting}" if setting else str(spec)
            cells[cell] = layered(
                cell, base, mapping(f"specs.{spec}", changes), mapping(f"settings.{setting}", further)
            )
    check_distinct("specs", cells)
    first = fields.get("first_seed", 0) if first_seed is None else first_seed
    if not is_whole(first) or not 0 <= first < SEEDS:
        raise SpecError(f"first_seed: {first!r} is not a number of at least 0 and below 2³²")
    wanted = how_many(fields.get("seeds", 20) if seeds is None else seeds, len(cells), least=1)
    if first + wanted > SEEDS:
        raise SpecError(f"seeds: {wanted} from {first} on lead beyond 2³²")
    reference = fields.get("reference") or ""
    return Suite(name, wanted, first, cells, one_of(cells, reference) if reference else "")
