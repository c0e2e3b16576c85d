"""An idempotent producer that never claims more than it knows.

Each `append` is one record batch of one partition, and ends in one of three ways (`Delivery.outcome`):

- `ok`: the leader acknowledged it, as `acks` asks, and told its offset.
- `fail`: it is certainly in no log. Either no byte of it ever left, or every attempt was answered by an error that a
  broker gives *before* appending (`NEVER_APPENDED`, such as NOT_ENOUGH_REPLICAS 19).
- `info`: anything else. NOT_LEADER_OR_FOLLOWER (6), REQUEST_TIMED_OUT (7), NOT_ENOUGH_REPLICAS_AFTER_APPEND (20) and
  a lost connection may all follow an append. Once one attempt may have appended, no later error makes it a `fail`.

Retries. A batch gets its sequence number and its bytes when it is first sent, and every retry sends the same bytes,
so that a broker that has it answers with the offsets it already has. Of each partition at most `max_in_flight`
batches are under way, in the order of their sequence numbers over one connection. When one of them has to be tried
again, nothing is sent until all that are under way are answered; then those without acknowledgement are sent again,
lowest sequence first. An OUT_OF_ORDER_SEQUENCE_NUMBER (45) behind a batch that was not acknowledged only says that its
predecessor is missing, and is retried with it. A broker takes any sequence number from a producer id it has not met,
so the first batch of an id travels alone until it is acknowledged; a later one could be taken in its place.

Giving up. A batch not acknowledged within the delivery timeout ends `info`, or `fail` when it is certainly in no log;
so does one refused for good. An attempt under way at that moment is awaited first, so a batch may take one request
timeout longer. The broker may or may not expect its successors' numbers now: once every attempt under way is
answered, batches behind it that may have been appended end `info` too (they can be sent neither again under these
numbers, nor safely under others), and those certainly in no log are renumbered. What follows begins at sequence 0 of
the next producer epoch; after INVALID_PRODUCER_EPOCH (47) or UNKNOWN_PRODUCER_ID (59), or when epochs run out, of a
new producer id.

DUPLICATE_SEQUENCE_NUMBER (46) means that the batch was appended long ago and its offset forgotten: `info`, since an
`ok` would have to name the offset. With `acks=0` there is no answer and no producer id: a batch is sent once and ends
`info` with the error `no acknowledgement`, or `fail` when it could not be sent in time. With `acks=1` an acknowledged
batch may be lost by an election; that is no mistake of the producer's.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v4.request import InitProducerIdRequest
from kio.schema.produce.v11.request import PartitionProduceData, ProduceRequest, TopicProduceData

from images.broker.batch import SEQUENCE_MODULUS, build
from images.broker.wire import Connection, ConnectionLost
from workloads.clients.connections import Backoff, Client, error_name, loss_name
from workloads.clients.view import Leader
from workloads.history import Outcome

NEVER_APPENDED: Final = frozenset(
    int(code)
    for code in (
        ErrorCode.corrupt_message,
        ErrorCode.message_too_large,
        ErrorCode.invalid_topic_exception,
        ErrorCode.record_list_too_large,
        ErrorCode.not_enough_replicas,
        ErrorCode.invalid_required_acks,
        ErrorCode.topic_authorization_failed,
        ErrorCode.cluster_authorization_failed,
        ErrorCode.invalid_timestamp,
        ErrorCode.unsupported_version,
        ErrorCode.unsupported_for_message_format,
        ErrorCode.policy_violation,
        ErrorCode.out_of_order_sequence_number,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.unknown_producer_id,
        ErrorCode.invalid_record,
    )
)
"""Error codes that a broker answers to Produce only before it appends anything (protocol.md §6)."""

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
class Delivery:
    """What became of one batch."""

    outcome: Outcome
    base_offset: int | None = None
    """Offset of its first record; the others follow it. None unless `ok`."""
    error: str | None = None
    """The last error's name in Kafka's words, `timeout`, `connection` …; None when `ok`."""
    attempts: int = 0
    """How many times it was handed to a connection."""


class _Batch:
    """One batch until it is delivered or given up."""

    __slots__ = ("attempts", "data", "deadline_s", "error", "future", "may_be_appended", "under_way", "values")

    def __init__(self, values: Sequence[bytes], deadline_s: float, future: asyncio.Future[Delivery]) -> None:
        self.values = values
        self.deadline_s = deadline_s
        self.future = future
        self.data: bytes | None = None
        """Its bytes, once it has a sequence number."""
        self.attempts = 0
        self.under_way = False
        self.may_be_appended = False
        """Some attempt ended in a way that does not rule out an append."""
        self.error = "timeout"

    def end(self, outcome: Outcome, base_offset: int | None = None, error: str | None = None) -> None:
        if not self.future.done():
            self.future.set_result(Delivery(outcome, base_offset, error, self.attempts))

    def give_up(self, error: str) -> None:
        """End without acknowledgement, as honestly as is known."""
        self.end("info" if self.may_be_appended or self.under_way else "fail", error=error)


class Producer:
    """Appends to the partitions of one topic."""

    def __init__(
        self,
        client: Client,
        topic: str,
        *,
        acks: int = -1,
        max_in_flight: int = 5,
        delivery_timeout_s: float = 8.0,
        unix_ahead_ms: int = 0,
    ) -> None:
        client.follow(topic)
        self.client = client
        self.topic = topic
        self.acks = acks
        self.max_in_flight = max_in_flight
        self.delivery_timeout_s = delivery_timeout_s
        self.unix_ahead_ms = unix_ahead_ms
        self._lanes: dict[int, _Lane] = {}
        self._identity: tuple[int, int] | None = None
        self._identity_lock = asyncio.Lock()
        self._closed = False

    def append(self, partition: int, values: Sequence[bytes]) -> asyncio.Future[Delivery]:
        """Append `values` to `partition` as one batch, behind every batch handed in before.

        Whatever the cluster does, the future gets a result; an exception in it is a bug of this module. Raises
        RuntimeError once closed, ValueError without values.
        """
        if self._closed:
            raise RuntimeError("this producer is closed")
        if not values:
            raise ValueError("a batch needs at least one value")
        loop = asyncio.get_running_loop()
        batch = _Batch(tuple(values), loop.time() + self.delivery_timeout_s, loop.create_future())
        lane = self._lanes.get(partition)
        if lane is None:
            lane = self._lanes[partition] = _Lane(self, partition)
        lane.add(batch)
        return batch.future

    async def close(self) -> None:
        """Give up everything undelivered at once, each batch with its honest outcome. May be called twice."""
        self._closed = True
        for partition in sorted(self._lanes):
            await self._lanes[partition].close()

    async def identity(self, not_this: int) -> tuple[int, int]:
        """A producer id other than `not_this`, and its first epoch. Raises ConnectionLost when nobody gave one."""
        async with self._identity_lock:
            if self._identity is None or self._identity[0] == not_this:
                request = InitProducerIdRequest(
                    transactional_id=None, transaction_timeout=timedelta(milliseconds=60_000)
                )
                response = await self.client.ask_any(request)
                if response.error_code != 0:
                    raise ConnectionLost(f"no producer id: {error_name(response.error_code)}")
                self._identity = (int(response.producer_id), int(response.producer_epoch))
            return self._identity


class _Lane:
    """One partition's batches: those in flight, numbered and ordered, and those waiting behind them."""

    def __init__(self, producer: Producer, partition: int) -> None:
        self._producer = producer
        self._client = producer.client
        self._partition = partition
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Batch] = deque()
        self._in_flight: list[_Batch] = []
        self._under_way = 0
        self._identity: tuple[int, int] | None = _NOBODY if producer.acks == 0 else None
        self._spent_id = -1
        """The producer id that must not be used again; -1 for none."""
        self._next_sequence = 0
        self._met = producer.acks == 0
        """A batch of this producer id was acknowledged, so whoever leads knows the id."""
        self._broken = False
        """A batch ended without acknowledgement: what the broker expects next is not known."""
        self._needs_pause = False
        self._connection: Connection | None = None
        """Over which the batches under way were sent."""
        self._wake = asyncio.Event()
        self._backoff = Backoff(self._client.patience, self._client.random)
        self._attempts: dict[_Batch, asyncio.Task[None]] = {}
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._check_for_bugs)

    def add(self, batch: _Batch) -> None:
        self._waiting.append(batch)
        self._wake.set()

    async def close(self) -> None:
        tasks = [self._task, *self._attempts.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
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
                await self._wake.wait()  # nothing may overtake: not a retry, nor at a new leader what the old one has
            else:
                self._connection = connection
                self._send(connection)

    def _check_for_bugs(self, task: asyncio.Task[None]) -> None:
        """Let nobody wait for ever on a task that crashed."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            for batch in (*self._in_flight, *self._waiting):
                if not batch.future.done():
                    batch.future.set_exception(error)

    def _retries(self) -> bool:
        return any(not batch.under_way for batch in self._in_flight)

    def _sendable(self) -> bool:
        return self._retries() or (bool(self._waiting) and self._has_place())

    def _has_place(self) -> bool:
        return len(self._in_flight) < (self._producer.max_in_flight if self._met else 1)

    async def _connect(self) -> Connection | None:
        """A connection to the leader, and a producer identity; None when one of them could not be had for now."""
        client = self._client
        leader = client.view.leader(self._producer.topic, self._partition)
        try:
            if leader is None:
                await client.refresh()
                leader = client.view.leader(self._producer.topic, self._partition)
            else:
                client.refresh_if_old()
            if leader is None:
                return None
            if self._identity is None:
                self._identity = await self._producer.identity(self._spent_id)
            return await client.connection(leader.broker)
        except ConnectionLost:
            client.refresh_soon()
            return None

    def _send(self, connection: Connection) -> None:
        """Send what is not under way: retries first, which have the lowest numbers, then what waits."""
        self._expire()  # connecting may have taken long
        while not self._broken and self._waiting and self._has_place():
            batch = self._waiting.popleft()
            self._number(batch)
            self._in_flight.append(batch)
        if self._broken:
            return
        for batch in list(self._in_flight):
            if batch.under_way:
                continue
            batch.attempts += 1
            if self._producer.acks == 0:
                self._send_only(connection, batch)
            else:
                batch.under_way = True
                self._under_way += 1
                attempt = self._attempts[batch] = asyncio.create_task(self._attempt(connection, batch))
                attempt.add_done_callback(self._check_for_bugs)

    def _number(self, batch: _Batch) -> None:
        assert self._identity is not None
        producer_id, epoch = self._identity
        idempotent = producer_id >= 0
        batch.data = build(
            batch.values,
            timestamp_ms=int(self._loop.time() * 1000) + self._producer.unix_ahead_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=self._next_sequence if idempotent else -1,
        )
        self._next_sequence = (self._next_sequence + len(batch.values)) % SEQUENCE_MODULUS

    async def _attempt(self, connection: Connection, batch: _Batch) -> None:
        """Send a batch once and act on the answer."""
        timeout_s = self._client.patience.request_timeout_s
        try:
            response: Any = await connection.call(self._request(batch), timeout_s)
        except ConnectionLost as lost:
            batch.may_be_appended = batch.may_be_appended or lost.sent
            self._try_again(batch, loss_name(lost))
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

    def _send_only(self, connection: Connection, batch: _Batch) -> None:
        try:
            connection.send_only(self._request(batch))
        except ConnectionLost as lost:
            self._try_again(batch, loss_name(lost))
        else:
            self._in_flight.remove(batch)
            batch.end("info", error="no acknowledgement")

    def _request(self, batch: _Batch) -> ProduceRequest:
        produced = PartitionProduceData(index=self._partition, records=batch.data)
        return ProduceRequest(
            acks=self._producer.acks,
            timeout=timedelta(seconds=self._client.patience.request_timeout_s * _BROKER_SHARE_OF_TIMEOUT),
            topic_data=(TopicProduceData(name=self._producer.topic, partition_data=(produced,)),),
        )

    def _answered(self, batch: _Batch, answer: Any) -> None:
        code = int(answer.error_code)
        name = error_name(code)
        if code == 0:
            self._met = True
            self._backoff.reset()
            self._in_flight.remove(batch)
            if answer.base_offset >= 0:
                batch.end("ok", base_offset=int(answer.base_offset))
            else:
                batch.end("info", error="no offset told")
            return
        if code == _DUPLICATE:
            self._met = True
            self._in_flight.remove(batch)
            batch.end("info", error=name)
            return
        if code not in NEVER_APPENDED:
            batch.may_be_appended = True
        leader = answer.current_leader
        self._client.view.hint(
            self._producer.topic, self._partition, Leader(int(leader.leader_id), int(leader.leader_epoch))
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

    def _try_again(self, batch: _Batch, error: str) -> None:
        """Leave the batch in flight; `_run` sends it again."""
        batch.error = error
        self._needs_pause = True
        self._client.refresh_soon()

    def _give_up(self, batch: _Batch, error: str, *, new_id: bool = False) -> None:
        """End a batch in flight whose attempt was answered, or that has none under way."""
        batch.under_way = False
        self._in_flight.remove(batch)
        batch.give_up(error)
        self._broken = True
        if new_id and self._identity is not None:
            self._spent_id = self._identity[0]

    def _expire(self) -> None:
        """Give up what is past its deadline and not under way."""
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
            self._met = False
        else:
            self._identity = (producer_id, epoch + 1)
