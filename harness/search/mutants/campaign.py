"""A campaign against mutants: nights that spend a budget of processor time, each a suite on Spark.

    record → the searches that come first → one Spark job → what each box found, from the store → record → …

A search goes on where it was left, whatever night that was: which runs count next depends on its own range alone, and
not on the other searches, the budget or the number of processes. Which of them have to be made depends on the runs of
the full protocol that are known by then. First come those that may still show that a mutant is found within the runs
that are allowed for it, then all others; of either those for which the fewest runs were made, so a budget that ends
early has spent about as much on every mutant.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from harness.search.ended_runs import EndedRuns
from harness.search.hunt.folder import CorpusFolder
from harness.search.mutants.full_protocol import FullProtocol
from harness.search.mutants.mutant import LIMITS, Method, Mutant
from harness.search.mutants.record import CampaignRecord
from harness.search.mutants.searches import HuntSearch, MutantSearch, RandomSearch, cell_of
from harness.spec import Spec
from harness.suites.boxes import CPU_SECONDS
from harness.suites.plan import PlannedRun, Suite
from results.store.spark import fingerprint

ROUND_SIZE: Final = 64
"""Runs of a round, about: what a `kill -9` costs at most, but for a range of a hunt, which begins anew where its corpus
is ahead of the record."""


@dataclass(slots=True)
class CampaignNight:
    """One night: plans its rounds, and takes them into the record."""

    mutants: tuple[Mutant, ...]
    record: CampaignRecord
    store: Path
    budget_s: float
    """Processor time of runs and explorations in this night."""
    spent_s: float = 0.0
    suite: str = ""
    """The name of the night in the store, and the commit of its program, once it has begun."""
    commit: str = ""
    planned: list[PlannedRun] = field(default_factory=list)
    """All runs of this night so far, in order."""
    cells: dict[str, Spec] = field(default_factory=dict)
    """The cells of those runs, but of those of the full protocol."""
    _waiting: list[MutantSearch] = field(default_factory=list)
    _ended: EndedRuns = field(init=False)
    full: FullProtocol = field(init=False)

    def __post_init__(self) -> None:
        self._ended = EndedRuns(self.store)
        self.full = FullProtocol.load(self.store / "mutants" / "full-protocol.json", fingerprint())

    def next_round(self) -> list[PlannedRun]:
        """Take in the last round, and plan the next one; empty when the night is over. StoreError when the record
        cannot be written."""
        self.take_in()
        runs: list[PlannedRun] = []
        goes_on = self.spent_s < self.budget_s
        while goes_on and not runs:
            runs, goes_on = self._plan_once()
        self.planned += runs
        return runs

    def _plan_once(self) -> tuple[list[PlannedRun], bool]:
        """Runs of the searches that come first, and whether runs of the full protocol have completed the range of one,
        which goes on with its next range."""
        runs: list[PlannedRun] = []
        completed = False
        for mutant, method in self._by_need():
            if runs and self._is_settled(mutant, method):
                break  # what is known can wait for the runs of the full protocol that the others wait for
            if (search := self._search(mutant, method)) is None:
                continue
            runs += search.plan()
            completed = completed or search.range.complete
            self._waiting.append(search)
            self.cells.setdefault(cell_of(mutant, method), mutant.base(method))
            if len(runs) >= ROUND_SIZE:
                break
        return runs, completed

    def take_in(self) -> None:
        """Take in what has ended of the last round, which may have been interrupted, and save the record."""
        if not self._waiting:
            return
        ended = self._ended.new(self.suite)
        self.spent_s += sum(run.facts.get(CPU_SECONDS, 0.0) for run in ended.values())
        for full in self.full.take_in(ended, self.suite, self.commit):
            self.record.full_runs += 1
            self.record.full_cpu_s = round(self.record.full_cpu_s + full.cpu_s, 3)
        for search in self._waiting:
            search.take_in(ended, self.suite, self.commit)
        self._waiting = []
        self.record.save()

    def _by_need(self) -> Iterable[tuple[Mutant, Method]]:
        """Every search in the order in which they come; of the same cost, those of one method after the other."""
        searches = [(mutant, method) for method in Method for mutant in self.mutants]
        return sorted(searches, key=lambda it: (self._is_settled(*it), self.record.made(it[0].name, it[1])))

    def _is_settled(self, mutant: Mutant, method: Method) -> bool:
        """Whether it is known if the search finds the mutant within the runs that are allowed for that."""
        ranges = self.record.ranges(mutant.name, method)
        runs = self.record.runs(mutant.name, method)
        return method not in LIMITS or runs >= LIMITS[method] or any(each.together is not None for each in ranges)

    def _search(self, mutant: Mutant, method: Method) -> MutantSearch | None:
        seeds = self.record.range_of(mutant.name, method, mutant.ranges)
        if seeds is None:
            return None
        if method is not Method.HUNT:
            return RandomSearch(mutant, method, seeds, self.full)
        return HuntSearch(mutant, seeds, CorpusFolder(self.store / "mutants" / f"{mutant.name}-{seeds.number}"))


@dataclass(frozen=True, slots=True)
class MutantCampaign(Suite):
    """The plan of one night: of its runs only those of the rounds that have begun."""

    night: CampaignNight = field(kw_only=True)

    @classmethod
    def of(cls, night: CampaignNight) -> MutantCampaign:
        """The plan of a night."""
        return cls("mutants", seeds=0, first_seed=0, cells=night.full.cells, mutants=night.cells, night=night)

    def every_run(self) -> Iterator[PlannedRun]:
        """The runs of the rounds that have begun."""
        yield from self.night.planned

    def next_runs(self, validities: Mapping[str, str]) -> list[PlannedRun]:
        """The next round."""
        return self.night.next_round()

    def to_json(self) -> dict[str, Any]:
        """As of any suite, and the command by which the campaign goes on. The cells are left out: every run has its
        spec, and each task would read those of all mutants."""
        go_on = f"faultline mutants --record {self.night.record.path}"
        return {**Suite.to_json(replace(self, cells={}, mutants={})), "goes_on": go_on}
