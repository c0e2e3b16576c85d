"""A client library other than the native one, as a workload sees it: makers of producers and consumers.

Its clients run in processes of their own, so they need real sockets and never run in simulation. They record the same
history as the native ones, and answer with the same values: `Delivery`, `CompletedFetch`, `OffsetAnswer`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

from workloads.clients.completed_fetch import CompletedFetch
from workloads.clients.connections import ClientTimeouts
from workloads.clients.delivery import Delivery
from workloads.clients.offsets import OffsetAnswer
from workloads.clients.positions import Truncation


class LibraryError(Exception):
    """The clients of a library could not be started; the message is one line."""


class ClosableClient(Protocol):
    """A client that can be closed."""

    async def close(self) -> None:
        """Give up everything at once. May be called twice."""


class AppendingClient(ClosableClient, Protocol):
    """An idempotent producer of one topic."""

    async def append(self, partition: int, value: bytes) -> Delivery:
        """Append one record, behind every record appended before."""


class BurstAppendingClient(ClosableClient, Protocol):
    """As `AppendingClient`, for several records at once: a task and a write for each of them would take longer than the
    library."""

    async def append(
        self, partition: int, values: Sequence[bytes], on_delivery: Callable[[Sequence[tuple[int, Delivery]]], None]
    ) -> None:
        """Append records in their order, behind every record appended before. `on_delivery` is told the outcomes, with
        the place of each in `values`, as soon as they are known; returns when all are."""


class ConnectedClient(ClosableClient, Protocol):
    """The part of a client below its producer or consumer."""

    @property
    def timeouts(self) -> ClientTimeouts:
        """The pauses of whoever asks again."""

    @property
    def random(self) -> Random:
        """The source of the jitter of these pauses."""


class ReadingClient(ClosableClient, Protocol):
    """A consumer of partitions assigned to it."""

    @property
    def client(self) -> ConnectedClient:
        """The client below it."""

    def assign(self, partitions: Sequence[tuple[str, int]]) -> None:
        """Read these (topic, partition) from their start."""

    async def poll(self, timeout_s: float) -> list[CompletedFetch]:
        """The answers, as soon as there is one. Raises OffsetOutOfRangeError as `workloads.clients.consumer` does."""

    async def end_offset(self, topic: str, partition: int) -> OffsetAnswer:
        """Ask once for the end of the log that consumers may see."""

    async def return_to_log(self, topic: str, partition: int) -> bool:
        """After OFFSET_OUT_OF_RANGE: move the position to the nearest offset that the log has; False when that is not
        known."""


class ClientLibrary(Protocol):
    """Makes clients, which end with it at the latest."""

    async def start(self) -> None:
        """Start the processes of the clients. Raises LibraryError."""

    def producer(self, name: str) -> BurstAppendingClient:
        """A producer called `name`."""

    def consumer(
        self,
        name: str,
        on_fetch: Callable[[str, int, int], int] = lambda _topic, _partition, _position: -1,
        on_truncation: Callable[[str, int, Truncation], None] = lambda _topic, _partition, _truncation: None,
    ) -> ReadingClient:
        """A consumer called `name`; both functions are those of `workloads.clients.consumer.Consumer`."""

    async def close(self) -> None:
        """End the processes. May be called twice."""
