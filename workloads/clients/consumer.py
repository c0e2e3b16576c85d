"""A consumer of partitions assigned to it, which returns every answer that brokers gave.

It follows KIP-320. It keeps the leader epoch of each record that it read; before it fetches from a new leader, it asks
whether its position is still in that leader's log (`positions.py`), and it waits for newer metadata when its position
is of a later epoch than the leader it knows. If the log was truncated:

- `reset` earliest or latest: the position goes back to the offset at which the logs diverge, as precisely as that can
  be determined, and `on_truncation` is called; where it cannot be determined, to the earliest or latest offset.
- `reset` none: `poll` raises `LogTruncationError`, again and again until a `seek`.

An OFFSET_OUT_OF_RANGE means that the records at the position were deleted, or that the position is beyond the end. It
is always returned as a `CompletedFetch`. Then the position is reset by the policy, to the earliest or latest offset;
without a policy `poll` raises `OffsetOutOfRangeError`, again and again until a `seek`.

With `tell_epochs` it does not ask a new leader first: each fetch carries the leader epoch of the record before the
position, as those of followers do, and a leader whose log diverges answers with the epoch and the end that both may
share. The consumer then asks as above where that is. One that lacks a rule of KIP-320 tells nothing, so that the
rule is not made up for.

A position is one in a topic of one id. If the metadata has another id under the same name, the topic was deleted and
created anew, and the position is reset as after an OFFSET_OUT_OF_RANGE.

`poll` returns one `CompletedFetch` for every answer about every partition, whether it holds records, an error or
nothing, so that a workload can record each of them. Every fetch carries the leader epoch known from metadata, so a
broker that leads in another epoch refuses it (KIP-320); a `CompletedFetch` without error therefore comes from the
leader of exactly `leader_epoch`, unless that is None.

At most one fetch waits at each broker, and it goes on waiting when `poll` returns, so a result of `poll` may have been
requested before `poll` was called. Real-time order depends on the time at which the fetch was *sent*: `on_fetch` is
called then, and its return value comes back as `CompletedFetch.token`. A fetch made obsolete by `seek` or `assign`
still comes back, without records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.schema.fetch.v16.request import FetchPartition, FetchRequest, FetchTopic

from images.wire import batch as batches
from images.wire.connection import ConnectionLost
from workloads.clients.completed_fetch import (
    CompletedFetch,
    LogTruncationError,
    OffsetOutOfRangeError,
    epochs,
    read,
)
from workloads.clients.connections import Backoff, Client, cancel_all, connection_error_name, error_name
from workloads.clients.consumer_rules import ConsumerRules
from workloads.clients.metadata_cache import Leader
from workloads.clients.offsets import EARLIEST, LATEST, OffsetAnswer, confirmed, end_position, list_offset, validate
from workloads.clients.positions import UNKNOWN_EPOCH, FetchPosition, OffsetAndEpoch, Truncation, required_before_fetch
from workloads.history import TopicPartition

Reset = Literal["none", "earliest", "latest"]

_READ_UNCOMMITTED, _READ_COMMITTED = 0, 1
_DIVERGES: Final = "the leader's log diverges"
_OUT_OF_RANGE: Final = ErrorCode.offset_out_of_range.name.upper()


@dataclass(slots=True, eq=False)
class _AssignedPartition:
    topic: str
    partition: int
    position: FetchPosition
    backoff: Backoff
    delivered: OffsetAndEpoch
    """The end of the records that `poll` has returned; records fetched ahead are beyond."""
    topic_id: UUID | None = None
    """Id of the topic that the position is in; None before the first fetch."""
    not_before_s: float = 0.0
    busy: bool = False
    """A request about it is in flight: a fetch, a validation or a reset."""
    needs_reset: bool = False
    """Its position is to be reset by the policy."""
    diverges: bool = False
    """A leader has answered that its log is another one."""

    @property
    def key(self) -> TopicPartition:
        """Topic and partition."""
        return self.topic, self.partition


class _PendingFetch(NamedTuple):
    assigned: _AssignedPartition
    leader: Leader
    position: FetchPosition
    fetched: CompletedFetch
    """The request, to which the answer is added."""


class Consumer:
    """Reads the partitions assigned to it. One task at a time may `poll`."""

    def __init__(
        self,
        client: Client,
        *,
        fetch_wait_s_max: float = 0.5,
        fetch_bytes_max: int = 1 << 20,
        on_fetch: Callable[[str, int, int], int] = lambda _topic, _partition, _position: -1,
        reset: Reset = "none",
        read_committed: bool = False,
        rules: ConsumerRules = ConsumerRules(),
        tell_epochs: bool = False,
        on_truncation: Callable[[str, int, Truncation], None] = lambda _topic, _partition, _truncation: None,
    ) -> None:
        self.client = client
        self._fetch_wait_s_max = fetch_wait_s_max
        self._fetch_bytes_max = fetch_bytes_max
        self._on_fetch = on_fetch
        self._reset = reset
        self._isolation = _READ_COMMITTED if read_committed else _READ_UNCOMMITTED
        self._rules = rules
        self._tell_epochs = tell_epochs and rules == ConsumerRules()
        self._on_truncation = on_truncation
        self._truncated: dict[TopicPartition, Truncation] = {}
        self._out_of_range: dict[TopicPartition, int] = {}
        """Positions that the leader's log does not have, without a policy to reset them by."""
        self._assigned: list[_AssignedPartition] = []
        self._fetches: dict[int, asyncio.Task[None]] = {}
        """The fetch under way at each broker."""
        self._requests: dict[_AssignedPartition, asyncio.Task[None]] = {}
        """Validations and resets under way."""
        self._ready: list[CompletedFetch] = []
        self._wake = asyncio.Event()
        self._bug: BaseException | None = None

    def assign(self, partitions: Sequence[tuple[str, int]]) -> None:
        """Read these (topic, partition) from now on. One assigned before keeps its position, others begin at 0."""
        known = {assigned.key: assigned for assigned in self._assigned}
        self._assigned = []
        for topic, partition in partitions:
            self.client.track_topic(topic)
            backoff = Backoff(self.client.timeouts, self.client.random)
            fresh = _AssignedPartition(topic, partition, FetchPosition(0), backoff, OffsetAndEpoch(0))
            self._assigned.append(known.get((topic, partition), fresh))
        kept = {assigned.key for assigned in self._assigned}
        self._truncated = {key: value for key, value in self._truncated.items() if key in kept}
        self._out_of_range = {key: value for key, value in self._out_of_range.items() if key in kept}
        for fetched in list(self._ready):
            if (fetched.topic, fetched.partition) not in kept:
                self._drop_fetched((fetched.topic, fetched.partition))

    def seek(self, topic: str, partition: int, offset: int, leader_epoch: int | None = None) -> None:
        """Read on from `offset`; with the leader epoch of the record before it, it is validated first.

        Raises KeyError for a partition that is not assigned."""
        epoch = UNKNOWN_EPOCH if leader_epoch is None else leader_epoch
        assigned = self._find(topic, partition)
        assigned.topic_id = None
        self._move(assigned, FetchPosition.sought(offset, epoch))

    def position(self, topic: str, partition: int) -> int:
        """The next offset to be asked for. Raises KeyError for a partition that is not assigned."""
        return self._find(topic, partition).position.offset

    def next_offsets(self) -> dict[TopicPartition, OffsetAndEpoch]:
        """For every partition the end of the records that `poll` has returned, with the leader epoch of the last one:
        to be committed, or sought later."""
        return {assigned.key: assigned.delivered for assigned in self._assigned}

    async def poll(self, timeout_s: float) -> list[CompletedFetch]:
        """The answers, as soon as there is one; none after `timeout_s` seconds.

        Raises LogTruncationError or OffsetOutOfRangeError when there is no answer to return: see the docstring above.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        self._raise_if_stuck()
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
            self._raise_if_stuck()
            if loop.time() >= deadline_s:
                break
        ready, self._ready = self._ready, []
        for fetched in ready:
            if fetched.next is not None:
                for assigned in self._assigned:
                    if assigned.key == (fetched.topic, fetched.partition):
                        assigned.delivered = fetched.next
        return ready

    async def end_offset(self, topic: str, partition: int) -> OffsetAnswer:
        """Ask the leader once for the end of the log that consumers may see."""
        return await self.list_offset(topic, partition, LATEST)

    async def end_position(self, topic: str, partition: int) -> OffsetAnswer:
        """As `end_offset`, with the epoch of the record before it, so that a `seek` to it detects a later truncation.
        Takes one more request, or two."""
        return await end_position(self.client, topic, partition)

    async def beginning_offset(self, topic: str, partition: int) -> OffsetAnswer:
        """Ask the leader once for the first offset of the log."""
        return await self.list_offset(topic, partition, EARLIEST)

    async def list_offset(self, topic: str, partition: int, timestamp: int) -> OffsetAnswer:
        """Ask the leader once for the first offset at or after `timestamp` (ms), or EARLIEST or LATEST."""
        return await list_offset(self.client, topic, partition, timestamp)

    async def offsets_for_times(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAnswer]:
        """For each partition the first offset not older than a time (ms), asked once.

        Each comes with its epoch, so that a `seek` to it detects a truncation in between; the offset is -1 when no
        record is that recent.
        """
        return {
            (topic, partition): await list_offset(self.client, topic, partition, timestamp)
            for (topic, partition), timestamp in timestamps.items()
        }

    async def return_to_log(self, topic: str, partition: int) -> bool:
        """After OFFSET_OUT_OF_RANGE: move the position to the nearest offset that the log has.

        False, with the position unchanged, when the leader did not answer with both ends of its log.
        """
        earliest = await self.beginning_offset(topic, partition)
        latest = await self.end_offset(topic, partition)
        if earliest.offset is None or latest.offset is None:
            return False
        assigned = self._find(topic, partition)
        self._move(assigned, FetchPosition(max(earliest.offset, min(assigned.position.offset, latest.offset))))
        return True

    async def close(self) -> None:
        """Give up every fetch. May be called twice."""
        await cancel_all([*self._fetches.values(), *self._requests.values()])

    def _find(self, topic: str, partition: int) -> _AssignedPartition:
        for assigned in self._assigned:
            if assigned.key == (topic, partition):
                return assigned
        raise KeyError(f"{topic}-{partition} is not assigned")

    def _raise_if_stuck(self) -> None:
        if self._truncated and not self._ready:
            raise LogTruncationError(dict(self._truncated))
        if self._out_of_range and not self._ready:
            raise OffsetOutOfRangeError("the log does not have the position", self._out_of_range)

    def _move(self, assigned: _AssignedPartition, position: FetchPosition) -> None:
        assigned.position = position
        assigned.delivered = OffsetAndEpoch(position.offset, position.epoch)
        assigned.needs_reset = assigned.diverges = False
        self._truncated.pop(assigned.key, None)
        self._out_of_range.pop(assigned.key, None)
        self._drop_fetched(assigned.key)

    def _drop_fetched(self, key: TopicPartition) -> None:
        """Drop the records of a partition that no `poll` has returned yet."""
        self._ready = [
            fetched._replace(records=(), leader_epoch=None, high_watermark=None, next=None)
            if (fetched.topic, fetched.partition) == key
            else fetched
            for fetched in self._ready
        ]

    def _fetch_what_is_due(self) -> float:
        """Begin a fetch at every broker where one is due and none is under way. Returns when to look again."""
        client = self.client
        now_s = asyncio.get_running_loop().time()
        next_s = float("inf")
        due: dict[tuple[int, str], list[tuple[_AssignedPartition, Leader]]] = {}
        client.refresh_if_old()
        for assigned in self._assigned:
            if not assigned.busy:
                self._check_topic_id(assigned)
            if assigned.busy or assigned.key in self._truncated or assigned.key in self._out_of_range:
                continue
            if assigned.not_before_s > now_s:
                next_s = min(next_s, assigned.not_before_s)
                continue
            leader = client.metadata.leader(assigned.topic, assigned.partition)
            if leader is not None and assigned.needs_reset:
                self._start(assigned, self._reset_by_policy(assigned))
            elif leader is None or (
                (required := required_before_fetch(assigned.position, leader.epoch, self._rules)) == "wait"
            ):
                self._back_off(assigned)
                next_s = min(next_s, assigned.not_before_s)
            elif assigned.diverges or (required == "validate" and not self._tell_epochs):
                self._start(assigned, self._validate(assigned, leader))
            elif leader.broker not in self._fetches:
                due.setdefault((leader.broker, assigned.topic), []).append((assigned, leader))
        for (broker, topic), wanted in due.items():
            if broker not in self._fetches:  # one topic a fetch; another one's turn comes with the next
                self._begin(broker, topic, wanted)
        return next_s

    def _check_topic_id(self, assigned: _AssignedPartition) -> None:
        """Reset the position if it is one of a deleted topic."""
        before, assigned.topic_id = assigned.topic_id, self.client.metadata.topic_id(assigned.topic)
        if before is None or before == assigned.topic_id:
            return
        out_of_range = assigned.position.offset
        self._move(assigned, FetchPosition(0))  # at once: nothing of the deleted topic may be committed for this one
        if self._reset == "none":
            self._out_of_range[assigned.key] = out_of_range
        assigned.needs_reset = self._reset != "none"

    def _begin(self, broker: int, topic: str, wanted: list[tuple[_AssignedPartition, Leader]]) -> None:
        pending = []
        for assigned, leader in wanted:
            assigned.busy = True
            token = self._on_fetch(topic, assigned.partition, assigned.position.offset)
            unanswered = CompletedFetch(topic, assigned.partition, assigned.position.offset, token=token)
            pending.append(_PendingFetch(assigned, leader, assigned.position, unanswered))
        task = self._fetches[broker] = asyncio.create_task(self._fetch(broker, wanted[0][0].topic_id, pending))
        task.add_done_callback(lambda task: self._ended(broker, pending, task))

    def _ended(self, broker: int, pending: list[_PendingFetch], task: asyncio.Task[None]) -> None:
        del self._fetches[broker]
        for fetch in pending:
            fetch.assigned.busy = False
        if not task.cancelled():
            self._bug = self._bug or task.exception()
        self._wake.set()

    # --- validating and resetting -------------------------------------------------------------------------------------

    def _start(self, assigned: _AssignedPartition, request: Coroutine[Any, Any, None]) -> None:
        assigned.busy = True
        task = self._requests[assigned] = asyncio.create_task(request)
        task.add_done_callback(lambda task: self._request_done(assigned, task))

    def _request_done(self, assigned: _AssignedPartition, task: asyncio.Task[None]) -> None:
        del self._requests[assigned]
        assigned.busy = False
        if not task.cancelled():
            self._bug = self._bug or task.exception()
        self._wake.set()

    async def _validate(self, assigned: _AssignedPartition, leader: Leader) -> None:
        """Check whether the position is in the log of a new leader."""
        position = assigned.position
        result = await validate(self.client, assigned.topic, assigned.partition, leader, position, self._rules)
        if assigned.position != position:
            return  # sought elsewhere meanwhile
        if result.error is not None:
            self._back_off(assigned)
        elif result.position is not None:
            assigned.backoff.reset()
            assigned.position, assigned.diverges = result.position, False
        elif result.truncation is not None:
            self._was_truncated(assigned, result.truncation, leader)

    def _was_truncated(self, assigned: _AssignedPartition, truncation: Truncation, leader: Leader) -> None:
        self._on_truncation(assigned.topic, assigned.partition, truncation)
        divergence = truncation.divergence
        if self._reset == "none":
            self._truncated[assigned.key] = truncation
        elif divergence is None:
            assigned.needs_reset = True
        else:
            self._move(assigned, assigned.position.cut(divergence.offset, divergence.epoch, leader.epoch))

    async def _reset_by_policy(self, assigned: _AssignedPartition) -> None:
        position = assigned.position
        if self._reset == "latest":
            answer = await end_position(self.client, assigned.topic, assigned.partition)
        else:
            answer = await list_offset(self.client, assigned.topic, assigned.partition, EARLIEST)
        if assigned.position != position or not assigned.needs_reset:
            return
        if answer.offset is None:
            self._back_off(assigned)
            return
        assigned.backoff.reset()
        if self._reset == "latest" and answer.epoch != UNKNOWN_EPOCH and answer.leader_epoch is not None:
            end = FetchPosition.sought(answer.offset, answer.epoch)
            self._move(assigned, end._replace(validated_in=answer.leader_epoch))
        else:
            self._move(assigned, FetchPosition(answer.offset))

    def _back_off(self, assigned: _AssignedPartition) -> None:
        assigned.not_before_s = asyncio.get_running_loop().time() + assigned.backoff.next_s()
        self.client.refresh_soon()

    # --- fetching -----------------------------------------------------------------------------------------------------

    async def _fetch(self, broker: int, topic_id: UUID | None, pending: list[_PendingFetch]) -> None:
        timeouts = self.client.timeouts
        request = FetchRequest(
            max_wait=timedelta(seconds=self._fetch_wait_s_max),
            min_bytes=1,
            max_bytes=self._fetch_bytes_max,
            isolation_level=self._isolation,
            topics=(
                FetchTopic(
                    topic_id=topic_id,
                    partitions=tuple(
                        FetchPartition(
                            partition=fetch.fetched.partition,
                            current_leader_epoch=fetch.leader.epoch,
                            fetch_offset=fetch.fetched.position,
                            last_fetched_epoch=fetch.position.epoch if self._tell_epochs else UNKNOWN_EPOCH,
                            partition_max_bytes=self._fetch_bytes_max,
                        )
                        for fetch in pending
                    ),
                ),
            ),
            forgotten_topics_data=(),
        )
        try:
            connection = await self.client.connection(broker)
            response: Any = await connection.call(request, self._fetch_wait_s_max + timeouts.request_timeout_s)
        except ConnectionLost as lost:
            for fetch in pending:
                self._failed(fetch, connection_error_name(lost))
            return
        answers = {
            answer.partition_index: answer for topic_answer in response.responses for answer in topic_answer.partitions
        }
        for fetch in pending:
            answer = answers.get(fetch.fetched.partition)
            if response.error_code != 0:
                self._failed(fetch, error_name(response.error_code))
            elif answer is None:
                self._failed(fetch, "an answer about something else")
            else:
                self._answered(fetch, answer)

    def _answered(self, fetch: _PendingFetch, answer: Any) -> None:
        assigned, fetched = fetch.assigned, fetch.fetched
        if not self._rules.ignore_stale_fetch_answer:
            same = assigned.position.offset == fetched.position
        else:
            same = assigned.position == fetch.position
        if not same or assigned not in self._assigned:
            self._ready.append(fetched)
            return
        if answer.error_code != 0:
            hint = Leader(int(answer.current_leader.leader_id), int(answer.current_leader.leader_epoch))
            self.client.metadata.update_leader(fetched.topic, fetched.partition, hint)
            error = error_name(answer.error_code)
            if error == _OUT_OF_RANGE and self._reset == "none":
                self._out_of_range[assigned.key] = fetched.position
            assigned.needs_reset = error == _OUT_OF_RANGE and self._reset != "none"
            self._failed(fetch, error)
            return
        if answer.diverging_epoch.end_offset >= 0:
            assigned.diverges = True
            self._failed(fetch, _DIVERGES)
            return
        try:
            records, position = read(answer.records or b"", fetched.position)
        except batches.CorruptBatch:
            self._failed(fetch, error_name(ErrorCode.corrupt_message))
            return
        assigned.backoff.reset()
        assigned.position = assigned.position.read(epochs(records), position, fetch.leader.epoch)
        if records:
            self._let_others_go_first(assigned)
        self._ready.append(
            fetched._replace(
                records=records,
                leader_epoch=confirmed(fetch.leader),
                high_watermark=int(answer.high_watermark),
                next=OffsetAndEpoch(position, assigned.position.epoch) if records else None,
            )
        )

    def _let_others_go_first(self, assigned: _AssignedPartition) -> None:
        """Name a partition last in fetches from now on, as Kafka's consumer does: the first one may fill an answer."""
        self._assigned.remove(assigned)
        self._assigned.append(assigned)

    def _failed(self, fetch: _PendingFetch, error: str) -> None:
        self._back_off(fetch.assigned)
        self._ready.append(fetch.fetched._replace(error=error))
