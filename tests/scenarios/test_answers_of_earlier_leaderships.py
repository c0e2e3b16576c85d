"""Answers that a follower gets after leadership has gone to another broker and come back, in a running cluster.

The follower keeps its connection to the first leader, which leads a second partition all the time. The link from there
is slow, so that the answer belongs to an earlier leader epoch when it arrives.
"""

from __future__ import annotations

import asyncio

import pytest

from nemesis.ports import Link, LinkQuality
from tests.scenarios.one_partition import RECORDS, TOPIC, Scene, played

SECOND = "u"
SLOW = LinkQuality(delay_ms=8000)
SETTINGS = {"replica.lag.time.max.ms": "60000", "replica.socket.timeout.ms": "60000"}


@pytest.mark.parametrize("off", [(), ("ignore_stale_fetch_answer",)])
def test_records_fetched_in_an_earlier_leadership_do_not_fit_the_log_exactly_without_the_rule(
    off: tuple[str, ...],
) -> None:
    misplaced: list[bool] = []

    async def scenario(scene: Scene) -> None:
        leader, other, follower = scene.replicas
        await scene.create_topic(SECOND, 3)
        await scene.lead(SECOND, leader)
        await scene.deployment.degrade([Link(leader, follower)], SLOW)
        since = len(scene.trace)
        appended = asyncio.ensure_future(scene.append())
        await scene.happens("appended", node=other, since=since)
        await scene.lead(TOPIC, other)
        await scene.happens("appended", node=follower, since=since)
        await scene.lead(TOPIC, leader)
        await asyncio.sleep(20)
        misplaced.append(any("does not follow" in line for line in scene.log_lines))
        await asyncio.gather(appended)

    played(scenario, *off, settings=SETTINGS)
    assert misplaced == [bool(off)]


@pytest.mark.parametrize("off", [(), ("ignore_stale_epoch_answer",)])
def test_an_end_of_an_epoch_from_an_earlier_leadership_cuts_committed_records_exactly_without_the_rule(
    off: tuple[str, ...],
) -> None:
    cuts: list[int] = []

    async def scenario(scene: Scene) -> None:
        other, leader, follower = scene.replicas
        await scene.create_topic(SECOND, 3)
        await scene.lead(SECOND, leader)
        await scene.deployment.degrade([Link(leader, follower)], SLOW)
        await scene.lead(TOPIC, leader)
        await asyncio.sleep(9)  # the fetch before the query has its answer, and the query has none yet
        since = len(scene.trace)
        appended = [asyncio.ensure_future(scene.append())]
        await scene.happens("appended", node=other, since=since)
        await scene.lead(TOPIC, other)
        await scene.happens("appended", node=follower, since=since)
        appended.append(asyncio.ensure_future(scene.append()))
        await asyncio.sleep(1)
        await scene.lead(TOPIC, leader)
        await asyncio.sleep(20)
        events = [event for node, event in scene.trace[since:] if (node, event.kind) == (follower, "truncated")]
        cuts.extend(event.offset for event in events if event.topic == TOPIC and event.offset < event.log_end)
        await asyncio.gather(*appended)

    played(scenario, *off, settings={**SETTINGS, "faultline.protocol": "kip320"})
    assert cuts == ([RECORDS] if off else [])
