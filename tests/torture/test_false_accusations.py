"""Checks that accused a sound broker, each on the smallest run that shows it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from checkers.groups import checker as groups
from checkers.verdict import Validity
from checkers.violations import Tolerance
from harness.runner.outcome import Outcome
from harness.runner.run import run_in_simulation
from harness.spec import parse

EVERY_BROKER = ["b1", "b2", "b3", "b4", "b5"]


def found_by_groups(outcome: Outcome) -> set[str]:
    return {
        finding.kind for verdict in outcome.verdicts if verdict.checker == groups.NAME for finding in verdict.findings
    }


def test_commits_go_back_with_a_log_that_lost_more_than_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every broker is killed, and the one that led last loses its power as well before it is elected: `groups` alone
    accused a member that commits lower offsets of the new records. The varied seed 7003074 of `groups`, shrunk from
    eleven faults to two."""
    script = [
        {"at": 1, "for": 4, "fault": "kill", "nodes": EVERY_BROKER},
        {"at": 2.9, "for": 0, "fault": "failing-sync", "nodes": ["b4"], "failing_syncs": 1, "keep": "nothing"},
    ]
    settings = {
        "unclean.recovery.strategy": "last-known-leader",
        "replica.fetch.backoff.ms": 20,
        "metadata.log.max.record.bytes.between.snapshots": 1000,
        "offsets.topic.num.partitions": 5,
    }
    clients = {"producers": 1, "consumers": 1, "end_offset_readers": 0, "rate": 1, "clients": {"written_share": 0.5}}
    values: dict[str, Any] = {"workload": "groups", "seed": 7003074, "time_limit": 5, "brokers": 5, "partitions": 3}
    spec = parse({**values, **clients, "settings": settings, "faults": script})

    excused = run_in_simulation(spec)
    assert excused.validity is Validity.UNKNOWN
    assert found_by_groups(excused) == {"fault-model-exceeded"}

    class WithoutExcuse(Tolerance):
        """Asked for what two losses permit, it forgets the second one."""

        @classmethod
        def of_any(cls, tolerances: Iterable[Tolerance]) -> Tolerance:
            return next(iter(tolerances))

    monkeypatch.setattr(groups, "Tolerance", WithoutExcuse)
    accused = run_in_simulation(spec)
    assert {verdict.checker for verdict in accused.verdicts if verdict.validity is Validity.INVALID} == {groups.NAME}
    assert "commit-went-back" in found_by_groups(accused)
