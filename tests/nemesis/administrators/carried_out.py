"""An administrator's fault, carried out in a cluster that notes what it is asked for."""

from __future__ import annotations

from random import Random

from nemesis.faults.fault import Fault
from nemesis.handle import ActiveEffects, FaultHandle
from tests.nemesis.fake_cluster import FakeCluster
from tests.workloads.virtual_time import run


def carried_out(
    fault: Fault, cluster: FakeCluster, seed: int = 3, *, replication_factor: int | None = None
) -> FaultHandle:
    """The fault injected and healed."""
    handle = FaultHandle(cluster, ActiveEffects(), Random(seed), "t", min_isr=2, replication_factor=replication_factor)

    async def scenario() -> None:
        await fault.inject(handle)
        await handle.heal()

    run(scenario())
    return handle
