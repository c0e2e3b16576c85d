"""The scripted client: carries out the operations of a script (`workloads.operations`), one at a time.

Its appends, polls and commits are operations of the history like those of any other client.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from workloads.clients.membership import GroupMember
from workloads.clients.native import (
    AdminClient,
    AdminError,
    Backoff,
    CompletedFetch,
    Consumer,
    OffsetOutOfRangeError,
)
from workloads.commits import CommitRecorder
from workloads.history import Recorder, TopicPartition
from workloads.operations import (
    ClientOperation,
    CommitPosition,
    CreateTopic,
    DeleteTopic,
    OperationRefused,
    PartitionOperation,
    PollRecords,
    ProduceRecords,
    ResumeCommitted,
    SeekBack,
    SeekPosition,
    TopicOperation,
)
from workloads.workload import WorkloadSettings

GROUP: Final = "faultline-script"
_POLL_S: Final = 1.0


class ScriptedClient:
    """One process; see the module's docstring."""

    def __init__(
        self,
        process: int,
        settings: WorkloadSettings,
        recorder: Recorder,
        append: Callable[[int, str | None], Awaitable[None]],
        consumer_of: Callable[[int], Consumer],
        record_poll: Callable[[Consumer, CompletedFetch], Awaitable[None]],
        admin: AdminClient,
    ) -> None:
        """`append` appends the next value to a partition, by the producer of a name; `consumer_of` makes a consumer of
        a partition, and `record_poll` records an answer that it got."""
        self._settings = settings
        self._topic = settings.topic
        self._commits = CommitRecorder(recorder, process, settings.commit_text_bytes_max)
        self._append = append
        self._consumer_of = consumer_of
        self._record_poll = record_poll
        self._admin = admin
        self._consumers: dict[int, Consumer] = {}
        """A consumer for each partition, so that each keeps its position while another is read."""

    async def perform(self, operation: ClientOperation) -> None:
        """Carry out one operation; returns when it has ended. Raises OperationRefused."""
        match operation:
            case TopicOperation():
                await self._administer(operation)
            case PartitionOperation():
                await self._perform_on_partition(operation, operation.partition)

    async def _administer(self, operation: TopicOperation) -> None:
        try:
            match operation:
                case CreateTopic(topic=topic, partitions_or_one=partitions):
                    replicas = self._settings.replication_factor
                    await self._admin.create_topic(topic, partitions, replicas, {}, math.inf)
                case DeleteTopic(topic=topic):
                    await self._admin.delete_topic(topic, math.inf)
        except AdminError as error:
            raise OperationRefused(str(error)) from error

    async def _perform_on_partition(self, operation: PartitionOperation, partition: int) -> None:
        match operation:
            case ProduceRecords(count=count, producer=producer):
                async with asyncio.TaskGroup() as group:
                    for _ in range(count):
                        group.create_task(self._appended(partition, producer))
            case PollRecords(until=until):
                await self._poll(partition, until)
            case SeekPosition(offset=offset, epoch=epoch):
                self._consumer(partition).seek(self._topic, partition, offset, epoch)
            case SeekBack(age_ms=age_ms):
                await self._seek_back(self._consumer(partition), (self._topic, partition), age_ms)
            case CommitPosition():
                await self._commit(self._consumer(partition), (self._topic, partition))
            case ResumeCommitted():
                await self._resume(self._consumer(partition), (self._topic, partition))

    async def _appended(self, partition: int, producer: str | None) -> None:
        await self._append(partition, producer)

    def _consumer(self, partition: int) -> Consumer:
        if partition not in self._consumers:
            self._consumers[partition] = self._consumer_of(partition)
        return self._consumers[partition]

    async def _poll(self, partition: int, until: int | None) -> None:
        consumer = self._consumer(partition)
        while True:
            records = 0
            try:
                answers = await consumer.poll(_POLL_S)
            except OffsetOutOfRangeError as error:  # `auto_offset_reset: none`: again at every poll until a seek
                raise OperationRefused(str(error)) from error
            for fetched in answers:
                await self._record_poll(consumer, fetched)
                records += len(fetched.records)
            if records if until is None else consumer.position(self._topic, partition) >= until:
                return

    async def _seek_back(self, consumer: Consumer, key: TopicPartition, age_ms: int) -> None:
        """As `kafka-consumer-groups --reset-offsets --by-duration` does, to the end when no record is that recent."""
        unix_ms = int(asyncio.get_running_loop().time() * 1_000) + self._settings.unix_ahead_ms
        backoff = Backoff(consumer.client.timeouts, consumer.client.random)
        while True:
            answer = (await consumer.offsets_for_times({key: max(0, unix_ms - age_ms)}))[key]
            if answer.offset == -1:
                answer = await consumer.end_offset(*key)
            if answer.offset is not None:
                consumer.seek(*key, answer.offset, answer.epoch)
                return
            await asyncio.sleep(backoff.next_s())

    async def _commit(self, consumer: Consumer, key: TopicPartition) -> None:
        commits = self._commits
        position = commits.position(consumer.next_offsets()[key])
        backoff = Backoff(consumer.client.timeouts, consumer.client.random)
        while True:
            member = _group(consumer, key)
            result = await commits.change("commit", {key: position}, partial(member.commit, {key: position}))
            if result.outcome == "ok":
                return
            await asyncio.sleep(backoff.next_s())

    async def _resume(self, consumer: Consumer, key: TopicPartition) -> None:
        open_operations = self._commits.invoke_start((key,))
        committed = await _group(consumer, key).committed((key,))
        position = self._commits.complete_start(open_operations, committed)[key]
        consumer.seek(*key, position.offset, position.epoch)


def _group(consumer: Consumer, key: TopicPartition) -> GroupMember:
    """A member that never joins: a group without members takes commits from anybody."""
    return GroupMember(consumer.client, GROUP, (key[0],))
