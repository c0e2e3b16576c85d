"""Two replicas of one partition of `__consumer_offsets`, for tests of its coordinator."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from kio.schema.errors import ErrorCode

from images.broker.groups.group import Caller, Group, GroupLimits, JoinRequest
from images.broker.groups.rebalance import join, sync
from images.broker.groups.records import OffsetAndMetadata, TopicPartition
from images.broker.groups.shard import Shard
from images.broker.rules import Rules
from images.broker.runtime.condition import Condition
from tests.broker.replication.replica_node import LIMITS, Node
from tests.broker.replication.test_replica import catch_up, fetch
from tests.workloads.virtual_time import run

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
MEMBER = Caller("m", 1)
NOBODY = Caller("", -1)
UNIX_MS = 1_790_000_000_000
GROUPS = GroupLimits(1_000, 60_000, 0, Rules())


class Coordinators:
    """Two replicas of one partition of the coordinator's topic, and shards upon them."""

    def __init__(self, rules: Rules) -> None:
        self.nodes = {number: Node(number, replace(LIMITS, rules=rules)) for number in (1, 2)}
        self.rules = rules
        self.tasks: list[asyncio.Task[None]] = []

    def spawn(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> asyncio.Task[None]:
        self.tasks.append(asyncio.ensure_future(work(*arguments)))
        return self.tasks[-1]

    def lead(self, node: int, epoch: int) -> Shard:
        """A shard on `node`, which leads from now on; the other one follows."""
        other = 3 - node
        self.nodes[node].lead(epoch)
        self.nodes[other].follow(node, epoch)
        shard = Shard(
            self.nodes[node].replica,
            self.rules,
            0.2,
            asyncio.get_running_loop().time,
            lambda: UNIX_MS,
            self.spawn,
            Condition(),
            lambda line: None,
        )
        self.spawn(shard.load)
        return shard

    async def lead_and_load(self, node: int, epoch: int) -> Shard:
        """The same, once the follower has all of the log: what the shard loads is committed then."""
        shard = self.lead(node, epoch)
        self.replicate(node)
        await turns()
        return shard

    def replicate(self, leader: int) -> None:
        catch_up(self.nodes[leader].replica, self.nodes[3 - leader].replica)

    async def keep_replicating(self, leader: int) -> None:
        while True:
            fetch(self.nodes[leader].replica, self.nodes[3 - leader].replica)
            await asyncio.sleep(0)


def in_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run_test(*args: Any, **values: Any) -> None:
        run(test(*args, **values))

    return run_test


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def coordinators(*rules_off: str) -> Coordinators:
    return Coordinators(Rules().without(rules_off))


async def committed_offsets(shard: Shard, until: float) -> tuple[ErrorCode, dict[TopicPartition, OffsetAndMetadata]]:
    """The answer to a request for the committed offsets of group g alone."""
    with shard.offsets_read() as read:
        return await shard.committed_offsets("g", read, until)


async def told(cluster: Coordinators, leader: int, shard: Shard) -> dict[TopicPartition, OffsetAndMetadata]:
    """The committed offsets of group g, while the shard's follower keeps fetching."""
    fetching = asyncio.ensure_future(cluster.keep_replicating(leader))
    error, found = await committed_offsets(shard, asyncio.get_running_loop().time() + 5)
    fetching.cancel()
    assert error is ErrorCode.none
    return found


async def committed(cluster: Coordinators, shard: Shard, place: TopicPartition, offset: int) -> None:
    """A commit of group g by nobody in particular, which broker 1 has answered."""
    committing = asyncio.ensure_future(shard.commit("g", NOBODY, [(place, OffsetAndMetadata(offset))]))
    await turns()
    cluster.replicate(1)
    assert await committing is ErrorCode.none


def asks(new: str, member: str = "", instance: str | None = None) -> JoinRequest:
    return JoinRequest(member, new, "consumer", (("range", b"s"),), 10_000, 10_000, instance)


async def stable_with(cluster: Coordinators, shard: Shard, caller: Caller) -> None:
    """Group g of broker 1 has this one member, with everything assigned to it; all of it is replicated."""
    fetching = asyncio.ensure_future(cluster.keep_replicating(1))
    await turns()
    step = join(Group("g"), asks(caller.member_id, instance=caller.instance_id), shard.now_ms(), GROUPS)
    assert (await shard.join_answer("g", step)).generation == caller.generation == 1
    step = sync(shard.groups["g"], caller, (None, None), {caller.member_id: b"mine"}, shard.now_ms())
    assert (await shard.sync_answer("g", step)).assignment == b"mine"
    fetching.cancel()
    cluster.replicate(1)
    await turns()
