"""A link is one direction between two nodes; a channel, one direction of one connection, runs over it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, Protocol

from harness.simulation.digest import SENT
from harness.simulation.network.packets import RST
from harness.simulation.views import NodeView, WorldView
from nemesis.ports import LinkQuality

SPLIT_EVERY = 16
"""One write in this many arrives in two pieces, as any write may on a stream."""
_SENT = Struct("<BII").pack


@dataclass(slots=True)
class LinkCounters:
    """Packets that a link stopped or delayed since it was last cut or degraded."""

    held: int = 0
    refused: int = 0
    reset: int = 0
    delayed: int = 0
    delay_ns: int = 0
    lost: int = 0


@dataclass(slots=True, eq=False)
class LinkState:
    """One direction between two nodes."""

    source: NodeView
    target: NodeView
    low_ns: int
    span_ns: int
    cut: bool = False
    quality: LinkQuality | None = None
    counters: LinkCounters = field(default_factory=LinkCounters)
    holding: dict[Channel, None] = field(default_factory=dict)
    """Channels with packets that were stopped here, in the order they were first stopped."""


class Receiver(Protocol):
    """The end of a connection that a channel leads to."""

    @property
    def gone(self) -> bool:
        """Whether the kernel has let go of this end."""

    def arrive(self, kind: int, data: bytes) -> None:
        """Take one packet."""


class Medium(Protocol):
    """The network as a channel uses it."""

    writes: int
    """Writes so far, of all connections."""

    @property
    def world(self) -> WorldView:
        """Time and the schedule."""

    @property
    def digest_buffer(self) -> bytearray:
        """Takes the bytes that are sent."""

    @property
    def random(self) -> Callable[[], float]:
        """Draws from 0 to 1."""

    @property
    def connections(self) -> dict[Any, None]:
        """Every end of a connection that some kernel still knows."""

    def extra_ns(self, link: LinkState) -> int:
        """Latency that a degraded link adds to one packet."""


class Channel:
    """One direction of one connection: packets in order over a link."""

    __slots__ = (
        "_held",
        "_last_ns",
        "_network",
        "_world",
        "channel_id",
        "link",
        "receiver",
        "stranded",
        "unread_bytes",
    )

    def __init__(self, network: Medium, link: LinkState, channel_id: int) -> None:
        self._network = network
        self._world = network.world
        self.link = link
        self.channel_id = channel_id
        self.receiver: Receiver
        self.unread_bytes = 0
        """Data taken by the sender's kernel that the receiving process has not read."""
        self.stranded = False
        """Packets vanished at a machine without power; the sender gets a reset once it is back."""
        self._held: deque[tuple[int, bytes]] = deque()
        self._last_ns = 0

    def send(self, kind: int, data: bytes) -> None:
        """Put a packet on its way."""
        network = self._network
        if data:
            size = len(data)
            self.unread_bytes += size
            buffer = network.digest_buffer
            buffer += _SENT(SENT, self.channel_id, size)
            buffer += data
            network.writes += 1
            if network.writes % SPLIT_EVERY == 0 and size > 1:
                at = 1 + int(network.random() * (size - 1))
                self._post(kind, data[:at])
                self._post(kind, data[at:])
                return
        self._post(kind, data)

    def _post(self, kind: int, data: bytes) -> None:
        link = self.link
        due_ns = self._world.now_ns + link.low_ns + int(self._network.random() * link.span_ns)
        if link.quality is not None:
            due_ns += self._network.extra_ns(link)
        if due_ns < self._last_ns:
            due_ns = self._last_ns
        self._last_ns = due_ns
        self._world.at(due_ns, self._arrive, (kind, data))

    def _arrive(self, packet: tuple[int, bytes]) -> None:
        link = self.link
        if link.cut or self._held:
            self._held.append(packet)
            link.holding[self] = None
            if link.cut:
                link.counters.held += 1
            return
        if not link.target.powered:
            self.stranded = True
            return
        self.receiver.arrive(*packet)

    def release_after(self, delay_ns: int) -> None:
        """Let what is held through in `delay_ns`, and nothing sent from now on before it."""
        self._last_ns = max(self._last_ns, self._world.now_ns + delay_ns)
        self._world.at(self._last_ns, self._release, None)

    def _release(self, _: None) -> None:
        if self.link.cut:
            return
        self.link.holding.pop(self, None)
        held = self._held
        while held:
            if not self.link.target.powered:
                self.stranded = True
                held.clear()
                return
            self.receiver.arrive(*held.popleft())

    def forget(self) -> None:
        """Drop what the sender's kernel would have to send again."""
        self._held.clear()
        self.link.holding.pop(self, None)

    def reset(self) -> None:
        """Tell the receiver that the connection is gone."""
        self._post(RST, b"")

    def ended(self, sender: Receiver) -> None:
        """The sending end is gone."""
        if self.receiver.gone:
            self._network.connections.pop(sender, None)
            self._network.connections.pop(self.receiver, None)
