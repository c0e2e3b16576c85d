"""A client of a cluster: its connections, its metadata cache, and requests to any broker that answers.

One `Client` serves one producer, consumer, reader or administrator, as in Kafka, since a broker answers the requests
of one connection strictly in turn: a fetch that waits for records holds up whatever is sent behind it. For the same
reason a client asks for metadata, producer ids and topics over connections of their own (`ask_any`), apart from the
one to each leader (`connection`).

No call here retries for ever, and none decides the outcome of an operation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic

from images.wire.connection import CallTimeout, Connection, ConnectionLost
from images.wire.negotiation import NegotiatedConnection
from workloads.clients.metadata_cache import MetadataCache


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTimeouts:
    """Timeouts and backoff of a client; every request has a timeout."""

    request_timeout_s: float = 1.5
    connect_timeout_s: float = 1.0
    backoff_s: float = 0.05
    """First pause before something is tried again; doubles up to `backoff_s_max`."""
    backoff_s_max: float = 0.5
    metadata_age_s_max: float = 5.0
    """Age at which metadata is refreshed without another reason."""


class Backoff:
    """Pauses that double, each drawn from the upper half of its range so that clients do not move in step."""

    __slots__ = ("_first_s", "_max_s", "_next_s", "_random")

    def __init__(self, timeouts: ClientTimeouts, random: Random) -> None:
        self._first_s = self._next_s = timeouts.backoff_s
        self._max_s = timeouts.backoff_s_max
        self._random = random

    def next_s(self) -> float:
        """The next pause in seconds."""
        pause_s = self._next_s * self._random.uniform(0.5, 1.0)
        self._next_s = min(self._next_s * 2, self._max_s)
        return pause_s

    def reset(self) -> None:
        """After a success: the next pause is the first one again."""
        self._next_s = self._first_s


def error_name(code: int) -> str:
    """Kafka's name of an error code, as histories write it: `NOT_ENOUGH_REPLICAS`."""
    try:
        return ErrorCode(code).name.upper()
    except ValueError:
        return f"ERROR_{code}"


def connection_error_name(lost: ConnectionLost) -> str:
    """The error of a request without answer, as histories write it: `timeout` or `connection`."""
    return "timeout" if isinstance(lost, CallTimeout) else "connection"


async def cancel_all(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel the tasks and wait until they have ended, however they end.

    Tasks that are done already are left out: before Python 3.12 `asyncio.gather` spends a callback on each of them, so
    that the order of callbacks, and with it the digest of a simulation, would depend on Python's version.
    """
    pending = [task for task in tasks if not task.done()]
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)


class Client:
    """Connections to the brokers of one cluster, and the metadata they answered with."""

    def __init__(
        self,
        bootstrap: Sequence[tuple[str, int]],
        client_id: str,
        random: Random,
        timeouts: ClientTimeouts = ClientTimeouts(),
        *,
        negotiate_versions: bool = False,
    ) -> None:
        """With `negotiate_versions` for brokers that may be of another release: connections begin with ApiVersions."""
        if not bootstrap:
            raise ValueError("bootstrap: at least one (host, port) is needed")
        self.timeouts = timeouts
        self.random = random
        self.metadata = MetadataCache()
        self._bootstrap = tuple(bootstrap)
        self._client_id = client_id
        self._open = NegotiatedConnection.open if negotiate_versions else Connection.open
        self._topics: list[str] = []
        self._turn = random.randrange(1 << 16)
        self._connections: dict[tuple[str, str, int], Connection] = {}
        self._opening: dict[tuple[str, str, int], asyncio.Lock] = {}
        self._refreshing: asyncio.Task[bool] | None = None
        self._closed = False

    def track_topic(self, topic: str) -> None:
        """Ask for `topic` in every refresh from now on."""
        if topic not in self._topics:
            self._topics.append(topic)

    async def refresh(self) -> bool:
        """Ask the next broker in turn for metadata, and the others if it does not answer. False if none did.

        Each refresh begins at another broker, so that a broker cut off from its controller does not keep a client's
        metadata old. Callers that come while one is under way share its result.
        """
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh())
        return await asyncio.shield(self._refreshing)

    def refresh_soon(self) -> None:
        """Begin a refresh, unless one is under way, without waiting for it."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh())

    def refresh_if_old(self) -> None:
        """Begin a refresh when the last answer is older than `metadata_age_s_max`."""
        now_s = asyncio.get_running_loop().time()
        if self.metadata.updated_s is None or now_s - self.metadata.updated_s > self.timeouts.metadata_age_s_max:
            self.refresh_soon()

    async def connection(self, broker: int) -> Connection:
        """An open connection to a broker, one that is kept. Raises ConnectionLost, nothing sent."""
        address = self.metadata.addresses.get(broker)
        if address is None:
            raise ConnectionLost(f"the address of broker {broker} is not known", sent=False)
        return await self._connection("leader", *address)

    async def connection_to(self, purpose: str, host: str, port: int) -> Connection:
        """An open connection to an address, kept for `purpose` alone. Raises ConnectionLost, nothing sent."""
        return await self._connection(purpose, host, port)

    async def ask_next(self, request: Any) -> Any:
        """The answer of the next broker in turn. Raises ConnectionLost."""
        addresses = self._addresses()
        self._turn += 1
        host, port = addresses[self._turn % len(addresses)]
        connection = await self._connection("any", host, port)
        return await connection.call(request, self.timeouts.request_timeout_s)

    async def ask_any(self, request: Any) -> Any:
        """The answer of the first broker that gives one, beginning with the next in turn.

        For requests that may be sent twice. Raises ConnectionLost when no broker answered.
        """
        for remaining in range(len(self._addresses()) - 1, -1, -1):
            try:
                return await self.ask_next(request)
            except ConnectionLost:
                if remaining == 0:
                    raise
        raise AssertionError("a client knows at least one broker")

    @staticmethod
    def metadata_request(topics: Sequence[str]) -> MetadataRequest:
        """A Metadata request for these topics, which it does not create."""
        return MetadataRequest(
            topics=tuple(MetadataRequestTopic(topic_id=None, name=name) for name in topics),
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )

    async def close(self) -> None:
        """Close every connection; no request can be sent any more. May be called twice."""
        self._closed = True
        if self._refreshing is not None:
            await cancel_all([self._refreshing])
        for connection in self._connections.values():
            connection.close()

    def _addresses(self) -> list[tuple[str, int]]:
        known = [self.metadata.addresses[broker] for broker in sorted(self.metadata.addresses)]
        return known + [address for address in self._bootstrap if address not in known]

    async def _refresh(self) -> bool:
        try:
            response = await self.ask_any(self.metadata_request(self._topics))
        except ConnectionLost:
            return False
        self.metadata.update(response, asyncio.get_running_loop().time())
        return True

    async def _connection(self, purpose: str, host: str, port: int) -> Connection:
        if self._closed:
            raise ConnectionLost("this client is closed", sent=False)
        key = (purpose, host, port)
        connection = self._connections.get(key)
        if connection is not None and not connection.closed:
            return connection
        async with self._opening.setdefault(key, asyncio.Lock()):
            connection = self._connections.get(key)
            if connection is None or connection.closed:
                connection = await self._open(host, port, self._client_id, self.timeouts.connect_timeout_s)
                if self._closed:
                    connection.close()
                    raise ConnectionLost("this client is closed", sent=False)
                self._connections[key] = connection
            return connection
