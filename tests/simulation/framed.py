"""A server and a client of Kafka's frames, whose messages simulation tests intercept."""

from __future__ import annotations

import asyncio
from struct import Struct

PORT = 9092

_REQUEST = Struct(">ihhi")
_RESPONSE = Struct(">ii")


async def serve(requests: list[tuple[int, int]]) -> None:
    """Note the API key and the correlation id of every request, and respond to it, until the process dies."""

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                _, api_key, _, correlation_id = _REQUEST.unpack(await reader.readexactly(_REQUEST.size))
                requests.append((api_key, correlation_id))
                writer.write(_RESPONSE.pack(4, correlation_id))
        except (ConnectionError, asyncio.IncompleteReadError):
            writer.close()

    responding: list[asyncio.Task[None]] = []

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        responding.append(asyncio.create_task(respond(reader, writer)))

    await asyncio.start_server(accept, "0.0.0.0", PORT)
    await asyncio.Event().wait()


class FramedCaller:
    """One connection to such a server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, host: str) -> FramedCaller:
        """Connect to the server on `host`, which has just been started."""
        await asyncio.sleep(0.001)
        return cls(*await asyncio.open_connection(host, PORT))

    def send(self, api_key: int, *correlation_ids: int) -> None:
        """Send requests as one write."""
        self.writer.write(b"".join(_REQUEST.pack(8, api_key, 0, number) for number in correlation_ids))

    async def response(self, timeout_s: float = 60.0) -> int:
        """The correlation id of the next response. Raises TimeoutError, ConnectionError or IncompleteReadError."""
        async with asyncio.timeout(timeout_s):
            _, correlation_id = _RESPONSE.unpack(await self.reader.readexactly(_RESPONSE.size))
        return int(correlation_id)
