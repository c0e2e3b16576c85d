"""Schedules drawn from a seed, swarm fashion.

A schedule that always has a bit of everything tests one mixture over and over. Here the *profile* of a run is drawn
first, and the faults from that profile:

- which families take part, from one to all of them, and how often each;
- the tempo: one long outage, a few long ones, many short ones, bursts with quiet between them, or a steady rain;
- how strongly faults aim at leaders, how much they overlap, which partition flavour and disk behaviour prevail;
- whether some clocks run wrong for the whole run, or the connections of one name are slow;
- whether scripted faults run one after the other and undisturbed, or among all other faults.

A share of the faults may wait for a condition of the protocol instead of a time alone (`nemesis.triggers`). The first
that has an effect by itself keeps its time, so that there is something to wait for. A share of the partitions and of
the slow and lossy links may concern the connections of one name alone (`Fault.limited`), and some of these be slow
from the beginning to the end.

**The fair budget.** The protocol promises that an acknowledged record survives while fewer than min.insync.replicas
of its replicas lose data. Kills, power losses and wiped disks (all come back as unclean restarts) therefore hit only
the *victims* of a run: at most min.insync.replicas − 1 brokers at a time. In half of the runs these are drawn up
front; in the other half they rotate: the target `victim/0` is another broker once the last one is whole again
(`nemesis.wholeness`), so that two replicas lose data one after the other. Any number of controllers may be killed,
paused, cut off and lose power, since they sync before they answer. Where a spec names an unclean recovery
(`unclean.recovery.strategy`), kills hit any broker: a killed process loses nothing, and the recovery must find a
replica that has everything. Everything is healed at the end.

A share of the faults, `blackouts`, cuts all power from which nothing promised can be lost (`Fault.blacked_out`): of any
node that has stopped cleanly, or of all of its role; of every controller; and where every append is synced
(`flush.messages=1`) and an unclean recovery is named, of every broker at once. Of the power losses of victims it is the
share that falls into the middle of a clean stop.

**Streams.** Every decision has a stream of its own, named after its purpose and the numbers of the slot, the family and
the fault that it concerns. Times do not depend on which families there are, and the fault of a slot is that of the
family with the least key, each drawing its key alone. So a new family takes some slots of old schedules for itself and
leaves all others as they were, and so does a new fault within its family. Where no fault of a run may have an effect by
itself (full disks of controllers, where no broker may be a victim), the first makes way for one of another family.
Where each that may lasts too short a time for that (`Fault.acts_within`), the first of them begins earlier and lasts
longer. The one that is sure to act keeps its times and its links. One whose steps take longer than its time lasts as
long as they may take (`Fault.least_s`), and begins earlier where the run would end before. The last fault waits until
clients have written something.

**Density.** A run may have several schedules at the same time: a fault that mostly meets a healthy cluster in one of
them meets others there. The first is that of the same seed alone; the others come from streams of their own. So do the
administrators, who change a topic of their own all the while (`RecreateTopic.of_administrator`).

**Environments.** The same seed gives the same schedule in every environment, as far as that can carry it. Everything is
drawn as if nothing were missing; then a fault that needs a capability which the environment lacks is replaced in its
slot (`Fault.adapted`, else the next fault of its family), and a duration shorter than an injection takes there becomes
as long as that. A slot in the last such moment of a run stays empty.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from random import Random
from typing import Any, Final

from nemesis.cluster_shape import ClusterShape
from nemesis.drawing import Draws, RunProfile, draw_scale, some
from nemesis.faults.administrators.recreate_topic import RecreateTopic
from nemesis.faults.fault import Family, Fault
from nemesis.ports import EnvironmentCapability, KeepUnsynced
from nemesis.registry import FAIR_FAMILIES, FAMILIES, faults_of
from nemesis.schedule import Schedule, ScheduledFault
from nemesis.triggers import with_deletion, with_end, with_log_start, with_start, with_trigger


@dataclass(frozen=True, slots=True)
class Tempo:
    """Rhythm of the faults, in multiples of the cluster's patience."""

    gap: float
    """Mean time between two faults, or two bursts."""
    shortest: float
    longest: float
    burst: int = 1
    """Up to so many faults come at nearly the same time."""
    most: int = 1_000


_SCRIPTED_LONGEST = 10.0
"""Longest duration of a scripted fault, in multiples of the cluster's patience."""

_ROTATING_SHARE = 0.5
"""Of the runs: whether other brokers may lose data once the last ones are whole again."""
_ATTEMPTS = 20
"""How often the only fault of a run is drawn until it has an effect by itself."""
_STEPS_BEGIN_WITHIN = 0.25
"""Share of a run in which a fault begins at the latest whose steps may take all of it."""
_MILLISECOND_S = 1e-3
"""Times of a schedule are rounded to it."""
_LAST_FAULT_EARLIEST = 0.25
"""When the last fault of a run may begin, in multiples of the cluster's patience: once clients have written something
that a power loss can take."""

TEMPI: Mapping[str, Tempo] = {
    "one long outage": Tempo(gap=4.0, shortest=4.0, longest=15.0, most=1),
    "few and long": Tempo(gap=5.0, shortest=1.5, longest=8.0),
    "many and short": Tempo(gap=0.6, shortest=0.02, longest=0.8),
    "bursts": Tempo(gap=5.0, shortest=0.2, longest=3.0, burst=5),
    "rain": Tempo(gap=1.5, shortest=0.05, longest=4.0, burst=2),
}


NO_EXTRAS: Final[Mapping[str, Any]] = {
    "triggers": 0.0,
    "channels": 0.0,
    "blackouts": 0.0,
    "schedules": 1,
    "administrators": 0,
}
"""The options of a draw beside its families, each with its neutral value: a schedule that has nothing of it."""


def draw(
    random: Random,
    cluster: ClusterShape,
    time_limit_s: float,
    families: Sequence[str] = FAIR_FAMILIES,
    *,
    triggers: float = 0.0,
    channels: float = 0.0,
    blackouts: float = 0.0,
    schedules: int = 1,
    administrators: int = 0,
) -> Schedule:
    """A schedule for a run of `time_limit_s`, with some or all of `families`; a share of its faults, `triggers`, waits
    for conditions; a share of those of links, `channels`, concerns the connections of one name; and a share of those
    that end processes, `blackouts`, cuts all power from which nothing promised can be lost. With more `schedules` so
    many at the same time, in which the victims of the first lose data. So many `administrators` change a topic beside
    that of the run, where their family is among the others and the run has time for an injection."""
    possible = _possible(families, cluster)
    if not possible or time_limit_s <= 0:
        return Schedule()
    streams = _Streams(random.getrandbits(64))
    drawing = _Drawing(possible, cluster, time_limit_s, triggers, channels, blackouts)
    _, victims = _tempo_and_victims(streams.of("run"), streams, cluster)
    drawn = [*drawing.schedule(streams, victims)]
    for number in range(1, schedules):
        drawn += drawing.schedule(_Streams(streams.of("schedule", number).getrandbits(64)), victims)
    if RecreateTopic.family in possible and time_limit_s >= cluster.injection_s:
        for number in range(administrators):
            drawn.append(drawing.administrator(streams.of("administrator", number), victims))
    return Schedule(tuple(sorted(drawn, key=lambda each: each.at_s)))


@dataclass(frozen=True, slots=True)
class _Drawing:
    """What the schedules of a run are drawn from; see `draw`."""

    possible: Sequence[Family]
    cluster: ClusterShape
    time_limit_s: float
    triggers: float
    channels: float
    blackouts: float

    def schedule(self, streams: _Streams, victims: tuple[str, ...]) -> Iterator[ScheduledFault]:
        """The faults of one schedule, in which these victims lose data."""
        cluster, time_limit_s = self.cluster, self.time_limit_s
        run = streams.of("run")
        tempo, _ = _tempo_and_victims(run, streams, cluster)
        profile = _profile(run, victims)
        chosen = _participants(self.possible, streams, run.random())
        alone = [family for family in chosen if streams.of("alone", family.number).random() < family.alone_share]
        if alone:
            yield from _one_after_the_other(alone[0], streams, cluster, profile, time_limit_s)
            return
        background = [
            ScheduledFault(0.0, time_limit_s, fault)
            for family in chosen
            for fault in family.background(streams.of("background", family.number), cluster)
            if self.channels or EnvironmentCapability.CHANNELS not in fault.needs()
        ]
        weights = {family: family.weight * streams.of("weight", family.number).uniform(0.2, 1.0) for family in chosen}
        of_slots: list[ScheduledFault] = []
        slots = list(_slots(streams.of("slots"), tempo, cluster.patience_s, time_limit_s))
        end_s = time_limit_s - cluster.injection_s
        for slot, (at_s, duration_s) in enumerate(slots):
            keys = {family: streams.of("family", slot, family.number).expovariate(weights[family]) for family in chosen}
            family = min(chosen, key=lambda family: keys[family])
            fault = draw_fault(family, streams, slot, cluster, profile, alone=len(slots) == 1)
            if fault.ends_by_itself:
                duration_s = _SCRIPTED_LONGEST * cluster.patience_s
            duration_s = max(duration_s, fault.least_s(cluster))
            at_s = _with_time_for_steps(at_s, fault.least_s(cluster), time_limit_s)
            if at_s <= end_s and round(at_s, 3) < time_limit_s:
                duration_s = max(cluster.injection_s, min(duration_s, time_limit_s - at_s))
                of_slots.append(_to_the_millisecond(at_s, duration_s, fault))
        if of_slots and not any(each.fault.effective_alone(cluster) for each in (*background, *of_slots)):
            others = (draw_fault(family, streams, 0, cluster, profile, alone=True) for family in self.possible)
            first = next((fault for fault in others if fault.effective_alone(cluster)), of_slots[0].fault)
            of_slots[0] = replace(of_slots[0], fault=first)
        earliest_s = _LAST_FAULT_EARLIEST * cluster.patience_s
        if of_slots and of_slots[-1].at_s < earliest_s < end_s:
            last = of_slots.pop()
            of_slots.append(_to_the_millisecond(earliest_s, min(last.for_s, time_limit_s - earliest_s), last.fault))
        of_slots = list(_lasting_enough(of_slots, background, cluster, time_limit_s))
        yield from background
        yield from self._changed(of_slots, streams)

    def administrator(self, random: Random, victims: tuple[str, ...]) -> ScheduledFault:
        """One who changes a topic beside that of the run, from some time of its first half on, and may end a victim."""
        fault = RecreateTopic.of_administrator(random, self.cluster, victims)
        at_s = random.uniform(0, min(self.time_limit_s / 2, self.time_limit_s - self.cluster.injection_s))
        return _to_the_millisecond(at_s, self.time_limit_s - at_s, fault)

    def _changed(self, of_slots: Sequence[ScheduledFault], streams: _Streams) -> Iterator[ScheduledFault]:
        """The faults with triggers, limited to channels, and blacked out. One stays as it is: the first that is sure to
        act, else the first that may have an effect by itself."""
        cluster = self.cluster
        effective = [number for number, each in enumerate(of_slots) if each.fault.effective_alone(cluster)]
        kept = next((number for number in effective if _is_sure(of_slots[number], cluster)), next(iter(effective), 0))
        for number, scheduled in enumerate(of_slots):
            random = streams.of("channel", number)
            limitable = number != kept and EnvironmentCapability.CHANNELS not in cluster.unsupported
            if limitable and random.random() < self.channels:
                scheduled = replace(scheduled, fault=scheduled.fault.limited(random, cluster))
            random = streams.of("blackout", number)
            if number != kept and random.random() < self.blackouts:
                scheduled = replace(scheduled, fault=scheduled.fault.blacked_out(random, cluster))
            random = streams.of("trigger", number)
            triggered = number != kept and random.random() < self.triggers
            later = [each.fault for each in of_slots if each.at_s > scheduled.at_s]
            deletions = any(fault.removes_replicas for fault in later)
            if triggered:
                scheduled = with_trigger(scheduled, random, cluster, deletions=deletions)
            if number != kept and self.triggers and deletions:
                scheduled = with_deletion(scheduled, streams.of("deletion", number), cluster)
            starts = any(fault.deletes_records for fault in later)
            if number != kept and self.triggers and starts and scheduled.when is None:
                scheduled = with_log_start(scheduled, streams.of("start", number), cluster)
            if number != kept and self.triggers:
                scheduled = with_start(scheduled, cluster)
            random = streams.of("end", number)
            may_end = scheduled.fault.removes_replicas and not scheduled.fault.ends_by_itself
            if number != kept and may_end and random.random() < self.triggers:
                scheduled = with_end(scheduled, random, cluster)
            yield scheduled


def _tempo_and_victims(run: Random, streams: _Streams, cluster: ClusterShape) -> tuple[Tempo, tuple[str, ...]]:
    """The rhythm of a schedule, and the targets that lose data in its run if it is the first."""
    tempo = run.choice(list(TEMPI.values()))
    return tempo, draw_victims(cluster, run, streams.of("rotates"))


def _lasting_enough(
    of_slots: Sequence[ScheduledFault], background: Sequence[ScheduledFault], cluster: ClusterShape, time_limit_s: float
) -> Iterator[ScheduledFault]:
    """The faults. Where none is sure to act, the first that may have an effect by itself lasts as long as it may need,
    and begins early enough."""
    sure = any(_is_sure(each, cluster) for each in (*of_slots, *background))
    for each in of_slots:
        if not sure and each.fault.effective_alone(cluster):
            sure = True
            at_s = _early_enough(each.at_s, each.fault, cluster, time_limit_s)
            for_s = max(each.for_s, _needed_s(each.fault, cluster))
            yield _to_the_millisecond(at_s, min(for_s, time_limit_s - at_s), each.fault)
        else:
            yield each


def _needed_s(fault: Fault, cluster: ClusterShape) -> float:
    return fault.acts_within * cluster.patience_s


def _is_sure(scheduled: ScheduledFault, cluster: ClusterShape) -> bool:
    """Whether a fault acts whatever else happens: it has an effect by itself, waits for nothing, and lasts as long as
    it may need."""
    waits = scheduled.when is not None
    lasts = scheduled.for_s >= _needed_s(scheduled.fault, cluster) - _MILLISECOND_S
    return not waits and lasts and scheduled.fault.effective_alone(cluster)


def _early_enough(at_s: float, fault: Fault, cluster: ClusterShape, time_limit_s: float) -> float:
    """When a fault that is to begin at `at_s` begins at the latest to have an effect within the run, if that has time
    for it after clients have written something."""
    latest_s = max(time_limit_s - _needed_s(fault, cluster), _LAST_FAULT_EARLIEST * cluster.patience_s)
    return min(at_s, latest_s)


def _with_time_for_steps(at_s: float, least_s: float, time_limit_s: float) -> float:
    """When a fault begins whose steps may take `least_s`: where the run would end before them, so much earlier that it
    does not, as far as it has the time. Several such faults do not come at one moment."""
    if at_s + least_s <= time_limit_s:
        return at_s
    return at_s * max(1 - least_s / time_limit_s, _STEPS_BEGIN_WITHIN)


class _Streams:
    """Streams of random numbers by name, independent of each other."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def of(self, purpose: str, *numbers: int) -> Random:
        """A fresh stream, the same for the same name."""
        return Random("/".join(map(str, (self._seed, purpose, *numbers))))


def _possible(families: Sequence[str], cluster: ClusterShape) -> list[Family]:
    return [family for name in families if (family := FAMILIES[name]).possible(cluster)]


def _participants(possible: Sequence[Family], streams: _Streams, share: float) -> list[Family]:
    """The families whose number, drawn from their own streams, is below `share`; at least the one with the least."""
    keys = {family: streams.of("participates", family.number).random() for family in possible}
    least = min(keys.values())
    return [family for family in possible if keys[family] < share or keys[family] == least]


def _slots(random: Random, tempo: Tempo, patience_s: float, time_limit_s: float) -> Iterator[tuple[float, float]]:
    """When faults begin, and how long each lasts, in seconds. Which faults they are changes nothing here."""
    at_s = random.uniform(0, min(tempo.gap * patience_s, time_limit_s / 2))
    slots = 0
    while slots < tempo.most:
        for _ in range(random.randint(1, tempo.burst)):
            if at_s >= time_limit_s:
                return
            yield at_s, draw_scale(random, tempo.shortest, tempo.longest) * patience_s
            slots += 1
            at_s += random.expovariate(20 / patience_s) if tempo.burst > 1 else 0.0
        at_s += random.expovariate(1 / (tempo.gap * patience_s))


def draw_fault(
    family: Family,
    streams: _Streams,
    slot: int,
    cluster: ClusterShape,
    profile: RunProfile,
    *,
    alone: bool = False,
) -> Fault:
    """One fault of a family that is possible in the cluster: the first in a random order, by their weights, that the
    cluster allows. With `alone` one that has an effect by itself, if a few attempts find any."""
    usable: list[Fault] = []
    for attempt in range(_ATTEMPTS if alone else 1):
        order = {
            kind: -math.log(1 - streams.of("order", slot, family.number, kind.number, attempt).random()) / kind.weight
            for kind in faults_of(family)
        }
        for kind in sorted(order, key=lambda kind: order[kind]):
            draws = Draws(streams.of("fault", slot, family.number, kind.number, attempt), cluster, profile)
            drawn = kind.draw(draws)
            fault = drawn and drawn.adapted(cluster.unsupported, draws.random)
            if fault is not None:
                if not alone or fault.effective_alone(cluster):
                    return fault
                usable.append(fault)
    return usable[0]


def draw_one(random: Random, cluster: ClusterShape, families: Sequence[str], victims: tuple[str, ...]) -> Fault | None:
    """One fault of one of `families`, for a run in which these `victims` may lose data; None where none is possible."""
    possible = _possible(families, cluster)
    if not possible:
        return None
    profile = _profile(random, victims)
    return draw_fault(random.choice(possible), _Streams(random.getrandbits(64)), 0, cluster, profile)


def draw_victims(cluster: ClusterShape, random: Random, rotates: Random) -> tuple[str, ...]:
    """The targets of a run that may lose data: some of `random`, or, as `rotates` has it, such as rotate."""
    victims = tuple(random.sample(cluster.brokers, cluster.loss_budget))
    return rotating_victims(cluster) if rotates.random() < _ROTATING_SHARE else victims


def rotating_victims(cluster: ClusterShape) -> tuple[str, ...]:
    """The targets of a run in which the brokers that may lose data rotate."""
    return tuple(f"victim/{number}" for number in range(cluster.loss_budget))


def victims_of(schedule: Schedule, cluster: ClusterShape) -> tuple[str, ...]:
    """The targets that lose data in the schedule; controllers aside."""
    at_risk = (
        target
        for scheduled in schedule
        for target in scheduled.fault.at_risk(cluster)
        if target not in cluster.controller_targets
    )
    return tuple(dict.fromkeys(at_risk))


def is_fair(schedule: Schedule, cluster: ClusterShape) -> bool:
    """Whether a schedule keeps to the loss budget of the cluster, as one that is drawn does."""
    victims = victims_of(schedule, cluster)
    return {*rotating_victims(cluster)}.issuperset(victims) or (
        len(victims) <= cluster.loss_budget and set(cluster.brokers).issuperset(victims)
    )


def _one_after_the_other(
    family: Family, streams: _Streams, cluster: ClusterShape, profile: RunProfile, time_limit_s: float
) -> Iterator[ScheduledFault]:
    """Undisturbed faults of one family. The first has an effect by itself, and time for it, since a short run has time
    for no other."""
    random, patience_s = streams.of("times alone", family.number), cluster.patience_s
    at_s = random.uniform(0.2, 2.0) * patience_s
    for slot in count():
        fault = draw_fault(family, streams, slot, cluster, profile, alone=slot == 0)
        if slot == 0:
            at_s = _early_enough(at_s, fault, cluster, time_limit_s)
        if at_s >= time_limit_s or at_s > time_limit_s - cluster.injection_s:
            return
        longest_s = max(_SCRIPTED_LONGEST * patience_s, fault.least_s(cluster))
        yield _to_the_millisecond(at_s, min(longest_s, time_limit_s - at_s), fault)
        at_s += random.uniform(0.7, 1.0) * longest_s


def _to_the_millisecond(at_s: float, for_s: float, fault: Fault) -> ScheduledFault:
    """Rounded, so that a schedule written as a script reads back as the same schedule."""
    return ScheduledFault(round(at_s, 3), round(for_s, 3), fault)


def _profile(random: Random, victims: tuple[str, ...]) -> RunProfile:
    return RunProfile(
        victims=victims,
        leader_bias=random.choice((0.2, 0.5, 0.9)),
        held_share=random.choice((0.0, 0.5, 0.8, 1.0)),
        keeps=_keeps(random),
    )


def _keeps(random: Random) -> tuple[KeepUnsynced, ...]:
    """The amounts that power losses of a run keep; at least one of them loses something."""
    keeps = tuple(some(random, list(KeepUnsynced)))
    return (KeepUnsynced.NOTHING,) if keeps == (KeepUnsynced.EVERYTHING,) else keeps
