"""Apache Kafka under all faults, one run after the other, and what became of each: the runs of docs/kafka.md.

    python -m tests.systems.campaign --seeds 1-10 --store results/runs --out docs/kafka-runs.jsonl
    python -m tests.systems.campaign --seeds 1-3 --version 3.4.1 --store results/runs --out docs/kafka-runs.jsonl
    python -m tests.systems.campaign --seeds 1-3 --library java --store results/runs --out docs/kafka-runs.jsonl

Each run is `faultline run --environment docker --system kafka --faults all --time-limit 120` in a process of its own,
with the limits that a busy machine needs. Every run adds a line to the file, also one that could not be carried out;
nothing is ever removed, and a run that has a line is not made again: interrupted, it goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from harness.cluster.systems import SYSTEMS
from harness.environments.cleanup import in_docker
from harness.environments.docker.engine import connect
from nemesis.registry import FAIR_FAMILIES

READY_LIMIT_S: Final = 600
RECOVERY_LIMIT_S: Final = 240
NATIVE: Final = "native"
_IMPOSSIBLE: Final = "message"
"""Packet filters cannot tell messages apart."""
RUNS: Final = (
    *("release", "clients", "seed", "verdict", "appends acknowledged", "whole again after"),
    *("faults that took effect, of those injected", "checks not valid"),
)
FAILED: Final = "failed"
"""In place of the verdict of a run that could not be carried out."""
TOTALS: Final = ("family", "took effect", "injected", "runs with one that did")

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CarriedOut:
    """A run of `faultline run` in a process of its own."""

    summary: Row
    """What `faultline run --json` printed, or `crashed`."""
    left_behind: tuple[str, ...]
    """Containers and networks that are still there."""
    seconds: float


def document(version: str, library: str, seed: int, time_limit_s: float) -> dict[str, Any]:
    """The spec of a run, without its faults."""
    limits = {"time_limit": time_limit_s, "ready_limit": READY_LIMIT_S, "recovery_limit": RECOVERY_LIMIT_S}
    which = {"environment": "docker", "system": "kafka", "version": version, "seed": seed}
    return {**which, **limits, "clients": {"library": library}}


def row_of(version: str, library: str, run: CarriedOut) -> dict[str, Any]:
    """The line of a run."""
    summary = run.summary
    return {
        "release": version,
        "library": library,
        "seed": summary["seed"],
        "run": Path(summary["run"]).name,
        "verdict": verdict(summary),
        "failure": summary["failure"],
        "not_valid": not_valid(summary),
        "faults": faults(summary),
        "operations": summary["operations"],
        "recovery": summary["recovery"],
        "left_behind": list(run.left_behind),
        "seconds": round(run.seconds),
    }


def verdict(summary: Row) -> str:
    """Of the whole run; FAILED where it could not be carried out."""
    return FAILED if summary["failure"] else str(summary["validity"])


def not_valid(summary: Row) -> dict[str, Any]:
    """Check that is not valid → its verdict, and its first finding of each kind."""
    return {check["checker"]: _reasons(check) for check in summary.get("checks", []) if check["validity"] != "valid"}


def faults(summary: Row) -> dict[str, list[int]]:
    """Family → faults that took effect, of those injected."""
    return {family: [each["took_effect"], each["injected"]] for family, each in summary["faults"].items()}


def _reasons(check: Row) -> dict[str, Any]:
    first = {finding["kind"]: " ".join(finding["lines"]) for finding in reversed(check["findings"])}
    return {"verdict": check["validity"], "findings": first}


def read_rows(path: Path) -> list[Row]:
    """The lines of the file; none where there is no file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def add_row(path: Path, row: Row) -> None:
    """Add a line to the file."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")


def table(rows: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    """A row a run, in the columns of RUNS."""
    for row in sorted(rows, key=lambda row: (row["release"] != SYSTEMS["kafka"].version, row["library"], row["seed"])):
        effects = (f"{family} {took} of {drawn}" for family, (took, drawn) in sorted(row["faults"].items()))
        reasons = [
            f"`{name}` {each['verdict']}: {', '.join(each['findings'])}" for name, each in row["not_valid"].items()
        ]
        run = (row["release"], row["library"], str(row["seed"]), row["verdict"])
        acknowledged = str(row["operations"].get("append", {}).get("ok", 0))
        whole = f"{row['recovery']['seconds']:.0f} s" if row["recovery"].get("recovered") else "never"
        yield *run, acknowledged, whole, ", ".join(effects) or "none", row["failure"] or "; ".join(reasons) or "none"


def totals(rows: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    """A row a family over all these runs, in the columns of TOTALS; without the one that machines cannot carry."""
    for family in FAIR_FAMILIES:
        counts = [row["faults"].get(family, (0, 0)) for row in rows]
        took, injected = (sum(column) for column in zip(*counts, strict=True))
        if family != _IMPOSSIBLE:
            yield f"`{family}`", str(took), str(injected), str(sum(effective > 0 for effective, _ in counts))


def carry_out(name: str, spec: str, seed: int, store: Path, *options: str) -> CarriedOut:
    """One run of a spec, given as YAML; the run is named after the spec unless that has a name."""
    began_s = time.monotonic()
    with TemporaryDirectory() as home:
        path = Path(home, f"{name}.yaml")
        path.write_text(spec, encoding="utf-8")
        command = ["run", str(path), *options, "--store", str(store), "--json"]
        process = subprocess.Popen([sys.executable, "-m", "harness", *command], stdout=subprocess.PIPE, text=True)
        output, _ = process.communicate()
    summary = json.loads(output) if output.strip() else crashed(seed, process.returncode)
    return CarriedOut(summary, tuple(_left_by(process.pid)), time.monotonic() - began_s)


def crashed(seed: int, status: int) -> Row:
    """The summary of a run whose command printed none."""
    failure = f"the command ended with {status} and no summary"
    return {"seed": seed, "run": "", "failure": failure, "faults": {}, "operations": {}, "recovery": {}}


def _left_by(pid: int) -> list[str]:
    client = connect()
    try:
        return [f"{each.kind} {each.name}" for each in in_docker(client) if each.owner.split("/")[1:2] == [str(pid)]]
    finally:
        client.close()


def main(arguments: Sequence[str]) -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(prog="campaign")
    parser.add_argument("--seeds", default="1-10", help="first-last")
    parser.add_argument("--version", default=SYSTEMS["kafka"].version)
    parser.add_argument("--library", default=NATIVE)
    parser.add_argument("--time-limit", type=float, default=120.0)
    parser.add_argument("--store", type=Path, default=Path("results/runs"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    first, _, last = options.seeds.partition("-")
    for seed in range(int(first), int(last or first) + 1):
        known = {(row["release"], row["library"], row["seed"]) for row in read_rows(options.out)}
        if (options.version, options.library, seed) in known:
            continue
        spec = json.dumps(document(options.version, options.library, seed, options.time_limit))
        name = f"kafka-{options.version}-{options.library}"
        run = carry_out(name, spec, seed, options.store, "--faults", "all")
        row = row_of(options.version, options.library, run)
        add_row(options.out, row)
        print(row["release"], row["library"], seed, row["verdict"], f"{row['seconds']} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
