"""Recorded runs for anomalies: short simulated runs of both workloads under all fair faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from checkers.evidence import RunEvidence
from checkers.fault_model import tolerances
from checkers.registry import check
from harness.client_spec import ClientSpec
from harness.runner.run import run_in_simulation
from harness.spec import Spec
from results.run.directory import RunDirectory
from workloads.registry import WORKLOADS

TIME_LIMIT_S = 10.0

SETTINGS: tuple[Mapping[str, Any], ...] = (
    {},
    {"rate": 60.0, "partitions": 1},
    {"settings": {"segment.bytes": "2048", "retention.bytes": "4096"}},
    {},
    {"brokers": 5, "partitions": 3},
    {"acks": "1"},
    {},
    {"settings": {"unclean.leader.election.enable": "true"}},
    {"settings": {"unclean.recovery.strategy": "balanced"}},
)
"""Fields of the spec besides the defaults, one entry after the other by seed; the defaults come most often."""


@dataclass(frozen=True, slots=True, eq=False)
class RecordedRun:
    """One run of one workload, and its verdicts."""

    workload: str
    seed: int
    evidence: RunEvidence
    verdicts: Mapping[str, str]
    """Checker → `valid`, `unknown` or `invalid`."""
    lines: tuple[str, ...]
    """The findings of the run as it was recorded, a line each."""

    @property
    def name(self) -> str:
        """Workload and seed."""
        return f"{self.workload} seed {self.seed}"

    @property
    def permits_losses(self) -> bool:
        """Whether its settings or its faults permit losses, which may excuse an anomaly, too."""
        settings = self.evidence.settings
        if settings.acks != -1 or settings.unclean_election:
            return True
        return any(tolerance.exceeded for tolerance in tolerances(self.evidence).values())


def record(number: int, *, varied: bool = False, keep: Path | None = None) -> RecordedRun:
    """The run of this number: workloads alternate; with `varied` settings do, too.

    With `keep` its run directory stays below that directory; one that is there already is checked again, not played
    again. Raises RuntimeError when the run could not be carried out.
    """
    workloads = sorted(WORKLOADS)
    workload, seed = workloads[number % len(workloads)], number // len(workloads)
    fields = SETTINGS[seed % len(SETTINGS)] if varied else {}
    clients = ClientSpec(time_readers=1)
    spec = Spec(workload=workload, seed=seed, time_limit_s=TIME_LIMIT_S, clients=clients, **fields)
    if keep is None:
        with TemporaryDirectory(prefix="faultline-anomalies-") as store:
            return _read(workload, seed, _play(spec, Path(store)))
    store = keep / str(number)
    runs = [RunDirectory.open(path.parent) for path in sorted(store.glob("*/status.json"))]
    finished = [run for run in runs if run.status().state == "finished"]
    return _read(workload, seed, finished[0] if finished else _play(spec, store))


def _play(spec: Spec, store: Path) -> RunDirectory:
    outcome = run_in_simulation(spec, store)
    if outcome.directory is None:
        raise RuntimeError(f"{spec.workload} seed {spec.seed}: {outcome.failure}")
    return RunDirectory.open(outcome.directory)


def _read(workload: str, seed: int, run: RunDirectory) -> RecordedRun:
    evidence = run.load()
    checked = check(evidence)
    lines = tuple(
        f"{verdict.checker}: {verdict.validity}: {finding.kind}: {' · '.join(finding.lines)}"
        for verdict in checked
        for finding in verdict.findings
    )
    return RecordedRun(workload, seed, evidence, {each.checker: str(each.validity) for each in checked}, lines)
