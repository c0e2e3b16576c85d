"""One node on its machine, as the deployment handles it: the node agent's commands, one at a time, and freezing.

A command on a machine always runs to its end: a fault cancelled within one would not know its state. A machine
that is frozen from outside runs no command. When one is needed all the same, because another fault falls on a node that
is paused, the machine is thawed and its process stopped at once instead. It runs in between, on a busy machine for
seconds: `awake_seconds` in the evidence of the pause, and not part of `frozen_seconds`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from harness.cluster.layout import ClusterNode
from harness.environments.machines.agent_session import AGENT, AgentSession
from harness.environments.machines.machine import Freezer, Machine, MachineError, MachineVanished
from images.system import Service
from nemesis.handle import UNKNOWN_PREFIX
from nemesis.uninterrupted import uninterrupted

T = TypeVar("T")

COMMAND_LIMIT_S = 120.0
"""Far more than a command takes on a busy machine; a machine that does not answer is given up after it."""
_UNREAD = f"{UNKNOWN_PREFIX}missed"
_PAUSE_EVIDENCE = ("frozen_seconds", "missed", "missed_bytes", _UNREAD)
_WAIT_LIMIT_S = 120.0
"""Longer than most runs: each wait is a process on the machine."""


@dataclass(slots=True, eq=False)
class NodeHandle:
    """A node, its machine, and what is known of both."""

    node: ClusterNode
    machine: Machine
    service: Service
    began_ns: int = 0
    """The reading of the machine's true clock when the run began."""
    incarnation: int = 0
    ended: int = 0
    """The latest incarnation of whose end has been heard."""
    alive: bool = False
    lies_before: int | None = None
    """Lies counted before the current ones began; None while the disk does not lie."""
    refused_before: int | None = None
    """Writes that the disk had refused when it became full; None while it is not."""
    slowed_before: tuple[int, float] | None = None
    """Operations that the disk had delayed, and seconds, when it became slow; None while it is not."""
    paused: bool = False
    frozen: bool = False
    """Paused from outside, with all of the machine."""
    frozen_at_s: float | None = None
    """When (monotonic) the pause began, if it began as a freeze."""
    missed: int | None = 0
    """Packets that came while it was frozen; None if that could not be read."""
    awake_s: float = 0.0
    """How long it ran within the pause at most, when it was thawed for a command."""
    ended_pause: Mapping[str, float] = field(default_factory=dict)
    """What a pause came to that the end of the process ended; empty once `resume` has told it."""
    agent: AgentSession = field(init=False)
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.agent = AgentSession(self.machine)

    @property
    def name(self) -> str:
        """The node's."""
        return self.node.name

    async def exclusively(self, action: Callable[[Self], Coroutine[Any, Any, T]]) -> T:
        """Run `action` to its end while no other runs here; a caller cancelled meanwhile is cancelled after it."""
        async with self._one_at_a_time:
            return await uninterrupted(action(self))

    # ---- commands; all but waiting are called inside `exclusively` ---------------------------------------------------

    async def ask(self, *arguments: str, request: object = None, timeout_s: float = COMMAND_LIMIT_S) -> dict[str, Any]:
        """Run a command of the agent; its answer. Raises MachineError."""
        if self.frozen:
            thawed_s = time.monotonic()
            await self.thaw()
            await self._ask_agent("pause")
            self.awake_s += time.monotonic() - thawed_s
        return await self._ask_agent(*arguments, request=request, timeout_s=timeout_s)

    async def _ask_agent(
        self, *arguments: str, request: object = None, timeout_s: float = COMMAND_LIMIT_S
    ) -> dict[str, Any]:
        stdin = b"" if request is None else json.dumps(request).encode()
        output = await self.agent.run(arguments, stdin=stdin, timeout_s=timeout_s)
        try:
            answer: dict[str, Any] = json.loads(output)
        except ValueError:
            raise MachineError(f"{self.name}: {AGENT} {arguments[0]} printed no JSON but {output[:80]!r}") from None
        return answer

    async def pause(self, *, from_outside: bool) -> None:
        """Freeze the whole machine if asked to and it can be, else stop the process. Nothing when it is paused."""
        if self.paused or not self.alive:
            return
        self.frozen_at_s = None
        self.paused = True  # from now on: where the command is cut off, it may be
        if not (from_outside and await self._freeze()):
            await self.ask("pause")

    async def _freeze(self) -> bool:
        """Freeze the machine; False when it cannot be: an engine gives up when a busy machine takes its time."""
        if not isinstance(self.machine, Freezer):
            return False
        try:
            await self.machine.freeze()
        except MachineError:
            return False
        self.frozen, self.frozen_at_s, self.missed, self.awake_s = True, time.monotonic(), 0, 0.0
        return True

    async def thaw(self) -> None:
        """Let the machine run again; nothing when it does."""
        if self.frozen and isinstance(self.machine, Freezer):
            self.missed = await self.machine.thaw()
            self.frozen = False

    async def resume(self) -> Mapping[str, float]:
        """Undo a pause of either kind: `frozen_seconds`, `missed`; `awake_seconds`, if it ran in between. Of a process
        that was ended meanwhile, what the pause came to until then. `unknown_missed` if packets could not be read."""
        was_frozen, was_paused = self.frozen, self.paused
        await self.thaw()
        ended, self.ended_pause, self.paused = self.ended_pause, {}, False
        if not was_paused or not self.alive:
            return ended or {"frozen_seconds": 0.0, "missed": 0}
        pause = self._pause_evidence({} if was_frozen else await self._ask_agent("resume"))
        return {name: ended.get(name, 0) + pause.get(name, 0) for name in {**ended, **pause}}

    async def end(self, *command: str, timeout_s: float) -> Mapping[str, Any]:
        """Run a command that ends the process, paused or not; its answer."""
        was_frozen, was_paused = self.frozen, self.paused
        self.alive = self.paused = False
        await self.thaw()
        answer = await self._ask_agent(*command, timeout_s=timeout_s)
        if was_paused:
            self.ended_pause = self._pause_evidence({} if was_frozen else answer)
        return answer

    def _pause_evidence(self, stopped: Mapping[str, Any]) -> Mapping[str, float]:
        """`stopped`: the answer of the agent for a process that it had stopped; empty if the machine was frozen."""
        since_s, self.frozen_at_s = self.frozen_at_s, None
        if since_s is None:
            return {name: stopped[name] for name in _PAUSE_EVIDENCE if name in stopped}
        frozen_s = time.monotonic() - since_s
        unread = {_UNREAD: 1.0} if self.missed is None or stopped.get(_UNREAD) else {}
        missed = (self.missed or 0) + stopped.get("missed", 0)
        if not stopped:
            return {"frozen_seconds": frozen_s, "missed": missed, **unread}
        return {"frozen_seconds": frozen_s - self.awake_s, "missed": missed, "awake_seconds": self.awake_s, **unread}

    async def until_ended(self, incarnation: int) -> dict[str, Any]:
        """The end of this incarnation, once it has ended. A machine that does not answer is asked again. Raises
        MachineVanished."""
        while True:
            try:
                answer = await self._ask_agent(
                    "wait", str(incarnation), "--limit", str(_WAIT_LIMIT_S), timeout_s=_WAIT_LIMIT_S + COMMAND_LIMIT_S
                )
            except MachineVanished:
                raise
            except MachineError:
                await asyncio.sleep(1.0)
                continue
            if answer["ended"] is not None:
                ended: dict[str, Any] = answer["ended"]
                return ended


async def on_all(handles: list[NodeHandle], action: Callable[[NodeHandle], Coroutine[Any, Any, Any]]) -> dict[str, Any]:
    """Run `action` on all at once, exclusively on each; the results by name.

    All are waited for; then the first failure is raised.
    """
    results = await asyncio.gather(*(handle.exclusively(action) for handle in handles), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return {handle.name: result for handle, result in zip(handles, results, strict=True)}
