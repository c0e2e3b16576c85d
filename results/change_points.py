"""Change points of a figure from night to night, by permutation tests corrected for the number of cuts tried.

The input is parts and wholes, one of each per *unit* and night. A unit is a spec with a seed; the figure of some nights
is the sum of their parts over the sum of their wholes. Nights may share units (the same seeds every night) or not.

- A stretch of nights is cut in two wherever that can be done; the statistic of a cut is the absolute difference of the
  figure after and before it, over the standard deviation of that under the null hypothesis; that of the stretch is the
  largest.
- The null hypothesis is that units differ and nights do not. Then a unit's runs may as well have come in another order:
  they are turned by a drawn number of runs, forwards or backwards, each unit's by itself; units with a single run on a
  single night change places. p is how often the largest statistic is then at least the one seen. No distribution is
  assumed, so rare failures and the long tails of latency are treated fairly; taking the largest statistic in every draw
  corrects for having looked at every cut.
- A run that is the same as on the night before, because the program is or because the change did not touch it, is one
  run that lasted two nights (`same`): it counts once, and is moved as one.
- Nights on real machines vary for reasons that no unit shows by itself (load, temperature). For those (`nights_vary`)
  whole nights are also permuted; the cut must stand out from both tests, and the greater p-value counts. This needs
  nights: a detectable change has at least three nights on either side and some ten in all.
- The cut with the largest statistic is a change point when p ≤ `level`; then each side is examined by itself. With no
  change anywhere, anything is flagged with a probability of about `level` at most. Over several figures the caller
  divides the level by their number (Bonferroni).

SciPy's `permutation_test` cannot do this: it exchanges single observations, while here each unit's series is rotated as
a whole, runs that lasted several nights move as one, and the statistic of a cut is divided by its standard deviation
over the same draws.

A cut with fewer than UNITS_MIN units on either side is not considered, and a change of the program cannot be told from
a change of the spec. The same numbers and seed give the same result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.int64]

DRAWS_MIN = 1000
UNITS_MIN = 20
UNITS_MAX = 250
"""More units are merged into about this many groups of units that ran anew on the same nights."""
_AT_A_TIME = 50
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """One change point."""

    at: int
    """The first night after it."""
    before: float
    after: float
    low: float
    """Of the difference, with 95 % confidence where nothing else was looked at."""
    high: float
    p: float


@dataclass(frozen=True, slots=True, eq=False)
class _Units:
    """Units × nights."""

    part: Matrix
    whole: Matrix
    anew: Mask
    """True where a run starts; the run lasts until the next start, or as long as the unit exists."""


def change_points(
    parts: Matrix, wholes: Matrix, same: Mask, *, level: float, nights_vary: bool = False, seed: int = 0
) -> list[ChangePoint]:
    """The change points of units × nights, in order.

    A whole of 0 means that the unit is missing that night; `same` is True where its run is that of the night before.
    """
    nights = np.flatnonzero(wholes.any(axis=0))
    there = parts[:, nights], wholes[:, nights], same[:, nights]
    changes = _split(*there, 0, len(nights), level, nights_vary, seed)
    return sorted((replace(it, at=int(nights[it.at])) for it in changes), key=lambda change: change.at)


def _split(
    parts: Matrix, wholes: Matrix, same: Mask, begin: int, end: int, level: float, nights_vary: bool, seed: int
) -> Iterator[ChangePoint]:
    part, whole = parts[:, begin:end], wholes[:, begin:end]
    possible = _possible(whole)
    if not possible.any():
        return
    random = np.random.default_rng([seed, begin, end])
    draws = max(DRAWS_MIN, int(5 / level))
    units = _grouped(part, whole, same[:, begin:end])
    best, p = _rotation_test(units, possible, draws, random)
    if nights_vary:
        p = max(p, _night_permutation_test(part, whole, possible, draws, random))
    if p > level:
        return
    at = begin + best + 1
    yield _change(part, whole, best + 1, at, p, random)
    yield from _split(parts, wholes, same, begin, at, level, nights_vary, seed)
    yield from _split(parts, wholes, same, at, end, level, nights_vary, seed)


def _possible(wholes: Matrix) -> Mask:
    """The cuts that leave enough units on either side."""
    there = wholes > 0
    before = np.maximum.accumulate(there, axis=1)[:, :-1].sum(axis=0)
    after = np.maximum.accumulate(there[:, ::-1], axis=1)[:, ::-1][:, 1:].sum(axis=0)
    return np.asarray((before >= UNITS_MIN) & (after >= UNITS_MIN))


def _grouped(part: Matrix, whole: Matrix, same: Mask) -> _Units:
    """At most about UNITS_MAX units: each is the sum of units that exist, and ran anew, on the same nights."""
    there = whole > 0
    anew = there & ~same
    anew[np.arange(len(there)), there.argmax(axis=1)] |= there.any(axis=1)
    size = -(-len(part) // UNITS_MAX)
    if size == 1:
        return _Units(part, whole, anew)
    _, pattern = np.unique(np.hstack([there, anew]), axis=0, return_inverse=True)
    order = np.argsort(pattern.ravel(), kind="stable")
    ordered = pattern.ravel()[order]
    rank = np.arange(len(order)) - np.searchsorted(ordered, ordered)
    starts = np.flatnonzero(rank % size == 0)
    return _Units(
        np.add.reduceat(part[order], starts, axis=0),
        np.add.reduceat(whole[order], starts, axis=0),
        anew[order][starts],
    )


def _rotation_test(units: _Units, possible: Mask, draws: int, random: np.random.Generator) -> tuple[int, float]:
    """The cut with the largest statistic, counted from 0, and its p-value when each unit's runs are rotated."""
    differences = np.abs(_differences(*_rotated(units, draws, random)))
    statistics = _over(differences, differences[1:].std(axis=0), possible)
    return int(np.argmax(statistics[0])), _exceeded(statistics.max(axis=1))


def _rotated(units: _Units, draws: int, random: np.random.Generator) -> tuple[Matrix, Matrix]:
    """The nights' sums of parts and wholes: the observed ones in the first row, then one row per draw."""
    rows, columns = np.nonzero(units.whole > 0)
    runs = np.cumsum(units.anew[rows, columns]) - 1
    heads = np.flatnonzero(units.anew[rows, columns])
    row_of_run = rows[heads]
    counts = np.bincount(row_of_run, minlength=len(units.part))
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    place = np.arange(len(heads)) - starts[row_of_run]
    nights = np.bincount(rows, minlength=len(units.part))
    alone = np.flatnonzero(nights[row_of_run] == 1)
    by_night = np.argsort(columns, kind="stable")
    edges = np.searchsorted(columns[by_night], np.arange(units.part.shape[1]))
    parts, wholes = (it[rows, columns][heads] for it in (units.part, units.whole))
    at = runs[by_night]
    sums = [[np.add.reduceat(it[at][None, :], edges, axis=1)] for it in (parts, wholes)]
    for done in range(0, draws, _AT_A_TIME):
        size = min(_AT_A_TIME, draws - done)
        rotations = random.integers(0, 1 << 30, size=(size, len(units.part)))[:, row_of_run]
        directions = random.choice(np.array([-1, 1]), size=(size, len(units.part)))[:, row_of_run]
        source = starts[row_of_run] + (rotations + directions * place) % counts[row_of_run]
        source[:, alone] = random.permuted(np.tile(alone, (size, 1)), axis=1)
        rotated = source[:, at]
        for draws_of_sums, values in zip(sums, (parts, wholes), strict=True):
            draws_of_sums.append(np.add.reduceat(values[rotated], edges, axis=1))
    return np.vstack(sums[0]), np.vstack(sums[1])


def _night_permutation_test(
    part: Matrix, whole: Matrix, possible: Mask, draws: int, random: np.random.Generator
) -> float:
    """p-value of the largest statistic when whole nights are permuted."""
    nights = np.arange(part.shape[1])
    orders = np.vstack([nights, random.permuted(np.tile(nights, (draws, 1)), axis=1)])
    differences = np.abs(_differences(part.sum(axis=0)[orders], whole.sum(axis=0)[orders]))
    return _exceeded(_over(differences, differences[1:].std(axis=0), possible).max(axis=1))


def _differences(parts: Matrix, wholes: Matrix) -> Matrix:
    """The figure after minus before each cut, from the nights' sums."""
    before, of_before = parts.cumsum(axis=1)[:, :-1], wholes.cumsum(axis=1)[:, :-1]
    after, of_after = parts.sum(axis=1)[:, None] - before, wholes.sum(axis=1)[:, None] - of_before
    return _ratio(after, of_after) - _ratio(before, of_before)


def _change(part: Matrix, whole: Matrix, cut: int, at: int, p: float, random: np.random.Generator) -> ChangePoint:
    """The change at a cut, its interval by the Bayesian bootstrap over units."""
    sides = [(it[:, :cut].sum(axis=1), it[:, cut:].sum(axis=1)) for it in (part, whole)]
    (before, after), (of_before, of_after) = sides
    weights = random.standard_exponential((DRAWS_MIN, len(part)))
    differences = (weights @ after) / (weights @ of_after) - (weights @ before) / (weights @ of_before)
    low, high = np.quantile(differences, (0.025, 0.975))
    return ChangePoint(
        at,
        float(before.sum() / of_before.sum()),
        float(after.sum() / of_after.sum()),
        float(low),
        float(high),
        p,
    )


def _ratio(parts: Matrix, wholes: Matrix) -> Matrix:
    return np.divide(parts, wholes, out=np.zeros_like(parts), where=np.broadcast_to(wholes > 0, parts.shape))


def _over(sizes: Matrix, deviations: Matrix, possible: Mask) -> Matrix:
    return np.where(possible, _ratio(sizes, np.broadcast_to(deviations, sizes.shape)), 0.0)


def _exceeded(largest: Matrix) -> float:
    """The share of values at least as large as the first, itself included, up to rounding errors."""
    return float((largest >= largest[0] * (1 - _ROUNDING)).sum() / len(largest))
