"""Kafka's messages on the wire: supported APIs and versions, their classes, and encoding of whole frames.

A frame is a 4-byte big-endian length, a header and a message. `encode_request` and `encode_response` return whole
frames, length included, and the `decode_` functions take them. Messages are kio's classes; handlers and native clients
use one *canonical* version of each API, and the server translates the other supported ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from importlib import import_module
from struct import Struct
from types import MappingProxyType
from typing import Any, NamedTuple

from images.wire.codec import Malformed, Write, decode_varint, writer
from images.wire.construction import quicken
from images.wire.reader import Read, reader
from images.wire.schema import Entity, same_layout


class Api(IntEnum):
    """The APIs that the broker or its controller serves, by Kafka's API key."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    VOTE = 52
    BEGIN_QUORUM_EPOCH = 53
    END_QUORUM_EPOCH = 54
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    DESCRIBE_TOPIC_PARTITIONS = 75
    GET_REPLICA_LOG_INFO = 93


def _versions(first: int, last: int) -> range:
    return range(first, last + 1)


SUPPORTED: Mapping[Api, range] = MappingProxyType(
    {
        Api.PRODUCE: _versions(3, 11),
        Api.FETCH: _versions(4, 16),
        Api.LIST_OFFSETS: _versions(1, 7),
        Api.METADATA: _versions(0, 12),
        Api.OFFSET_COMMIT: _versions(2, 9),
        Api.OFFSET_FETCH: _versions(1, 9),
        Api.FIND_COORDINATOR: _versions(0, 4),
        Api.JOIN_GROUP: _versions(0, 9),
        Api.HEARTBEAT: _versions(0, 4),
        Api.LEAVE_GROUP: _versions(0, 5),
        Api.SYNC_GROUP: _versions(0, 5),
        Api.DESCRIBE_GROUPS: _versions(0, 6),
        Api.LIST_GROUPS: _versions(0, 5),
        Api.API_VERSIONS: _versions(0, 3),
        Api.CREATE_TOPICS: _versions(2, 7),
        Api.DELETE_TOPICS: _versions(1, 6),
        Api.DELETE_RECORDS: _versions(0, 2),
        Api.INIT_PRODUCER_ID: _versions(0, 4),
        Api.OFFSET_FOR_LEADER_EPOCH: _versions(0, 4),
        Api.DESCRIBE_CONFIGS: _versions(1, 4),
        Api.ALTER_CONFIGS: _versions(0, 2),
        Api.DESCRIBE_LOG_DIRS: _versions(1, 4),
        Api.CREATE_PARTITIONS: _versions(0, 3),
        Api.DELETE_GROUPS: _versions(0, 2),
        Api.ELECT_LEADERS: _versions(1, 2),
        Api.INCREMENTAL_ALTER_CONFIGS: _versions(0, 1),
        Api.ALTER_PARTITION_REASSIGNMENTS: _versions(0, 0),
        Api.LIST_PARTITION_REASSIGNMENTS: _versions(0, 0),
        Api.VOTE: _versions(2, 2),
        Api.BEGIN_QUORUM_EPOCH: _versions(1, 1),
        Api.END_QUORUM_EPOCH: _versions(1, 1),
        Api.DESCRIBE_QUORUM: _versions(0, 2),
        Api.ALTER_PARTITION: _versions(3, 3),
        Api.FETCH_SNAPSHOT: _versions(0, 1),
        Api.DESCRIBE_CLUSTER: _versions(0, 1),
        Api.BROKER_REGISTRATION: _versions(3, 3),
        Api.BROKER_HEARTBEAT: _versions(1, 1),
        Api.LIST_TRANSACTIONS: _versions(0, 2),
        Api.ALLOCATE_PRODUCER_IDS: _versions(0, 0),
        Api.DESCRIBE_TOPIC_PARTITIONS: _versions(0, 0),
        Api.GET_REPLICA_LOG_INFO: _versions(0, 0),
    }
)
"""Supported versions."""

CANONICAL: Mapping[Api, int] = MappingProxyType({api: versions[-1] for api, versions in SUPPORTED.items()})
"""The version that handlers and native clients use: the newest supported."""


_OWN_MESSAGES: Mapping[tuple[Api, int], str] = MappingProxyType(
    {
        (Api.GET_REPLICA_LOG_INFO, 0): "images.wire.get_replica_log_info",
        (Api.OFFSET_FOR_LEADER_EPOCH, 0): "images.wire.offset_for_leader_epoch_v0",
        (Api.OFFSET_FOR_LEADER_EPOCH, 1): "images.wire.offset_for_leader_epoch_v1",
    }
)
"""Modules of message classes that kio does not have, by API and version."""


class ParsedHeader(NamedTuple):
    """The header of a request. `api_key` and `version` are those on the wire, known or not."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    end: int
    """End of the fields that every version has; the tags of a flexible header and the message follow."""


# -- message classes ---------------------------------------------------------------------------------------------


class _Codec(NamedTuple):
    """Writer and reader of one message class."""

    write: Write
    read: Read
    api_key: int
    version: int
    tagged_header: bool
    """Whether the frame's header ends in a list of tagged fields (always empty here)."""


_codecs: dict[type, _Codec] = {}
_classes: dict[tuple[int, int, str], type] = {}
_answers: dict[type, type] = {}
_encodings: dict[tuple[int, int, str], type] = {}


def prepare() -> None:
    """Generate the code of the canonical messages, so that processes forked from this one have it."""
    for api in Api:
        for message in (request_class(api), response_class(api)):
            _codec(message)


def request_class(api: Api, version: int | None = None) -> type:
    """The request class of an API in `version`, by default the canonical one."""
    return _message_class(api, CANONICAL[api] if version is None else version, "request")


def response_class(api: Api, version: int | None = None) -> type:
    """The response class of an API in `version`, by default the canonical one."""
    return _message_class(api, CANONICAL[api] if version is None else version, "response")


def encoding_class(api: Api, version: int, kind: str) -> type:
    """The class that reads and writes the requests or responses (`kind`) of `version`: the canonical one wherever the
    layouts are the same, so that such messages need no translation."""
    known = _encodings.get((api, version, kind))
    if known is None:
        own, canonical = _message_class(api, version, kind), _message_class(api, CANONICAL[api], kind)
        same = _has_tagged_header(own) is _has_tagged_header(canonical) and same_layout(own, canonical)
        known = _encodings[api, version, kind] = canonical if same else own
    return known


def response_class_of(request: type) -> type:
    """The response class of a request class, in the same version."""
    answer = _answers.get(request)
    if answer is None:
        message: Any = request
        answer = _answers[request] = response_class(Api(message.__api_key__), int(message.__version__))
    return answer


def _message_class(api: Api, version: int, kind: str) -> type:
    known = _classes.get((api, version, kind))
    if known is None:
        name = "".join(word.capitalize() for word in api.name.split("_")) + kind.capitalize()
        module = import_module(_OWN_MESSAGES.get((api, version)) or f"kio.schema.{api.name.lower()}.v{version}.{kind}")
        loaded: type = getattr(module, name)
        known = _classes[api, version, kind] = loaded
    return known


def _codec(message: type) -> _Codec:
    known = _codecs.get(message)
    if known is None:
        kind: Any = message
        quicken(message)
        known = _codecs[message] = _Codec(
            writer(message),
            reader(message),
            int(kind.__api_key__),
            int(kind.__version__),
            _has_tagged_header(message),
        )
    return known


def _has_tagged_header(message: Any) -> bool:
    """A request header has tags from v2 on, a response header from v1 on."""
    return bool(message.__header_schema__.__flexible__)


# -- frames ------------------------------------------------------------------------------------------------------

_LENGTH = Struct(">i")
_REQUEST_HEAD = Struct(">hhih")
_REQUEST = Struct(">ihhi")
_RESPONSE = Struct(">ii")
_RESPONSE_TAGGED = Struct(">iix")
_SHORT_BYTES = 1024
_client_ids: dict[str | None, bytes] = {}


def encode_request(payload: Entity, correlation_id: int, client_id: str | None) -> bytes:
    """The whole frame of a request, its 4-byte length first."""
    return RequestEncoder(client_id).encode(payload, correlation_id)


class RequestEncoder:
    """Encodes the requests of one client. The same object sent twice is encoded once: messages are immutable."""

    __slots__ = ("_client_id", "_codec", "_content", "_payload")

    def __init__(self, client_id: str | None) -> None:
        self._client_id = _client_ids.get(client_id) or _client_id(client_id)
        self._payload: Entity = None
        self._codec: _Codec
        self._content = b""

    def encode(self, payload: Entity, correlation_id: int) -> bytes:
        """The whole frame of a request, its 4-byte length first."""
        if payload is not self._payload:
            codec = self._codec = _codecs.get(type(payload)) or _codec(type(payload))
            pieces = [self._client_id, b"\0"] if codec.tagged_header else [self._client_id]
            codec.write(payload, pieces)
            self._content = b"".join(pieces)
            self._payload = payload
        codec, content = self._codec, self._content
        return _REQUEST.pack(8 + len(content), codec.api_key, codec.version, correlation_id) + content


def encode_response(payload: Entity, correlation_id: int) -> bytes:
    """The whole frame of a response, its 4-byte length first."""
    codec = _codecs.get(type(payload)) or _codec(type(payload))
    pieces: list[bytes] = [b""]
    codec.write(payload, pieces)
    length = sum(map(len, pieces))
    if codec.tagged_header:
        pieces[0] = _RESPONSE_TAGGED.pack(5 + length, correlation_id)
    else:
        pieces[0] = _RESPONSE.pack(4 + length, correlation_id)
    return b"".join(pieces)  # records are copied here, and nowhere else between the file and the socket


def read_request_header(frame: bytes) -> ParsedHeader:
    """The header of a request frame of any API. Raises Malformed."""
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
    return ParsedHeader(api_key, version, correlation_id, client_id, end)


def decode_request(frame: bytes, head: ParsedHeader | None = None) -> tuple[ParsedHeader, Entity]:
    """Header and message of a request frame of a supported API and version. As in Kafka, bytes that follow the message
    are ignored. Raises Malformed."""
    if head is None:
        head = read_request_header(frame)
    return head, _read_request(_request_asked(head, _message_class), frame, head)


def _request_asked(head: ParsedHeader, class_of: Callable[[Api, int, str], type]) -> type:
    try:
        return class_of(Api(head.api_key), head.version, "request")
    except (ValueError, ImportError) as error:
        raise Malformed(f"no API {head.api_key} in version {head.version}") from error


def _read_request(message: type, frame: bytes, head: ParsedHeader) -> Entity:
    codec = _codecs.get(message) or _codec(message)
    start = head.end
    if codec.tagged_header:
        start = _after_tags(frame, start)
    return _read(codec, message, head.version, frame, start)[0]


class RequestDecoder:
    """Decodes the requests of one connection, each with its `encoding_class`.

    A short request equal to the previous one is decoded once, since messages are immutable: polls and heartbeats
    repeat.
    """

    __slots__ = ("_content", "_message")

    def __init__(self) -> None:
        self._content: tuple[int, int, bytes] | None = None
        self._message: Entity = None

    def decode(self, frame: bytes, head: ParsedHeader) -> Entity:
        """The message of a request frame. Raises Malformed."""
        if len(frame) > _SHORT_BYTES:
            return self._decode(frame, head)
        content = (head.api_key, head.version, frame[head.end :])
        if content != self._content:
            self._message = self._decode(frame, head)
            self._content = content
        return self._message

    @staticmethod
    def _decode(frame: bytes, head: ParsedHeader) -> Entity:
        known = _encodings.get((head.api_key, head.version, "request"))
        return _read_request(known or _request_asked(head, encoding_class), frame, head)


def decode_response(message: type, frame: bytes) -> tuple[int, Entity]:
    """Correlation id and message of a response frame that must hold a `message`. Raises Malformed."""
    if len(frame) < 8:
        raise Malformed(f"a response of {len(frame) - 4} bytes is shorter than its header")
    codec = _codecs.get(message) or _codec(message)
    start = 8
    if codec.tagged_header:
        start = _after_tags(frame, start)
    payload, surplus = _read(codec, message, codec.version, frame, start)
    if surplus:
        raise Malformed(f"{surplus} bytes too many after a {message.__name__} v{codec.version}")
    return _LENGTH.unpack_from(frame, 4)[0], payload


def _read(codec: _Codec, message: type, version: int, frame: bytes, start: int) -> tuple[Entity, int]:
    """The message that begins at `start`, and the number of bytes that follow it."""
    try:
        payload, end = codec.read(frame, start, len(frame))
    except Exception as error:  # also that of a value: text that is not UTF-8, an error code that does not exist
        raise Malformed(f"not a {message.__name__} v{version}: {error}") from error
    return payload, len(frame) - end


def _client_id(client_id: str | None) -> bytes:
    if client_id is None:
        encoded = b"\xff\xff"
    else:
        text = client_id.encode()
        encoded = len(text).to_bytes(2) + text
    _client_ids[client_id] = encoded
    return encoded


def _after_tags(frame: bytes, start: int) -> int:
    """Start of the message after the tagged fields of a header, none of which is defined yet."""
    if start < len(frame) and frame[start] == 0:
        return start + 1
    count, start = decode_varint(frame, start)
    for _ in range(count):
        _, start = decode_varint(frame, start)
        size, start = decode_varint(frame, start)
        start += size
    if start > len(frame):
        raise Malformed("the header's tagged fields do not end")
    return start
