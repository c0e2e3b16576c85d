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

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Any

from harness.spec import SEEDS, Spec, SpecError, loads, parse
from nemesis.schedule import Schedule

SHIPPED = Path(str(files("harness"))) / "suites"
_FIELDS = ("seeds", "first_seed", "base", "specs", "settings", "reference")


@dataclass(frozen=True, slots=True)
class Job:
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

    def jobs(self) -> Iterator[Job]:
        """Every run, seed by seed, so that a suite cut short has tested every cell."""
        for seed in range(self.first_seed, self.first_seed + self.seeds):
            for cell in self.cells:
                yield Job(f"{plain(cell)}-seed{seed}", cell, seed)

    def spec(self, job: Job) -> Spec:
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
    import yaml

    path = Path(named)
    if not path.exists() and (SHIPPED / f"{named}.yaml").exists():
        path = SHIPPED / f"{named}.yaml"
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        shipped = ", ".join(sorted(item.stem for item in SHIPPED.glob("*.yaml")))
        why = getattr(error, "strerror", None) or error
        raise SpecError(f"{named}: cannot be read: {why} (shipped: {shipped})") from None
    except yaml.YAMLError as error:
        raise SpecError(f"{named}: {' '.join(str(error).split())}") from None
    try:
        return _suite(plain(path.stem), values, seeds, first_seed)
    except SpecError as error:
        raise SpecError(f"{named}: {error}") from None


def _suite(name: str, values: object, seeds: int | None, first_seed: int | None) -> Suite:
    if not isinstance(values, Mapping):
        raise SpecError("a suite is a mapping with seeds, base, specs and settings")
    for field in values:
        if field not in _FIELDS:
            raise SpecError(f"{field}: unknown field; one of: {', '.join(_FIELDS)}")
    base = _mapping("base", values.get("base"))
    specs, settings = _mapping("specs", values.get("specs")), _mapping("settings", values.get("settings"))
    if not specs:
        raise SpecError("specs: there is none")
    cells: dict[str, Spec] = {}
    for spec, changes in specs.items():
        for setting, further in settings.items() or (("", None),):
            cell = f"{spec}, {setting}" if setting else str(spec)
            cells[cell] = _cell(
                cell, base, _mapping(f"specs.{spec}", changes), _mapping(f"settings.{setting}", further)
            )
    if len({plain(cell) for cell in cells}) < len(cells):
        raise SpecError(f"specs: two of {', '.join(cells)} differ in signs only that a file's name cannot have")
    wanted = values.get("seeds", 20) if seeds is None else seeds
    first = values.get("first_seed", 0) if first_seed is None else first_seed
    if not isinstance(wanted, int) or wanted < 1:
        raise SpecError(f"seeds: {wanted!r} is not a number of at least 1")
    if not isinstance(first, int) or not 0 <= first < SEEDS:
        raise SpecError(f"first_seed: {first!r} is not a number of at least 0 and below 2³²")
    reference = values.get("reference") or ""
    if reference and reference not in cells:
        raise SpecError(f"reference: {reference!r} is not one of the cells: {', '.join(cells)}")
    return Suite(name, wanted, first, cells, reference)


def _cell(name: str, *layers: Mapping[str, Any]) -> Spec:
    """One spec of several, each on top of those before; their settings are merged."""
    merged: dict[str, Any] = {}
    settings: dict[str, str] = {}
    for layer in layers:
        merged |= layer
        settings |= {key: str(value) for key, value in _mapping(f"{name}.settings", layer.get("settings")).items()}
    try:
        spec = parse({**merged, "settings": settings})
    except SpecError as error:
        raise SpecError(f"{name}: {error}") from None
    if spec.environment != "sim":
        raise SpecError(f"{name}: environment: suites run in the simulation; add other runs with `faultline store add`")
    return spec


def _mapping(field: str, value: object) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise SpecError(f"{field}: {value!r} is not a mapping")
    return value


def plain(name: str) -> str:
    """`name` with only what a file's name can have."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.") or "suite"
