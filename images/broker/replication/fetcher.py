"""Following: one fetcher for each broker that leads partitions this broker follows.

A fetcher asks for all its partitions in one Fetch, waits at the leader until there is something new, and hands each
answer, with the offset and leader epoch it was asked at, to the replica, which decides whether it still means anything.
What has not moved since the last request is not named again (`fetch_sessions.py`).
A partition that fails rests for `replica.fetch.backoff.ms`; the others go on. What the generation of the protocol has a
follower ask before it fetches (`truncation.py`) is asked first, for all such partitions at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode
from kio.schema.fetch.v16.request import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    ReplicaState,
)
from kio.schema.list_offsets.v7.request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kio.schema.offset_for_leader_epoch.v4.request import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

from images.broker.config import Endpoint
from images.broker.replication.fetch_sessions import FetchSessionHandler, Key
from images.broker.replication.partition import NO_EPOCH, ReplicaRole
from images.broker.replication.replica import Replica
from images.broker.runtime.condition import resolve
from images.broker.runtime.spawn import Spawn
from images.broker.truncation_protocol import TruncationProtocol
from images.wire.connection import Connection, ConnectionLost

LATEST, EARLIEST = -1, -2
"""The timestamps by which ListOffsets asks for the end and the start of a log."""


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """How much and how long a fetcher asks for."""

    max_wait_s: float
    partition_max_bytes: int
    max_bytes: int
    backoff_s: float
    timeout_s: float


class _Sent(NamedTuple):
    """Where a partition stood when it was asked for."""

    replica: Replica
    offset: int
    leader_epoch: int
    last_epoch: int
    log_start: int
    epoch_query: int | None

    @classmethod
    def of(cls, replica: Replica) -> _Sent:
        """Where `replica` stands now."""
        state = replica.state
        return cls(replica, state.log_end, state.leader_epoch, state.epochs.latest, state.log_start, state.epoch_query)

    @property
    def fence(self) -> int:
        """The leader epoch that what is asked carries, by which the leader fences."""
        return self.leader_epoch if self.replica.limits.truncation_protocol.fences_requests else NO_EPOCH


class Fetcher:
    """Fetches from one leader for as long as there is something to follow."""

    def __init__(
        self,
        node_id: int,
        leader: int,
        endpoint: Endpoint,
        limits: FetchLimits,
        broker_epoch: Callable[[], int],
        log: Callable[[str], None],
        spawn: Spawn,
    ) -> None:
        self.leader = leader
        self.endpoint = endpoint
        self._node_id = node_id
        self._limits = limits
        self._broker_epoch = broker_epoch
        self._log = log
        self._replicas: tuple[Replica, ...] = ()
        self._resting_until: dict[Replica, float] = {}
        self._connection: Connection | None = None
        self._woken: asyncio.Future[None] | None = None
        self._session = FetchSessionHandler()
        self._named: dict[Key, tuple[_Sent, FetchPartition]] = {}
        """How each partition was asked for last, and as what."""
        self._task = spawn(self._run())

    def follow(self, replicas: Iterable[Replica]) -> None:
        """Fetch for these replicas from the next round on, which begins now if nothing is being waited for."""
        self._replicas = tuple(replicas)
        self._resting_until = {
            replica: until for replica, until in self._resting_until.items() if replica in self._replicas
        }
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    def close(self) -> None:
        """Stop fetching."""
        self._task.cancel()
        if self._connection is not None:
            self._connection.close()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            now = loop.time()
            sent = {
                (replica.topic_id, replica.index): _Sent.of(replica)
                for replica in self._replicas
                if replica.state.role is ReplicaRole.FOLLOWER
                and replica.state.leader == self.leader
                and self._resting_until.get(replica, now) <= now
            }
            if not sent:
                await self._rest_all()
                continue
            try:
                if any(asked.epoch_query is not None for asked in sent.values()):
                    await self._ask(sent)
                    continue
                response = await self._call(self._question(sent))
                if not self._session.answered(response.error_code, response.session_id):
                    self._log(f"broker {self.leader} ended the fetch session: {response.error_code.name}")
                    continue
                unsaid = dict(sent)
                for topic in response.responses:
                    for answer in topic.partitions:
                        asked = unsaid.pop((topic.topic_id, answer.partition_index), None)
                        if asked is not None:
                            await self._take(asked, answer)
                for asked in unsaid.values():
                    asked.replica.fits(asked.offset, asked.leader_epoch)
            except ConnectionLost as lost:
                self._session.broken()
                self._log(f"fetching from broker {self.leader} failed: {lost}")
                await self._rest_all()

    async def _call(self, request: Any) -> Any:
        if self._connection is None or self._connection.closed:
            self._connection = await Connection.open(
                self.endpoint.host, self.endpoint.port, f"replica-{self._node_id}", self._limits.timeout_s
            )
        return await self._connection.call(request, self._limits.timeout_s + self._limits.max_wait_s)

    def _question(self, sent: Mapping[Key, _Sent]) -> FetchRequest:
        """The request for what stands at `sent`."""
        named = {}
        for key, asked in sent.items():
            before = self._named.get(key)
            named[key] = before if before is not None and before[0] == asked else (asked, self._partition(asked))
        self._named = named
        epoch_query = self._session.next_request({key: partition for key, (_, partition) in named.items()})
        topics: dict[Any, list[FetchPartition]] = {}
        for topic_id, partition in epoch_query.named:
            topics.setdefault(topic_id, []).append(partition)
        forgotten: dict[Any, list[int]] = {}
        for topic_id, index in epoch_query.forgotten:
            forgotten.setdefault(topic_id, []).append(index)
        return FetchRequest(
            replica_state=ReplicaState(replica_id=self._node_id, replica_epoch=self._broker_epoch()),
            max_wait=timedelta(seconds=self._limits.max_wait_s),
            min_bytes=1,
            max_bytes=self._limits.max_bytes,
            session_id=epoch_query.session_id,
            session_epoch=epoch_query.epoch,
            topics=tuple(FetchTopic(topic_id=topic, partitions=tuple(parts)) for topic, parts in topics.items()),
            forgotten_topics_data=tuple(
                ForgottenTopic(topic_id=topic, partitions=tuple(parts)) for topic, parts in forgotten.items()
            ),
        )

    def _partition(self, asked: _Sent) -> FetchPartition:
        return FetchPartition(
            partition=asked.replica.index,
            current_leader_epoch=asked.fence,
            fetch_offset=asked.offset,
            last_fetched_epoch=asked.last_epoch if _tells_last_epoch(asked.replica) else NO_EPOCH,
            log_start_offset=asked.log_start,
            partition_max_bytes=self._limits.partition_max_bytes,
        )

    async def _ask(self, sent: Mapping[Key, _Sent]) -> None:
        """Ask where epochs end, for each partition that has to know before it fetches."""
        asking = {
            (asked.replica.topic, asked.replica.index): asked
            for asked in sent.values()
            if asked.epoch_query is not None
        }
        topics: dict[str, list[OffsetForLeaderPartition]] = {}
        for (topic, index), asked in asking.items():
            topics.setdefault(topic, []).append(
                OffsetForLeaderPartition(
                    partition=index, current_leader_epoch=asked.fence, leader_epoch=asked.epoch_query
                )
            )
        response = await self._call(
            OffsetForLeaderEpochRequest(
                replica_id=self._node_id,
                topics=tuple(OffsetForLeaderTopic(topic=topic, partitions=tuple(it)) for topic, it in topics.items()),
            )
        )
        for topic in response.topics:
            for answer in topic.partitions:
                asked = asking[topic.topic, answer.partition]
                if answer.error_code is ErrorCode.none and asked.epoch_query is not None:
                    asked.replica.epoch_ends(
                        asked.epoch_query, asked.leader_epoch, answer.leader_epoch, answer.end_offset
                    )
                else:
                    self._rest(asked.replica)

    async def _take(self, asked: _Sent, answer: Any) -> None:
        replica = asked.replica
        if answer.error_code is ErrorCode.none:
            diverging = answer.diverging_epoch
            if diverging.end_offset >= 0:
                replica.diverged(asked.offset, asked.leader_epoch, diverging.epoch, diverging.end_offset)
                return
            complaint = replica.replicate(
                asked.offset,
                asked.leader_epoch,
                answer.records or b"",
                answer.high_watermark,
                answer.log_start_offset,
            )
            if complaint is not None:
                self._log(complaint)
                self._rest(replica)
        elif answer.error_code is ErrorCode.offset_out_of_range:
            await self._return_to_range(asked)
        else:
            # Fenced, not yet known, no longer the leader: metadata on one side or the other is on its way.
            self._rest(replica)

    async def _return_to_range(self, asked: _Sent) -> None:
        """The leader does not have the offset asked for: cut to its end if that is lower, else begin at its start."""
        end = await self._leader_offset(asked, LATEST)
        if end is not None and end < asked.offset:
            asked.replica.cut_to_leader_end(asked.leader_epoch, end)
            return
        start = None if end is None else await self._leader_offset(asked, EARLIEST)
        if start is not None and start > asked.offset:
            asked.replica.truncate_fully_and_start_at(asked.offset, asked.leader_epoch, start)
        else:
            self._rest(asked.replica)

    async def _leader_offset(self, asked: _Sent, timestamp: int) -> int | None:
        partition = ListOffsetsPartition(
            partition_index=asked.replica.index, current_leader_epoch=asked.fence, timestamp=timestamp
        )
        response = await self._call(
            ListOffsetsRequest(
                replica_id=self._node_id,
                isolation_level=0,
                topics=(ListOffsetsTopic(name=asked.replica.topic, partitions=(partition,)),),
            )
        )
        answer = response.topics[0].partitions[0]
        return int(answer.offset) if answer.error_code is ErrorCode.none else None

    def _rest(self, replica: Replica) -> None:
        self._resting_until[replica] = asyncio.get_running_loop().time() + self._limits.backoff_s

    async def _rest_all(self) -> None:
        """Wait for the back-off, or until `follow` brings something new."""
        loop = asyncio.get_running_loop()
        self._woken = woken = loop.create_future()
        timer = loop.call_later(self._limits.backoff_s, resolve, woken)
        await woken
        timer.cancel()


def _tells_last_epoch(replica: Replica) -> bool:
    return replica.limits.truncation_protocol is TruncationProtocol.TRUNCATE_ON_FETCH
