"""One end of a simulated TCP connection: the kernel's socket and asyncio's transport over it.

The kernel's half lives as long as the connection, whether the process runs, is paused or is dead: packets arrive
into `_inbox`, are acknowledged, and wait there. The process's half is what asyncio's selector transport is: it
reads when its loop gets round to it, keeps what the kernel has no room for (`_backlog`), and calls the protocol in
asyncio's order.

- A stream keeps no message boundaries: what waits is read at once (up to 256 KiB), and now and then a write is split.
- The kernel takes 512 KiB that the peer has not read; the rest is the process's, is lost with it, and counts for
  `pause_writing`. Room is noticed at once when the peer reads: acknowledgements are neither delayed nor cut.
- A process that is frozen in the middle of a callback (paused at a crash point, or waiting for its disk) sends what
  that callback writes from then on when it goes on.
- When a process closes or dies, its kernel still delivers what it took, then FIN; or RST if there was something
  unread.
- Packets for a socket that is gone are answered with RST.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from contextvars import copy_context
from typing import Any, Protocol

from harness.simulation.event_loop.loop import NodeLoop
from harness.simulation.network.links import Channel, LinkState
from harness.simulation.network.packets import ABORT, DATA, FIN, RST

KERNEL_BYTES_MAX = 512 * 1024
READ_BYTES_MAX = 256 * 1024
HIGH_WATER_BYTES = 64 * 1024


class AcceptQueue(Protocol):
    """A listening port, to which an established connection is offered."""

    def offer(self, transport: SimTransport) -> bool:
        """Queue the connection; False when no process will accept it."""


class SimTransport(asyncio.Transport):
    """An end of a connection. Made by the network; the server's end has no protocol until the process accepts it."""

    __slots__ = (
        "_backlog",
        "_backlog_bytes",
        "_broken",
        "_closing",
        "_conn_lost",
        "_context",
        "_eof_arrived",
        "_eof_written",
        "_fin_sent",
        "_gone",
        "_high_water",
        "_inbox",
        "_inbox_bytes",
        "_loop",
        "_low_water",
        "_names",
        "_out",
        "_protocol",
        "_protocol_paused",
        "_read_scheduled",
        "_reading",
        "_server",
        "_write_scheduled",
        "peer",
        "serial",
    )

    def __init__(
        self, loop: NodeLoop, out: Channel, names: tuple[tuple[str, int], tuple[str, int]], serial: int
    ) -> None:
        super().__init__()
        self._loop = loop
        self._out = out
        self._names = names
        self.serial = serial
        self.peer: SimTransport = self
        self._context = copy_context()
        self._protocol: asyncio.Protocol | None = None
        self._server: AcceptQueue | None = None
        self._inbox: list[bytes] = []
        self._inbox_bytes = 0
        self._eof_arrived = False
        self._broken: OSError | None = None
        self._gone = False
        self._fin_sent = False
        self._closing = False
        self._conn_lost = False
        self._eof_written = False
        self._reading = True
        self._read_scheduled = True  # until connection_made has been called
        self._write_scheduled = False
        self._backlog: deque[bytes] = deque()
        self._backlog_bytes = 0
        self._protocol_paused = False
        self._high_water = HIGH_WATER_BYTES
        self._low_water = HIGH_WATER_BYTES // 4

    def __hash__(self) -> int:
        return self.serial

    def __repr__(self) -> str:
        (here, port), (there, peer_port) = self._names
        return f"<SimTransport {here}:{port} to {there}:{peer_port}{' closing' if self._closing else ''}>"

    @property
    def loop(self) -> NodeLoop:
        """The loop of the process that owns this end."""
        return self._loop

    @property
    def gone(self) -> bool:
        """Whether the kernel has let go of this end."""
        return self._gone

    @property
    def outgoing(self) -> Channel:
        """The direction this end sends in."""
        return self._out

    def crosses(self, link: LinkState) -> bool:
        """Whether packets of this connection use `link`, in either direction."""
        return self._out.link is link or self.peer._out.link is link

    def expect_accept_by(self, server: AcceptQueue) -> None:
        """This is the end of a server that has not accepted the connection yet."""
        self._server = server

    # The kernel's half: called as the world's events, never from node code.

    def arrive(self, kind: int, data: bytes) -> None:
        """Take one packet from the network."""
        if self._gone:
            if kind == DATA and self._loop.node.powered:
                self._out.reset()
            return
        if self._broken is not None:
            return
        if kind == DATA:
            self._inbox.append(data)
            self._inbox_bytes += len(data)
        elif kind == FIN:
            self._eof_arrived = True
        elif kind in (RST, ABORT):
            self.break_off(ConnectionResetError(104, "Connection reset by peer"))
            return
        else:
            server = self._server
            if server is None or not server.offer(self):
                self.vanish()
                self._out.reset()
            return
        self._notice()

    def break_off(self, error: OSError) -> None:
        """The connection is over for this end's kernel: the process learns when it next reads or writes."""
        if self._gone or self._broken is not None:
            return
        self._broken = error
        self._out.forget()
        if self._backlog:  # the loop is waiting to write, so it learns at once
            self._backlog.clear()
            self._backlog_bytes = 0
            self._loop.call_soon(self._force_close, error, context=self._context)
        else:
            self._notice()

    def break_connection(self) -> None:
        """Break the connection at both ends."""
        self.break_off(ConnectionResetError(104, "Connection reset by peer"))
        self.peer.break_off(ConnectionResetError(104, "Connection reset by peer"))

    def process_died(self) -> None:
        """The process is gone without a word; its kernel closes the socket."""
        self._backlog.clear()
        self._kernel_close()

    def vanish(self) -> None:
        """The whole machine is gone: the peer gets no packet."""
        self._backlog.clear()
        self._inbox.clear()
        self._gone = True
        self._out.ended(self)

    def _kernel_close(self) -> None:
        if self._gone:
            return
        self._gone = True
        if self._broken is None:
            if self._inbox:
                self._out.forget()
                self._out.abort()
            elif not self._fin_sent:
                self._fin_sent = True
                self._out.send(FIN, b"")
        self._inbox.clear()
        self._out.ended(self)

    def _notice(self) -> None:
        if not self._read_scheduled and self._reading:
            self._read_scheduled = True
            self._loop.call_soon(self._readable, context=self._context)

    # The process's half: runs as callbacks of the node's loop.

    def attach(self, protocol: asyncio.Protocol) -> None:
        """Give the connection to a protocol, called at the loop's next turn."""
        self._protocol = protocol
        self._context = copy_context()
        self._loop.call_soon(self._connection_made, context=self._context)

    def _connection_made(self) -> None:
        assert self._protocol is not None
        self._read_scheduled = False
        self._protocol.connection_made(self)
        if self._inbox or self._eof_arrived or self._broken is not None:
            self._notice()

    def _readable(self) -> None:
        self._read_scheduled = False
        protocol = self._protocol
        if protocol is None or self._gone or self._conn_lost or not self._reading:
            return
        inbox = self._inbox
        if inbox:
            if len(inbox) == 1 and self._inbox_bytes <= READ_BYTES_MAX:
                data = inbox[0]
                inbox.clear()
                self._inbox_bytes = 0
            else:
                data = self._take()
            self.peer.peer_read(len(data))
            if inbox or self._eof_arrived or self._broken is not None:
                self._notice()
            try:
                protocol.data_received(data)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                self._fatal(error, "Fatal error: protocol.data_received() call failed.")
        elif self._broken is not None:
            self._force_close(self._broken)
        elif self._eof_arrived:
            try:
                keep_open = protocol.eof_received()
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                self._fatal(error, "Fatal error: protocol.eof_received() call failed.")
                return
            if keep_open:
                self._reading = False
                self._eof_arrived = False
            else:
                self.close()

    def _take(self) -> bytes:
        joined = b"".join(self._inbox)
        self._inbox.clear()
        if len(joined) > READ_BYTES_MAX:
            self._inbox.append(joined[READ_BYTES_MAX:])
            joined = joined[:READ_BYTES_MAX]
        self._inbox_bytes -= len(joined)
        return joined

    def peer_read(self, size: int) -> None:
        """The peer's process has read `size` bytes: the kernel may have room again."""
        out = self._out
        out.unread_bytes -= size
        if self._backlog and not self._write_scheduled and not self._gone:
            self._write_scheduled = True
            self._loop.call_soon(self._writable, context=self._context)

    def _writable(self) -> None:
        self._write_scheduled = False
        out = self._out
        backlog = self._backlog
        while backlog and out.unread_bytes < KERNEL_BYTES_MAX and not self._gone:
            data = backlog.popleft()
            room = KERNEL_BYTES_MAX - out.unread_bytes
            if len(data) > room:
                backlog.appendleft(data[room:])
                data = data[:room]
            self._backlog_bytes -= len(data)
            out.send(DATA, data)
        if self._protocol_paused and self._backlog_bytes <= self._low_water and self._protocol is not None:
            self._protocol_paused = False
            self._protocol.resume_writing()
        if not backlog:
            if self._closing:
                if not self._conn_lost:
                    self._conn_lost = True
                    self._lost(None)
            elif self._eof_written:
                self._send_fin()

    def _send_fin(self) -> None:
        if not self._fin_sent and not self._gone:
            self._fin_sent = True
            self._out.send(FIN, b"")

    def _lost(self, error: BaseException | None) -> None:
        protocol = self._protocol
        self._protocol = None
        try:
            if protocol is not None:
                protocol.connection_lost(error if isinstance(error, Exception) else None)
        finally:
            self._kernel_close()

    def _force_close(self, error: BaseException | None) -> None:
        if self._conn_lost or not self._loop.alive:
            return
        self._backlog.clear()
        self._backlog_bytes = 0
        self._closing = True
        self._conn_lost = True
        self._reading = False
        self._loop.call_soon(self._lost, error, context=self._context)

    def _fatal(self, error: BaseException, message: str) -> None:
        self._loop.call_exception_handler({"message": message, "exception": error})
        self._force_close(error)

    # asyncio.Transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """`peername` and `sockname`; nothing else is there."""
        if name == "peername":
            return self._names[1]
        return self._names[0] if name == "sockname" else default

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Hand the connection to another protocol."""
        self._protocol = protocol  # type: ignore[assignment]  # only streaming protocols exist here

    def get_protocol(self) -> asyncio.BaseProtocol:
        """The protocol served."""
        assert self._protocol is not None
        return self._protocol

    def is_closing(self) -> bool:
        """Whether close or abort was called, the connection is known to be lost, or the process is dead."""
        return self._closing or not self._loop.alive  # asyncio's StreamWriter complains when it is dropped open

    def is_reading(self) -> bool:
        """Whether arriving data is handed over."""
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        """Leave arriving data with the kernel."""
        if not self._closing:
            self._reading = False

    def resume_reading(self) -> None:
        """Hand arriving data over again."""
        if not self._closing and not self._reading:
            self._reading = True
            if self._inbox or self._eof_arrived or self._broken is not None:
                self._notice()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """As asyncio has it: `low` is a quarter of `high` unless given."""
        if high is None:
            high = HIGH_WATER_BYTES if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._high_water, self._low_water = high, low
        self._maybe_pause_protocol()

    def get_write_buffer_size(self) -> int:
        """Bytes the kernel has not taken yet."""
        return self._backlog_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """(low, high)."""
        return self._low_water, self._high_water

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send `data` after all that was written before; silently dropped once the connection is closing."""
        if type(data) is not bytes:
            if not isinstance(data, (bytes, bytearray, memoryview)):
                raise TypeError(f"data argument must be a bytes-like object, not {type(data).__name__!r}")
            data = bytes(data)
        if self._eof_written:
            raise RuntimeError("Cannot call write() after write_eof()")
        if not data or self._conn_lost or self._gone:
            return
        if self._broken is not None:
            self._force_close(self._broken)
            return
        crash_point = self._loop.crash_point
        if crash_point.armed:
            crash_point.reach()
            if self._gone:  # the process died on this very write
                return
        out = self._out
        if self._loop.node.frozen:
            if not self._write_scheduled:
                self._write_scheduled = True
                self._loop.call_first(self._writable, self._context)
        elif not self._backlog and out.unread_bytes + len(data) <= KERNEL_BYTES_MAX:
            out.send(DATA, data)
            return
        else:
            room = 0 if self._backlog else max(0, KERNEL_BYTES_MAX - out.unread_bytes)
            if room:
                out.send(DATA, data[:room])
                data = data[room:]
        self._backlog.append(data)
        self._backlog_bytes += len(data)
        self._maybe_pause_protocol()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Send the pieces as one write."""
        self.write(b"".join(list_of_data))

    def _maybe_pause_protocol(self) -> None:
        if self._backlog_bytes > self._high_water and not self._protocol_paused and self._protocol is not None:
            self._protocol_paused = True
            self._protocol.pause_writing()

    def can_write_eof(self) -> bool:
        """True: TCP can be closed in one direction."""
        return True

    def write_eof(self) -> None:
        """Close the sending direction once all is sent; reading goes on."""
        if self._closing or self._eof_written:
            return
        self._eof_written = True
        if not self._backlog:
            self._send_fin()

    def close(self) -> None:
        """Close once all is sent. The protocol learns at the loop's next turn, or when the kernel has taken it all."""
        if self._closing or not self._loop.alive:
            return
        self._closing = True
        self._reading = False
        if not self._backlog and not self._conn_lost:
            self._conn_lost = True
            self._loop.call_soon(self._lost, None, context=self._context)

    def abort(self) -> None:
        """Close at once; what the kernel has not taken is lost."""
        if self._has_every_answer():
            self._loop.node.left_unheard(self._names[1][0])
        self._force_close(None)

    def _has_every_answer(self) -> bool:
        """Whether this is a client's end of a live connection whose process has read an answer to all that it sent."""
        asked, answers = self._out, self.peer.outgoing
        in_use = asked.carries_requests and not (self._closing or self._conn_lost or self._gone or self._broken)
        if not (in_use and self._loop.alive) or self._eof_arrived or self._backlog or answers.unread_bytes:
            return False
        return 0 < asked.frames.whole == answers.frames.whole and asked.frames.ends_whole and answers.frames.ends_whole
