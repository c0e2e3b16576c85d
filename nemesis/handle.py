"""Applies a fault to the cluster and records how to undo it.

Everything a fault cuts, freezes, stops or changes is recorded in its `FaultHandle`, and `FaultHandle.heal()` undoes it
in reverse order. So a fault needs no heal of its own, and a fault with many steps heals as one.

Faults overlap. Two of them may cut the same link or stop the same node; such a resource comes back when the last fault
that holds it heals (`ActiveEffects`). The environment measures evidence when a resource comes back, so the evidence
goes to the fault that healed last; a fault that healed earlier counts how many of its resources another one still held
(`overlapped`).

Every action runs to its end, also when the fault is cancelled meanwhile, and what it measured is kept at once: in sum,
and for each node by itself. An action that fails leaves an *unknown effect*: `unknown_lost_bytes` means that the node
may have lost something, and that nobody measured what.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any, Final, Generic, TypeVar

from nemesis.ports import ClockChange, ClusterUnderTest, Evidence, KeepUnsynced, Link, LinkQuality, MessageRule
from nemesis.situation import Occurrence, Situation
from nemesis.targets import FaultTargets
from nemesis.uninterrupted import uninterrupted

Heal = Callable[[], Awaitable[None]]
"""Undoes one action, before the fault heals as a whole."""

Resource = TypeVar("Resource", bound=Hashable)
Value = TypeVar("Value")


class LatestValues(Generic[Resource, Value]):
    """The values that faults gave each resource. Of several the latest holds, until its own fault heals."""

    def __init__(self) -> None:
        self._values: defaultdict[Resource, dict[object, Value]] = defaultdict(dict)

    def latest(self, resource: Resource) -> Value | None:
        """The value that holds; None without any."""
        return next(reversed(self._values[resource].values()), None)

    def give(self, resource: Resource, value: Value) -> Callable[[], Value | None]:
        """Give a resource a value. What this returns takes it back, and returns the value that holds then."""
        giving = object()  # several faults may give the same value
        self._values[resource][giving] = value

        def take_back() -> Value | None:
            del self._values[resource][giving]
            return self.latest(resource)

        return take_back


@dataclass(slots=True)
class ActiveEffects:
    """Resources that faults hold now, over all faults of a run, with the number of faults that hold each, or the values
    they gave it."""

    cuts: dict[Link, int] = field(default_factory=dict)
    qualities: LatestValues[Link, LinkQuality] = field(default_factory=LatestValues)
    interceptions: int = 0
    """How many there were so far; each has the next number."""
    paused: LatestValues[str, bool] = field(default_factory=LatestValues)
    down: dict[str, int] = field(default_factory=dict)
    lying: LatestValues[str, bool] = field(default_factory=LatestValues)
    full: dict[str, int] = field(default_factory=dict)
    delays_ms: LatestValues[str, float] = field(default_factory=LatestValues)
    clocks: LatestValues[str, ClockChange] = field(default_factory=LatestValues)
    """The changes of a clock without its jumps, all of which stay."""
    victims: dict[int, str] = field(default_factory=dict)
    """The broker that each of the targets `victim/0`, `victim/1` … stood for last."""
    endangered: dict[str, int] = field(default_factory=dict)
    """Victims, by the faults under way that may end them yet."""
    placements: dict[int, int] = field(default_factory=dict)
    """Partitions that a fault moves, and will put back."""
    confirmations: dict[str, Callable[[], Awaitable[None]]] = field(default_factory=dict)
    """Requests to send once everything is healed, by their purpose."""


def _acquire(effects: dict[Any, int], key: Any) -> None:
    effects[key] = effects.get(key, 0) + 1


def _release(effects: dict[Any, int], key: Any) -> bool:
    """Release a resource; True when no other fault holds it."""
    effects[key] -= 1
    if effects[key]:
        return False
    del effects[key]
    return True


UNKNOWN_PREFIX: Final = "unknown_"
"""Begins the name of evidence that could not be read back; the rest is the name of what was to be measured."""
_PEAKS: Final = ("offset_ms", "asked_below", "late_ms")
"""Evidence whose largest reading counts; all other is summed."""
_LATE_END_S: Final = 0.5
"""Time within which a node ends over a write that was refused, unless it is frozen."""
_CUT, _DEGRADED, _INTERCEPTED = ("held", "refused", "reset"), ("delayed", "lost"), ("intercepted",)
_STOPPED, _KILLED, _LOST = ("stopped",), ("killed",), ("killed", "lost_bytes")


class FaultHandle:
    """Applies one fault and undoes it; see the module's docstring. Not used again once healed."""

    def __init__(
        self,
        cluster: ClusterUnderTest,
        effects: ActiveEffects,
        random: Random,
        topic: str = "",
        min_isr: int = 1,
        situation: Situation | None = None,
        on_evidence: Callable[[], None] = lambda: None,
        step_s: float = 0.0,
        trigger: Sequence[str] = (),
        replication_factor: int | None = None,
        of_brokers: bool = False,
    ) -> None:
        """`on_evidence` is called whenever there is more evidence; the environment takes `step_s` for a step; `trigger`
        are nodes of occurrences that it waited for; without `replication_factor` no partition counts as moving; with
        `of_brokers` no target may stand for a controller."""
        self.cluster = cluster
        self.random = random
        self.situation = situation or Situation()
        self.topic = topic
        self.min_isr = min_isr
        """`min.insync.replicas` as the run has it."""
        self.replication_factor = replication_factor
        self.evidence: dict[str, float] = {}
        self.evidence_of_node: dict[str, dict[str, float]] = {}
        """By node, the same names; `down_ns`, the time at which its process had first been ended; and `loss_ns`, at
        which it had lost data last."""
        self.notes: list[str] = []
        self.refusal = ""
        """The last answer to a request that the fault repeats until it is done; empty once it is."""
        self.unhealed: list[str] = []
        """What could not be undone, a line each."""
        self.targets = FaultTargets(
            cluster,
            random,
            self.situation,
            self._victim,
            self.notes.append,
            topic=topic,
            trigger=trigger,
            of_brokers=of_brokers,
        )
        self._effects = effects
        self._on_evidence = on_evidence
        self._step_s = step_s
        self._undo: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._started_again: list[str] = []
        """Nodes that this fault has ended, and that have started since."""
        self._stopped_in_part: list[str] = []
        """Nodes that this fault has stopped though they were not whole."""

    def _victim(self, number: int) -> str:
        """The broker that may lose data: as long as the last one is not whole again no other, then the one of which the
        fault waited for an occurrence, or any. It counts as down from now on, since a scripted fault ends it later; if
        it restarts before that, it is whole, and stays the victim all the same until the fault heals."""
        victims = self._effects.victims
        victim = victims.get(number)
        if victim is None or (victim not in self._effects.endangered and self.situation.wholeness.is_whole(victim)):
            others = {each for other, each in victims.items() if other != number}
            possible = [each for each in self.cluster.brokers if each not in others]
            triggering = [each for each in possible if each in self.targets.trigger]
            victim = victims[number] = self.random.choice(triggering or possible)
        self._claim(self._effects.endangered, victim)
        self.situation.wholeness.went_down(victim)
        return victim

    # ---- effects -----------------------------------------------------------------------------------------------------

    async def sleep(self, seconds: float) -> None:
        """Let true time pass between two steps; where the environment takes longer to carry one out, as long."""
        await asyncio.sleep(max(seconds, self._step_s))

    async def hold(self, links: Sequence[Link]) -> Heal:
        """Hold all messages of `links` until the fault heals, or until what this returns is called and awaited: then
        they arrive, as soon as the environment can have them do so."""
        return await self.cut(links, kept=True)

    async def cut(self, links: Sequence[Link], *, reset: bool = False, kept: bool = False) -> Heal:
        """Cut `links` until the fault heals, or until what this returns is called and awaited."""
        for link in links:
            _acquire(self._effects.cuts, link)

        async def heal_links() -> None:
            free = [link for link in links if _release(self._effects.cuts, link)]
            self._overlapped(len(links) - len(free))
            if free:
                await self._apply(self.cluster.heal_links(free), _CUT)

        early = self.add_undo(heal_links)
        await uninterrupted(self._apply(self.cluster.cut(links, reset=reset, kept=kept), _CUT))
        return early

    async def degrade(self, links: Sequence[Link], quality: LinkQuality) -> None:
        """Make `links` slow or lossy; of several qualities a link was given the latest one holds."""
        given = [(link, self._effects.qualities.give(link, quality)) for link in links]

        async def clear_degradation() -> None:
            free = []
            for link, take_back in given:
                left = take_back()
                if left is None:
                    free.append(link)
                else:
                    await self._apply(self.cluster.degrade([link], left), _DEGRADED)
            self._overlapped(len(links) - len(free))
            if free:
                await self._apply(self.cluster.clear_degradation(free), _DEGRADED)

        self.add_undo(clear_degradation)
        await uninterrupted(self._apply(self.cluster.degrade(links, quality), _DEGRADED))

    async def intercept(self, links: Sequence[Link], rule: MessageRule) -> tuple[Heal, Callable[[], Awaitable[int]]]:
        """Apply `rule` to the messages of `links`; gives back what lets them pass early, and how many it took."""
        self._effects.interceptions += 1
        number = self._effects.interceptions

        async def let_pass() -> None:
            await self._apply(self.cluster.stop_intercepting(number), _INTERCEPTED)

        early = self.add_undo(let_pass)
        await uninterrupted(self._apply(self.cluster.intercept(number, links, rule), _INTERCEPTED))
        return early, partial(self.cluster.intercepted, number)

    async def pause(self, node: str) -> Heal:
        """Freeze a process until the fault heals, or until what this returns is called and awaited."""
        resume = partial(self.cluster.resume, node)
        return await self._hold(self._effects.paused, node, True, lambda _: self.cluster.pause(node), resume, "missed")

    async def kill(self, node: str) -> Heal:
        """End a process; it starts again when the fault heals, or when what this returns is called and awaited."""
        return await self._end(node, lambda: self.cluster.kill(node), _KILLED)

    async def end(self, node: str, keep: KeepUnsynced | None) -> Heal:
        """End a process as `kill` does, or with `keep` as `power_off`."""
        return await (self.kill(node) if keep is None else self.power_off(node, keep))

    async def stop(self, node: str, keep: KeepUnsynced | None = None) -> Heal:
        """Stop a process cleanly; it starts again as after `kill`. With `keep` its power is cut then, if it was whole
        and stopped by itself: one that opens no log syncs nothing that was written before an unclean end. Over a full
        disk such an end may have come unseen."""
        whole = self.situation.wholeness.is_whole(node) and node not in self._effects.full
        stopped_before = self.evidence_of_node.get(node, {}).get("stopped", 0.0)
        start = await self._stop(node, lambda: self.cluster.stop(node), _STOPPED)
        if not whole:
            self._stopped_in_part.append(node)
        if keep is not None and whole and self.evidence_of_node[node].get("stopped", 0.0) > stopped_before:
            await uninterrupted(self._apply(self.cluster.power_off(node, keep), _LOST[1:], node, is_down=True))
        elif keep is not None:
            self.notes.append(f"{node}: was not whole, or did not stop cleanly; it keeps its power")
        return start

    async def power_off(self, node: str, keep: KeepUnsynced, stopping_s: float | None = None) -> Heal:
        """As `kill`, and the node loses writes that were not synced; with `stopping_s` in the midst of a clean stop."""
        # Then a clean stop before says nothing of what it loses.
        if node in self._started_again:
            self._add_evidence({"started_again": 1.0}, node)
        if node in self._stopped_in_part:
            self._add_evidence({"stopped_in_part": 1.0}, node)
        start = await self._end(node, lambda: self.cluster.power_off(node, keep, stopping_s), _LOST)
        if stopping_s is not None:  # its logs may have grown since it was told to stop
            self.situation.wholeness.went_down(node)
        return start

    async def stop_unsynced(self, node: str, failing_syncs: int, keep: KeepUnsynced) -> Heal:
        """As `power_off`, after a clean stop in which so many syncs fail."""
        return await self._end(node, lambda: self.cluster.stop_unsynced(node, failing_syncs, keep), _LOST)

    async def wipe(self, node: str) -> Heal:
        """As `kill`, and the node loses everything on its disk."""
        return await self._end(node, lambda: self.cluster.wipe(node), _LOST)

    async def _end(self, node: str, end: Callable[[], Coroutine[Any, Any, Evidence]], proof: Sequence[str]) -> Heal:
        """As `_stop`, uncleanly."""
        self.situation.wholeness.went_down(node)
        return await self._stop(node, end, proof)

    async def _stop(self, node: str, stop: Callable[[], Coroutine[Any, Any, Evidence]], proof: Sequence[str]) -> Heal:
        _acquire(self._effects.down, node)
        self.targets.add([node])

        async def start() -> None:
            if _release(self._effects.down, node):
                self._started_again.append(node)
                await self.cluster.start(node)
                self.situation.occurred(Occurrence.RESTARTED, node)
            else:
                self._overlapped(1)

        early = self.add_undo(start)
        await uninterrupted(self._apply(stop(), proof, node, is_down=True))
        return early

    async def lie_about_fsync(self, node: str) -> None:
        """Have a node's disk acknowledge syncs without keeping anything."""
        lie = partial(self.cluster.lie_about_fsync, node)
        await self._hold(self._effects.lying, node, True, lie, lambda: lie(False), "lies")

    async def fill_disk(self, node: str, room_bytes: int, failing_syncs: int = 0) -> None:
        """Leave a node's disk `room_bytes` of room, or let so many of its syncs fail. A node that ended over it starts
        again once there is room."""
        _acquire(self._effects.full, node)
        self.targets.add([node])

        async def start() -> None:
            if node not in self._effects.down and not self.cluster.alive(node):
                await self.cluster.start(node)
                self.situation.occurred(Occurrence.RESTARTED, node)

        async def free() -> None:
            if not _release(self._effects.full, node):
                self._overlapped(1)
                return
            evidence = await self._apply(self.cluster.free_disk(node), ("refused_writes", "killed"), node)
            if evidence.get("refused_writes"):
                self.situation.wholeness.went_down(node)
                if self.cluster.alive(node):  # it may still be about to end over a write that was refused
                    self.confirm_at_end(f"starting {node}", start)
                    await self.sleep(_LATE_END_S)
                if not self.cluster.alive(node) and node not in self._effects.down:
                    self._add_evidence({"killed": 1.0}, node)
            await start()

        self.add_undo(free)
        cluster = self.cluster
        fill = cluster.fail_syncs(node, failing_syncs) if failing_syncs else cluster.fill_disk(node, room_bytes)
        await uninterrupted(self._apply(fill, ("refused_writes",), node))

    async def slow_disk(self, node: str, delay_ms: float) -> None:
        """Slow a node's disk; of several delays the latest holds."""
        slow, restore_speed = partial(self.cluster.slow_disk, node), partial(self.cluster.restore_disk_speed, node)
        await self._hold(self._effects.delays_ms, node, delay_ms, slow, restore_speed, "delayed_ms")

    async def set_clock(self, node: str, change: ClockChange) -> None:
        """Change a node's clock. Of several changes the latest holds, but that each jump stays; after the last it runs
        true again."""
        set_clock, reset_clock = partial(self.cluster.set_clock, node), partial(self.cluster.reset_clock, node)
        lasting = replace(change, jump_ms=0.0)
        await self._hold(self._effects.clocks, node, lasting, set_clock, reset_clock, "offset_ms", first=change)

    async def _hold(
        self,
        values: LatestValues[str, Value],
        node: str,
        value: Value,
        change: Callable[[Value], Coroutine[Any, Any, Evidence | None]],
        restore: Callable[[], Coroutine[Any, Any, Evidence | None]],
        proof: str,
        first: Value | None = None,
    ) -> Heal:
        """Change a node to `value`, for the first time to `first` if given; gives back what heals it early. When it
        heals, the node has the latest value that another fault gave it, or is restored."""
        take_back = values.give(node, value)
        self.targets.add([node])

        async def release() -> None:
            held, left = values.latest(node), take_back()
            if left is None:
                await self._apply(restore(), (proof,), node)
                return
            self._overlapped(1)
            if left != held:
                await self._apply(change(left), (proof,), node)

        early = self.add_undo(release)
        await uninterrupted(self._apply(change(value if first is None else first), (proof,), node))
        return early

    # ---- healing -----------------------------------------------------------------------------------------------------

    def add_undo(self, undo: Callable[[], Coroutine[Any, Any, None]]) -> Heal:
        """Call `undo` when the fault heals; gives back what calls it early. Use it before the change, so that a fault
        which is cancelled in the middle of it undoes it, too; calls are idempotent."""
        self._undo.append(undo)

        async def early() -> None:
            if undo in self._undo:
                self._undo.remove(undo)
                await uninterrupted(self._carry_out(undo))

        return early

    def confirm_at_end(self, purpose: str, confirm: Callable[[], Awaitable[None]]) -> None:
        """Call `confirm` once everything is healed, and until the cluster has recovered, since a late request may undo
        the healing. Of several faults with one purpose the first counts: it knew the original state."""
        self._effects.confirmations.setdefault(purpose, confirm)

    async def heal(self) -> None:
        """Undo everything this fault still holds, latest first. A step that fails leaves a line; the others go on, and
        so they do when the caller is cancelled."""
        await uninterrupted(self._undo_all())

    async def _undo_all(self) -> None:
        while self._undo:
            with suppress(Exception):
                await self._carry_out(self._undo.pop())

    async def _carry_out(self, undo: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await undo()
        except Exception as error:
            self.fail_healing(f"{type(error).__name__}: {error}")
            raise

    def fail_healing(self, reason: str) -> None:
        """Record that something could not be undone, in a few words."""
        self.unhealed.append(reason)
        self.notes.append(f"healing failed: {reason}")

    # ---- placements of partitions ------------------------------------------------------------------------------------

    def claim_placement(self, partition: int) -> bool:
        """Reserve the placement of a partition until this fault heals; False when another fault has it. Two faults that
        each restore the placement they found would restore each other's changes."""
        if partition in self._effects.placements:
            return False
        self._claim(self._effects.placements, partition)
        return True

    def is_moving(self, replicas: Sequence[str]) -> bool:
        """Whether a reassignment of the partition that has these replicas is under way, as far as the broker knew that
        reported them. Those that it adds come before those that it removes go; that of a fault which has healed may
        still be. Of a replica that has been put back a broker may not have read yet."""
        return self.replication_factor is not None and len(replicas) != self.replication_factor

    def _claim(self, effects: dict[Any, int], key: Any) -> None:
        """Hold a resource until this fault heals."""
        _acquire(effects, key)

        async def release() -> None:
            _release(effects, key)

        self.add_undo(release)

    # ---- evidence ----------------------------------------------------------------------------------------------------

    def count_evidence(self, name: str) -> None:
        """Add one to the evidence called `name`."""
        self._add_evidence({name: 1.0})

    def note_evidence(self, name: str, value: float) -> None:
        """Record evidence whose largest value counts."""
        self._add_evidence({name: value})

    def _overlapped(self, count: int) -> None:
        if count:
            self._add_evidence({"overlapped": count})

    async def _apply(
        self,
        action: Coroutine[Any, Any, Evidence | None],
        proof: Sequence[str],
        node: str | None = None,
        *,
        is_down: bool = False,
    ) -> Evidence:
        """Carry out an action of the cluster and keep what it measured; with `is_down`, when it ended the process.

        When it fails, each measurement of `proof` is unknown.
        """
        try:
            evidence = await action or {}
        except Exception:
            self._add_evidence({f"{UNKNOWN_PREFIX}{name}": 1.0 for name in proof}, node)
            raise
        finally:
            if is_down and node is not None:
                now_ns, of_node = self.cluster.now_ns(), self.evidence_of_node.setdefault(node, {})
                of_node.setdefault("down_ns", now_ns)
                if "lost_bytes" in proof:
                    of_node["loss_ns"] = now_ns
                    self.situation.data_lost(node)
        self._add_evidence(evidence, node)
        return evidence

    def _add_evidence(self, evidence: Evidence, node: str | None = None) -> None:
        if not evidence:
            return
        tables = [self.evidence]
        if node is not None:
            tables.append(self.evidence_of_node.setdefault(node, {}))
        for table in tables:
            for name, value in evidence.items():
                before = table.get(name, 0.0)
                table[name] = max(before, abs(value)) if name in _PEAKS else before + value
        self._on_evidence()
