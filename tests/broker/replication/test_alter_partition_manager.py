"""How often a leader sends an ISR change: until an answer or newer metadata ends it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from kio.schema.alter_partition.v3.response import AlterPartitionResponse, PartitionData, TopicData
from kio.schema.errors import ErrorCode

from images.broker.controller.channel import ControllerChannel
from images.broker.replication.alter_partition_manager import AlterPartitionManager
from images.wire.field_values import NO_THROTTLE
from tests.broker.replication.replica_node import ACTIVE, Node
from tests.workloads.virtual_time import run

BACKOFF_S = 1.0


class RefusingChannel:
    """A controller that gives the same error to every change."""

    def __init__(self, error: ErrorCode) -> None:
        self.sent = 0
        self._error = error

    async def call(self, request: Any) -> AlterPartitionResponse:
        self.sent += 1
        partition = PartitionData(
            partition_index=0, error_code=self._error, leader_id=-1, leader_epoch=-1, isr=(), partition_epoch=-1
        )
        topic = TopicData(topic_id=request.topics[0].topic_id, partitions=(partition,))
        return AlterPartitionResponse(throttle_time=NO_THROTTLE, error_code=ErrorCode.none, topics=(topic,))


@pytest.mark.parametrize(
    ("error", "sent"),
    [
        (ErrorCode.not_controller, [3, 3]),
        (ErrorCode.unknown_topic_id, [3, 3]),
        (ErrorCode.unknown_topic_or_partition, [3, 3]),
        (ErrorCode.invalid_update_version, [1, 1]),
    ],
)
def test_a_change_of_a_partition_that_the_controller_does_not_know_is_sent_until_the_replica_is_gone(
    error: ErrorCode, sent: list[int]
) -> None:
    """A deposed controller may not know the partition yet, and the active one not any more."""
    channel, counts = RefusingChannel(error), []

    async def scenario() -> None:
        node, tasks = Node(1), []

        def spawn(work: Any, *arguments: Any) -> asyncio.Task[None]:
            tasks.append(asyncio.ensure_future(work(*arguments)))
            return tasks[-1]

        manager = AlterPartitionManager(
            1, cast(ControllerChannel, channel), lambda: 11, BACKOFF_S, spawn, node.trace.append
        )
        replica = node.lead(1)
        node.now_s = 60.0
        replica.tick(ACTIVE)
        (shrink,) = node.proposed
        manager.propose(replica, shrink)
        await asyncio.sleep(2.5 * BACKOFF_S)
        counts.append(channel.sent)
        replica.resign()
        await asyncio.sleep(2.5 * BACKOFF_S)
        counts.append(channel.sent)
        assert all(task.done() for task in tasks)

    run(scenario())
    assert counts == sent
