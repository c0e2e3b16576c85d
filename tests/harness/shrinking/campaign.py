"""Shrinks the first failing run of twenty mutants, none left out: `make shrinking`.

Fixed beforehand: the mutants of the suite `torture` in its order, in the default world, the seeds below 300 from 0 on,
all fair faults, at least six of them in the run. The first run that is invalid is shrunk within 120 seconds of CPU. A
mutant none of whose runs is has a row that says so, and the next one of the suite takes its place, so that twenty are
shrunk. The table says how large each run was and became, with which sources, and whether the incident holds: its
failing variant fails the same way, byte for byte, in a process of its own, and the one without the flaw is valid.

    python -m tests.harness.shrinking.campaign --out docs/shrinking-measurements.jsonl

Mutants that have a row in the file are not shrunk again: interrupted, it goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

from checkers.verdict import Validity
from harness.cluster.random_streams import run_stream
from harness.incidents.incident import load_incident
from harness.runner.run import run_in_simulation
from harness.shrinking.session import ShrinkBudget, description, shrink
from harness.shrinking.shrinker import ShrinkProgress
from harness.shrinking.subjects import ShrinkSubject
from harness.spec import Spec
from harness.suites.plan import load
from results.store.spark import fingerprint

MUTANTS: Final = 20
SEEDS: Final = 300
FAULTS_LEAST: Final = 6
FAULTS_MOST: Final = 6
"""Of any shrunk run; and of the median:"""
FAULTS_MEDIAN: Final = 4
BUDGET_S: Final = 120.0


def first_failure(spec: Spec) -> Spec | None:
    """The spec with the first seed whose run has enough faults and is invalid."""
    brokers = tuple(f"b{number}" for number in range(1, spec.brokers + 1))
    controllers = tuple(f"c{number}" for number in range(1, spec.controllers + 1))
    for seed in range(SEEDS):
        candidate = replace(spec, seed=seed)
        faults = candidate.schedule(brokers, controllers, run_stream(seed, "schedule"))
        if len(faults) >= FAULTS_LEAST and run_in_simulation(candidate).validity is Validity.INVALID:
            return candidate
    return None


def shrunk(mutant: str, spec: Spec, directory: Path, budget_s: float) -> dict[str, Any]:
    """One row of the table."""
    failure = first_failure(spec)
    if failure is None:
        return {"mutant": mutant, "seed": None, "sources": fingerprint()}
    subject = ShrinkSubject(mutant, f"the mutant {mutant}, seed {failure.seed}", failure)
    began_s = time.monotonic()
    result = shrink(
        subject,
        directory,
        sources="",
        budget=ShrinkBudget(budget_s),
        clock=time.process_time,
        on_progress=_show_step,
    )
    before, after = result.failing.start.spec, result.shrunk.smallest.spec
    return {
        "mutant": mutant,
        "seed": failure.seed,
        "sources": fingerprint(),
        "signature": str(result.failing.expect.signature),
        "faults": [len(before.script), len(after.script)],
        "time_limit_s": [before.time_limit_s, after.time_limit_s],
        "clients": [_clients(before), _clients(after)],
        "runs": result.runs,
        "cpu_s": round(result.seconds, 1),
        "wall_s": round(time.monotonic() - began_s, 1),
        "complete": result.shrunk.complete,
        "repaired_holds": result.failing.repaired_holds,
        "unmet": list(result.unmet),
        "same_elsewhere": _digest_elsewhere(result.path) == result.shrunk.smallest.sighting.digest,
        "incident": result.path.read_text(encoding="utf-8"),
    }


def _show_step(progress: ShrinkProgress) -> None:
    if progress.accepted:
        print(
            f"  run {progress.runs}  {progress.pass_name}: {description(progress.smallest)}",
            file=sys.stderr,
            flush=True,
        )


def _clients(spec: Spec) -> int:
    return spec.producers + spec.consumers + spec.end_offset_readers


def _digest_elsewhere(path: Path) -> str:
    """The digest of the incident's first variant in another process, with another PYTHONHASHSEED."""
    command = [sys.executable, "-m", __spec__.name, "--digest", str(path)]
    environment = {"PYTHONHASHSEED": "77"}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.strip()


def campaign_mutants(rows: Sequence[Mapping[str, Any]]) -> dict[str, Spec]:
    """The mutants of the campaign, by name: the first twenty of the suite, and as many more as have a row that says
    that no run of theirs fails."""
    without_failure = {row["mutant"] for row in rows if row["seed"] is None}
    mutants = torture_mutants()
    places = accumulate(mutant not in without_failure for mutant in mutants)
    return {mutant: spec for (mutant, spec), place in zip(mutants.items(), places, strict=True) if place <= MUTANTS}


def torture_mutants() -> dict[str, Spec]:
    """The mutants of the suite `torture`, in its order, in the default world."""
    return {mutant: replace(spec, vary=()) for mutant, spec in load("torture").mutants.items()}


def read_rows(path: Path | None) -> list[dict[str, Any]]:
    """The rows of a file; none where there is no file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path is not None and path.exists() else []
    return [json.loads(line) for line in lines]


def absent_mutants(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The mutants of the campaign that have no row."""
    return [mutant for mutant in campaign_mutants(rows) if mutant not in {row["mutant"] for row in rows}]


def measure(mutant: str, budget_s: float) -> dict[str, Any]:
    """The row of a mutant, made in a process of its own."""
    command = [sys.executable, "-m", __spec__.name, "--mutant", mutant, "--budget", str(budget_s)]
    row: dict[str, Any] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """The rows in Markdown, in the order of the mutants, what must hold of them, and the mutants that have none."""
    mutants = list(campaign_mutants(rows))
    rows = sorted(rows, key=lambda row: mutants.index(row["mutant"]))
    lines = [
        "| mutant | seed | signature | faults | seconds of the run | clients | runs | CPU s | sources | holds |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    shown = [row for row in rows if row["seed"] is not None]
    for row in shown:
        sizes = (f"{before:g} → {after:g}" for before, after in (row["faults"], row["time_limit_s"], row["clients"]))
        cells = (f"`{row['mutant']}`", row["seed"], row["signature"], *sizes, row["runs"], row["cpu_s"], _short(row))
        lines.append(f"| {' | '.join(map(str, cells))} | {'yes' if holds(row) else '; '.join(row['unmet']) or 'no'} |")
    for row in rows:
        if row["seed"] is None:
            lines.append(f"| `{row['mutant']}` | none below {SEEDS} | | | | | | | {_short(row)} | |")
    if shown:
        after = [row["faults"][1] for row in shown]
        lines.append(
            f"\n{len(shown)} mutants; faults afterwards: {median(after):g} in the median, {max(after)} at most"
        )
    large = [f"`{row['mutant']}`" for row in shown if row["faults"][1] > FAULTS_MOST]
    if large:
        lines.append(f"\nMore than the {FAULTS_MOST} faults that are promised: {', '.join(large)}.")
    if unfinished := [f"`{row['mutant']}`" for row in shown if not row["complete"]]:
        lines.append(
            f"\nThe {BUDGET_S:g} seconds ended before every pass had come to its end: {', '.join(unfinished)}."
        )
    if absent := [f"`{mutant}`" for mutant in absent_mutants(rows)]:
        lines.append(f"\nNot measured yet: {', '.join(absent)}.")
    return "\n".join(lines)


def _short(row: Mapping[str, Any]) -> str:
    """The sources that a row was measured with, as far as it takes to tell them apart."""
    return f"`{row['sources'][:8]}`"


def holds(row: Mapping[str, Any]) -> bool:
    """Whether the incident of a row fails with its flaw, byte for byte in another process, and is valid without it."""
    return bool(row["repaired_holds"] and not row["unmet"] and row["same_elsewhere"])


def as_wanted(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether twenty mutants were shrunk, and all became as small as they must, and hold."""
    shown = [row for row in rows if row["seed"] is not None]
    after = [row["faults"][1] for row in shown]
    return (
        len(after) == MUTANTS
        and median(after) <= FAULTS_MEDIAN
        and max(after) <= FAULTS_MOST
        and all(map(holds, shown))
    )


def main() -> int:
    """0 when everything holds, else 1."""
    parser = argparse.ArgumentParser(description="Shrinks the first failing run of twenty mutants.")
    parser.add_argument("--out", type=Path, help="a row in JSON for each mutant; those in it are not made again")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds of CPU for each mutant (default: 120)")
    parser.add_argument("--mutant", help="only this one, as JSON on standard output")
    parser.add_argument("--digest", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.digest:
        print(run_in_simulation(load_incident(options.digest).variants[0].spec).digest)
        return 0
    if options.mutant:
        spec = torture_mutants()[options.mutant]
        with TemporaryDirectory(prefix="faultline-campaign-") as directory:
            print(json.dumps(shrunk(options.mutant, spec, Path(directory), options.budget)))
        return 0
    rows = read_rows(options.out)
    while absent := absent_mutants(rows):
        row = measure(absent[0], options.budget)
        rows.append(row)
        print(f"{row['mutant']}: {row.get('faults', 'not found')}", file=sys.stderr, flush=True)
        if options.out:
            with options.out.open("a", encoding="utf-8") as out:
                out.write(json.dumps(row) + "\n")
    print(table(rows))
    return 0 if as_wanted(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
