"""One search for one mutant in one range of seeds: plans its next runs, and takes their results into the range."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from harness.search.ended_runs import EndedRun
from harness.search.hunt.candidates import candidates
from harness.search.hunt.corpus import Candidate, Corpus
from harness.search.hunt.folder import ENTRIES, CorpusFolder, HuntPlan
from harness.search.hunt.hunt import features_of
from harness.search.mutants.full_protocol import FullProtocol
from harness.search.mutants.mutant import FIRST_SEED, RUNS_MOST, Method, Mutant
from harness.search.mutants.record import SeedRange
from harness.suites.boxes import CPU_SECONDS
from harness.suites.plan import FIRST_BATCH, PlannedRun
from results.errors import StoreError

BATCH_MOST: Final = 32
"""Runs of a random search that are planned at once; few at first, since most mutants are found soon."""
HUNT_ROUND: Final = 8


def cell_of(mutant: Mutant, method: Method) -> str:
    """The cell of the runs of a search in the store."""
    return f"{mutant.name}, {method}"


class MutantSearch(Protocol):
    """See the module's docstring."""

    range: SeedRange

    def plan(self) -> list[PlannedRun]:
        """Its next runs that nobody else has planned; before that, those that need not be made come into the range."""

    def take_in(self, ended: Mapping[str, EndedRun], night: str, commit: str) -> None:
        """Take those of the planned runs into the range that have ended, as far as they are usable."""


@dataclass(slots=True)
class RandomSearch:
    """Runs with the seeds of the range, one after the other; those that the full protocol has made are not made."""

    mutant: Mutant
    method: Method
    range: SeedRange
    full: FullProtocol

    def plan(self) -> list[PlannedRun]:
        """The next batch, as many runs as the range has so far: those of the mutant up to the first seed of which the
        full protocol's run is not known, and from there on those of the full protocol. A run of the mutant behind that
        seed might have to wait for another one before it, and no run is made twice in a night."""
        self.take_in({}, "", "")
        count = min(max(FIRST_BATCH, self.range.runs), BATCH_MOST)
        own, of_full_protocol = list[int](), list[int]()
        for seed in () if self.range.complete else self._seeds_left():
            if not self.full.is_decided(self.mutant, self.method, seed):
                of_full_protocol.append(seed)
            elif not of_full_protocol and self.full.identical_run(self.mutant, self.method, seed) is None:
                own.append(seed)
            if len(own) + len(of_full_protocol) == count:
                break
        base, cell = self.mutant.base(self.method), cell_of(self.mutant, self.method)
        planned = list(self.full.plan(self.mutant, self.method, of_full_protocol))
        for seed in own:
            spec = replace(base, name=self._name(seed), seed=seed)
            planned.append(PlannedRun(spec.name, cell, seed, spec=spec.to_yaml(), boxed=True))
        return planned

    def take_in(self, ended: Mapping[str, EndedRun], night: str, commit: str) -> None:
        """Runs count in the order of their seeds, so those after a missing one are left out, and made again."""
        for seed in self._seeds_left():
            if self.range.complete:
                break
            full, own = self.full.identical_run(self.mutant, self.method, seed), ended.get(self._name(seed))
            if full is not None:
                self.range.take_not_made(full.cpu_s, full.commit)
            elif own is not None:
                accused = self.full.is_accused(self.mutant, self.method, seed)
                facts = {CPU_SECONDS: own.facts.get(CPU_SECONDS, 0.0)} if accused else own.facts
                self.range.take(facts, f"{night}/{self._name(seed)}", commit)
            else:
                break

    def _seeds_left(self) -> Sequence[int]:
        first = FIRST_SEED + RUNS_MOST * self.range.number
        return range(first + self.range.runs, first + RUNS_MOST)

    def _name(self, seed: int) -> str:
        return f"{self.mutant.name}-{self.method}-seed{seed}"


@dataclass(slots=True)
class HuntSearch:
    """A hunt with an empty corpus. The corpus is kept in a folder while the range is not complete."""

    mutant: Mutant
    range: SeedRange
    folder: CorpusFolder
    _hunt: HuntPlan = field(init=False)
    _corpus: Corpus = field(init=False)
    _round: list[Candidate] = field(default_factory=list)
    planned: list[PlannedRun] = field(default_factory=list)

    def __post_init__(self) -> None:
        seed = FIRST_SEED + self.range.number
        self._hunt, self._corpus = HuntPlan(self.mutant.base(Method.HUNT), seed, HUNT_ROUND), Corpus()
        try:
            loaded = self.folder.load()
        except StoreError:
            loaded = None
        if loaded is not None and loaded[0] == self._hunt and loaded[1].runs == self.range.runs:
            self._corpus = loaded[1]
        else:  # its corpus is lost, or of another program: the range begins anew
            shutil.rmtree(self.folder.path, ignore_errors=True)
            self.range.reset()

    def plan(self) -> list[PlannedRun]:
        """The next round."""
        with self._measured():
            count = min(HUNT_ROUND, RUNS_MOST - self.range.runs)
            self._round = candidates(self._corpus, self._hunt.base, self._hunt.seed, count)
        cell = cell_of(self.mutant, Method.HUNT)
        self.planned = [
            PlannedRun(self._name(each), cell, each.spec.seed, spec=each.text, boxed=True) for each in self._round
        ]
        return self.planned

    def take_in(self, ended: Mapping[str, EndedRun], night: str, commit: str) -> None:
        """A round counts whole or not at all, since the corpus after it depends on all of its runs."""
        if all(planned.run in ended for planned in self.planned):
            with self._measured():
                runs = [(each, ended[self._name(each)]) for each in self._round]
                entered = self._corpus.take_in([(it, features_of(run), run.validity == "valid") for it, run in runs])
            for each, run in runs:
                if not self.range.complete:
                    self.range.take(run.facts, f"{night}/{self._name(each)}", commit)
            if self.range.complete:
                shutil.rmtree(self.folder.path, ignore_errors=True)
            else:
                (self.folder.path / ENTRIES).mkdir(parents=True, exist_ok=True)
                self.folder.save(self._hunt, self._corpus, entered)
        self.planned = []

    @contextmanager
    def _measured(self) -> Iterator[None]:
        """The processor time of the search itself counts, too."""
        began_s = time.process_time()
        yield
        self.range.cpu_s = round(self.range.cpu_s + time.process_time() - began_s, 3)

    def _name(self, candidate: Candidate) -> str:
        return f"{self.mutant.name}-hunt-{self.range.number}-{candidate.run}"
