"""The admin client: creates and deletes topics, deletes records, waits for leaders.

A request that changes something is sent to one broker after another until one answers. Since an answer may be lost
after the change was made, "already done" counts as success after a lost answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from kio.schema.create_topics.v7.request import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kio.schema.delete_records.v2.request import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from kio.schema.delete_topics.v6.request import DeleteTopicsRequest, DeleteTopicState
from kio.schema.errors import ErrorCode

from images.wire.connection import ConnectionLost
from workloads.clients.connections import Backoff, Client, error_name


class AdminError(Exception):
    """A change was not made in time; the message names it and the last answer. It may still happen."""


class LeadersUnknown(AdminError):
    """Metadata names no leader of some partitions."""


class AdminClient:
    """Administers a cluster through any broker that answers."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def create_topic(
        self, name: str, partitions: int, replication_factor: int, config: Mapping[str, str], timeout_s: float
    ) -> None:
        """Create a topic, trying until it is done. Raises AdminError, also when the topic existed before.

        Too few brokers (INVALID_REPLICATION_FACTOR) is tried again, since more may come.
        """
        request = CreateTopicsRequest(
            topics=(
                CreatableTopic(
                    name=name,
                    num_partitions=partitions,
                    replication_factor=replication_factor,
                    assignments=(),
                    configs=tuple(CreatableTopicConfig(name=key, value=config[key]) for key in sorted(config)),
                ),
            ),
            timeout=timedelta(seconds=self.client.timeouts.request_timeout_s),
        )
        again = frozenset((int(ErrorCode.invalid_replication_factor),))
        await self._change(f"create topic {name}", request, ErrorCode.topic_already_exists, again, timeout_s)

    async def delete_topic(self, name: str, timeout_s: float) -> None:
        """Delete a topic, trying until it is done. Raises AdminError, also when there was none."""
        request = DeleteTopicsRequest(
            topics=(DeleteTopicState(name=name, topic_id=None),),
            timeout=timedelta(seconds=self.client.timeouts.request_timeout_s),
        )
        await self._change(
            f"delete topic {name}", request, ErrorCode.unknown_topic_or_partition, frozenset(), timeout_s
        )

    async def delete_records(self, topic: str, partition: int, offset: int, timeout_s: float) -> int:
        """Delete the records of a partition below `offset`, or with -1 below the high watermark, trying until it is
        done; the low watermark: no replica in sync has a record below it. Raises AdminError."""
        client = self.client
        client.track_topic(topic)
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        backoff = Backoff(client.timeouts, client.random)
        part = DeleteRecordsPartition(partition_index=partition, offset=offset)
        request = DeleteRecordsRequest(
            topics=(DeleteRecordsTopic(name=topic, partitions=(part,)),),
            timeout=timedelta(seconds=client.timeouts.request_timeout_s),
        )
        while True:
            last = "no leader is known"
            leader = client.metadata.leader(topic, partition)
            if leader is not None:
                try:
                    connection = await client.connection(leader.broker)
                    response: Any = await connection.call(request, 2 * client.timeouts.request_timeout_s)
                    answer = response.topics[0].partitions[0]
                    if answer.error_code == 0:
                        return int(answer.low_watermark)
                    last = error_name(answer.error_code)
                    if not ErrorCode(answer.error_code).retriable or answer.error_code == ErrorCode.offset_out_of_range:
                        raise AdminError(f"delete records of {topic}-{partition} below {offset}: {last}")
                except ConnectionLost as lost:
                    last = str(lost)
            if loop.time() >= deadline_s:
                raise AdminError(
                    f"delete records of {topic}-{partition} below {offset}: not done in {timeout_s} s; "
                    f"the last answer: {last}"
                )
            await client.refresh()
            await asyncio.sleep(backoff.next_s())

    async def wait_for_leaders(self, name: str, partitions: int, timeout_s: float) -> None:
        """Return once metadata names a leader of every partition. Raises LeadersUnknown."""
        client = self.client
        client.track_topic(name)
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        backoff = Backoff(client.timeouts, client.random)
        while True:
            await client.refresh()
            missing = [index for index in range(partitions) if client.metadata.leader(name, index) is None]
            if not missing:
                return
            if asyncio.get_running_loop().time() >= deadline_s:
                raise LeadersUnknown(f"after {timeout_s} s metadata names no leader of {name}, partitions {missing}")
            await asyncio.sleep(backoff.next_s())

    async def _change(
        self, what: str, request: Any, already_done: int, again: frozenset[int], timeout_s: float
    ) -> None:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        backoff = Backoff(self.client.timeouts, self.client.random)
        may_be_done = False
        while True:
            try:
                response = await self.client.ask_next(request)
            except ConnectionLost as lost:
                may_be_done = may_be_done or lost.sent
                last = str(lost)
            else:
                answer = response.topics[0] if hasattr(response, "topics") else response.responses[0]
                code = int(answer.error_code)
                if code == 0 or (code == already_done and may_be_done):
                    return
                last = error_name(code) + (f" ({answer.error_message})" if answer.error_message else "")
                if not (ErrorCode(code).retriable or code in again) or code == already_done:
                    raise AdminError(f"{what}: {last}")
                may_be_done = may_be_done or code == ErrorCode.request_timed_out
            if loop.time() >= deadline_s:
                raise AdminError(f"{what}: not done in {timeout_s} s; the last answer: {last}")
            await asyncio.sleep(backoff.next_s())
