"""A tiny server and client that simulation tests break."""

from __future__ import annotations

import asyncio

PORT = 9092


async def serve(log: list[str] | None = None) -> None:
    """Echo lines until the process dies.

    Every connection gets a task made here: for one that `start_server` makes, streams spend a callback more from
    Python 3.12 on.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                if log is not None:
                    log.append(line.decode().strip())
                writer.write(line)
                await writer.drain()
            if log is not None:
                log.append("eof")
        except ConnectionError as error:
            if log is not None:
                log.append(type(error).__name__)
        finally:
            writer.close()

    answering: list[asyncio.Task[None]] = []

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answering.append(asyncio.create_task(answer(reader, writer)))

    await asyncio.start_server(accept, "0.0.0.0", PORT)
    await asyncio.Event().wait()


class Caller:
    """One connection to an echo server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, host: str) -> Caller:
        """Connect to the server on `host`, which has just been started."""
        await asyncio.sleep(0.001)
        return cls(*await asyncio.open_connection(host, PORT))

    def send(self, line: str) -> None:
        """Send without waiting."""
        self.writer.write(f"{line}\n".encode())

    async def answer(self) -> str:
        """The next line, empty at EOF. Raises ConnectionError."""
        return (await self.reader.readline()).decode().strip()

    async def call(self, line: str, timeout_s: float = 1.0) -> str:
        """Send and wait for the answer. Raises TimeoutError or ConnectionError."""
        self.send(line)
        async with asyncio.timeout(timeout_s):
            return await self.answer()
