"""A cluster that only remembers what was done to it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from nemesis.ports import (
    UNANSWERED,
    AdminRequest,
    AdminResult,
    ClockChange,
    ClusterView,
    ConfigOperation,
    EnvironmentCapability,
    Evidence,
    KeepUnsynced,
    Link,
    LinkQuality,
    MessageRule,
    PartitionView,
    ToldReassignments,
)


class FakeCluster:
    """Implements `nemesis.ports.ClusterUnderTest`; what holds now can be read off its attributes."""

    def __init__(self, brokers: int = 3, controllers: int = 1) -> None:
        self.brokers = tuple(f"b{number}" for number in range(1, brokers + 1))
        self.controllers = tuple(f"c{number}" for number in range(1, controllers + 1))
        self.unsupported: dict[EnvironmentCapability, str] = {}
        self.leading: dict[tuple[str, int], str] = {("t", 0): "b1", ("t", 1): "b2"}
        self.active: str | None = "c1"
        self.cuts: set[Link] = set()
        self.ever_cut: set[Link] = set()
        self.resets: set[Link] = set()
        self.qualities: dict[Link, LinkQuality] = {}
        self.interceptions: dict[int, MessageRule] = {}
        self.intercepted_by: list[MessageRule] = []
        """Every rule that messages were ever looked at by."""
        self.paused: set[str] = set()
        self.down: set[str] = set()
        self.lying: set[str] = set()
        self.full: dict[str, int] = {}
        self.slow: dict[str, float] = {}
        self.refuses_writes = True
        """Whether a node writes while its disk is full, and ends over it."""
        self.clocks: dict[str, ClockChange] = {}
        self.calls: list[str] = []
        self.placed: tuple[str, ...] = self.brokers
        self.offsets_told: tuple[int, int] | None = (0, 10)
        """Where a partition's log starts, and its high watermark."""
        self.answers: list[str] = []
        """Answers to the administrator, in order; afterwards every request succeeds."""
        self.frozen_over_a_request = False
        """Whether another node was asked first and did not answer."""
        self._began_s: float | None = None

    @property
    def pristine(self) -> bool:
        """Whether nothing is broken."""
        return not (
            self.cuts
            or self.qualities
            or self.interceptions
            or self.paused
            or self.down
            or self.lying
            or self.full
            or self.slow
            or self.clocks
        )

    @property
    def admin(self) -> FakeCluster:
        return self

    @property
    def requests(self) -> Sequence[AdminRequest]:
        return ()

    @property
    def dry_runs(self) -> Sequence[AdminRequest]:
        return ()

    @property
    def told_reassignments(self) -> Sequence[ToldReassignments]:
        return ()

    async def describe(self, topic: str) -> ClusterView:
        """In the ISR is every broker that runs and that others can reach."""
        unreached = {link.target for link in self.cuts}
        isr = tuple(broker for broker in self.brokers if broker not in self.down | unreached)
        partitions = {index: PartitionView(leader, isr, ()) for (_, index), leader in self.leading.items()}
        return ClusterView(tuple(broker for broker in self.brokers if broker not in self.down), partitions)

    async def replicas(self, topic: str, partition: int) -> tuple[str, ...]:
        return self.placed

    async def reassign(self, topic: str, partition: int, replicas: Sequence[str] | None) -> AdminResult:
        self.calls.append(f"reassign {topic}-{partition} {'cancel' if replicas is None else ' '.join(replicas)}")
        return self._answer()

    async def list_reassignments(self) -> None:
        """Nobody answers."""

    async def elect_preferred(self, topic: str, partition: int) -> AdminResult:
        self.calls.append(f"elect {topic}-{partition}")
        return self._answer()

    async def elect_unclean(self, topic: str, partition: int) -> AdminResult:
        self.calls.append(f"elect {topic}-{partition} uncleanly")
        return self._answer()

    async def offsets(self, topic: str, partition: int) -> tuple[int, int] | None:
        return self.offsets_told

    async def delete_records(
        self, topic: str, partition: int, offset: int, waits_s: float | None = None
    ) -> AdminResult:
        self.calls.append(f"delete {topic}-{partition} {offset}")
        return self._answer()

    async def create_topic(self, topic: str, replicas: int | Sequence[str], *, dry_run: bool = False) -> AdminResult:
        placed = f"with {replicas}" if isinstance(replicas, int) else f"on {' '.join(replicas)}"
        self.calls.append(f"{'try to ' if dry_run else ''}create {topic} {placed}")
        return self._answer()

    async def create_partitions(self, topic: str, count: int, *, dry_run: bool = False) -> AdminResult:
        self.calls.append(f"{'try to ' if dry_run else ''}grow {topic} to {count}")
        return self._answer()

    async def delete_topic(self, topic: str, *, by_id: bool = False) -> AdminResult:
        self.calls.append(f"delete {topic}{' by id' if by_id else ''}")
        return self._answer()

    async def append(self, topic: str, partition: int, records: Sequence[bytes], acks: int) -> AdminResult:
        self.calls.append(f"append {len(records)} to {topic}-{partition} with acks {acks}")
        return self._answer()

    async def coordinator(self, group: str) -> str | None:
        return self.brokers[0]

    async def committed(self, group: str, topic: str, partition: int) -> int | None:
        self.calls.append(f"look where {group} stands in {topic}-{partition}")
        return -1

    async def commit(self, group: str, topic: str, partition: int, offset: int) -> AdminResult:
        self.calls.append(f"commit {topic}-{partition} for {group}")
        return self._answer()

    async def configure(
        self,
        topic: str,
        name: str,
        value: str,
        operation: ConfigOperation = ConfigOperation.SET,
        *,
        dry_run: bool = False,
    ) -> AdminResult:
        how = "" if operation is ConfigOperation.SET else f"{operation} "
        self.calls.append(f"{'try to ' if dry_run else ''}configure {topic} {how}{name}={value}")
        return self._answer()

    async def move_controller(self) -> AdminResult:
        self.calls.append("move controller")
        return self._answer()

    async def controller(self) -> str | None:
        return self.active

    def _answer(self) -> AdminResult:
        outcome = self.answers.pop(0) if self.answers else ""
        return AdminResult(outcome, in_doubt=self.frozen_over_a_request or outcome == UNANSWERED)

    def now_ns(self) -> int:
        now_s = asyncio.get_running_loop().time()
        self._began_s = now_s if self._began_s is None else self._began_s
        return round((now_s - self._began_s) * 1e9)

    async def leaders(self) -> Mapping[tuple[str, int], str]:
        return dict(self.leading)

    async def cut(self, links: Sequence[Link], *, reset: bool = False, kept: bool = False) -> None:
        self.calls.append("cut")
        self.cuts.update(links)
        self.ever_cut.update(links)
        if reset:
            self.resets.update(links)

    async def heal_links(self, links: Sequence[Link]) -> Evidence:
        self.calls.append("heal_links")
        held = len(self.cuts.intersection(links))
        self.cuts.difference_update(links)
        return {"held": float(held), "refused": 0.0}

    async def degrade(self, links: Sequence[Link], quality: LinkQuality) -> None:
        self.qualities.update(dict.fromkeys(links, quality))

    async def clear_degradation(self, links: Sequence[Link]) -> Evidence:
        delayed = sum(self.qualities.pop(link, None) is not None for link in links)
        return {"delayed": float(delayed), "delay_seconds": 0.0, "lost": 0.0}

    async def intercept(self, number: int, links: Sequence[Link], rule: MessageRule) -> None:
        self.interceptions[number] = rule
        self.intercepted_by.append(rule)

    async def intercepted(self, number: int) -> int:
        return int(number in self.interceptions)

    async def stop_intercepting(self, number: int) -> Evidence:
        return {"intercepted": float(self.interceptions.pop(number, None) is not None)}

    async def pause(self, node: str) -> None:
        self.calls.append(f"pause {node}")
        self.paused.add(node)

    async def resume(self, node: str) -> Evidence:
        self.calls.append(f"resume {node}")
        missed = float(node in self.paused)
        self.paused.discard(node)
        return {"frozen_seconds": 1.0, "missed": missed}

    async def kill(self, node: str) -> Evidence:
        self.calls.append(f"kill {node}")
        killed = float(node not in self.down)
        self.down.add(node)
        return {"killed": killed}

    async def stop(self, node: str) -> Evidence:
        self.calls.append(f"stop {node}")
        stopped = float(node not in self.down)
        self.down.add(node)
        return {"stopped": stopped}

    async def start(self, node: str) -> None:
        self.calls.append(f"start {node}")
        self.down.discard(node)

    async def power_off(self, node: str, keep: KeepUnsynced, stopping_s: float | None = None) -> Evidence:
        if stopping_s is not None:
            self.calls.append(f"tell {node} to stop")
            await asyncio.sleep(stopping_s)
        evidence = dict(await self.kill(node))
        if stopping_s is not None:
            evidence["interrupted"] = evidence["killed"]
        return {**evidence, "unsynced_bytes": 100.0, "lost_bytes": 0.0 if keep is KeepUnsynced.EVERYTHING else 60.0}

    async def stop_unsynced(self, node: str, failing_syncs: int, keep: KeepUnsynced) -> Evidence:
        await self.stop(node)
        return {**await self.power_off(node, keep), "failed_syncs": float(failing_syncs)}

    async def wipe(self, node: str) -> Evidence:
        self.calls.append(f"wipe {node}")
        killed = float(node not in self.down)
        self.down.add(node)
        return {"killed": killed, "lost_bytes": 200.0}

    async def lie_about_fsync(self, node: str, lying: bool) -> Evidence:
        if lying:
            self.lying.add(node)
            return {}
        self.lying.discard(node)
        return {"lies": 3.0}

    def alive(self, node: str) -> bool:
        return node not in self.down

    async def fill_disk(self, node: str, room_bytes: int) -> None:
        self.full[node] = room_bytes
        if self.refuses_writes:
            self.down.add(node)

    async def fail_syncs(self, node: str, failing_syncs: int) -> None:
        await self.fill_disk(node, -failing_syncs)

    async def free_disk(self, node: str) -> Evidence:
        return {"refused_writes": float(self.full.pop(node, None) is not None and self.refuses_writes)}

    async def slow_disk(self, node: str, delay_ms: float) -> None:
        self.slow[node] = delay_ms

    async def restore_disk_speed(self, node: str) -> Evidence:
        delay_ms = self.slow.pop(node, 0.0)
        return {"delayed_operations": 1.0, "delayed_ms": delay_ms}

    async def set_clock(self, node: str, change: ClockChange) -> Evidence:
        self.clocks[node] = change
        return {"offset_ms": change.jump_ms + change.wall_jump_ms}

    async def reset_clock(self, node: str) -> Evidence:
        change = self.clocks.pop(node, ClockChange())
        return {"offset_ms": change.jump_ms + change.wall_jump_ms + 100 * (change.rate - 1)}
