"""Promises that no kept run and no incident breaks: a bug in a running cluster, or a rule switched off, breaks each,
and `protocol` names it.

One finding is not among them: `log-start-ahead` needs a replica that takes up a log start of a third broker which its
own leader has not taken up. A leader sends its own log start and no other, so no running cluster comes into that
situation; the anomalies (tests/checkers/anomalies) put it into recorded runs.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from checkers.verdict import Validity
from harness.environments.sim import SimDeployment
from harness.runner.outcome import Outcome
from harness.runner.run import run_in_simulation
from harness.simulation.node import SimNode
from harness.spec import parse
from images.broker.controller.partition_change import PartitionChange, PartitionChangeBuilder
from images.broker.log.log import Log
from images.broker.replication import become_leader_or_follower, log_start
from images.broker.replication.partition import Limits, Partition, PartitionRegistration, PartitionStep
from nemesis.ports import KeepUnsynced

Patch = pytest.MonkeyPatch


def _unsynced_claim(patch: Patch) -> None:
    """A disk refuses the sync of a broker that stops."""
    close = Log.close

    def cannot_sync(self: Log, clean: bool) -> OSError | None:
        def flush(log: Log) -> None:
            raise OSError(errno.EIO, "Input/output error")

        with patch.context() as meanwhile:
            meanwhile.setattr(Log, "flush", flush)
            return close(self, clean)

    patch.setattr(Log, "close", cannot_sync)


def _unmeasured_power_loss(patch: Patch) -> None:
    """What is called the kill of a process takes its unsynced writes along."""

    def kill(self: SimNode) -> bool:
        alive = self.alive
        self.power_off(KeepUnsynced.NOTHING, Random(1))
        return alive

    patch.setattr(SimNode, "kill", kill)


def _unmeasured_loss_at_the_end(patch: Patch) -> None:
    """The disks lose what was not synced before the nodes' files are collected."""
    held_files = SimDeployment.held_files

    def losing(self: SimDeployment) -> Mapping[str, bytes]:
        for machine in self._machines.values():
            machine.node.disk.lose_power(KeepUnsynced.NOTHING, Random(1))
        return held_files(self)

    patch.setattr(SimDeployment, "held_files", losing)


def _change(patch: Patch, edit: Callable[[PartitionChange, PartitionChangeBuilder], PartitionChange]) -> None:
    build = PartitionChangeBuilder.build

    def edited(self: PartitionChangeBuilder) -> PartitionChange | None:
        change = build(self)
        return change and edit(change, self)

    patch.setattr(PartitionChangeBuilder, "build", edited)


def _one_leader_epoch(patch: Patch) -> None:
    """An election leaves the leader epoch as it was."""

    def edit(change: PartitionChange, builder: PartitionChangeBuilder) -> PartitionChange:
        epoch = builder._before.leader_epoch
        return replace(change, partition=replace(change.partition, leader_epoch=epoch))

    _change(patch, edit)


def _one_partition_epoch(patch: Patch) -> None:
    """A change of the ISR leaves the partition epoch as it was."""

    def edit(change: PartitionChange, builder: PartitionChangeBuilder) -> PartitionChange:
        epoch = builder._before.partition_epoch
        return replace(change, partition=replace(change.partition, partition_epoch=epoch))

    _change(patch, edit)


def _registration(
    patch: Patch, edit: Callable[[Partition, PartitionRegistration], tuple[Partition, PartitionRegistration]]
) -> None:
    apply = become_leader_or_follower.apply_registration

    def edited(partition: Partition, registration: PartitionRegistration, now_ms: int, limits: Limits) -> PartitionStep:
        return apply(*edit(partition, registration), now_ms, limits)

    patch.setattr(become_leader_or_follower, "apply_registration", edited)


def _isr_of_all(patch: Patch) -> None:
    """A broker takes all replicas for the ISR."""
    _registration(patch, lambda partition, new: (partition, replace(new, isr=new.replicas)))


def _high_watermark_anew(patch: Patch) -> None:
    """A leader forgets its high watermark whenever it hears of its partition."""
    _registration(patch, lambda partition, new: (partition._replace(high_watermark=0), new))


def _deletion_of_all(patch: Patch) -> None:
    """A leader deletes all that is committed, whatever offset it is asked for."""
    delete = log_start.delete_records
    patch.setattr(
        log_start, "delete_records", lambda partition, _, limits: delete(partition, partition.high_watermark, limits)
    )


def _none(patch: Patch) -> None:
    """The rule that is off is enough."""


SCRIPTS: dict[str, tuple[dict[str, Any], ...]] = {
    "nothing": (),
    "a broker that has stopped loses power": (
        {"at": "3s", "for": "3s", "fault": "controlled-restart", "nodes": ["b1"]},
        {"at": "5s", "for": "1s", "fault": "power-loss", "nodes": ["b1"], "keep": "nothing"},
    ),
    "a leader dies": ({"at": "3s", "for": "3s", "fault": "kill", "nodes": ["leader/0"]},),
    "a follower dies": ({"at": "3s", "for": "5s", "fault": "kill", "nodes": ["follower/0"]},),
    "records are deleted": ({"at": "4s", "for": "2s", "fault": "delete-records"},),
    "a broker is back that missed records": (
        {"at": "2s", "for": "4s", "fault": "kill", "nodes": ["b1"]},
        {"at": "5s", "for": "3s", "fault": "kill", "nodes": ["b2", "b3"]},
    ),
}
"""Faults that break nothing by themselves."""

BUGS: dict[str, tuple[Callable[[Patch], None], str, tuple[str, ...]]] = {
    "clean-shutdown-lost-records": (
        _unsynced_claim,
        "a broker that has stopped loses power",
        ("clean_claim_after_flush",),
    ),
    "log-shortened": (_unmeasured_power_loss, "a leader dies", ()),
    "log-end-not-on-disk": (_unmeasured_loss_at_the_end, "nothing", ()),
    "unclean-election": (_none, "a broker is back that missed records", ("elect_from_isr_or_elr",)),
    "two-leaders-one-epoch": (_one_leader_epoch, "a leader dies", ()),
    "partition-epoch-stood": (_one_partition_epoch, "a follower dies", ()),
    "acted-on-undecided": (_isr_of_all, "a leader dies", ()),
    "high-watermark-fell": (_high_watermark_anew, "a follower dies", ()),
    "log-start-unasked": (_deletion_of_all, "records are deleted", ()),
}
"""Finding of `protocol` → the bug, the faults under which it shows, and the rules that are off."""


def _run(script: str, *without: str) -> Outcome:
    document = {"seed": 1, "time_limit": "8s", "recovery_limit": "5s", "without": list(without)}
    return run_in_simulation(parse({**document, "faults": list(SCRIPTS[script])}))


def _findings(outcome: Outcome) -> set[str]:
    return {finding.kind for verdict in outcome.verdicts for finding in verdict.findings}


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_faults_alone_break_no_promise(script: str) -> None:
    assert _run(script).validity is not Validity.INVALID


@pytest.mark.parametrize("finding", BUGS)
def test_a_bug_in_a_running_cluster_is_found_by_its_name(finding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bug, script, without = BUGS[finding]
    bug(monkeypatch)
    assert finding in _findings(_run(script, *without))


def test_a_stop_whose_sync_fails_is_no_clean_one_with_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    _unsynced_claim(monkeypatch)
    assert "clean-shutdown-lost-records" not in _findings(_run("a broker that has stopped loses power"))
