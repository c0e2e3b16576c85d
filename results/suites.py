"""The runs of a stored suite: one outcome and one set of figures per run.

A suite's runs are grouped by *cell*, the suite entry they belong to. The outcome of a run is its verdict, or `failed`
when it could not be carried out, or `not checked`. The figures are those of `results.measures` as stored in the table
`metrics` (checker `measured`); a run stored without figures counts for its outcome alone.

Suites of many nights share a series name: `nightly` for `nightly-20261121T001500`, as `faultline suite` names them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import yaml

from checkers.verdict import checker_name
from results.errors import StoreError
from results.number_format import numeral
from results.statistics import Interval, share
from results.store import tables
from results.store.schema import MEASURED, tables_path

FAILED, NOT_CHECKED = "failed", "not checked"
OUTCOMES = ("invalid", FAILED, "unknown", NOT_CHECKED, "valid")
"""The worst first."""
RESAMPLES = 1000
"""For an interval over a suite's runs, of which there may be thousands."""
_NIGHT = re.compile(r"(?P<series>.+)-\d{8}T\d{6}(-\d+)?")
_SEED = re.compile(r"(?m)^seed:.*$")
_NAME = re.compile(r"(?m)^name:.*$")


@dataclass(frozen=True, slots=True)
class SuiteRun:
    """One run of a suite."""

    run: str
    cell: str
    seed: int
    outcome: str
    causes: tuple[str, ...]
    """`checker: kind` of each thing found, without repetition; why it failed for one that did."""
    figures: Mapping[str, float]
    """Of `results.run_figures`, and `planned`: the appends that the rate asked for. Empty when nothing was measured."""
    digest: str = ""
    simulated: bool = True
    setting: str = ""
    """A digest of the spec without its seed: the same for runs that differ in nothing else."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure over many runs: all parts together over all wholes together, one of each a run."""

    name: str
    words: str
    unit: str
    """`%`, for a share, or that of the part."""
    of: Callable[[SuiteRun], tuple[float, float] | None]
    """A run's part and whole; None for a run that has none."""
    more_is_better: bool = False

    def over(self, runs: Iterable[SuiteRun]) -> Interval | None:
        """With its bootstrap interval over runs; None where no run has it."""
        found = [pair for pair in map(self.of, runs) if pair is not None]
        if not found:
            return None
        return share([part for part, _ in found], [whole for _, whole in found], resamples=RESAMPLES)

    def value(self, run: SuiteRun) -> float | None:
        """Of one run."""
        pair = self.of(run)
        return None if pair is None or not pair[1] else pair[0] / pair[1]

    def written(self, value: float) -> str:
        """`97.4 %`, `12.3 ms`."""
        return f"{self.bare(value)} {self.unit}"

    def bare(self, value: float) -> str:
        """The same without the unit."""
        return f"{100 * value:.2f}" if self.unit == "%" else numeral(float(f"{value:.3g}"))


def _share(part: str, whole: str) -> Callable[[SuiteRun], tuple[float, float] | None]:
    def of(run: SuiteRun) -> tuple[float, float] | None:
        return (run.figures[part], run.figures[whole]) if part in run.figures and whole in run.figures else None

    return of


def _mean(name: str) -> Callable[[SuiteRun], tuple[float, float] | None]:
    return lambda run: (run.figures[name], 1.0) if name in run.figures else None


def _not_valid(run: SuiteRun) -> tuple[float, float]:
    return float(run.outcome != "valid"), 1.0


FAILURES = Measure("failures", "runs not valid", "%", _not_valid)
MEASURES = (
    FAILURES,
    Measure("available", "planned writes acknowledged", "%", _share("acknowledged", "planned"), more_is_better=True),
    Measure("unavailable", "time without acknowledgements", "%", _share("unavailable_s", "main_s")),
    Measure("lost", "acknowledged records lost", "%", _share("lost", "acknowledged")),
    Measure("p50", "append latency, median", "ms", _mean("append_ms_p50")),
    Measure("p99", "append latency, 99th percentile", "ms", _mean("append_ms_p99")),
    Measure("recovery", "time to recover", "s", _mean("recovery_s")),
)


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """A suite as it lies in the store."""

    name: str
    started: str
    """ISO 8601, UTC."""
    version: str
    commit: str
    """Empty when it is not known."""
    runs: tuple[SuiteRun, ...]
    """The worst first, then by cell and seed."""
    planned: int
    """Number of planned runs; the store may have fewer."""
    coverage: tuple[tuple[str, str, int, int], ...] = ()
    """Kind, name, in how many runs, how often in all."""
    damaged: tuple[tables.DamagedFile, ...] = field(default=())
    """Files of it that had to be left out."""

    @property
    def cells(self) -> tuple[str, ...]:
        """In order."""
        return tuple(sorted({run.cell for run in self.runs}))

    def outcomes(self, cell: str | None = None) -> dict[str, int]:
        """Number of runs per outcome, worst first; of one cell, or of all."""
        found = [run.outcome for run in self.runs if cell in (None, run.cell)]
        return {name: found.count(name) for name in OUTCOMES if name in found}

    def causes(self) -> dict[str, list[SuiteRun]]:
        """Each finding with the runs that have it; causes of invalid runs first, then the most frequent."""
        found: dict[str, list[SuiteRun]] = {}
        for run in self.runs:
            for cause in run.causes if run.outcome != "valid" else ():
                found.setdefault(cause, []).append(run)

        def order(item: tuple[str, list[SuiteRun]]) -> tuple[int, int, str]:
            return OUTCOMES.index(item[1][0].outcome), -len(item[1]), item[0]

        return dict(sorted(found.items(), key=order))


def series(suite: str) -> str:
    """The name that a suite shares with those of other nights."""
    night = _NIGHT.fullmatch(suite)
    return night["series"] if night else suite


def suite_names(store: Path) -> list[str]:
    """The suites that have a file in the table `runs`, in order."""
    paths = (tables_path(store) / "runs").glob("suite=*/[!.]*.parquet")
    return sorted({path.parent.name.removeprefix("suite=") for path in paths})


def newest(store: Path, name: str) -> str:
    """The suite of this name, or the newest of those that go by it. StoreError when there is none."""
    every = suite_names(store)
    if name in every:
        return name
    nights = [suite for suite in every if series(suite) == name]
    if not nights:
        known = ", ".join(sorted({series(suite) for suite in every})) or "none"
        raise StoreError(f"{name!r}: no suite of this name is stored in {store} (there are: {known})")
    return max(nights)


def read_suite(store: Path, name: str) -> SuiteResult | None:
    """The suite; None when the tables have no run of it. StoreError for a name that can be none."""
    read = {table: tables.read(store, table, name) for table in ("runs", "metrics", "verdicts", "coverage")}
    rows = read["runs"].table.to_pylist()
    if not rows:
        return None
    figures: dict[str, dict[str, float]] = {}
    for row in read["metrics"].table.to_pylist():
        if row["checker"] == MEASURED:
            figures.setdefault(row["run"], {})[row["figure"]] = row["value"]
    causes: dict[str, list[str]] = {}
    for row in read["verdicts"].table.to_pylist():
        if row["validity"] != "valid":
            causes.setdefault(row["run"], []).extend(_kinds(row["checker"], row["findings"]))
    runs = [_run(row, causes.get(row["run"], []), figures.get(row["run"], {})) for row in rows]
    begun = _plan(store, name)
    return SuiteResult(
        name=name,
        started=str(begun.get("started") or min(row["started"] for row in rows)),
        version=str(begun.get("version") or rows[0]["version"]),
        commit=str(begun.get("commit") or ""),
        runs=tuple(sorted(runs, key=lambda run: (OUTCOMES.index(run.outcome), run.cell, run.seed, run.run))),
        planned=max(len(runs), _planned_runs(begun)),
        coverage=_coverage(read["coverage"].table.to_pylist()),
        damaged=tuple(file for stored in read.values() for file in stored.damaged),
    )


def _run(row: Mapping[str, Any], causes: list[str], figures: dict[str, float]) -> SuiteRun:
    spec = _spec_facts(_SEED.sub("", row["spec"]))
    outcome = row["validity"] if row["validity"] in OUTCOMES else NOT_CHECKED
    if row["state"] != "finished":
        message = _object(row["facts"]).get("message")
        outcome, causes = FAILED, [str(message or row["state"]), *causes]
    if figures:
        figures["planned"] = spec.rate * figures.get("main_s", 0.0) or figures.get("appends", 0.0)
    return SuiteRun(
        run=row["run"],
        cell=row["cell"],
        seed=row["seed"],
        outcome=outcome,
        causes=tuple(dict.fromkeys(causes)),
        figures=figures,
        digest=row["digest"] or "",
        simulated=spec.simulated,
        setting=spec.digest,
    )


@dataclass(frozen=True, slots=True)
class _SpecFacts:
    """The facts of a spec that a suite needs."""

    rate: float
    """Appends per second; 0 when it cannot be told."""
    simulated: bool
    digest: str


@cache
def _spec_facts(spec: str) -> _SpecFacts:
    """Of a spec without its seed, which would defeat the cache."""
    digest = blake2b(_NAME.sub("", spec).encode(errors="replace"), digest_size=8).hexdigest()
    try:
        values = yaml.safe_load(spec)
        return _SpecFacts(float(values["rate"]), values.get("environment", "sim") == "sim", digest)
    except (AttributeError, yaml.YAMLError, KeyError, TypeError, ValueError):
        return _SpecFacts(0.0, True, digest)


def _kinds(checker: str, findings: str) -> list[str]:
    try:
        kinds = [str(finding["kind"]) for finding in json.loads(findings)]
    except (KeyError, TypeError, ValueError):
        kinds = []
    name = checker_name(checker)
    return [f"{name}: {kind}" for kind in kinds] or [name]


def _coverage(rows: Iterable[Mapping[str, Any]]) -> tuple[tuple[str, str, int, int], ...]:
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for row in rows:
        runs, times = found.get((row["kind"], row["name"]), (0, 0))
        found[row["kind"], row["name"]] = (runs + 1, times + row["count"])
    return tuple((kind, name, *counts) for (kind, name), counts in sorted(found.items()))


def _plan(store: Path, suite: str) -> dict[str, Any]:
    """The plan of the suite, if `faultline suite` made it."""
    path = store / "suites" / suite / "suite.json"
    try:
        return _object(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, UnicodeDecodeError):
        return {}


def _planned_runs(begun: Mapping[str, Any]) -> int:
    cells, seeds = begun.get("cells"), begun.get("seeds")
    return len(cells) * seeds if isinstance(cells, dict | list) and isinstance(seeds, int) else 0


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
