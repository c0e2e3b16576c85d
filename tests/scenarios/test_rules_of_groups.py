"""Rules of the group coordinator, played in a running cluster by requests of one group, with and without the rule. The
trace shows the broken promise itself, whatever comes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final, TypeVar

import pytest
from kio.schema.describe_groups.v5.request import DescribeGroupsRequest
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v4.request import FindCoordinatorRequest
from kio.schema.heartbeat.v4.request import HeartbeatRequest
from kio.schema.join_group.v9.request import JoinGroupRequest, JoinGroupRequestProtocol
from kio.schema.leave_group.v5 import request as leaving
from kio.schema.offset_commit.v8 import request as committing
from kio.schema.offset_fetch.v8 import request as asking

from harness.environments.mistakes import Mistake
from images.broker.apis.groups import GroupCoordinator
from images.broker.groups.shard import Shard
from images.broker.metadata.internal_topics import CONSUMER_OFFSETS_TOPIC
from images.wire.connection import ConnectionLost
from nemesis.ports import DONE, LinkQuality, MessageEffect, MessagePart, MessageRule, both_ways, one_way
from tests.scenarios.one_partition import TOPIC, Scene, broken_promises, played
from tests.simulation.applied_mistake import apply_mistake

T = TypeVar("T")
GROUP = "g"
ONE_PARTITION = {"offsets.topic.num.partitions": "1"}
ORDERS = "orders"
INSTANCE = "i"
JOINS_A_RECORDED_GENERATION: Final = Mistake(
    "static_member_joins_a_recorded_generation",
    "A static member that joins while the record of a generation is committed is told that generation.",
    "images.broker.groups.rebalance:_add",
    replace="if group.storing and request.instance_id is not None:",
    by="if False:",
)


async def coordinator(scene: Scene, *others_than: str) -> str:
    """The coordinator of the group as one of the other brokers knows it, once that is none of those."""
    while True:
        for broker in scene.deployment.brokers:
            if broker in others_than or not scene.deployment.alive(broker):
                continue
            answer = await scene.ask(broker, FindCoordinatorRequest(key_type=0, coordinator_keys=(GROUP,)))
            coordinator = answer.coordinators[0]
            name = f"b{coordinator.node_id}"
            if coordinator.error_code is ErrorCode.none and name not in others_than:
                return name
        await asyncio.sleep(0.1)


def commit_of(offset: int) -> committing.OffsetCommitRequest:
    part = committing.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=None, committed_leader_epoch=-1
    )
    topic = committing.OffsetCommitRequestTopic(name=TOPIC, partitions=(part,))
    return committing.OffsetCommitRequest(
        group_id=GROUP, generation_id_or_member_epoch=-1, member_id="", group_instance_id=None, topics=(topic,)
    )


async def commit(scene: Scene, broker: str, offset: int) -> None:
    while True:
        try:
            answer = await scene.ask(broker, commit_of(offset))
        except ConnectionLost:
            continue
        if answer.topics[0].partitions[0].error_code is ErrorCode.none:
            return
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("off", [(), ("offset_fetch_confirmed_by_isr",)])
def test_a_deposed_coordinator_returns_an_old_offset_exactly_without_the_rule(off: tuple[str, ...]) -> None:
    async def scenario(scene: Scene) -> tuple[int | None, set[str]]:
        deployment = scene.deployment
        first = await coordinator(scene)
        await commit(scene, first, 3)
        others = [node for node in (*deployment.brokers, *deployment.controllers) if node != first]
        await deployment.cut(both_ways([first], others))
        await commit(scene, await coordinator(scene, first), 7)
        topic = asking.OffsetFetchRequestTopics(name=TOPIC, partition_indexes=(0,))
        group = asking.OffsetFetchRequestGroup(group_id=GROUP, topics=(topic,))
        answer = (await scene.ask(first, asking.OffsetFetchRequest(groups=(group,)))).groups[0]
        errors = {answer.error_code, *(part.error_code for each in answer.topics for part in each.partitions)}
        offset = answer.topics[0].partitions[0].committed_offset if errors == {ErrorCode.none} else None
        return offset, broken_promises(scene.trace)

    offset, broken = played(scenario, *off, settings=ONE_PARTITION)
    assert offset == (3 if off else None)
    assert ("offsets-unconfirmed" in broken) is bool(off)


@pytest.mark.parametrize("off", [(), ("coordinator_waits_for_high_watermark",)])
def test_a_new_coordinator_serves_what_is_not_committed_exactly_without_the_rule(off: tuple[str, ...]) -> None:
    """The new coordinator has a record of the old one, and no other replica can tell it that it is committed."""

    async def scenario(scene: Scene) -> tuple[ErrorCode, set[str]]:
        deployment = scene.deployment
        first = await coordinator(scene)
        await commit(scene, first, 3)
        await asyncio.sleep(1)
        one, other = (broker for broker in deployment.brokers if broker != first)
        await deployment.cut(both_ways([one], [other]))
        since = len(scene.trace)
        late = asyncio.ensure_future(scene.ask(first, commit_of(7)))
        replicas: set[str] = set()
        while replicas != {first, one, other}:
            await asyncio.sleep(0.0001)
            events = [(node, event) for node, event in scene.trace[since:] if event.topic == CONSUMER_OFFSETS_TOPIC]
            replicas = {node for node, event in events if event.kind == "appended"}
        await deployment.kill(first)
        await asyncio.gather(late, return_exceptions=True)
        second = await coordinator(scene, first)
        described: Any = await scene.ask(
            second, DescribeGroupsRequest(groups=(GROUP,), include_authorized_operations=False)
        )
        return described.groups[0].error_code, broken_promises(scene.trace)

    error, broken = played(scenario, *off, settings={**ONE_PARTITION, "replica.lag.time.max.ms": "30000"})
    assert error is (ErrorCode.none if off else ErrorCode.coordinator_load_in_progress)
    assert ("coordinator-serves-uncommitted" in broken) is bool(off)


def join_of(member: str, instance: str | None = None) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=GROUP,
        session_timeout=timedelta(seconds=10),
        rebalance_timeout=timedelta(seconds=1),
        member_id=member,
        group_instance_id=instance,
        protocol_type="consumer",
        protocols=(JoinGroupRequestProtocol(name="range", metadata=b""),),
    )


@pytest.mark.parametrize("off", [(), ("generation_stored_before_join",)])
def test_a_generation_is_given_out_by_two_coordinators_exactly_without_the_rule(off: tuple[str, ...]) -> None:
    """The first coordinator falls between its answer to JoinGroup and the member's SyncGroup."""

    async def scenario(scene: Scene) -> tuple[int, int, set[str]]:
        first = await coordinator(scene)
        await commit(scene, first, 3)
        generation = await joined(scene, first)
        await scene.kill(first)
        again = await joined(scene, await coordinator(scene, first))
        return generation, again, broken_promises(scene.trace)

    async def joined(scene: Scene, broker: str) -> int:
        """The generation that a new member gets."""
        member = ""
        while True:
            answer = await scene.ask(broker, join_of(member))
            if answer.error_code is ErrorCode.none:
                return int(answer.generation_id)
            member = answer.member_id or member
            await asyncio.sleep(0.1)

    first, second, broken = played(scenario, *off, settings=ONE_PARTITION)
    assert (first == second) is bool(off)
    assert ("generation-told-early" in broken) is bool(off)


async def until(ask: Callable[[], Awaitable[T]], is_right: Callable[[T], bool]) -> T:
    """The first answer that is right."""
    while True:
        answer = await ask()
        if is_right(answer):
            return answer
        await asyncio.sleep(0.05)


async def created_anew_during_a_load(scene: Scene) -> tuple[int | None, set[str]]:
    """What the next coordinator tells of an offset of a topic that was deleted before it began to lead, and created
    anew while it loads; and which promises the trace breaks.

    The coordinator before dies when nobody else has read that the last commit is committed, and the others do not reach
    each other: so the load waits."""
    deployment, admin = scene.deployment, scene.deployment.admin
    await scene.create_topic(ORDERS, 3)
    first = await coordinator(scene)
    await until(lambda: admin.commit(GROUP, ORDERS, 0, 5), lambda answer: answer.outcome == DONE)
    one, other = (broker for broker in deployment.brokers if broker != first)
    since = len(scene.trace)
    last_commit = asyncio.ensure_future(admin.commit(GROUP, ORDERS, 0, 5))
    await asyncio.gather(
        *(scene.until("appended", node=node, since=since, topic=CONSUMER_OFFSETS_TOPIC) for node in (one, other))
    )
    held = MessageRule(1, MessagePart.RESPONSE, MessageEffect.HOLD, count=0)  # Fetch
    await deployment.intercept(99, one_way([one, other], [first]), held)
    assert (await last_commit).outcome == DONE
    await scene.kill(first)
    apart = both_ways([one], [other])
    await deployment.cut(apart)
    await until(lambda: admin.delete_topic(ORDERS), lambda answer: answer.outcome == DONE)
    leaders = await until(deployment.leaders, lambda each: each.get((CONSUMER_OFFSETS_TOPIC, 0)) in (one, other))
    second = leaders[CONSUMER_OFFSETS_TOPIC, 0]
    await scene.until("became_leader", node=second, since=since, topic=CONSUMER_OFFSETS_TOPIC)
    created = len(scene.trace)
    await until(lambda: admin.create_topic(ORDERS, 2), lambda answer: answer.outcome == DONE)
    await scene.happens("metadata_applied", node=second, since=created)
    assert not scene.events(second, "coordinator_loaded", since)
    await deployment.heal_links(apart)
    told = await until(lambda: admin.committed(GROUP, ORDERS, 0), lambda offset: offset is not None)
    return told, broken_promises(scene.trace)


async def _load_with_topics_at_the_end(coordinator: GroupCoordinator, shard: Shard, _: Any) -> None:
    await shard.load()
    if shard.loaded:
        shard._forget(lambda key, value: key.topic not in coordinator._image().topics)


def check_begins_without_offsets(
    scenario: Callable[[Scene], Awaitable[tuple[int | None, set[str]]]], kept: bool, patch: pytest.MonkeyPatch
) -> None:
    """A new topic has no offset, unless a coordinator that loads goes by the names of the topics that it then knows."""
    if not kept:
        patch.setattr(GroupCoordinator, "_load", _load_with_topics_at_the_end)
    told, broken = played(scenario, settings=ONE_PARTITION, seed=1)
    assert told == (-1 if kept else 5)
    assert ("offsets-held-otherwise" in broken) is not kept


@pytest.mark.parametrize("kept", [True, False])
def test_a_topic_that_is_created_during_a_load_begins_without_offsets(
    kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer of the new topic would begin at the offset of the old one, and never read the records before it."""
    check_begins_without_offsets(created_anew_during_a_load, kept, monkeypatch)


async def created_anew_without_a_coordinator(scene: Scene) -> tuple[int | None, set[str]]:
    """What the next coordinator tells of an offset of a topic that was deleted and created anew while the group had no
    coordinator; and which promises the trace breaks."""
    deployment, admin = scene.deployment, scene.deployment.admin
    await scene.create_topic(ORDERS, 3)
    first = await coordinator(scene)
    await until(lambda: admin.commit(GROUP, ORDERS, 0, 5), lambda answer: answer.outcome == DONE)
    since = len(scene.trace)
    await scene.kill(first)
    await until(lambda: admin.delete_topic(ORDERS), lambda answer: answer.outcome == DONE)
    await until(lambda: admin.create_topic(ORDERS, 2), lambda answer: answer.outcome == DONE)
    assert not any(scene.events(broker, "coordinator_loaded", since) for broker in deployment.brokers)
    told = await until(lambda: admin.committed(GROUP, ORDERS, 0), lambda offset: offset is not None)
    return told, broken_promises(scene.trace)


@pytest.mark.parametrize("kept", [True, False])
def test_a_topic_that_is_created_anew_without_a_coordinator_begins_without_offsets(
    kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has seen the topic gone: only its id, in the record of the offset, tells that it is another one."""
    check_begins_without_offsets(created_anew_without_a_coordinator, kept, monkeypatch)


async def removed_and_joined_anew(scene: Scene) -> tuple[ErrorCode, set[str]]:
    """What the next coordinator tells a static member that joined anew after it was removed while the record of its
    generation was committed; and which promises the trace breaks."""
    first = await coordinator(scene)
    await commit(scene, first, 3)
    slow = both_ways([first], [broker for broker in scene.deployment.brokers if broker != first])
    await scene.deployment.degrade(slow, LinkQuality(delay_ms=300))
    since = len(scene.trace)
    joining = asyncio.ensure_future(scene.ask(first, join_of("", INSTANCE)))
    await scene.until("group_storing", since=since, topic=CONSUMER_OFFSETS_TOPIC)
    removal = leaving.MemberIdentity(member_id="", group_instance_id=INSTANCE, reason=None)
    await scene.ask(first, leaving.LeaveGroupRequest(group_id=GROUP, members=(removal,)))
    assert (await joining).error_code is ErrorCode.unknown_member_id
    joined = await scene.ask(first, join_of("", INSTANCE))
    assert joined.error_code is ErrorCode.none
    await scene.kill(first)
    beat = HeartbeatRequest(
        group_id=GROUP,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        group_instance_id=INSTANCE,
    )
    second = await coordinator(scene, first)
    loads = (ErrorCode.coordinator_load_in_progress, ErrorCode.not_coordinator)
    answer = await until(lambda: scene.ask(second, beat), lambda answer: answer.error_code not in loads)
    return answer.error_code, broken_promises(scene.trace)


@pytest.mark.parametrize("outdated", [True, False])
def test_a_static_member_that_was_removed_is_not_fenced_by_the_next_coordinator(
    outdated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that is told that it is fenced ends for good."""
    if not outdated:
        apply_mistake(monkeypatch, JOINS_A_RECORDED_GENERATION)
    error, broken = played(removed_and_joined_anew, settings=ONE_PARTITION)
    assert (error is ErrorCode.fenced_instance_id) is not outdated
    assert broken == (set() if outdated else {"generation-told-early"})
