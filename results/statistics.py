"""Bootstrap confidence intervals over runs, seeded.

Runs are resampled, never operations: the operations of one run share its faults and repeat the same information. The
same values and seed give the same interval on every machine.

SciPy's BCa bootstrap corrects the interval for bias and skewness (Efron 1987), since the measures are rarely symmetric.
For few runs the interval is also widened: n values spread less than the population they were drawn from (Hesterberg
2015, "expanded percentile": Student's quantile times the root of n / (n - 1) instead of the normal quantile). SciPy has
no option for this, so the confidence level passed to it is the one whose normal quantile equals the wider one. Of runs
most of which lose nothing and some much, plain percentile intervals covered the truth in 81, 86 and 92 of 100 cases
(20, 40, 120 runs); these in 86, 93 and 95.

BCa is undefined where all resampled values are equal: the interval is then that value. An interval cannot show events
that no run had. Where nothing was lost in any of n runs the interval is 0 to 0; `none_in` gives the bound that such
runs support.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
import numpy.typing as npt

RESAMPLES = 10_000
CONFIDENCE = 0.95
_RESAMPLED_MAX = 250_000
"""Values resampled at a time. SciPy leaves out each run in turn as well, and would otherwise hold runs × runs values;
the interval is the same."""

Numbers = Sequence[float] | npt.NDArray[np.float64]
_Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with the bounds of its confidence interval."""

    value: float
    low: float
    high: float


def mean(values: Numbers, *, seed: int = 0) -> Interval:
    """The mean of one number per run."""
    return share(values, np.ones(len(values)), seed=seed)


def share(parts: Numbers, wholes: Numbers, *, seed: int = 0, resamples: int = RESAMPLES) -> Interval:
    """The sum of the parts over the sum of the wholes, one of each per run.

    Raises ValueError without runs. Where all wholes are 0 the share is 0.
    """
    above, below = np.asarray(parts, dtype=np.float64), np.asarray(wholes, dtype=np.float64)
    if not len(above) or len(above) != len(below):
        raise ValueError(f"{len(above)} parts of {len(below)} wholes make no share")
    value = float(_share(above, below))
    if len(above) == 1:
        return Interval(value, value, value)
    from scipy import stats  # here, because its import takes longer than most commands

    with warnings.catch_warnings():
        # Equal values divide 0 by 0 in the acceleration, and the bounds are then not a number.
        warnings.simplefilter("ignore", (RuntimeWarning, stats.DegenerateDataWarning))
        result = stats.bootstrap(
            (above, below),
            _share,
            n_resamples=resamples,
            confidence_level=_expanded_level(len(above)),
            paired=True,
            vectorized=True,
            batch=max(1, _RESAMPLED_MAX // len(above)),
            method="BCa",
            rng=np.random.default_rng(seed),
        )
    low, high = (float(bound) for bound in result.confidence_interval)
    if np.isnan([low, high]).any():
        low, high = (float(bound) for bound in np.quantile(result.bootstrap_distribution, [0.0, 1.0]))
    return Interval(value, low, high)


def difference(ours: Numbers, theirs: Numbers, *, seed: int = 0) -> Interval:
    """The mean of ours minus theirs, run by run: both sides of a pair had the same seed and the same faults."""
    return mean(np.asarray(ours, dtype=np.float64) - np.asarray(theirs, dtype=np.float64), seed=seed)


def median(values: Numbers) -> Interval:
    """The median, between two of the values: whatever their distribution is, the median of all values lies between
    them with at least CONFIDENCE, or as surely as so few values can say (five: 94 %; all of them then lie between).

    A value may be infinite: that of a search that was given up. Raises ValueError without values.
    """
    from scipy import stats

    if not len(values):
        raise ValueError("no value has no median")
    ordered = sorted(float(value) for value in values)
    # The k least and the k greatest values are left out, where k or fewer of n lie on one side by chance alone.
    left_out = max(0, int(stats.binom.ppf((1 - CONFIDENCE) / 2, len(ordered), 0.5)) - 1)
    low, high = ordered[left_out], ordered[-1 - left_out]
    half = len(ordered) // 2
    middle = ordered[half] if len(ordered) % 2 or ordered[half] == inf else (ordered[half - 1] + ordered[half]) / 2
    return Interval(middle, low, high)


def none_in(runs: int) -> float:
    """The greatest share of runs with an event that is compatible, at CONFIDENCE, with none in so many runs."""
    return float(1 - (1 - CONFIDENCE) ** (1 / runs))


def _expanded_level(runs: int) -> float:
    """The confidence level whose normal quantile is Student's at CONFIDENCE times the root of n / (n - 1)."""
    from scipy import stats

    quantile = stats.t.ppf((1 + CONFIDENCE) / 2, runs - 1) * (runs / (runs - 1)) ** 0.5
    return float(1 - 2 * stats.norm.sf(quantile))


def _share(parts: _Array, wholes: _Array, axis: int = -1) -> _Array:
    above, below = np.asarray(parts).sum(axis=axis), np.asarray(wholes).sum(axis=axis)
    return np.divide(above, below, out=np.zeros_like(above), where=below != 0)
