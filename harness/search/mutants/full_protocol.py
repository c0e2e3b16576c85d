"""The runs of the full protocol with the seeds of the mutants: which runs of a mutant are those very runs.

A safety rule is read only where it makes a difference, and every node says when it reads one for the first time
(`images.broker.rules`). So a run of the full protocol in which nobody read a rule is, event by event, the run of the
mutant that lacks the rule: the same verdict, the same processor time. Such a run of a mutant counts without being made.

The runs stand in one file of the store. They are those of one state of the sources, and are made again for another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from harness.search.ended_runs import EndedRun
from harness.search.mutants.mutant import Method, Mutant, MutantKind
from harness.suites.boxes import BOXES, CPU_SECONDS
from harness.suites.plan import PlannedRun
from results.atomic_files import put_json, read_json
from results.coverage import RULE
from results.errors import StoreError

_FACTS: Final = (*BOXES, CPU_SECONDS)
_PREFIX: Final = "full-protocol-"


@dataclass(frozen=True, slots=True)
class FullRun:
    """One run of the full protocol."""

    run: str
    """Night and run in the store."""
    commit: str
    rules_read: list[str]
    facts: dict[str, Any]
    """What each box found, and the processor time."""


@dataclass(slots=True)
class FullProtocol:
    """See the module's docstring."""

    path: Path
    sources: str
    """The digest of the sources."""
    runs: dict[str, FullRun] = field(default_factory=dict)
    """By the name of the run."""

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

    def is_known(self, mutant: Mutant, method: Method, seed: int) -> bool:
        """Whether it is known if the run of a mutant is that of the full protocol."""
        return not _is_one_rule(mutant) or _run(mutant, method, seed) in self.runs

    def same(self, mutant: Mutant, method: Method, seed: int) -> FullRun | None:
        """The run of the full protocol that the run of a mutant is; None where the mutant's may be another one."""
        full = self.runs.get(_run(mutant, method, seed)) if _is_one_rule(mutant) else None
        return None if full is None or set(mutant.without) & set(full.rules_read) else full

    def plan(self, mutant: Mutant, method: Method, seeds: Iterable[int]) -> Iterator[PlannedRun]:
        """The runs of the full protocol with these seeds."""
        base = full_protocol_of(mutant).base(method)
        for seed in seeds:
            name = _run(mutant, method, seed)
            spec = replace(base, name=name, seed=seed).to_yaml()
            yield PlannedRun(name, cell_of_full_protocol(mutant, method), seed, spec=spec, boxed=True)

    def take_in(self, ended: Mapping[str, EndedRun], planned: Iterable[PlannedRun], night: str, commit: str) -> None:
        """Remember those of the planned runs that have ended. StoreError when the file cannot be written."""
        before = len(self.runs)
        for each in planned:
            run = ended.get(each.run)
            if run is not None and run.validity is not None:
                rules = sorted(name for kind, name in run.marks if kind == RULE)
                facts = {name: run.facts[name] for name in _FACTS}
                self.runs[each.run] = FullRun(f"{night}/{each.run}", commit, rules, facts)
        if len(self.runs) > before:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            put_json(self.path, {"sources": self.sources, "runs": {name: asdict(it) for name, it in self.runs.items()}})

    @staticmethod
    def is_own(run: PlannedRun) -> bool:
        """Whether a run is one of the full protocol."""
        return run.run.startswith(_PREFIX)


def full_protocol_of(mutant: Mutant) -> Mutant:
    """The broker that a mutant of one rule is without its flaw."""
    return replace(mutant, name=f"full protocol, {mutant.workload}", without=())


def cell_of_full_protocol(mutant: Mutant, method: Method) -> str:
    """The cell of its runs in the store."""
    return f"{full_protocol_of(mutant).name}, {method}"


def _run(mutant: Mutant, method: Method, seed: int) -> str:
    return f"{_PREFIX}{mutant.workload}-{method}-seed{seed}"


def _is_one_rule(mutant: Mutant) -> bool:
    return mutant.kind is MutantKind.RULE
