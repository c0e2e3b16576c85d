"""Passes: each makes one kind of smaller specs out of a spec that fails.

A pass is a generator. It yields a candidate and is sent the `Reproducer` that came of it when its run fails the same
way (its seed may be another, and it may end earlier, with fewer faults), else None; it goes on from the last one. A
pass reads no clock and draws nothing: the same answers lead to the same candidates in the same order. Its docstring
says what holds when it has changed nothing; the shrinker repeats all passes until that is true of each of them.

    faults       one_stretch, only_effective, drop_faults, simplify_faults
    time         fix_moments, cut_time, trim_time, close_gaps, shorten_faults, round_times
    all else     name_targets, fewer_clients, fewer_operations, smaller_cluster, default_settings
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import product
from typing import Any, Final, TypeVar

from harness.client_spec import ClientSpec
from harness.shrinking.spec_size import (
    FIELDS,
    GENERATION,
    PLAIN,
    client_defaults,
    decimal_places,
    is_symbolic,
    plain_fields,
)
from harness.spec import Spec
from nemesis.faults.disk import PowerLoss, WipeDisk
from nemesis.faults.fault import Fault
from nemesis.faults.process import Kill
from nemesis.schedule import Schedule, ScheduledFault
from nemesis.targets import TRIGGER

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sighting:
    """What a run that fails the same way shows to the passes."""

    effective: frozenset[int] = frozenset()
    """The faults that took effect, by their place in the script."""
    resolved: Mapping[int, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    """Symbolic target → nodes, of each fault."""
    struck_s: Mapping[int, float] = field(default_factory=dict)
    """The moment of each fault that waited for a condition, in seconds from the start of the workload."""
    finding_s: float | None = None
    """When the finding was, in seconds from the start of the run; None where that is not known."""
    digest: str = ""
    lines: tuple[str, ...] = ()
    """Of the finding."""
    same_finding: bool = True
    """False where the run fails of the same cause, and shows only other findings."""


@dataclass(frozen=True, slots=True)
class Reproducer:
    """A spec that fails, and what its run shows."""

    spec: Spec
    sighting: Sighting


Candidates = Generator[Spec, Reproducer | None, Reproducer]
"""Yields candidates; returns the last one that failed the same way, or where it began."""
Pass = Callable[[Reproducer], Candidates]


def only_effective(start: Reproducer) -> Candidates:
    """The spec does not fail without all faults that had no effect (or there is none)."""
    kept = [scheduled for number, scheduled in enumerate(start.spec.script) if number in start.sighting.effective]
    return (yield from _first(start, [_with_faults(start.spec, kept)]))


def drop_faults(start: Reproducer) -> Candidates:
    """The spec is 1-minimal: it does not fail without any single one of its faults. By delta debugging: halves are
    dropped first, then quarters …"""
    return (yield from _drop(start, lambda spec: spec.script.faults, _with_faults))


def fewer_operations(start: Reproducer) -> Candidates:
    """The script of the clients is 1-minimal, as `drop_faults` has it for faults."""

    def with_operations(spec: Spec, kept: Sequence[Any]) -> Spec | None:
        return _changed(spec, operations=tuple(kept))

    return (yield from _drop(start, lambda spec: spec.operations, with_operations))


def name_targets(start: Reproducer) -> Candidates:
    """The spec does not fail with any symbolic target replaced by the nodes that it stood for in its run."""
    return (yield from _all_or_each(start, _named))


def one_stretch(start: Reproducer) -> Candidates:
    """The spec does not fail without any fault in a short run, nor with one, two or four faults that follow each other,
    and those that last until they begin, moved to the start of the run, at any of the four places nearest to its end,
    nor with eight at every fourth place. Most failures come of few faults shortly before: this finds them in short
    runs, where dropping faults one by one takes long ones."""

    def stretches(spec: Spec) -> Iterator[Spec | None]:
        if spec.script.conditional:
            return
        for size in _STRETCHES:
            if size < len(spec.script):
                places = [*range(len(spec.script) - size, 0, -max(1, size // 2)), 0]
                for place in places[: _STRETCHES[size]]:
                    yield _stretch(spec, place, size)

    return (yield from _while_smaller(start, stretches))


def fix_moments(start: Reproducer) -> Candidates:
    """The spec does not fail with any condition for which a fault waits replaced by the moment at which it held."""
    return (yield from _all_or_each(start, _timed))


def cut_time(start: Reproducer) -> Candidates:
    """The spec does not fail within the time until its finding, nor within a quarter, a half or three quarters of its
    time limit."""
    current = yield from _first(start, [ended_at_finding(start)])

    def shorter(spec: Spec) -> Iterator[Spec | None]:
        for share in (0.25, 0.5, 0.75):
            yield _limited(spec, math.ceil(spec.time_limit_s * share))

    return (yield from _while_smaller(current, shorter))


def ended_at_finding(found: Reproducer) -> Spec | None:
    """The spec with a time limit that ends at its finding; None when it is not known when that was."""
    finding_s = found.sighting.finding_s
    return None if finding_s is None else _limited(found.spec, math.ceil(finding_s))


def trim_time(start: Reproducer) -> Candidates:
    """The spec does not fail within nine tenths of its time limit, nor with a second less."""

    def shorter(spec: Spec) -> Iterator[Spec | None]:
        for limit_s in (math.ceil(spec.time_limit_s * 0.9), math.ceil(spec.time_limit_s) - 1):
            yield _limited(spec, limit_s)

    return (yield from _while_smaller(start, shorter))


def fewer_clients(start: Reproducer) -> Candidates:
    """For each kind of client, the spec does not fail with none, one or half of them; nor with half the rate."""
    current = start
    for name in ("end_offset_readers", "consumers", "producers"):

        def fewer(spec: Spec, name: str = name) -> Iterator[Spec | None]:
            count = getattr(spec, name)
            for smaller in dict.fromkeys((0, 1, count // 2)):
                yield _changed(spec, **{name: smaller}) if smaller < count else None

        current = yield from _while_smaller(current, fewer)

    def slower(spec: Spec) -> Iterator[Spec | None]:
        yield _changed(spec, rate=float(math.ceil(spec.rate / 2))) if spec.rate > 1 else None

    return (yield from _while_smaller(current, slower))


def smaller_cluster(start: Reproducer) -> Candidates:
    """The spec does not fail with one partition, or one less; with one controller; with a broker or a replica less."""

    def smaller(spec: Spec) -> Iterator[Spec | None]:
        for partitions in dict.fromkeys((1, spec.partitions - 1)):
            yield _changed(spec, partitions=partitions) if partitions < spec.partitions else None
        yield _changed(spec, controllers=1) if spec.controllers > 1 else None
        replicas = min(spec.replication_factor, spec.brokers - 1)
        yield _changed(spec, brokers=spec.brokers - 1, replication_factor=replicas) if replicas > 0 else None
        yield _changed(spec, replication_factor=spec.replication_factor - 1)

    return (yield from _while_smaller(start, smaller))


def default_settings(start: Reproducer) -> Candidates:
    """The spec does not fail with any of its settings or fields of clients at its default, nor with a rule on again."""
    flawed = {name: value for name, value in start.spec.settings.items() if name == GENERATION}
    plain = {"clients": ClientSpec(), "node_settings": {}}
    every_default = [_changed(start.spec, **plain, settings=flawed), _changed(start.spec, **plain)]
    current = yield from _first(start, every_default)

    def plainer(spec: Spec) -> Iterator[Spec | None]:
        defaults = spec.deployed_system.defaults
        for name, value in spec.settings.items():
            if defaults.get(name) != value:
                rest = {other: each for other, each in spec.settings.items() if other != name}
                yield _changed(spec, settings=rest)
        for node in spec.node_settings:
            rest_of_nodes = {other: each for other, each in spec.node_settings.items() if other != node}
            yield _changed(spec, node_settings=rest_of_nodes)
        for name, default in client_defaults().items():
            if getattr(spec.clients, name) != default:
                yield _changed(spec, clients=replace(spec.clients, **{name: default}))
        for name in FIELDS:
            if getattr(spec, name) != getattr(PLAIN, name):
                yield _changed(spec, **{name: getattr(PLAIN, name)})
        for rule in spec.without if len(spec.without) > 1 else ():
            yield _changed(spec, without=tuple(other for other in spec.without if other != rule))

    return (yield from _while_smaller(current, plainer))


def simplify_faults(start: Reproducer) -> Candidates:
    """The spec does not fail with any fault aimed at one node less, with any field of a fault at its default, or of a
    choice such as `keep` at a variant declared earlier, nor with a kill instead of a power loss or a wiped disk."""

    def simpler(spec: Spec) -> Iterator[Spec | None]:
        for number, scheduled in enumerate(spec.script):
            for fault in _simpler(scheduled.fault):
                yield _with_fault(spec, number, replace(scheduled, fault=fault))

    return (yield from _while_smaller(start, simpler))


def close_gaps(start: Reproducer) -> Candidates:
    """The spec does not fail with the time before any fault, together with all that comes after it and the time
    limit, shortened to nothing, to a second or to half of it."""

    def closer(spec: Spec) -> Iterator[Spec | None]:
        if spec.script.conditional:
            return
        before_s = 0.0
        for number, scheduled in enumerate(spec.script):
            gap_s = round(scheduled.at_s - before_s, 6)
            for shorter_s in dict.fromkeys((0.0, 1.0, _half(gap_s))):
                if shorter_s < gap_s:
                    yield _earlier(spec, number, gap_s - shorter_s)
            before_s = scheduled.at_s

    return (yield from _while_smaller(start, closer))


def shorten_faults(start: Reproducer) -> Candidates:
    """The spec does not fail with any fault shortened to half of its duration, as coarse as that."""

    def shorter(spec: Spec) -> Iterator[Spec | None]:
        for number, scheduled in enumerate(spec.script):
            if scheduled.for_s < math.inf and _half(scheduled.for_s) < scheduled.for_s:
                yield _with_fault(spec, number, replace(scheduled, for_s=_half(scheduled.for_s)))

    return (yield from _while_smaller(start, shorter))


def round_times(start: Reproducer) -> Candidates:
    """The spec does not fail with all times, or any single one, rounded to whole seconds or to fewer decimal places."""

    def rounded(scheduled: ScheduledFault, places: int) -> ScheduledFault:
        return replace(scheduled, at_s=round(scheduled.at_s, places), for_s=round(scheduled.for_s, places))

    current = start
    for places in (0, 1, 2):
        every = [rounded(scheduled, places) for scheduled in current.spec.script]
        current = yield from _first(current, [_with_faults(current.spec, every)])
        for number, name in product(range(len(current.spec.script)), ("at_s", "for_s")):
            if number < len(current.spec.script):
                scheduled = current.spec.script.faults[number]
                value = round(getattr(scheduled, name), places)
                changed = _with_fault(current.spec, number, replace(scheduled, **{name: value}))
                current = yield from _first(current, [changed])
    return current


PASSES: Final[tuple[Pass, ...]] = (
    fix_moments,
    one_stretch,
    cut_time,
    name_targets,
    only_effective,
    drop_faults,
    fewer_operations,
    smaller_cluster,
    close_gaps,
    trim_time,
    fewer_clients,
    default_settings,
    simplify_faults,
    shorten_faults,
    round_times,
)
"""In this order: first those that make all later runs cheap."""

_STRETCHES: Final = {0: 1, 1: 4, 2: 4, 4: 4, 8: None}
"""Number of faults → at how many places, the nearest to the end of the script first; None: at all."""
_STRETCH_START_S: Final = 1.0
_STRETCH_AFTERMATH_S: Final = 3.0
"""How long a stretch of faults goes on after its last one has healed."""


# ---- how candidates are made and tried -------------------------------------------------------------------------------


def _all_or_each(start: Reproducer, changed: Callable[[Reproducer, Sequence[int]], Spec | None]) -> Candidates:
    """A change to all faults at once; to one after the other where that does not fail the same way."""
    numbers = range(len(start.spec.script))
    current = yield from _first(start, [changed(start, numbers)])
    if current is not start:
        return current
    for number in numbers:
        current = yield from _first(current, [changed(current, [number])])
    return current


def _first(current: Reproducer, candidates: Iterable[Spec | None]) -> Candidates:
    """The first candidate that fails the same way; impossible ones (None) are left out."""
    for candidate in candidates:
        if candidate is not None and candidate != current.spec:
            accepted = yield candidate
            if accepted is not None:
                return accepted
    return current


def _while_smaller(start: Reproducer, smaller: Callable[[Spec], Iterable[Spec | None]]) -> Candidates:
    """Go on from the first candidate that fails, until none does."""
    current, before = start, None
    while current is not before:
        before = current
        current = yield from _first(current, smaller(current.spec))
    return current


def _drop(
    start: Reproducer, parts_of: Callable[[Spec], Sequence[T]], keep: Callable[[Spec, Sequence[T]], Spec | None]
) -> Candidates:
    current = start
    size = len(parts_of(current.spec))
    while size:
        before, place = current, 0
        while place < len(parts := parts_of(current.spec)):
            dropped = keep(current.spec, [*parts[:place], *parts[place + size :]])
            smaller = yield from _first(current, [dropped])
            if smaller is current:
                place += size
            current = smaller
        if size > 1 or current is before:
            size //= 2
    return current


def _changed(spec: Spec, **changes: Any) -> Spec | None:
    """The spec with changes; None when there is no such spec, because a fault names a node that is gone …"""
    try:
        return replace(spec, **changes)
    except ValueError:
        return None


def _with_faults(spec: Spec, faults: Sequence[ScheduledFault], **changes: Any) -> Spec | None:
    return _changed(spec, script=Schedule(tuple(faults)), **changes)


def _with_fault(spec: Spec, number: int, scheduled: ScheduledFault) -> Spec | None:
    faults = list(spec.script)
    faults[number] = scheduled
    return _with_faults(spec, faults)


def _named(current: Reproducer, numbers: Sequence[int]) -> Spec | None:
    """The spec with the symbolic targets of some faults replaced by their nodes."""
    spec, faults = current.spec, list(current.spec.script)
    for number in numbers:
        resolved = current.sighting.resolved.get(number, {})
        symbolic = {target: nodes for target, nodes in resolved.items() if is_symbolic(target, spec)}
        faults[number] = _on_nodes(faults[number], symbolic)
    return _with_faults(spec, faults)


def _on_nodes(scheduled: ScheduledFault, resolved: Mapping[str, Sequence[str]]) -> ScheduledFault:
    """The fault with each of these targets replaced by the nodes that it stood for."""
    nodes = {
        name: tuple(
            dict.fromkeys(
                node for target in getattr(scheduled.fault, name) for node in resolved.get(target) or (target,)
            )
        )
        for name in ("nodes", "against")
        if hasattr(scheduled.fault, name)
    }
    return replace(scheduled, fault=replace(scheduled.fault, **nodes))


def _timed(current: Reproducer, numbers: Sequence[int]) -> Spec | None:
    """The spec with some faults at the moments at which what they waited for held, on the nodes that it happened to."""
    sighting, faults = current.sighting, list(current.spec.script)
    for number in numbers:
        at_s = sighting.struck_s.get(number)
        if at_s is not None and faults[number].when is not None:
            nodes = {target: each for target, each in sighting.resolved[number].items() if target == TRIGGER}
            timed = replace(faults[number], at_s=at_s, when=None, timeout_s=None, then_after_s=0.0)
            faults[number] = _on_nodes(timed, nodes)
    return _with_faults(current.spec, faults)


def _simpler(fault: Fault) -> Iterator[Fault]:
    if isinstance(fault, PowerLoss | WipeDisk):
        yield Kill(fault.nodes)
    for name in ("nodes", "against"):
        targets = getattr(fault, name, ())
        for number in range(len(targets) if len(targets) > 1 else 0):
            yield from _possible(fault, name, (*targets[:number], *targets[number + 1 :]))
    for name, default in plain_fields(fault).items():
        value = getattr(fault, name)
        if isinstance(value, StrEnum):
            variants = list(type(value))
            for variant in variants[: variants.index(value)]:
                yield from _possible(fault, name, variant)
        elif value != default:
            yield from _possible(fault, name, default)


def _possible(fault: Fault, name: str, value: object) -> Iterator[Fault]:
    try:
        yield replace(fault, **{name: value})
    except ValueError:
        return


def _earlier(spec: Spec, number: int, shift_s: float) -> Spec | None:
    """The spec with all from fault `number` on, and its end, earlier."""
    faults = [
        replace(scheduled, at_s=round(scheduled.at_s - shift_s, 6)) if place >= number else scheduled
        for place, scheduled in enumerate(spec.script)
    ]
    return _with_faults(spec, faults, time_limit_s=float(math.ceil(spec.time_limit_s - shift_s)))


def _stretch(spec: Spec, place: int, size: int) -> Spec | None:
    """The spec with `size` of its faults from number `place` on, and those that last until they begin, moved to the
    start of the run."""
    faults = spec.script.faults[place : place + size]
    begin_s = faults[0].at_s if faults else 0.0
    lasting = [scheduled for scheduled in spec.script.faults[:place] if scheduled.at_s + scheduled.for_s > begin_s]
    shift_s = max(0.0, begin_s - _STRETCH_START_S)
    moved = [_since(scheduled, shift_s) for scheduled in (*lasting, *faults)] if faults else []
    ends_s = [scheduled.at_s + scheduled.for_s for scheduled in moved[len(lasting) :] if scheduled.for_s < math.inf]
    limit_s = min(math.ceil(max(ends_s, default=_STRETCH_START_S) + _STRETCH_AFTERMATH_S), math.ceil(spec.time_limit_s))
    return _with_faults(spec, moved, time_limit_s=float(limit_s))


def _since(scheduled: ScheduledFault, shift_s: float) -> ScheduledFault:
    """The fault so much earlier; what would come before the start of the run is cut off."""
    at_s = max(0.0, round(scheduled.at_s - shift_s, 6))
    return replace(scheduled, at_s=at_s, for_s=round(scheduled.at_s + scheduled.for_s - shift_s - at_s, 6))


def _limited(spec: Spec, limit_s: int) -> Spec | None:
    """The spec with another time limit, and the faults that begin before it."""
    kept = [
        replace(scheduled, for_s=_clipped(scheduled, limit_s)) for scheduled in spec.script if scheduled.at_s < limit_s
    ]
    return _with_faults(spec, kept, time_limit_s=float(limit_s)) if limit_s > 0 else None


def _clipped(scheduled: ScheduledFault, limit_s: float) -> float:
    return min(scheduled.for_s, round(limit_s - scheduled.at_s, 6)) if scheduled.for_s < math.inf else math.inf


def _half(value_s: float) -> float:
    """Half of it, with no more decimal places."""
    return round(value_s / 2, decimal_places(value_s))
