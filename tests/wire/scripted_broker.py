"""A broker on loopback that does with each request what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from images.wire.connection import decode_request

Answer = Callable[[Any, int, asyncio.StreamWriter], Awaitable[None]]
"""(request, correlation id, where to write): what a scripted broker does with one request."""


@asynccontextmanager
async def broker(answer: Answer) -> AsyncIterator[int]:
    """A broker that does with each request what the script says; gives its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                size = await reader.readexactly(4)
                head, request = decode_request(size + await reader.readexactly(int.from_bytes(size)))
                await answer(request, head.correlation_id, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
