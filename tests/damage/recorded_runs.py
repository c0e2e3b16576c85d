"""The runs that are damaged: four of the simulation, recorded once for all tests of a process, and one of Docker, kept.

`make_kept` records the kept one anew:

    python -m tests.damage.recorded_runs
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from harness.runner.run import run
from harness.spec import parse
from results.run.directory import RunDirectory

KEPT: Final = Path(__file__).with_name("docker_run")
SPECS: Final[Mapping[str, Mapping[str, Any]]] = {
    "append": {"seed": 7, "faults": "kill,partition"},
    "groups": {"seed": 7, "workload": "groups", "faults": "kill,pause"},
    "lossy": {"seed": 5, "faults": "power-loss"},
    "mutant": {"seed": 2, "without": ("idempotent_dedupe",)},
}
RUNS: Final = (*SPECS, "docker")


def record(name: str, store: Path) -> Path:
    """Carry one of them out, below `store`; only what `faultline check` reads is left of it."""
    if name == "docker":
        directory = store / name
        shutil.copytree(KEPT, directory)
        return directory
    spec = parse({}, time_limit=10, **SPECS[name])
    outcome = run(spec, RunDirectory.create(store / name, name, spec.seed), report=False)
    assert outcome.directory is not None
    assert not outcome.failure
    shutil.rmtree(outcome.directory / "nodes")
    return outcome.directory


def make_kept() -> None:
    """Record the run of Docker anew."""
    spec = parse({}, environment="docker", time_limit=12, seed=4, faults="kill")
    store = KEPT.with_name("docker_run.part")
    outcome = run(spec, RunDirectory.create(store, "docker", spec.seed), report=False)
    if outcome.failure or str(outcome.validity) != "valid":
        sys.exit(f"{outcome.directory}: {outcome.failure or outcome.validity}")
    assert outcome.directory is not None
    shutil.rmtree(outcome.directory / "nodes")
    shutil.rmtree(KEPT, ignore_errors=True)
    outcome.directory.rename(KEPT)
    shutil.rmtree(store)


if __name__ == "__main__":
    make_kept()
