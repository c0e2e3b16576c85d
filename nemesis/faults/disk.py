"""Disks that forget.

A power loss takes the process and those writes that were never synced; `keep` says how many of them reach the disk all
the same. With `stopping_ms` it falls into a clean stop: while a broker hands over its leaderships, or closes its logs
one after the other. A wiped disk has lost everything, synced or not, as one that was replaced. A lying disk
acknowledges fsync without keeping anything, so that a later power loss takes what was promised to be safe: no protocol
survives that on enough nodes, so it is a fault by name only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import ClassVar, Final, Self

from nemesis.cluster_shape import ClusterShape
from nemesis.drawing import Draws, draw_scale
from nemesis.faults.fault import Family, Fault
from nemesis.handle import FaultHandle
from nemesis.ports import EnvironmentCapability, Evidence, KeepUnsynced

_STOPPING: Final = (0.005, 1.0)
"""The times drawn for which a node has been stopping, in multiples of the cluster's patience."""
_LIVES: Final = (0.005, 0.5)
"""How long a short life lasts, in the same."""


def had_nothing_to_lose(evidence: Evidence) -> bool:
    """Whether a power loss ended processes whose every write was synced: their end is all that it can do."""
    return evidence.get("killed", 0) > 0 and evidence.get("unsynced_bytes") == 0


@dataclass(frozen=True, slots=True)
class PowerLoss(Fault):
    """Cut the power of some nodes, dropping unsynced writes; they start again when the fault heals."""

    name: ClassVar[str] = "power-loss"
    number: ClassVar[int] = 1
    family: ClassVar[Family] = Family(
        number=3, name="power-loss", colour="#b5541c", possible=ClusterShape.unclean_restart_possible
    )
    proof: ClassVar[tuple[str, ...]] = ("lost_bytes", "lost_names")

    nodes: tuple[str, ...] = ("any",)
    keep: KeepUnsynced = KeepUnsynced.PREFIX
    stopping_ms: float | None = None
    """How long at most each node has been stopping cleanly when its power is cut; without it none was told to stop."""

    def __post_init__(self) -> None:
        if self.stopping_ms is not None and self.stopping_ms < 0:
            raise ValueError(f"stopping_ms: {self.stopping_ms:g} is less than 0")

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """Controllers or victims."""
        if draws.cluster.controllers and (not draws.profile.victims or draws.random.random() < 0.25):
            return cls(nodes=draws.controllers(), keep=draws.keep())
        return cls(nodes=draws.some(draws.profile.victims), keep=draws.keep())

    def at_risk(self, cluster: ClusterShape) -> tuple[str, ...]:
        """Its nodes, unless every record is on a disk before it counts, and an unclean recovery finds it there."""
        return () if cluster.unclean_recovery and cluster.synced_appends else self.nodes

    def blacked_out(self, random: Random, cluster: ClusterShape) -> Self:
        """The power of every controller; of every broker, too, where none of them can lose anything. Of those that can,
        in the middle of a clean stop."""
        if cluster.controller_targets.issuperset(self.nodes):
            return replace(self, nodes=cluster.controllers)
        if self.at_risk(cluster):
            stopping_ms = draw_scale(random, *_STOPPING) * cluster.patience_s * 1000
            return replace(self, stopping_ms=float(round(stopping_ms)))
        return replace(self, nodes=random.choice((cluster.brokers, cluster.brokers + cluster.controllers)))

    async def inject(self, handle: FaultHandle) -> None:
        """Cut the power of every node."""
        stopping_s = None if self.stopping_ms is None else self.stopping_ms / 1000
        for node in await handle.targets.resolve(self.nodes):
            await handle.power_off(node, self.keep, stopping_s)
            if stopping_s is not None and not handle.evidence_of_node[node].get("interrupted"):
                handle.notes.append(f"{node}: no clean stop was under way when its power was cut")

    def took_effect(self, evidence: Evidence) -> bool:
        """Bytes were lost, or changes of names: creations, renames, deletions. Where everything is kept, or was synced,
        and on controllers, which have nothing unsynced that counts, the kill alone is the effect. In the middle of a
        clean stop that one was not over is the effect."""
        if self.stopping_ms is not None:
            return evidence.get("interrupted", 0) > 0
        of_controllers = all(node.startswith("c") for node in self.nodes)
        proof = ("killed",) if self.keep is KeepUnsynced.EVERYTHING or of_controllers else self.proof
        return had_nothing_to_lose(evidence) or any(evidence.get(name, 0) > 0 for name in proof)

    def describe(self) -> str:
        """Targets, what is kept, and whether it falls into a clean stop."""
        stopping = "" if self.stopping_ms is None else f", within {self.stopping_ms:g} ms of a clean stop"
        return f"power loss {' '.join(self.nodes)} (keeps {self.keep}){stopping}"


@dataclass(frozen=True, slots=True)
class ShortLife(Fault):
    """Stop some nodes cleanly, start them, and cut their power in the first moments of their next lives.

    A new life first takes back what the clean stop before has left, since it may end uncleanly itself: what it has not
    taken back durably by then lets the life after it pass for the successor of that stop. The time of the fault begins
    with the power cut, so that it never ends before.
    """

    name: ClassVar[str] = "short-life"
    number: ClassVar[int] = 2
    family: ClassVar[Family] = PowerLoss.family
    proof: ClassVar[tuple[str, ...]] = ("killed",)
    weight: ClassVar[float] = 0.3

    nodes: tuple[str, ...] = ("any",)
    keep: KeepUnsynced = KeepUnsynced.NOTHING
    life_ms: float = 200.0
    """How long the life between the two ends lasts."""

    def __post_init__(self) -> None:
        if self.life_ms < 0:
            raise ValueError(f"life_ms: {self.life_ms:g} is less than 0")

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """Those of a power loss."""
        cut = PowerLoss.draw(draws)
        if cut is None:
            return None
        life_ms = draw_scale(draws.random, *_LIVES) * draws.patience_ms
        return cls(nodes=cut.nodes, keep=cut.keep, life_ms=float(round(life_ms)))

    def at_risk(self, cluster: ClusterShape) -> tuple[str, ...]:
        """As of a power loss."""
        return PowerLoss(self.nodes, self.keep).at_risk(cluster)

    async def inject(self, handle: FaultHandle) -> None:
        """One node after the other."""
        for node in await handle.targets.resolve(self.nodes):
            start = await handle.stop(node)
            await start()
            await handle.sleep(self.life_ms / 1000)
            await handle.power_off(node, self.keep)

    def describe(self) -> str:
        """Targets, what is kept, and when the power is cut."""
        return f"short life {' '.join(self.nodes)}, power loss after {self.life_ms:g} ms (keeps {self.keep})"


def _disks_may_be_emptied(cluster: ClusterShape) -> bool:
    return cluster.has_loss_budget() and EnvironmentCapability.EMPTY_DISKS not in cluster.unsupported


@dataclass(frozen=True, slots=True)
class WipeDisk(Fault):
    """End some brokers and empty their disks; they start again when the fault heals.

    Such a broker has confirmed records that it no longer holds, so it counts among the min.insync.replicas − 1 that may
    lose data.
    """

    name: ClassVar[str] = "wipe-disk"
    number: ClassVar[int] = 1
    family: ClassVar[Family] = Family(number=9, name="wipe", colour="#2f4b3c", possible=_disks_may_be_emptied)
    proof: ClassVar[tuple[str, ...]] = ("lost_bytes",)
    of_brokers: ClassVar[bool] = True
    """A controller that forgot its vote could vote twice."""

    nodes: tuple[str, ...] = ("any",)

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """Victims."""
        return cls(nodes=draws.some(draws.profile.victims))

    def at_risk(self, cluster: ClusterShape) -> tuple[str, ...]:
        """Its nodes."""
        return self.nodes

    async def inject(self, handle: FaultHandle) -> None:
        """Kill every node and empty its disk."""
        for node in await handle.targets.resolve(self.nodes):
            await handle.wipe(node)

    def needs(self) -> frozenset[EnvironmentCapability]:
        """Brokers that are no voters, too."""
        return frozenset({EnvironmentCapability.EMPTY_DISKS})


@dataclass(frozen=True, slots=True)
class PowerLossAll(Fault):
    """Cut the power of the whole cluster at once. Acknowledged records that no disk had synced are lost: what Kafka
    promises without fsync does not cover it, so the loss is reported and not called a violation."""

    name: ClassVar[str] = "power-loss-all"
    number: ClassVar[int] = 1
    family: ClassVar[Family] = Family(number=10, name="power-loss-all", colour="#8c3b12", fair=False)
    proof: ClassVar[tuple[str, ...]] = ("lost_bytes", "lost_names")

    keep: KeepUnsynced = KeepUnsynced.PREFIX

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """All nodes."""
        return cls(keep=draws.keep())

    def at_risk(self, cluster: ClusterShape) -> tuple[str, ...]:
        """As `PowerLoss` of every broker."""
        return PowerLoss(cluster.brokers, self.keep).at_risk(cluster)

    async def inject(self, handle: FaultHandle) -> None:
        """Cut the power of every broker and controller."""
        for node in await handle.targets.resolve(("all",)):
            await handle.power_off(node, self.keep)

    def took_effect(self, evidence: Evidence) -> bool:
        """As `PowerLoss`."""
        return PowerLoss(keep=self.keep).took_effect(evidence)


@dataclass(frozen=True, slots=True)
class FsyncLies(Fault):
    """Disks acknowledge fsync without keeping anything until the fault heals."""

    name: ClassVar[str] = "fsync-lies"
    number: ClassVar[int] = 1
    family: ClassVar[Family] = Family(
        number=11, name="fsync-lies", colour="#4f6d7a", fair=False, possible=ClusterShape.has_loss_budget
    )
    proof: ClassVar[tuple[str, ...]] = ("lies",)

    nodes: tuple[str, ...] = ("any",)

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """Victims."""
        return cls(nodes=draws.some(draws.profile.victims))

    def at_risk(self, cluster: ClusterShape) -> tuple[str, ...]:
        """Its nodes."""
        return self.nodes

    async def inject(self, handle: FaultHandle) -> None:
        """Make every node's disk lie."""
        for node in await handle.targets.resolve(self.nodes):
            await handle.lie_about_fsync(node)
