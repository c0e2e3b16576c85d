"""The corpus of a guided search: runs that showed something new, and how often each feature was seen.

A run enters when it was in a protocol situation in which no run before it was (`harness.search.hunt.features`), made a
transition that none before it made, or read a safety rule that none before it read. A run that is not valid does not:
it is a finding, and its children would show the same one again. All runs count for how often a situation was seen.

**What a situation is worth** depends on the replicas of its partition: 1 / fourth root of the situations that were seen
of partitions with as many. A partition with five replicas has many times the situations of one with three, and a
search that counts them alike goes for more replicas. A rule that a run reads is worth RULE_WORTH situations.

**Which entry is a parent** is drawn with the weight

    sum of worth / (runs that showed it) over its features  /  cost of its run and of those of its children

so that rare features are gone back to (AFLFast's power schedules: energy against the frequency of a path), cheap runs
before expensive ones, and an entry counts for less with every child. A child that shows rare features is an entry of
its own.

**Which operator makes a child** is drawn by what each has shown: worth that was new by the cost of its runs, where runs
of long ago count for less, since what is new becomes scarcer. `FRESH`, a run without a parent, competes with all
operators together. Each keeps a part of the draws.

**Which fresh specs are promising** is learned from those before (`harness.search.hunt.traits`). A fresh run showed what
no other run has shown until now, not what was new when it was made: by Good and Turing, what only one of several like
runs was in says how much the next like run will add. So a kind of run is given up as it repeats itself. Children teach
nothing here: they share nearly all traits with their parents, so one lucky run would make all of its own traits look
good.

A step is one decision of the simulation's scheduler. It stands for the cost of a run, because processor time would
make the search depend on the machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from harness.search.hunt.features import RunFeatures, replicas_of
from harness.search.hunt.operators import OPERATORS
from harness.search.hunt.traits import TraitYield, Trial, fitted, traits_of
from harness.spec import Spec, loads
from harness.yaml_document import SpecError

FRESH: Final = "fresh"
"""A run without a parent in a drawn world: a dense one, or one that a suite might draw."""
HOLDING: Final = "holding"
"""A run without a parent whose faults hold messages back."""
STRIKING: Final = "striking"
"""A run without a parent whose faults strike a node as soon as something has happened to it."""
PAIRED: Final = (HOLDING, STRIKING)
"""The ways to make a run whose faults come in pairs; they have a share of their own, whatever they show."""
ORIGINS: Final = (FRESH, *PAIRED, *OPERATORS)
"""The ways to make a run."""
RULE_WORTH: Final = 10.0
"""Of a rule that a run reads, in situations."""
_MEMORY: Final = 0.99
"""How much the runs before a run count for the yield of an operator."""
_PRIOR_RUNS: Final = 4.0
"""So many runs of the mean yield each operator is taken to have made beside its own."""
_SHARE_LEAST: Final = 0.02
"""Of an operator."""
_FRESH_SHARE_LEAST: Final = 0.2
_TRIALS_MOST: Final = 400
"""Fresh runs that are learned from: the last ones."""
_EVENNESS: Final = 0.25
"""How much less a situation is worth where many are known: 0 counts all alike, and with 1 partitions with any number of
replicas count alike."""
_FEW: Final = 50
"""Situations that partitions with any number of replicas are taken to have at least."""


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
        """Its spec. Raises SpecError that names the run."""
        try:
            return _read(self.text)
        except SpecError as error:
            raise SpecError(f"{self.run}: {error}") from None


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
    """The yield of some runs; those of long ago count for less."""

    new: float = 0.0
    """The worth of what was new."""
    cost: float = 0.0
    runs: float = 0.0

    def add(self, new: float, cost: int) -> None:
        """Count a run."""
        self.new, self.cost, self.runs = self.new + new, self.cost + cost, self.runs + 1

    def fade(self, runs: int) -> None:
        """So many runs have been made since."""
        share = _MEMORY**runs
        self.new, self.cost, self.runs = self.new * share, self.cost * share, self.runs * share

    def rate(self, prior: SearchYield) -> float:
        """New worth by step, with a few runs as those of `prior` are in the mean."""
        share = _PRIOR_RUNS / prior.runs
        return (self.new + share * prior.new) / (self.cost + share * prior.cost)


@dataclass(slots=True)
class Corpus:
    """See the module's docstring."""

    runs: int = 0
    """Runs that were made."""
    rounds: int = 0
    situations: Counter[str] = field(default_factory=Counter)
    """Situation → number of runs that were in it."""
    rules: Counter[str] = field(default_factory=Counter)
    """Rule → number of runs that read it."""
    transitions: set[str] = field(default_factory=set)
    """Those that any run made."""
    alone: dict[str, str] = field(default_factory=dict)
    """Situation in which one run only was → that run."""
    entries: dict[str, CorpusEntry] = field(default_factory=dict)
    """By run, in the order in which they entered."""
    yields: dict[str, SearchYield] = field(default_factory=lambda: {origin: SearchYield() for origin in ORIGINS})
    """By origin."""
    every: SearchYield = field(default_factory=SearchYield)
    """Of all runs."""
    trials: list[Trial] = field(default_factory=list)
    """The last fresh runs."""

    def take_in(self, runs: Sequence[tuple[Candidate, RunFeatures, bool]]) -> list[CorpusEntry]:
        """Take in the runs of one round, in order, each with its features and whether it was valid. The new entries."""
        entered = []
        for each in (self.every, *self.yields.values()):
            each.fade(len(runs))
        worth = self._worth()
        for candidate, features, valid in runs:
            new = [situation for situation in features.situations if situation not in self.situations]
            new_rules = sum(rule not in self.rules for rule in features.rules)
            is_new = new or new_rules or not features.transitions <= self.transitions
            self._count(candidate.run, features)
            if candidate.origin == FRESH:
                self.trials.append(Trial(candidate.run, traits_of(candidate.spec), features.cost))
            shown = worth.of_situations(Counter(map(replicas_of, new))) + new_rules * worth.rule
            for each in (self.every, self.yields[candidate.origin]):
                each.add(shown, features.cost)
            if candidate.parent in self.entries:
                self.entries[candidate.parent].spent += features.cost
            if is_new and valid:
                entry = self.entries[candidate.run] = CorpusEntry(candidate, features, len(new), features.cost)
                entered.append(entry)
        self.runs += len(runs)
        self.rounds += 1
        del self.trials[:-_TRIALS_MOST]
        return entered

    def weights(self) -> dict[str, float]:
        """Run → how likely its entry is a parent, relative to the others."""
        worth = self._worth()
        return {run: self._rarity(entry.features, worth) / entry.spent for run, entry in self.entries.items()}

    def shares(self) -> dict[str, float]:
        """Way to make a run, but for PAIRED → its share of the draws."""
        if not self.entries:
            return {FRESH: 1.0}
        rates = {origin: each.rate(self.every) ** 2 for origin, each in self.yields.items() if origin not in PAIRED}
        rates[FRESH] *= len(OPERATORS)
        total = sum(rates.values())
        if not total:
            return dict.fromkeys(rates, 1 / len(rates))
        least = {origin: _FRESH_SHARE_LEAST if origin == FRESH else _SHARE_LEAST for origin in rates}
        rest = 1 - sum(least.values())
        return {origin: least[origin] + rest * rate / total for origin, rate in rates.items()}

    def trait_yields(self) -> dict[str, TraitYield]:
        """Trait of a fresh spec → what it is worth."""
        worth = self._worth()
        own: dict[str, Counter[str]] = {trial.run: Counter() for trial in self.trials}
        for situation, run in self.alone.items():
            if run in own:
                own[run][replicas_of(situation)] += 1
        return fitted(self.trials, [worth.of_situations(own[trial.run]) for trial in self.trials])

    def _count(self, run: str, features: RunFeatures) -> None:
        for situation in features.situations:
            if situation not in self.situations:
                self.alone[situation] = run
            else:
                self.alone.pop(situation, None)
        self.situations.update(features.situations)
        self.transitions.update(features.transitions)
        self.rules.update(features.rules)

    def _worth(self) -> _Worth:
        seen = Counter(map(replicas_of, self.situations))
        each = {replicas: max(count, _FEW) ** -_EVENNESS for replicas, count in sorted(seen.items())}
        mean = (
            sum(each[replicas] * seen[replicas] for replicas in each) / sum(seen.values()) if seen else _FEW**-_EVENNESS
        )
        return _Worth(each, RULE_WORTH * mean)

    def _rarity(self, features: RunFeatures, worth: _Worth) -> float:
        # Sorted, since the sum of floats depends on the order.
        of_situations = sum(worth.situation(it) / self.situations[it] for it in sorted(features.situations))
        return of_situations + worth.rule * sum(1 / self.rules[rule] for rule in sorted(features.rules))


@dataclass(frozen=True, slots=True)
class _Worth:
    """What features are worth."""

    situations: Mapping[str, float]
    """Replicas of the partition → of each situation."""
    rule: float

    def situation(self, situation: str) -> float:
        return self.situations.get(replicas_of(situation), _FEW**-_EVENNESS)

    def of_situations(self, numbers: Mapping[str, int]) -> float:
        """Of so many situations of partitions with as many replicas."""
        return sum(
            count * self.situations.get(replicas, _FEW**-_EVENNESS) for replicas, count in sorted(numbers.items())
        )


@lru_cache(maxsize=512)
def _read(text: str) -> Spec:
    return loads(text)
