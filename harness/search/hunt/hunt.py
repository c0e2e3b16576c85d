"""A hunt: guided search as a suite on Spark, whose runs are planned round by round.

    corpus → candidates of a round → one Spark job → their situations, read from the store → corpus, on disk → …

A run is made, checked and stored as any run of a suite, so a failing one is kept and comes back. Runs are taken into
the corpus in the order of the plan once their round is over: the same seed and the same number of rounds lead to the
same corpus on any number of processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from harness.cluster.systems import SYSTEMS
from harness.search.ended_runs import EndedRun, EndedRuns
from harness.search.hunt.candidates import candidates, round_size
from harness.search.hunt.corpus import Candidate, Corpus
from harness.search.hunt.features import RunFeatures, features_of_marks
from harness.search.hunt.folder import CorpusFolder, HuntPlan
from harness.spec import Spec
from harness.suites.plan import PlannedRun, Suite
from harness.worlds import possible_values
from harness.yaml_document import SpecError
from images.system import Capability
from results.errors import StoreError

ROUND_SIZE: Final = 32
"""Runs of a round by default, but for the first: as many may be made at the same time."""


@dataclass(slots=True)
class HuntSession:
    """One night of a hunt: plans its rounds, and takes them into the corpus."""

    plan: HuntPlan
    corpus: Corpus
    folder: CorpusFolder
    store: Path
    runs_most: int | None
    """The runs of this night; None where its time alone ends it."""
    goes_on: Callable[[], bool]
    """Whether there is time for another round."""
    planned: list[PlannedRun] = field(default_factory=list)
    """All runs of this night so far, in order."""
    suite: str = ""
    """The name of the night in the store, once it has begun."""
    _round: list[Candidate] = field(default_factory=list)
    _ended: EndedRuns = field(init=False)

    def __post_init__(self) -> None:
        self._ended = EndedRuns(self.store)

    def next_round(self, validities: Mapping[str, str]) -> list[PlannedRun]:
        """Take in the last round, and plan the next one; empty when the night is over. StoreError when the corpus
        cannot be written, or when the spec of an entry cannot be read."""
        if self._round:
            ended = self._ended.new(self.suite)
            runs = [(each, features_of(ended[each.run]), validities[each.run] == "valid") for each in self._round]
            self.folder.save(self.plan, self.corpus, self.corpus.take_in(runs))
            self._round = []
        left = round_size(self.corpus, self.plan.round_size)
        if self.runs_most is not None:
            left = min(left, self.runs_most - len(self.planned))
        if left <= 0 or not self.goes_on():
            return []
        try:
            self._round = candidates(self.corpus, self.plan.base, self.plan.seed, left)
        except SpecError as error:  # of a parent
            raise StoreError(f"{self.folder.path}: is damaged, or of another version of faultline: {error}") from None
        runs_of_round = [PlannedRun(each.run, each.origin, each.spec.seed, spec=each.text) for each in self._round]
        self.planned += runs_of_round
        return runs_of_round


@dataclass(frozen=True, slots=True)
class Hunt(Suite):
    """The plan of one night: of its runs only those of the rounds that have begun."""

    session: HuntSession = field(kw_only=True)

    @classmethod
    def night(cls, name: str, session: HuntSession) -> Hunt:
        """The plan of a night called `name`."""
        return cls(name, seeds=0, first_seed=0, cells={}, session=session)

    def runs(self) -> Iterator[PlannedRun]:
        """The runs of the rounds that have begun."""
        yield from self.session.planned

    def next_runs(self, validities: Mapping[str, str]) -> list[PlannedRun]:
        """The next round."""
        return self.session.next_round(validities)

    @property
    def runs_at_most(self) -> int:
        """The runs of the night, or as many as have begun."""
        return self.session.runs_most or len(self.session.planned)

    @property
    def worlds(self) -> dict[str, list[str]]:
        """Dimension of the world → the values that runs draw from."""
        base = self.session.plan.base
        return possible_values(base.vary, base.workload)

    @property
    def systems(self) -> list[str]:
        """The system of its runs."""
        return [self.session.plan.base.system]

    def to_json(self) -> dict[str, Any]:
        """As of any suite, and the command by which the hunt goes on."""
        return {**Suite.to_json(self), "goes_on": f"faultline hunt SPEC --corpus {self.session.folder.path}"}


def features_of(run: EndedRun) -> RunFeatures:
    """The features of a run."""
    return features_of_marks(run.marks, int(run.facts.get("scheduler_steps", 0)))


def check_base(spec: Spec) -> None:
    """Raise SpecError for a spec that no hunt can search with."""
    if spec.environment != "sim":
        raise SpecError("environment: a hunt runs in the simulation")
    if Capability.TRACE not in SYSTEMS[spec.system].capabilities:
        raise SpecError(f"system: {spec.system} has no protocol trace, from which a hunt sees what is new")
    if not spec.families and not spec.script:
        raise SpecError("faults: there are none to search with")


def begin(
    folder: CorpusFolder, base: Spec, seed: int | None, drawn_seed: int, round_size: int | None = None
) -> tuple[HuntPlan, Corpus]:
    """The hunt of a folder, with which a night goes on, or a new one. StoreError where the folder is of another."""
    found = folder.load()
    if found is None:
        return HuntPlan(base, drawn_seed if seed is None else seed, round_size or ROUND_SIZE), Corpus()
    plan, corpus = found
    for name, given, kept in (
        ("spec", base.to_yaml(), plan.base.to_yaml()),
        ("random seed", plan.seed if seed is None else seed, plan.seed),
        ("size of its rounds", round_size or plan.round_size, plan.round_size),
    ):
        if given != kept:
            raise StoreError(f"{folder.path}: is the corpus of a hunt with another {name}; choose another folder")
    return plan, corpus
