"""How soon each search finds a broker without a rule: a hunt and random runs of that broker, in paired ranges.

    python -m tests.harness.hunt.finding --ranges 5 --out docs/hunt-finds.jsonl

The rules are two by whose absence acknowledged records are lost and that random runs hardly find (docs/mutants.md); the
families are those of the runs in which they were measured there. A search has found the broker with the first run that
is invalid and whose spec is valid with the full protocol: that run is made only then, and costs the search nothing,
since it is part of the measurement. Until then both take turns (`tests.harness.hunt.searches`), each for CAP_S at most.
The random runs of one range have the same seeds for both rules.

Ranges that the file has are not made again: interrupted, it goes on where it was, with the rest.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

from scipy import stats

from checkers.verdict import Validity
from harness.spec import Spec, parse
from tests.harness.hunt.searches import Step, add_row, commit, hunted, load_modules, measured, randomly, read_rows

RULES: Final = ("fence_fetch_broker_epoch", "delete_replica_durably")
FAMILIES: Final = ("partition", "packets", "kill", "pause", "power-loss", "admin")
CAP_S: Final = 600.0


def base(rule: str, time_limit_s: float) -> Spec:
    """The spec of both: drawn worlds, without the rule."""
    return parse({"vary": True, "time_limit": time_limit_s, "faults": [*FAMILIES], "without": [rule]})


@dataclass(slots=True)
class FindTally:
    """What a search has spent, and what it has found."""

    spent_s: float = 0.0
    runs: int = 0
    read: int = 0
    """Runs in which a node read the rule."""
    accused: list[str] = field(default_factory=list)
    """Invalid runs whose specs are not valid with the full protocol either, so that they are no find."""
    found: str = ""
    """The run that is one."""
    findings: Sequence[str] = ()

    def take(self, step: Step, rule: str, validity_of_full: Callable[[Spec], Validity]) -> None:
        """Count a run."""
        self.spent_s += step.cpu_s
        self.runs += 1
        self.read += rule in step.result.features.rules
        if step.result.validity is not Validity.INVALID:
            return
        if validity_of_full(replace(step.candidate.spec, without=())) is Validity.VALID:
            self.found, self.findings = step.candidate.run, step.result.findings
        else:
            self.accused.append(step.candidate.run)

    def to_json(self) -> dict[str, Any]:
        """As a row has it."""
        return {
            "cpu_s": round(self.spent_s, 1),
            "runs": self.runs,
            "read": self.read,
            "accused": self.accused,
            "found": self.found,
            "findings": list(self.findings),
        }


def until_found(
    searches: Mapping[str, Iterator[Step]],
    rule: str,
    cap_s: float,
    validity_of_full: Callable[[Spec], Validity],
    on_run: Callable[[str, FindTally], None],
) -> dict[str, FindTally]:
    """What each search spends until its first find, or until it has spent `cap_s`."""
    tallies = {name: FindTally() for name in searches}
    while left := [name for name, each in tallies.items() if not each.found and each.spent_s < cap_s]:
        name = min(left, key=lambda each: tallies[each].spent_s)
        tallies[name].take(next(searches[name]), rule, validity_of_full)
        on_run(name, tallies[name])
    return tallies


def compared(
    rule: str, number: int, cap_s: float, time_limit_s: float, on_run: Callable[[str], None]
) -> dict[str, Any]:
    """One range of one rule."""
    spec = base(rule, time_limit_s)

    def show(name: str, tally: FindTally) -> None:
        on_run(f"{rule}, range {number}, {name}: {tally.runs} runs, {tally.spent_s:.0f} s {tally.found}")

    row = {"rule": rule, "range": number, "cap_s": cap_s, "time_limit_s": time_limit_s, "commit": commit()}
    searches = {"random": randomly(spec, number), "hunt": hunted(spec, number)}
    tallies = until_found(searches, rule, cap_s, lambda full: measured(full.to_yaml()).validity, show)
    return {**row, **{name: tally.to_json() for name, tally in tallies.items()}}


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The ranges of the commit that was measured last as Markdown, and what those of a rule come to."""
    return _table([row for row in rows if row["commit"] == rows[-1]["commit"]])


def table_before(rows: Sequence[Mapping[str, Any]]) -> str:
    """The ranges of earlier commits, which are of other searches, likewise."""
    return _table([row for row in rows if row["commit"] != rows[-1]["commit"]])


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "Not measured yet.\n"
    heads = (
        "rule",
        "range",
        "random: CPU s",
        "runs",
        "read in",
        "hunt: CPU s",
        "runs",
        "read in",
        "found by",
        "commit",
    )
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    rows = sorted(rows, key=lambda row: (RULES.index(row["rule"]), row["range"]))
    for row in rows:
        cells = [f"`{row['rule']}`", str(row["range"])]
        for name in ("random", "hunt"):
            spent = f"{row[name]['cpu_s']:.0f}" if row[name]["found"] else f"not in {row['cap_s']:g}"
            cells += [spent, str(row[name]["runs"]), str(row[name]["read"])]
        kinds = sorted({kind for name in ("random", "hunt") for kind in row[name]["findings"]})
        cells += [", ".join(f"`{kind}`" for kind in kinds) or "—", f"`{row['commit']}`"]
        lines.append("| " + " | ".join(cells) + " |")
    for rule in RULES:
        of_rule = [row for row in rows if row["rule"] == rule]
        if of_rule:
            lines += ["", _sum(rule, of_rule)]
    return "\n".join(lines) + "\n"


def _sum(rule: str, rows: Sequence[Mapping[str, Any]]) -> str:
    spent = {name: sum(row[name]["cpu_s"] for row in rows) for name in ("random", "hunt")}
    found = {name: sum(bool(row[name]["found"]) for row in rows) for name in spent}
    middle = {name: median(row[name]["cpu_s"] for row in rows) for name in spent}
    return (
        f"`{rule}`: random runs find it in {found['random']} of {len(rows)} ranges, the hunt in {found['hunt']}. In "
        f"all, random runs take {spent['random']:.0f} s and the hunt {spent['hunt']:.0f} s, a ratio of "
        f"{spent['hunt'] / spent['random']:.2f}; the medians are {middle['random']:.0f} and {middle['hunt']:.0f} s. A "
        f"range without a find counts with what was spent on it." + _by_find(spent, found)
    )


def _by_find(spent: Mapping[str, float], found: Mapping[str, int]) -> str:
    """What each find took, if finding has no memory, and the ratio with its interval: of all finds so many are of the
    hunt as its share of the time and its rate say (Clopper and Pearson)."""
    if not all(found.values()):
        return ""
    each = {name: spent[name] / found[name] for name in spent}
    share = stats.binomtest(found["hunt"], sum(found.values())).proportion_ci(0.95)
    low, high = (spent["hunt"] / spent["random"] * (1 - bound) / bound for bound in (share.high, share.low))
    return (
        f" For each find that is {each['random']:.0f} and {each['hunt']:.0f} s, a ratio of "
        f"{each['hunt'] / each['random']:.2f} (95% interval {low:.2f} to {high:.2f})."
    )


def main() -> None:
    """Make the ranges that the file lacks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--ranges", type=int, default=5)
    parser.add_argument("--cap", type=float, default=CAP_S, help="CPU seconds of a search without a find")
    parser.add_argument("--time-limit", type=float, default=60.0)
    parser.add_argument("--rule", choices=RULES, action="append", help="one of the rules (default: both)")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    known = {(row["rule"], row["range"], row["cap_s"], row["time_limit_s"]) for row in read_rows(options.out)}
    load_modules()
    for number in range(options.first, options.first + options.ranges):
        for rule in options.rule or RULES:
            if (rule, number, options.cap, options.time_limit) not in known:
                row = compared(rule, number, options.cap, options.time_limit, lambda text: print(text, file=sys.stderr))
                add_row(options.out, row)


if __name__ == "__main__":
    main()
