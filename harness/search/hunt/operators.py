"""Operators: each makes a new spec out of one or two specs that a corpus has.

An operator is a pure function of its parents and a stream of random numbers. What it makes is legal: a spec that
`harness.spec` accepts, whose faults keep to the loss budget as drawn ones do, and of which at least one needs nothing
but the clock to have an effect. An operator that finds nothing legal gives back None.

    reseed         another seed: other latencies, orders and clients
    new_faults     the same world under another random schedule
    new_world      some dimensions of the world drawn anew
    shift          a fault earlier or later, alone or with all that come after it
    stretch        a fault shorter or longer
    retarget       a fault on another node or partition
    swap_fault     another fault at the moment of one
    add_fault      one more fault, at about the moment of another
    drop_faults    some faults less
    add_trigger    a fault waits for a condition
    drop_trigger   a fault that waited strikes by the clock
    splice         the schedule until a moment, and that of another spec from there on
    transplant     a stretch of another schedule, at another moment
    pack           both schedules one after the other, each in half of its time
    overlay        one more random schedule at the same time

`reseed`, `new_faults` and `new_world` draw another seed. Of the others half of the children keep that of their parent,
so that the run is the same up to the first change; half get another, since what the same beginning shows is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

from harness.cluster.random_streams import run_stream
from harness.drawn_spec import with_drawn_world
from harness.environments.registry import environment_named
from harness.spec import SEEDS, Spec
from harness.worlds import DIMENSIONS
from nemesis.cluster_shape import ClusterShape
from nemesis.faults.fault import Fault
from nemesis.schedule import Schedule, ScheduledFault
from nemesis.swarm import NO_EXTRAS, draw_one, is_fair, rotating_victims, victims_of
from nemesis.targets import TRIGGER
from nemesis.triggers import with_trigger

FAULTS_MOST: Final = 100
"""Of a spec that an operator makes, in a run of up to 20 s."""
FAULTS_BY_SECOND: Final = 5.0
"""In longer runs: as dense as shorter ones may be."""
_ATTEMPTS: Final = 8
_SAME_SEED_SHARE: Final = 0.5
_NEAR: Final = 1.0
"""Mean distance of a fault that is added to another, in multiples of the cluster's patience."""
_OF_FAULTS: Final = tuple(dimension.name for dimension in DIMENSIONS if dimension.of_faults)
"""Dimensions that decide which faults are drawn, not what these meet."""
_DIMENSIONS_MOST: Final = 4
"""Of a world, drawn anew at once."""


@dataclass(frozen=True, slots=True)
class Parents:
    """What an operator works on: specs whose worlds are drawn and whose faults are scripts."""

    spec: Spec
    mate: Spec
    """Another spec; the same where the corpus has no other."""
    base: Spec
    """The spec of the hunt: the families and dimensions from which it draws."""

    @property
    def cluster(self) -> ClusterShape:
        """The cluster of `spec`."""
        return cluster_of(self.spec)

    @property
    def victims(self) -> tuple[str, ...]:
        """The targets that may lose data in `spec`: those that do, or such as rotate."""
        return victims_of(self.spec.script, self.cluster) or rotating_victims(self.cluster)

    def draw_fault(self, random: Random) -> Fault | None:
        """One fault for `spec`, of the families of the hunt and within its loss budget."""
        return draw_one(random, self.cluster, self.base.families, self.victims)


Operator = Callable[[Parents, Random], Spec | None]


def fresh(base: Spec, seed: int) -> Spec:
    """The run of this seed as a suite would make it, with its world drawn and its faults as a script."""
    return scripted(with_drawn_world(replace(base, seed=seed)))


def mutate(operator: Operator, parents: Parents, random: Random) -> Spec | None:
    """A legal spec that is not that of a parent; None when a few attempts find none."""
    gets_seed = random.random() >= _SAME_SEED_SHARE
    for _ in range(_ATTEMPTS):
        child = operator(parents, random)
        if child is not None and gets_seed:
            child = replace(child, seed=random.randrange(SEEDS))
        if child is not None and child not in (parents.spec, parents.mate) and is_legal(child, parents.base):
            return child
    return None


def is_legal(spec: Spec, base: Spec) -> bool:
    """Whether a spec is one that the hunt may run: see the module's docstring."""
    if len(spec.script) > max(FAULTS_MOST, FAULTS_BY_SECOND * spec.time_limit_s):
        return False
    if not base.families:  # faults that a user wrote down may go beyond the loss budget
        return True
    cluster = cluster_of(spec)
    timed = any(each.when is None and each.fault.effective_alone(cluster) for each in spec.script)
    # Families that lose more than the budget are drawn only where they are asked for.
    within = Schedule(tuple(each for each in spec.script if each.fault.family.fair))
    return timed and is_fair(within, cluster)


# ---- the whole run ---------------------------------------------------------------------------------------------------


def reseed(parents: Parents, random: Random) -> Spec | None:
    """Another seed under the same schedule."""
    return replace(parents.spec, seed=random.randrange(SEEDS))


def new_faults(parents: Parents, random: Random) -> Spec | None:
    """Another random schedule in the same world."""
    return _rescheduled(parents, random) if parents.base.families else None


def _rescheduled(parents: Parents, random: Random) -> Spec:
    drawn = replace(parents.spec, seed=random.randrange(SEEDS), families=parents.base.families, script=Schedule())
    extras: dict[str, Any] = {
        name: type(neutral)(parents.spec.drawn.get(name, getattr(parents.base, name)))
        for name, neutral in NO_EXTRAS.items()
    }
    return scripted(replace(drawn, **extras))


def new_world(parents: Parents, random: Random) -> Spec | None:
    """A few dimensions of the world drawn anew, under the same schedule where it fits the new cluster."""
    names = [name for name in parents.base.vary if name not in _OF_FAULTS]
    if not names:
        return None
    chosen = random.sample(names, min(len(names), random.randint(1, _DIMENSIONS_MOST)))
    varying = replace(parents.spec, seed=random.randrange(SEEDS), vary=tuple(name for name in names if name in chosen))
    try:
        return with_drawn_world(varying)
    except ValueError:  # a fault names a node or a partition that is gone
        return None


# ---- one fault -------------------------------------------------------------------------------------------------------


def shift(parents: Parents, random: Random) -> Spec | None:
    """A fault earlier or later, in half of the draws with all that come after it."""
    faults, limit_s = list(parents.spec.script), parents.spec.time_limit_s
    if not faults:
        return None
    number = random.randrange(len(faults))
    by_s = random.gauss(0, parents.cluster.patience_s)
    until = len(faults) if random.random() < 0.5 else number + 1
    for place in range(number, until):
        at_s = min(max(0.0, faults[place].at_s + by_s), limit_s - 0.001)
        faults[place] = replace(faults[place], at_s=round(at_s, 3))
    return with_faults(parents.spec, faults)


def stretch(parents: Parents, random: Random) -> Spec | None:
    """A fault up to four times shorter or longer."""
    return _changed(
        parents, random, lambda each: replace(each, for_s=round(each.for_s * 4 ** random.uniform(-1, 1), 3))
    )


def retarget(parents: Parents, random: Random) -> Spec | None:
    """A fault on another node, or on another partition."""
    cluster = parents.cluster

    def aimed(scheduled: ScheduledFault) -> ScheduledFault:
        fault = scheduled.fault
        partition = getattr(fault, "partition", None)
        if partition is not None and random.random() < 0.5:
            changes: dict[str, Any] = {"partition": random.randrange(cluster.partitions)}
            return replace(scheduled, fault=replace(fault, **changes))
        if fault.at_risk(cluster) or not fault.nodes_named():
            return scheduled
        leaders = [f"{role}/{number}" for role in ("leader", "follower") for number in range(cluster.partitions)]
        trigger = [TRIGGER] if scheduled.when is not None else []
        target = random.choice([*cluster.brokers, *leaders, *trigger, "controller"])
        return replace(scheduled, fault=fault.aimed_at((target, *fault.nodes_named()[1:])))

    return _changed(parents, random, aimed)


def swap_fault(parents: Parents, random: Random) -> Spec | None:
    """Another fault at the moment of one, which no condition ends where it ends by itself."""
    fault = parents.draw_fault(random)
    if fault is None:
        return None

    def swapped(each: ScheduledFault) -> ScheduledFault:
        return replace(each, fault=fault, until=None if fault.ends_by_itself else each.until)

    return _changed(parents, random, swapped)


def add_fault(parents: Parents, random: Random) -> Spec | None:
    """One more fault, at about the moment of another."""
    spec, fault, patience_s = parents.spec, parents.draw_fault(random), parents.cluster.patience_s
    if fault is None:
        return None
    beside_s = random.choice([each.at_s for each in spec.script] or [random.uniform(0, spec.time_limit_s)])
    at_s = min(max(0.0, beside_s + random.gauss(0, _NEAR * patience_s)), spec.time_limit_s - 0.001)
    for_s = patience_s * 0.05 * 80 ** random.random()
    return with_faults(spec, [*spec.script, ScheduledFault(round(at_s, 3), for_s=round(for_s, 3), fault=fault)])


def drop_faults(parents: Parents, random: Random) -> Spec | None:
    """Some faults less."""
    share = random.choice((0.1, 0.3, 0.6))
    return with_faults(parents.spec, [each for each in parents.spec.script if random.random() >= share])


def add_trigger(parents: Parents, random: Random) -> Spec | None:
    """A fault that struck by the clock waits for a condition."""
    cluster, script = parents.cluster, parents.spec.script

    def triggered(each: ScheduledFault) -> ScheduledFault:
        deletions = any(other.fault.removes_replicas for other in script if other is not each)
        return with_trigger(each, random, cluster, deletions=deletions)

    return _changed(parents, random, triggered, lambda each: each.when is None and not each.id)


def drop_trigger(parents: Parents, random: Random) -> Spec | None:
    """A fault that waited for a condition strikes by the clock."""

    def timed(scheduled: ScheduledFault) -> ScheduledFault:
        return replace(scheduled, when=None, timeout_s=None, then_after_s=0.0)

    return _changed(parents, random, timed, lambda each: each.when is not None)


# ---- two schedules ---------------------------------------------------------------------------------------------------


def splice(parents: Parents, random: Random) -> Spec | None:
    """The schedule until a moment, and that of the mate from there on."""
    cut_s = random.uniform(0.2, 0.8) * parents.spec.time_limit_s
    before = [each for each in parents.spec.script if each.at_s < cut_s]
    return with_faults(parents.spec, [*before, *_adopted(parents, lambda each: each.at_s >= cut_s, lambda at_s: at_s)])


def transplant(parents: Parents, random: Random) -> Spec | None:
    """A stretch of the mate's schedule added at another moment."""
    limit_s = parents.spec.time_limit_s
    from_s, length_s = random.uniform(0, limit_s), random.uniform(0.05, 0.4) * limit_s
    to_s = random.uniform(0, limit_s - length_s)
    stretch_of_mate = _adopted(
        parents, lambda each: from_s <= each.at_s < from_s + length_s, lambda at_s: at_s - from_s + to_s
    )
    return with_faults(parents.spec, [*parents.spec.script, *stretch_of_mate])


def pack(parents: Parents, random: Random) -> Spec | None:
    """Both schedules one after the other, each in half of its time."""
    half_s = parents.spec.time_limit_s / 2
    faults = [
        *(_halved(each) for each in parents.spec.script),
        *(_halved(each) for each in _adopted(parents, lambda each: True, lambda at_s: at_s)),
    ]
    own = len(parents.spec.script)
    moved = [replace(each, at_s=round(each.at_s + half_s, 3)) for each in faults[own:]]
    return with_faults(parents.spec, [*faults[:own], *moved])


def overlay(parents: Parents, random: Random) -> Spec | None:
    """The schedule, and another random one of its world at the same time: a fault meets others more often than in one
    schedule, where it mostly meets a cluster that is well."""
    if not parents.base.families:
        return None
    over = replace(parents, mate=_rescheduled(parents, random))
    return with_faults(parents.spec, [*parents.spec.script, *_adopted(over, lambda each: True, lambda at_s: at_s)])


OPERATORS: Final[Mapping[str, Operator]] = {
    operator.__name__: operator
    for operator in (
        reseed, new_faults, new_world, shift, stretch, retarget, swap_fault, add_fault, drop_faults, add_trigger,
        drop_trigger, splice, transplant, pack, overlay,
    )
}  # fmt: skip


# ---- how they are made -----------------------------------------------------------------------------------------------


def scripted(spec: Spec) -> Spec:
    """The spec with the faults that its run in the simulation would draw, as a script."""
    injection_s = environment_named("sim", {}).injection_s
    stream = run_stream(spec.seed, "schedule")
    schedule = spec.schedule(spec.broker_names, spec.controller_names, stream, injection_s=injection_s)
    return spec.with_script(schedule)


def cluster_of(spec: Spec) -> ClusterShape:
    """The cluster of a spec whose world is drawn."""
    return spec.cluster_shape(spec.broker_names, spec.controller_names)


def with_faults(spec: Spec, faults: Iterable[ScheduledFault]) -> Spec | None:
    """The spec with these faults, in the order of their times; None when there is no such spec."""
    within = [_clipped(each, spec.time_limit_s) for each in faults if each.at_s < spec.time_limit_s]
    try:
        return replace(spec, script=Schedule(tuple(sorted(within, key=lambda each: each.at_s))))
    except ValueError:  # a target, a condition or an id that makes no sense in this cluster
        return None


def _clipped(scheduled: ScheduledFault, limit_s: float) -> ScheduledFault:
    """The fault healed by the end of the run at the latest, and lasting a millisecond at least."""
    if scheduled.for_s == math.inf:
        return scheduled
    return replace(scheduled, for_s=max(0.001, round(min(scheduled.for_s, limit_s - scheduled.at_s), 3)))


def _changed(
    parents: Parents,
    random: Random,
    change: Callable[[ScheduledFault], ScheduledFault],
    eligible: Callable[[ScheduledFault], bool] = lambda scheduled: True,
) -> Spec | None:
    """The spec with a change to one of its faults that are `eligible`."""
    faults = list(parents.spec.script)
    numbers = [number for number, each in enumerate(faults) if eligible(each)]
    if not numbers:
        return None
    number = random.choice(numbers)
    try:
        faults[number] = change(faults[number])
    except ValueError:  # a fault that makes no sense on these targets
        return None
    return with_faults(parents.spec, faults)


def _adopted(
    parents: Parents, eligible: Callable[[ScheduledFault], bool], at: Callable[[float], float]
) -> list[ScheduledFault]:
    """The faults of the mate that are `eligible`, at other times, as the cluster of `spec` can have them: its victims
    lose the data, and a fault that names a node or a partition that it lacks is left out."""
    spec, victims = parents.spec, parents.victims
    adopted = []
    for scheduled in parents.mate.script:
        if not eligible(scheduled):
            continue
        moved = replace(scheduled, at_s=round(max(0.0, at(scheduled.at_s)), 3), id="", binds="")
        lost = _among_victims(moved, _victims_for(moved.fault, cluster_of(parents.mate), victims))
        if lost is not None and with_faults(replace(spec, script=Schedule()), [lost]) is not None:
            adopted.append(lost)
    return adopted


def _victims_for(fault: Fault, cluster: ClusterShape, victims: Sequence[str]) -> dict[str, str] | None:
    """Each target of the fault that loses data → the victim that does so instead; None where nobody may."""
    at_risk = [target for target in fault.at_risk(cluster) if target not in cluster.controller_targets]
    if at_risk and not victims:
        return None
    return {target: victims[number % len(victims)] for number, target in enumerate(at_risk)}


def _among_victims(scheduled: ScheduledFault, names: Mapping[str, str] | None) -> ScheduledFault | None:
    """The fault with other names for some of its targets."""
    if names is None:
        return None
    changes: dict[str, Any] = {}
    for field in ("nodes", "against"):
        targets = getattr(scheduled.fault, field, ())
        if any(target in names for target in targets):
            changes[field] = tuple(dict.fromkeys(names.get(target, target) for target in targets))
    victim = getattr(scheduled.fault, "victim", "")
    if victim in names:
        changes["victim"] = names[victim]
    return replace(scheduled, fault=replace(scheduled.fault, **changes))


def _halved(scheduled: ScheduledFault) -> ScheduledFault:
    for_s = scheduled.for_s / 2 if scheduled.for_s < math.inf else math.inf
    return replace(scheduled, at_s=round(scheduled.at_s / 2, 3), for_s=for_s)
