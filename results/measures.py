"""The table of measures: the only place where a figure over many runs is declared.

An entry of MEASURES has a name, words, a unit, a direction, the run figures it is computed from (`results.run_figures`)
and the columns that show it in summaries. Run figures are stored under the checker name `measured`. The comparison of
settings, the trend, the suite report, the tables on the terminal and the Spark SQL summary all iterate over MEASURES,
so a new measure is one entry here.

A measure over many runs is the sum of the parts over the sum of the wholes, or the mean of the part without a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from checkers.deletions import deletable_below
from checkers.evidence import RunEvidence
from checkers.tables import of_partition
from results import run_figures as figures
from results.number_format import numeral, signed
from results.run_figures import PartitionRecords, RunFigure
from results.statistics import Interval, difference, share
from workloads.columns import partitions

Aggregate = Literal["share", "mean", "max", "sum"]


class MeasuredRun(Protocol):
    """A run with its outcome and its figures by name."""

    @property
    def outcome(self) -> str: ...

    @property
    def figures(self) -> Mapping[str, float]: ...


@dataclass(frozen=True, slots=True)
class SummaryColumn:
    """A column of summaries by cell: one aggregate of a run figure over the runs of a cell."""

    name: str
    aggregate: Aggregate
    heading: str = ""
    """The heading on the terminal; empty for a column of summary.json alone."""
    unit: str = ""
    figure: RunFigure | None = None
    """The part of the measure unless given."""

    def written(self, value: float | None) -> str:
        """The value with its unit; a dash for none."""
        if value is None:
            return "–"
        if self.aggregate == "sum":
            return f"{value:,.0f}"
        return f"{100 * value if self.unit == '%' else value:.1f} {self.unit}".rstrip()


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure over many runs."""

    name: str
    words: str
    unit: str
    """`%` for a share, or the unit of the part."""
    part: RunFigure
    whole: RunFigure | None = None
    """None for a mean over runs."""
    more_is_better: bool = False
    counts_records: bool = False
    """True when the difference between two settings is given in records per run, not in points of the share."""
    columns: tuple[SummaryColumn, ...] = ()

    @property
    def summary_columns(self) -> tuple[SummaryColumn, ...]:
        """The columns of summaries; without a declaration one column with the measure itself."""
        return self.columns or (SummaryColumn(self.name, "share" if self.whole else "mean", self.name, self.unit),)

    @property
    def heading(self) -> str:
        """A few words for a column on the terminal: a share of writes and one of time are no complements."""
        return self.summary_columns[0].heading or self.name

    @property
    def worst(self) -> Literal["low", "high"]:
        """The end of the scale with the worst runs."""
        return "low" if self.more_is_better else "high"

    @property
    def scale(self) -> int:
        """The factor from a value to the number shown in `unit`."""
        return 100 if self.unit == "%" else 1

    # ---- values ---------------------------------------------------------------------------------------------------

    def pair(self, run: MeasuredRun) -> tuple[float, float] | None:
        """A run's part and whole; None for a run without them."""
        part = _figure(run, self.part)
        whole = 1.0 if self.whole is None else _figure(run, self.whole)
        return None if part is None or whole is None else (part, whole)

    def value(self, run: MeasuredRun) -> float | None:
        """The value of one run."""
        pair = self.pair(run)
        return None if pair is None or not pair[1] else pair[0] / pair[1]

    def over(self, runs: Iterable[MeasuredRun], *, resamples: int) -> Interval | None:
        """The value over many runs with its bootstrap interval; None where no run has a value."""
        pairs = [pair for pair in map(self.pair, runs) if pair is not None]
        if not pairs:
            return None
        return share([part for part, _ in pairs], [whole for _, whole in pairs], resamples=resamples)

    def difference(self, ours: Sequence[MeasuredRun], theirs: Sequence[MeasuredRun]) -> Interval | None:
        """The mean difference, run by run, of the runs with a value on both sides; None without such runs."""
        pairs = [
            (a, b)
            for a, b in zip(map(self._compared, ours), map(self._compared, theirs), strict=True)
            if a is not None and b is not None
        ]
        return difference([a for a, _ in pairs], [b for _, b in pairs]) if pairs else None

    def _compared(self, run: MeasuredRun) -> float | None:
        pair = self.pair(run)
        return pair[0] if pair is not None and self.counts_records else self.value(run)

    # ---- text -----------------------------------------------------------------------------------------------------

    def bare(self, value: float) -> str:
        """The value in `unit`, without the unit."""
        return f"{100 * value:.2f}" if self.unit == "%" else numeral(float(f"{value:.3g}"))

    def written(self, value: float) -> str:
        """`97.4 %`, `12.3 ms`."""
        return f"{self.bare(value)} {self.unit}".rstrip()

    def written_difference(self, interval: Interval) -> tuple[str, str]:
        """`+4.2 points` and `+3.9 to +4.4`: a difference between settings and its interval."""
        scale = 1 if self.counts_records else self.scale
        unit = "a run" if self.counts_records else "points" if self.unit == "%" else self.unit
        value, low, high = (signed(scale * number) for number in (interval.value, interval.low, interval.high))
        return f"{value} {unit}".rstrip(), f"{low} to {high}"


def _figure(run: MeasuredRun, figure: RunFigure) -> float | None:
    if figure.of_outcome is not None:
        return figure.of_outcome(run.outcome)
    if not run.figures or (figure.may_be_absent and figure.name not in run.figures):
        return None
    return run.figures.get(figure.name, 0.0)


FAILURES: Final = Measure("failures", "runs not valid", "%", figures.NOT_VALID)
"""Summaries count runs by outcome instead, so it has no place in SQL."""
MEASURES: tuple[Measure, ...] = (
    FAILURES,
    Measure(
        *("available", "planned writes acknowledged", "%", figures.ACKNOWLEDGED, figures.PLANNED),
        more_is_better=True,
        columns=(SummaryColumn("available", "share", "acknowledged", "%"),),
    ),
    Measure(
        *("unavailable", "time without acknowledgements, up to the time limit", "%"),
        *(figures.UNAVAILABLE_S, figures.MAIN_S),
        columns=(
            SummaryColumn("unavailable", "share", "unavailable", "%"),
            SummaryColumn("windows", "mean", figure=figures.UNAVAILABLE_WINDOWS),
            SummaryColumn("longest_s", "max", "longest up to the limit", "s", figures.UNAVAILABLE_LONGEST_S),
        ),
    ),
    Measure(
        *("lost", "acknowledged records lost", "%", figures.LOST, figures.ACKNOWLEDGED),
        counts_records=True,
        columns=(SummaryColumn("lost", "sum", "lost"),),
    ),
    Measure(
        *("duplicated", "records duplicated", "%", figures.DUPLICATED, figures.ACKNOWLEDGED),
        counts_records=True,
        columns=(
            SummaryColumn("duplicated", "sum"),
            SummaryColumn("reordered", "sum", figure=figures.REORDERED),
        ),
    ),
    Measure(
        *("p50", "append latency, median", "ms", figures.APPEND_MS_P50),
        columns=(SummaryColumn("append_ms_p50", "mean", "append p50", "ms"),),
    ),
    Measure(
        *("p99", "append latency, 99th percentile", "ms", figures.APPEND_MS_P99),
        columns=(SummaryColumn("append_ms_p99", "mean", "append p99", "ms"),),
    ),
    Measure(
        *("recovery", "time to recover", "s", figures.RECOVERY_S),
        columns=(
            SummaryColumn("recovery_s", "mean", "recovery", "s"),
            SummaryColumn("recovery_s_max", "max"),
        ),
    ),
)


def per_run() -> tuple[Measure, ...]:
    """The measures other than FAILURES: those with a number for each run."""
    return tuple(measure for measure in MEASURES if measure is not FAILURES)


def stored_figures() -> tuple[RunFigure, ...]:
    """The run figures that are computed from evidence and stored, each once."""
    needed = [figures.APPENDS]
    for measure in MEASURES:
        columns = [column.figure for column in measure.summary_columns if column.figure]
        needed += [measure.part, *([measure.whole] if measure.whole else []), *columns]
    return tuple(dict.fromkeys(figure for figure in needed if figure.of_partition or figure.of_run))


def measure(evidence: RunEvidence) -> dict[str, float]:
    """The figures of one run."""
    deleted = deletable_below(evidence)
    parts = [
        measure_partition(
            PartitionRecords(
                history,
                of_partition(evidence.replicas, topic, number),
                of_partition(evidence.replica_ends, topic, number),
                evidence.recovery,
                deleted.get((topic, number), 0),
                evidence.settings.time_limit_ns,
            )
        )
        for topic, number, history in partitions(evidence.history)
    ]
    return merge_partitions(parts) | measure_whole(evidence)


def measure_partition(records: PartitionRecords) -> dict[str, float]:
    """The figures of one partition."""
    return {figure.name: figure.of_partition(records) for figure in stored_figures() if figure.of_partition}


def merge_partitions(parts: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The figures of a run from those of its partitions."""
    return {
        figure.name: float(figure.merge([part[figure.name] for part in parts] or [0.0]))
        for figure in stored_figures()
        if figure.of_partition
    }


def measure_whole(evidence: RunEvidence) -> dict[str, float]:
    """The figures of one run that belong to no partition."""
    values = {figure.name: figure.of_run(evidence) for figure in stored_figures() if figure.of_run}
    return {name: value for name, value in values.items() if value is not None}
