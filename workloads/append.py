"""The workload `append`: unique values appended to a few partitions, read back by tailing consumers.

Processes are numbered producers first, then consumers, end-offset readers, and one for the final reads.

- *Producers* append single records, each holding the next number of the run as ASCII decimal, so every value is unique
  and its batch is one operation; zeros in front make it `record_bytes` long. Together they invoke `rate` appends a
  second, each producer with exponential gaps drawn from its own stream, to a partition drawn evenly from those where it
  has fewer than `pipeline` appends open. When there is none it waits for one to complete; appends that fell due
  meanwhile are skipped. With a `burst` so many fall due at a time, on one partition. Where nothing has fallen due in
  the first half, the first producer appends then. Where `idle_partitions` and `written_share` say so nobody writes.
- *Consumers* read every partition from its start and keep up with its end. Each answer about a partition is one poll
  operation, invoked when its fetch was sent: `ok` with the records, `fail` with the error. One that came back empty
  proves nothing by default and is recorded only with `record_empty_polls`. Where a new leader's log is not the one that
  was read, a consumer goes back to the divergence, which is a `reset` operation; on OFFSET_OUT_OF_RANGE it moves to
  the nearest offset that the log has, and goes on. After a poll with records it rests for `poll_pause_ms`.
- *Lifetimes*: with `producer_life_ms` and `consumer_life_ms` these clients begin and end in the middle of the run, each
  followed by another; every one is a process of its own, numbered from where the others end. A producer ends at once,
  its open appends with whatever outcome is known, or sees them through while the next one appends already. A consumer
  begins at the start of every log again.
- *End-offset readers* ask each partition for its end about once per `end_offset_interval_s`, sooner after an error.
  One query is one operation. *Time readers* ask for offsets by time (`workloads.time_readers`).
- The *scripted client*, one process after the one of the final reads, carries out a script (`workloads.operations`).
- *Final reads* query the end of every partition until it is answered, then read it from its start until that end is
  reached. They are invoked after the last append completed, so the end covers every acknowledged one.
- *Final appends* follow, one on every partition, also on one that nobody has written to, and are read back, too.

A read that ends in an error is `fail`: it returned nothing and changed nothing.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from random import Random
from typing import Any, TypeVar

from workloads.clients.batching import BatchingProducer
from workloads.clients.consumer_rules import ConsumerRules
from workloads.clients.delivery import Delivery
from workloads.clients.library import (
    AppendingClient,
    BurstAppendingClient,
    ClientLibrary,
    ClosableClient,
    LibraryError,
    ReadingClient,
)
from workloads.clients.native import (
    AdminClient,
    AdminError,
    Client,
    CompletedFetch,
    Consumer,
    LeadersUnknown,
    OffsetOutOfRangeError,
    Producer,
    Reset,
    Truncation,
)
from workloads.clients.producer_clock import ProducerClock
from workloads.end_offsets import ask_for_end
from workloads.final_reads import ACKS, FinalReads
from workloads.history import OUT_OF_RANGE, Phase, Recorder
from workloads.lifetimes import REST_S_MIN, WrittenPartitions, end_of_life_s, sleep_until
from workloads.operations import ClientOperation
from workloads.scripted import ScriptedClient
from workloads.time_readers import TimeReader
from workloads.workload import LeadersMissing, SetUpError, WorkloadSettings

T = TypeVar("T", bound=ClosableClient)
Appender = Callable[[int, int, Callable[[int], None]], Iterable[Coroutine[Any, Any, None]]]
"""Appends to a partition so many records, each an operation, and calls a function with the number of those that ended.
"""

_POLL_TIMEOUT_S = 5.0
_DEATHS_SHARE = 0.5
"""Of producers that end in the middle of a run: they give up what is open, while the others see it through."""
_FINAL_FETCH_BYTES = 1 << 20


class AppendWorkload:
    """See the module's docstring; the calls are those of `Workload`."""

    def __init__(
        self,
        settings: WorkloadSettings,
        recorder: Recorder,
        stream: Callable[[str], Random],
        library: ClientLibrary | None = None,
    ) -> None:
        """Producers, tailing consumers and end-offset readers are clients of `library`; without one, as final reads
        and the script always, native ones."""
        self._settings = settings
        self._recorder = recorder
        self._stream = stream
        self._library = library
        self._partitions = range(settings.partitions)
        self._first_reader = settings.producers + settings.consumers
        self._final_process = self._first_reader + settings.end_offset_readers
        """Process number of the final reads; those of the script and of clients that begin later are above it."""
        self._next_value = 0
        self._lives = 0
        """Clients that began in the middle of the run."""
        self._appended = asyncio.Event()
        """Whether an append of a producer has fallen due."""
        self._written = WrittenPartitions.of_all(settings.partitions)
        self._clients: list[Client] = []
        self._closing: list[ClosableClient] = []
        """Producers and consumers, closed before their clients."""
        self._final: FinalReads | None = None
        self._scripted: ScriptedClient | None = None
        self._time_readers: list[TimeReader] = []

    async def set_up(self) -> None:
        settings = self._settings
        admin = AdminClient(self._client("admin"))
        timeout_s = settings.set_up_timeout_ms / 1000
        try:
            await admin.create_topic(
                settings.topic, settings.partitions, settings.replication_factor, settings.topic_config, timeout_s
            )
            await admin.wait_for_leaders(settings.topic, settings.partitions, timeout_s)
            if self._library is not None:
                await self._library.start()
        except (AdminError, LibraryError) as error:
            raise (LeadersMissing if isinstance(error, LeadersUnknown) else SetUpError)(str(error)) from error

    async def run(self, until_s: float) -> None:
        settings = self._settings
        self._written = WrittenPartitions.drawn(
            self._stream("append/written"),
            settings.partitions,
            settings.idle_partitions,
            settings.written_share,
            asyncio.get_running_loop().time(),
            until_s,
        )
        async with asyncio.TaskGroup() as reading:
            readers = [
                reading.create_task(self._tail(settings.producers + number, f"consumer-{number}"))
                for number in range(settings.consumers)
            ]
            for number in range(settings.end_offset_readers):
                consumer = self._reader(f"reader-{number}")
                readers += [
                    reading.create_task(self._keep_asking(consumer, self._first_reader + number, partition))
                    for partition in self._partitions
                ]
            self._time_readers = [
                TimeReader(self._later_process(), self._client(f"time-reader-{number}"), settings, self._recorder)
                for number in range(settings.time_readers)
            ]
            readers += [reading.create_task(reader.run()) for reader in self._time_readers]
            async with asyncio.TaskGroup() as appending:
                for number in range(settings.producers):
                    appending.create_task(self._produce(number, until_s))
            await sleep_until(until_s)
            for reader in readers:  # one by one: a task group cancels its tasks in no particular order
                reader.cancel()

    async def final_reads(self, until_s: float) -> bool:
        process = self._final_process
        consumer = self._consumer(process, "final", "final")
        self._final = FinalReads(self._settings.topic, consumer, self._polled)
        try:
            async with asyncio.timeout_at(until_s) as timeout:
                ends = {number: await self._end(consumer, process, "final", number) for number in self._partitions}
                await self._final.read_to(ends)
                for reader in self._time_readers:
                    await reader.read_finally()
        except TimeoutError:
            if not timeout.expired():
                raise
            return False
        return True

    async def final_appends(self, until_s: float) -> tuple[str, ...]:
        assert self._final is not None, "final appends come after the final reads"
        producer = self._native_producer("final-appends", ACKS, until_s - asyncio.get_running_loop().time())
        process = self._later_process()
        appends = (self._append(process, producer, partition, "final") for partition in self._partitions)
        deliveries = await asyncio.gather(*appends)
        return await self._final.read_back(deliveries, until_s)

    async def perform(self, operation: ClientOperation) -> None:
        if self._scripted is None:
            self._scripted = self._scripted_client()
        await self._scripted.perform(operation)

    async def close(self) -> None:
        for user in self._closing:
            await user.close()
        for client in self._clients:
            await client.close()
        if self._library is not None:
            await self._library.close()

    # producers

    def _native_producer(self, name: str, acks: int | None = None, timeout_s: float | None = None) -> AppendingClient:
        settings = self._settings
        producer = Producer(
            self._client(name),
            settings.topic,
            acks=settings.acks if acks is None else acks,
            max_in_flight=settings.max_in_flight,
            delivery_timeout_s=settings.delivery_timeout_ms / 1000 if timeout_s is None else timeout_s,
            clock=ProducerClock(self._stream(f"append/{name}/clock"), settings.clock_error_ms, settings.unix_ahead_ms),
            compression=settings.compression,
            first_sequence=settings.first_sequence,
        )
        return self._closed_later(BatchingProducer(producer, settings.batch_records, settings.linger_ms / 1000))

    async def _append(self, process: int, producer: AppendingClient, partition: int, phase: Phase = "main") -> Delivery:
        """Append the next value of the run as one operation."""
        index, value = self._invoke_append(process, partition, phase)
        delivery = await producer.append(partition, value)
        self._complete_append(index, delivery)
        return delivery

    def _invoke_append(self, process: int, partition: int, phase: Phase = "main") -> tuple[int, bytes]:
        """The operation that appends the next value of the run, and this value."""
        value = self._next_value
        self._next_value += 1
        index = self._recorder.invoke(process, "append", self._settings.topic, partition, phase=phase, value=value)
        return index, b"%0*d" % (self._settings.record_bytes, value)

    def _complete_append(self, index: int, delivery: Delivery) -> None:
        self._recorder.complete(index, delivery.outcome, offset=delivery.base_offset, error=delivery.error)

    def _appender(self, process: int, name: str) -> tuple[ClosableClient, Appender]:
        """A producer, and what appends with it."""
        if self._library is None:
            native = self._native_producer(name)
            return native, partial(self._appends_one_by_one, process, native)
        producer = self._closed_later(self._library.producer(name))
        return producer, partial(self._appends_together, process, producer)

    def _appends_one_by_one(
        self, process: int, producer: AppendingClient, partition: int, count: int, ended: Callable[[int], None]
    ) -> list[Coroutine[Any, Any, None]]:
        async def append() -> None:
            await self._append(process, producer, partition)
            ended(1)

        return [append() for _ in range(count)]

    def _appends_together(
        self, process: int, producer: BurstAppendingClient, partition: int, count: int, ended: Callable[[int], None]
    ) -> list[Coroutine[Any, Any, None]]:
        async def append() -> None:
            with self._recorder.together():
                invoked = [self._invoke_append(process, partition) for _ in range(count)]

            def complete(deliveries: Sequence[tuple[int, Delivery]]) -> None:
                with self._recorder.together():
                    for place, delivery in deliveries:
                        self._complete_append(invoked[place][0], delivery)
                ended(len(deliveries))

            await producer.append(partition, [value for _, value in invoked], complete)

        return [append()]

    async def _produce(self, number: int, until_s: float) -> None:
        """One producer after another; each begins as the one before it ends, so that the rate stays."""
        random = self._stream(f"append/producer-{number}")
        lives = self._stream(f"append/producer-{number}/lives")
        process, name = number, f"producer-{number}"
        middle_s = (asyncio.get_running_loop().time() + until_s) / 2 if number == 0 else math.inf
        async with asyncio.TaskGroup() as appends:
            while True:
                ends_s = min(until_s, end_of_life_s(lives, self._settings.producer_life_ms / 1000))
                producer, append = self._appender(process, name)
                begun = await self._append_until(ends_s, append, random, appends, middle_s)
                if ends_s >= until_s:
                    return
                await sleep_until(ends_s)
                if lives.random() < _DEATHS_SHARE:
                    await producer.close()
                else:
                    appends.create_task(_close_behind(producer, begun))
                process = self._later_process()
                name = f"producer-{number}/{process}"

    async def _append_until(
        self, ends_s: float, append: Appender, random: Random, appends: asyncio.TaskGroup, begins_s: float
    ) -> list[asyncio.Task[None]]:
        """Append until `ends_s`; at `begins_s` if no producer has appended anything by then. The appends under way."""
        settings, loop = self._settings, asyncio.get_running_loop()
        open_appends, under_way = [0] * settings.partitions, dict[asyncio.Task[None], None]()
        ended = asyncio.Event()

        def end(partition: int, count: int) -> None:
            open_appends[partition] -= count
            ended.set()

        due_s = loop.time()
        while True:
            due_s = max(due_s, loop.time()) + random.expovariate(settings.rate / settings.producers / settings.burst)
            if not self._appended.is_set() and loop.time() <= begins_s < min(due_s, ends_s):
                await sleep_until(begins_s)
                due_s = due_s if self._appended.is_set() else begins_s
            if due_s >= ends_s:
                return list(under_way)
            await sleep_until(due_s)
            self._appended.set()
            while not (places := [p for p in self._written.at(loop.time()) if open_appends[p] < settings.pipeline]):
                ended.clear()
                await ended.wait()
            if loop.time() >= ends_s:
                return list(under_way)
            partition = random.choice(places)
            count = min(settings.burst, settings.pipeline - open_appends[partition])
            open_appends[partition] += count
            for appending in append(partition, count, partial(end, partition)):
                under_way[task := appends.create_task(appending)] = None
                task.add_done_callback(under_way.pop)

    def _later_process(self) -> int:
        """The process number of a client that begins in the middle of the run."""
        self._lives += 1
        return self._final_process + 1 + self._lives

    # consumers

    async def _tail(self, process: int, name: str) -> None:
        """One consumer after another, each from the start of every log."""
        settings = self._settings
        random = self._stream(f"append/{name}/pause")
        lives = self._stream(f"append/{name}/lives")
        client_name = name
        while True:
            ends_s = end_of_life_s(lives, settings.consumer_life_ms / 1000)
            consumer = self._tailing_consumer(process, client_name)
            if not await self._poll_until(ends_s, consumer, random):
                return
            await consumer.close()
            await consumer.client.close()
            await self._rest(lives)
            process = self._later_process()
            client_name = f"{name}/{process}"

    async def _poll_until(self, ends_s: float, consumer: ReadingClient, random: Random) -> bool:
        """Whether the consumer may be followed by another one; False when its application ended."""
        loop = asyncio.get_running_loop()
        while loop.time() < ends_s:
            try:
                fetched = await consumer.poll(min(_POLL_TIMEOUT_S, ends_s - loop.time()))
            except OffsetOutOfRangeError:  # `auto_offset_reset: none`: the application ends
                return False
            for answer in fetched:
                await self._polled(consumer, answer)
            if any(answer.records for answer in fetched):
                await asyncio.sleep(self._settings.poll_pause_ms / 1000 * random.uniform(0.5, 1.5))
        return True

    async def _rest(self, random: Random) -> None:
        """The time between a consumer's end and the next one."""
        await asyncio.sleep(random.uniform(REST_S_MIN, self._settings.consumer_rest_ms / 1000))

    def _consumer(self, process: int, name: str, phase: Phase, partitions: Sequence[int] | None = None) -> Consumer:
        """A consumer of every partition, or of some, from the start, whose fetches are poll operations of `process`."""
        reset = "earliest" if phase == "final" else self._settings.auto_offset_reset
        consumer = self._closed_later(self._recorded_consumer(self._client(name), process, phase, reset))
        topic = self._settings.topic
        consumer.assign([(topic, partition) for partition in partitions or self._partitions])
        return consumer

    def _recorded_consumer(self, client: Client, process: int, phase: Phase, reset: Reset = "earliest") -> Consumer:
        """A consumer whose fetches are poll operations of `process`. In the final phase they are large, however small
        those of other clients: final reads have a limited time for all logs."""
        settings = self._settings
        return Consumer(
            client,
            fetch_wait_s_max=settings.fetch_wait_ms_max / 1000,
            fetch_bytes_max=max(settings.fetch_bytes_max, _FINAL_FETCH_BYTES if phase == "final" else 0),
            on_fetch=self._fetch_recorder(process, phase),
            reset=reset,
            read_committed=settings.read_committed,
            rules=ConsumerRules().without(settings.consumer_rules_off),
            tell_epochs=settings.tell_epochs,
            on_truncation=self._truncation_recorder(process, phase),
        )

    def _tailing_consumer(self, process: int, name: str) -> ReadingClient:
        """As `_consumer`, of the library."""
        if self._library is None:
            return self._consumer(process, name, "main")
        recorders = self._fetch_recorder(process, "main"), self._truncation_recorder(process, "main")
        consumer = self._closed_later(self._library.consumer(name, *recorders))
        consumer.assign([(self._settings.topic, partition) for partition in self._partitions])
        return consumer

    def _reader(self, name: str) -> ReadingClient:
        """A consumer that is asked for ends of logs alone."""
        if self._library is not None:
            return self._closed_later(self._library.consumer(name))
        return self._closed_later(Consumer(self._client(name)))

    def _fetch_recorder(self, process: int, phase: Phase) -> Callable[[str, int, int], int]:
        """Records that `process` polls a partition."""

        def invoke(topic: str, partition: int, position: int) -> int:
            return self._recorder.invoke(process, "poll", topic, partition, phase=phase, offset=position)

        return invoke

    def _truncation_recorder(self, process: int, phase: Phase) -> Callable[[str, int, Truncation], None]:
        """Records where `process` reads on after a truncation."""

        def record(topic: str, partition: int, truncation: Truncation) -> None:
            offset = None if truncation.divergence is None else truncation.divergence.offset
            index = self._recorder.invoke(process, "reset", topic, partition, phase=phase, offset=offset)
            self._recorder.complete(index, "ok")

        return record

    async def _polled(self, consumer: ReadingClient, fetched: CompletedFetch) -> None:
        """Record one answer, and leave an offset that is out of range."""
        if fetched.error is not None:
            self._recorder.complete(fetched.token, "fail", error=fetched.error)
            if fetched.error == OUT_OF_RANGE and self._settings.auto_offset_reset == "earliest":
                await consumer.return_to_log(fetched.topic, fetched.partition)
        elif fetched.records or (self._settings.record_empty_polls and fetched.high_watermark == fetched.position):
            self._recorder.complete(
                fetched.token,
                "ok",
                leader_epoch=fetched.leader_epoch,
                offsets=[record.offset for record in fetched.records],
                values=[
                    int(record.value) if record.value and record.value.isdigit() else None  # not written here
                    for record in fetched.records
                ],
            )
        else:
            self._recorder.discard(fetched.token)

    # the script

    def _scripted_client(self) -> ScriptedClient:
        process = self._final_process + 1
        producers: dict[str | None, tuple[int, AppendingClient]] = {None: (process, self._native_producer("script"))}

        async def append(partition: int, name: str | None) -> None:
            if name not in producers:
                producers[name] = (self._later_process(), self._native_producer(f"script-{name}"))
            await self._append(*producers[name], partition)

        return ScriptedClient(
            process,
            self._settings,
            self._recorder,
            append,
            lambda partition: self._consumer(process, f"script-{partition}", "main", [partition]),
            self._polled,
            AdminClient(self._client("script-admin")),
        )

    # end offsets

    async def _keep_asking(self, consumer: ReadingClient, process: int, partition: int) -> None:
        random = consumer.client.random
        interval_s = self._settings.end_offset_interval_s
        await asyncio.sleep(random.uniform(0, interval_s))
        while True:
            await self._end(consumer, process, "main", partition)
            await asyncio.sleep(interval_s * random.uniform(0.5, 1.5))

    async def _end(self, consumer: ReadingClient, process: int, phase: Phase, partition: int) -> int:
        """The end of a partition, once it is told."""
        return await ask_for_end(self._recorder, consumer, process, phase, self._settings.topic, partition)

    def _closed_later(self, user: T) -> T:
        self._closing.append(user)
        return user

    def _client(self, name: str) -> Client:
        settings = self._settings
        client = Client(
            settings.bootstrap,
            name,
            self._stream(f"append/client/{name}"),
            settings.timeouts,
            negotiate_versions=settings.negotiate_versions,
        )
        self._clients.append(client)
        return client


async def _close_behind(producer: ClosableClient, appends: Sequence[asyncio.Task[None]]) -> None:
    """Close a producer once its appends have ended."""
    if appends:
        await asyncio.wait(appends)
    await producer.close()
