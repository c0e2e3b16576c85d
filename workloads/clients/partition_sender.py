"""The sender of one partition: sends batches in order, retries and gives up, so that none is appended twice or
reordered.

Retries. A batch gets its sequence number and its bytes when it is first sent, and every retry sends the same bytes,
so that a broker that has appended it answers with the offsets it already has. At most `max_in_flight` batches of a
partition are in flight, in the order of their sequence numbers over one connection. When one of them has to be tried
again, nothing is sent until all that are under way are answered; then those without acknowledgement are sent again,
lowest sequence first. An OUT_OF_ORDER_SEQUENCE_NUMBER (45) behind a batch that was not acknowledged only says that its
predecessor is missing, and is retried with it. A broker accepts any sequence number from an unknown producer
id, so the first batch of an id is sent alone until it is acknowledged; a later one could be accepted in its place.

Giving up. A batch not acknowledged within the delivery timeout ends `info`, or `fail` when it is certainly in no log;
so does one refused for good. An attempt under way at that moment is awaited first, so a batch may take one request
timeout longer. The broker may or may not expect its successors' numbers now: once every attempt under way is
answered, batches behind it that may have been appended end `info` too (they can be sent neither again under these
numbers, nor safely under others), and those certainly in no log are renumbered. The next batches begin at sequence 0 of
the next producer epoch; after INVALID_PRODUCER_EPOCH (47) or UNKNOWN_PRODUCER_ID (59), or when epochs run out, of a
new producer id.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from kio.schema.errors import ErrorCode
from kio.schema.produce.v11.request import PartitionProduceData, ProduceRequest, TopicProduceData

from images.wire.batch import SEQUENCE_MODULUS, Compression, build
from images.wire.connection import Connection, ConnectionLost
from workloads.clients.connections import Backoff, Client, cancel_all, connection_error_name, error_name
from workloads.clients.delivery import NEVER_APPENDED, ProducerBatch
from workloads.clients.metadata_cache import Leader
from workloads.clients.producer_clock import ProducerClock

Identify = Callable[[int], Awaitable[tuple[int, int]]]
"""Gives a producer id other than the one it is called with, and its first epoch. Raises ConnectionLost."""

_NEW_ID: Final = frozenset((int(ErrorCode.invalid_producer_epoch), int(ErrorCode.unknown_producer_id)))
_OUT_OF_ORDER: Final = int(ErrorCode.out_of_order_sequence_number)
_DUPLICATE: Final = int(ErrorCode.duplicate_sequence_number)
_FENCED_OR_AHEAD: Final = frozenset(
    (int(ErrorCode.fenced_leader_epoch), int(ErrorCode.unknown_leader_epoch), int(ErrorCode.offset_not_available))
)
_LAST_EPOCH: Final = (1 << 15) - 1
_NOBODY: Final = (-1, -1)
_BROKER_SHARE_OF_TIMEOUT: Final = 2 / 3
"""A broker is asked to answer 7 before the client gives up, so that there is an answer."""


@dataclass(frozen=True, slots=True)
class SendSettings:
    """The settings of a producer, the same for all its partitions."""

    topic: str
    acks: int
    max_in_flight: int
    clock: ProducerClock
    compression: Compression
    first_sequence: int
    """The sequence number of the first batch of a producer id on each partition."""


class PartitionSender:
    """One partition's batches: those in flight, numbered and ordered, and those waiting behind them."""

    def __init__(self, client: Client, settings: SendSettings, identify: Identify, partition: int) -> None:
        self._client = client
        self._settings = settings
        self._identify = identify
        self._partition = partition
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[ProducerBatch] = deque()
        self._in_flight: list[ProducerBatch] = []
        self._under_way = 0
        self._identity: tuple[int, int] | None = _NOBODY if settings.acks == 0 else None
        self._spent_id = -1
        """The producer id that must not be used again; -1 for none."""
        self._next_sequence = settings.first_sequence
        self._id_known = settings.acks == 0
        """A batch of this producer id was acknowledged, so the leader knows the id."""
        self._broken = False
        """A batch ended without acknowledgement: the sequence number that the broker expects is not known."""
        self._bug: BaseException | None = None
        """The error that ended a task."""
        self._needs_pause = False
        self._connection: Connection | None = None
        """The connection over which the batches in flight were sent."""
        self._wake = asyncio.Event()
        self._backoff = Backoff(self._client.timeouts, self._client.random)
        self._attempts: dict[ProducerBatch, asyncio.Task[None]] = {}
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._check_for_bugs)

    def add(self, batch: ProducerBatch) -> None:
        """Send it, behind every batch added before."""
        if self._bug is not None:
            batch.future.set_exception(self._bug)
            return
        self._waiting.append(batch)
        self._wake.set()

    async def close(self) -> None:
        """Give up everything undelivered at once."""
        await cancel_all([self._task, *self._attempts.values()])
        for batch in (*self._in_flight, *self._waiting):
            batch.give_up("closed")
        self._in_flight.clear()
        self._waiting.clear()

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            self._expire()
            if self._under_way and (self._broken or self._retries()):
                await self._wake.wait()  # every attempt ends within a request timeout
                continue
            if self._broken:
                self._renumber()
            if not self._sendable():
                await self._wake.wait()
                continue
            if self._needs_pause:
                self._needs_pause = False
                await asyncio.sleep(self._backoff.next_s())
                continue
            connection = await self._connect()
            if connection is None:
                self._needs_pause = True
            elif self._under_way and (self._broken or self._retries() or connection is not self._connection):
                await self._wake.wait()  # nothing may overtake a retry, nor a batch at the old leader
            else:
                self._connection = connection
                self._send(connection)

    def _check_for_bugs(self, task: asyncio.Task[None]) -> None:
        """Fail every batch when a task crashed, so that no caller waits for ever."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._bug = error
            for batch in (*self._in_flight, *self._waiting):
                if not batch.future.done():
                    batch.future.set_exception(error)

    def _retries(self) -> bool:
        return any(not batch.under_way for batch in self._in_flight)

    def _sendable(self) -> bool:
        return self._retries() or (bool(self._waiting) and self._has_place())

    def _has_place(self) -> bool:
        return len(self._in_flight) < (self._settings.max_in_flight if self._id_known else 1)

    async def _connect(self) -> Connection | None:
        """A connection to the leader, and a producer identity; None when one of them is not available now."""
        client = self._client
        leader = client.metadata.leader(self._settings.topic, self._partition)
        try:
            if leader is None:
                await client.refresh()
                leader = client.metadata.leader(self._settings.topic, self._partition)
            else:
                client.refresh_if_old()
            if leader is None:
                return None
            if self._identity is None:
                self._identity = await self._identify(self._spent_id)
            return await client.connection(leader.broker)
        except ConnectionLost:
            client.refresh_soon()
            return None

    def _send(self, connection: Connection) -> None:
        """Send every batch not under way: retries first, which have the lowest numbers, then those that wait."""
        self._expire()  # connecting may have taken long
        while not self._broken and self._waiting and self._has_place():
            batch = self._waiting.popleft()
            self._in_flight.append(batch)
            self._number(batch)
        if self._broken:
            return
        for batch in list(self._in_flight):
            if batch.under_way:
                continue
            batch.attempts += 1
            if self._settings.acks == 0:
                self._send_only(connection, batch)
            else:
                batch.under_way = True
                self._under_way += 1
                attempt = self._attempts[batch] = asyncio.create_task(self._attempt(connection, batch))
                attempt.add_done_callback(self._check_for_bugs)

    def _number(self, batch: ProducerBatch) -> None:
        assert self._identity is not None
        producer_id, epoch = self._identity
        idempotent = producer_id >= 0
        batch.data = build(
            batch.values,
            timestamp_ms=self._settings.clock.now_ms(),
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=self._next_sequence if idempotent else -1,
            compression=self._settings.compression,
        )
        self._next_sequence = (self._next_sequence + len(batch.values)) % SEQUENCE_MODULUS

    async def _attempt(self, connection: Connection, batch: ProducerBatch) -> None:
        """Send a batch once and act on the answer."""
        timeout_s = self._client.timeouts.request_timeout_s
        try:
            response: Any = await connection.call(self._request(batch), timeout_s)
        except ConnectionLost as lost:
            batch.may_be_appended = batch.may_be_appended or lost.sent
            self._try_again(batch, connection_error_name(lost))
        else:
            answers = [answer for topic in response.responses for answer in topic.partition_responses]
            if len(answers) == 1 and answers[0].index == self._partition:
                self._answered(batch, answers[0])
            else:
                batch.may_be_appended = True
                self._try_again(batch, "an answer about something else")
        batch.under_way = False
        self._under_way -= 1
        del self._attempts[batch]
        self._wake.set()

    def _send_only(self, connection: Connection, batch: ProducerBatch) -> None:
        try:
            connection.send_only(self._request(batch))
        except ConnectionLost as lost:
            self._try_again(batch, connection_error_name(lost))
        else:
            self._in_flight.remove(batch)
            batch.end("info", error="no acknowledgement")

    def _request(self, batch: ProducerBatch) -> ProduceRequest:
        produced = PartitionProduceData(index=self._partition, records=batch.data)
        return ProduceRequest(
            acks=self._settings.acks,
            timeout=timedelta(seconds=self._client.timeouts.request_timeout_s * _BROKER_SHARE_OF_TIMEOUT),
            topic_data=(TopicProduceData(name=self._settings.topic, partition_data=(produced,)),),
        )

    def _answered(self, batch: ProducerBatch, answer: Any) -> None:
        code = int(answer.error_code)
        name = error_name(code)
        if code == 0:
            self._id_known = True
            self._backoff.reset()
            self._in_flight.remove(batch)
            batch.end("ok", base_offset=int(answer.base_offset) if answer.base_offset >= 0 else None)
            return
        if code == _DUPLICATE:
            self._id_known = True
            self._in_flight.remove(batch)
            batch.end("info", error=name)
            return
        if code not in NEVER_APPENDED:
            batch.may_be_appended = True
        leader = answer.current_leader
        self._client.metadata.update_leader(
            self._settings.topic, self._partition, Leader(int(leader.leader_id), int(leader.leader_epoch))
        )
        follows_another = self._broken or self._in_flight[0] is not batch
        if code == _OUT_OF_ORDER or code in _NEW_ID:
            if follows_another:
                self._try_again(batch, name)
            else:
                self._give_up(batch, name, new_id=code in _NEW_ID)
        elif ErrorCode(code).retriable or code in _FENCED_OR_AHEAD:
            self._try_again(batch, name)
        else:
            self._give_up(batch, name)

    def _try_again(self, batch: ProducerBatch, error: str) -> None:
        """Leave the batch in flight; `_run` sends it again."""
        batch.error = error
        self._needs_pause = True
        self._client.refresh_soon()

    def _give_up(self, batch: ProducerBatch, error: str, *, new_id: bool = False) -> None:
        """End a batch in flight whose attempt was answered, or that has none under way."""
        batch.under_way = False
        self._in_flight.remove(batch)
        batch.give_up(error)
        self._broken = True
        if new_id and self._identity is not None:
            self._spent_id = self._identity[0]

    def _expire(self) -> None:
        """Give up every batch that is past its deadline and not under way."""
        now_s = self._loop.time()
        for batch in [batch for batch in self._in_flight if not batch.under_way and batch.deadline_s <= now_s]:
            self._give_up(batch, batch.error)
        while self._waiting and self._waiting[0].deadline_s <= now_s:
            batch = self._waiting.popleft()
            batch.give_up(batch.error)

    def _renumber(self) -> None:
        """Begin a new sequence, once nothing is under way."""
        for batch in self._in_flight:
            if batch.may_be_appended:
                batch.give_up(batch.error)
        again = [batch for batch in self._in_flight if not batch.may_be_appended]
        self._waiting.extendleft(reversed(again))
        self._in_flight.clear()
        self._next_sequence = 0
        self._broken = False
        if self._identity is None or self._identity == _NOBODY:
            return
        producer_id, epoch = self._identity
        if producer_id == self._spent_id or epoch == _LAST_EPOCH:
            self._spent_id = producer_id
            self._identity = None
            self._id_known = False
            self._next_sequence = self._settings.first_sequence
        else:
            self._identity = (producer_id, epoch + 1)
