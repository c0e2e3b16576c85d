"""A link is one direction between two nodes; a channel, one direction of one connection, runs over it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import takewhile
from struct import Struct
from typing import Any, Protocol

from harness.simulation.digest import SENT
from harness.simulation.network.channel_names import name_of
from harness.simulation.network.frame_count import FrameCount
from harness.simulation.network.interception import Interception
from harness.simulation.network.packets import ABORT, DATA, RST
from harness.simulation.views import NodeView, WorldView
from nemesis.ports import Link, LinkQuality, MessageEffect

SPLIT_EVERY = 16
"""One write in this many arrives in two pieces, as any write may on a stream."""
RETRANSMISSION_NS = 200_000_000
"""How long a kernel waits for an acknowledgement before it sends again; twice as long before each further time."""
RETRANSMISSION_MAX_NS = 120_000_000_000
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


@dataclass(slots=True)
class Cut:
    """What becomes of the packets of a link that is cut, or of one channel of it."""

    keeps: bool = True
    """Whether it keeps what arrives, so that no kernel has to send it again."""
    refuses: bool = False
    """Whether it answers with a reset."""
    counters: LinkCounters = field(default_factory=LinkCounters)

    def add(self, *, kept: bool, reset: bool) -> None:
        """It is cut once more: what one cut drops is dropped; the latest one says whether it answers."""
        self.keeps = self.keeps and kept
        self.refuses = reset


@dataclass(slots=True, eq=False)
class LinkState:
    """One direction between two nodes."""

    source: NodeView
    target: NodeView
    low_ns: int
    span_ns: int
    cut: Cut | None = None
    quality: LinkQuality | None = None
    interceptions: tuple[Interception, ...] = ()
    """Those that look at the messages of this link."""
    counters: LinkCounters = field(default_factory=LinkCounters)
    """Of what its quality did; a cut has its own."""
    cut_channels: dict[str, Cut] = field(default_factory=dict)
    """Names of connections that are cut alone."""
    degraded_channels: dict[str, tuple[LinkQuality, LinkCounters]] = field(default_factory=dict)
    """Names of connections that are degraded alone."""
    holding: dict[Channel, None] = field(default_factory=dict)
    """Channels with packets that were stopped here, in the order they were first stopped."""


class Receiver(Protocol):
    """The end of a connection that a channel leads to."""

    @property
    def gone(self) -> bool:
        """Whether the kernel has let go of this end."""

    @property
    def outgoing(self) -> Channel:
        """The direction this end sends in."""

    def arrive(self, kind: int, data: bytes) -> None:
        """Take one packet."""

    def break_connection(self) -> None:
        """Break the connection at both ends."""


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

    def extra_ns(self, quality: LinkQuality, counters: LinkCounters) -> int:
        """Latency that a degraded link adds to one packet, which is counted."""


class Channel:
    """One direction of one connection: packets in order over a link."""

    __slots__ = (
        "_dropped_ns",
        "_held",
        "_last_ns",
        "_network",
        "_world",
        "carries_requests",
        "channel_id",
        "connection",
        "frames",
        "link",
        "name",
        "receiver",
        "stranded",
        "unread_bytes",
    )

    def __init__(
        self, network: Medium, link: LinkState, channel_id: int, connection: int, *, carries_requests: bool
    ) -> None:
        self._network = network
        self._world = network.world
        self.link = link
        self.channel_id = channel_id
        self.connection = connection
        self.carries_requests = carries_requests
        self.receiver: Receiver
        self.name = ""
        """Of its connection, once the first request is sent (`channel_names`)."""
        self.unread_bytes = 0
        """Data taken by the sender's kernel that the receiving process has not read."""
        self.frames = FrameCount()
        """Of what is sent, as a reader would find them."""
        self.stranded = False
        """Packets vanished at a machine without power; the sender gets a reset once it is back."""
        self._held: deque[tuple[Interception | None, tuple[int, bytes]]] = deque()
        """Packets, each with the interception that holds it, if any."""
        self._last_ns = 0
        self._dropped_ns: int | None = None

    @property
    def request_link(self) -> Link:
        """The link that requests of this connection take."""
        here, there = self.link.source.name, self.link.target.name
        return Link(here, there) if self.carries_requests else Link(there, here)

    def send(self, kind: int, data: bytes) -> None:
        """Put a packet on its way."""
        network = self._network
        if data:
            if not self.name and self.carries_requests:
                self.name = name_of(self.link.source.name, self.link.target.name, data)
                self.receiver.outgoing.name = self.name
            size = len(data)
            self.unread_bytes += size
            self.frames.add(data)
            buffer = network.digest_buffer
            buffer += _SENT(SENT, self.channel_id, size)
            buffer += data
            network.writes += 1
            for interception in self.link.interceptions:
                if interception.takes(self, data):
                    self._divert(interception, kind, data)
                    return
            if network.writes % SPLIT_EVERY == 0 and size > 1:
                at = 1 + int(network.random() * (size - 1))
                self._post(kind, data[:at])
                self._post(kind, data[at:])
                return
        self._post(kind, data)

    def _divert(self, interception: Interception, kind: int, data: bytes) -> None:
        """Do to a message what the rule of the interception says."""
        rule = interception.rule
        if rule.effect is MessageEffect.DROP:
            self.receiver.break_connection()
        elif rule.effect is MessageEffect.DELAY:
            self._last_ns = max(self._last_ns, self._world.now_ns + int(rule.delay_ms * 1e6))
            self._post(kind, data)
        else:
            self._world.at(self._due_ns(), self._arrive_held, (interception, (kind, data)))

    def _post(self, kind: int, data: bytes) -> None:
        self._world.at(self._due_ns(), self._arrive, (kind, data))

    def _due_ns(self) -> int:
        """When a packet sent now arrives, and none sent later before it."""
        link = self.link
        due_ns = self._world.now_ns + link.low_ns + int(self._network.random() * link.span_ns)
        if link.quality is not None:
            due_ns += self._network.extra_ns(link.quality, link.counters)
        if link.degraded_channels and self.name in link.degraded_channels:
            due_ns += self._network.extra_ns(*link.degraded_channels[self.name])
        if due_ns < self._last_ns:
            due_ns = self._last_ns
        self._last_ns = due_ns
        return due_ns

    def _arrive_held(self, held: tuple[Interception, tuple[int, bytes]]) -> None:
        interception, packet = held
        if not interception.holds(self):
            self._arrive(packet)
            return
        self._held.append(held)
        self.link.holding[self] = None

    def _arrive(self, packet: tuple[int, bytes]) -> None:
        link = self.link
        if link.cut or self._held or (link.cut_channels and self.name in link.cut_channels):
            self._stop(packet)
            return
        if not link.target.powered:
            self.stranded = True
            self._is_dropped()
            return
        self.receiver.arrive(*packet)

    def _stop(self, packet: tuple[int, bytes]) -> None:
        """A packet arrives at a cut of the link, of this channel or of both, or behind others that are held."""
        cuts = [cut for cut in (self.link.cut, self.link.cut_channels.get(self.name)) if cut is not None]
        if cuts:
            cut = cuts[0]
            if cut.refuses and packet[0] == DATA:
                cut.counters.reset += 1
                self.receiver.break_connection()
                return
            cut.counters.held += 1
            if not all(each.keeps for each in cuts):
                if packet[0] == ABORT:
                    return
                self._is_dropped()
        self._held.append((None, packet))
        self.link.holding[self] = None

    def send_again(self) -> None:
        """What vanished at the receiving machine, which has had power again since, comes once more."""
        self._arrive((DATA, b""))

    def _is_dropped(self) -> None:
        if self._dropped_ns is None:
            self._dropped_ns = self._world.now_ns

    def until_sent_again_ns(self) -> int | None:
        """How long until the sender's kernel sends again what was first dropped; None where nothing was. The time
        between two attempts doubles, so that it can be as long again as since then."""
        if self._dropped_ns is None:
            return None
        dropped_for_ns = self._world.now_ns - self._dropped_ns
        again_ns = timeout_ns = RETRANSMISSION_NS
        while again_ns < dropped_for_ns:
            timeout_ns = min(2 * timeout_ns, RETRANSMISSION_MAX_NS)
            again_ns += timeout_ns
        return again_ns - dropped_for_ns

    def release_after(self, delay_ns: int) -> None:
        """Let what is held through in `delay_ns`, and nothing sent from now on before it."""
        self._last_ns = max(self._last_ns, self._world.now_ns + delay_ns)
        self._world.at(self._last_ns, self._release, None)

    def _release(self, _: None) -> None:
        if self.link.cut or self.name in self.link.cut_channels:
            return
        held = self._held
        while held:
            interception, packet = held[0]
            if interception is not None and interception.active:
                return
            if not self.link.target.powered:
                self.stranded = True
                self._is_dropped()
                held.clear()
                break
            held.popleft()
            self.receiver.arrive(*packet)
        self._holds_nothing()

    def _holds_nothing(self) -> None:
        self.link.holding.pop(self, None)
        if not self.stranded:
            self._dropped_ns = None

    def forget(self) -> None:
        """Drop what the sender's kernel would have to send again. Messages that interceptions hold have left it, and
        stay, as long as nothing is missing before them."""
        held = self._held
        on_their_way = list(takewhile(lambda each: each[0] is not None and each[0].active, held))
        held.clear()
        held.extend(on_their_way)
        if not held:
            self._holds_nothing()

    def reset(self) -> None:
        """Answer a packet of the receiver: the connection is gone."""
        self._post(RST, b"")

    def abort(self) -> None:
        """Tell the receiver, once, that the connection is gone."""
        self._post(ABORT, b"")

    def ended(self, sender: Receiver) -> None:
        """The sending end is gone."""
        if self.receiver.gone:
            self._network.connections.pop(sender, None)
            self._network.connections.pop(self.receiver, None)
