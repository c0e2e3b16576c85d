"""The leader of a partition, of brokers that disagree about it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12.response import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

from harness.cluster.leader_lookup import LeaderLookup
from images.wire.connection import encode_response
from tests.wire.scripted_broker import Answer, broker
from tests.workloads.virtual_time import run

Told = tuple[int, int]
"""Leader epoch and leader, as a broker has them."""


def telling(epoch: int, leader: int) -> Answer:
    """A broker that answers so about partition 0 of topic `t`."""
    partition = MetadataResponsePartition(
        error_code=ErrorCode.none, partition_index=0, leader_id=leader, leader_epoch=epoch
    )
    topic = MetadataResponseTopic(error_code=ErrorCode.none, name="t", topic_id=None, partitions=(partition,))
    response = MetadataResponse(throttle_time=timedelta(0), brokers=(), topics=(topic,))

    async def answer(request: Any, correlation_id: int, writer: asyncio.StreamWriter) -> None:
        writer.write(encode_response(response, correlation_id))

    return answer


async def silent(request: Any, correlation_id: int, writer: asyncio.StreamWriter) -> None:
    """A broker that is frozen."""


async def leaders(*brokers: Answer) -> dict[tuple[str, int], int]:
    """Asked in this order."""
    async with AsyncExitStack() as running:
        ports = [await running.enter_async_context(broker(each)) for each in brokers]
        lookup = LeaderLookup({number: ("127.0.0.1", port) for number, port in enumerate(ports, 1)})
        try:
            return await lookup.leaders()
        finally:
            lookup.close()


@pytest.mark.parametrize(
    ("deposed", "latest", "leader"),
    [((3, 1), (5, 2), {("t", 0): 2}), ((3, 2), (5, 1), {("t", 0): 1}), ((3, 1), (5, -1), {})],
    ids=["elected", "elected back", "without a leader"],
)
def test_the_latest_leader_epoch_says_who_leads_whichever_broker_answers_first(
    deposed: Told, latest: Told, leader: dict[tuple[str, int], int]
) -> None:
    for order in ((deposed, latest), (latest, deposed)):
        assert run(leaders(*(telling(*told) for told in order))) == leader


def test_a_broker_that_does_not_answer_keeps_no_other_answer_back() -> None:
    assert run(leaders(silent, telling(3, 1))) == {("t", 0): 1}
    assert run(leaders(silent)) == {}
