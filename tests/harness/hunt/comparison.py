"""Compares the guided search with random runs: the same worlds, families and processor time, from an empty corpus.

    python -m tests.harness.hunt.comparison --ranges 5 --cpu-seconds 150 --out docs/hunt-measurements.jsonl

A *range* is a pair: a hunt with a random seed of its own, and random runs with seeds that no other range has, each as
long as its processor time lasts. Time counts from the spec to the features of its run: drawing or mutating, the run
with its checks, the abstraction, and for the hunt choosing and the corpus. Every run has a process of its own. Both are
as a suite makes them, with Spark and the store left out, which cost both the same.

Ranges that the file has are not made again: interrupted, it goes on where it was, with the rest.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

from checkers.verdict import Validity
from harness.runner.run import run
from harness.search.hunt.candidates import candidates
from harness.search.hunt.corpus import FRESH, Candidate, Corpus, RunFeatures
from harness.search.hunt.hunt import features_of_marks
from harness.search.hunt.operators import fresh
from harness.spec import Spec, loads, parse
from results.coverage import SITUATION, marks
from results.run.directory import RunDirectory

RANDOM_SEEDS: Final = 100_000
"""Of the random runs of a range, at most."""
ROUND_SIZE: Final = 16
FEW_REPLICAS: Final = 3


class MeasuredRun(NamedTuple):
    """A run that was made in a process of its own."""

    features: RunFeatures
    valid: bool
    few: frozenset[str]
    """Its situations of partitions with few replicas: the others are more, whatever the search."""
    cpu_s: float


Runs = Iterator[tuple[Candidate, MeasuredRun]]


def base(time_limit_s: float) -> Spec:
    """The spec of both: all fair families in drawn worlds."""
    return parse({"vary": True, "time_limit": time_limit_s})


def hunted(spec: Spec, number: int, size: int = ROUND_SIZE) -> Runs:
    """The runs of a hunt, for ever."""
    corpus = Corpus()
    while True:
        made = []
        for candidate in candidates(corpus, spec, number, size):
            result = measured(candidate.text)
            made.append((candidate, result.features, result.valid))
            yield candidate, result
        corpus.take_in(made)


def randomly(spec: Spec, number: int) -> Runs:
    """Random runs, for ever."""
    for seed in count(number * RANDOM_SEEDS):
        candidate = Candidate(f"{FRESH}-{seed}", FRESH, fresh(spec, seed).to_yaml())
        yield candidate, measured(candidate.text)


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
    return MeasuredRun(
        features_of_marks(found, steps),
        outcome.validity is Validity.VALID,
        features_of_marks(few, 0).situations,
        time.process_time() - began_s,
    )


def within(runs: Runs, cpu_seconds: float, on_run: Callable[[str], None]) -> dict[str, Any]:
    """What a search sees in so much processor time."""
    seen, few = set[str](), set[str]()
    spent_s, curve, origins = 0.0, [], dict[str, int]()
    invalid: list[str] = []
    while True:
        own_s = time.process_time()
        candidate, result = next(runs)
        spent_s += result.cpu_s + time.process_time() - own_s
        if spent_s > cpu_seconds:
            break
        seen |= result.features.situations
        few |= result.few
        curve.append((round(spent_s, 2), len(seen)))
        origins[candidate.origin] = origins.get(candidate.origin, 0) + 1
        invalid += [] if result.valid else [candidate.run]
        on_run(f"{len(curve)} runs, {spent_s:.0f} of {cpu_seconds:g} s, {len(seen)} situations")
    return {
        "runs": len(curve),
        "situations": len(seen),
        "of_few_replicas": len(few),
        "not_valid": len(invalid),
        "origins": dict(sorted(origins.items())),
        "curve": curve,
    }


def compared(number: int, cpu_seconds: float, time_limit_s: float, on_run: Callable[[str], None]) -> dict[str, Any]:
    """One range."""
    spec = base(time_limit_s)
    return {
        "range": number,
        "cpu_seconds": cpu_seconds,
        "time_limit_s": time_limit_s,
        "hunt": within(hunted(spec, number), cpu_seconds, lambda text: on_run(f"range {number}, hunt: {text}")),
        "random": within(randomly(spec, number), cpu_seconds, lambda text: on_run(f"range {number}, random: {text}")),
    }


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The ranges in the file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def reached_s(row: Mapping[str, Any]) -> float | None:
    """The processor time after which the hunt has seen as many situations as the random runs in all of theirs."""
    return next((spent_s for spent_s, seen in row["hunt"]["curve"] if seen >= row["random"]["situations"]), None)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The ranges as Markdown, and what they come to."""
    heads = ("range", "situations: random", "hunt", "ratio", "of up to 3 replicas: random", "hunt", "ratio")
    lines = ["| " + " | ".join((*heads, "runs: random", "hunt", "as many as random after")) + " |", "|---" * 10 + "|"]
    for row in rows:
        after_s = reached_s(row)
        after = "never" if after_s is None else f"{after_s:.0f} s, {after_s / row['cpu_seconds']:.0%} of its time"
        cells = [str(row["range"])]
        for name in ("situations", "of_few_replicas"):
            cells += [f"{row[kind][name]:,}" for kind in ("random", "hunt")] + [f"{ratio(row, name):.2f}"]
        cells += [*(str(row[kind]["runs"]) for kind in ("random", "hunt")), after]
        lines.append("| " + " | ".join(cells) + " |")
    hours = sum(row["cpu_seconds"] for row in rows) / 3600
    by_hour = {kind: sum(row[kind]["situations"] for row in rows) / hours for kind in ("random", "hunt")}
    lines += [
        "",
        f"{len(rows)} paired ranges of {rows[0]['cpu_seconds']:g} s of CPU for each search, in runs of "
        f"{rows[0]['time_limit_s']:g} s: the hunt sees {_ratios(rows, 'situations')} the distinct situations, "
        f"{by_hour['hunt']:,.0f} by CPU hour where random runs see {by_hour['random']:,.0f}; of partitions with up to "
        f"three replicas {_ratios(rows, 'of_few_replicas')}.",
    ]
    return "\n".join(lines) + "\n"


def ratio(row: Mapping[str, Any], name: str) -> float:
    """What the hunt sees by what random runs see."""
    value: float = row["hunt"][name] / row["random"][name]
    return value


def _ratios(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    ratios = sorted(ratio(row, name) for row in rows)
    return f"{median(ratios):.2f} times ({ratios[0]:.2f} to {ratios[-1]:.2f})"


def main() -> None:
    """Make the ranges that the file lacks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--ranges", type=int, default=20)
    parser.add_argument("--cpu-seconds", type=float, default=3600.0)
    parser.add_argument("--time-limit", type=float, default=60.0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    known = {row["range"] for row in read_rows(options.out)}
    for number in range(options.first, options.first + options.ranges):
        if number not in known:
            row = compared(number, options.cpu_seconds, options.time_limit, lambda text: print(text, file=sys.stderr))
            with options.out.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
