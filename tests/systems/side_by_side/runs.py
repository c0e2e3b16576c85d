"""The same ten specs on the prototype and on Apache Kafka: `specs.yaml`, and the line of each run.

Both systems get the same fields, faults and seed; the runs of a spec follow each other on one machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml

from harness.spec import Spec
from harness.suites.reading import layered
from results import measures
from results.run.directory import RunDirectory
from results.store.spark import fingerprint
from tests.systems.campaign import FAILED, CarriedOut, Row, carry_out, faults, not_valid, read_rows, verdict

SPECS: Final = Path(__file__).parent / "specs.yaml"


class RunRefused(Exception):
    """No node was started: no engine, or an image that is missing or of other sources. Such a run has no line."""


@dataclass(frozen=True, slots=True)
class PairedSpec:
    """A spec, once for each system."""

    title: str
    by_system: Mapping[str, Spec]


def load() -> dict[str, PairedSpec]:
    """By name, in the order of the file. Raises SpecError."""
    document = yaml.safe_load(SPECS.read_text(encoding="utf-8"))
    pairs = {}
    for name, fields in document["specs"].items():
        layers = {"base": document["base"], f"specs.{name}": fields}
        by_system = {
            system: replace(layered({**layers, f"systems.{system}": own}), name=f"{name}-{system.lower()}")
            for system, own in document["systems"].items()
        }
        pairs[name] = PairedSpec(fields["title"], by_system)
    return pairs


def still_to_be_made(pairs: Mapping[str, PairedSpec], rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """Spec and system of every run without a line, in their order, and of those that could not be carried out."""
    made = {(row["spec"], row["system"]) for row in rows if row["verdict"] != FAILED}
    for name, pair in pairs.items():
        for system in pair.by_system:
            if (name, system) not in made:
                yield name, system


def make(name: str, system: str, spec: Spec, store: Path) -> dict[str, Any]:
    """One run, and its line. Raises RunRefused."""
    load_before = os.getloadavg()[0]
    run = carry_out(spec.name, spec.to_yaml(), spec.seed, store)
    failed = verdict(run.summary) == FAILED
    if failed and not Path(run.summary["run"]).exists():
        raise RunRefused(run.summary["failure"])
    figures = {} if failed else measures.measure(RunDirectory.open(Path(run.summary["run"])).load())
    return row_of(name, system, spec, run, figures, load_before)


def row_of(
    name: str, system: str, spec: Spec, run: CarriedOut, figures: Mapping[str, float], load_before: float
) -> dict[str, Any]:
    """The line of a run. `figures` are those of `results.measures`, none where it could not be carried out."""
    summary = run.summary
    return {
        "spec": name,
        "system": system,
        "release": spec.version,
        "sources": fingerprint(),
        "run": Path(summary["run"]).name,
        "verdict": verdict(summary),
        "failure": summary["failure"],
        "not_valid": not_valid(summary),
        "faults": faults(summary),
        "deviations": summary.get("deviations", []),
        "figures": {**figures, "planned": spec.rate * spec.time_limit_s} if figures else {},
        "load": round(load_before, 1),
        "left_behind": list(run.left_behind),
        "seconds": round(run.seconds),
    }


def newest(path: Path) -> dict[tuple[str, str], Row]:
    """Spec and system → its last line: the run, or the last try that could not be carried out."""
    return {(row["spec"], row["system"]): row for row in read_rows(path)}
