"""The traits of fresh specs, and what each is worth: a model of how much a spec will show by step.

A trait is the value of a dimension that shapes the cluster, the rate of its clients, or the number of faults to a power
of two. All other dimensions say too little: with all of them in the model, the noise of so many factors drowns
the few that matter. What a run is expected to show is its cost times a factor for each trait:

    expected(run) = cost × a rate of all runs × product of factor(trait) over its traits

A Poisson regression with a gamma prior on each factor. The factors are fitted together, one after the other in a fixed
order and for a fixed number of sweeps: so a trait that only comes along with a good one is not taken for good itself,
as it would be by its own mean. All is counted in runs, as if a mean run showed one: what a run shows comes in lumps,
and dozens of new situations of one run say as much as one run does. Plain arithmetic, so that the factors are the same
on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from harness import worlds
from harness.spec import Spec

DIMENSIONS: Final = frozenset(each.name for each in worlds.DIMENSIONS if each.of_cluster or each.name == "rate")
"""Those whose values are traits."""
_PRIOR_RUNS: Final = 4.0
"""So many runs of a factor of 1 each trait is taken to have beside its own."""
_SWEEPS: Final = 6


class TraitYield(NamedTuple):
    """What the runs with a trait showed, and what their other traits let expect; in runs."""

    shown: float
    expected: float

    @property
    def factor(self) -> float:
        """How many times more a run with the trait shows."""
        return (self.shown + _PRIOR_RUNS) / (self.expected + _PRIOR_RUNS)


UNKNOWN: Final = TraitYield(0.0, 0.0)
"""Of a trait that no run had."""


class Trial(NamedTuple):
    """A run that teaches what its traits are worth."""

    run: str
    traits: tuple[str, ...]
    cost: int


def traits_of(spec: Spec) -> tuple[str, ...]:
    """The traits of a spec whose faults are a script."""
    of_world = (trait_of(dimension, value) for dimension, value in spec.drawn.items() if dimension in DIMENSIONS)
    return (*of_world, f"faults<{1 << len(spec.script).bit_length()}")


def trait_of(dimension: str, value: str) -> str:
    """The trait of a world in which a dimension has this value, as it is recorded."""
    return f"{dimension}={value}"


def fitted(trials: Sequence[Trial], shown: Sequence[float]) -> dict[str, TraitYield]:
    """Trait → what it is worth, from what each trial showed."""
    total = sum(shown)
    if not total:
        return {}
    mean_cost = sum(trial.cost for trial in trials) / len(trials)
    runs_shown = [each * len(trials) / total for each in shown]
    expected = [trial.cost / mean_cost for trial in trials]
    having: dict[str, list[int]] = {}
    for number, trial in enumerate(trials):
        for trait in trial.traits:
            having.setdefault(trait, []).append(number)
    yields = dict.fromkeys(having, UNKNOWN)
    for _ in range(_SWEEPS):
        level = len(trials) / sum(expected)
        expected = [each * level for each in expected]
        for trait, numbers in having.items():
            before = yields[trait].factor
            after = TraitYield(
                sum(runs_shown[number] for number in numbers), sum(expected[number] for number in numbers) / before
            )
            yields[trait] = after
            for number in numbers:
                expected[number] *= after.factor / before
    return yields


def promise(traits: Sequence[str], factors: Mapping[str, float]) -> float:
    """The product of the factors of traits; those that are not known count for 1."""
    product = 1.0
    for trait in traits:
        product *= factors.get(trait, 1.0)
    return product
