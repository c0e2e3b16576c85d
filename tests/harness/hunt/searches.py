"""The two searches that are compared, run by run: a hunt with an empty corpus, and random runs.

Time counts from the spec to the features of its run: drawing or mutating, the run with its checks, the abstraction, and
for the hunt choosing and the corpus. Every run has a process of its own, forked from one that has all modules loaded
(`load_modules`), as the workers of a suite are. Both are as a suite makes them, with Spark and the store left out,
which cost both the same.

The two take turns: the next run is made by the search that has spent less. So other work on the machine, which makes a
run cost more processor time than another, meets both alike.
"""

from __future__ import annotations

import gc
import json
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

from checkers.verdict import Validity
from harness.runner.run import run
from harness.search.hunt.candidates import candidates, round_size
from harness.search.hunt.corpus import FRESH, Candidate, Corpus
from harness.search.hunt.features import RunFeatures, features_of_marks
from harness.search.hunt.operators import fresh
from harness.spec import Spec, loads
from results.coverage import SITUATION, marks
from results.run.directory import RunDirectory

RANDOM_SEEDS: Final = 100_000
"""Of the random runs of a range, at most."""
ROUND_SIZE: Final = 16
"""Runs of a round of the hunt, at most."""
FEW_REPLICAS: Final = 3


class MeasuredRun(NamedTuple):
    """A run that was made in a process of its own."""

    features: RunFeatures
    validity: Validity
    findings: tuple[str, ...]
    """Kinds of what the checks found whose verdict is that of the run."""
    few: frozenset[str]
    """Its situations of partitions with few replicas: the others are more, whatever the search."""
    cpu_s: float


class Step(NamedTuple):
    """A run of a search."""

    candidate: Candidate
    result: MeasuredRun
    cpu_s: float
    """Of the run, and of the search since the run before."""


def hunted(spec: Spec, number: int, earlier: Sequence[Step] = (), size: int = ROUND_SIZE) -> Iterator[Step]:
    """The runs of a hunt, for ever; first those that it has made before."""
    corpus, made_before = Corpus(), iter(earlier)
    began_s = time.process_time()
    while True:
        made = []
        for candidate in candidates(corpus, spec, number, round_size(corpus, size)):
            step = next(made_before, None) or _step(candidate, began_s)
            yield _of(candidate, step)
            began_s = time.process_time()
            made.append((candidate, step.result.features, step.result.validity is Validity.VALID))
        corpus.take_in(made)


def randomly(spec: Spec, number: int, earlier: Sequence[Step] = ()) -> Iterator[Step]:
    """Random runs, for ever; first those that were made before."""
    made_before = iter(earlier)
    for seed in count(number * RANDOM_SEEDS):
        began_s = time.process_time()
        candidate = Candidate(f"{FRESH}-{seed}", FRESH, fresh(spec, seed).to_yaml())
        yield _of(candidate, next(made_before, None) or _step(candidate, began_s))


def _step(candidate: Candidate, began_s: float) -> Step:
    own_s = time.process_time() - began_s
    result = measured(candidate.text)
    return Step(candidate, result, own_s + result.cpu_s)


def _of(candidate: Candidate, step: Step) -> Step:
    """The step, if it is one of this candidate; an earlier one is not where the search has changed since."""
    if step.candidate != candidate:
        raise ValueError(f"{step.candidate.run} was made before, and now the search makes {candidate.run}")
    return step


def load_modules() -> None:
    """Load what a run needs, so that no process of a run does."""
    _made("seed: 1\nfaults: none\ntime_limit: 1s\n")
    gc.collect()
    gc.freeze()


def measured(text: str) -> MeasuredRun:
    """Make a run in a process of its own."""
    with get_context("fork").Pool(1) as pool:
        result: MeasuredRun = pool.apply(_made, (text,))
        return result


def _made(text: str) -> MeasuredRun:
    began_s = time.process_time()
    spec = loads(text)
    with TemporaryDirectory(prefix="faultline-hunt-") as store:
        outcome = run(spec, RunDirectory.create(Path(store), "run", spec.seed), report=False)
        assert outcome.directory is not None
        found = [(row["kind"], row["name"]) for row in marks(RunDirectory.open(outcome.directory).load()).to_pylist()]
    steps = outcome.trail[-1][0] if outcome.trail else 0
    few = [(kind, name) for kind, name in found if kind == SITUATION and name.count(" ") <= FEW_REPLICAS]
    decisive = [verdict for verdict in outcome.verdicts if verdict.validity is outcome.validity]
    findings = {finding.kind for verdict in decisive for finding in verdict.findings}
    return MeasuredRun(
        features_of_marks(found, steps),
        outcome.validity,
        tuple(sorted(findings)),
        features_of_marks(few, 0).situations,
        time.process_time() - began_s,
    )


def commit() -> str:
    """The commit of the program that is measured; with a plus if it has changes."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--exclude=*"], capture_output=True, text=True, check=False
    )
    return described.stdout.strip()


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows in a file of measurements."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def add_row(path: Path, row: Mapping[str, Any]) -> None:
    """Add one, whole or not at all."""
    with path.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(row) + "\n")
