"""The runs of a stored suite: one outcome and one set of figures per run.

A suite's runs are grouped by *cell*, the suite entry they belong to. The outcome of a run is its verdict, or `failed`
when it could not be carried out, or `not checked`. A mutant is a cell with a rule switched off, and is to be found: its
invalid runs are `mutant found`, its others `mutant missed`, and neither is a failure. The figures are those of
`results.measures` as stored in the table `metrics` (checker `measured`); a run stored without figures counts for its
outcome alone.

Suites of many nights share a series name: `nightly` for `nightly-20261121T001500`, as `faultline suite` names them.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from checkers.verdict import checker_name
from results.atomic_files import json_object
from results.coverage import SITUATION, TRANSITION, drawn_worlds, without_situations
from results.errors import StoreError
from results.number_format import numeral
from results.store import tables
from results.store.schema import MEASURED, MESSAGE, SIGNATURES, tables_path
from results.store.spec_facts import spec_facts
from results.thoroughness import MadeRun, ReachedSituations, Thoroughness, reached, thoroughness

FAILED, NOT_CHECKED = "failed", "not checked"
MUTANT_FOUND, MUTANT_MISSED = "mutant found", "mutant missed"
OUTCOMES = ("invalid", FAILED, "unknown", NOT_CHECKED, MUTANT_FOUND, MUTANT_MISSED, "valid")
"""The worst first."""
FAILURE_OUTCOMES = OUTCOMES[: OUTCOMES.index(MUTANT_FOUND)]
RESAMPLES = 1000
"""For an interval over the runs of a suite, which may have thousands."""
_NUMBER = re.compile(r"\d{1,18}(?=\D*$)")
_NIGHT = re.compile(r"(?P<series>.+)-\d{8}T\d{6}(-\d+)?")


@dataclass(frozen=True, slots=True)
class SuiteRun:
    """One run of a suite."""

    run: str
    cell: str
    seed: int
    outcome: str
    causes: tuple[str, ...]
    """`checker: kind` of each thing found, without repetition; why it failed for one that did."""
    signatures: tuple[str, ...]
    """`check/finding/cause` of each story of what was violated."""
    figures: Mapping[str, float]
    """Of `results.run_figures`, and `planned`: the appends that the rate plans, if there are producers. Empty for a run
    without figures."""
    digest: str = ""
    simulated: bool = True
    setting: str = ""
    """A digest of the spec without its seed: the same for runs that differ in nothing else."""

    @property
    def good(self) -> bool:
        """Whether it is no failure."""
        return self.outcome not in FAILURE_OUTCOMES


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
    worlds: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Dimension of the world → the values that its runs were to draw from; empty where none was drawn."""
    damaged: tuple[tables.DamagedFile, ...] = field(default=())
    """Files of it that had to be left out."""
    thoroughness: Thoroughness | None = None
    """Of its runs without those of mutants and repeats; None when they have no situation."""
    mutants: tuple[str, ...] = ()
    """The cells with a rule switched off, in order; also those without a run."""

    @property
    def cells(self) -> tuple[str, ...]:
        """In order."""
        return tuple(sorted({run.cell for run in self.runs}))

    @property
    def drawn_worlds(self) -> str:
        """How many values of the worlds were drawn, and which never; empty where none was to be drawn."""
        marked = {name for kind, name, _, _ in self.coverage if kind == "world"}
        return drawn_worlds(self.worlds, marked) if self.worlds else ""

    @property
    def missed_mutants(self) -> tuple[str, ...]:
        """The mutants that no run finds."""
        found = {run.cell for run in self.runs if run.outcome == MUTANT_FOUND}
        return tuple(cell for cell in self.mutants if cell not in found)

    def outcomes(self, cell: str | None = None) -> dict[str, int]:
        """Number of runs per outcome, worst first; of one cell, or of all."""
        outcomes = [run.outcome for run in self.runs if cell in (None, run.cell)]
        return {name: outcomes.count(name) for name in OUTCOMES if name in outcomes}

    def causes(self) -> dict[str, list[SuiteRun]]:
        """Each finding of a failure with the runs that have it; those of invalid runs first, then the most frequent."""
        return self._grouped(lambda run: run.causes)

    def signatures(self) -> dict[str, list[SuiteRun]]:
        """Each signature of a failure with the runs that have it, in the same order."""
        return self._grouped(lambda run: run.signatures)

    def _grouped(self, names: Callable[[SuiteRun], tuple[str, ...]]) -> dict[str, list[SuiteRun]]:
        groups: dict[str, list[SuiteRun]] = {}
        for run in self.runs:
            for name in names(run) if not run.good else ():
                groups.setdefault(name, []).append(run)

        def order(item: tuple[str, list[SuiteRun]]) -> tuple[int, int, str]:
            return OUTCOMES.index(item[1][0].outcome), -len(item[1]), item[0]

        return dict(sorted(groups.items(), key=order))


@dataclass(frozen=True, slots=True)
class SuiteSituations:
    """The situations of the protocol that a suite visited, mutants and repeats aside."""

    thoroughness: Thoroughness | None
    """None when no run has a situation."""
    reached: ReachedSituations
    worlds: Mapping[str, tuple[str, ...]]
    """As of a suite."""
    damaged: tuple[tables.DamagedFile, ...]
    """Files of it that had to be left out."""

    @property
    def codes(self) -> Set[str]:
        """The codes of the situations."""
        return self.reached.visits.keys()


def series(suite: str) -> str:
    """The name that a suite shares with those of other nights."""
    night = _NIGHT.fullmatch(suite)
    return night["series"] if night else suite


def suite_names(store: Path) -> list[str]:
    """The suites that have a file in the table `runs`, in order."""
    paths = (tables_path(store) / "runs").glob("suite=*/[!.]*.parquet")
    return sorted({path.parent.name.removeprefix("suite=") for path in paths})


def mutant_cells(store: Path, suite: str) -> set[str]:
    """The cells of a suite with a rule switched off, which are to be found; also those without a run."""
    return _names(_plan(store, suite).get("mutants"))


def outcome_of(row: Mapping[str, Any], mutants: Set[str]) -> str:
    """The outcome of a run, of OUTCOMES, by its row in the table `runs`; `mutants` are cells of its suite."""
    if row["state"] != "finished":
        return "invalid" if row["validity"] == "invalid" and row["cell"] not in mutants else FAILED
    if row["cell"] in mutants:
        return MUTANT_FOUND if row["validity"] == "invalid" else MUTANT_MISSED
    return outcome_alone(row["state"], row["validity"])


def outcome_alone(state: str, validity: str | None) -> str:
    """The outcome of a run whatever its suite makes of it, by its state and its verdict: FAILED for one that was not
    carried out, unless what it has was found to be invalid."""
    if state in ("failed", "interrupted") and validity != "invalid":
        return FAILED
    return validity if validity in OUTCOMES else NOT_CHECKED


def tally(outcomes: Iterable[str]) -> str:
    """`2 invalid, 1 mutant found, 40 valid`: worst first."""
    counts = Counter(outcomes)
    return ", ".join(f"{numeral(counts[name])} {name}" for name in OUTCOMES if counts[name])


def newest(store: Path, name: str) -> str:
    """The suite of this name, or the newest of those that go by it: `nightly`, or `nightly-202611` for a month's.
    BadName when there is none."""
    every = suite_names(store)
    if name in every:
        return name
    nights = [suite for suite in every if name.startswith(series(suite)) and suite.startswith(name)]
    if not nights:
        raise no_such_suite(store, name, every)
    return max(nights)


def no_such_suite(store: Path, name: str, every: Iterable[str]) -> StoreError:
    """The error for a name that none of the stored suites goes by."""
    known = ", ".join(sorted({series(suite) for suite in every})) or "none"
    return tables.no_such(store, f"{name!r}: no suite of this name is stored in {store} (there are: {known})")


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
    plan = _plan(store, name)
    mutants = _names(plan.get("mutants"))
    runs = [_run(row, causes.get(row["run"], []), figures.get(row["run"], {}), mutants) for row in rows]
    return SuiteResult(
        name=name,
        started=str(plan.get("started") or min(row["started"] for row in rows)),
        version=str(plan.get("version") or rows[0]["version"]),
        commit=str(plan.get("commit") or ""),
        runs=tuple(sorted(runs, key=lambda run: (OUTCOMES.index(run.outcome), run.cell, run.seed, run.run))),
        planned=len(runs) + _missing_runs(plan, runs),
        coverage=_coverage(without_situations(read["coverage"].table).to_pylist()),
        damaged=tables.damaged_in(read.values()),
        mutants=tuple(sorted(mutants)),
        worlds=_worlds(plan.get("worlds")),
        thoroughness=thoroughness(read["coverage"].table, _planned_runs(plan, ((run.run, run.cell) for run in runs))),
    )


def situations_of_suite(store: Path, name: str) -> SuiteSituations:
    """The situations of a suite. StoreError for a name that can be none."""
    runs = tables.read(store, "runs", name)
    marks = tables.read(store, "coverage", name, pc.field("kind").isin([SITUATION, TRANSITION]))
    plan, rows = _plan(store, name), runs.table.select(["run", "cell", "started", "facts"]).to_pylist()
    names = _planned_runs(plan, ((row["run"], row["cell"]) for row in rows))
    counted = set(names)
    made = sorted((row for row in rows if row["run"] in counted), key=_place)
    return SuiteSituations(
        thoroughness(marks.table, names),
        reached(marks.table, [MadeRun(row["run"], _cpu_s(row["facts"])) for row in made]),
        _worlds(plan.get("worlds")),
        tables.damaged_in((runs, marks)),
    )


def _place(row: Mapping[str, Any]) -> tuple[str, int, str]:
    """The place of a run among those of its suite: when it began, and of runs of one second the number in its name."""
    number = _NUMBER.search(row["run"])
    return row["started"], int(number[0]) if number else 0, row["run"]


def _cpu_s(facts: str) -> float:
    """The processor time of a run that says it."""
    value = json_object(facts).get("cpu_seconds")
    return float(value) if isinstance(value, int | float) and 0 <= value < float("inf") else 0.0


def _run(row: Mapping[str, Any], causes: list[str], figures: dict[str, float], mutants: Set[str]) -> SuiteRun:
    spec = spec_facts(row["spec"])
    outcome = outcome_of(row, mutants)
    if outcome == FAILED:
        message = json_object(row["facts"]).get(MESSAGE)
        causes = [str(message or row["state"]), *causes]
    if figures:
        figures |= spec.planned(figures)
    return SuiteRun(
        run=row["run"],
        cell=row["cell"],
        seed=row["seed"],
        outcome=outcome,
        causes=tuple(dict.fromkeys(causes)),
        signatures=tuple(str(signature) for signature in json_object(row["facts"]).get(SIGNATURES, ())),
        figures=figures,
        digest=row["digest"] or "",
        simulated=spec.simulated,
        setting=spec.digest,
    )


def _kinds(checker: str, findings: str) -> list[str]:
    try:
        kinds = [str(finding["kind"]) for finding in json.loads(findings)]
    except (KeyError, TypeError, ValueError):
        kinds = []
    name = checker_name(checker)
    return [f"{name}: {kind}" for kind in kinds] or [name]


def _coverage(rows: Iterable[Mapping[str, Any]]) -> tuple[tuple[str, str, int, int], ...]:
    counts_by_name: dict[tuple[str, str], tuple[int, int]] = {}
    for row in rows:
        runs, times = counts_by_name.get((row["kind"], row["name"]), (0, 0))
        counts_by_name[row["kind"], row["name"]] = (runs + 1, times + row["count"])
    return tuple((kind, name, *counts) for (kind, name), counts in sorted(counts_by_name.items()))


def _plan(store: Path, suite: str) -> dict[str, Any]:
    """The plan of the suite, if `faultline suite` made it."""
    path = store / "suites" / suite / "suite.json"
    try:
        return json_object(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, UnicodeDecodeError):
        return {}


def _missing_runs(plan: Mapping[str, Any], runs: Iterable[SuiteRun]) -> int:
    """Planned runs that the store does not have, mutants and repeats aside."""
    cells, seeds = _names(plan.get("cells")), plan.get("seeds")
    planned = len(cells) * seeds if isinstance(seeds, int) else 0
    return max(0, planned - sum(run.cell in cells for run in runs))


def _planned_runs(plan: Mapping[str, Any], cell_of_run: Iterable[tuple[str, str]]) -> list[str]:
    """The names of the runs, mutants and repeats aside; of a suite without a plan all of them."""
    cells = _names(plan.get("cells"))
    return [run for run, cell in cell_of_run if cell in cells or not cells]


def _worlds(value: object) -> dict[str, tuple[str, ...]]:
    worlds = value if isinstance(value, dict) else {}
    return {str(name): tuple(map(str, values)) for name, values in worlds.items() if isinstance(values, list)}


def _names(value: object) -> set[str]:
    return {str(name) for name in value} if isinstance(value, dict | list) else set()
