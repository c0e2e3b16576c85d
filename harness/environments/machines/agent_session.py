"""The node agent of one machine, as the harness talks to it: one process for all commands where the machine can.

To start a process on a machine costs a tenth of a second and more, in a container as over SSH, and a fault takes two
commands a node. So where commands can be talked to, `faultline-node serve` is started with the first command and
carries out all of them (`images.base.agent.serving`). It is started anew when it was lost; the commands that were under
way then have failed with an outcome that nobody knows, as when a command of its own is cut off.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from itertools import count
from typing import Any

from harness.environments.machines.machine import CommandFailed, Machine, MachineError, Stream, Streams

AGENT = "faultline-node"


class AgentSession:
    """Runs commands of the agent; calls may overlap."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._numbers = count(1)
        self._opening = asyncio.Lock()
        self._stream: Stream | None = None
        self._reader: asyncio.Task[None] | None = None
        self._answers: dict[int, asyncio.Future[dict[str, Any] | None]] = {}
        """Of the commands under way, by their numbers; None once the agent is gone."""

    async def run(self, arguments: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 120.0) -> bytes:
        """See `Machine.run`."""
        if not isinstance(self._machine, Streams):
            return await self._machine.run([AGENT, *arguments], stdin=stdin, timeout_s=timeout_s)
        number, answer = next(self._numbers), asyncio.get_running_loop().create_future()
        request = {"id": number, "argv": list(arguments), "stdin": stdin.decode()}
        try:
            async with asyncio.timeout(timeout_s):
                stream = await self._opened(self._machine)
                self._answers[number] = answer
                await stream.send(json.dumps(request).encode() + b"\n")
                ended = await answer
        except TimeoutError:
            late = f"{self._machine.name}: {AGENT} {arguments[0]} has not ended after {timeout_s:g} s"
            raise MachineError(late) from None
        finally:
            self._answers.pop(number, None)
        if ended is None:
            raise MachineError(f"{self._machine.name}: the node agent was cut off")
        if ended["status"] != 0:
            raise CommandFailed.of(self._machine.name, AGENT, ended["status"], ended["err"])
        return str(ended["out"]).encode()

    def close(self) -> None:
        """End the agent's process; commands under way fail."""
        if self._stream is not None:
            self._stream.close()

    async def _opened(self, machine: Streams) -> Stream:
        async with self._opening:
            if self._stream is None:
                self._stream = await machine.open([AGENT, "serve"])
                self._reader = asyncio.create_task(self._read(self._stream))
            return self._stream

    async def _read(self, stream: Stream) -> None:
        """Hand out answers until the process is gone."""
        unread = b""
        try:
            while chunk := await stream.receive():
                *lines, unread = (unread + chunk).split(b"\n")
                for line in filter(None, lines):
                    ended = json.loads(line)
                    answer = self._answers.get(ended["id"])
                    if answer is not None and not answer.done():
                        answer.set_result(ended)
        except ValueError:
            pass  # it is no agent that talks there
        finally:
            self._stream = None
            stream.close()
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_result(None)
