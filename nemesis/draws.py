"""One fault of a family, drawn: to whom it is done, and how badly.

Every draw comes from the one stream handed in, in the order in which the draws are written down here: a schedule is its
seed's, and a draw more or less makes other schedules of all seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from nemesis.cluster_shape import ClusterShape
from nemesis.faults.admin import (
    CancelReassignment,
    ControlledRestart,
    DeleteRecords,
    ElectPreferred,
    MoveController,
    RaiseMinIsr,
    Reassign,
    RollingRestart,
)
from nemesis.faults.clock import Clock
from nemesis.faults.disk import FsyncLies, PowerLoss, PowerLossAll, WipeDisk
from nemesis.faults.fault import Fault
from nemesis.faults.network_partition import ConnectionFate, NetworkPartition, PartitionShape
from nemesis.faults.packets import Packets
from nemesis.faults.process import Kill, Pause
from nemesis.faults.scripted.controllers import LaggingController, ZombieController
from nemesis.faults.scripted.leader import (
    DeafLeader,
    HiddenCommit,
    QuickSuccession,
    StaleBrokerEpoch,
    UncleanReturn,
    ZombieFollower,
)
from nemesis.faults.scripted.overtaking import LateProposal, RemovedAndBack
from nemesis.ports import EnvironmentCapability, KeepUnsynced

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunProfile:
    """What kind of run this is; drawn once."""

    victims: tuple[str, ...]
    leader_bias: float
    held_share: float
    keeps: tuple[KeepUnsynced, ...]


def some(random: Random, items: Sequence[T]) -> list[T]:
    """At least one of `items`, in their order; every number of them is equally likely."""
    count = random.randint(1, len(items))
    return [items[index] for index in sorted(random.sample(range(len(items)), count))]


def _broker(random: Random, cluster: ClusterShape, profile: RunProfile) -> str:
    if random.random() < profile.leader_bias:
        return f"leader/{random.randrange(cluster.partitions)}"
    return random.choice(cluster.brokers)


def _controller(random: Random, cluster: ClusterShape) -> str:
    """Mostly the active one: the others are missed less."""
    return "controller" if random.random() < 0.6 else random.choice(cluster.controllers)


def _controllers(random: Random, cluster: ClusterShape) -> tuple[str, ...]:
    """One, now and then more."""
    if random.random() < 0.7:
        return (_controller(random, cluster),)
    return tuple(some(random, cluster.controllers))


def _partition(random: Random, cluster: ClusterShape, profile: RunProfile) -> Fault:
    several = len(cluster.controllers) > 1
    shape = random.choice(
        [shape for shape in PartitionShape if several or shape is not PartitionShape.CONTROLLERS_APART]
    )
    nodes: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    broker = _broker(random, cluster, profile)
    match shape:
        case PartitionShape.ISOLATE:
            nodes = (_controller(random, cluster) if cluster.controllers and random.random() < 0.25 else broker,)
        case PartitionShape.MINORITY:
            size = max(1, (len(cluster.brokers) - 1) // 2)
            nodes = tuple(random.sample(cluster.brokers, size)) if size > 1 else (broker,)
        case PartitionShape.BRIDGE | PartitionShape.HALVES:
            nodes = (broker,)
        case PartitionShape.RING:
            nodes = tuple(random.sample(cluster.brokers, len(cluster.brokers)))
        case PartitionShape.ONE_WAY:
            everyone = cluster.brokers + cluster.controllers
            nodes = (broker if random.random() < 0.7 else random.choice(everyone),)
            others = [node for node in everyone if node not in nodes]
            against = () if random.random() < 0.4 or not others else (random.choice(others),)
        case PartitionShape.LEADER_ONLY:
            nodes = (f"leader/{random.randrange(cluster.partitions)}",)
        case PartitionShape.CONTROLLER_FROM_BROKERS:
            nodes = tuple(some(random, cluster.brokers)) if random.random() < 0.5 else (broker,)
        case PartitionShape.CONTROLLERS_APART:
            nodes = (_controller(random, cluster),)
    flavour = ConnectionFate.HELD if random.random() < profile.held_share else ConnectionFate.RESET
    return NetworkPartition(shape=shape, nodes=nodes, against=against, flavour=flavour)


def _kill(random: Random, cluster: ClusterShape, profile: RunProfile) -> Fault:
    if cluster.controllers and (not profile.victims or random.random() < 0.25):
        return Kill(nodes=_controllers(random, cluster))
    if cluster.recovers and random.random() < 0.7:
        return Kill(nodes=tuple(some(random, cluster.brokers)))
    return Kill(nodes=tuple(some(random, profile.victims)))


def _power_loss(random: Random, cluster: ClusterShape, profile: RunProfile) -> Fault:
    if cluster.controllers and (not profile.victims or random.random() < 0.25):
        return PowerLoss(nodes=_controllers(random, cluster), keep=random.choice(profile.keeps))
    return PowerLoss(nodes=tuple(some(random, profile.victims)), keep=random.choice(profile.keeps))


def _pause(random: Random, cluster: ClusterShape, profile: RunProfile) -> Fault:
    kind = random.random()
    if cluster.controllers and kind < 0.2:
        return Pause(nodes=_controllers(random, cluster))
    if kind < 0.35:
        return Pause(nodes=tuple(some(random, cluster.brokers)))
    return Pause(nodes=(_broker(random, cluster, profile),))


def _clock(random: Random, cluster: ClusterShape, profile: RunProfile) -> Fault:
    node = _broker(random, cluster, profile)
    if cluster.controllers and random.random() < 0.2:
        node = _controller(random, cluster)
    kind = random.choice(("jump", "freeze", "skew", "both"))
    jump_ms = random.choice((-1, 1, 1)) * max(1, round(cluster.patience_s * 1000 * random.uniform(0.05, 2.0)))
    rate = round(random.choice((random.uniform(0.3, 0.95), random.uniform(1.05, 3.0))), 3)
    return Clock(
        nodes=(node,),
        jump_ms=jump_ms if kind in ("jump", "both") else 0.0,
        rate=0.0 if kind == "freeze" else rate if kind in ("skew", "both") else 1.0,
    )


def _packets(random: Random, cluster: ClusterShape, profile: RunProfile) -> Fault:
    delay_ms = round(10 ** random.uniform(0.3, 3.0), 1)
    slow, lossy = random.choice(((True, False), (False, True), (True, True)))
    if EnvironmentCapability.DELAY in cluster.unsupported:
        slow, lossy = False, True
    against = "all" if random.random() < 0.4 else random.choice(("brokers", "controllers", *cluster.brokers))
    node = _broker(random, cluster, profile)
    if node == against:
        against = "all"
    return Packets(
        nodes=(node,),
        against=(against,),
        delay_ms=delay_ms if slow else 0.0,
        jitter_ms=round(delay_ms * random.uniform(0, 1.5), 1) if slow else 0.0,
        loss=round(random.uniform(0.02, 0.5), 3) if lossy else 0.0,
        one_way=random.random() < 0.3,
    )


def draw_story(random: Random, cluster: ClusterShape, profile: RunProfile) -> Fault:
    patience_ms = cluster.patience_s * 1000
    partition = random.randrange(cluster.partitions)
    stories: list[Fault] = [
        ZombieFollower(partition, patience_ms),
        HiddenCommit(partition, patience_ms),
        DeafLeader(partition, patience_ms),
        QuickSuccession(partition, patience_ms),
        LateProposal(partition, patience_ms),
        RemovedAndBack(partition, patience_ms),
    ]
    if profile.victims:
        victim = random.choice(profile.victims)
        keep = random.choice(profile.keeps)
        stories.append(
            UncleanReturn(victim, KeepUnsynced.NOTHING if keep is KeepUnsynced.EVERYTHING else keep, patience_ms)
        )
        stories.append(StaleBrokerEpoch(victim, partition, KeepUnsynced.NOTHING, patience_ms))
    if len(cluster.controllers) >= 3:
        stories += [ZombieController(patience_ms), LaggingController(patience_ms)]
    return random.choice([story for story in stories if not story.needs() & set(cluster.unsupported)])


def _admin(random: Random, cluster: ClusterShape, profile: RunProfile) -> Fault:
    partition = random.randrange(cluster.partitions)
    return random.choice(
        (
            Reassign(partition),
            CancelReassignment(partition, cluster.patience_s * 1000),
            ElectPreferred(partition),
            RaiseMinIsr(),
            ControlledRestart((_broker(random, cluster, profile),)),
            RollingRestart(cluster.patience_s * 1000),
            DeleteRecords(partition, random.random() < 0.25, cluster.patience_s * 1000),
            MoveController(),
        )
    )


def _wipe(random: Random, cluster: ClusterShape, profile: RunProfile) -> Fault:
    return WipeDisk(nodes=tuple(some(random, profile.victims)))


def _power_loss_all(random: Random, cluster: ClusterShape, profile: RunProfile) -> Fault:
    return PowerLossAll(keep=random.choice(profile.keeps))


def _fsync_lies(random: Random, cluster: ClusterShape, profile: RunProfile) -> Fault:
    return FsyncLies(nodes=tuple(some(random, profile.victims)))


DRAWS: Mapping[str, Callable[[Random, ClusterShape, RunProfile], Fault]] = {
    NetworkPartition.family: _partition,
    Kill.family: _kill,
    PowerLoss.family: _power_loss,
    Pause.family: _pause,
    Clock.family: _clock,
    Packets.family: _packets,
    ZombieFollower.family: draw_story,
    Reassign.family: _admin,
    WipeDisk.family: _wipe,
    PowerLossAll.family: _power_loss_all,
    FsyncLies.family: _fsync_lies,
}
