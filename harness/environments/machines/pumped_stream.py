"""A `Stream` over calls that block: a thread of its own reads, so that no more than this thread is ever stuck."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress


class PumpedStream:
    """`chunks` blocks until there is more, and ends or raises when there never will be; `send` raises MachineError."""

    def __init__(self, chunks: Iterable[bytes], send: Callable[[bytes], object], end: Callable[[], object]) -> None:
        self._chunks = chunks
        self._send = send
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._received: asyncio.Queue[bytes] = asyncio.Queue()
        threading.Thread(target=self._pump, daemon=True).start()

    async def send(self, data: bytes) -> None:
        """See `Stream.send`."""
        await asyncio.to_thread(self._send, data)

    async def receive(self) -> bytes:
        """See `Stream.receive`."""
        return await self._received.get()

    def close(self) -> None:
        """See `Stream.close`."""
        self._end()

    def _pump(self) -> None:
        with suppress(Exception):  # whatever the library raises, there is no more to read
            for chunk in self._chunks:
                self._hand_over(chunk)
        self._hand_over(b"")

    def _hand_over(self, chunk: bytes) -> None:
        with suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._received.put_nowait, chunk)
