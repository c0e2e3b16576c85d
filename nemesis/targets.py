"""Targets of a fault: a node by name, or a symbolic target, resolved when the fault is injected.

    b2, c1           that node
    leader, leader/1 the leader of partition 0, or 1 (a broker drawn at random while there is none)
    follower/0       a broker drawn from those that do not lead partition 0
    controller       the active controller (one drawn at random while there is none)
    any              a broker drawn at random
    victim/0         a broker that may lose data: the one that did last until it is whole again, then any (that of the
                     occurrence which the fault waited for, where there is one)
    trigger          the node of the occurrence that the fault waited for (`when: {left_isr: any}`)
    minority         fewer than half of the brokers, drawn at random (one of two or three)
    brokers, controllers, all

`nemesis.handle` resolves them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

TRIGGER: Final = "trigger"


class TargetError(ValueError):
    """A target that names nothing in this cluster; the message is one line for the user."""


def check_target(
    target: str,
    brokers: Sequence[str],
    controllers: Sequence[str],
    partitions: int | None = None,
    bound: Sequence[str] = (),
) -> None:
    """Raise TargetError when `target` can stand for nothing in such a cluster and is none of the `bound` names."""
    groups = ("brokers", "controllers", "all", "any", "minority", "controller", TRIGGER)
    if target in (*brokers, *controllers, *bound, *groups):
        return
    role, _, index = target.partition("/")
    if role in ("leader", "follower") and (not index or index.isdigit()):
        if partitions is None or int(index or 0) < partitions:
            return
        raise TargetError(f"{target!r}: there is no partition {index}, only 0 to {partitions - 1}")
    if role == "victim" and index.isdigit():
        if int(index) < len(brokers):
            return
        raise TargetError(f"{target!r}: there are only {len(brokers)} brokers")
    raise TargetError(
        f"{target!r} is neither a node nor a bound name ({', '.join((*brokers, *controllers, *bound))}), nor one of "
        "leader/0, follower/0, victim/0, trigger, any, minority, controller, brokers, controllers, all"
    )
