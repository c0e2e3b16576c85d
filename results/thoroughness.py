"""How thorough many runs were: the protocol situations that they saw, and those that further runs would show.

Incidence data: a run is a sample, and has a situation or not, however often (Chao and Colwell 2017). With `runs` runs,
`seen` situations in any of them, Q1 in one run only and Q2 in two:

chance of new    the share of runs that have a situation of their own. By the leave-one-out argument of Good and Turing
                 that is how probable it is that the last of these runs, made after the others, shows a new situation
new expected     Q1 / runs: by the same argument, how many new ones it shows
richness         Chao2, how many situations such runs can show at all: seen + (1 - 1/runs) Q1² / 2 Q2, with its
                 log-normal interval (Chao 1987). A lower bound: what is too rare to be seen at all leaves no mark

All of it assumes that the next run is made as these were: the same specs in the same proportions, with another seed. It
says nothing of other specs, and nothing of what the situations leave out.

`reached` says when each situation was reached first, of runs in the order in which they were made: how fast a search
came to them, and what one suite reached and another did not.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from results.coverage import SITUATION, TRANSITION
from results.number_format import counted, numeral
from results.statistics import CONFIDENCE, Interval, none_in

CURVE_POINTS: Final = 200


@dataclass(frozen=True, slots=True)
class Thoroughness:
    """The situations of many runs."""

    runs: int
    frequencies: Mapping[int, int]
    """Number of runs → how many situations that many runs had."""
    runs_with_own: int
    """Runs with a situation that no other run has."""
    transitions: int
    """Transitions between situations in any run."""

    @property
    def seen(self) -> int:
        """Situations in any run."""
        return sum(self.frequencies.values())

    @property
    def once(self) -> int:
        """Situations in one run only."""
        return self.frequencies.get(1, 0)

    @property
    def expected_new(self) -> float:
        """New situations that one more run is expected to show."""
        return self.once / self.runs

    @property
    def chance_of_new(self) -> float:
        """The probability that one more run shows a new situation."""
        return self.runs_with_own / self.runs

    @property
    def richness(self) -> Interval:
        """The situations that such runs can show, at least."""
        return chao2(self.runs, self.seen, self.once, self.frequencies.get(2, 0))

    def curve(self) -> list[tuple[int, float]]:
        """A number of runs, and the situations that so many of these runs have together, whichever they are."""
        step = max(1, math.ceil(self.runs / CURVE_POINTS))
        counts = [*range(1, self.runs, step), self.runs]
        return list(zip(counts, expected_distinct(self.runs, self.frequencies, counts), strict=True))

    def sentence(self) -> str:
        """The situations in a line."""
        seen, runs = numeral(self.seen), counted(self.runs, "run")
        text = f"situations: {seen} in {runs}, {numeral(self.once)} of them in one run only"
        if self.runs == 1:
            return text
        if self.once:
            estimate = self.richness
            new = f"{self.expected_new:.2g}" if self.expected_new < 10 else numeral(round(self.expected_new))
            chance = f"{self.chance_of_new:.2g} ({new} new ones expected)"
            bounds = f"{numeral(round(estimate.low))} to {numeral(round(estimate.high))}"
            return (
                f"{text}; the next run shows a new one with probability {chance}, and such runs can show at least "
                f"{numeral(round(estimate.value))} (Chao2; {CONFIDENCE:.0%} interval {bounds})"
            )
        return f"{text}; the next run shows a new one with probability {none_in(self.runs):.2g} at most"

    def to_json(self) -> dict[str, Any]:
        """The figures as one JSON object."""
        richness = self.richness
        return {
            "runs": self.runs,
            "seen": self.seen,
            "in_one_run": self.once,
            "in_two_runs": self.frequencies.get(2, 0),
            "transitions": self.transitions,
            "chance_of_new": self.chance_of_new,
            "expected_new": self.expected_new,
            "richness": {"value": richness.value, "low": richness.low, "high": richness.high},
        }


class MadeRun(NamedTuple):
    """A run, and what it cost."""

    run: str
    cpu_s: float
    """Processor time, in seconds."""


class FirstVisit(NamedTuple):
    """When a situation was reached first, and how often."""

    at: int
    """The place, from 0, of the first run that was in it."""
    runs: int
    """How many runs were in it."""


@dataclass(frozen=True, slots=True)
class ReachedSituations:
    """The situations of many runs, by the order in which the runs were made."""

    runs: Sequence[MadeRun]
    """In that order."""
    visits: Mapping[str, FirstVisit]
    """By the code of the situation."""

    @property
    def cpu_s(self) -> float:
        """Processor time of all runs."""
        return float(self._ends_s()[-1]) if self.runs else 0.0

    def curve(self) -> list[tuple[int, float, int]]:
        """A number of runs, the processor time of the first so many of them, and the situations that these reached."""
        new = np.bincount([visit.at for visit in self.visits.values()], minlength=len(self.runs)).cumsum()
        ends_s = self._ends_s()
        step = max(1, math.ceil(len(self.runs) / CURVE_POINTS))
        ends = [*range(1, len(self.runs), step), len(self.runs)]
        return [(end, float(ends_s[end - 1]), int(new[end - 1])) for end in ends]

    def within(self, cpu_s: float) -> int:
        """The situations that the runs which ended within so much processor time reached."""
        made = int(np.searchsorted(self._ends_s(), cpu_s, side="right"))
        return sum(visit.at < made for visit in self.visits.values())

    def _ends_s(self) -> npt.NDArray[np.float64]:
        """The processor time until the end of each run."""
        return np.cumsum([run.cpu_s for run in self.runs])

    def missing_in(self, other: ReachedSituations) -> dict[str, FirstVisit]:
        """The situations that no run of `other` was in; those of most runs first, then in the order of their codes."""
        alone = ((code, visit) for code, visit in self.visits.items() if code not in other.visits)
        return dict(sorted(alone, key=lambda item: (-item[1].runs, item[0])))


def thoroughness(marks: pa.Table, runs: Collection[str]) -> Thoroughness | None:
    """Of these runs of one suite, by its coverage marks; None when they have no situation."""
    situations = _of(marks, SITUATION, runs)
    if not situations.num_rows:
        return None
    by_name = situations.group_by("name").aggregate([([], "count_all")])
    frequencies = pc.value_counts(by_name.column("count_all")).to_pylist()
    own = by_name.filter(pc.field("count_all") == 1).column("name")
    with_own = situations.filter(pc.is_in(situations.column("name"), value_set=own)).column("run")
    return Thoroughness(
        runs=pc.count_distinct(situations.column("run")).as_py(),
        frequencies={row["values"]: row["counts"] for row in sorted(frequencies, key=lambda row: row["values"])},
        runs_with_own=pc.count_distinct(with_own).as_py(),
        transitions=pc.count_distinct(_of(marks, TRANSITION, runs).column("name")).as_py(),
    )


def reached(marks: pa.Table, runs: Sequence[MadeRun]) -> ReachedSituations:
    """When these runs of one suite, in the order in which they were made, reached each situation, by their coverage
    marks."""
    names = pa.array([run.run for run in runs], pa.string())
    situations = _of(marks, SITUATION, names)
    at = pc.index_in(situations.column("run"), value_set=names)
    by_code = pa.table({"code": situations.column("name"), "at": at}).group_by("code")
    visits = by_code.aggregate([("at", "min"), ("at", "count_distinct")]).to_pylist()
    return ReachedSituations(
        tuple(runs), {row["code"]: FirstVisit(row["at_min"], row["at_count_distinct"]) for row in visits}
    )


def _of(marks: pa.Table, kind: str, runs: Collection[str] | pa.Array) -> pa.Table:
    """The marks of one kind that these runs have."""
    of_runs = pc.field("run").isin(pa.array(runs, pa.string()))
    return marks.filter((pc.field("kind") == kind) & of_runs)


def chao2(runs: int, seen: int, once: int, twice: int) -> Interval:
    """The richness estimate Chao2 with its log-normal interval; without situations in two runs the bias-corrected form.

    Chao (1987), Biometrics 43, 783–791; the variance as in EstimateS and vegan, with the factor 1 - 1/runs.
    """
    share = (runs - 1) / runs
    if twice:
        ratio = once / twice
        unseen = share * once * ratio / 2
        variance = twice * (share * ratio**2 / 2 + share**2 * (ratio**3 + ratio**4 / 4))
    else:
        unseen = share * once * (once - 1) / 2
        variance = unseen + share**2 * once * (2 * once - 1) ** 2 / 4 - share**2 * once**4 / (4 * (seen + unseen))
    if not unseen:
        return Interval(seen, seen, seen)
    from scipy import stats  # here, because its import takes longer than most commands

    quantile = float(stats.norm.ppf((1 + CONFIDENCE) / 2))
    spread = math.exp(quantile * math.sqrt(math.log(1 + variance / unseen**2)))
    return Interval(seen + unseen, seen + unseen / spread, seen + unseen * spread)


def expected_distinct(runs: int, frequencies: Mapping[int, int], counts: Sequence[int]) -> list[float]:
    """The situations that so many of the runs, drawn at random, have together: one number for each of `counts`.

    A situation that `k` runs have is missing in `n` of them with probability C(runs - k, n) / C(runs, n) (Colwell et
    al. 2012, eq. 17).
    """
    from scipy.special import gammaln

    had = np.array([*frequencies], dtype=np.float64)[:, None]
    drawn = np.array(counts, dtype=np.float64)[None, :]
    rest = np.maximum(runs - had - drawn, -1)  # no run is left without it: the pole of the gamma function
    log_missing = gammaln(runs - had + 1) + gammaln(runs - drawn + 1) - gammaln(rest + 1) - gammaln(runs + 1)
    weights = np.array([*frequencies.values()], dtype=np.float64)
    distinct: npt.NDArray[np.float64] = weights @ (1 - np.exp(log_missing))
    return [float(value) for value in distinct]
