"""Producers and consumers of a library, driven in processes of their own; implements `workloads.clients.library`.

Outcomes claim no more than is known. A library tells how its last attempt ended, not whether an earlier one was lost
after it had been appended; so an error after the library took a record is `info`, whatever its name. It is `fail` when
the library refused the record before it took it, which then never left the process.

A poll is invoked when the library is asked and completed when its answer is read. Libraries fetch ahead: records may
have come earlier, and no poll proves where the log ends. No consumer resets a position by itself: a position that is
out of range, or below which the log was truncated, is an error of the library, upon which the position moves here, by
`auto_offset_reset`, where the history has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import cycle
from random import Random
from typing import Any, Final

from harness.runner.client_processes.client_process import Answer, ClientProcess, SentRecords
from harness.runner.client_processes.properties import PROPERTIES
from workloads.clients.library import LibraryError
from workloads.clients.native import (
    ClientTimeouts,
    CompletedFetch,
    ConsumerRecord,
    Delivery,
    LogTruncationError,
    OffsetAndEpoch,
    OffsetAnswer,
    OffsetOutOfRangeError,
    Truncation,
)
from workloads.history import OUT_OF_RANGE
from workloads.workload import WorkloadSettings

_UNKNOWN: Final = -1
_POLL_S_MAX: Final = 0.5
"""A client's commands wait for the one before."""
_CLOSE_LIMIT_S: Final = 10.0
_GIVE_UP_FACTOR: Final = 3
"""Delivery timeouts after which an append counts as given up although the library has not said so; it has one for the
metadata, and another one once it has taken the record."""


class DrivenLibrary:
    """The clients of one library for one run."""

    def __init__(
        self,
        library: str,
        argv: Sequence[str],
        settings: WorkloadSettings,
        stream: Callable[[str], Random],
        processes: int = 1,
    ) -> None:
        self._library = library
        self._settings = settings
        self._stream = stream
        self._processes = [ClientProcess(library, argv) for _ in range(processes)]
        self._turn = cycle(self._processes)

    async def start(self) -> None:
        """See `ClientLibrary`."""
        await asyncio.gather(*(process.start() for process in self._processes))

    def producer(self, name: str) -> DrivenProducer:
        """See `ClientLibrary`."""
        return DrivenProducer(self._open(name, "producer"), self._settings)

    def consumer(
        self,
        name: str,
        on_fetch: Callable[[str, int, int], int] = lambda _topic, _partition, _position: _UNKNOWN,
        on_truncation: Callable[[str, int, Truncation], None] = lambda _topic, _partition, _truncation: None,
    ) -> DrivenConsumer:
        """See `ClientLibrary`."""
        return DrivenConsumer(self._open(name, "consumer"), self._settings, on_fetch, on_truncation)

    async def close(self) -> None:
        """See `ClientLibrary`."""
        await asyncio.gather(*(process.close() for process in self._processes))

    def _open(self, name: str, kind: str) -> DrivenClient:
        properties = PROPERTIES[self._library, kind](self._settings, name)
        client = DrivenClient(name, next(self._turn), self._settings, self._stream(f"library/client/{name}"))
        client.post({"do": "open", "kind": kind, "topic": self._settings.topic, "properties": properties})
        return client


class DrivenClient:
    """One client in its process."""

    def __init__(self, name: str, process: ClientProcess, settings: WorkloadSettings, random: Random) -> None:
        self.name = name
        self.random = random
        self.timeouts = ClientTimeouts(
            request_timeout_s=settings.request_timeout_ms / 1000,
            backoff_s=settings.retry_backoff_ms / 1000,
            backoff_s_max=settings.retry_backoff_ms_max / 1000,
        )
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._open: set[Answer] = set()
        self._sent: set[SentRecords] = set()
        self._closed = False

    def post(self, command: Mapping[str, Any]) -> None:
        """Send a command without an answer."""
        self._process.post({**command, "client": self.name})

    async def ask(self, command: Mapping[str, Any]) -> dict[str, Any] | None:
        """The answer to a command; None when the client is closed before. Raises LibraryError."""
        if self._closed:
            return None
        answer = self._process.ask({**command, "client": self.name})
        self._open.add(answer)
        try:
            await self._process.drain()
            return await answer
        finally:
            self._open.discard(answer)

    async def append(self, partition: int, values: Sequence[bytes], records: SentRecords, limit_s: float) -> None:
        """Send records, and wait until they have ended: with an answer, after `limit_s`, or when the client is closed.
        Raises LibraryError."""
        if self._closed:
            records.give_up("closed")
            return
        self._process.append(self.name, partition, [value.decode() for value in values], records)
        self._sent.add(records)
        expiry = self._loop.call_later(limit_s, records.give_up, "timeout")
        try:
            await records.ended
        finally:
            expiry.cancel()
            self._sent.discard(records)

    async def close(self) -> None:
        """Give up everything that is open, then close the library's client. May be called twice."""
        if self._closed:
            return
        self._closed = True
        for records in self._sent:
            records.give_up("closed")
        for answer in self._open:
            if not answer.done():
                answer.set_result(None)
        with suppress(TimeoutError, LibraryError):  # it ends with its process
            async with asyncio.timeout(_CLOSE_LIMIT_S):
                await self._process.ask({"do": "close", "client": self.name})


class DrivenProducer:
    """Implements `BurstAppendingClient`."""

    def __init__(self, client: DrivenClient, settings: WorkloadSettings) -> None:
        self._client = client
        self._acknowledged = settings.acks != 0
        self._limit_s = _GIVE_UP_FACTOR * settings.delivery_timeout_ms / 1000

    async def append(
        self, partition: int, values: Sequence[bytes], on_delivery: Callable[[Sequence[tuple[int, Delivery]]], None]
    ) -> None:
        """See `BurstAppendingClient`."""

        def deliver(places: Sequence[int], answer: Mapping[str, Any]) -> None:
            on_delivery([(place, self._delivery(answer, number)) for number, place in enumerate(places)])

        await self._client.append(partition, values, SentRecords(len(values), deliver), self._limit_s)

    async def close(self) -> None:
        """See `BurstAppendingClient`."""
        await self._client.close()

    def _delivery(self, answer: Mapping[str, Any], number: int) -> Delivery:
        """The outcome of the record that is so far behind the first one of an answer."""
        if "error" in answer:
            return Delivery("info" if answer["taken"] else "fail", error=answer["error"])
        if not self._acknowledged:
            return Delivery("info", error="no acknowledgement")
        return Delivery("ok", None if answer["offset"] is None else answer["offset"] + number)


class DrivenConsumer:
    """Implements `ReadingClient`."""

    def __init__(
        self,
        client: DrivenClient,
        settings: WorkloadSettings,
        on_fetch: Callable[[str, int, int], int],
        on_truncation: Callable[[str, int, Truncation], None],
    ) -> None:
        self.client = client
        self._topic = settings.topic
        self._reset = settings.auto_offset_reset
        self._ask_ms = settings.request_timeout_ms
        self._on_fetch = on_fetch
        self._on_truncation = on_truncation
        self._positions: dict[int, int] = {}
        self._unreset: set[int] = set()
        """Partitions whose position is to be reset to an end of the log."""
        self._stuck: OffsetOutOfRangeError | None = None

    def assign(self, partitions: Sequence[tuple[str, int]]) -> None:
        """See `ReadingClient`."""
        self._positions = {partition: 0 for _, partition in partitions}
        self.client.post({"do": "assign", "partitions": list(self._positions)})

    async def poll(self, timeout_s: float) -> list[CompletedFetch]:
        """See `ReadingClient`."""
        if self._stuck is not None:
            raise self._stuck
        for partition in sorted(self._unreset):
            await self._reset_by_policy(partition)
        tokens = {partition: self._invoke(partition) for partition in self._positions}
        answer = await self.client.ask({"do": "poll", "wait_ms": round(min(timeout_s, _POLL_S_MAX) * 1000)})
        polled = answer["polled"] if answer is not None else ()
        completed = [self._completed(part, tokens) for part in polled if part["partition"] in self._positions]
        return [*completed, *(self._fetch(partition, token) for partition, token in tokens.items())]

    async def end_offset(self, topic: str, partition: int) -> OffsetAnswer:
        """See `ReadingClient`."""
        answer = await self._ends(partition)
        return OffsetAnswer(error=answer["error"]) if "error" in answer else OffsetAnswer(answer["end"])

    async def return_to_log(self, topic: str, partition: int) -> bool:
        """See `ReadingClient`."""
        answer = await self._ends(partition)
        if "error" in answer:
            return False
        self._seek(partition, max(answer["beginning"], min(self._positions[partition], answer["end"])))
        return True

    async def close(self) -> None:
        """See `ReadingClient`."""
        await self.client.close()

    def _invoke(self, partition: int) -> int:
        return self._on_fetch(self._topic, partition, self._positions[partition])

    def _fetch(self, partition: int, token: int) -> CompletedFetch:
        return CompletedFetch(self._topic, partition, self._positions[partition], token=token)

    def _completed(self, part: Mapping[str, Any], tokens: dict[int, int]) -> CompletedFetch:
        """The part of an answer that is about one partition; a second part about it is a poll of its own."""
        partition = part["partition"]
        token = tokens.pop(partition) if partition in tokens else self._invoke(partition)
        fetched = self._fetch(partition, token)
        if "truncated" in part:
            self._truncated(partition, part["offset"], part["epoch"])
            return fetched
        if "error" in part:
            if part["error"] == OUT_OF_RANGE:
                self._out_of_range(partition)
            return fetched._replace(error=part["error"])
        records = tuple(
            ConsumerRecord(offset, _UNKNOWN, _UNKNOWN, None, None if value is None else value.encode())
            for offset, value in zip(part["offsets"], part["values"], strict=True)
        )
        self._positions[partition] = records[-1].offset + 1
        return fetched._replace(records=records, next=OffsetAndEpoch(self._positions[partition]))

    def _truncated(self, partition: int, offset: int | None, epoch: int | None) -> None:
        known = OffsetAndEpoch(offset, _UNKNOWN if epoch is None else epoch) if offset is not None else None
        truncation = Truncation(OffsetAndEpoch(self._positions[partition]), known)
        self._on_truncation(self._topic, partition, truncation)
        if self._reset == "none":
            self._stuck = LogTruncationError({(self._topic, partition): truncation})
        elif known is not None:
            self._seek(partition, known.offset, epoch)
        else:
            self._unreset.add(partition)

    def _out_of_range(self, partition: int) -> None:
        """With `earliest` the workload goes to the nearest offset of the log."""
        if self._reset == "none":
            at = {(self._topic, partition): self._positions[partition]}
            self._stuck = OffsetOutOfRangeError("the log does not have the position", at)
        elif self._reset == "latest":
            self._unreset.add(partition)

    async def _reset_by_policy(self, partition: int) -> None:
        answer = await self._ends(partition)
        if "error" not in answer:
            self._seek(partition, answer["end" if self._reset == "latest" else "beginning"])

    def _seek(self, partition: int, offset: int, epoch: int | None = None) -> None:
        self._unreset.discard(partition)
        self._positions[partition] = offset
        self.client.post({"do": "seek", "partition": partition, "offset": offset, "epoch": epoch})

    async def _ends(self, partition: int) -> dict[str, Any]:
        answer = await self.client.ask({"do": "ends", "partition": partition, "wait_ms": self._ask_ms})
        return answer if answer is not None else {"error": "closed"}
