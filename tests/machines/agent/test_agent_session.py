"""Commands of the node agent over one process: the real agent on this machine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.environments.machines.agent_session import AgentSession
from harness.environments.machines.machine import CommandFailed, MachineError
from harness.environments.machines.pumped_stream import PumpedStream

ROOT = Path(__file__).parents[3]


class ThisMachine:
    """Starts the agent here, with a place of its own for what it keeps."""

    name, address = "b1", "127.0.0.1"

    def __init__(self, directory: Path) -> None:
        self.environment = {**os.environ, "FAULTLINE_RUN": str(directory / "run")}
        self.opened: list[asyncio.subprocess.Process] = []

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 120.0) -> bytes:
        raise AssertionError("a process for one command")

    async def put(self, contents: bytes, path: str, *, mode: int = 0o644) -> None:
        raise NotImplementedError

    async def fetch(self, path: str) -> bytes:
        raise NotImplementedError

    async def open(self, argv: Sequence[str]) -> Pipes:
        pipe = asyncio.subprocess.PIPE
        command = [sys.executable, "-m", "images.base.agent", *argv[1:]]
        process = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, cwd=ROOT, env=self.environment
        )
        self.opened.append(process)
        return Pipes(process)


class Pipes:
    """The pipes of a process, as a stream."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.stdin, self.stdout = process.stdin, process.stdout

    async def send(self, data: bytes) -> None:
        self.stdin.write(data)
        await self.stdin.drain()

    async def receive(self) -> bytes:
        return await self.stdout.read(1 << 16)

    def close(self) -> None:
        self.stdin.close()


def play(directory: Path, scenario: Callable[[AgentSession, ThisMachine], Awaitable[None]]) -> None:
    async def with_session() -> None:
        machine = ThisMachine(directory)
        session = AgentSession(machine)
        try:
            await scenario(session, machine)
        finally:
            await ask(session, "kill")
            session.close()
            for process in machine.opened:
                assert await process.wait() in {0, -signal.SIGKILL}

    asyncio.run(with_session())


async def ask(session: AgentSession, *arguments: str, request: object = None) -> Any:
    return json.loads(await session.run(arguments, stdin=json.dumps(request).encode()))


def sleeping(directory: Path) -> dict[str, object]:
    return {"argv": ["sleep", "60"], "log": str(directory / "log")}


def test_commands_overlap_in_one_process(tmp_path: Path) -> None:
    async def scenario(session: AgentSession, machine: ThisMachine) -> None:
        started = await ask(session, "start", request=sleeping(tmp_path))
        waiting = asyncio.create_task(ask(session, "wait", "1", "--limit", "100"))
        status = await ask(session, "status")
        assert (status["alive"], status["pid"]) == (True, started["pid"])
        assert not waiting.done()
        assert await ask(session, "kill") == {"killed": 1}
        assert (await waiting)["ended"]["status"] == -signal.SIGKILL
        assert len(machine.opened) == 1

    play(tmp_path, scenario)


def test_a_command_that_fails_says_why_and_the_next_one_is_carried_out(tmp_path: Path) -> None:
    async def scenario(session: AgentSession, machine: ThisMachine) -> None:
        with pytest.raises(CommandFailed, match=r"^b1: nowhere cannot be started: "):
            await ask(session, "start", request=sleeping(tmp_path) | {"argv": ["nowhere"]})
        with pytest.raises(CommandFailed, match="invalid choice: 'nonsense'") as refused:
            await ask(session, "nonsense")
        assert refused.value.status == 2
        assert not (await ask(session, "status"))["alive"]
        assert len(machine.opened) == 1

    play(tmp_path, scenario)


def test_a_command_that_takes_too_long_is_given_up_and_others_are_not(tmp_path: Path) -> None:
    async def scenario(session: AgentSession, machine: ThisMachine) -> None:
        await ask(session, "start", request=sleeping(tmp_path))
        with pytest.raises(MachineError, match=r"^b1: faultline-node wait has not ended after 0\.2 s$"):
            await session.run(["wait", "1"], timeout_s=0.2)
        assert (await ask(session, "status"))["alive"]

    play(tmp_path, scenario)


def test_an_agent_that_is_lost_fails_what_was_under_way_and_is_started_anew(tmp_path: Path) -> None:
    async def scenario(session: AgentSession, machine: ThisMachine) -> None:
        started = await ask(session, "start", request=sleeping(tmp_path))
        waiting = asyncio.create_task(ask(session, "wait", "1"))
        await ask(session, "status")
        machine.opened[0].kill()
        with pytest.raises(MachineError, match=r"^b1: the node agent was cut off$"):
            await waiting
        status = await ask(session, "status")
        assert (status["alive"], status["pid"]) == (True, started["pid"])
        assert len(machine.opened) == 2

    play(tmp_path, scenario)


def test_what_was_started_goes_on_when_nobody_asks_any_more(tmp_path: Path) -> None:
    async def scenario(session: AgentSession, machine: ThisMachine) -> None:
        started = await ask(session, "start", request=sleeping(tmp_path))
        session.close()
        assert await machine.opened[0].wait() == 0
        os.kill(started["pid"], 0)

    play(tmp_path, scenario)


def test_a_stream_over_blocking_calls_ends_with_them() -> None:
    def chunks() -> Iterator[bytes]:
        yield b"a"
        yield b"b"
        raise OSError("the connection broke")

    async def received() -> list[bytes]:
        sent: list[bytes] = []
        stream = PumpedStream(chunks(), sent.append, sent.clear)
        await stream.send(b"c")
        assert sent == [b"c"]
        parts = [await stream.receive() for _ in range(3)]
        stream.close()
        assert sent == []
        return parts

    assert asyncio.run(received()) == [b"a", b"b", b""]
