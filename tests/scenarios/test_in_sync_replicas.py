"""Replicas in sync, in running clusters: with fewer than min.insync.replicas a producer is refused, certainly and at
once; and followers stay in sync also where each fetch is answered with little."""

from __future__ import annotations

import asyncio

import pytest

from checkers.verdict import Validity
from harness.runner.run import run_in_simulation
from harness.spec import parse
from nemesis.ports import LinkQuality, both_ways
from tests.scenarios.one_partition import TOPIC, Scene, played
from workloads.clients.native import Client, Producer

OTHER = "u"
LARGE = 10
"""Appends to it."""
LITTLE_AT_A_TIME = {
    "max.incremental.fetch.session.cache.slots": "0",
    "replica.fetch.response.max.bytes": "4000",
    "replica.lag.time.max.ms": "1000",
}


@pytest.mark.parametrize("off", [(), ("min_isr_gates_append",)])
def test_6_5_2_an_append_below_the_minimum_fails_for_certain_exactly_with_the_rule(off: tuple[str, ...]) -> None:
    """Nothing is lost without it, since the high watermark stands still: only the trace shows it. But producers are
    left to wait, and not to know."""
    outcome = run_in_simulation(
        parse(
            {
                "seed": 1,
                "partitions": 1,
                "time_limit": "20s",
                "without": list(off),
                "faults": [{"at": "4s", "for": "8s", "fault": "kill", "nodes": ["b1", "b2"]}],
            }
        )
    )
    found = {
        finding.kind for each in outcome.verdicts if each.validity is Validity.INVALID for finding in each.findings
    }
    assert found == ({"appended-below-minimum"} if off else set())
    failed, unknown = (outcome.operations["append", how] for how in ("fail", "info"))
    if off:
        assert failed == 0
        assert unknown > 0
    else:
        assert failed > unknown


async def steadily_and_with_large_batches(scene: Scene) -> tuple[list[str], set[str], int]:
    """The outcomes of appends of large batches, of which no answer to a fetch has room beside another one, while small
    ones are appended to another partition of the same leader faster than it is fetched; the topics that a follower left
    the ISR of; and how often a follower was traced to fetch other partitions than before.

    The leader keeps no fetch sessions, and serves the partition of the small batches first if it is asked to."""
    leader, *followers = scene.replicas
    await scene.create_topic(OTHER, 3)
    await scene.lead(OTHER, leader)
    await scene.deployment.degrade(both_ways([leader], followers), LinkQuality(delay_ms=20))
    clients = [Client(scene.deployment.bootstrap(), topic, scene.deployment.stream(topic)) for topic in (TOPIC, OTHER)]
    small, large = Producer(clients[0], TOPIC, acks=1), Producer(clients[1], OTHER, delivery_timeout_s=5.0)

    async def append_steadily() -> None:
        while True:
            await small.append(0, [b"x"])
            await asyncio.sleep(0.005)

    appending = asyncio.ensure_future(append_steadily())
    assert (await large.append(0, [b"x"])).outcome == "ok"
    since = len(scene.trace)
    outcomes = []
    for _ in range(LARGE):
        outcomes.append((await large.append(0, [b"y" * 5_000])).outcome)
        await asyncio.sleep(0.2)
    appending.cancel()
    for client in clients:
        await client.close()
    changes = [event for _, event in scene.trace[since:] if event.kind == "partition_changed"]
    shrunk = {event.topic for event in changes if len(event.members) < len(scene.replicas)}
    return outcomes, shrunk, len(scene.events(leader, "fetch_session", since))


def test_no_partition_starves_behind_one_that_is_appended_to_steadily() -> None:
    outcomes, shrunk, fetched_others = played(steadily_and_with_large_batches, settings=LITTLE_AT_A_TIME)
    assert (outcomes, shrunk, fetched_others) == (["ok"] * LARGE, set(), 0)
