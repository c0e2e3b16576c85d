"""Applies a fault to the cluster and records how to undo it.

What a fault cuts, freezes, stops or changes is recorded in its `FaultHandle`, and `FaultHandle.heal()` undoes all of it
in reverse order. So a fault needs no heal of its own, and a fault with many steps heals as one.

Faults overlap. Two of them may cut the same link or stop the same node; such a resource comes back when the last fault
that holds it heals (`ActiveEffects`). The environment measures evidence when a resource comes back, so the evidence
goes to the fault that healed last; a fault that healed earlier counts how many of its resources another one still held
(`overlapped`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from nemesis.ports import ClockChange, ClusterUnderTest, Evidence, KeepUnsynced, Link, LinkQuality
from nemesis.targets import check_target


@dataclass(slots=True)
class ActiveEffects:
    """Who holds what, over all faults of a run."""

    cuts: dict[Link, int] = field(default_factory=dict)
    qualities: dict[Link, list[LinkQuality]] = field(default_factory=dict)
    paused: dict[str, int] = field(default_factory=dict)
    down: dict[str, int] = field(default_factory=dict)
    lying: dict[str, int] = field(default_factory=dict)
    clocks: dict[str, int] = field(default_factory=dict)
    placements: dict[int, int] = field(default_factory=dict)
    confirmations: dict[str, Callable[[], Awaitable[None]]] = field(default_factory=dict)
    """What is to be asked of the cluster once everything is healed, by what it does."""


def _take(effects: dict[Any, int], key: Any) -> None:
    effects[key] = effects.get(key, 0) + 1


def _let_go(effects: dict[Any, int], key: Any) -> bool:
    """Whether that was the last grip."""
    effects[key] -= 1
    if effects[key]:
        return False
    del effects[key]
    return True


_PEAKS: Final = ("offset_ms", "asked_below")
"""Evidence of which the largest reading counts; everything else adds up."""


class FaultHandle:
    """One fault's hold on the cluster; see the module's docstring. Not used again once healed."""

    def __init__(
        self, cluster: ClusterUnderTest, effects: ActiveEffects, random: Random, topic: str = "", min_isr: int = 1
    ) -> None:
        self.cluster = cluster
        self.random = random
        self.evidence: dict[str, float] = {}
        self.evidence_of_node: dict[str, dict[str, float]] = {}
        self.aimed_at: list[str] = []
        self.resolved: dict[str, list[str]] = {}
        self.notes: list[str] = []
        self._effects = effects
        self.topic = topic
        self.min_isr = min_isr
        """`min.insync.replicas` as the run has it."""
        self._undo: list[Callable[[], Awaitable[None]]] = []

    # ---- who ---------------------------------------------------------------------------------------------------------

    async def find(self, targets: Iterable[str]) -> tuple[str, ...]:
        """The nodes that `targets` stand for now, without repetition; they are noted as aimed at."""
        found: list[str] = []
        for target in targets:
            nodes = await self._resolve(target)
            if nodes != (target,):
                self.resolved[target] = list(nodes)
            found += [node for node in nodes if node not in found]
        self.aim(found)
        return tuple(found)

    def aim(self, nodes: Iterable[str]) -> None:
        """Note nodes as what the fault is aimed at."""
        self.aimed_at += [node for node in nodes if node not in self.aimed_at]

    async def leader(self, partition: int) -> str | None:
        """Who leads the partition now, as far as the cluster tells."""
        leaders = await self.cluster.leaders()
        for (topic, index), node in sorted(leaders.items()):
            if index == partition and self.topic in ("", topic):
                return node
        return None

    async def active_controller(self) -> str:
        """The active controller, or one drawn at random while nobody tells of one."""
        active = await self.cluster.controller()
        if active is None:
            self.notes.append("controller: none at the time, drawn instead")
            return self.random.choice(self.cluster.controllers)
        return active

    async def _resolve(self, target: str) -> tuple[str, ...]:
        brokers, controllers = self.cluster.brokers, self.cluster.controllers
        if target in brokers or target in controllers:
            return (target,)
        groups = {"brokers": brokers, "controllers": controllers, "all": brokers + controllers}
        if target in groups:
            return groups[target]
        if target == "any":
            return (self.random.choice(brokers),)
        if target == "controller":
            return (await self.active_controller(),)
        if target == "minority":
            return tuple(sorted(self.random.sample(brokers, max(1, (len(brokers) - 1) // 2))))
        role, _, index = target.partition("/")
        if role in ("leader", "follower") and (not index or index.isdigit()):
            leader = await self.leader(int(index or 0))
            if role == "follower":
                return (self.random.choice([node for node in brokers if node != leader] or list(brokers)),)
            if leader is None:
                self.notes.append(f"{target}: none at the time, drawn instead")
                return (self.random.choice(brokers),)
            return (leader,)
        check_target(target, brokers, controllers)
        raise AssertionError(target)

    # ---- what --------------------------------------------------------------------------------------------------------

    async def sleep(self, seconds: float) -> None:
        """Let true time pass between two steps."""
        await asyncio.sleep(seconds)

    async def cut(self, links: Sequence[Link], *, reset: bool = False) -> Callable[[], Awaitable[None]]:
        """Cut `links` until the fault heals, or until what this returns is called and awaited."""
        for link in links:
            _take(self._effects.cuts, link)

        async def heal_links() -> None:
            free = [link for link in links if _let_go(self._effects.cuts, link)]
            self._overlapped(len(links) - len(free))
            if free:
                self._gather(await self.cluster.heal_links(free))

        early = self._undone_by(heal_links)
        await self.cluster.cut(links, reset=reset)
        return early

    async def degrade(self, links: Sequence[Link], quality: LinkQuality) -> None:
        """Make `links` slow or lossy; of several qualities a link was given the latest one holds."""
        for link in links:
            self._effects.qualities.setdefault(link, []).append(quality)

        async def clear_degradation() -> None:
            free = []
            for link in links:
                held = self._effects.qualities[link]
                held.remove(quality)
                if held:
                    await self.cluster.degrade([link], held[-1])
                else:
                    del self._effects.qualities[link]
                    free.append(link)
            self._overlapped(len(links) - len(free))
            if free:
                self._gather(await self.cluster.clear_degradation(free))

        self._undone_by(clear_degradation)
        await self.cluster.degrade(links, quality)

    async def pause(self, node: str) -> Callable[[], Awaitable[None]]:
        """Freeze a process until the fault heals, or until what this returns is called and awaited."""
        _take(self._effects.paused, node)
        self.aim([node])

        async def resume() -> None:
            if _let_go(self._effects.paused, node):
                self._gather(await self.cluster.resume(node), node)
            else:
                self._overlapped(1)

        early = self._undone_by(resume)
        await self.cluster.pause(node)
        return early

    async def kill(self, node: str) -> Callable[[], Awaitable[None]]:
        """End a process; it starts again when the fault heals, or when what this returns is called and awaited."""
        return await self._stop(node, lambda: self.cluster.kill(node))

    async def stop(self, node: str) -> Callable[[], Awaitable[None]]:
        """Tell a process to leave; it starts again as after `kill`."""
        return await self._stop(node, lambda: self.cluster.stop(node))

    async def power_off(self, node: str, keep: KeepUnsynced) -> Callable[[], Awaitable[None]]:
        """As `kill`, and the node loses writes that were not synced."""
        return await self._stop(node, lambda: self.cluster.power_off(node, keep))

    async def wipe(self, node: str) -> Callable[[], Awaitable[None]]:
        """As `kill`, and the node loses everything on its disk."""
        return await self._stop(node, lambda: self.cluster.wipe(node))

    async def _stop(self, node: str, stop: Callable[[], Awaitable[Evidence]]) -> Callable[[], Awaitable[None]]:
        _take(self._effects.down, node)
        self.aim([node])

        async def start() -> None:
            if _let_go(self._effects.down, node):
                await self.cluster.start(node)
            else:
                self._overlapped(1)

        early = self._undone_by(start)
        self._gather(await stop(), node)
        return early

    async def lie_about_fsync(self, node: str) -> None:
        """Have a node's disk acknowledge syncs without keeping anything."""
        _take(self._effects.lying, node)
        self.aim([node])

        async def stop_lying() -> None:
            if _let_go(self._effects.lying, node):
                self._gather(await self.cluster.lie_about_fsync(node, False), node)
            else:
                self._overlapped(1)

        self._undone_by(stop_lying)
        await self.cluster.lie_about_fsync(node, True)

    async def set_clock(self, node: str, change: ClockChange) -> None:
        """Bend a node's clock; of several changes the latest holds, and the clock is true again after the last."""
        _take(self._effects.clocks, node)
        self.aim([node])

        async def reset() -> None:
            if _let_go(self._effects.clocks, node):
                self._gather(await self.cluster.reset_clock(node), node)
            else:
                self._overlapped(1)

        self._undone_by(reset)
        self._gather(await self.cluster.set_clock(node, change), node)

    # ---- and back ----------------------------------------------------------------------------------------------------

    async def heal(self) -> None:
        """Undo everything this fault still holds, the latest first. A step that fails is noted and does not stop the
        others."""
        while self._undo:
            try:
                await self._undo.pop()()
            except Exception as error:
                self.notes.append(f"healing failed: {type(error).__name__}: {error}")

    def claim_placement(self, partition: int) -> bool:
        """Have the placement of a partition to oneself until everything claimed later is undone; False when another
        fault has it: two that put back what they found would put back each other's work."""
        if partition in self._effects.placements:
            return False
        _take(self._effects.placements, partition)

        async def release() -> None:
            _let_go(self._effects.placements, partition)

        self._undone_by(release)
        return True

    def count(self, name: str) -> None:
        """One more of what is counted as evidence under `name`."""
        self._gather({name: 1.0})

    def note(self, name: str, value: float) -> None:
        """Evidence under `name`, of which the largest value counts."""
        self._gather({name: value})

    def undone_by(self, undo: Callable[[], Awaitable[None]]) -> None:
        """Have `undo` called when the fault heals. To be said before the deed."""
        self._undone_by(undo)

    def confirmed_by(self, what: str, confirm: Callable[[], Awaitable[None]]) -> None:
        """Have `confirm` called once everything is healed, since what was changed and undone may yet change again. Of
        several faults the first knew best how it was."""
        self._effects.confirmations.setdefault(what, confirm)

    def _undone_by(self, undo: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        """Noted before the deed: a fault cancelled in the middle of one undoes it too; every call is idempotent."""
        self._undo.append(undo)

        async def early() -> None:
            if undo in self._undo:
                self._undo.remove(undo)
                await undo()

        return early

    def _overlapped(self, count: int) -> None:
        if count:
            self._gather({"overlapped": count})

    def _gather(self, evidence: Evidence, node: str | None = None) -> None:
        tables = [self.evidence]
        if node is not None:
            tables.append(self.evidence_of_node.setdefault(node, {}))
        for table in tables:
            for name, value in evidence.items():
                if name in _PEAKS:
                    table[name] = max(table.get(name, 0.0), abs(value))
                else:
                    table[name] = table.get(name, 0.0) + value
