"""Runs in the simulation whose client is wrong: the story names the client, and says what it should have known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from harness.runner.run import run_in_simulation
from harness.spec import parse
from results.explanation.client_steps import member_steps
from results.explanation.story import Story
from tests.checkers import small_evidence
from workloads.clients import membership, offsets, partition_sender
from workloads.clients.delivery import NEVER_APPENDED, ProducerBatch
from workloads.clients.membership import ChangeResult, GroupMember
from workloads.clients.partition_sender import PartitionSender
from workloads.history import SCHEMA

_REQUEST_TIMED_OUT = 7
_CALM = {"time_limit": 3, "faults": "none", "seed": 2}
_GROUPS = {"time_limit": 6, "faults": "none", "workload": "groups", "seed": 1}
_SLOW_FOLLOWER = {
    "seed": 2,
    "time_limit": 4,
    "partitions": 1,
    "rate": 30,
    "clients": {"delivery_timeout": 1.2, "request_timeout": 0.6},
    "faults": [{"at": "1.5s", "for": "1.6s", "fault": "pause", "nodes": ["follower/0"]}],
}


def story_of(fields: dict[str, Any]) -> Story:
    """The first story of a run."""
    return run_in_simulation(parse(fields)).stories[0]


def takes_a_timeout_for_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_sender, "NEVER_APPENDED", NEVER_APPENDED | {_REQUEST_TIMED_OUT})


def renumbers_what_may_be_appended(monkeypatch: pytest.MonkeyPatch) -> None:
    renumber = PartitionSender._renumber

    def flawed(sender: PartitionSender) -> None:
        for batch in sender._in_flight:
            batch.may_be_appended = False
        renumber(sender)

    monkeypatch.setattr(PartitionSender, "_renumber", flawed)


def reuses_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    number = PartitionSender._number

    def flawed(sender: PartitionSender, batch: ProducerBatch) -> None:
        number(sender, batch)
        sender._next_sequence -= sender._next_sequence % 7 == 0

    monkeypatch.setattr(PartitionSender, "_number", flawed)


def tells_the_next_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = PartitionSender._answered

    def flawed(sender: PartitionSender, batch: ProducerBatch, answer: Any) -> None:
        answered(sender, batch, replace(answer, base_offset=answer.base_offset + 1))

    monkeypatch.setattr(PartitionSender, "_answered", flawed)


def keeps_the_latest_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    ask, answers = offsets._list, {}

    async def flawed(client: Any, topic: str, partition: int, leader: Any, timestamp: int) -> Any:
        key = (topic, partition, leader, timestamp)
        if key not in answers:
            answers[key] = await ask(client, topic, partition, leader, timestamp)
        return answers[key]

    monkeypatch.setattr(offsets, "_list", flawed)


def tells_a_later_end(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = offsets._list

    async def flawed(*query: Any) -> Any:
        answer = await ask(*query)
        return replace(answer, offset=answer.offset and answer.offset + 2)

    monkeypatch.setattr(offsets, "_list", flawed)


def starts_one_record_early(monkeypatch: pytest.MonkeyPatch) -> None:
    committed = membership._committed

    def flawed(answer: Any) -> Any:
        position = committed(answer)
        return position and position._replace(offset=max(0, position.offset - 1))

    monkeypatch.setattr(membership, "_committed", flawed)


def takes_every_commit_for_done(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = GroupMember.commit

    async def flawed(member: GroupMember, *commits: Any) -> ChangeResult:
        await commit(member, *commits)
        return ChangeResult("ok")

    monkeypatch.setattr(GroupMember, "commit", flawed)


def assigns_the_first_partition_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    by_range = membership.by_range

    def flawed(subscriptions: Any, partitions: Any) -> Any:
        return {member: (("faultline", 0), *owned) for member, owned in by_range(subscriptions, partitions).items()}

    monkeypatch.setattr(membership, "by_range", flawed)


FLAWS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], dict[str, Any], str]] = {
    "append-failed-though-appended": (
        takes_a_timeout_for_a_refusal,
        _SLOW_FOLLOWER,
        "and answered REQUEST_TIMED_OUT at",
    ),
    "batch-sent-under-other-number": (
        renumbers_what_may_be_appended,
        _SLOW_FOLLOWER | {"seed": 6},
        "as sequence 0 of producer id 0 in producer epoch 1",
    ),
    "sequence-number-reused": (reuses_a_number, _CALM, "under a number that it had used, sequence 6 of producer id 0"),
    "acknowledgement-never-given": (tells_the_next_offset, _CALM, "acknowledged at offset 1, and no broker"),
    "latest-offset-never-told": (tells_a_later_end, _CALM, "as the latest offset for read #"),
    "start-never-told": (starts_one_record_early, _GROUPS, "started at 41 of faultline-0 in generation 2"),
    "partition-assigned-wrongly": (assigns_the_first_partition_to_all, _GROUPS, "assigned faultline-0 to both"),
    "commit-never-answered": (
        takes_every_commit_for_done,
        {**_GROUPS, "time_limit": 10},
        "no coordinator had committed it",
    ),
}


ANSWERED = {"group": "g", "member": "m", "generation": 2, "current": 2, "held": {}}
STARTED = small_evidence.event(0.5, "b1", "offsets_told", {"group": "g", "offsets": {"t-0": 5}})


@pytest.mark.parametrize("kind", FLAWS)
def test_a_mistake_of_the_client_is_the_cause(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flaw, fields, words = FLAWS[kind]
    flaw(monkeypatch)
    story = story_of(fields)
    assert story.signature.cause == kind
    assert story.cause.startswith("the client ")
    assert words in story.cause


def test_a_latest_offset_that_the_client_kept_is_told_as_one_that_no_leader_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keeps_the_latest_offset(monkeypatch)
    story = story_of(_CALM)
    assert story.signature.cause == "latest-offset-outdated"
    assert "no leader told any offset in the meantime: it is one that was kept from an earlier answer" in story.cause


def operation(index: int, kind: str, offset: int, *given: int) -> dict[str, Any]:
    """An operation of member 7, in generation 2, that takes a second from its index on."""
    times = {"invoked_ns": index * 10**9, "completed_ns": (index + 1) * 10**9}
    row = {"index": index, "process": 7, "kind": kind, "phase": "main", "topic": "t", "partition": 0, **times}
    return row | {"outcome": "ok", "value": 2, "offset": offset, "offsets": list(given), "values": list(given)}


@pytest.mark.parametrize(
    ("committed", "words"),
    [
        (7, "polls had given it the records below 6 only: it committed the position of its fetches, behind records"),
        (8, "it committed records that no poll had given it yet"),
        (6, ""),
    ],
)
def test_a_commit_ahead_of_what_polls_have_given_is_told_with_what_it_is(committed: int, words: str) -> None:
    history = pa.Table.from_pylist(
        [operation(0, "assign", 5), operation(1, "poll", 5, 5), operation(2, "commit", committed)], SCHEMA
    )
    batch = small_evidence.event(1, "b1", "appended", leader=1, leader_epoch=0, offset=6, log_end=7)
    answered = small_evidence.event(2.5, "b1", "offsets_committed", ANSWERED | {"offsets": {"t-0": committed}})
    steps = list(member_steps(small_evidence.trace(batch, STARTED, answered), history, "t", 0))
    assert [words in step.text for step in steps] == ([True] if words else [])
