"""Suites: specs × settings × seeds, as YAML.

    seeds: 100                     # runs of each cell: first_seed, first_seed + 1 …
    first_seed: 0
    base: {time_limit: 60s}        # the lowest layer of every spec; see harness/spec.py
    specs:                         # name → layer on top of the base
      append: {}
      groups: {workload: groups}
    settings:                      # name → layer on top of each of the specs; may be left out
      min.isr 2: {settings: {min.insync.replicas: 2}}
      min.isr 1: {settings: {min.insync.replicas: 1}}

    reference: append              # all cells have the faults drawn for this one; each draws its own if left out

Every run draws its world (`vary` is true in the lowest layer), unless cells are compared: with `settings` or a
`reference` they share the defaults. `base: {vary: false}` leaves all runs at the defaults; with `base: {vary: true}`
cells that are compared draw from the same streams.

A suite can also test the checkers, and the simulation itself:

    mutants:                       # rule → layer on top of the base; the rule is switched off
      maximal_isr: {}
      generation_fences_commits: {workload: groups}
    mutant_seeds: 300              # a mutant has at most so many runs; no run is made after its first find
    repeats: 50                    # so many seeds of each spec are run once more and must end in the same digest

A *cell* is a spec with settings, named `append, min.isr 2`, or `append` where there are no settings. Every cell is run
with every seed: in the simulation, or with `environment: docker` in Docker, one run at a time on this machine. A run
is named for its cell and seed, the same whenever it is made.

The cell of a mutant is named `without RULE`, and one of its runs must be `invalid`. Its seeds are run in batches, each
twice as long as the one before, so that few runs are made after the first find; which runs are made does not depend on
the number of processes. The cell `append, repeated` has the repeats of `append`: they run in processes with another
PYTHONHASHSEED.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Any, Final

from harness.cluster.layout import cluster_layout
from harness.cluster.systems import configured
from harness.drawn_spec import with_drawn_world
from harness.environments.machines.system_capabilities import unsupported_anywhere
from harness.environments.registry import environment_named
from harness.spec import SEEDS, Spec, loads, parse
from harness.suites.reading import (
    check_distinct,
    check_nodes,
    check_places,
    check_room,
    count_of_seeds,
    is_whole,
    known,
    layered,
    mapping,
    one_of,
    plain,
    read,
)
from harness.worlds import possible_values
from harness.yaml_document import SpecError
from nemesis.ports import EnvironmentCapability
from nemesis.schedule import Schedule

SHIPPED = Path(str(files("harness"))) / "suites"
FIRST_BATCH: Final = 2
"""Seeds of a mutant in its first batch."""
_FIELDS = ("seeds", "first_seed", "base", "specs", "settings", "reference", "mutants", "mutant_seeds", "repeats")


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run to make, small enough to be sent by the thousand."""

    run: str
    cell: str
    seed: int
    repeated: bool = False
    """Whether it is the second run of this cell and seed."""
    spec: str = ""
    """Its spec as YAML, where the plan of its suite does not say it (`harness.search`)."""
    boxed: bool = False
    """Whether its rows say what each box found (`harness.suites.boxes`); of a broker known to be wrong nothing else is
    kept."""

    @property
    def result_cell(self) -> str:
        """The cell under which it is stored."""
        return repeated(self.cell) if self.repeated else self.cell


@dataclass(frozen=True, slots=True)
class Suite:
    """The plan of many runs."""

    name: str
    seeds: int
    first_seed: int
    cells: Mapping[str, Spec]
    reference: str = ""
    """The cell whose faults all cells have, so that two runs of a seed differ in their settings and in nothing else."""
    mutants: Mapping[str, Spec] = field(default_factory=dict)
    """By cell; each has one rule switched off, and is to be found invalid."""
    mutant_seeds: int = 0
    repeats: int = 0

    def runs(self) -> Iterator[PlannedRun]:
        """Every run that is made whatever the others find, seed by seed: an interrupted suite has tested every cell."""
        for seed in range(self.first_seed, self.first_seed + self.seeds):
            for cell in self.cells:
                yield PlannedRun(f"{plain(cell)}-seed{seed}", cell, seed)

    def repeated_runs(self) -> Iterator[PlannedRun]:
        """The runs that are made a second time."""
        for seed in range(self.first_seed, self.first_seed + min(self.repeats, self.seeds)):
            for cell in self.cells:
                yield PlannedRun(f"{plain(cell)}-seed{seed}-repeated", cell, seed, repeated=True)

    def mutant_runs(self, cell: str) -> Iterator[PlannedRun]:
        """The runs of one mutant, as far as none finds it."""
        for seed in range(self.first_seed, self.first_seed + self.mutant_seeds):
            yield PlannedRun(f"{plain(cell)}-seed{seed}", cell, seed)

    def every_run(self) -> Iterator[PlannedRun]:
        """Every run that can be made, in order."""
        yield from self.runs()
        for cell in self.mutants:
            yield from self.mutant_runs(cell)
        yield from self.repeated_runs()

    def next_runs(self, validities: Mapping[str, str]) -> list[PlannedRun]:
        """The runs to make next, when those that were made have come to these `validities`, by run.

        First everything that does not depend on other runs, with the first batch of each mutant; then batch by batch of
        the mutants that are not found yet; at last the repeats, since a process has one PYTHONHASHSEED. Empty when
        nothing is left.
        """
        missing = [run for run in self.runs() if run.run not in validities]
        for cell in self.mutants:
            missing += self._next_of_mutant(cell, validities)
        return missing or [run for run in self.repeated_runs() if run.run not in validities]

    def _next_of_mutant(self, cell: str, validities: Mapping[str, str]) -> list[PlannedRun]:
        runs, start, size = list(self.mutant_runs(cell)), 0, FIRST_BATCH
        while start < len(runs):
            batch = runs[start : start + size]
            missing = [run for run in batch if run.run not in validities]
            if missing:
                return missing
            if any(validities[run.run] == "invalid" for run in batch):
                return []
            start, size = start + size, 2 * size
        return []

    def spec(self, run: PlannedRun) -> Spec:
        """The spec of one run."""
        if run.spec:
            return loads(run.spec)
        cell = self.mutants.get(run.cell) or self.cells[run.cell]
        spec = with_drawn_world(replace(cell, name=plain(run.result_cell), seed=run.seed))
        return spec.with_script(self._schedule(run.seed)) if self.reference else spec

    def _schedule(self, seed: int) -> Schedule:
        reference = with_drawn_world(replace(self.cells[self.reference], seed=seed))
        random = Random(blake2b(f"{seed}/comparison".encode(), digest_size=8).digest())
        nodes = reference.broker_names, reference.controller_names
        if not self.in_docker:
            return reference.schedule(*nodes, random)
        injection_s = environment_named("docker", {}).injection_s
        return reference.schedule(*nodes, random, _unsupported(self.cells.values()), injection_s)

    @property
    def in_docker(self) -> bool:
        """Whether its runs take place in Docker: one at a time, since a machine has room for one cluster."""
        return any(spec.environment == "docker" for spec in self.cells.values())

    @property
    def runs_at_most(self) -> int:
        """The number of runs, mutants aside."""
        return len(self.cells) * (self.seeds + min(self.repeats, self.seeds))

    @property
    def worlds(self) -> dict[str, list[str]]:
        """Dimension of the world → the values that runs draw from; mutants aside."""
        possible: dict[str, list[str]] = {}
        for cell in self.cells.values():
            possible |= possible_values(cell.vary, cell.workload)
        return possible

    @property
    def systems(self) -> list[str]:
        """The systems of its runs; mutants aside."""
        return list(dict.fromkeys(spec.system for spec in self.cells.values()))

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON values, and `worlds` for those who read the results."""
        return {
            "name": self.name,
            "seeds": self.seeds,
            "first_seed": self.first_seed,
            "cells": {cell: spec.to_yaml() for cell, spec in self.cells.items()},
            "reference": self.reference,
            "mutants": {cell: spec.to_yaml() for cell, spec in self.mutants.items()},
            "mutant_seeds": self.mutant_seeds,
            "repeats": self.repeats,
            "worlds": self.worlds,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Suite:
        """The inverse of `to_json`. Raises SpecError."""
        cells, mutants = ({cell: loads(text) for cell, text in values[name].items()} for name in ("cells", "mutants"))
        return cls(
            name=values["name"],
            seeds=values["seeds"],
            first_seed=values["first_seed"],
            cells=cells,
            reference=values["reference"],
            mutants=mutants,
            mutant_seeds=values["mutant_seeds"],
            repeats=values["repeats"],
        )


def _unsupported(specs: Iterable[Spec]) -> frozenset[EnvironmentCapability]:
    """The capabilities that some of these specs cannot rely on, on machines."""
    lacks = (
        unsupported_anywhere(
            configured(spec.deployed_system, cluster_layout(spec.brokers, spec.controllers), spec.settings, ())
        )
        for spec in specs
    )
    return frozenset[EnvironmentCapability]().union(*lacks)


def repeated(cell: str) -> str:
    """The cell of the second runs of `cell`."""
    return f"{cell}, repeated"


def without(rule: str) -> str:
    """The cell of the mutant that lacks `rule`."""
    return f"without {rule}"


def load(named: str, *, seeds: int | None = None, first_seed: int | None = None) -> Suite:
    """The suite in the file `named`, or the one shipped by that name. Raises SpecError."""
    name, document = read(named, SHIPPED)
    try:
        return _suite(name, document.values, seeds, first_seed)
    except SpecError as error:
        options = {"seeds": seeds, "first_seed": first_seed}
        if any(str(error).startswith(f"{name}:") for name, value in options.items() if value is not None):
            raise
        raise SpecError(document.located(str(error))) from None


def _suite(name: str, values: object, seeds: int | None, first_seed: int | None) -> Suite:
    fields = known("a suite is a mapping with seeds, base, specs and settings", values, _FIELDS)
    compared = bool(fields.get("settings") or fields.get("reference"))
    base = {"vary": not compared, **mapping("base", fields.get("base"))}
    specs, settings = mapping("specs", fields.get("specs")), mapping("settings", fields.get("settings"))
    if not specs:
        raise SpecError("specs: there is none")
    cells: dict[str, Spec] = {}
    for spec, changes in specs.items():
        layers = {"base": base, f"specs.{spec}": mapping(f"specs.{spec}", changes)}
        for setting, further in settings.items() or (("", None),):
            where = f"settings.{setting}"
            cell = f"{spec}, {setting}" if setting else str(spec)
            cells[cell] = layered({**layers, where: mapping(where, further)} if setting else layers)
    mutants = _mutants(base, mapping("mutants", fields.get("mutants")))
    repeats = fields.get("repeats", 0)
    check_distinct("specs", [*cells, *mutants, *(repeated(cell) for cell in cells if repeats)])
    first = fields.get("first_seed", 0) if first_seed is None else first_seed
    if not is_whole(first) or not 0 <= first < SEEDS:
        raise SpecError(f"first_seed: {first!r} is not a number of at least 0 and below 2³²")
    count = count_of_seeds("seeds", fields.get("seeds", 20) if seeds is None else seeds, len(cells), least=1)
    mutant_count = count_of_seeds("mutant_seeds", fields.get("mutant_seeds", 20), len(mutants), least=1)
    for name_of_field, number in (("seeds", count), ("mutant_seeds", mutant_count if mutants else 0)):
        if first + number > SEEDS:
            raise SpecError(f"{name_of_field}: {number} seeds from {first} on exceed 2³²")
    reference = fields.get("reference") or ""
    check_places("specs", cells)
    if reference:
        check_nodes("specs", cells)
        check_room("specs", cells, one_of(cells, reference))
    if repeats or mutants:
        for cell, planned in {**cells, **mutants}.items():
            if planned.environment != "sim":
                raise SpecError(f"specs: {cell}: mutants and repeats are of the simulation, not {planned.environment}")
    return Suite(
        name=name,
        seeds=count,
        first_seed=first,
        cells=cells,
        reference=one_of(cells, reference) if reference else "",
        mutants=mutants,
        mutant_seeds=mutant_count if mutants else 0,
        repeats=count_of_seeds("repeats", repeats, len(cells), least=0),
    )


def _mutants(base: Mapping[str, Any], layers: Mapping[str, Any]) -> dict[str, Spec]:
    mutants: dict[str, Spec] = {}
    for rule, layer in layers.items():
        where = f"mutants.{rule}"
        mutants[without(rule)] = layered({"base": base, where: {**mapping(where, layer), "without": [rule]}})
    return mutants


def mutant_of(rule: str) -> Spec:
    """A run without `rule`, its world drawn."""
    return parse({"without": [rule], "vary": True})
