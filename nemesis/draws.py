"""One fault of a family, drawn: to whom it is done, and how badly.

Every draw comes from the one stream handed in, in the order in which the draws are written down here: a schedule is its
seed's, and a draw more or less makes other schedules of all seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from nemesis.cluster_shape import Ground
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
from nemesis.faults.network_partition import Flavour, Partition, Shape
from nemesis.faults.packets import Packets
from nemesis.faults.process import Kill, Pause
from nemesis.faults.scripted.controllers import LaggingController, ZombieController
from nemesis.faults.scripted.leader import (
    DeafLeader,
    HiddenCommit,
    LostIncarnation,
    QuickSuccession,
    UncleanReturn,
    ZombieFollower,
)
from nemesis.faults.scripted.overtaking import LateProposal, RemovedAndBack
from nemesis.ports import Keep, Means

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Character:
    """What kind of run this is; drawn once."""

    victims: tuple[str, ...]
    leader_bias: float
    held_share: float
    keeps: tuple[Keep, ...]


def some(random: Random, items: Sequence[T]) -> list[T]:
    """At least one of `items`, in their order; every number of them is equally likely."""
    count = random.randint(1, len(items))
    return [items[index] for index in sorted(random.sample(range(len(items)), count))]


def _broker(random: Random, ground: Ground, character: Character) -> str:
    if random.random() < character.leader_bias:
        return f"leader/{random.randrange(ground.partitions)}"
    return random.choice(ground.brokers)


def _controller(random: Random, ground: Ground) -> str:
    """Mostly the active one: the others are missed less."""
    return "controller" if random.random() < 0.6 else random.choice(ground.controllers)


def _controllers(random: Random, ground: Ground) -> tuple[str, ...]:
    """One, now and then more."""
    if random.random() < 0.7:
        return (_controller(random, ground),)
    return tuple(some(random, ground.controllers))


def _partition(random: Random, ground: Ground, character: Character) -> Fault:
    several = len(ground.controllers) > 1
    shape = random.choice([shape for shape in Shape if several or shape is not Shape.CONTROLLERS_APART])
    nodes: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    broker = _broker(random, ground, character)
    match shape:
        case Shape.ISOLATE:
            nodes = (_controller(random, ground) if ground.controllers and random.random() < 0.25 else broker,)
        case Shape.MINORITY:
            size = max(1, (len(ground.brokers) - 1) // 2)
            nodes = tuple(random.sample(ground.brokers, size)) if size > 1 else (broker,)
        case Shape.BRIDGE | Shape.HALVES:
            nodes = (broker,)
        case Shape.RING:
            nodes = tuple(random.sample(ground.brokers, len(ground.brokers)))
        case Shape.ONE_WAY:
            everyone = ground.brokers + ground.controllers
            nodes = (broker if random.random() < 0.7 else random.choice(everyone),)
            others = [node for node in everyone if node not in nodes]
            against = () if random.random() < 0.4 or not others else (random.choice(others),)
        case Shape.LEADER_ONLY:
            nodes = (f"leader/{random.randrange(ground.partitions)}",)
        case Shape.CONTROLLER_FROM_BROKERS:
            nodes = tuple(some(random, ground.brokers)) if random.random() < 0.5 else (broker,)
        case Shape.CONTROLLERS_APART:
            nodes = (_controller(random, ground),)
    flavour = Flavour.HELD if random.random() < character.held_share else Flavour.RESET
    return Partition(shape=shape, nodes=nodes, against=against, flavour=flavour)


def _kill(random: Random, ground: Ground, character: Character) -> Fault:
    if ground.controllers and (not character.victims or random.random() < 0.25):
        return Kill(nodes=_controllers(random, ground))
    if ground.recovers and random.random() < 0.7:
        return Kill(nodes=tuple(some(random, ground.brokers)))
    return Kill(nodes=tuple(some(random, character.victims)))


def _power_loss(random: Random, ground: Ground, character: Character) -> Fault:
    if ground.controllers and (not character.victims or random.random() < 0.25):
        return PowerLoss(nodes=_controllers(random, ground), keep=random.choice(character.keeps))
    return PowerLoss(nodes=tuple(some(random, character.victims)), keep=random.choice(character.keeps))


def _pause(random: Random, ground: Ground, character: Character) -> Fault:
    kind = random.random()
    if ground.controllers and kind < 0.2:
        return Pause(nodes=_controllers(random, ground))
    if kind < 0.35:
        return Pause(nodes=tuple(some(random, ground.brokers)))
    return Pause(nodes=(_broker(random, ground, character),))


def _clock(random: Random, ground: Ground, character: Character) -> Fault:
    node = _broker(random, ground, character)
    if ground.controllers and random.random() < 0.2:
        node = _controller(random, ground)
    kind = random.choice(("jump", "freeze", "skew", "both"))
    jump_ms = random.choice((-1, 1, 1)) * max(1, round(ground.patience_s * 1000 * random.uniform(0.05, 2.0)))
    rate = round(random.choice((random.uniform(0.3, 0.95), random.uniform(1.05, 3.0))), 3)
    return Clock(
        nodes=(node,),
        jump_ms=jump_ms if kind in ("jump", "both") else 0.0,
        rate=0.0 if kind == "freeze" else rate if kind in ("skew", "both") else 1.0,
    )


def _packets(random: Random, ground: Ground, character: Character) -> Fault:
    delay_ms = round(10 ** random.uniform(0.3, 3.0), 1)
    slow, lossy = random.choice(((True, False), (False, True), (True, True)))
    if Means.DELAY in ground.lacks:
        slow, lossy = False, True
    against = "all" if random.random() < 0.4 else random.choice(("brokers", "controllers", *ground.brokers))
    node = _broker(random, ground, character)
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


def draw_story(random: Random, ground: Ground, character: Character) -> Fault:
    patience_ms = ground.patience_s * 1000
    partition = random.randrange(ground.partitions)
    stories: list[Fault] = [
        ZombieFollower(partition, patience_ms),
        HiddenCommit(partition, patience_ms),
        DeafLeader(partition, patience_ms),
        QuickSuccession(partition, patience_ms),
        LateProposal(partition, patience_ms),
        RemovedAndBack(partition, patience_ms),
    ]
    if character.victims:
        victim = random.choice(character.victims)
        keep = random.choice(character.keeps)
        stories.append(UncleanReturn(victim, Keep.NOTHING if keep is Keep.EVERYTHING else keep, patience_ms))
        stories.append(LostIncarnation(victim, partition, Keep.NOTHING, patience_ms))
    if len(ground.controllers) >= 3:
        stories += [ZombieController(patience_ms), LaggingController(patience_ms)]
    return random.choice([story for story in stories if not story.needs() & set(ground.lacks)])


def _admin(random: Random, ground: Ground, character: Character) -> Fault:
    partition = random.randrange(ground.partitions)
    return random.choice(
        (
            Reassign(partition),
            CancelReassignment(partition, ground.patience_s * 1000),
            ElectPreferred(partition),
            RaiseMinIsr(),
            ControlledRestart((_broker(random, ground, character),)),
            RollingRestart(ground.patience_s * 1000),
            DeleteRecords(partition, random.random() < 0.25, ground.patience_s * 1000),
            MoveController(),
        )
    )


def _wipe(random: Random, ground: Ground, character: Character) -> Fault:
    return WipeDisk(nodes=tuple(some(random, character.victims)))


def _power_loss_all(random: Random, ground: Ground, character: Character) -> Fault:
    return PowerLossAll(keep=random.choice(character.keeps))


def _fsync_lies(random: Random, ground: Ground, character: Character) -> Fault:
    return FsyncLies(nodes=tuple(some(random, character.victims)))


DRAWS: Mapping[str, Callable[[Random, Ground, Character], Fault]] = {
    Partition.family: _partition,
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
