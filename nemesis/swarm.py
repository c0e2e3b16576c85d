"""Schedules drawn from a seed, swarm fashion.

A schedule that always has a bit of everything tests one mixture over and over. Here the *profile* of a run is drawn
first, and the faults from that profile:

- which families take part, from one to all of them, and how often each;
- the tempo: one long outage, a few long ones, many short ones, bursts with quiet between them, or a steady rain;
- how strongly faults aim at leaders, how much they overlap, which partition flavour and disk behaviour prevail;
- whether some clocks run wrong for the whole run;
- whether scripted faults run one after the other and undisturbed, or among all other faults.

**The fair budget.** The protocol promises that an acknowledged record survives while fewer than min.insync.replicas
of its replicas lose data. Kills, power losses and wiped disks (all come back as unclean restarts) therefore hit only
the *victims* of a run: at most min.insync.replicas − 1 brokers, drawn up front. Any number of controllers may be
killed, paused, cut off and lose power, since they sync before they answer. Where the topics have an unclean recovery
(`unclean.recovery.strategy`), kills hit any broker: a killed process loses nothing, and the recovery must find a
replica that has everything. Everything is healed at the end.

All draws come from the one stream handed in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from nemesis.cluster_shape import ClusterShape
from nemesis.drawing import Draws, RunProfile, some
from nemesis.faults.fault import Family, Fault
from nemesis.ports import KeepUnsynced
from nemesis.registry import FAIR_FAMILIES, FAMILIES, faults_of
from nemesis.schedule import Schedule, ScheduledFault


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

TEMPI: Mapping[str, Tempo] = {
    "one long outage": Tempo(gap=4.0, shortest=4.0, longest=15.0, most=1),
    "few and long": Tempo(gap=5.0, shortest=1.5, longest=8.0),
    "many and short": Tempo(gap=0.6, shortest=0.02, longest=0.8),
    "bursts": Tempo(gap=5.0, shortest=0.2, longest=3.0, burst=5),
    "rain": Tempo(gap=1.5, shortest=0.05, longest=4.0, burst=2),
}


def draw(
    random: Random, cluster: ClusterShape, time_limit_s: float, families: Sequence[str] = FAIR_FAMILIES
) -> Schedule:
    """A schedule for a run of `time_limit_s`, with some or all of `families`."""
    possible = [family for name in families if (family := FAMILIES[name]).possible(cluster)]
    if not possible or time_limit_s <= 0:
        return Schedule()
    chosen = some(random, possible)
    alone = next((family for family in chosen if family.alone_share and random.random() < family.alone_share), None)
    weights = [random.uniform(0.2, 1.0) for _ in chosen]
    tempo = random.choice(list(TEMPI.values()))
    profile = RunProfile(
        victims=tuple(random.sample(cluster.brokers, cluster.loss_budget)),
        leader_bias=random.choice((0.2, 0.5, 0.9)),
        held_share=random.choice((0.0, 0.5, 0.8, 1.0)),
        keeps=_keeps(random),
    )
    scheduled = [
        ScheduledFault(0.0, time_limit_s, fault) for family in chosen for fault in family.background(random, cluster)
    ]
    if alone is not None:
        return Schedule(tuple(_one_after_the_other(alone, random, cluster, profile, time_limit_s)))
    at_s = random.uniform(0, min(tempo.gap * cluster.patience_s, time_limit_s / 2))
    injections = 0
    while injections < tempo.most:
        for _ in range(random.randint(1, tempo.burst)):
            if at_s >= time_limit_s:
                return Schedule(tuple(scheduled))
            (family,) = random.choices(chosen, weights)
            fault = draw_fault(family, Draws(random, cluster, profile))
            while tempo.most == 1 and not fault.effective_alone:
                fault = draw_fault(family, Draws(random, cluster, profile))
            duration_s = tempo.shortest * (tempo.longest / tempo.shortest) ** random.random() * cluster.patience_s
            if fault.ends_by_itself:
                duration_s = _SCRIPTED_LONGEST * cluster.patience_s
            scheduled.append(_to_the_millisecond(at_s, min(duration_s, time_limit_s - at_s), fault))
            injections += 1
            at_s += random.expovariate(20 / cluster.patience_s) if tempo.burst > 1 else 0.0
        at_s += random.expovariate(1 / (tempo.gap * cluster.patience_s))
    return Schedule(tuple(scheduled))


def draw_fault(family: Family, draws: Draws) -> Fault:
    """One fault of a family that is possible in the cluster. Of several kinds each draws a candidate, one is chosen."""
    kinds = faults_of(family)
    drawn = [fault for kind in kinds if (fault := kind.draw(draws)) is not None]
    usable = [fault for fault in drawn if not fault.needs() & set(draws.cluster.unsupported)]
    return usable[0] if len(kinds) == 1 else draws.random.choice(usable)


def _one_after_the_other(
    family: Family, random: Random, cluster: ClusterShape, profile: RunProfile, time_limit_s: float
) -> Iterator[ScheduledFault]:
    at_s = random.uniform(0.2, 2.0) * cluster.patience_s
    while at_s < time_limit_s:
        fault = draw_fault(family, Draws(random, cluster, profile))
        yield _to_the_millisecond(at_s, min(_SCRIPTED_LONGEST * cluster.patience_s, time_limit_s - at_s), fault)
        at_s += random.uniform(0.7, 1.0) * _SCRIPTED_LONGEST * cluster.patience_s


def _to_the_millisecond(at_s: float, for_s: float, fault: Fault) -> ScheduledFault:
    """Rounded, so that a schedule written as a script reads back as the same schedule."""
    return ScheduledFault(round(at_s, 3), round(for_s, 3), fault)


def _keeps(random: Random) -> tuple[KeepUnsynced, ...]:
    """The amounts that power losses of a run keep; at least one of them loses something."""
    keeps = tuple(some(random, list(KeepUnsynced)))
    return (KeepUnsynced.NOTHING,) if keeps == (KeepUnsynced.EVERYTHING,) else keeps
