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
    old-leader       the nodes that a step has bound to this name, which goes before a symbolic target of the same name

`FaultTargets` resolves those of one fault; which broker is a victim, the handle of the fault decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Final

from nemesis.ports import ClusterUnderTest
from nemesis.situation import Situation

TRIGGER: Final = "trigger"
OF_CONTROLLERS: Final = ("controller", "controllers", "all")
"""Symbolic targets among whose nodes are controllers."""
SEVERAL: Final = ("brokers", "controllers", "all", "minority")
"""Those that stand for several nodes."""
SYMBOLIC: Final = (*SEVERAL, "any", "controller", TRIGGER)


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
    if target in (*brokers, *controllers, *bound, *SYMBOLIC):
        return
    role, _, index = target.partition("/")
    if role in ("leader", "follower") and (not index or index.isdecimal()):
        if partitions is None or int(index or 0) < partitions:
            return
        raise TargetError(f"{target!r}: there is no partition {index}, only 0 to {partitions - 1}")
    if role == "victim" and index.isdecimal():
        if int(index) < len(brokers):
            return
        raise TargetError(f"{target!r}: there are only {len(brokers)} brokers")
    raise TargetError(
        f"{target!r} is neither a node nor a bound name ({', '.join((*brokers, *controllers, *bound))}), nor one of "
        "leader/0, follower/0, victim/0, trigger, any, minority, controller, brokers, controllers, all"
    )


class FaultTargets:
    """The targets of one fault, and the nodes that they stood for when they were resolved."""

    def __init__(
        self,
        cluster: ClusterUnderTest,
        random: Random,
        situation: Situation,
        victim: Callable[[int], str],
        note: Callable[[str], None],
        *,
        topic: str = "",
        trigger: Sequence[str] = (),
        of_brokers: bool = False,
    ) -> None:
        """`victim` gives the broker that a target such as `victim/0` stands for, `note` takes a line for people;
        without a `topic` partitions are those of any. With `of_brokers` no target may stand for a controller."""
        self.nodes: list[str] = []
        """Every node that the fault is aimed at, in the order in which it came to be."""
        self.resolved: dict[str, list[str]] = {}
        """The nodes that a symbolic target stood for."""
        self.trigger = tuple(trigger)
        """The nodes of the occurrence that the fault waited for."""
        self._cluster = cluster
        self._random = random
        self._situation = situation
        self._victim = victim
        self._note = note
        self._topic = topic
        self._of_brokers = of_brokers

    async def resolve(self, targets: Iterable[str]) -> tuple[str, ...]:
        """The nodes that `targets` stand for now, without repetition; they are recorded as targets. Raises
        TargetError."""
        nodes_of_targets: list[str] = []
        for target in targets:
            nodes = await self._resolve(target)
            if nodes != (target,):
                self.resolved[target] = list(nodes)
            if self._of_brokers and not set(nodes) <= set(self._cluster.brokers):
                raise TargetError(f"{target!r} stands for {', '.join(nodes)}, and it is about brokers alone")
            nodes_of_targets += [node for node in nodes if node not in nodes_of_targets]
        self.add(nodes_of_targets)
        return tuple(nodes_of_targets)

    async def resolve_one(self, target: str) -> str:
        """As `resolve`, for a target that stands for one node."""
        nodes = await self.resolve((target,))
        if len(nodes) > 1:
            raise TargetError(f"{target!r} stands for {', '.join(nodes)}, and one node is asked for")
        return nodes[0]

    async def resolve_peers(self, targets: Iterable[str]) -> tuple[str, ...]:
        """As `resolve`, for the nodes at the other end of links: they are no targets of the fault."""
        nodes = list(self.nodes)
        peers = await self.resolve(targets)
        self.nodes[:] = nodes
        return peers

    def stood_for(self, targets: Iterable[str]) -> tuple[str, ...]:
        """The nodes that `targets` stood for when they were resolved."""
        return tuple(node for target in targets for node in self.resolved.get(target, [target]))

    def add(self, nodes: Iterable[str]) -> None:
        """Record nodes as targets of the fault."""
        self.nodes += [node for node in nodes if node not in self.nodes]

    async def leader(self, partition: int) -> str | None:
        """The leader of the partition, as far as the cluster reports one."""
        leaders = await self._cluster.leaders()
        for (topic, index), node in sorted(leaders.items()):
            if index == partition and self._topic in ("", topic):
                return node
        return None

    async def active_controller(self) -> str:
        """The active controller, or one drawn at random while none is reported."""
        active = await self._cluster.controller()
        if active is None:
            self._note("controller: none at the time, drawn instead")
            return self._random.choice(self._cluster.controllers)
        return active

    async def _resolve(self, target: str) -> tuple[str, ...]:
        brokers, controllers = self._cluster.brokers, self._cluster.controllers
        if target in brokers or target in controllers:
            return (target,)
        bound = self._situation.names.get(target)
        if bound:
            return bound
        groups = {"brokers": brokers, "controllers": controllers, "all": brokers + controllers}
        if target in groups:
            return groups[target]
        if target == "any":
            return (self._random.choice(brokers),)
        if target == "controller":
            return (await self.active_controller(),)
        if target == TRIGGER:
            if not self.trigger:
                self._note(f"{target}: a state held, drawn instead")
            return self.trigger or (self._random.choice(brokers),)
        if target == "minority":
            return tuple(sorted(self._random.sample(brokers, max(1, (len(brokers) - 1) // 2))))
        role, _, index = target.partition("/")
        if role in ("leader", "follower") and (not index or index.isdecimal()):
            leader = await self.leader(int(index or 0))
            if role == "follower":
                return (self._random.choice([node for node in brokers if node != leader] or list(brokers)),)
            if leader is None:
                self._note(f"{target}: none at the time, drawn instead")
                return (self._random.choice(brokers),)
            return (leader,)
        if role == "victim" and index.isdecimal():
            return (self._victim(int(index)),)
        if bound is not None:
            raise TargetError(f"no step has bound {target!r} to any node yet")
        check_target(target, brokers, controllers)
        raise AssertionError(target)
