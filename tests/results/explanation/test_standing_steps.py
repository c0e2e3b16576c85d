"""Runs in the simulation in which a node forgets or leaves out something: the story says what, not only that the
cluster did not recover or that records are missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from harness.runner.run import run_in_simulation
from harness.spec import parse
from images.broker.groups import rebalance
from images.broker.groups.group import ClassicGroupMember, Group, SyncAnswer
from images.broker.log.log import Log
from images.broker.replication import become_leader_or_follower, leader
from images.broker.replication.fetcher import Fetcher
from images.broker.replication.partition import Partition, PartitionStep
from images.broker.replication.replica import Replica

_LIMITS = {"time_limit": 4, "partitions": 1, "recovery_limit": "13s"}
_FOLLOWER_KILLED = {
    **_LIMITS,
    "seed": 2,
    "faults": [{"at": "1.5s", "for": "1s", "fault": "kill", "nodes": ["follower/0"]}],
}
_CONTROLLER_KILLED = {
    "seed": 2,
    "time_limit": 6,
    "partitions": 1,
    "settings": {"metadata.log.max.record.bytes.between.snapshots": 512},
    "faults": [
        {"at": "2s", "for": "1s", "fault": "kill", "nodes": ["b1"]},
        {"at": "4s", "for": "1s", "fault": "kill", "nodes": ["c1"]},
    ],
}


def never_proposes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "_consider_join", lambda partition, *_: PartitionStep(partition))


def fetches_nothing_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    follow = Fetcher.follow

    def flawed(fetcher: Fetcher, replicas: Iterable[Replica]) -> None:
        follow(fetcher, [replica for replica in replicas if replica.log.end == 0])

    monkeypatch.setattr(Fetcher, "follow", flawed)


def keeps_the_proposal(monkeypatch: pytest.MonkeyPatch) -> None:
    apply = become_leader_or_follower.apply_registration

    def flawed(partition: Partition, *registration: Any) -> PartitionStep:
        step = apply(partition, *registration)
        before, after = partition.leadership, step.partition.leadership
        if before is None or after is None or step.partition.leader_epoch != partition.leader_epoch:
            return step
        return step._replace(
            partition=step.partition._replace(leadership=after._replace(proposed=before.proposed or after.proposed))
        )

    monkeypatch.setattr(become_leader_or_follower, "apply_registration", flawed)


def names_the_start_as_base(monkeypatch: pytest.MonkeyPatch) -> None:
    write_start = Log._write_start
    monkeypatch.setattr(Log, "_write_start", lambda log, offset, base, epoch: write_start(log, offset, offset, epoch))


def gives_all_members_one_assignment(monkeypatch: pytest.MonkeyPatch) -> None:
    sync_answer = rebalance._sync_answer

    def flawed(group: Group, member: ClassicGroupMember) -> SyncAnswer:
        return sync_answer(group, member)._replace(assignment=group.members[0].assignment)

    monkeypatch.setattr(rebalance, "_sync_answer", flawed)


FLAWS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Mapping[str, Any], str]] = {
    "caught-up-follower-not-proposed": (
        never_proposes,
        _FOLLOWER_KILLED,
        "b1 does not propose b3 for the ISR {b1, b2}",
    ),
    "follower-stands-still": (
        fetches_nothing_after_a_restart,
        _FOLLOWER_KILLED,
        "is unfenced and follows b1 in leader epoch 0, and appends nothing for",
    ),
    "proposal-kept-after-decision": (
        keeps_the_proposal,
        {"seed": 11, "time_limit": 15, "faults": "all"},
        "it keeps a change in flight that newer metadata has superseded",
    ),
    "assignment-not-of-generation": (
        gives_all_members_one_assignment,
        {"seed": 1, "time_limit": 6, "faults": "none", "workload": "groups"},
        "the partitions {faultline-0} in generation 1, whose leader had assigned it {faultline-1}",
    ),
    "live-segment-deleted": (
        names_the_start_as_base,
        _CONTROLLER_KILLED,
        "log-start checkpoint has log start 7 and names 7 as the base offset of the first segment to keep",
    ),
}


@pytest.mark.parametrize("kind", FLAWS)
def test_a_mistake_of_a_node_is_the_cause(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flaw, fields, words = FLAWS[kind]
    flaw(monkeypatch)
    stories = run_in_simulation(parse(dict(fields))).stories
    assert [words in story.cause for story in stories if story.signature.cause == kind] == [True]


def test_a_run_in_which_nothing_is_left_undone_has_no_story() -> None:
    for fields in (_FOLLOWER_KILLED, _CONTROLLER_KILLED):
        assert run_in_simulation(parse(dict(fields))).stories == ()
