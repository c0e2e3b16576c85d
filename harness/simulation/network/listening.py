"""Listening ports: connections that a kernel has accepted wait here until the process does."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from harness.simulation.event_loop.loop import NodeLoop
from harness.simulation.network.transport import SimTransport


class _ListeningSocket:
    """An entry of `Server.sockets`: enough to ask for the address."""

    __slots__ = ("_name",)

    def __init__(self, name: tuple[str, int]) -> None:
        self._name = name

    def getsockname(self) -> tuple[str, int]:
        return self._name


class SimServer(asyncio.AbstractServer):
    """A listening port."""

    def __init__(
        self,
        listeners: dict[tuple[str, int], SimServer],
        loop: NodeLoop,
        factory: Callable[[], asyncio.BaseProtocol],
        port: int,
    ) -> None:
        self._listeners = listeners
        self._loop = loop
        self._factory = factory
        self._closed = loop.create_future()
        self._accepting = False
        self.port = port
        self.listening = True
        self._unaccepted: deque[SimTransport] = deque()

    @property
    def loop(self) -> NodeLoop:
        """The loop of the process that listens."""
        return self._loop

    @property
    def sockets(self) -> tuple[_ListeningSocket, ...]:
        """One listening address, or none once closed."""
        return (_ListeningSocket((self._loop.node.name, self.port)),) if self.listening else ()

    def offer(self, transport: SimTransport) -> bool:
        """A connection is established; False when no process will accept it any more."""
        if not self.listening:
            return False
        self._unaccepted.append(transport)
        if self._accepting:
            self._loop.call_soon(self._accept)
        return True

    def _accept(self) -> None:
        if self._unaccepted:
            self._unaccepted.popleft().attach(self._factory())  # type: ignore[arg-type]

    def stop_listening(self) -> None:
        """Free the port; connections that were not accepted are reset."""
        if self.listening:
            self.listening = False
            self._listeners.pop((self._loop.node.name, self.port), None)
            while self._unaccepted:
                transport = self._unaccepted.popleft()
                transport.vanish()
                transport.outgoing.reset()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """The loop of the process that listens."""
        return self._loop

    def is_serving(self) -> bool:
        """Whether connections are accepted."""
        return self.listening and self._accepting

    async def start_serving(self) -> None:
        """Accept connections."""
        self.start()

    def start(self) -> None:
        """Accept connections, those that wait first."""
        self._accepting = True
        for _ in self._unaccepted:
            self._loop.call_soon(self._accept)

    async def serve_forever(self) -> None:
        """Accept until cancelled, then close."""
        self.start()
        try:
            await self._loop.create_future()
        finally:
            self.close()

    def close(self) -> None:
        """Stop listening; accepted connections stay."""
        self.stop_listening()
        if not self._closed.done():
            self._closed.set_result(None)

    async def wait_closed(self) -> None:
        """Return once close has been called."""
        await asyncio.shield(self._closed)
