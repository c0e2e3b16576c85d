"""A process of a library's clients, driven in JSON lines.

Commands go to its standard input, one object a line; answers come from its standard output, in any order. An answer has
the `id` of its command. The process serves any number of clients, each by its name:

    {"do": "open", "client": C, "kind": "producer" or "consumer", "topic": T, "properties": {…}}
    {"do": "append", "client": C, "id": N, "partition": P, "values": ["17", "18", …]}
        a record each, with the ids N, N + 1 …; an answer is about one of them, or about a run of them
        → {"id": N, "count": K, "offset": O}              K records acknowledged, from this id and this offset on; null
                                                          where the library was not told the offset
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
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from operator import itemgetter
from tempfile import TemporaryFile
from typing import IO, Any, Final

from workloads.clients.library import LibraryError
from workloads.compact_json import compact

_LINE_BYTES_MAX: Final = 64 << 20
_START_LIMIT_S: Final = 300.0
_END_LIMIT_S: Final = 5.0

Answer = asyncio.Future[dict[str, Any] | None]


class SentRecords:
    """Records that were sent in one command, until each has an answer or all are given up."""

    def __init__(self, count: int, on_answer: Callable[[Sequence[int], Mapping[str, Any]], None]) -> None:
        """`on_answer` is called with the places of records and their answer, in which `offset` is that of the first of
        them. Each place comes once."""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when every record has an answer. Raises LibraryError when the process ends before, or what `on_answer`
        raised."""
        self._open = dict.fromkeys(range(count))
        self._on_answer = on_answer

    def answer(self, places: Sequence[int], message: Mapping[str, Any]) -> None:
        """What the process says about records, unless they were given up before."""
        if self.ended.done():
            return
        for place in places:
            del self._open[place]
        try:
            self._on_answer(places, message)
        except Exception as error:
            self.ended.set_exception(error)
        else:
            if not self._open:
                self.ended.set_result(None)

    def give_up(self, error: str) -> None:
        """Wait for no more answers: nobody knows what became of the records without one."""
        if not self.ended.done():
            self.answer(list(self._open), {"error": error, "taken": True})

    def fail(self, error: LibraryError) -> None:
        """There will be no more answers, which is an error."""
        if not self.ended.done():
            self.ended.set_exception(error)


class ClientProcess:
    """A process and the answers that it owes."""

    def __init__(self, library: str, argv: Sequence[str]) -> None:
        self._library = library
        self._argv = argv
        self._process: asyncio.subprocess.Process | None = None
        self._log: IO[bytes] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._answers: dict[int, Answer] = {}
        self._sent: dict[int, tuple[SentRecords, int]] = {}
        """Records and their places, by id."""
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
        self._process.stdin.write(f"{compact(command)}\n".encode())

    def ask(self, command: Mapping[str, Any]) -> Answer:
        """Send a command; its answer comes as the result of a future, which may be resolved by its owner before, or
        raises LibraryError when the process ends first."""
        self._next_id += 1
        answer = self._answers[self._next_id] = asyncio.get_running_loop().create_future()
        self.post({**command, "id": self._next_id})
        return answer

    def append(self, client: str, partition: int, values: Sequence[str], records: SentRecords) -> None:
        """Send `records`, which have these values. Raises LibraryError when the process has ended."""
        first = self._next_id + 1
        self.post({"do": "append", "client": client, "id": first, "partition": partition, "values": values})
        self._next_id += len(values)
        self._sent.update((first + place, (records, place)) for place in range(len(values)))

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
            number = message["id"]
            if number in self._sent:
                self._answer_records(range(number, number + message.get("count", 1)), message)
            elif (answer := self._answers.pop(number, None)) is not None and not answer.done():
                answer.set_result(message)
        self._failure = await self._why_ended()
        error = LibraryError(self._failure)
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(error)
        for records, _ in self._sent.values():
            records.fail(error)

    def _answer_records(self, numbers: range, message: dict[str, Any]) -> None:
        """One answer may be about records of several commands."""
        for records, sent in groupby(map(self._sent.pop, numbers), key=itemgetter(0)):
            places = [place for _, place in sent]
            records.answer(places, message.copy())
            if message.get("offset") is not None:
                message["offset"] += len(places)

    async def _why_ended(self) -> str:
        assert self._process is not None
        assert self._log is not None
        status = await self._process.wait()
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines() or ["without any output"]
        return f"clients of {self._library}: their process ended with status {status}: {lines[-1]}"
