"""One fetcher for each broker that leads partitions which this broker follows.

A fetcher sends one Fetch for all its partitions, waits at the leader until there is data, and passes each answer to the
replica together with the offset and the leader epoch of the request; the replica decides whether the answer still
applies. Partitions that have not changed since the last request are left out (`fetch_sessions.py`). An answer has room
for the data of some partitions only: those whose data it brings come after the others in later requests, as in Kafka,
so that each has its turn also at a leader that keeps no session, and serves them as they are asked for. A partition
that fails is delayed by `replica.fetch.backoff.ms`, at most until its replica has read of a new leader epoch; the
others go on. If the truncation protocol has a follower send OffsetForLeaderEpoch before it fetches (`truncation.py`),
that request comes first, for all such partitions at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby
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
from images.broker.log.leader_epochs import EpochEnd
from images.broker.replication.fetch_sessions import FetchSessionHandler, Key
from images.broker.replication.follower import answer_applies
from images.broker.replication.partition import ReplicaRole
from images.broker.replication.replica import Replica
from images.broker.runtime.condition import resolve
from images.broker.runtime.spawn import Spawn
from images.wire.connection import Connection, ConnectionLost
from images.wire.field_values import EARLIEST, LATEST, NO_EPOCH, NO_ERROR
from images.wire.messages import CANONICAL, Api, request_class, response_class
from images.wire.schema import convert


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Limits of the requests of a fetcher."""

    max_wait_s: float
    partition_max_bytes: int
    max_bytes: int
    backoff_s: float
    timeout_s: float


class _FetchState(NamedTuple):
    """The state of a replica when its partition is put into a request."""

    replica: Replica
    offset: int
    leader_epoch: int
    last_epoch: int
    log_start: int
    epoch_query: int | None
    fetch_fence: int

    @classmethod
    def of(cls, replica: Replica) -> _FetchState:
        """The state of `replica` now."""
        state = replica.state
        return cls(
            replica,
            state.log_end,
            state.leader_epoch,
            state.epochs.latest,
            state.log_start,
            state.epoch_query,
            replica.fence_of_fetch(),
        )

    def answer_applies(self) -> bool:
        """Whether the answer to a fetch in this state still applies to the replica."""
        return answer_applies(self.replica.state, self.offset, self.leader_epoch, self.replica.limits)


class _LeaderOffset(NamedTuple):
    """An offset of the leader's log, and the leader epoch there or, of its start, of the record before."""

    offset: int
    epoch: int


class _Delay(NamedTuple):
    """The pause of a replica after a request that it sent in a leader epoch, until a time of the loop. It ends with
    the epoch: the leader may have refused the request since it leads in a later one."""

    leader_epoch: int
    until: float


class _Divergence(NamedTuple):
    """The last answer with a divergence, and whether its repetition was logged."""

    leader_epoch: int
    epoch: int
    reported: bool


class Fetcher:
    """Fetches from one leader, for as long as there are replicas to follow it."""

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
        self._max_wait = timedelta(seconds=limits.max_wait_s)
        self._broker_epoch = broker_epoch
        self._log = log
        self._replicas: dict[Replica, None] = {}
        """In the order in which their partitions are fetched."""
        self._delays: dict[Replica, _Delay] = {}
        self._last_divergence: dict[Replica, _Divergence] = {}
        self._connection: Connection | None = None
        self._wake_up: asyncio.Future[None] | None = None
        self._session = FetchSessionHandler()
        self._last_sent: dict[Key, tuple[_FetchState, FetchPartition]] = {}
        """Each partition of the last request: the replica's state, and the partition as sent."""
        self._task = spawn(self._run)

    def follow(self, replicas: Iterable[Replica]) -> None:
        """Fetch for these replicas from the next request on, new ones after the others. Ends a back-off of the whole
        fetcher."""
        followed = dict.fromkeys(replicas)
        self._replicas = {replica: None for replica in self._replicas if replica in followed} | followed
        self._delays = {replica: delay for replica, delay in self._delays.items() if replica in self._replicas}
        self._last_divergence = {
            replica: last for replica, last in self._last_divergence.items() if replica in self._replicas
        }
        if self._wake_up is not None and not self._wake_up.done():
            self._wake_up.set_result(None)

    def close(self) -> None:
        """Stop fetching."""
        self._task.cancel()
        if self._connection is not None:
            self._connection.close()

    async def _run(self) -> None:
        while True:
            states = self._states()
            try:
                if not states:
                    await self._back_off()
                elif any(state.epoch_query is not None for state in states.values()):
                    await self._query_epochs(states)
                else:
                    await self._fetch(states)
            except ConnectionLost as lost:
                self._session.begin_anew()
                self._log(f"fetching from broker {self.leader} failed: {lost}")
                await self._back_off()

    def _states(self) -> dict[Key, _FetchState]:
        """The states of the replicas that follow this leader and are not delayed."""
        now = asyncio.get_running_loop().time()
        return {
            (replica.topic_id, replica.index): _FetchState.of(replica)
            for replica in self._replicas
            if replica.state.role is ReplicaRole.FOLLOWER
            and replica.state.leader == self.leader
            and not self._is_delayed(replica, now)
        }

    async def _fetch(self, states: Mapping[Key, _FetchState]) -> None:
        """Send one Fetch, and pass each partition of the answer to its replica."""
        response = await self._call(self._fetch_request(states))
        if not self._session.answered(response.error_code, response.session_id):
            self._log(f"broker {self.leader} ended the fetch session: {response.error_code.name}")
            return
        answers = {
            (topic.topic_id, answer.partition_index): answer
            for topic in response.responses
            for answer in topic.partitions
        }
        if unasked := [key for key in answers if key not in states]:
            self._on_unasked(unasked, next(iter(states.values())))
            await self._back_off()
            return
        for key, answer in answers.items():
            if not states[key].answer_applies():
                self._session.discarded(key)
            await self._process(states[key], answer)
        for key, state in states.items():
            if key not in answers:
                state.replica.on_fit(state.offset, state.leader_epoch)

    def _on_unasked(self, keys: Iterable[Key], asked: _FetchState) -> None:
        """The answer to a fetch of the partition `asked` has others that the fetch had not: the session begins anew."""
        unasked = [f"{topic_id}-{index}" for topic_id, index in keys]
        self._log(f"broker {self.leader} answered a fetch for partitions that it did not have: {', '.join(unasked)}")
        asked.replica.trace("answer_unasked", asked.offset, asked.offset, {"unasked": unasked, "by": self.leader})
        self._session.begin_anew()

    async def _call(self, request: Any) -> Any:
        if self._connection is None or self._connection.closed:
            self._connection = await Connection.open(
                self.endpoint.host, self.endpoint.port, f"replica-{self._node_id}", self._limits.timeout_s
            )
        return await self._connection.call(request, self._limits.timeout_s + self._limits.max_wait_s)

    def _fetch_request(self, states: Mapping[Key, _FetchState]) -> FetchRequest:
        partitions = {}
        for key, state in states.items():
            last = self._last_sent.get(key)
            partitions[key] = last if last is not None and last[0] == state else (state, self._partition(state))
        self._last_sent = partitions
        request = self._session.next_request({key: partition for key, (_, partition) in partitions.items()})
        forgotten: dict[Any, list[int]] = {}
        for topic_id, index in request.forgotten:
            forgotten.setdefault(topic_id, []).append(index)
        return FetchRequest(
            replica_state=ReplicaState(replica_id=self._node_id, replica_epoch=self._broker_epoch()),
            max_wait=self._max_wait,
            min_bytes=1,
            max_bytes=self._limits.max_bytes,
            session_id=request.session_id,
            session_epoch=request.epoch,
            topics=tuple(
                FetchTopic(topic_id=topic_id, partitions=tuple(each.partition for each in partitions_of_topic))
                for topic_id, partitions_of_topic in groupby(request.changed, key=lambda each: each.topic_id)
            ),
            forgotten_topics_data=tuple(
                ForgottenTopic(topic_id=topic, partitions=tuple(parts)) for topic, parts in forgotten.items()
            ),
        )

    def _partition(self, state: _FetchState) -> FetchPartition:
        sends_last_epoch = state.replica.limits.truncation_protocol.sends_last_fetched_epoch
        return FetchPartition(
            partition=state.replica.index,
            current_leader_epoch=state.fetch_fence,
            fetch_offset=state.offset,
            last_fetched_epoch=state.last_epoch if sends_last_epoch else NO_EPOCH,
            log_start_offset=state.log_start,
            partition_max_bytes=self._limits.partition_max_bytes,
        )

    async def _query_epochs(self, states: Mapping[Key, _FetchState]) -> None:
        """Send OffsetForLeaderEpoch for every partition that needs an end offset before it fetches."""
        queries = {
            (state.replica.topic, state.replica.index): state
            for state in states.values()
            if state.epoch_query is not None
        }
        request = self._epoch_query(
            (state.replica, state.epoch_query) for state in queries.values() if state.epoch_query is not None
        )
        try:
            response = await self._call_in_version_of_protocol(request, next(iter(queries.values())).replica)
        except ConnectionLost:
            for state in queries.values():
                self._on_query_failed(state)
            raise
        for topic in response.topics:
            for answer in topic.partitions:
                state = queries[topic.topic, answer.partition]
                if answer.error_code is not NO_ERROR:
                    self._on_query_failed(state)
                elif state.epoch_query is not None:
                    state.replica.on_epoch_end(
                        state.epoch_query, state.leader_epoch, answer.leader_epoch, answer.end_offset
                    )

    def _epoch_query(self, queries: Iterable[tuple[Replica, int]]) -> OffsetForLeaderEpochRequest:
        topics: dict[str, list[OffsetForLeaderPartition]] = {}
        for replica, epoch in queries:
            partition = OffsetForLeaderPartition(
                partition=replica.index, current_leader_epoch=replica.fence(), leader_epoch=epoch
            )
            topics.setdefault(replica.topic, []).append(partition)
        return OffsetForLeaderEpochRequest(
            replica_id=self._node_id,
            topics=tuple(OffsetForLeaderTopic(topic=topic, partitions=tuple(it)) for topic, it in topics.items()),
        )

    async def _call_in_version_of_protocol(self, request: OffsetForLeaderEpochRequest, replica: Replica) -> Any:
        """Call in the version of OffsetForLeaderEpoch that came with the protocol, one for all replicas of a broker."""
        api, version = Api.OFFSET_FOR_LEADER_EPOCH, replica.limits.truncation_protocol.epoch_query_version
        if version == CANONICAL[api]:
            return await self._call(request)
        return convert(await self._call(convert(request, request_class(api, version))), response_class(api))

    def _on_query_failed(self, state: _FetchState) -> None:
        if state.epoch_query is None or not state.replica.on_epoch_query_failed(state.epoch_query, state.leader_epoch):
            self._delay(state)

    async def _process(self, state: _FetchState, answer: Any) -> None:
        replica = state.replica
        if answer.error_code is NO_ERROR:
            diverging = answer.diverging_epoch
            if diverging.end_offset >= 0:
                replica.on_divergence(state.offset, state.leader_epoch, diverging.epoch, diverging.end_offset)
                self._delay_if_repeated(state, diverging.epoch, diverging.end_offset)
                return
            problem = replica.replicate(
                state.offset,
                state.leader_epoch,
                answer.records or b"",
                answer.high_watermark,
                answer.log_start_offset,
            )
            if answer.records and replica in self._replicas:
                self._replicas[replica] = self._replicas.pop(replica)
            if problem is not None:
                self._log(problem)
                self._delay(state)
        elif answer.error_code is ErrorCode.offset_out_of_range:
            await self._on_offset_out_of_range(state)
        else:
            # Fenced, epoch unknown, not the leader: one of the two brokers has yet to read newer metadata.
            self._delay(state)

    def _delay_if_repeated(self, state: _FetchState, epoch: int, end: int) -> None:
        """Delay a replica whose logs do not converge. With a sound leader the diverging epochs of one leader epoch
        decrease strictly, so one that does not is the answer of a log that contradicts its epochs."""
        last = self._last_divergence.get(state.replica)
        if last is None or last.leader_epoch != state.leader_epoch or epoch < last.epoch:
            self._last_divergence[state.replica] = _Divergence(state.leader_epoch, epoch, reported=False)
            return
        if not last.reported:
            self._last_divergence[state.replica] = last._replace(reported=True)
            self._log(
                f"{state.replica.name}: diverges again from broker {self.leader} in leader epoch {state.leader_epoch}, "
                f"at epoch {epoch}, offset {end}: fetching with a pause of {self._limits.backoff_s:g} s from now on"
            )
        self._delay(state)

    async def _on_offset_out_of_range(self, state: _FetchState) -> None:
        """Truncate to the leader's end offset if that is lower, else start again at the leader's start offset."""
        latest = await self._leader_offset(state, LATEST)
        if latest is not None and latest.offset < state.offset:
            state.replica.truncate_to_leader_end(state.leader_epoch, latest.offset)
            return
        start = None if latest is None else await self._leader_start(state)
        if start is not None and start.offset > state.offset:
            state.replica.truncate_fully_and_start_at(state.offset, state.leader_epoch, start.offset, start.epoch)
        else:
            self._delay(state)

    async def _leader_start(self, state: _FetchState) -> _LeaderOffset | None:
        """Where the leader's log starts, and the leader epoch of the last record that it has deleted; None if it did
        not answer, or its start has moved to another epoch meanwhile. That epoch ends at the start, or else is the one
        there: so Kafka's followers ask for the epoch before the records that a leader has on its own disk (KIP-405).
        -1 where no fetch would tell of it, or the leader does not know it."""
        start = await self._leader_offset(state, EARLIEST)
        if start is None or start.epoch <= 0:
            return start
        if not state.replica.limits.truncation_protocol.sends_last_fetched_epoch:
            return start._replace(epoch=NO_EPOCH)
        below = await self._epoch_end(state, start.epoch - 1)
        if below == EpochEnd(start.epoch - 1, start.offset) and below.epoch > 0:
            # A leader that does not know the epoch answers so of any lower one. Not below epoch 0: there is none.
            lower = await self._epoch_end(state, below.epoch - 1)
            if lower is None:
                return None
            below = EpochEnd(NO_EPOCH, below.end) if lower.end == below.end else below
        now = await self._leader_offset(state, EARLIEST)
        if below is None or now is None:
            return None
        if now != start:
            # The answers do not belong together. But the record before the new start is not before the old one, so with
            # the same epoch at both it has that, too. Else a start that moves all the time would keep the replica out.
            return now if now.epoch == start.epoch else None
        return start if below.end < start.offset else start._replace(epoch=below.epoch)

    async def _epoch_end(self, state: _FetchState, epoch: int) -> EpochEnd | None:
        """Where the leader's greatest epoch up to `epoch` ends, or that itself without one; None if it did not
        answer."""
        response = await self._call(self._epoch_query([(state.replica, epoch)]))
        answer = response.topics[0].partitions[0]
        return EpochEnd(answer.leader_epoch, answer.end_offset) if answer.error_code is NO_ERROR else None

    async def _leader_offset(self, state: _FetchState, timestamp: int) -> _LeaderOffset | None:
        partition = ListOffsetsPartition(
            partition_index=state.replica.index, current_leader_epoch=state.replica.fence(), timestamp=timestamp
        )
        response = await self._call(
            ListOffsetsRequest(
                replica_id=self._node_id,
                isolation_level=0,
                topics=(ListOffsetsTopic(name=state.replica.topic, partitions=(partition,)),),
            )
        )
        answer = response.topics[0].partitions[0]
        return _LeaderOffset(answer.offset, answer.leader_epoch) if answer.error_code is NO_ERROR else None

    def _delay(self, state: _FetchState) -> None:
        until = asyncio.get_running_loop().time() + self._limits.backoff_s
        self._delays[state.replica] = _Delay(state.leader_epoch, until)

    def _is_delayed(self, replica: Replica, now: float) -> bool:
        delay = self._delays.get(replica)
        return delay is not None and delay.leader_epoch == replica.state.leader_epoch and now < delay.until

    async def _back_off(self) -> None:
        """Wait for the back-off, or until `follow` brings other replicas."""
        loop = asyncio.get_running_loop()
        self._wake_up = wake_up = loop.create_future()
        timer = loop.call_later(self._limits.backoff_s, resolve, wake_up)
        await wake_up
        timer.cancel()
