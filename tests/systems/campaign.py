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
TOTALS: Final = ("family", "took effect", "injected", "runs with one that did")

Row = Mapping[str, Any]


def document(version: str, library: str, seed: int, time_limit_s: float) -> dict[str, Any]:
    """The spec of a run, without its faults."""
    limits = {"time_limit": time_limit_s, "ready_limit": READY_LIMIT_S, "recovery_limit": RECOVERY_LIMIT_S}
    which = {"environment": "docker", "system": "kafka", "version": version, "seed": seed}
    return {**which, **limits, "clients": {"library": library}}


def row_of(version: str, library: str, summary: Row, left_behind: Sequence[str], seconds: float) -> dict[str, Any]:
    """The line of a run, from what `faultline run --json` printed."""
    checks = summary.get("checks", [])
    return {
        "release": version,
        "library": library,
        "seed": summary["seed"],
        "run": Path(summary["run"]).name,
        "verdict": "failed" if summary["failure"] else summary["validity"],
        "failure": summary["failure"],
        "not_valid": {check["checker"]: _reasons(check) for check in checks if check["validity"] != "valid"},
        "faults": {family: [each["bit"], each["injected"]] for family, each in summary["faults"].items()},
        "operations": summary["operations"],
        "recovery": summary["recovery"],
        "left_behind": list(left_behind),
        "seconds": round(seconds),
    }


def _reasons(check: Row) -> dict[str, Any]:
    first = {finding["kind"]: " ".join(finding["lines"]) for finding in reversed(check["findings"])}
    return {"verdict": check["validity"], "findings": first}


def read_rows(path: Path) -> list[Row]:
    """The lines of the file; none where there is no file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


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


def make(version: str, library: str, seed: int, time_limit_s: float, store: Path) -> dict[str, Any]:
    """One run."""
    began_s = time.monotonic()
    with TemporaryDirectory() as home:
        spec = Path(home, f"kafka-{version}-{library}.yaml")
        spec.write_text(json.dumps(document(version, library, seed, time_limit_s)), encoding="utf-8")
        command = ["run", str(spec), "--faults", "all", "--store", str(store), "--json"]
        process = subprocess.Popen([sys.executable, "-m", "harness", *command], stdout=subprocess.PIPE, text=True)
        output, _ = process.communicate()
    summary = json.loads(output) if output.strip() else crashed(seed, process.returncode)
    return row_of(version, library, summary, _left_by(process.pid), time.monotonic() - began_s)


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
        row = make(options.version, options.library, seed, options.time_limit, options.store)
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
        print(row["release"], row["library"], seed, row["verdict"], f"{row['seconds']} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
