"""Plain asyncio programs do on the simulated loop what they do on the real one.

Each script runs on both and tells what it sees; both tellings must be equal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from harness.simulation.world import World

Note = Callable[..., None]
Script = Callable[[Note], Awaitable[object]]
SCRIPTS: list[Script] = []


def script(function: Script) -> Script:
    SCRIPTS.append(function)
    return function


def _tell(run: Callable[[Any], Any], function: Script) -> list[object]:
    notes: list[object] = []

    async def main() -> None:
        result = await function(lambda *what: notes.append(what))
        notes.append(("result", result))

    try:
        run(main())
    except Exception as error:
        notes.append(("raised", type(error).__name__, str(error)))
    return notes


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("function", SCRIPTS, ids=lambda function: function.__name__)
def test_a_script_tells_the_same_on_the_real_and_the_simulated_loop(function: Script, seed: int) -> None:
    with World(seed) as world:
        simulated = _tell(world.run, function)
        assert world.harness.errors == []
    assert simulated == _tell(asyncio.run, function)


def _port(server: asyncio.Server) -> int:
    port: int = server.sockets[0].getsockname()[1]
    return port


@script
async def tasks_take_turns_in_order(note: Note) -> None:
    async def worker(name: str) -> str:
        for step in range(3):
            note(name, step)
            await asyncio.sleep(0)
        return name

    note(await asyncio.gather(worker("a"), worker("b"), worker("c")))


@script
async def callbacks_run_in_the_order_they_were_scheduled(note: Note) -> None:
    loop = asyncio.get_running_loop()
    loop.call_soon(note, 1)
    loop.call_later(0.02, note, "later")
    loop.call_at(loop.time() + 0.01, note, "at")
    loop.call_soon(note, 2).cancel()
    loop.call_later(0.005, note, "never").cancel()
    loop.call_soon(note, 3)
    await asyncio.sleep(0.05)


@script
async def timeouts_and_cancellation(note: Note) -> None:
    async def stubborn() -> None:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            note("cancelled")
            raise
        finally:
            note("finally")

    for wait in (asyncio.wait_for(stubborn(), 0.01), _with_timeout(stubborn())):
        try:
            await wait
        except TimeoutError:
            note("timeout")
    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    task.cancel("enough")
    try:
        await task
    except asyncio.CancelledError as error:
        note("args", error.args)
    note(await asyncio.wait_for(asyncio.sleep(0, "in time"), 1))
    gate = asyncio.Event()
    shielded = asyncio.create_task(gate.wait())
    try:
        await asyncio.wait_for(asyncio.shield(shielded), 0.005)
    except TimeoutError:
        note("shield", shielded.done())
        gate.set()
        note("kept", await shielded)


async def _with_timeout(coroutine: Awaitable[object]) -> object:
    async with asyncio.timeout(0.01):
        return await coroutine


@script
async def a_task_group_cancels_its_siblings_in_order(note: Note) -> None:
    async def sibling(name: int) -> None:
        try:
            await asyncio.sleep(5)
        finally:
            note("sibling", name)

    async def fails() -> None:
        await asyncio.sleep(0.005)
        raise ValueError("no")

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(sibling(1))
            group.create_task(fails())
    except* ValueError as errors:
        note([str(error) for error in errors.exceptions])


@script
async def events_queues_locks_and_conditions(note: Note) -> None:
    queue: asyncio.Queue[int] = asyncio.Queue(2)
    event, lock, condition = asyncio.Event(), asyncio.Lock(), asyncio.Condition()

    async def producer() -> None:
        for item in range(5):
            await queue.put(item)
            note("put", item)
        event.set()

    async def consumer() -> None:
        for _ in range(5):
            note("got", await queue.get())

    async def locked(name: str) -> None:
        async with lock:
            note("in", name)
            await asyncio.sleep(0)
            note("out", name)
        async with condition:
            await condition.wait()
            note("woken", name)

    waiters = [asyncio.create_task(locked(name)) for name in "xyz"]
    await asyncio.gather(producer(), consumer(), event.wait())
    async with condition:
        condition.notify_all()
    await asyncio.gather(*waiters)
    semaphore = asyncio.Semaphore(2)
    async with semaphore, semaphore:
        note(semaphore.locked())


@script
async def waiting_for_the_first(note: Note) -> None:
    async def opened(name: str) -> str:
        await gates[name].wait()
        return name

    gates = {name: asyncio.Event() for name in "abc"}
    tasks = [asyncio.create_task(opened(name)) for name in gates]
    gates["b"].set()
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    note([task.result() for task in done], len(pending))
    for name, future in zip("ca", asyncio.as_completed(pending), strict=True):
        gates[name].set()
        note(await future)


@script
async def what_a_scenario_leaves_running_is_cancelled(note: Note) -> str:
    async def left() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            note("cleaned up")

    asyncio.create_task(left())  # noqa: RUF006  # leaving it is the point
    await asyncio.sleep(0)
    return "done"


@script
async def an_abandoned_generator_is_closed(note: Note) -> None:
    async def numbers() -> Any:
        try:
            yield 1
            yield 2
        finally:
            note("closed")

    async for number in numbers():
        note(number)
        break
    await asyncio.sleep(0.01)


@script
async def an_error_ends_the_run(note: Note) -> None:
    await asyncio.sleep(0)
    raise LookupError("nothing there")


@script
async def streams_echo_lines_until_eof(note: Note) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line.upper())
            await writer.drain()
        note("server saw eof")
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", _port(server))
    note(writer.get_extra_info("peername")[1] == _port(server))
    for word in (b"one\n", b"two\n"):
        writer.write(word)
        note(await reader.readline())
    writer.write(b"last\n")
    writer.write_eof()
    note(await reader.read())
    writer.close()
    await writer.wait_closed()
    server.close()
    await server.wait_closed()
    note(server.is_serving())


class Recording(asyncio.Protocol):
    """Notes what asyncio calls, and joins data, since a stream keeps no boundaries."""

    def __init__(self, name: str, note: Note, *, stay_open: bool = False) -> None:
        self.name, self.note, self.stay_open = name, note, stay_open
        self.data = b""
        self.made: asyncio.Future[asyncio.Transport] = asyncio.get_running_loop().create_future()
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.made.set_result(transport)

    def data_received(self, data: bytes) -> None:
        self.data += data

    def eof_received(self) -> bool:
        self.note(self.name, "eof after", len(self.data))
        return self.stay_open

    def connection_lost(self, error: Exception | None) -> None:
        self.note(self.name, "lost", type(error).__name__, len(self.data))
        if not self.over.done():
            self.over.set_result(None)


async def _connected(note: Note, **options: bool) -> tuple[Recording, Recording, asyncio.Server]:
    loop = asyncio.get_running_loop()
    accepted: asyncio.Future[Recording] = loop.create_future()

    def accept() -> Recording:
        accepted.set_result(Recording("server", note, **options))
        return accepted.result()

    server = await loop.create_server(accept, "127.0.0.1", 0)
    transport, client = await loop.create_connection(lambda: Recording("client", note), "127.0.0.1", _port(server))
    note(client.made.done(), transport is client.made.result())
    await (await accepted).made
    return client, accepted.result(), server


@script
async def closing_a_transport_delivers_what_was_written(note: Note) -> None:
    client, accepted, server = await _connected(note)
    transport = client.made.result()
    transport.write(b"x" * 10_000)
    transport.writelines([b"y" * 10, bytearray(b"z")])
    transport.close()
    transport.write(b"too late")
    note(transport.is_closing())
    await asyncio.gather(client.over, accepted.over)
    server.close()


@script
async def a_large_write_pauses_the_writer_until_it_is_read(note: Note) -> None:
    client, accepted, server = await _connected(note)
    transport, other = client.made.result(), accepted.made.result()
    other.pause_reading()
    paused = asyncio.Event()
    resumed = asyncio.Event()
    client.pause_writing = paused.set  # type: ignore[method-assign]
    client.resume_writing = resumed.set  # type: ignore[method-assign]
    size = 20_000_000
    transport.write(b"x" * size)
    note(paused.is_set(), transport.get_write_buffer_size() > 0)
    await asyncio.sleep(0.02)
    note(resumed.is_set(), other.is_reading())
    other.resume_reading()
    await resumed.wait()
    transport.close()
    await accepted.over
    await client.over
    server.close()


@script
async def half_closed_connections_still_carry_answers(note: Note) -> None:
    client, accepted, server = await _connected(note, stay_open=True)
    transport, other = client.made.result(), accepted.made.result()
    note(transport.can_write_eof())
    transport.write(b"question")
    transport.write_eof()
    try:
        transport.write(b"more")
    except RuntimeError as error:
        note(str(error))
    while not accepted.data:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.005)
    other.write(b"answer")
    other.close()
    await asyncio.gather(client.over, accepted.over)
    server.close()


@script
async def closing_with_unread_data_resets_the_peer(note: Note) -> None:
    client, accepted, server = await _connected(note)
    other = accepted.made.result()
    other.pause_reading()
    client.made.result().write(b"never read")
    await asyncio.sleep(0.02)
    other.abort()
    await asyncio.gather(client.over, accepted.over)
    server.close()


@script
async def a_protocol_that_fails_loses_its_connection(note: Note) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: note(context["message"], type(context["exception"]).__name__))
    client, accepted, server = await _connected(note)

    def fail(data: bytes) -> None:
        raise ZeroDivisionError

    accepted.data_received = fail  # type: ignore[method-assign]
    client.made.result().write(b"boom")
    await asyncio.gather(client.over, accepted.over)
    server.close()


@script
async def nobody_listening_refuses(note: Note) -> None:
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = _port(server)
    try:
        await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", port)
    except OSError as error:
        note("bind", error.errno)
    server.close()
    await server.wait_closed()
    try:
        await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError as error:
        note("connect", error.errno)
    try:
        await asyncio.open_connection("no.such.host.invalid", 1)
    except OSError as error:
        note(type(error).__name__)
