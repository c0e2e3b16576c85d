"""Compares the guided search with random runs: the same worlds, families and processor time, from an empty corpus.

Beside both are *dense* random runs, of DENSE schedules at once: what such runs gain without a search (not with
`--no-dense`, for long ranges).

    python -m tests.harness.hunt.comparison --ranges 5 --cpu-seconds 150 --out docs/hunt-measurements.jsonl

The broker is that of the full protocol, so a run that is not valid is a bug of the broker or of a check. The specs of
such runs are kept in FOUND.

A *range* is a pair: a hunt with a random seed of its own, and random runs with seeds that no other range has, each as
long as its processor time lasts (`tests.harness.hunt.searches`). Ranges that the file has are not made again:
interrupted, it goes on where it was, also within a range at the same commit (`tests.harness.hunt.journal`).
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any, Final

from checkers.verdict import Validity
from harness.spec import Spec, parse
from results.atomic_files import put_text
from tests.harness.hunt.journal import Journal
from tests.harness.hunt.searches import Step, add_row, commit, hunted, load_modules, randomly, read_rows

SEARCHES: Final = ("random", "dense", "hunt")
"""In the order of the table; not all rows have dense runs."""
FOUND: Final = Path("results/runs/hunting")
DENSE: Final = 8
"""Schedules of a dense random run."""


def base(time_limit_s: float) -> Spec:
    """The spec of both: all fair families in drawn worlds."""
    return parse({"vary": True, "time_limit": time_limit_s})


@dataclass(slots=True)
class SearchTally:
    """What a search has seen."""

    seen: set[str] = field(default_factory=set)
    few: set[str] = field(default_factory=set)
    rules: Counter[str] = field(default_factory=Counter)
    """Rule → number of runs that read it."""
    origins: Counter[str] = field(default_factory=Counter)
    not_valid: dict[str, str] = field(default_factory=dict)
    """Run → its spec."""
    curve: list[tuple[float, int]] = field(default_factory=list)
    """Processor time after each run, and the situations seen until then."""
    spent_s: float = 0.0
    """With a last run that did not end in time, which does not count."""

    def take(self, step: Step, cpu_seconds: float) -> None:
        """Count a run if it ended in time."""
        self.spent_s += step.cpu_s
        if self.spent_s > cpu_seconds:
            return
        self.seen |= step.result.features.situations
        self.few |= step.result.few
        self.rules.update(step.result.features.rules)
        self.origins[step.candidate.origin] += 1
        if step.result.validity is not Validity.VALID:
            self.not_valid[step.candidate.run] = step.candidate.text
        self.curve.append((round(self.spent_s, 2), len(self.seen)))

    def to_json(self) -> dict[str, Any]:
        """As a row has it."""
        return {
            "runs": len(self.curve),
            "situations": len(self.seen),
            "of_few_replicas": len(self.few),
            "rules": dict(sorted(self.rules.items())),
            "not_valid": list(self.not_valid),
            "origins": dict(sorted(self.origins.items())),
            "curve": self.curve,
        }


def in_turns(
    searches: Mapping[str, Iterator[Step]], cpu_seconds: float, on_run: Callable[[str, SearchTally], None]
) -> dict[str, SearchTally]:
    """What each search sees in so much processor time."""
    tallies = {name: SearchTally() for name in searches}
    while left := [name for name in searches if tallies[name].spent_s <= cpu_seconds]:
        name = min(left, key=lambda each: tallies[each].spent_s)
        tallies[name].take(next(searches[name]), cpu_seconds)
        on_run(name, tallies[name])
    return tallies


def compared(
    number: int,
    cpu_seconds: float,
    time_limit_s: float,
    on_run: Callable[[str], None],
    journal: Journal,
    *,
    dense: bool = True,
    found: Path = FOUND,
) -> dict[str, Any]:
    """One range, with what the journal has of it. The specs of runs that are not valid are kept in the directory
    `found`."""
    spec = base(time_limit_s)

    def show(name: str, tally: SearchTally) -> None:
        for run, text in tally.not_valid.items():
            put_text(found / f"{number}-{name}-{run}.yaml", text, parents=True)
        spent = f"{tally.spent_s:.0f} of {cpu_seconds:g} s"
        on_run(f"range {number}, {name}: {len(tally.curve)} runs, {spent}, {len(tally.seen)} situations")

    row = {"range": number, "cpu_seconds": cpu_seconds, "time_limit_s": time_limit_s, "commit": commit()}
    searches = {
        "random": randomly(spec, number, journal.steps("random")),
        "hunt": hunted(spec, number, journal.steps("hunt")),
    }
    if dense:
        searches["dense"] = randomly(replace(spec, schedules=DENSE), number, journal.steps("dense"))
    kept = {name: journal.kept(name, search) for name, search in searches.items()}
    tallies = in_turns(kept, cpu_seconds, show)
    return {**row, **{name: tally.to_json() for name, tally in tallies.items()}}


def reached_s(row: Mapping[str, Any]) -> float | None:
    """The processor time after which the hunt has seen as many situations as the random runs in all of theirs."""
    return next((spent_s for spent_s, seen in row["hunt"]["curve"] if seen >= row["random"]["situations"]), None)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The ranges as Markdown, or that there are none, and what those of the same time and commit come to."""
    if not rows:
        return "Not measured yet.\n"
    heads = ("range", "CPU s", "situations: random", "dense", "hunt", "ratio", "of up to 3 replicas: random", "dense")
    heads += ("hunt", "ratio", "runs: random", "dense", "hunt", "as many as random after", "commit")
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    first = {row["commit"]: row["range"] for row in sorted(rows, key=lambda row: row["range"], reverse=True)}
    rows = sorted(rows, key=lambda row: (*_kind(row)[:2], first[row["commit"]], row["range"]))
    for row in rows:
        after_s = reached_s(row)
        after = "never" if after_s is None else f"{after_s:.0f} s, {after_s / row['cpu_seconds']:.0%} of its time"
        cells = [str(row["range"]), f"{row['cpu_seconds']:g}"]
        for name in ("situations", "of_few_replicas"):
            cells += [f"{row[kind][name]:,}" if kind in row else "" for kind in SEARCHES]
            cells.append(f"{ratio(row, name):.2f}")
        cells += [*(str(row[kind]["runs"]) if kind in row else "" for kind in SEARCHES), after, f"`{row['commit']}`"]
        lines.append("| " + " | ".join(cells) + " |")
    for (cpu_seconds, time_limit_s, made_at), of_kind in groupby(rows, key=_kind):
        alike = list(of_kind)
        lines += [
            "",
            f"Paired ranges at `{made_at}`, {cpu_seconds:g} s of CPU for each search, in runs of {time_limit_s:g} s: "
            f"{len(alike)}. The hunt sees {_ratios(alike, 'situations')} the distinct situations; of partitions with "
            f"up to three replicas {_ratios(alike, 'of_few_replicas')}. Runs that are not `valid`: "
            f"{_not_valid(alike, 'random')} of the random ones, {_not_valid(alike, 'hunt')} of the hunt.",
        ]
        if dense := [row for row in alike if "dense" in row]:
            lines[-1] += (
                f" Random runs with {DENSE} schedules at once see {_ratios(dense, 'situations', 'dense')} those of "
                f"runs with one, and {_ratios(dense, 'of_few_replicas', 'dense')}."
            )
    return "\n".join(lines) + "\n"


def _kind(row: Mapping[str, Any]) -> tuple[float, float, str]:
    """What ranges have in common that say the same: the time for a search, that of a run, and the commit."""
    return row["cpu_seconds"], row["time_limit_s"], row["commit"]


def ratio(row: Mapping[str, Any], name: str, search: str = "hunt") -> float:
    """What a search sees by what random runs see."""
    value: float = row[search][name] / row["random"][name]
    return value


def _ratios(rows: Sequence[Mapping[str, Any]], name: str, search: str = "hunt") -> str:
    ratios = sorted(ratio(row, name, search) for row in rows)
    return f"{median(ratios):.2f} times ({ratios[0]:.2f} to {ratios[-1]:.2f})"


def _not_valid(rows: Sequence[Mapping[str, Any]], search: str) -> int:
    return sum(len(row[search]["not_valid"]) for row in rows)


def main() -> None:
    """Make the ranges that the file lacks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--ranges", type=int, default=20)
    parser.add_argument("--cpu-seconds", type=float, default=3600.0)
    parser.add_argument("--time-limit", type=float, default=60.0)
    parser.add_argument("--no-dense", dest="dense", action="store_false")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    known = {(row["range"], row["cpu_seconds"], row["time_limit_s"]) for row in read_rows(options.out)}
    load_modules()
    for number in range(options.first, options.first + options.ranges):
        if (number, options.cpu_seconds, options.time_limit) not in known:
            kind = f"{number}-{options.cpu_seconds:g}-{options.time_limit:g}-{commit()}"
            journal = Journal(options.out.with_name(f"{options.out.name}.{kind}.steps"))
            row = compared(number, options.cpu_seconds, options.time_limit, _show, journal, dense=options.dense)
            add_row(options.out, row)
            journal.close()


def _show(text: str) -> None:
    print(text, file=sys.stderr)


if __name__ == "__main__":
    main()
