"""A consumer that is told what to read, and tells everything it was answered.

`poll` gives one `Fetched` for every answer about every partition, whether it holds records, an error or nothing, so
that a workload can record each honestly. Every fetch carries the leader epoch known from metadata, so a broker that
leads in another epoch refuses it (KIP-320); a `Fetched` without error therefore comes from the leader of exactly
`leader_epoch`, unless that is None. The last fetched epoch is not sent (-1): no broker tells this consumer that its
position has diverged.

At most one fetch waits at each broker, and it goes on waiting when `poll` returns, so what `poll` returns may have
been asked before it was called. What matters for real-time order is when the fetch was *sent*: `on_fetch` is called
then, and what it returned comes back as `Fetched.token`. A fetch that `seek` or `assign` has made pointless still
comes back, without records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode
from kio.schema.fetch.v16.request import FetchPartition, FetchRequest, FetchTopic
from kio.schema.list_offsets.v7.request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

from images.broker import batch as batches
from images.broker.wire import ConnectionLost
from workloads.clients.connections import Backoff, Client, error_name, loss_name
from workloads.clients.view import UNKNOWN_EPOCH, Leader

EARLIEST: Final = -2
LATEST: Final = -1


class Record(NamedTuple):
    """One record as read."""

    offset: int
    leader_epoch: int
    """Of the leader that appended it."""
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


class Fetched(NamedTuple):
    """One answer, or failure to get one, about one partition."""

    topic: str
    partition: int
    position: int
    """The offset that was asked for."""
    records: tuple[Record, ...] = ()
    leader_epoch: int | None = None
    """The epoch that the answering leader confirmed by not refusing it; None with an error."""
    high_watermark: int | None = None
    error: str | None = None
    token: int = -1
    """What `on_fetch` returned when this was sent."""


@dataclass(frozen=True, slots=True)
class OffsetAnswer:
    """The answer to a question for an offset; `offset` is None when there is an error."""

    offset: int | None = None
    leader_epoch: int | None = None
    error: str | None = None


@dataclass(slots=True, eq=False)
class _Assigned:
    topic: str
    partition: int
    position: int
    backoff: Backoff
    not_before_s: float = 0.0
    fetching: bool = False


class _Asked(NamedTuple):
    assigned: _Assigned
    leader: Leader
    fetched: Fetched
    """The question, to which the answer is added."""


class Consumer:
    """Reads the partitions assigned to it. One task at a time may `poll`."""

    def __init__(
        self,
        client: Client,
        *,
        fetch_wait_s_max: float = 0.5,
        fetch_bytes_max: int = 1 << 20,
        on_fetch: Callable[[str, int, int], int] = lambda _topic, _partition, _position: -1,
    ) -> None:
        self.client = client
        self._fetch_wait_s_max = fetch_wait_s_max
        self._fetch_bytes_max = fetch_bytes_max
        self._on_fetch = on_fetch
        self._assigned: list[_Assigned] = []
        self._fetches: dict[int, asyncio.Task[None]] = {}
        """The fetch under way at each broker."""
        self._ready: list[Fetched] = []
        self._wake = asyncio.Event()
        self._bug: BaseException | None = None

    def assign(self, partitions: Sequence[tuple[str, int]]) -> None:
        """Read these (topic, partition) from now on. One assigned before keeps its position, others begin at 0."""
        known = {(assigned.topic, assigned.partition): assigned for assigned in self._assigned}
        self._assigned = []
        for topic, partition in partitions:
            self.client.follow(topic)
            fresh = _Assigned(topic, partition, 0, Backoff(self.client.patience, self.client.random))
            self._assigned.append(known.get((topic, partition), fresh))

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Read on from `offset`. Raises KeyError for a partition that is not assigned."""
        self._find(topic, partition).position = offset

    def position(self, topic: str, partition: int) -> int:
        """The next offset to be asked for. Raises KeyError for a partition that is not assigned."""
        return self._find(topic, partition).position

    async def poll(self, timeout_s: float) -> list[Fetched]:
        """What was answered, as soon as anything was; nothing after `timeout_s` seconds."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        while not self._ready:
            self._wake.clear()
            next_s = min(deadline_s, self._fetch_what_is_due())
            timer = loop.call_at(next_s, self._wake.set)
            try:
                await self._wake.wait()
            finally:
                timer.cancel()
            if self._bug is not None:
                raise self._bug
            if loop.time() >= deadline_s:
                break
        ready, self._ready = self._ready, []
        return ready

    async def end_offset(self, topic: str, partition: int) -> OffsetAnswer:
        """Ask the leader once for the end of the log that consumers may see."""
        return await self.list_offset(topic, partition, LATEST)

    async def beginning_offset(self, topic: str, partition: int) -> OffsetAnswer:
        """Ask the leader once for the first offset of the log."""
        return await self.list_offset(topic, partition, EARLIEST)

    async def list_offset(self, topic: str, partition: int, timestamp: int) -> OffsetAnswer:
        """Ask the leader once for the first offset at or after `timestamp` (ms), or EARLIEST or LATEST.

        An error makes the client look for the leader anew; the caller pauses and asks again.
        """
        client = self.client
        client.follow(topic)
        client.refresh_if_old()
        if client.view.leader(topic, partition) is None:
            await client.refresh()
        leader = client.view.leader(topic, partition)
        if leader is None:
            return OffsetAnswer(error="no leader")
        asked = ListOffsetsPartition(partition_index=partition, current_leader_epoch=leader.epoch, timestamp=timestamp)
        request = ListOffsetsRequest(
            replica_id=-1, isolation_level=0, topics=(ListOffsetsTopic(name=topic, partitions=(asked,)),)
        )
        try:
            connection = await client.connection(leader.broker)
            response: Any = await connection.call(request, client.patience.request_timeout_s)
        except ConnectionLost as lost:
            client.refresh_soon()
            return OffsetAnswer(error=loss_name(lost))
        answers = [answer for told in response.topics for answer in told.partitions]
        if len(answers) != 1 or answers[0].partition_index != partition:
            return OffsetAnswer(error="an answer about something else")
        if answers[0].error_code != 0:
            client.refresh_soon()
            return OffsetAnswer(error=error_name(answers[0].error_code))
        return OffsetAnswer(int(answers[0].offset), _confirmed(leader))

    async def return_to_log(self, topic: str, partition: int) -> bool:
        """After OFFSET_OUT_OF_RANGE: move the position to the nearest offset that the log has.

        False, with the position unchanged, when the leader did not tell where the log begins and ends.
        """
        earliest = await self.beginning_offset(topic, partition)
        latest = await self.end_offset(topic, partition)
        if earliest.offset is None or latest.offset is None:
            return False
        assigned = self._find(topic, partition)
        assigned.position = max(earliest.offset, min(assigned.position, latest.offset))
        return True

    async def close(self) -> None:
        """Give up every fetch. May be called twice."""
        for fetch in self._fetches.values():
            fetch.cancel()
        await asyncio.gather(*list(self._fetches.values()), return_exceptions=True)

    def _find(self, topic: str, partition: int) -> _Assigned:
        for assigned in self._assigned:
            if assigned.topic == topic and assigned.partition == partition:
                return assigned
        raise KeyError(f"{topic}-{partition} is not assigned")

    def _fetch_what_is_due(self) -> float:
        """Begin a fetch at every broker where one is due and none is under way. Returns when to look again."""
        client = self.client
        now_s = asyncio.get_running_loop().time()
        next_s = float("inf")
        due: dict[tuple[int, str], list[tuple[_Assigned, Leader]]] = {}
        client.refresh_if_old()
        for assigned in self._assigned:
            if assigned.fetching:
                continue
            if assigned.not_before_s > now_s:
                next_s = min(next_s, assigned.not_before_s)
                continue
            leader = client.view.leader(assigned.topic, assigned.partition)
            if leader is None:
                client.refresh_soon()
                assigned.not_before_s = now_s + assigned.backoff.next_s()
                next_s = min(next_s, assigned.not_before_s)
            elif leader.broker not in self._fetches:
                due.setdefault((leader.broker, assigned.topic), []).append((assigned, leader))
        for (broker, topic), wanted in due.items():
            if broker not in self._fetches:  # one topic a fetch; another one's turn comes with the next
                self._begin(broker, topic, wanted)
        return next_s

    def _begin(self, broker: int, topic: str, wanted: list[tuple[_Assigned, Leader]]) -> None:
        asked = []
        for assigned, leader in wanted:
            assigned.fetching = True
            token = self._on_fetch(topic, assigned.partition, assigned.position)
            question = Fetched(topic, assigned.partition, assigned.position, token=token)
            asked.append(_Asked(assigned, leader, question))
        task = self._fetches[broker] = asyncio.create_task(self._fetch(broker, topic, asked))
        task.add_done_callback(lambda task: self._ended(broker, asked, task))

    def _ended(self, broker: int, asked: list[_Asked], task: asyncio.Task[None]) -> None:
        del self._fetches[broker]
        for question in asked:
            question.assigned.fetching = False
        if not task.cancelled():
            self._bug = self._bug or task.exception()
        self._wake.set()

    async def _fetch(self, broker: int, topic: str, asked: list[_Asked]) -> None:
        patience = self.client.patience
        request = FetchRequest(
            max_wait=timedelta(seconds=self._fetch_wait_s_max),
            min_bytes=1,
            max_bytes=self._fetch_bytes_max,
            topics=(
                FetchTopic(
                    topic_id=self.client.view.topic_id(topic),
                    partitions=tuple(
                        FetchPartition(
                            partition=question.fetched.partition,
                            current_leader_epoch=question.leader.epoch,
                            fetch_offset=question.fetched.position,
                            partition_max_bytes=self._fetch_bytes_max,
                        )
                        for question in asked
                    ),
                ),
            ),
            forgotten_topics_data=(),
        )
        try:
            connection = await self.client.connection(broker)
            response: Any = await connection.call(request, self._fetch_wait_s_max + patience.request_timeout_s)
        except ConnectionLost as lost:
            for question in asked:
                self._failed(question, loss_name(lost))
            return
        answers = {answer.partition_index: answer for told in response.responses for answer in told.partitions}
        for question in asked:
            answer = answers.get(question.fetched.partition)
            if response.error_code != 0:
                self._failed(question, error_name(response.error_code))
            elif answer is None:
                self._failed(question, "an answer about something else")
            else:
                self._answered(question, answer)

    def _answered(self, question: _Asked, answer: Any) -> None:
        assigned, fetched = question.assigned, question.fetched
        if assigned.position != fetched.position or assigned not in self._assigned:
            self._ready.append(fetched)
            return
        if answer.error_code != 0:
            hint = Leader(int(answer.current_leader.leader_id), int(answer.current_leader.leader_epoch))
            self.client.view.hint(fetched.topic, fetched.partition, hint)
            self._failed(question, error_name(answer.error_code))
            return
        try:
            records, position = _read(answer.records or b"", fetched.position)
        except batches.CorruptBatch:
            self._failed(question, error_name(ErrorCode.corrupt_message))
            return
        assigned.backoff.reset()
        assigned.position = position
        self._ready.append(
            fetched._replace(
                records=records,
                leader_epoch=_confirmed(question.leader),
                high_watermark=int(answer.high_watermark),
            )
        )

    def _failed(self, question: _Asked, error: str) -> None:
        assigned = question.assigned
        assigned.not_before_s = asyncio.get_running_loop().time() + assigned.backoff.next_s()
        self._ready.append(question.fetched._replace(error=error))
        self.client.refresh_soon()


def _confirmed(leader: Leader) -> int | None:
    """The epoch that a leader confirms by answering a question that carried it."""
    return leader.epoch if leader.epoch != UNKNOWN_EPOCH else None


def _read(data: bytes, position: int) -> tuple[tuple[Record, ...], int]:
    """The records at and after `position`, and where to read on. Raises CorruptBatch.

    A broker answers with whole batches, so the first may begin before `position`.
    """
    records = []
    next_position = position
    for header, batch in batches.iterate(data):
        next_position = max(next_position, header.next_offset)
        if header.is_control:
            continue
        for record in batches.records(batch):
            if record.offset >= position:
                records.append(Record(record.offset, header.leader_epoch, record.timestamp, record.key, record.value))
    return tuple(records), next_position
