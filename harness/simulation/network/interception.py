"""Messages that a fault takes out of the stream of their connection.

The network carries bytes. Where an interception is active, it reads the heads of the frames that Kafka's protocol
writes: the length, the API key and the correlation id of a request, the length and the correlation id of a response. A
response belongs to the request on the same connection that had its correlation id, so only requests that were sent
since the interception began have responses that it knows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from struct import Struct
from typing import NamedTuple, Protocol

from nemesis.ports import Link, MessagePart, MessageRule

_LENGTH = Struct(">i")
_REQUEST = Struct(">hhi")
_RESPONSE = Struct(">i")


class Flow(Protocol):
    """One direction of a connection, as an interception sees it."""

    @property
    def connection(self) -> int:
        """The number of the connection."""

    @property
    def request_link(self) -> Link:
        """The link that requests of this connection take."""

    @property
    def carries_requests(self) -> bool:
        """Whether this is the direction of the requests."""

    def release_after(self, delay_ns: int) -> None:
        """Let what is held through."""


class Interception:
    """The messages of one API between some nodes, and what becomes of the next of them."""

    def __init__(self, links: Collection[Link], rule: MessageRule) -> None:
        """`links` are those that the requests take."""
        self.rule = rule
        self.active = True
        self.intercepted = 0
        self._links = frozenset(links)
        self._awaited: dict[tuple[int, int], None] = {}
        """Connection and correlation id of the requests whose responses are looked for."""
        self._holding: list[Flow] = []

    def takes(self, flow: Flow, data: bytes) -> bool:
        """Whether a write on `flow` has a message that the rule is for."""
        if flow.request_link not in self._links:
            return False
        if not flow.carries_requests:
            return self._takes_response(flow, data)
        ids = [request.correlation_id for request in _requests(data) if request.api_key == self.rule.api_key]
        if self.rule.part is MessagePart.REQUEST:
            return bool(ids) and self._takes_one()
        self._awaited.update(((flow.connection, number), None) for number in ids)
        return False

    def _takes_response(self, flow: Flow, data: bytes) -> bool:
        keys = ((flow.connection, correlation_id) for correlation_id in _responses(data))
        known = [key for key in keys if key in self._awaited]
        for key in known:
            del self._awaited[key]
        return bool(known) and self._takes_one()

    def _takes_one(self) -> bool:
        if self.rule.count and self.intercepted >= self.rule.count:
            return False
        self.intercepted += 1
        return True

    def holds(self, flow: Flow) -> bool:
        """Whether a message to be held, which is about to arrive, must wait."""
        if self.active:
            self._holding.append(flow)
        return self.active

    def end(self) -> None:
        """Let everything pass."""
        self.active = False
        for flow in self._holding:
            flow.release_after(0)


class _Request(NamedTuple):
    api_key: int
    version: int
    correlation_id: int


def _requests(data: bytes) -> Iterator[_Request]:
    return (_Request(*_REQUEST.unpack_from(data, at)) for at in _contents(data, _REQUEST.size))


def _responses(data: bytes) -> Iterator[int]:
    return (_RESPONSE.unpack_from(data, at)[0] for at in _contents(data, _RESPONSE.size))


def _contents(data: bytes, size_min: int) -> Iterator[int]:
    """Where the content of each frame of a write begins. A write begins with a frame unless the kernel's buffer was
    full before it; what does not look like frames has none."""
    at = 0
    while at + _LENGTH.size + size_min <= len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if length < size_min or at + length > len(data):
            return
        yield at
        at += length
