"""Hypothesis strategies for schedules and for the worlds that they strike, for property tests.

Everything shrinks towards less: fewer faults, earlier and shorter ones, plain node names over symbolic targets, and the
first of each choice (isolate over ring, held over reset). The fair budget of `nemesis.swarm` holds: only `victims` are
killed or lose power.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from nemesis.cluster_shape import ClusterShape
from nemesis.faults.clock import Clock
from nemesis.faults.disk import PowerLoss
from nemesis.faults.fault import Fault
from nemesis.faults.network_partition import ConnectionFate, NetworkPartition, PartitionShape
from nemesis.faults.packets import Packets
from nemesis.faults.process import Kill, Pause
from nemesis.ports import KeepUnsynced
from nemesis.schedule import Schedule, ScheduledFault


def targets(cluster: ClusterShape) -> st.SearchStrategy[str]:
    """One target: a broker, a controller, or the leader of a partition."""
    leaders = [f"leader/{index}" for index in range(cluster.partitions)]
    return st.sampled_from([*cluster.brokers, *cluster.controllers, *leaders])


def faults(cluster: ClusterShape, victims: tuple[str, ...]) -> st.SearchStrategy[Fault]:
    """One fault of a single step, on links, processes, clocks or power."""
    one = targets(cluster).map(lambda target: (target,))
    brokers = st.sampled_from(cluster.brokers).map(lambda broker: (broker,))
    kinds: list[st.SearchStrategy[Fault]] = [
        st.builds(Pause, nodes=one),
        st.builds(
            NetworkPartition,
            shape=st.sampled_from(list(PartitionShape)),
            nodes=brokers,
            flavour=st.sampled_from(list(ConnectionFate)),
        ),
        st.builds(
            Packets,
            nodes=one,
            delay_ms=st.integers(1, 1_000).map(float),
            jitter_ms=st.integers(0, 500).map(float),
            loss=st.sampled_from([0.0, 0.05, 0.3]),
            one_way=st.booleans(),
        ),
        st.builds(
            Clock, nodes=one, jump_ms=st.integers(1, 4_000).map(float), rate=st.sampled_from([1.0, 0.0, 0.5, 2.0])
        ),
        st.builds(Clock, nodes=one, wall_jump_ms=st.integers(-60_000, -1).map(float)),
    ]
    if victims:
        victim = st.sampled_from(victims).map(lambda node: (node,))
        kinds += [
            st.builds(Kill, nodes=victim),
            st.builds(PowerLoss, nodes=victim, keep=st.sampled_from(list(KeepUnsynced))),
        ]
    return st.one_of(kinds)


@st.composite
def schedules(draw: st.DrawFn, cluster: ClusterShape, time_limit_s: float = 30.0, most: int = 12) -> Schedule:
    """A fair schedule of up to `most` faults within `time_limit_s`."""
    victims = tuple(draw(st.permutations(cluster.brokers)))[: cluster.loss_budget]
    moments = st.integers(0, int(time_limit_s * 10)).map(lambda tenths: tenths / 10)
    durations = st.integers(1, int(cluster.patience_s * 50)).map(lambda tenths: tenths / 10)
    scheduled = st.builds(ScheduledFault, at_s=moments, for_s=durations, fault=faults(cluster, victims))
    return Schedule(tuple(draw(st.lists(scheduled, max_size=most))))


def worlds() -> st.SearchStrategy[dict[str, Any]]:
    """The fields of a spec that make its world: nodes, partitions, what clients send at once, and sizes of segments.

    The simplest world is the default one of a single partition and a single controller.
    """
    clients = st.fixed_dictionaries(
        {},
        optional={
            "batch": st.sampled_from([1, 4, 20]),
            "linger": st.sampled_from([0.0, 0.005, 0.05]),
            "in_flight": st.sampled_from([5, 2, 1]),
            "fetch_bytes": st.sampled_from([1 << 20, 4096, 200]),
        },
    )
    settings = st.fixed_dictionaries(
        {"min.insync.replicas": st.sampled_from(["2", "1", "3"])},
        optional={"segment.bytes": st.sampled_from(["16384", "4096"])},
    )
    return st.fixed_dictionaries(
        {
            "brokers": st.integers(3, 5),
            "controllers": st.sampled_from([1, 3]),
            "partitions": st.integers(1, 3),
            "clients": clients,
            "settings": settings,
        }
    )
