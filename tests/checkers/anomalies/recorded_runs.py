"""Recorded runs for anomalies: short simulated runs of both workloads under all fair faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from checkers.evidence import RunEvidence
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
    {"settings": {"unclean.recovery.strategy": "balanced"}, "recency": "strict"},
)
"""Fields of the spec besides the defaults, one entry after the other by seed; the defaults come most often."""


@dataclass(frozen=True, slots=True, eq=False)
class RecordedRun:
    """One run of one workload, and the kinds of findings that its own verdicts have."""

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


def record(number: int, *, varied: bool = False) -> RecordedRun:
    """The run of this number: workloads alternate; with `varied` settings do, too. Raises RuntimeError when the run
    could not be carried out."""
    workloads = sorted(WORKLOADS)
    workload, seed = workloads[number % len(workloads)], number // len(workloads)
    fields = SETTINGS[seed % len(SETTINGS)] if varied else {}
    spec = Spec(workload=workload, seed=seed, time_limit_s=TIME_LIMIT_S, **fields)
    with TemporaryDirectory(prefix="faultline-anomalies-") as store:
        outcome = run_in_simulation(spec, Path(store))
        if outcome.directory is None:
            raise RuntimeError(f"{workload} seed {seed}: {outcome.failure}")
        evidence = RunDirectory.open(outcome.directory).load()
    lines = tuple(
        f"{verdict.checker}: {verdict.validity}: {finding.kind}: {' · '.join(finding.lines)}"
        for verdict in outcome.verdicts
        for finding in verdict.findings
    )
    verdicts = {verdict.checker: str(verdict.validity) for verdict in outcome.verdicts}
    return RecordedRun(workload, seed, evidence, verdicts, lines)
