"""The client side of the wire: everything of `messages`, splitting a stream into frames, one client connection.

A `Connection` pipelines: requests are written at once and answered in the order they were sent, as Kafka guarantees.
Guarantees:

- A call returns its own response or raises. A response whose correlation id is not that of the oldest pending call
  closes the connection and is not delivered.
- A call that times out closes the connection, so that its late response cannot arrive.
- Every failure is a `ConnectionLost`; its `sent` is False only if no byte of the request left this process.
- Cancelling a call keeps the connection usable: the response is read and dropped. If it does not arrive within the
  call's timeout, the connection is closed.
"""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop, Future, TimerHandle
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Self, cast

from images.wire.codec import Malformed
from images.wire.messages import (
    CANONICAL,
    SUPPORTED,
    Api,
    ParsedHeader,
    RequestEncoder,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    read_request_header,
    request_class,
    response_class,
    response_class_of,
)
from images.wire.schema import Entity, convert

__all__ = [
    "CANONICAL",
    "MAX_FRAME_BYTES",
    "SUPPORTED",
    "Api",
    "CallTimeout",
    "Connection",
    "ConnectionLost",
    "Entity",
    "FrameDecoder",
    "ParsedHeader",
    "Malformed",
    "convert",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
    "read_request_header",
    "request_class",
    "response_class",
    "response_class_of",
]

MAX_FRAME_BYTES = 100 * 1024 * 1024
"""Kafka's default for `socket.request.max.bytes`."""


class ConnectionLost(Exception):
    """The connection failed before the response. `sent` is False only if the request certainly never left."""

    def __init__(self, reason: str, *, sent: bool = True) -> None:
        super().__init__(reason)
        self.sent = sent


class CallTimeout(ConnectionLost):
    """No response in time. The connection is closed, so that a late response is not taken for another's."""


class FrameDecoder:
    """Splits a byte stream into frames.

    `feed` returns complete frames, length prefix included. After an invalid length `broken` gives the reason, and all
    later bytes are ignored, since the position of the next frame is unknown.
    """

    __slots__ = ("_chunks", "_limit", "_need", "broken", "partial")

    def __init__(self, limit: int = MAX_FRAME_BYTES) -> None:
        self.broken: str | None = None
        self.partial = 0
        """Bytes received of an incomplete frame."""
        self._limit = limit
        self._chunks: list[bytes] = []
        self._need = 4

    def feed(self, data: bytes) -> Sequence[bytes]:
        """The frames completed by `data`, in order."""
        if self.broken is not None:
            return ()
        have = len(data)
        if self.partial:
            self._chunks.append(data)
            self.partial += have
            if self.partial < self._need:
                return ()
            data = b"".join(self._chunks)
            self._chunks.clear()
            have = self.partial
        elif have > 4 and int.from_bytes(data[:4]) == have - 4 <= self._limit:
            return (data,)  # by far the usual case: exactly one frame, handed on without copying it
        frames: list[bytes] = []
        start = 0
        self._need = 4
        while have - start >= 4:
            length = int.from_bytes(data[start : start + 4], signed=True)
            if not 0 < length <= self._limit:
                self.broken = f"a frame of {length} bytes; at most {self._limit} are taken"
                self.partial = 0
                return frames
            end = start + 4 + length
            if end > have:
                self._need = end - start
                break
            frames.append(data[start:end])
            start = end
        self.partial = have - start
        if self.partial:
            self._chunks.append(data[start:])
        return frames


class _PendingCall(NamedTuple):
    correlation_id: int
    answer: type
    future: Future[Entity]
    deadline: float
    timeout: float


class Connection(asyncio.Protocol):
    """One connection to a broker or controller. Created by `open`."""

    def __init__(self, loop: AbstractEventLoop, peer: str, client_id: str | None) -> None:
        self._loop = loop
        self._peer = peer
        self._requests = RequestEncoder(client_id)
        self._transport: asyncio.Transport | None = None
        self._frames = FrameDecoder()
        self._pending_calls: deque[_PendingCall] = deque()
        self._timer: TimerHandle | None = None
        """Set for the earliest deadline or before it; one timer serves all calls, and most calls end before it fires.
        """
        self._next_correlation_id = 0
        self._disconnect_reason: str | None = None

    @classmethod
    async def open(cls, host: str, port: int, client_id: str | None, connect_timeout: float) -> Self:
        """Connect within `connect_timeout` seconds. Raises ConnectionLost or CallTimeout, `sent` False."""
        loop = asyncio.get_running_loop()
        connection = cls(loop, f"{host}:{port}", client_id)
        try:
            async with asyncio.timeout(connect_timeout):
                await loop.create_connection(lambda: connection, host, port)
        except asyncio.CancelledError:
            connection._disconnect("gave up connecting")
            raise
        except TimeoutError as error:
            connection._disconnect("gave up connecting")
            raise CallTimeout(f"{host}:{port}: no connection in {connect_timeout} s", sent=False) from error
        except (OSError, ValueError) as error:  # ValueError: nothing that could be the name of a host
            connection._disconnect("could not connect")
            raise ConnectionLost(f"{host}:{port}: {error}", sent=False) from error
        return connection

    @property
    def closed(self) -> bool:
        """Whether the connection is closed."""
        return self._disconnect_reason is not None

    async def call(self, request: Entity, timeout: float) -> Entity:
        """Send `request` and return its response, an instance of the response class of the same API and version.

        Raises CallTimeout after `timeout` seconds, having closed the connection; ConnectionLost if the connection
        breaks.
        """
        answer = response_class_of(type(request))
        loop = self._loop
        future: Future[Entity] = loop.create_future()
        correlation_id = self._write(request)
        deadline = loop.time() + timeout
        self._pending_calls.append(_PendingCall(correlation_id, answer, future, deadline, timeout))
        if self._timer is None or deadline < self._timer.when():
            self._set_timer(deadline)
        return await future

    def send_only(self, request: Entity) -> None:
        """Send a request that has no response (Produce with acks=0). Raises ConnectionLost if already closed."""
        self._write(request)

    def close(self) -> None:
        """Close after everything written is sent; pending calls raise ConnectionLost."""
        self._disconnect("closed by this client", abort=False)

    def _write(self, request: Entity) -> int:
        transport = self._transport
        if self._disconnect_reason is not None or transport is None:
            raise ConnectionLost(f"{self._peer}: {self._disconnect_reason or 'not connected'}", sent=False)
        correlation_id = self._next_correlation_id
        frame = self._requests.encode(request, correlation_id)
        self._next_correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        transport.write(frame)
        return correlation_id

    def _set_timer(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._check_deadlines)

    def _check_deadlines(self) -> None:
        self._timer = None
        if not self._pending_calls:
            return
        earliest = min(call.deadline for call in self._pending_calls)
        now = self._loop.time()
        if now < earliest:
            self._set_timer(earliest)
            return
        for call in self._pending_calls:
            if call.deadline <= now and not call.future.done():
                call.future.set_exception(CallTimeout(f"{self._peer}: no answer in {call.timeout} s"))
        self._disconnect("closed since another call was not answered in time")

    def _disconnect(self, reason: str, *, abort: bool = True) -> None:
        if self._disconnect_reason is not None:
            return
        self._disconnect_reason = reason
        if self._transport is not None:
            if abort:
                self._transport.abort()
            else:
                self._transport.close()
        if self._timer is not None:
            self._timer.cancel()
        for call in self._pending_calls:
            if not call.future.done():
                call.future.set_exception(ConnectionLost(f"{self._peer}: {reason}"))
        self._pending_calls.clear()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._disconnect_reason is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._disconnect_reason is not None:
            return
        try:
            for frame in self._frames.feed(data):
                if not self._pending_calls:
                    raise Malformed("a response without a request")
                oldest = self._pending_calls[0]
                correlation_id, payload = decode_response(oldest.answer, frame)
                if correlation_id != oldest.correlation_id:
                    raise Malformed(f"an answer to request {correlation_id}, expected {oldest.correlation_id}")
                self._pending_calls.popleft()
                if not oldest.future.done():
                    oldest.future.set_result(payload)
            if self._frames.broken is not None:
                raise Malformed(self._frames.broken)
        except Malformed as error:
            self._disconnect(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        self._disconnect("connection closed by the peer" if exc is None else str(exc) or type(exc).__name__)
