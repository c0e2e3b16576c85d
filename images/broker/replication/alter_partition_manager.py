"""Sends ISR changes to the controller (AlterPartition), one in flight per partition.

A request is repeated until it is answered, or until metadata resolves the change. The partition machine decides what an
answer proves; this module knows whether an earlier request may still reach the controller, so that a refusal is not
certain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from kio.schema.alter_partition.v3.request import AlterPartitionRequest, BrokerState, PartitionData, TopicData
from kio.schema.errors import ErrorCode

from images.broker.controller.channel import ControllerChannel
from images.broker.replication.partition import IsrCommitted, IsrRefused, ProposeIsr
from images.broker.replication.replica import Replica
from images.broker.runtime.spawn import Spawn
from images.trace import TraceEvent
from images.wire.connection import ConnectionLost

RETRIABLE = frozenset(
    {
        ErrorCode.not_controller,
        ErrorCode.stale_broker_epoch,
        ErrorCode.unknown_server_error,
        ErrorCode.unknown_topic_id,
        ErrorCode.unknown_topic_or_partition,
    }
)
"""Errors that do not concern the change itself. A deposed controller may not know the partition yet, and then no newer
state of it is to come; if the partition was deleted, the metadata ends the change."""


class AlterPartitionManager:
    """Sends the ISR changes of the partitions that this broker leads."""

    def __init__(
        self,
        node_id: int,
        channel: ControllerChannel,
        broker_epoch: Callable[[], int],
        backoff_s: float,
        spawn: Spawn,
        trace: Callable[[TraceEvent], None],
    ) -> None:
        self._node_id = node_id
        self._channel = channel
        self._broker_epoch = broker_epoch
        self._backoff_s = backoff_s
        self._spawn = spawn
        self._trace = trace
        self._in_flight: dict[tuple[str, int], asyncio.Task[None]] = {}

    def propose(self, replica: Replica, proposal: ProposeIsr) -> None:
        """Send `proposal` to the controller, and stop sending an earlier one of the same partition."""
        key = (replica.topic, replica.index)
        earlier = self._in_flight.pop(key, None)
        if earlier is not None:
            earlier.cancel()
        task = self._spawn(self._send, replica, proposal)
        self._in_flight[key] = task
        task.add_done_callback(lambda done: self._forget(key, done))

    def _forget(self, key: tuple[str, int], done: asyncio.Task[None]) -> None:
        if self._in_flight.get(key) is done:
            del self._in_flight[key]

    async def _send(self, replica: Replica, proposal: ProposeIsr) -> None:
        certain = True
        while replica.still_proposes(proposal):
            self._trace_request("alter_partition_sent", replica, proposal)
            try:
                response = await self._channel.call(self._request(replica, proposal))
            except ConnectionLost as lost:
                certain = certain and not lost.sent
                self._trace_answer(replica, proposal, "lost", certain, {"sent": lost.sent})
                await asyncio.sleep(self._backoff_s)
                continue
            error, answer = _read(response)
            granted = {} if answer is None else {"partition_epoch": answer.partition_epoch}
            self._trace_answer(replica, proposal, error.name, certain, granted)
            if error is ErrorCode.none:
                replica.isr_committed(IsrCommitted(tuple(answer.isr), answer.leader_epoch, answer.partition_epoch))
                return
            if error not in RETRIABLE:
                replica.isr_refused(proposal, IsrRefused(error, certain))
                return
            await asyncio.sleep(self._backoff_s)

    def _trace_answer(
        self, replica: Replica, proposal: ProposeIsr, error: str, certain: bool, detail: Mapping[str, object]
    ) -> None:
        told = {"error": error, "again_ms": round(self._backoff_s * 1000), "certain": certain, **detail}
        self._trace_request("alter_partition_answered", replica, proposal, told)

    def _trace_request(
        self, kind: str, replica: Replica, proposal: ProposeIsr, detail: Mapping[str, object] = MappingProxyType({})
    ) -> None:
        self._trace(
            TraceEvent(
                kind,
                replica.topic,
                replica.index,
                leader=self._node_id,
                leader_epoch=proposal.leader_epoch,
                partition_epoch=proposal.partition_epoch,
                broker_epoch=self._broker_epoch(),
                members=proposal.members,
                detail=detail,
                topic_id=str(replica.topic_id),
            )
        )

    def _request(self, replica: Replica, proposal: ProposeIsr) -> AlterPartitionRequest:
        members = tuple(
            BrokerState(broker_id=member, broker_epoch=epoch)
            for member, epoch in zip(proposal.members, proposal.broker_epochs, strict=True)
        )
        partition = PartitionData(
            partition_index=replica.index,
            leader_epoch=proposal.leader_epoch,
            new_isr_with_epochs=members,
            partition_epoch=proposal.partition_epoch,
        )
        return AlterPartitionRequest(
            broker_id=self._node_id,
            broker_epoch=self._broker_epoch(),
            topics=(TopicData(topic_id=replica.topic_id, partitions=(partition,)),),
        )


def _read(response: Any) -> tuple[ErrorCode, Any]:
    """The error of the whole answer or of its only partition, and the answer for that partition."""
    if response.error_code is not ErrorCode.none or not response.topics:
        return response.error_code, None
    partition = response.topics[0].partitions[0]
    return partition.error_code, partition
