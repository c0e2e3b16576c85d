"""Schedules drawn from a seed, swarm fashion.

A schedule that always has a bit of everything tests one mixture over and over. Here the *character* of a run is drawn
first, and the faults from that character:

- which families take part, from one to all of them, and how often each;
- the tempo: one long outage, a few long ones, many short ones, bursts with quiet between them, or a steady rain;
- how strongly faults aim at leaders, how much they overlap, which partition flavour and disk behaviour prevail;
- whether some clocks run wrong for the whole run;
- whether choreographies are told one after the other and undisturbed, or into the noise of everything else.

**The fair budget.** The protocol promises that an acknowledged record survives while fewer than min.insync.replicas
of its replicas lose data. Kills, power losses and wiped disks (all come back as unclean restarts) therefore hit only
the *victims* of a run: at most min.insync.replicas − 1 brokers, drawn up front. Any number of controllers may be
killed, paused, cut off and lose power, since they sync whatever they count. Where the topics have an unclean recovery
(`unclean.recovery.strategy`), kills hit any broker: a killed process loses nothing, and the recovery must find one that
has everything. Everything is healed at the end.

All draws come from the one stream handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from nemesis.admin import (
    CancelReassignment,
    ControlledRestart,
    DeleteRecords,
    ElectPreferred,
    MoveController,
    RaiseMinIsr,
    Reassign,
    RollingRestart,
)
from nemesis.choreography import (
    DeafLeader,
    HiddenCommit,
    LostIncarnation,
    QuickSuccession,
    UncleanReturn,
    ZombieFollower,
)
from nemesis.clock import Clock
from nemesis.controllers import LaggingController, ZombieController
from nemesis.disk import FsyncLies, PowerLoss, PowerLossAll, WipeDisk
from nemesis.fault import Fault
from nemesis.overtaking import LateProposal, RemovedAndBack
from nemesis.packets import Packets
from nemesis.partition import Flavour, Partition, Shape
from nemesis.ports import Keep, Means
from nemesis.process import Kill, Pause
from nemesis.schedule import FAIR_FAMILIES, Planned, Schedule

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ground:
    """What there is to be broken."""

    brokers: tuple[str, ...]
    controllers: tuple[str, ...]
    partitions: int
    min_insync_replicas: int = 2
    patience_s: float = 2.0
    """How long the cluster takes to act on a silent broker: the scale of every duration drawn."""
    lacks: Collection[Means] = ()
    """What the environment cannot do; faults that need it are not drawn."""
    recovers: bool = False
    """Whether the cluster recovers by itself from unclean shutdowns of more brokers than may lose data."""

    @property
    def unclean_budget(self) -> int:
        """How many brokers may lose data in one run."""
        return max(0, min(self.min_insync_replicas - 1, len(self.brokers)))


@dataclass(frozen=True, slots=True)
class Tempo:
    """How faults follow each other, in multiples of the cluster's patience."""

    gap: float
    """Mean time between two faults, or two bursts."""
    shortest: float
    longest: float
    burst: int = 1
    """Up to so many faults come at nearly the same time."""
    most: int = 1_000


_STORY_LONGEST = 10.0
"""How long a choreography may take, in multiples of the cluster's patience."""

TEMPI: Mapping[str, Tempo] = {
    "one long outage": Tempo(gap=4.0, shortest=4.0, longest=15.0, most=1),
    "few and long": Tempo(gap=5.0, shortest=1.5, longest=8.0),
    "many and short": Tempo(gap=0.6, shortest=0.02, longest=0.8),
    "bursts": Tempo(gap=5.0, shortest=0.2, longest=3.0, burst=5),
    "rain": Tempo(gap=1.5, shortest=0.05, longest=4.0, burst=2),
}


@dataclass(frozen=True, slots=True)
class Character:
    """What kind of run this is; drawn once."""

    tempo: Tempo
    victims: tuple[str, ...]
    leader_bias: float
    held_share: float
    keeps: tuple[Keep, ...]


def draw(random: Random, ground: Ground, time_limit_s: float, families: Sequence[str] = FAIR_FAMILIES) -> Schedule:
    """A schedule for a run of `time_limit_s`, with some or all of `families`."""
    families = [family for family in families if _possible(family, ground)]
    if not families or time_limit_s <= 0:
        return Schedule()
    chosen = _some(random, families)
    undisturbed = ZombieFollower.family in chosen and random.random() < 0.5
    weights = [random.uniform(0.2, 1.0) for _ in chosen]
    character = Character(
        tempo=random.choice(list(TEMPI.values())),
        victims=tuple(random.sample(ground.brokers, ground.unclean_budget)),
        leader_bias=random.choice((0.2, 0.5, 0.9)),
        held_share=random.choice((0.0, 0.5, 0.8, 1.0)),
        keeps=_keeps(random),
    )
    planned = _whole_run_clocks(random, ground, time_limit_s) if "clock" in chosen else []
    if undisturbed:
        return Schedule(tuple(_stories(random, ground, character, time_limit_s)))
    tempo = character.tempo
    at_s = random.uniform(0, min(tempo.gap * ground.patience_s, time_limit_s / 2))
    injections = 0
    while injections < tempo.most:
        for _ in range(random.randint(1, tempo.burst)):
            if at_s >= time_limit_s:
                return Schedule(tuple(planned))
            (family,) = random.choices(chosen, weights)
            fault = _DRAWS[family](random, ground, character)
            while tempo.most == 1 and not fault.bites_alone:
                fault = _DRAWS[family](random, ground, character)
            shortest, longest = (tempo.shortest, tempo.longest)
            duration = shortest * (longest / shortest) ** random.random() * ground.patience_s
            if fault.ends_by_itself:
                duration = _STORY_LONGEST * ground.patience_s
            planned.append(_to_the_millisecond(at_s, min(duration, time_limit_s - at_s), fault))
            injections += 1
            at_s += random.expovariate(20 / ground.patience_s) if tempo.burst > 1 else 0.0
        at_s += random.expovariate(1 / (tempo.gap * ground.patience_s))
    return Schedule(tuple(planned))


def _stories(random: Random, ground: Ground, character: Character, time_limit_s: float) -> Iterator[Planned]:
    at_s = random.uniform(0.2, 2.0) * ground.patience_s
    while at_s < time_limit_s:
        story = _choreography(random, ground, character)
        yield _to_the_millisecond(at_s, min(_STORY_LONGEST * ground.patience_s, time_limit_s - at_s), story)
        at_s += random.uniform(0.7, 1.0) * _STORY_LONGEST * ground.patience_s


def _to_the_millisecond(at_s: float, for_s: float, fault: Fault) -> Planned:
    """So that a schedule written as a script is the same schedule."""
    return Planned(round(at_s, 3), round(for_s, 3), fault)


def _possible(family: str, ground: Ground) -> bool:
    if family in (Kill.family, PowerLoss.family):
        return bool(ground.unclean_budget or ground.controllers)
    if family in (WipeDisk.family, FsyncLies.family):
        return bool(ground.unclean_budget)
    return True


def _some(random: Random, items: Sequence[T]) -> list[T]:
    """At least one of `items`, in their order; every number of them is equally likely."""
    count = random.randint(1, len(items))
    return [items[index] for index in sorted(random.sample(range(len(items)), count))]


def _whole_run_clocks(random: Random, ground: Ground, time_limit_s: float) -> list[Planned]:
    if random.random() < 0.7:
        return []
    nodes = _some(random, ground.brokers + ground.controllers)
    return [
        Planned(0.0, time_limit_s, Clock(nodes=(node,), rate=round(random.choice((0.9, 0.98, 1.02, 1.1)), 3)))
        for node in nodes
    ]


def _keeps(random: Random) -> tuple[Keep, ...]:
    """What power losses of a run leave; some of them lose something."""
    keeps = tuple(_some(random, list(Keep)))
    return (Keep.NOTHING,) if keeps == (Keep.EVERYTHING,) else keeps


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
    return tuple(_some(random, ground.controllers))


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
            nodes = tuple(_some(random, ground.brokers)) if random.random() < 0.5 else (broker,)
        case Shape.CONTROLLERS_APART:
            nodes = (_controller(random, ground),)
    flavour = Flavour.HELD if random.random() < character.held_share else Flavour.RESET
    return Partition(shape=shape, nodes=nodes, against=against, flavour=flavour)


def _kill(random: Random, ground: Ground, character: Character) -> Fault:
    if ground.controllers and (not character.victims or random.random() < 0.25):
        return Kill(nodes=_controllers(random, ground))
    if ground.recovers and random.random() < 0.7:
        return Kill(nodes=tuple(_some(random, ground.brokers)))
    return Kill(nodes=tuple(_some(random, character.victims)))


def _power_loss(random: Random, ground: Ground, character: Character) -> Fault:
    if ground.controllers and (not character.victims or random.random() < 0.25):
        return PowerLoss(nodes=_controllers(random, ground), keep=random.choice(character.keeps))
    return PowerLoss(nodes=tuple(_some(random, character.victims)), keep=random.choice(character.keeps))


def _pause(random: Random, ground: Ground, character: Character) -> Fault:
    kind = random.random()
    if ground.controllers and kind < 0.2:
        return Pause(nodes=_controllers(random, ground))
    if kind < 0.35:
        return Pause(nodes=tuple(_some(random, ground.brokers)))
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


def _choreography(random: Random, ground: Ground, character: Character) -> Fault:
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
    return WipeDisk(nodes=tuple(_some(random, character.victims)))


def _power_loss_all(random: Random, ground: Ground, character: Character) -> Fault:
    return PowerLossAll(keep=random.choice(character.keeps))


def _fsync_lies(random: Random, ground: Ground, character: Character) -> Fault:
    return FsyncLies(nodes=tuple(_some(random, character.victims)))


_DRAWS: Mapping[str, Callable[[Random, Ground, Character], Fault]] = {
    Partition.family: _partition,
    Kill.family: _kill,
    PowerLoss.family: _power_loss,
    Pause.family: _pause,
    Clock.family: _clock,
    Packets.family: _packets,
    ZombieFollower.family: _choreography,
    Reassign.family: _admin,
    WipeDisk.family: _wipe,
    PowerLossAll.family: _power_loss_all,
    FsyncLies.family: _fsync_lies,
}
