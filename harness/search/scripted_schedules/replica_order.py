"""The order of the partition's replicas, by which the controller prefers leaders, over the steps of a schedule.

The order is no part of the exploration's states: any replica may be the preferred one whenever a leader is elected. A
script has to place the replicas so that the controller elects the one that the schedule has elected.

While a partition is reassigned, the replicas of its target come first. To place them in another order starts the
reassignment over, so a replica that is added leaves the ISR if it has joined it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness.search.exploration.cluster_values import ControllerState
from harness.search.state_space.shortest_schedules import WalkedStep


class ReplicaOrder:
    """The replicas as the controller has them, the preferred one first."""

    def __init__(self, replicas: Iterable[int]) -> None:
        self._order = list(replicas)

    @property
    def preferred(self) -> int:
        """The first replica."""
        return self._order[0]

    def place(self, replicas: Sequence[int], before: ControllerState) -> None:
        """An administrator asks for these replicas in this order, where the controller is as `before`."""
        original = [it for it in self._order if it not in before.partition.adding]
        self._order = [*replicas, *(it for it in original if it not in replicas)]

    def end_step(self, step: WalkedStep) -> None:
        """The replicas that the step has removed are gone."""
        left = step.after.controller.partition.replicas
        self._order = [it for it in self._order if it in left]

    def elects(self, step: WalkedStep) -> int | None:
        """The replica that the controller elects within the step, if the leader of before may not go on."""
        known = step.after.controller.partition
        in_sync = (it for it in self._order if it in known.replicas and it in known.isr)
        return next((it for it in in_sync if it != step.before.controller.partition.leader), None)


def preferring(leader: int, replicas: Iterable[int]) -> list[int]:
    """The replicas with this one as the preferred one."""
    return sorted(replicas, key=lambda it: (it != leader, it))


def may_be_placed_anew(leader: int, controller: ControllerState) -> bool:
    """Whether the replicas, or the target of a reassignment, can be placed with this one as the preferred one, so that
    nothing but the order changes."""
    known = controller.partition
    return leader not in known.removing and {*known.isr, *known.elr}.isdisjoint(known.adding)


def first_of(target: Iterable[int], steps: Sequence[WalkedStep]) -> int:
    """The replica to be placed first of `target` in the first of these steps, a reassignment: the one that is elected
    next, if it is known by the next reassignment."""
    target = sorted(target)
    for number, step in enumerate(steps):
        if number and step.action.kind == "reassign":
            break
        before, after = step.before.controller.partition, step.after.controller.partition
        if after.leader != before.leader and after.leader in target:
            return after.leader
    return target[0]
