"""The last leader is back while the members of the ELR are away: it is not elected."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from checkers.verdict import Validity
from harness.runner.outcome import Outcome
from harness.runner.run import run_in_simulation
from harness.spec import parse
from images.broker.controller.partition_change import PartitionChangeBuilder, _Election
from images.broker.metadata.image import PartitionImage
from nemesis.faults.last_leader import LastLeader
from nemesis.handle import ActiveEffects, FaultHandle
from tests.nemesis.fake_cluster import FakeCluster
from tests.workloads.virtual_time import run

WORLD: dict[str, Any] = {"seed": 3, "time_limit": "16s", "partitions": 1}


def outcome_of(**fault: Any) -> Outcome:
    return run_in_simulation(parse({**WORLD, "faults": [{"at": "2s", "for": "12s", "fault": "last-leader", **fault}]}))


def test_a_member_of_the_elr_leads_once_it_is_back() -> None:
    outcome = outcome_of(victim="b2")
    assert outcome.validity is Validity.VALID, outcome.verdicts
    (injection,) = outcome.injections
    assert injection.evidence["killed"] == 1
    assert "in time" not in injection.note


def test_a_controller_that_elects_the_last_leader_instead_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    elect = PartitionChangeBuilder._elect

    def hasty(
        self: PartitionChangeBuilder, partition: PartitionImage, isr: tuple[int, ...], elr: tuple[int, ...]
    ) -> _Election:
        election, last = elect(self, partition, isr, elr), partition.last_known_elr
        if election.leader < 0 and not isr and last and self._eligible(last[0]):
            return _Election(last[0], last, unclean=True, last_known_leader=True)
        return election

    monkeypatch.setattr(PartitionChangeBuilder, "_elect", hasty)
    kinds = {finding.kind for verdict in outcome_of(victim="b2").verdicts for finding in verdict.findings}
    assert "leader-otherwise" in kinds


def test_all_brokers_but_one_are_paused_until_it_is_back() -> None:
    cluster = FakeCluster()
    handle = FaultHandle(cluster, ActiveEffects(), Random(1), "t", replication_factor=3)

    async def scenario() -> None:
        await LastLeader("b1").inject(handle)
        await handle.heal()

    run(scenario())
    assert cluster.pristine
    assert LastLeader().took_effect(handle.evidence)
