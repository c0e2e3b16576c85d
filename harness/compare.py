"""`faultline compare`: a matrix of settings under paired schedules, in the simulation.

    reference: acks=all, min.isr 2      # the cell whose settings the faults are drawn for
    seeds: 40                           # 0, 1, 2 … so many runs a cell
    base: {rate: 30, faults: [kill]}    # a spec; see harness/spec.py
    cells:                              # name → what it has on top of the base
      acks=all, min.isr 2: {settings: {min.insync.replicas: 2}}
      acks=1: {acks: '1'}

For each seed the schedule of faults is drawn once, from the reference's spec, and told to every cell word for word, so
that two cells differ in their settings and in nothing else: what comes of it is compared run by run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from harness.spec import Spec, SpecError, parse
from results.comparison import Comparison, Run, compare, render

SHIPPED = Path(str(files("harness"))) / "comparisons"
_FIELDS = ("reference", "seeds", "base", "cells")


@dataclass(frozen=True, slots=True)
class Matrix:
    """What is compared."""

    name: str
    reference: str
    seeds: int
    cells: Mapping[str, Spec]

    def paired(self, seed: int) -> dict[str, Spec]:
        """One run for each cell, all with the same seed and the same faults."""
        drawn_for = replace(self.cells[self.reference], seed=seed)
        brokers = [f"b{number}" for number in range(1, drawn_for.brokers + 1)]
        controllers = [f"c{number}" for number in range(1, drawn_for.controllers + 1)]
        random = Random(blake2b(f"{seed}/comparison".encode(), digest_size=8).digest())
        schedule = drawn_for.schedule(brokers, controllers, random)
        return {name: replace(spec, seed=seed, families=(), script=schedule) for name, spec in self.cells.items()}


def load(named: str, seeds: int | None = None) -> Matrix:
    """The comparison in the file `named`, or the one shipped by that name. Raises SpecError."""
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
        return _matrix(path.stem, values, seeds)
    except ValueError as error:
        raise SpecError(f"{named}: {error}") from None


def _matrix(name: str, values: object, seeds: int | None) -> Matrix:
    if not isinstance(values, Mapping):
        raise SpecError("a comparison is a mapping with reference, seeds, base and cells")
    for field in values:
        if field not in _FIELDS:
            raise SpecError(f"{field}: unknown field; one of: {', '.join(_FIELDS)}")
    base, cells = values.get("base") or {}, values.get("cells")
    if not isinstance(base, Mapping) or not isinstance(cells, Mapping) or not cells:
        raise SpecError("base and cells are mappings, and there is at least one cell")
    specs = {}
    for cell, changes in cells.items():
        changes = changes or {}
        if not isinstance(changes, Mapping):
            raise SpecError(f"cells.{cell}: {changes!r} is not a mapping")
        settings = {**(base.get("settings") or {}), **(changes.get("settings") or {})}
        try:
            specs[str(cell)] = parse({**base, **changes, "settings": {k: str(v) for k, v in settings.items()}})
        except SpecError as error:
            raise SpecError(f"cells.{cell}: {error}") from None
        if specs[str(cell)].environment != "sim":
            raise SpecError(f"cells.{cell}: comparisons run in the simulation")
    reference = values.get("reference", next(iter(specs)))
    if reference not in specs:
        raise SpecError(f"reference: {reference!r} is not one of the cells: {', '.join(specs)}")
    wanted = values.get("seeds", 20) if seeds is None else seeds
    if not isinstance(wanted, int) or wanted < 2:
        raise SpecError(f"seeds: {wanted!r} is not a number of at least 2")
    return Matrix(name, reference, wanted, specs)


def carry_out(matrix: Matrix, jobs: int, tell: Callable[[Run], None] = lambda run: None) -> Comparison:
    """Make every run, on so many processes. Raises RuntimeError when one could not be carried out."""
    todo = [(name, spec) for seed in range(matrix.seeds) for name, spec in matrix.paired(seed).items()]
    runs = []
    with ProcessPoolExecutor(jobs) as pool:
        for run in pool.map(_make, todo, chunksize=1):
            runs.append(run)
            tell(run)
    return compare(matrix.name, matrix.reference, runs)


def _make(job: tuple[str, Spec]) -> Run:
    from harness.run import run
    from results.metrics import measure
    from results.rundir import RunDirectory

    name, spec = job
    with TemporaryDirectory(prefix="faultline-") as store:
        directory = RunDirectory.create(Path(store), "compared", spec.seed)
        outcome = run(spec, directory, report=False)
        if outcome.failure:
            raise RuntimeError(f"{name}, seed {spec.seed}: {outcome.failure}")
        figures = {**measure(directory.load()), "planned": spec.rate * spec.time_limit_s}
        return Run(name, spec.seed, str(outcome.validity), figures)


def save(comparison: Comparison, directory: Path) -> Iterator[Path]:
    """Write comparison.json and comparison.html; tells where. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in (
        (f"{comparison.name}.json", json.dumps(comparison.to_json(), indent=2) + "\n"),
        (f"{comparison.name}.html", render(comparison)),
    ):
        path = directory / name
        path.write_text(text, encoding="utf-8")
        yield path


def shown(comparison: Comparison) -> Any:
    """The table for the terminal."""
    from rich.table import Table

    from results.comparison import number, percent

    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("setting", "available", "unavailable", "acknowledged", "lost", "median ms"):
        table.add_column(heading)
    for cell in comparison.cells:
        table.add_row(
            cell.name,
            percent(cell.available),
            percent(cell.unavailable),
            f"{cell.acknowledged:,}",
            f"{cell.lost:,}: {percent(cell.loss, digits=2)}",
            number(cell.latency_ms),
        )
    return table
