"""A cluster that does what a script says, for tests of clients.

Brokers are real servers on loopback that share one log per partition: there is no replication to go wrong, only what
a client can see of it. Each Produce takes the next `Step` of `script` (then `otherwise`), which says whether the batch
is appended and how the client hears of it. Idempotence is checked as in docs/protocol.md §6.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from kio.schema.create_topics.v7.response import CreatableTopicResult
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v16.response import FetchableTopicResponse, PartitionData
from kio.schema.list_offsets.v7.response import ListOffsetsPartitionResponse, ListOffsetsTopicResponse
from kio.schema.metadata.v12.response import MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic
from kio.schema.offset_for_leader_epoch.v4.response import EpochEndOffset, OffsetForLeaderTopicResult
from kio.schema.produce.v11.response import LeaderIdAndEpoch, PartitionProduceResponse, TopicProduceResponse

from images.broker.runtime.server import Request, Server
from images.wire import batch as batches
from images.wire.connection import Api, response_class

TOPIC = "t"
NO_TIME = timedelta(0)


@dataclass(frozen=True)
class Step:
    """The handling of one Produce: append if its sequence allows, wait, then answer `error` or drop the connection."""

    append: bool = True
    error: int = 0
    drop: bool = False
    delay_s: float = 0.0
    without_offset: bool = False


APPEND = Step()
DROP_BEFORE = Step(append=False, drop=True)
DROP_AFTER = Step(drop=True)
SILENCE = Step(append=False, delay_s=1000.0)
APPEND_IN_SILENCE = Step(delay_s=1000.0)


def answer(error: int, *, append: bool = False) -> Step:
    return Step(append=append, error=error)


class Dropped(Exception):
    """Raised in a handler, it costs the client its connection."""


@dataclass
class Log:
    """One partition: its batches, and what is remembered of producers."""

    batches: list[bytes] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    """Where each batch ends."""
    end: int = 0
    start: int = 0
    producers: dict[int, tuple[int, list[tuple[int, int, int]]]] = field(default_factory=dict)
    """Producer id → epoch and the last five (first sequence, last sequence, base offset)."""

    def append(self, data: bytes, leader_epoch: int) -> tuple[int, int]:
        """(error code, base offset)."""
        header, data = batches.check_produced(data)
        if header.producer_id >= 0:
            known = self.producers.get(header.producer_id)
            recent: list[tuple[int, int, int]] = []
            if known is not None:
                epoch, recent = known
                if header.producer_epoch < epoch:
                    return 47, -1
                if header.producer_epoch > epoch:
                    if header.base_sequence != 0:
                        return 45, -1
                    recent = []
                else:
                    for first, last, offset in recent:
                        if (first, last) == (header.base_sequence, header.last_sequence):
                            return 0, offset
                    if header.base_sequence != recent[-1][1] + 1:
                        return 45, -1
            recent = [*recent, (header.base_sequence, header.last_sequence, self.end)][-5:]
            self.producers[header.producer_id] = (header.producer_epoch, recent)
        base = self.end
        self.end = base + header.count
        self.batches.append(batches.assign(data, base, leader_epoch))
        self.ends.append(self.end)
        return 0, base

    def cut(self, to: int) -> None:
        """Truncate the end, as an unclean election does; `to` is where a batch ends."""
        keep = bisect_right(self.ends, to)
        del self.batches[keep:], self.ends[keep:]
        self.end = to

    def epoch_end(self, asked: int, leader_epoch: int) -> tuple[int, int]:
        """The end offset of a leader epoch (Kafka Log Divergence §3.2); the leader's own may have no batch yet."""
        starts = {}
        for data in self.batches:
            header = batches.parse(data)
            starts.setdefault(header.leader_epoch, header.base_offset)
        starts.setdefault(leader_epoch, self.end)
        if asked == -1 or asked > max(starts):
            return -1, -1
        end = min((start for epoch, start in starts.items() if epoch > asked), default=self.end)
        return max((epoch for epoch in starts if epoch <= asked), default=asked), end

    def values(self) -> list[int]:
        return [int(record.value) for data in self.batches for record in batches.records(data)]


class ScriptedCluster:
    """Use as an async context manager. `brokers` servers with ids from 1."""

    def __init__(self, *, partitions: int = 1, brokers: int = 1) -> None:
        self.topic_id = UUID(int=42)
        self.logs = [Log() for _ in range(partitions)]
        self.leaders = [(1 + index % brokers, 0) for index in range(partitions)]
        self.stale: dict[int, list[tuple[int, int]]] = {}
        """Broker → leaders as that broker tells them, when it is behind."""
        self.script: deque[Step] = deque()
        self.otherwise = APPEND
        self.produced: list[bytes] = []
        """Every batch that reached a broker, in order, retries included."""
        self.topic_exists = True
        self.create_script: deque[Step] = deque()
        self.fetch_errors: deque[int] = deque()
        self.list_errors: deque[int] = deque()
        self.epoch_errors: deque[int] = deque()
        self.epochs_asked: list[int] = []
        """The leader epoch of every OffsetForLeaderEpoch."""
        self.fetched: list[tuple[int, int]] = []
        """(partition, leader epoch) of every fetch."""
        self.next_producer_id = 7
        self.lines: list[str] = []
        self.servers = [self._server(number + 1) for number in range(brokers)]
        self._appended = asyncio.Condition()

    async def __aenter__(self) -> ScriptedCluster:
        for server in self.servers:
            await server.start("127.0.0.1", 0)
        self.addresses = tuple(("127.0.0.1", server.port) for server in self.servers)
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self.servers:
            await server.close()

    def _server(self, broker: int) -> Server:
        handlers: dict[Api, Any] = {
            Api.METADATA: lambda request: self._metadata(broker, request),
            Api.PRODUCE: lambda request: self._produce(broker, request),
            Api.FETCH: lambda request: self._fetch(broker, request),
            Api.LIST_OFFSETS: lambda request: self._list_offsets(broker, request),
            Api.OFFSET_FOR_LEADER_EPOCH: lambda request: self._offset_for_leader_epoch(broker, request),
            Api.INIT_PRODUCER_ID: self._init_producer_id,
            Api.CREATE_TOPICS: self._create_topics,
        }
        return Server(handlers, log=self.lines.append)

    async def _metadata(self, broker: int, request: Request) -> Any:
        leaders = self.stale.get(broker, self.leaders)
        topic = MetadataResponseTopic(
            error_code=ErrorCode.none if self.topic_exists else ErrorCode.unknown_topic_or_partition,
            name=TOPIC,
            topic_id=self.topic_id if self.topic_exists else UUID(int=0),
            partitions=tuple(
                MetadataResponsePartition(
                    error_code=ErrorCode.none, partition_index=index, leader_id=leader, leader_epoch=epoch
                )
                for index, (leader, epoch) in enumerate(leaders if self.topic_exists else [])
            ),
        )
        return response_class(Api.METADATA)(
            throttle_time=NO_TIME,
            brokers=tuple(
                MetadataResponseBroker(node_id=number + 1, host=host, port=port)
                for number, (host, port) in enumerate(self.addresses)
            ),
            topics=(topic,) if request.body.topics else (),
        )

    async def _produce(self, broker: int, request: Request) -> Any:
        produced_partition = request.body.topic_data[0].partition_data[0]
        data = bytes(produced_partition.records)
        self.produced.append(data)
        leader, epoch = self.leaders[produced_partition.index]
        step = self.script.popleft() if self.script else self.otherwise
        error, base = step.error, -1
        if leader != broker:
            error = 6
        elif step.append:
            refused, base = self.logs[produced_partition.index].append(data, epoch)
            if refused:
                error = refused
            async with self._appended:
                self._appended.notify_all()
        elif error == 0 and not step.drop:
            error = 6
        if step.delay_s:
            await asyncio.sleep(step.delay_s)
        if step.drop:
            raise Dropped
        if request.body.acks == 0:
            return None
        hint = LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch) if error == 6 else LeaderIdAndEpoch()
        answered = PartitionProduceResponse(
            index=produced_partition.index,
            error_code=ErrorCode(error),
            base_offset=base if error == 0 and not step.without_offset else -1,
            record_errors=(),
            current_leader=hint,
        )
        return response_class(Api.PRODUCE)(
            responses=(TopicProduceResponse(name=TOPIC, partition_responses=(answered,)),), throttle_time=NO_TIME
        )

    async def _fetch(self, broker: int, request: Request) -> Any:
        wanted = request.body.topics[0].partitions
        answers = self._answers(broker, wanted)
        if all(answer.error_code == 0 and not answer.records for answer in answers):
            try:
                async with asyncio.timeout(request.body.max_wait.total_seconds()), self._appended:
                    await self._appended.wait()
            except TimeoutError:
                pass
            answers = self._answers(broker, wanted)
        return response_class(Api.FETCH)(
            throttle_time=NO_TIME,
            error_code=ErrorCode.none,
            responses=(FetchableTopicResponse(topic_id=request.body.topics[0].topic_id, partitions=answers),),
        )

    def _answers(self, broker: int, wanted: Any) -> tuple[Any, ...]:
        answers = []
        for asked in wanted:
            log = self.logs[asked.partition]
            self.fetched.append((asked.partition, asked.current_leader_epoch))
            error = self._epoch_error(broker, asked.partition, asked.current_leader_epoch)
            if not error and self.fetch_errors:
                error = self.fetch_errors.popleft()
            if not error and not log.start <= asked.fetch_offset <= log.end:
                error = 1
            data = b"" if error else b"".join(log.batches[bisect_right(log.ends, asked.fetch_offset) :])
            answers.append(
                PartitionData(
                    partition_index=asked.partition,
                    error_code=ErrorCode(error),
                    high_watermark=-1 if error else log.end,
                    aborted_transactions=None,
                    records=data,
                )
            )
        return tuple(answers)

    async def _list_offsets(self, broker: int, request: Request) -> Any:
        asked = request.body.topics[0].partitions[0]
        error = self._epoch_error(broker, asked.partition_index, asked.current_leader_epoch)
        if not error and self.list_errors:
            error = self.list_errors.popleft()
        log = self.logs[asked.partition_index]
        answered = ListOffsetsPartitionResponse(
            partition_index=asked.partition_index,
            error_code=ErrorCode(error),
            offset=-1 if error else log.end if asked.timestamp == -1 else log.start,
            leader_epoch=-1 if error else self.leaders[asked.partition_index][1],
        )
        return response_class(Api.LIST_OFFSETS)(
            throttle_time=NO_TIME, topics=(ListOffsetsTopicResponse(name=TOPIC, partitions=(answered,)),)
        )

    async def _offset_for_leader_epoch(self, broker: int, request: Request) -> Any:
        asked = request.body.topics[0].partitions[0]
        self.epochs_asked.append(asked.leader_epoch)
        error = self._epoch_error(broker, asked.partition, asked.current_leader_epoch)
        if not error and self.epoch_errors:
            error = self.epoch_errors.popleft()
        _, leader_epoch = self.leaders[asked.partition]
        epoch, end = (-1, -1) if error else self.logs[asked.partition].epoch_end(asked.leader_epoch, leader_epoch)
        answered = EpochEndOffset(
            error_code=ErrorCode(error), partition=asked.partition, leader_epoch=epoch, end_offset=end
        )
        return response_class(Api.OFFSET_FOR_LEADER_EPOCH)(
            throttle_time=NO_TIME, topics=(OffsetForLeaderTopicResult(topic=TOPIC, partitions=(answered,)),)
        )

    def _epoch_error(self, broker: int, partition: int, epoch: int) -> int:
        leader, current = self.leaders[partition]
        if epoch != -1 and epoch != current:
            return 74 if epoch < current else 75
        return 0 if leader == broker else 6

    async def _init_producer_id(self, request: Request) -> Any:
        self.next_producer_id += 1
        return response_class(Api.INIT_PRODUCER_ID)(
            throttle_time=NO_TIME, error_code=ErrorCode.none, producer_id=self.next_producer_id, producer_epoch=0
        )

    async def _create_topics(self, request: Request) -> Any:
        step = self.create_script.popleft() if self.create_script else APPEND
        error = step.error
        if step.append and not error:
            error = 36 if self.topic_exists else 0
            self.topic_exists = True
        if step.drop:
            raise Dropped
        result = CreatableTopicResult(
            name=TOPIC, topic_id=self.topic_id, error_code=ErrorCode(error), error_message=None, configs=()
        )
        return response_class(Api.CREATE_TOPICS)(throttle_time=NO_TIME, topics=(result,))
