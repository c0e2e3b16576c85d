"""A server under test on loopback, and its clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import wraps
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v4.request import InitProducerIdRequest
from kio.schema.init_producer_id.v4.response import InitProducerIdResponse

from images.broker.runtime.server import Handler, Request, Server
from images.wire.connection import (
    Api,
    Connection,
)


def asynchronous(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        asyncio.run(asyncio.wait_for(test(), 120))

    return run


def asking(number: int) -> InitProducerIdRequest:
    return InitProducerIdRequest(transactional_id=None, transaction_timeout=timedelta(0), producer_id=number)


async def echo(request: Request) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        throttle_time=timedelta(0),
        error_code=ErrorCode.none,
        producer_id=request.body.producer_id,
        producer_epoch=0,
    )


async def until(condition: Callable[[], bool]) -> None:
    """Wait for an action of the server that no event announces."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


@dataclass
class Running:
    """A server at work, and the lines it logged."""

    server: Server
    lines: list[str] = field(default_factory=list)

    async def connect(self) -> Connection:
        return await Connection.open("127.0.0.1", self.server.port, "test", 60.0)

    async def streams(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.server.port)

    async def logged(self) -> list[str]:
        """The lines logged, once there is one and no other follows."""
        await until(lambda: bool(self.lines))
        await asyncio.sleep(0.005)
        return self.lines


@asynccontextmanager
async def serving(max_frame_bytes: int = 1 << 20, **handlers: Handler) -> AsyncIterator[Running]:
    """A server with a handler for each API named, and `echo` for INIT_PRODUCER_ID."""
    lines: list[str] = []
    named = {Api.INIT_PRODUCER_ID: echo, **{Api[name.upper()]: handler for name, handler in handlers.items()}}
    server = Server(named, log=lines.append, max_frame_bytes=max_frame_bytes)
    await server.start("127.0.0.1", 0)
    try:
        yield Running(server, lines)
    finally:
        await server.close()


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    size = await reader.readexactly(4)
    return size + await reader.readexactly(int.from_bytes(size))
