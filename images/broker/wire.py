"""Kafka's wire protocol: which APIs and versions there are, frames, and one client connection.

A frame is a 4-byte big-endian length, a header and a message. `encode_request` and `encode_response` give whole
frames, length included, and the `decode_` functions take the same. Messages are kio's classes; handlers and native
clients speak one *canonical* version of each API, and the server translates every other supported one.

A `Connection` pipelines: calls are written at once and answered in the order they were sent, as Kafka guarantees.
What can be relied on:

- A call ends with its own answer or raises. An answer whose correlation id is not that of the oldest unanswered
  call ends the connection instead of being delivered to anyone.
- A call that times out closes the connection, so its late answer has nowhere to arrive.
- Whatever goes wrong is a `ConnectionLost`; its `sent` is False only if no byte of the request left this process.
- Giving up on a call (cancelling it) leaves the connection in order: the answer is read and dropped.
"""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop, Future, TimerHandle
from collections import deque
from collections.abc import Mapping, Sequence
from enum import IntEnum
from importlib import import_module
from io import BytesIO
from struct import Struct
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from kio.serial import entity_reader, entity_writer

from images.broker.schema import Entity, convert

__all__ = [
    "CANONICAL",
    "MAX_FRAME_BYTES",
    "SUPPORTED",
    "Api",
    "CallTimeout",
    "Connection",
    "ConnectionLost",
    "Entity",
    "Frames",
    "Head",
    "Malformed",
    "convert",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
    "read_head",
    "request_class",
    "response_class",
    "response_class_of",
]

MAX_FRAME_BYTES = 100 * 1024 * 1024
"""Kafka's default for `socket.request.max.bytes`."""


class Api(IntEnum):
    """The APIs this broker or its controller serves, by Kafka's API key."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    DESCRIBE_CONFIGS = 32
    ALTER_PARTITION = 56
    DESCRIBE_CLUSTER = 60
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    ALLOCATE_PRODUCER_IDS = 67


def _versions(first: int, last: int) -> range:
    return range(first, last + 1)


SUPPORTED: Mapping[Api, range] = MappingProxyType(
    {
        Api.PRODUCE: _versions(3, 11),
        Api.FETCH: _versions(4, 16),
        Api.LIST_OFFSETS: _versions(1, 7),
        Api.METADATA: _versions(0, 12),
        Api.API_VERSIONS: _versions(0, 3),
        Api.CREATE_TOPICS: _versions(2, 7),
        Api.DELETE_TOPICS: _versions(1, 6),
        Api.INIT_PRODUCER_ID: _versions(0, 4),
        Api.OFFSET_FOR_LEADER_EPOCH: _versions(2, 4),
        Api.DESCRIBE_CONFIGS: _versions(1, 4),
        Api.ALTER_PARTITION: _versions(3, 3),
        Api.DESCRIBE_CLUSTER: _versions(0, 1),
        Api.BROKER_REGISTRATION: _versions(3, 3),
        Api.BROKER_HEARTBEAT: _versions(1, 1),
        Api.ALLOCATE_PRODUCER_IDS: _versions(0, 0),
    }
)
"""Every version that is understood."""

CANONICAL: Mapping[Api, int] = MappingProxyType({api: versions[-1] for api, versions in SUPPORTED.items()})
"""The one version that handlers and native clients speak: the newest supported."""


class Malformed(Exception):
    """Bytes that are not the message they should be."""


class ConnectionLost(Exception):
    """The connection failed before the answer came. `sent` is False only if the request certainly never left."""

    def __init__(self, reason: str, *, sent: bool = True) -> None:
        super().__init__(reason)
        self.sent = sent


class CallTimeout(ConnectionLost):
    """No answer in time. The connection is closed, so that no late answer can be taken for another's."""


class Head(NamedTuple):
    """The header of a request. `api_key` and `version` are as asked, known or not."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    end: int
    """Where the fields end that every version has; the message follows, after the tags of a flexible header."""


# -- message classes ---------------------------------------------------------------------------------------------


class _Codec(NamedTuple):
    """What is needed to write and read one message class, looked up once."""

    write: Any
    read: Any
    api_key: int
    version: int
    tagged_header: bool
    """Whether the frame's header ends in a (here always empty) list of tagged fields."""


_codecs: dict[type, _Codec] = {}
_classes: dict[tuple[int, int, str], type] = {}
_answers: dict[type, type] = {}


def request_class(api: Api, version: int | None = None) -> type:
    """kio's request class of an API in `version`, by default the canonical one."""
    return _message_class(api, CANONICAL[api] if version is None else version, "request")


def response_class(api: Api, version: int | None = None) -> type:
    """kio's response class of an API in `version`, by default the canonical one."""
    return _message_class(api, CANONICAL[api] if version is None else version, "response")


def response_class_of(request: type) -> type:
    """The class of the answer to a request class, in the same version."""
    answer = _answers.get(request)
    if answer is None:
        message: Any = request
        answer = _answers[request] = response_class(Api(message.__api_key__), int(message.__version__))
    return answer


def _message_class(api: Api, version: int, kind: str) -> type:
    found = _classes.get((api, version, kind))
    if found is None:
        name = "".join(word.capitalize() for word in api.name.split("_")) + kind.capitalize()
        module = import_module(f"kio.schema.{api.name.lower()}.v{version}.{kind}")
        loaded: type = getattr(module, name)
        found = _classes[api, version, kind] = loaded
    return found


def _codec(message: type) -> _Codec:
    found = _codecs.get(message)
    if found is None:
        kind: Any = message
        # A request header has tags from v2 on, a response header from v1 on.
        tagged = bool(kind.__header_schema__.__flexible__)
        found = _codecs[message] = _Codec(
            entity_writer(message), entity_reader(message), int(kind.__api_key__), int(kind.__version__), tagged
        )
    return found


# -- frames ------------------------------------------------------------------------------------------------------

_LENGTH = Struct(">i")
_REQUEST_HEAD = Struct(">hhih")
_REQUEST = Struct(">ihhi")
_RESPONSE = Struct(">ii")
_RESPONSE_TAGGED = Struct(">iix")
_client_ids: dict[str | None, bytes] = {}


def encode_request(payload: Entity, correlation_id: int, client_id: str | None) -> bytes:
    """The whole frame of a request, its 4-byte length first."""
    codec = _codecs.get(type(payload)) or _codec(type(payload))
    client = _client_ids.get(client_id) or _client_id(client_id)
    message = BytesIO()
    codec.write(message, payload)
    body = message.getvalue()
    tags = b"\0" if codec.tagged_header else b""
    length = 8 + len(client) + len(tags) + len(body)
    return b"".join((_REQUEST.pack(length, codec.api_key, codec.version, correlation_id), client, tags, body))


def encode_response(payload: Entity, correlation_id: int) -> bytes:
    """The whole frame of a response, its 4-byte length first."""
    codec = _codecs.get(type(payload)) or _codec(type(payload))
    message = BytesIO()
    codec.write(message, payload)
    body = message.getvalue()
    if codec.tagged_header:
        return _RESPONSE_TAGGED.pack(5 + len(body), correlation_id) + body
    return _RESPONSE.pack(4 + len(body), correlation_id) + body


def read_head(frame: bytes) -> Head:
    """The header of a request frame, whatever its API. Raises Malformed."""
    if len(frame) < 14:
        raise Malformed(f"a request of {len(frame) - 4} bytes is shorter than its header")
    api_key, version, correlation_id, length = _REQUEST_HEAD.unpack_from(frame, 4)
    end = 14 + max(0, length)
    if length < -1 or end > len(frame):
        raise Malformed(f"a client id of {length} bytes in a request of {len(frame) - 4}")
    try:
        client_id = None if length < 0 else frame[14:end].decode()
    except UnicodeDecodeError as error:
        raise Malformed("the client id is not UTF-8") from error
    return Head(api_key, version, correlation_id, client_id, end)


def decode_request(frame: bytes, head: Head | None = None) -> tuple[Head, Entity]:
    """Header and message of a request frame of a supported API and version. Raises Malformed."""
    if head is None:
        head = read_head(frame)
    try:
        message = _message_class(Api(head.api_key), head.version, "request")
    except (ValueError, ImportError) as error:
        raise Malformed(f"no API {head.api_key} in version {head.version}") from error
    codec = _codecs.get(message) or _codec(message)
    start = head.end
    if codec.tagged_header:
        start = _after_tags(frame, start)
    return head, _read(codec, message, frame, start)


def decode_response(message: type, frame: bytes) -> tuple[int, Entity]:
    """Correlation id and message of a response frame that should hold a `message`. Raises Malformed."""
    if len(frame) < 8:
        raise Malformed(f"a response of {len(frame) - 4} bytes is shorter than its header")
    codec = _codecs.get(message) or _codec(message)
    start = 8
    if codec.tagged_header:
        start = _after_tags(frame, start)
    return _LENGTH.unpack_from(frame, 4)[0], _read(codec, message, frame, start)


def _read(codec: _Codec, message: type, frame: bytes, start: int) -> Entity:
    try:
        payload, size = codec.read(frame, start)
    except Exception as error:  # kio raises its own errors, KeyError for an unknown tag, ValueError for an error code
        raise Malformed(f"not a {message.__name__} v{codec.version}: {error}") from error
    if start + size != len(frame):
        raise Malformed(f"{len(frame) - start - size} bytes too many after a {message.__name__} v{codec.version}")
    return payload


def _client_id(client_id: str | None) -> bytes:
    if client_id is None:
        encoded = b"\xff\xff"
    else:
        text = client_id.encode()
        encoded = len(text).to_bytes(2) + text
    _client_ids[client_id] = encoded
    return encoded


def _after_tags(frame: bytes, start: int) -> int:
    """Where the message begins after the tagged fields of a header, which nobody has given a meaning yet."""
    if start < len(frame) and frame[start] == 0:
        return start + 1
    count, start = _varint(frame, start)
    for _ in range(count):
        _, start = _varint(frame, start)
        size, start = _varint(frame, start)
        start += size
    if start > len(frame):
        raise Malformed("the header's tagged fields do not end")
    return start


def _varint(frame: bytes, start: int) -> tuple[int, int]:
    value = 0
    for shift in (0, 7, 14, 21, 28):
        if start >= len(frame):
            break
        byte = frame[start]
        start += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, start
    raise Malformed("a varint does not end")


class Frames:
    """Cuts a byte stream into frames.

    `feed` gives the frames that are complete, length prefix included. Once a length comes that no frame may have,
    `broken` says so, and nothing that follows is taken, since nothing says where the next frame would begin.
    """

    __slots__ = ("_chunks", "_limit", "_need", "broken", "partial")

    def __init__(self, limit: int = MAX_FRAME_BYTES) -> None:
        self.broken: str | None = None
        self.partial = 0
        """Bytes received of a frame that is not complete."""
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
            length = _LENGTH.unpack_from(data, start)[0]
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


# -- connection --------------------------------------------------------------------------------------------------


class _Waiting(NamedTuple):
    correlation_id: int
    answer: type
    future: Future[Entity]
    timer: TimerHandle


class Connection(asyncio.Protocol):
    """One connection to a broker or controller. Made by `open`."""

    def __init__(self, loop: AbstractEventLoop, peer: str, client_id: str | None) -> None:
        self._loop = loop
        self._peer = peer
        self._client_id = client_id
        self._transport: asyncio.Transport | None = None
        self._frames = Frames()
        self._waiting: deque[_Waiting] = deque()
        self._next = 0
        self._lost: str | None = None

    @classmethod
    async def open(cls, host: str, port: int, client_id: str | None, connect_timeout: float) -> Connection:
        """Connect within `connect_timeout` seconds. Raises ConnectionLost or CallTimeout, `sent` False."""
        loop = asyncio.get_running_loop()
        connection = cls(loop, f"{host}:{port}", client_id)
        try:
            async with asyncio.timeout(connect_timeout):
                await loop.create_connection(lambda: connection, host, port)
        except asyncio.CancelledError:
            connection._lose("gave up connecting")
            raise
        except TimeoutError as error:
            connection._lose("gave up connecting")
            raise CallTimeout(f"{host}:{port}: no connection in {connect_timeout} s", sent=False) from error
        except OSError as error:
            connection._lose("could not connect")
            raise ConnectionLost(f"{host}:{port}: {error}", sent=False) from error
        return connection

    @property
    def closed(self) -> bool:
        """Whether the connection can no longer be used."""
        return self._lost is not None

    async def call(self, request: Entity, timeout: float) -> Entity:
        """Send `request` and return its response, an instance of the response class of the same API and version.

        Raises CallTimeout after `timeout` seconds, having closed the connection; ConnectionLost when it breaks.
        """
        answer = _answers.get(type(request)) or response_class_of(type(request))
        loop = self._loop
        future: Future[Entity] = loop.create_future()
        correlation_id = self._write(request)
        timer = loop.call_later(timeout, self._timed_out, future, timeout)
        self._waiting.append(_Waiting(correlation_id, answer, future, timer))
        return await future

    def send_only(self, request: Entity) -> None:
        """Send a request that has no response (Produce with acks=0). Raises ConnectionLost if already closed."""
        self._write(request)

    def close(self) -> None:
        """Close once everything written has left; calls still waiting raise ConnectionLost."""
        self._lose("closed by this client", abort=False)

    def _write(self, request: Entity) -> int:
        transport = self._transport
        if self._lost is not None or transport is None:
            raise ConnectionLost(f"{self._peer}: {self._lost or 'not connected'}", sent=False)
        correlation_id = self._next
        frame = encode_request(request, correlation_id, self._client_id)
        self._next = (correlation_id + 1) & 0x7FFFFFFF
        transport.write(frame)
        return correlation_id

    def _timed_out(self, future: Future[Entity], timeout: float) -> None:
        if not future.done():
            future.set_exception(CallTimeout(f"{self._peer}: no answer in {timeout} s"))
        self._lose("closed since another call was not answered in time")

    def _lose(self, reason: str, *, abort: bool = True) -> None:
        if self._lost is not None:
            return
        self._lost = reason
        if self._transport is not None:
            if abort:
                self._transport.abort()
            else:
                self._transport.close()
        for waiting in self._waiting:
            waiting.timer.cancel()
            if not waiting.future.done():
                waiting.future.set_exception(ConnectionLost(f"{self._peer}: {reason}"))
        self._waiting.clear()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._lost is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._lost is not None:
            return
        try:
            for frame in self._frames.feed(data):
                if not self._waiting:
                    raise Malformed("an answer that nobody asked for")
                correlation_id, answer, future, timer = self._waiting[0]
                got, payload = decode_response(answer, frame)
                if got != correlation_id:
                    raise Malformed(f"an answer to request {got}, expected {correlation_id}")
                self._waiting.popleft()
                timer.cancel()
                if not future.done():
                    future.set_result(payload)
            if self._frames.broken is not None:
                raise Malformed(self._frames.broken)
        except Malformed as error:
            self._lose(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose("connection closed by the peer" if exc is None else str(exc) or type(exc).__name__)
