"""Numbers over many runs, with how sure one may be of them: bootstrap intervals, over runs, seeded.

The run is what is drawn anew, never the operation: operations of one run share its faults and say the same thing many
times. Intervals are percentile intervals. The same values and seed give the same interval on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

RESAMPLES = 10_000
CONFIDENCE = 0.95

Numbers = Sequence[float] | npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """A value, and between what it lies with the confidence asked for."""

    value: float
    low: float
    high: float

    def apart_from(self, other: Interval) -> bool:
        """Whether the two intervals do not overlap."""
        return self.high < other.low or other.high < self.low


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
    drawn = np.random.default_rng(seed).integers(0, len(above), size=(resamples, len(above)))
    low, high = np.quantile(_ratio(above[drawn].sum(axis=1), below[drawn].sum(axis=1)), _tails())
    return Interval(float(_ratio(above.sum(), below.sum())), float(low), float(high))


def difference(ours: Numbers, theirs: Numbers, *, seed: int = 0) -> Interval:
    """The mean of ours minus theirs, run by run: both sides of a pair had the same seed and the same faults."""
    return mean(np.asarray(ours, dtype=np.float64) - np.asarray(theirs, dtype=np.float64), seed=seed)


def _ratio(parts: npt.NDArray[np.float64], wholes: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.divide(parts, wholes, out=np.zeros_like(np.asarray(parts, dtype=np.float64)), where=wholes != 0)


def _tails() -> tuple[float, float]:
    tail = (1 - CONFIDENCE) / 2
    return tail, 1 - tail
