"""The corpus of a guided search: runs that showed something new, and how often each situation was seen.

A run enters when it was in a protocol situation in which no run before it was (`results.situations`), or made a
transition that none before it made. A run that is not valid does not: it is a finding, and its children would show the
same one again. All runs count for how often a situation was seen.

**Which entry is a parent** is drawn with the weight

    sum of 1 / (runs that were in it) over its situations  /  steps of its run and of those of its children

so that rare situations are gone back to (AFLFast's power schedules: energy against the frequency of a path), cheap runs
before expensive ones, and an entry counts for less with every child. A child that shows rare situations is an entry of
its own.

**Which operator makes a child** is drawn by what each has shown: new situations per step of its runs, where rounds of
long ago count for less, since what is new becomes scarcer. `FRESH`, a run as a suite draws it, competes with all
operators together. Each keeps a part of the draws.

**Which fresh specs are promising** is learned from the traits of those before: the values of their worlds, the families
and the number of their faults. The promise of a spec is the product, over its traits, of the yield of fresh runs with
the trait by that of all fresh runs. Children teach nothing here: they share nearly all traits with their parents, so
one lucky run would make all of its own traits look good.

A step is one decision of the simulation's scheduler. It stands for the cost of a run, because processor time would
make the search depend on the machine.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from harness.search.hunt.operators import OPERATORS
from harness.spec import Spec, loads

FRESH: Final = "fresh"
"""The way to make a run without a parent."""
ORIGINS: Final = (FRESH, *OPERATORS)
"""The ways to make a run."""
RUN_STEPS: Final = 30_000
"""The cost of a run beside its steps, in steps: making its cluster, checking and storing it (measured: 0.8 s of CPU,
where a step takes 27 µs)."""
_MEMORY: Final = 0.9
"""How much the rounds before the last count for the yield of an operator, by round."""
_PRIOR_RUNS: Final = 4.0
"""So many runs of the mean yield each operator and each trait is taken to have made beside its own."""
_SHARE_LEAST: Final = 0.02
"""Of an operator."""
_FRESH_SHARE_LEAST: Final = 0.2


@dataclass(frozen=True, slots=True)
class RunFeatures:
    """The features of one run."""

    situations: frozenset[str]
    """By their ids."""
    transitions: frozenset[str]
    """By their names."""
    steps: int
    """Decisions of the scheduler."""

    @property
    def cost(self) -> int:
        """In steps."""
        return RUN_STEPS + self.steps


@dataclass(frozen=True, slots=True)
class Candidate:
    """A run to make."""

    run: str
    origin: str
    """One of ORIGINS."""
    text: str
    """Its spec, as YAML."""
    parent: str = ""
    """The run of the entry that it was made of; empty without one."""

    @property
    def spec(self) -> Spec:
        """Its spec. Raises SpecError."""
        return _read(self.text)


@dataclass(slots=True)
class CorpusEntry:
    """A run that showed something new."""

    candidate: Candidate
    features: RunFeatures
    new: int
    """Situations that no run before it was in."""
    spent: int
    """The cost of its run and of those of its children."""


@dataclass(slots=True)
class SearchYield:
    """The yield of some runs; those of older rounds count for less."""

    new: float = 0.0
    """New situations."""
    cost: float = 0.0
    runs: float = 0.0

    def add(self, new: int, cost: int) -> None:
        """Count a run."""
        self.new, self.cost, self.runs = self.new + new, self.cost + cost, self.runs + 1

    def fade(self) -> None:
        """A round has passed."""
        self.new, self.cost, self.runs = self.new * _MEMORY, self.cost * _MEMORY, self.runs * _MEMORY

    def rate(self, prior: SearchYield) -> float:
        """New situations by step, with a few runs as those of `prior` are in the mean."""
        share = _PRIOR_RUNS / prior.runs
        return (self.new + share * prior.new) / (self.cost + share * prior.cost)


@dataclass(slots=True)
class Corpus:
    """See the module's docstring."""

    runs: int = 0
    """Runs that were made."""
    rounds: int = 0
    situations: Counter[str] = field(default_factory=Counter)
    """Id → number of runs that were in it."""
    transitions: set[str] = field(default_factory=set)
    """By name; those that any run made."""
    entries: dict[str, CorpusEntry] = field(default_factory=dict)
    """By run, in the order in which they entered."""
    yields: dict[str, SearchYield] = field(default_factory=lambda: {origin: SearchYield() for origin in ORIGINS})
    """By origin."""
    traits: dict[str, SearchYield] = field(default_factory=dict)
    """By trait."""
    every: SearchYield = field(default_factory=SearchYield)
    """Of all runs."""

    def take_in(self, runs: Sequence[tuple[Candidate, RunFeatures, bool]]) -> list[CorpusEntry]:
        """Take in the runs of one round, in order, each with its features and whether it was valid. The new entries."""
        entered = []
        for each in (self.every, *self.yields.values(), *self.traits.values()):
            each.fade()
        for candidate, features, valid in runs:
            new = sum(situation not in self.situations for situation in features.situations)
            is_new = new or not features.transitions <= self.transitions
            self.situations.update(features.situations)
            self.transitions.update(features.transitions)
            traits = traits_of(candidate.spec) if candidate.origin == FRESH else []
            of_traits = [self.traits.setdefault(trait, SearchYield()) for trait in traits]
            for each in (self.every, self.yields[candidate.origin], *of_traits):
                each.add(new, features.cost)
            if candidate.parent in self.entries:
                self.entries[candidate.parent].spent += features.cost
            if is_new and valid:
                entry = self.entries[candidate.run] = CorpusEntry(candidate, features, new, features.cost)
                entered.append(entry)
        self.runs += len(runs)
        self.rounds += 1
        return entered

    def weights(self) -> dict[str, float]:
        """Run → how likely its entry is a parent, relative to the others."""
        return {run: self._rarity(entry.features.situations) / entry.spent for run, entry in self.entries.items()}

    def shares(self) -> dict[str, float]:
        """Way to make a run → its share of the draws."""
        if not self.entries:
            return {FRESH: 1.0}
        rates = {origin: each.rate(self.every) for origin, each in self.yields.items()}
        rates[FRESH] *= len(OPERATORS)
        total = sum(rates.values())
        if not total:
            return dict.fromkeys(rates, 1 / len(rates))
        least = {origin: _FRESH_SHARE_LEAST if origin == FRESH else _SHARE_LEAST for origin in rates}
        rest = 1 - sum(least.values())
        return {origin: least[origin] + rest * rate / total for origin, rate in rates.items()}

    def promise(self, spec: Spec) -> float:
        """The logarithm of the yield to expect of a fresh spec, by that of all fresh ones."""
        every = self.yields[FRESH]
        if not every.new:
            return 0.0
        known = (self.traits[trait] for trait in traits_of(spec) if trait in self.traits)
        return sum(math.log(each.rate(every) * every.cost / every.new) for each in known)

    def alone(self) -> int:
        """Situations that one run only was in."""
        return sum(count == 1 for count in self.situations.values())

    def _rarity(self, situations: Iterable[str]) -> float:
        # Sorted, since the sum of floats depends on the order.
        return sum(1 / self.situations[situation] for situation in sorted(situations))


def traits_of(spec: Spec) -> list[str]:
    """The traits of a spec whose faults are a script."""
    waiting = any(each.when is not None for each in spec.script)
    return [
        *(f"{dimension}={value}" for dimension, value in spec.drawn.items()),
        *(f"family={family}" for family in spec.script.families),
        f"faults<{1 << len(spec.script).bit_length()}",
        f"waiting={waiting}",
    ]


@lru_cache(maxsize=512)
def _read(text: str) -> Spec:
    return loads(text)
