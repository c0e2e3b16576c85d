"""Which fault each system can carry, and the reason where it cannot: from the declarations of both."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from random import Random
from typing import Final

from harness.cluster.layout import cluster_layout
from harness.cluster.systems import SYSTEMS, configured
from harness.environments.machines.system_capabilities import lacks_of
from nemesis.cluster_shape import ClusterShape
from nemesis.drawing import Draws, RunProfile
from nemesis.faults.fault import Fault
from nemesis.ports import EnvironmentCapability, KeepUnsynced
from nemesis.registry import FAULTS

_DRAWS: Final = 60
_REASONS: Final[Mapping[EnvironmentCapability, str]] = {
    EnvironmentCapability.DELAY: "slow links only where the kernel has netem",
    EnvironmentCapability.MESSAGES: "packet filters cannot tell messages apart",
    EnvironmentCapability.CHANNELS: "connections to one port cannot be told apart",
    EnvironmentCapability.FAILING_SYNCS: "the file system fails no syncs",
    EnvironmentCapability.CLOCKS: "its clock cannot be changed",
    EnvironmentCapability.FROZEN_CLOCKS: "no clock stands still: waits of a Java machine would not end",
    EnvironmentCapability.WALL_CLOCKS: "no wall clock alone",
    EnvironmentCapability.RESIGNATION: "its controller does not resign when asked",
    EnvironmentCapability.EMPTY_DISKS: "a broker that votes would forget its vote",
}
_MACHINES: Final = (
    EnvironmentCapability.DELAY,
    EnvironmentCapability.MESSAGES,
    EnvironmentCapability.CHANNELS,
    EnvironmentCapability.FAILING_SYNCS,
    EnvironmentCapability.WALL_CLOCKS,
)

Rows = list[tuple[str, ...]]
HEAD: Final = ("fault", "family", "prototype, simulation", "prototype, machines", "Kafka", "Kafka, `controllers: 0`")


def rows() -> Rows:
    """One row a fault, in the columns of HEAD."""
    columns: list[tuple[int, Collection[EnvironmentCapability]]] = [(3, ()), (3, _MACHINES)]
    for controllers in (3, 0):
        kafka = configured(SYSTEMS["kafka"], cluster_layout(3, controllers), {}, ())
        columns.append((controllers, (*_MACHINES, *lacks_of(kafka))))
    return [
        (f"`{name}`", f"`{fault.family.name}`", *(_cell(fault, number, lacking) for number, lacking in columns))
        for name, fault in FAULTS.items()
    ]


def _needs(kind: type[Fault], controllers: int) -> list[frozenset[EnvironmentCapability]]:
    """What each of some faults needs that are drawn for a cluster with so many nodes that are controllers alone."""
    names = tuple(f"c{number}" for number in range(1, controllers + 1))
    shape = ClusterShape(
        brokers=("b1", "b2", "b3", "b4"),
        controllers=names,
        partitions=2,
        waits_for_operator=True,
        recovery_compares_logs=True,
        queries_epochs=True,
        fetches_are_small=True,
    )
    profile = RunProfile(victims=("b1",), leader_bias=0.5, held_share=0.5, keeps=tuple(KeepUnsynced))
    drawn = (kind.draw(Draws(Random(seed), shape, profile)) for seed in range(_DRAWS))
    return [fault.needs() for fault in drawn if fault is not None]


def _cell(kind: type[Fault], controllers: int, lacking: Collection[EnvironmentCapability]) -> str:
    drawn = _needs(kind, controllers)
    missing = [need & frozenset(lacking) for need in drawn or _needs(kind, 3)]
    reasons = [reason for capability, reason in _REASONS.items() if any(capability in each for each in missing)]
    if not reasons:
        return "yes" if drawn else "no: it is about nodes that are controllers alone"
    always = frozenset.intersection(*missing)
    if always == {EnvironmentCapability.DELAY}:
        return "only where the kernel has netem"
    return f"{'no: ' if always else 'yes; '}{'; '.join(reasons)}"
