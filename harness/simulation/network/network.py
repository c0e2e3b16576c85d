"""The simulated network: links between nodes, and TCP over them.

Every ordered pair of nodes is a *link*. A packet takes the link's base latency (uniform, drawn per packet), plus
what a `LinkQuality` adds; each direction of a connection delivers in order. TCP is modelled by what a process can
observe of it:

- *Connecting* takes a round trip. A port without a listener refuses. Where a packet of the handshake is stopped (a
  cut link, a machine that is off) it is sent again after 1, 2, 4 … seconds, and the attempt times out after 127 s
  as in Linux.
- *A cut link holds data.* Whatever arrives at it waits; the sender sees nothing until its own timeouts. After the
  healing it comes through in order: soon if the cut keeps it, and else once the sender's kernel sends again, which it
  does after 200 ms, then after 400, 800 …: up to as long after the healing as it was stopped before. Cutting with
  `reset` breaks connections instead, and refuses new ones.
- *A cut or a degradation of one channel* concerns the connections of that name, which their first request gives them:
  they are still made, and what they carry is stopped or slow, or breaks them where the cut is one with `reset`.
- *Loss* is delay: a lost packet is sent again after 200 ms, doubling; what was sent after it waits behind it.
- *A paused process* misses nothing: its kernel accepts connections and keeps data until it resumes.
- *A killed process*: its kernel delivers what it took, then FIN or RST (see `transport`). New connections are
  refused.
- *A machine without power* sends nothing. Its peers' data vanishes; they learn by RST once it is back up, or by
  their own timeouts. Messages on their way, such as those that an interception holds, still arrive.

A node reaches itself over a loopback that is fast and cannot be cut.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from harness.simulation.event_loop.loop import NodeLoop
from harness.simulation.network.interception import Interception
from harness.simulation.network.links import RETRANSMISSION_NS, Channel, Cut, LinkCounters, LinkState
from harness.simulation.network.listening import SimServer
from harness.simulation.network.packets import ACCEPT
from harness.simulation.network.transport import SimTransport
from harness.simulation.views import NodeView, WorldView
from nemesis.ports import Link, LinkQuality, MessageRule

_Protocol = TypeVar("_Protocol", bound=asyncio.BaseProtocol)

KEPT_NS = 200_000_000
"""What was kept arrives so long after the healing at most."""
RETRANSMISSIONS_MAX = 6
SYN_RETRY_NS = 1_000_000_000
SYN_ATTEMPTS_MAX = 7
FIRST_EPHEMERAL_PORT = 32768


@dataclass(frozen=True, slots=True)
class LinkLatency:
    """One-way base latency of a packet: uniform between the two."""

    low_ms: float = 0.2
    high_ms: float = 1.0
    loopback_low_ms: float = 0.01
    loopback_high_ms: float = 0.05


class _Attempt:
    """A process connecting."""

    __slots__ = ("established", "loop", "outcome", "port", "source_port", "target", "tries")

    def __init__(self, loop: NodeLoop, target: NodeView, port: int, source_port: int) -> None:
        self.loop = loop
        self.target = target
        self.port = port
        self.source_port = source_port
        self.tries = 0
        self.outcome: asyncio.Future[SimTransport] = loop.create_future()
        self.established: SimTransport | None = None


class Network:
    """All links, listeners and connections of a world."""

    def __init__(self, world: WorldView, latency: LinkLatency) -> None:
        self.world = world
        self.digest_buffer = world.digest.buffer
        self.random = world.stream("world/network").random
        self.writes = 0
        self.listeners: dict[tuple[str, int], SimServer] = {}
        self.connections: dict[SimTransport, None] = {}
        """Every end of a connection that some kernel still knows."""
        self._latency = latency
        self._links: dict[tuple[str, str], LinkState] = {}
        self._interceptions: dict[int, Interception] = {}
        self._channels = 0
        self._transports = 0
        self._ports: dict[str, int] = {}

    # Links

    def link(self, source: str, target: str) -> LinkState:
        """The link from one node to another. Raises KeyError naming a node that does not exist."""
        state = self._links.get((source, target))
        if state is None:
            latency = self._latency
            low_ms, high_ms = latency.low_ms, latency.high_ms
            if source == target:
                low_ms, high_ms = latency.loopback_low_ms, latency.loopback_high_ms
            state = LinkState(
                self.world.node(source),
                self.world.node(target),
                int(low_ms * 1e6),
                max(1, int((high_ms - low_ms) * 1e6)),
            )
            self._links[source, target] = state
        return state

    def cut(self, source: str, target: str, *, channel: str = "", reset: bool = False, kept: bool = False) -> None:
        """Stop delivery; with `reset`, break the connections that use this direction at both ends. With a `channel`
        only the connections of that name. What is `kept` comes soon after the healing, unless a cut since the link or
        channel was last whole drops it."""
        link = self.link(source, target)
        if source == target:
            return
        if channel:
            cut = link.cut_channels.setdefault(channel, Cut())
        else:
            cut = link.cut = link.cut or Cut()
        cut.add(kept=kept, reset=reset)
        if reset:
            for transport in list(self.connections):
                if transport.crosses(link) and channel in ("", transport.outgoing.name):
                    cut.counters.reset += 1
                    transport.break_connection()

    def heal_link(self, source: str, target: str, *, channel: str = "") -> LinkCounters:
        """Deliver again. Returns what was stopped since the cut (nothing when it was not cut)."""
        link = self.link(source, target)
        if channel:
            cut = link.cut_channels.pop(channel, None)
        else:
            cut, link.cut = link.cut, None
        if cut is None:
            return LinkCounters()
        for held in list(link.holding):
            if channel in ("", held.name):
                again_ns = held.until_sent_again_ns()
                held.release_after(int(self.random() * KEPT_NS) if again_ns is None else again_ns)
        return cut.counters

    def degrade(self, source: str, target: str, quality: LinkQuality, *, channel: str = "") -> None:
        """Make a link slow or lossy from now on; with a `channel` the connections of that name only."""
        link = self.link(source, target)
        if channel:
            _, counters = link.degraded_channels.get(channel, (quality, LinkCounters()))
            link.degraded_channels[channel] = (quality, counters)
            return
        if link.quality is None:
            link.counters.delayed = link.counters.delay_ns = link.counters.lost = 0
        link.quality = quality

    def clear_degradation(self, source: str, target: str, *, channel: str = "") -> LinkCounters:
        """Undo `degrade`. Returns what it did (nothing when the link was not degraded)."""
        link = self.link(source, target)
        if channel:
            return link.degraded_channels.pop(channel, (None, LinkCounters()))[1]
        if link.quality is None:
            return LinkCounters()
        link.quality = None
        return link.counters

    def intercept(self, number: int, links: Sequence[Link], rule: MessageRule) -> None:
        """Apply `rule` to the requests on `links`, or to the responses to them."""
        interception = self._interceptions[number] = Interception(links, rule)
        for state in self._both_ways(links):
            state.interceptions += (interception,)

    def intercepted(self, number: int) -> int:
        """How many messages an interception has taken so far; none when there is none."""
        interception = self._interceptions.get(number)
        return 0 if interception is None else interception.intercepted

    def stop_intercepting(self, number: int) -> int:
        """Let the messages of an interception pass. Returns how many it took (none when there is none)."""
        interception = self._interceptions.pop(number, None)
        if interception is None:
            return 0
        for state in self._links.values():
            state.interceptions = tuple(each for each in state.interceptions if each is not interception)
        interception.end()
        return interception.intercepted

    def _both_ways(self, links: Sequence[Link]) -> list[LinkState]:
        """Each link once, and the one back."""
        ends = [ends for link in links for ends in ((link.source, link.target), (link.target, link.source))]
        return [self.link(*pair) for pair in dict.fromkeys(ends)]

    def extra_ns(self, quality: LinkQuality, counters: LinkCounters) -> int:
        """Latency that a degraded link adds to one packet, which is counted."""
        extra = quality.delay_ms * 1e6
        if quality.jitter_ms > 0.0:
            extra += self.random() * quality.jitter_ms * 1e6
        if quality.loss > 0.0:
            again_ns = RETRANSMISSION_NS
            for _ in range(RETRANSMISSIONS_MAX):
                if self.random() >= quality.loss:
                    break
                counters.lost += 1
                extra += again_ns
                again_ns *= 2
        if extra > 0.0:
            counters.delayed += 1
            counters.delay_ns += int(extra)
        return int(extra)

    def packet_ns(self, link: LinkState) -> int:
        """Latency of one packet over a link."""
        base = link.low_ns + int(self.random() * link.span_ns)
        return base + (self.extra_ns(link.quality, link.counters) if link.quality is not None else 0)

    # Nodes going down and coming back

    def process_died(self, loop: NodeLoop) -> None:
        """Close what a dead process had open, as its kernel does."""
        for server in [server for server in self.listeners.values() if server.loop is loop]:
            server.stop_listening()
        for transport in [transport for transport in self.connections if transport.loop is loop]:
            transport.process_died()

    def machine_went_off(self, node: NodeView) -> None:
        """Everything that a machine had open is gone, and no packet says so."""
        for server in [server for server in self.listeners.values() if server.loop.node is node]:
            server.listening = False
            del self.listeners[node.name, server.port]
        for transport in [transport for transport in self.connections if transport.loop.node is node]:
            transport.vanish()
        for link in self._links.values():
            if link.source is node:
                for channel in list(link.holding):
                    channel.forget()

    def machine_came_up(self, node: NodeView) -> None:
        """Peers that sent data while the machine was off get a reset when they send it again, if that reaches it."""
        for transport in list(self.connections):
            channel = transport.outgoing
            if channel.stranded and channel.link.target is node:
                channel.stranded = False
                again_ns = self.world.now_ns + (channel.until_sent_again_ns() or 0)
                self.world.at(again_ns, lambda channel: channel.send_again(), channel)

    # Names and ports

    def resolve(self, node: NodeView, host: str) -> NodeView:
        """The node that `host` names, seen from `node`. Raises socket.gaierror when there is none."""
        if host in ("localhost", "127.0.0.1", "::1"):
            return node
        target = self.world.nodes.get(host)
        if target is None:
            raise socket.gaierror(-2, f"Name or service not known: {host!r}")
        return target

    def listen(
        self, loop: NodeLoop, factory: Callable[[], asyncio.BaseProtocol], host: object, port: int, serve: bool
    ) -> SimServer:
        """Open a listening port."""
        name = loop.node.name
        for address in host if isinstance(host, (list, tuple)) else (host,):
            if address and address not in ("0.0.0.0", "::") and self.resolve(loop.node, str(address)).name != name:
                raise OSError(99, f"error while attempting to bind on address ({address!r}, {port}): cannot assign")
        if port == 0:
            port = self._free_port(name)
        if (name, port) in self.listeners:
            raise OSError(98, f"error while attempting to bind on address ({name!r}, {port}): address already in use")
        server = SimServer(self.listeners, loop, factory, port)
        if loop.alive:
            self.listeners[name, port] = server
        if serve:
            server.start()
        return server

    def _free_port(self, name: str) -> int:
        port = self._ports.get(name, FIRST_EPHEMERAL_PORT)
        while (name, port) in self.listeners:
            port += 1
        self._ports[name] = port + 1 if port < 65535 else FIRST_EPHEMERAL_PORT
        return port

    # Connecting

    async def connect(
        self, loop: NodeLoop, factory: Callable[[], _Protocol], host: str, port: int
    ) -> tuple[asyncio.Transport, _Protocol]:
        """Open a connection from the process on `loop`."""
        node = loop.node
        attempt = _Attempt(loop, self.resolve(node, host), port, self._free_port(node.name))
        self._send_syn(attempt)
        try:
            transport = await attempt.outcome
        except asyncio.CancelledError:
            if attempt.established is not None:
                attempt.established.process_died()
            raise
        protocol = factory()
        transport.attach(protocol)  # type: ignore[arg-type]
        attached = loop.create_future()
        loop.call_soon(_release, attached)
        try:
            await attached
        except asyncio.CancelledError:
            transport.close()
            raise
        return transport, protocol

    def _send_syn(self, attempt: _Attempt) -> None:
        if attempt.outcome.done() or not attempt.loop.alive:
            return
        if attempt.tries == SYN_ATTEMPTS_MAX:
            attempt.outcome.set_exception(
                TimeoutError(110, f"Connect call failed ({attempt.target.name!r}, {attempt.port}): timed out")
            )
            return
        self.world.at(self.world.now_ns + (SYN_RETRY_NS << attempt.tries), self._send_syn, attempt)
        attempt.tries += 1
        link = self.link(attempt.loop.node.name, attempt.target.name)
        self.world.at(self.world.now_ns + self.packet_ns(link), self._syn_arrives, attempt)

    def _syn_arrives(self, attempt: _Attempt) -> None:
        target = attempt.target
        link = self.link(attempt.loop.node.name, target.name)
        back = self.link(target.name, attempt.loop.node.name)
        if cut := link.cut or back.cut:
            cut.counters.refused += 1
            if link.cut and link.cut.refuses and (back.cut is None or back.cut.refuses):
                self.world.at(self.world.now_ns + self.packet_ns(back), self._refuse, attempt)
            return
        if not target.powered:
            return
        self.world.at(self.world.now_ns + self.packet_ns(back), self._syn_answered, attempt)

    def _syn_answered(self, attempt: _Attempt) -> None:
        loop, target = attempt.loop, attempt.target
        if attempt.outcome.done() or not loop.alive:
            return
        server = self.listeners.get((target.name, attempt.port))
        if server is None:
            if target.powered:
                self._refuse(attempt)
            return
        here = (loop.node.name, attempt.source_port)
        there = (target.name, attempt.port)
        out = self._channel(loop.node, target, carries_requests=True)
        back = self._channel(target, loop.node, carries_requests=False)
        client = SimTransport(loop, out, (here, there), self._transports)
        accepted = SimTransport(server.loop, back, (there, here), self._transports + 1)
        self._transports += 2
        out.receiver, back.receiver = accepted, client
        client.peer, accepted.peer = accepted, client
        accepted.expect_accept_by(server)
        self.connections[client] = None
        self.connections[accepted] = None
        out.send(ACCEPT, b"")
        attempt.established = client
        attempt.outcome.set_result(client)

    def _refuse(self, attempt: _Attempt) -> None:
        if attempt.loop.alive and not attempt.outcome.done():
            error = f"Connect call failed ({attempt.target.name!r}, {attempt.port})"
            attempt.outcome.set_exception(ConnectionRefusedError(111, error))

    def _channel(self, source: NodeView, target: NodeView, *, carries_requests: bool) -> Channel:
        self._channels += 1
        link = self.link(source.name, target.name)
        return Channel(self, link, self._channels, self._transports, carries_requests=carries_requests)


def _release(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
