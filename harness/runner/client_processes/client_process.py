"""A process of a library's clients, driven in JSON lines.

Commands go to its standard input, one object a line; answers come from its standard output, in any order. An answer has
the `id` of its command. The process serves any number of clients, each by its name:

    {"do": "open", "client": C, "kind": "producer" or "consumer", "topic": T, "properties": {…}}
    {"do": "append", "client": C, "id": N, "partition": P, "value": "17"}
        → {"id": N, "offset": O}                          acknowledged; null where the library was not told the offset
        → {"id": N, "error": E, "taken": false}           the library refused it before it took the record
        → {"id": N, "error": E, "taken": true}            given up: nobody knows
    {"do": "assign", "client": C, "partitions": [P, …]}   from their start
    {"do": "seek", "client": C, "partition": P, "offset": O, "epoch": E or null}
    {"do": "poll", "client": C, "id": N, "wait_ms": W}
        → {"id": N, "polled": [{"partition": P, "offsets": […], "values": ["17", null, …]},
                               {"partition": P, "error": E},
                               {"partition": P, "truncated": true, "offset": O or null, "epoch": E or null}, …]}
    {"do": "ends", "client": C, "id": N, "partition": P, "wait_ms": W}
        → {"id": N, "beginning": B, "end": E}  or  {"id": N, "error": E}
    {"do": "close", "client": C, "id": N}  →  {"id": N}

Commands of one client are carried out in their order. The process ends when its input does. Its first line is `{}`, and
it ends by itself only with an error, whose last line on standard error says why.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from tempfile import TemporaryFile
from typing import IO, Any, Final

from workloads.clients.library import LibraryError

_LINE_BYTES_MAX: Final = 64 << 20
_START_LIMIT_S: Final = 300.0
_END_LIMIT_S: Final = 5.0

Answer = asyncio.Future[dict[str, Any] | None]


class ClientProcess:
    """A process and the answers that it owes."""

    def __init__(self, library: str, argv: Sequence[str]) -> None:
        self._library = library
        self._argv = argv
        self._process: asyncio.subprocess.Process | None = None
        self._log: IO[bytes] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._answers: dict[int, Answer] = {}
        self._next_id = 0
        self._failure = ""

    async def start(self) -> None:
        """Start it and wait until it is ready. Raises LibraryError."""
        self._log = TemporaryFile()
        pipe = asyncio.subprocess.PIPE
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._argv, stdin=pipe, stdout=pipe, stderr=self._log, limit=_LINE_BYTES_MAX
            )
        except OSError as error:
            raise LibraryError(f"clients of {self._library}: {self._argv[0]} cannot be started: {error}") from None
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(_START_LIMIT_S):
                ready = await self._process.stdout.readline()
        except TimeoutError:
            raise LibraryError(f"clients of {self._library}: not started within {_START_LIMIT_S:g} s") from None
        if not ready:
            raise LibraryError(await self._why_ended())
        self._reading = asyncio.create_task(self._read(self._process.stdout))

    def post(self, command: Mapping[str, Any]) -> None:
        """Send a command that has no answer. Raises LibraryError when the process has ended."""
        if self._failure:
            raise LibraryError(self._failure)
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command, separators=(",", ":")).encode() + b"\n")

    def ask(self, command: Mapping[str, Any]) -> Answer:
        """Send a command; its answer comes as the result of a future, which may be resolved by its owner before, or
        raises LibraryError when the process ends first."""
        self._next_id += 1
        answer = self._answers[self._next_id] = asyncio.get_running_loop().create_future()
        self.post({**command, "id": self._next_id})
        return answer

    async def drain(self) -> None:
        """Wait until the process takes more commands."""
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(ConnectionError):  # the end of its output says why
            await self._process.stdin.drain()

    async def close(self) -> None:
        """End it: its input ends, and after a while it is killed. May be called twice."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(_END_LIMIT_S):
                await self._process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        if self._reading is not None:
            await self._reading
        if self._log is not None:
            self._log.close()

    async def _read(self, output: asyncio.StreamReader) -> None:
        while line := await output.readline():
            message = json.loads(line)
            answer = self._answers.pop(message["id"], None)
            if answer is not None and not answer.done():
                answer.set_result(message)
        self._failure = await self._why_ended()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(LibraryError(self._failure))

    async def _why_ended(self) -> str:
        assert self._process is not None
        assert self._log is not None
        status = await self._process.wait()
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines() or ["without any output"]
        return f"clients of {self._library}: their process ended with status {status}: {lines[-1]}"
