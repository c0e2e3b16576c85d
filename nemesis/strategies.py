"""Hypothesis strategies for schedules, for property tests and for making a failing schedule smaller.

Everything shrinks towards less: fewer faults, earlier and shorter ones, plain node names over symbolic targets, and the
first of each choice (isolate over ring, held over reset). The fair budget of `nemesis.swarm` holds: only `victims` are
killed or lose power.
"""

from __future__ import annotations

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
