"""Links that are slow or lossy: what a fault asks of the cluster, and what is left of one that another overlaps."""

from __future__ import annotations

import asyncio
from random import Random

from nemesis.faults.packets import Packets
from nemesis.nemesis import Nemesis
from nemesis.ports import Link, LinkQuality
from nemesis.schedule import Schedule, ScheduledFault
from tests.nemesis.fake_cluster import FakeCluster
from tests.workloads.virtual_time import run


def qualities(times_s: list[float], *scheduled: ScheduledFault) -> list[dict[Link, LinkQuality]]:
    """Of the links of a cluster at these times."""
    cluster = FakeCluster()
    seen: list[dict[Link, LinkQuality]] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        nemesis = Nemesis(cluster, Schedule(scheduled), Random(1), lambda _: None)
        running = asyncio.ensure_future(nemesis.run(began_s + 20))
        for time_s in times_s:
            await asyncio.sleep(began_s + time_s - loop.time())
            seen.append(dict(cluster.qualities))
        await running

    run(scenario())
    assert cluster.pristine
    return seen


def test_a_link_that_two_faults_slow_has_the_quality_of_the_latest_that_still_holds() -> None:
    long, short = (Packets(("b1",), ("b2",), delay_ms=delay_ms) for delay_ms in (10, 70))
    seen = qualities([2.5, 5, 7.5, 9.5], ScheduledFault(0, 9, long), ScheduledFault(2, 2, short))
    assert [{quality.delay_ms for quality in links.values()} for links in seen] == [{70}, {10}, {10}, set()]
    assert all(set(links) == {Link("b1", "b2"), Link("b2", "b1")} for links in seen[:3])


def test_links_are_as_bad_as_the_fault_says_and_in_no_direction_that_it_spares() -> None:
    bad = {"delay_ms": 10.0, "jitter_ms": 4.0, "loss": 0.2}
    (links,) = qualities([1], ScheduledFault(0, 5, Packets(("b1",), ("b2",), **bad, one_way=True)))
    assert links == {Link("b1", "b2"): LinkQuality(**bad)}
