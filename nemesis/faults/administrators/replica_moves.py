"""Replicas of a partition that a fault has on other brokers or in another order, and puts back.

Replicas drawn anew are any brokers in any order: several move at once, there are more or fewer of them for a while, or
another one is preferred. They are at least as many as min.insync.replicas. A record is then acknowledged by as many as
ever, so it survives the loss of as many as ever; and a reassignment is complete only with so many of its target in the
ISR. When the fault heals, the replicas of before are asked for in place of what may still be under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from nemesis.faults.administrators.requests import recorded, until_done
from nemesis.handle import FaultHandle
from nemesis.ports import DONE, AdminResult, EnvironmentCapability


class MovedReplicas(NamedTuple):
    """The replicas before, and those that were asked for."""

    before: tuple[str, ...]
    target: tuple[str, ...]


async def move(
    handle: FaultHandle,
    partition: int,
    answers: list[AdminResult],
    staying: str = "",
    *,
    anew: bool = False,
    restored: bool = False,
) -> MovedReplicas | None:
    """Ask for other replicas, but keep the one that is `staying`; None when it was not done. Those of before are put
    back if they must be `restored`, or if there may be more or fewer of the others. The answers to this and to later
    requests about the partition go into `answers`."""
    admin, before = handle.cluster.admin, await claimed(handle, partition)
    if not before:
        return None
    outside = [broker for broker in handle.cluster.brokers if broker not in before]
    if len(before) < 2 or (not outside and len(before) <= handle.min_isr):
        handle.notes.append("no replica can be spared")
        return None
    target = _drawn_anew(handle, before, staying) if anew else _with_one_less(handle, before, outside, staying)
    _add_moved(handle, before, target)
    if restored or anew or not outside:
        handle.add_undo(lambda: put_back(handle, partition, before, answers))
    answer = (await recorded(answers, admin.reassign(handle.topic, partition, target))).outcome
    if answer != DONE:
        handle.notes.append(f"not reassigned: {answer}")
        return None
    return MovedReplicas(before, target)


def _with_one_less(
    handle: FaultHandle, before: tuple[str, ...], outside: Sequence[str], staying: str
) -> tuple[str, ...]:
    """The replicas without one of them, and with one of the brokers `outside` if there are any."""
    leaving = handle.random.choice([broker for broker in before if broker != staying])
    coming = (handle.random.choice(outside),) if outside else ()
    return tuple(broker for broker in before if broker != leaving) + coming


def _drawn_anew(handle: FaultHandle, before: tuple[str, ...], staying: str) -> tuple[str, ...]:
    """Other replicas than those, or the same in another order; at least min.insync.replicas, if there are as many
    brokers."""
    brokers, target = list(handle.cluster.brokers), before
    while target == before or (staying and staying not in target):
        replicas = handle.random.randint(min(max(1, handle.min_isr), len(brokers)), len(brokers))
        target = tuple(handle.random.sample(brokers, replicas))
    return target


async def replace_anew(
    handle: FaultHandle, partition: int, moved: MovedReplicas, answers: list[AdminResult], staying: str = ""
) -> None:
    """Ask for replicas drawn anew in place of those that were asked for."""
    target = _drawn_anew(handle, moved.target, staying)
    _add_moved(handle, moved.target, target)
    await recorded(answers, _instead(handle, partition, target, answers))


def _add_moved(handle: FaultHandle, before: Sequence[str], target: Sequence[str]) -> None:
    """Name the brokers that get a replica or lose theirs, or else the one that is preferred now."""
    moved = [broker for broker in before if broker not in target]
    moved += [broker for broker in target if broker not in before]
    handle.targets.add(moved or target[:1])


async def claimed(handle: FaultHandle, partition: int) -> tuple[str, ...]:
    """The replicas of a partition, which no other fault moves until this one heals; none, with a note, where one does,
    or where those found would not be those to restore."""
    if not handle.claim_placement(partition):
        handle.notes.append("another fault is moving it")
        return ()
    replicas = await handle.cluster.admin.replicas(handle.topic, partition)
    if not replicas:
        handle.notes.append("no broker told of its replicas")
        return ()
    if handle.is_moving(replicas):
        handle.notes.append("a reassignment of an earlier fault is under way")
        return ()
    return replicas


async def put_back(handle: FaultHandle, partition: int, before: Sequence[str], undone: list[AdminResult]) -> None:
    """Ask until a partition is to have the replicas of before; see `until_done`."""
    back = partial(_instead, handle, partition, before, undone)
    await until_done(handle, back, f"putting the replica of partition {partition} back", undone)


async def _instead(
    handle: FaultHandle, partition: int, replicas: Sequence[str], answers: list[AdminResult]
) -> AdminResult:
    """Ask for replicas in place of those that a reassignment under way asks for. Where that is cancelled first, its
    answer goes into `answers`: without one it may be cancelled late, and with it what was asked for since."""
    admin = handle.cluster.admin
    if EnvironmentCapability.REPLACED_REASSIGNMENTS in handle.cluster.unsupported:
        await recorded(answers, admin.reassign(handle.topic, partition, None))
    return await admin.reassign(handle.topic, partition, replicas)


async def put_first(
    handle: FaultHandle, partition: int, coming: str, replicas: Sequence[str], answers: list[AdminResult]
) -> str:
    """Put one of the replicas first, which moves no data, and have it elected: the answer to the last request."""
    order = (coming, *(replica for replica in replicas if replica != coming))
    answer = (await recorded(answers, handle.cluster.admin.reassign(handle.topic, partition, order))).outcome
    if answer == DONE:
        answer = (await handle.cluster.admin.elect_preferred(handle.topic, partition)).outcome
    return answer
