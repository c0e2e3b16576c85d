"""The corpus on disk: a folder that one night leaves to the next.

    hunt.json            the spec and the random seed of the hunt, runs, rounds, and how often each feature was seen
    entries/RUN.json     an entry: its spec as YAML, its features, where it comes from

Files are written whole and synced. `hunt.json` comes last and names the entries, so that a folder is always as after a
whole round: what a round that was cut short has left is written again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from harness.search.exclusive import kept_for_this_process
from harness.search.hunt.corpus import Candidate, Corpus, CorpusEntry, SearchYield
from harness.search.hunt.features import RunFeatures
from harness.search.hunt.traits import Trial
from harness.spec import Spec, loads
from harness.yaml_document import SpecError
from results.atomic_files import put_json, read_json
from results.errors import StoreError

STATE: Final = "hunt.json"
ENTRIES: Final = "entries"
_FORMAT: Final = 2


@dataclass(frozen=True, slots=True)
class HuntPlan:
    """What a hunt searches with: the same in all of its nights."""

    base: Spec
    seed: int
    round_size: int
    """Runs of a round."""


class CorpusFolder:
    """See the module's docstring."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder, and keep it for this process. StoreError when another hunt has it."""
        taken = "another hunt is going on with this corpus"
        with kept_for_this_process(self.path, self.path / ".lock", self.path / ENTRIES, taken):
            yield

    def load(self) -> tuple[HuntPlan, Corpus] | None:
        """The hunt and its corpus; None where there is none yet. StoreError when a file is damaged."""
        state = read_json(self.path / STATE)
        if not state:
            return None
        if "situations" in state and state.get("format") != _FORMAT:
            raise StoreError(f"{self.path}: is a corpus of another version of faultline; choose another folder")
        try:
            plan = HuntPlan(loads(state["spec"]), state["seed"], state["round_size"])
            corpus = Corpus(
                runs=state["runs"],
                rounds=state["rounds"],
                situations=Counter(state["situations"]),
                transitions=set(state["transitions"]),
                rules=Counter(state["rules"]),
                alone=dict(state["alone"]),
                trials=[Trial(run, tuple(traits), cost) for run, traits, cost in state["trials"]],
            )
            corpus.yields |= {name: SearchYield(**values) for name, values in state["yields"].items()}
            corpus.every = SearchYield(**state["every"])
            spent = dict(state["entries"])
            _check_numbers((plan.round_size, corpus.runs, corpus.rounds, *spent.values()))
            _check_numbers((*corpus.situations.values(), *corpus.rules.values()))
        except (AttributeError, KeyError, TypeError, ValueError, SpecError) as error:
            raise StoreError(f"{self.path / STATE}: is not the state of a hunt: {error}") from None
        for run, cost in spent.items():
            corpus.entries[run] = entry = self._entry(run, cost)
            seen = entry.features
            if not (seen.situations <= corpus.situations.keys() and seen.rules <= corpus.rules.keys()):
                raise StoreError(f"{self._path(run)}: is not an entry of this corpus: it has seen what no run has")
        return plan, corpus

    def save(self, plan: HuntPlan, corpus: Corpus, entered: Iterable[CorpusEntry]) -> None:
        """Write the new entries, then the state. StoreError when that fails."""
        for entry in entered:
            put_json(self._path(entry.candidate.run), _entry_to_json(entry), durable=True)
        state = {
            "format": _FORMAT,
            "seed": plan.seed,
            "round_size": plan.round_size,
            "runs": corpus.runs,
            "rounds": corpus.rounds,
            "every": asdict(corpus.every),
            "yields": {name: asdict(each) for name, each in corpus.yields.items()},
            "trials": corpus.trials,
            "spec": plan.base.to_yaml(),
            "entries": {run: entry.spent for run, entry in corpus.entries.items()},
            "situations": dict(sorted(corpus.situations.items())),
            "transitions": sorted(corpus.transitions),
            "rules": dict(sorted(corpus.rules.items())),
            "alone": dict(sorted(corpus.alone.items())),
        }
        put_json(self.path / STATE, state, durable=True)

    def _entry(self, run: str, spent: int) -> CorpusEntry:
        path = self._path(run)
        values = read_json(path)
        if not values:
            raise StoreError(f"{path}: is missing from the corpus")
        try:
            candidate = Candidate(run, values["origin"], str(values["spec"]), values["parent"])
            features = RunFeatures(
                frozenset(values["situations"]),
                frozenset(values["transitions"]),
                values["steps"],
                frozenset(values["rules"]),
            )
            return CorpusEntry(candidate, features, values["new"], spent)
        except (KeyError, TypeError) as error:
            raise StoreError(f"{path}: is not an entry of a corpus: {error}") from None

    def _path(self, run: str) -> Path:
        return self.path / ENTRIES / f"{run}.json"


def _check_numbers(counts: Iterable[object]) -> None:
    """Raise ValueError for what counts nothing."""
    for count in counts:
        if not isinstance(count, int) or count < 1:
            raise ValueError(f"{count!r} is not a number from 1 on")


def _entry_to_json(entry: CorpusEntry) -> Mapping[str, Any]:
    candidate, features = entry.candidate, entry.features
    return {
        "origin": candidate.origin,
        "parent": candidate.parent,
        "new": entry.new,
        "steps": features.steps,
        "spec": candidate.text,
        "situations": sorted(features.situations),
        "transitions": sorted(features.transitions),
        "rules": sorted(features.rules),
    }
