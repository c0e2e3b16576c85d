"""A Kafka server: accepts connections, passes requests to handlers, sends responses in order.

A handler takes a `Request`, whose body is in the canonical version of its API whichever version the client used, and
returns the canonical response, or None for a request without a response (acks=0). The server translates both and
answers ApiVersions itself.

- One request of a connection is handled at a time, in order; a connection with too many queued requests is not read
  until they are handled. Connections do not wait for each other.
- Requests received completely before the client closed are still handled, up to the first whose response cannot be
  given, as in Kafka: who connects again does not expect what was queued behind that to be done seconds later.
- The connection of a client that sends garbage, too large a frame, or an API or version that is not served is closed,
  with one line in the log, after its earlier requests are answered. (ApiVersions in an unknown version is answered in
  version 0 with UNSUPPORTED_VERSION, 35, as in KIP-511.)
- If a handler raises, or its response cannot be encoded, the client's connection is closed, with one line in the log. A
  handler raises `CloseConnection` to do so on purpose.

Only `close` cancels handlers.
"""

from __future__ import annotations

import asyncio
import re
from asyncio import AbstractEventLoop, AbstractServer, Future, Task
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from pathlib import PurePath
from typing import Any, Generic, NamedTuple, TypeVar, cast

from kio.schema.errors import ErrorCode

from images.wire.codec import Malformed
from images.wire.connection import MAX_FRAME_BYTES, FrameDecoder
from images.wire.messages import (
    CANONICAL,
    SUPPORTED,
    Api,
    ParsedHeader,
    RequestDecoder,
    encode_response,
    read_request_header,
    response_class,
)
from images.wire.schema import Entity
from images.wire.versions import Names, api_versions, from_canonical, to_canonical

__all__ = ["CloseConnection", "Handler", "Request", "Server"]

Body = TypeVar("Body")

_SOFTWARE_SINCE = 3
"""The first version of ApiVersions with the name and version of the client (KIP-511)."""
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")
_QUEUED_REQUESTS_MAX = 64
"""Queued requests of one connection beyond which it is not read."""


class CloseConnection(Exception):
    """A handler has no response and closes the client's connection; the message is one line."""


class Request(NamedTuple, Generic[Body]):
    """One request as a handler sees it; `Body` is the canonical request class of its API."""

    api: Api
    version: int
    """The version of the request on the wire; `body` is canonical."""
    client_id: str | None
    connection: int
    """Number of the connection, counted from 1."""
    body: Body
    names: Names
    """Topics of a Fetch by name, by the id that `body` has for each; the handler adds those of the fetch session."""
    client_host: str = ""
    """Address of the client in Kafka's form: `/127.0.0.1`."""


Handler = Callable[[Request[Any]], Awaitable[Entity | None]]


class _ServedApi(NamedTuple):
    """Handler, versions and response class of one API."""

    api: Api
    handler: Handler
    versions: range
    answer: type


class Server:
    """Serves ApiVersions and the APIs that have handlers, on one address."""

    def __init__(
        self,
        handlers: Mapping[Api, Handler],
        *,
        log: Callable[[str], None],
        max_frame_bytes: int = MAX_FRAME_BYTES,
    ) -> None:
        handlers = {**handlers, Api.API_VERSIONS: self._api_versions}
        self._served = {
            int(api): _ServedApi(api, handler, SUPPORTED[api], response_class(api)) for api, handler in handlers.items()
        }
        self.log = log
        self._max_frame_bytes = max_frame_bytes
        self._listener: AbstractServer | None = None
        self._client_connections: dict[int, _ClientConnection] = {}
        self._connections_accepted = 0
        self._versions = api_versions(handlers)
        self.closed = False

    async def start(self, host: str, port: int) -> None:
        """Listen on an address (port 0: any free one, see `port`). Raises OSError."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(lambda: _ClientConnection(self, loop), host, port)

    @property
    def port(self) -> int:
        """The listening port."""
        sockets = cast(Any, self._listener).sockets
        return int(sockets[0].getsockname()[1])

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._client_connections)

    async def close(self) -> None:
        """Stop listening, cancel running handlers, close all connections; returns once they have ended."""
        self.closed = True
        if self._listener is not None:
            self._listener.close()
        working = [client_connection.stop() for client_connection in self._client_connections.values()]
        # Before Python 3.12 `gather` spends a callback on a task that is done; callbacks are the same in every version.
        await asyncio.gather(*(task for task in working if not task.done()), return_exceptions=True)
        self._client_connections.clear()

    def add_connection(self, client_connection: _ClientConnection) -> int:
        """Add a connection; returns its number."""
        self._connections_accepted += 1
        self._client_connections[self._connections_accepted] = client_connection
        return self._connections_accepted

    def remove_connection(self, number: int) -> None:
        """Remove a connection that has ended."""
        self._client_connections.pop(number, None)

    async def _api_versions(self, request: Request[Any]) -> Entity:
        """The served APIs; INVALID_REQUEST for a client whose name or version Kafka's metrics could not show."""
        software = (request.body.client_software_name, request.body.client_software_version)
        if request.version >= _SOFTWARE_SINCE and not all(map(_SOFTWARE.fullmatch, software)):
            return response_class(Api.API_VERSIONS)(
                error_code=ErrorCode.invalid_request, api_keys=(), throttle_time=timedelta(0)
            )
        return response_class(Api.API_VERSIONS)(
            error_code=ErrorCode.none, api_keys=self._versions, throttle_time=timedelta(0)
        )

    def _refuse_versions(self, head: ParsedHeader) -> bytes:
        """The response to ApiVersions in an unknown version."""
        refusal = response_class(Api.API_VERSIONS)(
            error_code=ErrorCode.unsupported_version,
            api_keys=api_versions({}),
            throttle_time=timedelta(0),
        )
        return encode_response(from_canonical(Api.API_VERSIONS, 0, refusal, {}), head.correlation_id)

    async def answer(self, frame: bytes, connection: int, host: str, requests: RequestDecoder) -> bytes | None:
        """The response frame for a request frame; None if the request wants no response. Raises Malformed."""
        head = read_request_header(frame)
        served = self._served.get(head.api_key)
        if served is None:
            raise Malformed(_not_served(head.api_key))
        api = served.api
        if head.version not in served.versions:
            if api is Api.API_VERSIONS:
                return self._refuse_versions(head)
            raise Malformed(f"{api.name} v{head.version} is not supported")
        message = requests.decode(frame, head)
        body, names = to_canonical(api, head.version, message)
        answer = await served.handler(Request(api, head.version, head.client_id, connection, body, names, host))
        if answer is None:
            return None
        if type(answer) is not served.answer:
            raise TypeError(f"{type(answer).__name__} is no answer to {api.name} v{CANONICAL[api]}")
        return encode_response(from_canonical(api, head.version, answer, names), head.correlation_id)


class _ClientConnection(asyncio.Protocol):
    """One accepted connection. Its task handles requests in order; the protocol's callbacks only queue and wake it."""

    def __init__(self, server: Server, loop: AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop
        self._transport = cast(asyncio.Transport, None)
        self._task = cast("Task[None]", None)
        self._number = 0
        self._host = ""
        self._frames = FrameDecoder(server._max_frame_bytes)
        self._requests = RequestDecoder()
        self._queue: deque[bytes] = deque()
        self._wakeup: Future[None] | None = None
        self._gone = False
        """The connection has ended or is closing: nothing more is read, and no response is given."""
        self._writable = True
        self._reading = True

    def stop(self) -> Task[None]:
        """Abort the connection and cancel its running handler."""
        self._transport.abort()
        self._task.cancel()
        return self._task

    async def _serve(self) -> None:
        try:
            while True:
                if self._queue and (self._writable or self._gone):
                    frame = self._queue.popleft()
                    if not self._reading and not self._gone and len(self._queue) < _QUEUED_REQUESTS_MAX:
                        self._reading = True
                        self._transport.resume_reading()
                    answer = await self._server.answer(frame, self._number, self._host, self._requests)
                    if answer is not None:
                        if self._gone:
                            return
                        self._transport.write(answer)
                elif self._queue or not (self._gone or self._frames.broken):
                    self._wakeup = self._loop.create_future()
                    await self._wakeup
                    self._wakeup = None
                elif self._frames.broken:
                    raise Malformed(self._frames.broken)
                else:
                    return
        except asyncio.CancelledError:
            if self._wakeup is None and not self._server.closed:
                self._close("a handler was cancelled")
            raise
        except (Malformed, CloseConnection) as error:
            self._close(str(error))
        except Exception as error:
            self._close(f"a handler failed: {_one_line(error)}")
        finally:
            self._server.remove_connection(self._number)

    def _close(self, reason: str) -> None:
        self._log(f"closing, {reason}")
        self._gone = True
        self._transport.close()

    def _log(self, what: str) -> None:
        self._server.log(f"connection {self._number} from {self._host.removeprefix('/') or 'nowhere'}: {what}")

    def _wake(self) -> None:
        idle = self._wakeup
        if idle is not None and not idle.done():
            idle.set_result(None)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._server.closed:
            self._transport.abort()
            return
        client_connection = transport.get_extra_info("peername")
        self._host = f"/{client_connection[0]}" if client_connection else ""
        self._number = self._server.add_connection(self)
        self._task = self._loop.create_task(self._serve())

    def data_received(self, data: bytes) -> None:
        self._queue.extend(self._frames.feed(data))
        if self._reading and (len(self._queue) >= _QUEUED_REQUESTS_MAX or self._frames.broken):
            self._reading = False
            self._transport.pause_reading()
        if self._queue or self._frames.broken:
            self._wake()

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._frames.partial and not (self._gone or self._server.closed):
            self._log(f"closed by the client after {self._frames.partial} bytes of a request")
        self._gone = True
        self._wake()


def _not_served(api_key: int) -> str:
    try:
        return f"{Api(api_key).name} is not served here"
    except ValueError:
        return f"unknown API {api_key}"


def _one_line(error: BaseException) -> str:
    """An exception in one line, with file and line number."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = "" if trace is None else f" ({PurePath(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno})"
    return " ".join(f"{type(error).__name__}: {error}{place}".split())
