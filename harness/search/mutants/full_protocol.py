"""The runs of the full protocol with the seeds of the mutants: which runs of a mutant are those very runs.

A safety rule is read only where it makes a difference, and every node says when it reads one for the first time
(`images.broker.rules`). So a run of the full protocol in which nobody read a rule is, event by event, the run of the
mutant that lacks the rule: the same verdict, the same processor time. Such a run of a mutant counts without being made.
That holds of valid runs: a run that is not may have lost its trace, or be a finding about the full protocol.

The runs stand in one file of the store. They are those of one state of the sources, and are made again for another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from harness.search.ended_runs import EndedRun
from harness.search.mutants.mutant import Method, Mutant, MutantKind
from harness.spec import Spec
from harness.suites.boxes import CPU_SECONDS
from harness.suites.plan import PlannedRun
from results.atomic_files import put_json, read_json
from results.coverage import RULE_READ
from results.errors import StoreError


@dataclass(frozen=True, slots=True)
class FullRun:
    """One run of the full protocol."""

    run: str
    """Night and run in the store."""
    commit: str
    validity: str | None
    """None where it could not be carried out."""
    rules_read: list[str]
    cpu_s: float


@dataclass(slots=True)
class FullProtocol:
    """See the module's docstring."""

    path: Path
    sources: str
    """The digest of the sources."""
    runs: dict[str, FullRun] = field(default_factory=dict)
    """By the name of the run."""
    cells: dict[str, Spec] = field(default_factory=dict)
    """The cells of the runs that were planned."""
    _planned: set[str] = field(default_factory=set)
    """The runs of this round, by name: several searches wait for the same."""

    @classmethod
    def load(cls, path: Path, sources: str) -> FullProtocol:
        """The runs in a file; none if they are of other sources. StoreError when the file is damaged."""
        values = read_json(path)
        if values.get("sources") != sources:
            return cls(path, sources)
        try:
            return cls(path, sources, {name: FullRun(**each) for name, each in values["runs"].items()})
        except (AttributeError, KeyError, TypeError) as error:
            raise StoreError(f"{path}: is not a record of runs of the full protocol: {error}") from None

    def is_decided(self, mutant: Mutant, method: Method, seed: int) -> bool:
        """Whether the run of the full protocol with this seed was made; true of a mutant that is no rule, which has to
        make its own."""
        return mutant.kind is not MutantKind.RULE or _name(mutant, method, seed) in self.runs

    def identical_run(self, mutant: Mutant, method: Method, seed: int) -> FullRun | None:
        """The run of the full protocol that the run of a mutant is; None where the mutant's may be another one."""
        full = self._made(mutant, method, seed)
        known = full is not None and full.validity == "valid" and not set(mutant.without) & set(full.rules_read)
        return full if known else None

    def is_accused(self, mutant: Mutant, method: Method, seed: int) -> bool:
        """Whether the full protocol is found with this seed, too: what is found of a mutant then is not its own."""
        full = self.runs.get(_name(mutant, method, seed))
        return full is not None and full.validity == "invalid"

    def plan(self, mutant: Mutant, method: Method, seeds: Iterable[int]) -> Iterator[PlannedRun]:
        """The runs with these seeds that this round does not have yet."""
        sound = replace(mutant, name=f"full protocol, {mutant.workload}", without=(), mistakes=(), protocol="")
        base = sound.base(method)
        cell = f"{sound.name}, {method}"
        for seed in seeds:
            name = _name(mutant, method, seed)
            if name not in self._planned:
                self._planned.add(name)
                self.cells.setdefault(cell, base)
                yield PlannedRun(name, cell, seed, spec=replace(base, name=name, seed=seed).to_yaml(), boxed=True)

    def take_in(self, ended: Mapping[str, EndedRun], night: str, commit: str) -> list[FullRun]:
        """Remember those of the planned runs that have ended, and return them. StoreError when the file cannot be
        written."""
        new = {}
        for name in sorted(self._planned & ended.keys()):
            run = ended[name]
            rules = sorted(mark for kind, mark in run.marks if kind == RULE_READ)
            new[name] = FullRun(f"{night}/{name}", commit, run.validity, rules, run.facts.get(CPU_SECONDS, 0.0))
        self._planned = set()
        if new:
            self.runs |= new
            self.path.parent.mkdir(parents=True, exist_ok=True)
            put_json(self.path, {"sources": self.sources, "runs": {name: asdict(it) for name, it in self.runs.items()}})
        return list(new.values())

    def invalid_runs(self) -> list[str]:
        """Night and run of each that accuses the full protocol."""
        return [run.run for run in self.runs.values() if run.validity == "invalid"]

    def _made(self, mutant: Mutant, method: Method, seed: int) -> FullRun | None:
        return self.runs.get(_name(mutant, method, seed)) if mutant.kind is MutantKind.RULE else None


def _name(mutant: Mutant, method: Method, seed: int) -> str:
    return f"full-protocol-{mutant.workload}-{method}-seed{seed}"
