"""Fetch: each entry is answered within its limits, and a waiting fetch as soon as there is news."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v16 import request as fetching

from images.broker.runtime.condition import resolve
from images.wire import batch as batches
from images.wire.messages import Api
from tests.broker.apis.data_path import (
    MAX_INT32,
    MAX_INT64,
    MIN_INT32,
    MIN_INT64,
    TOPIC,
    Broker,
    part,
    produced,
    run,
    settle,
)


def test_of_a_partition_twice_in_a_fetch_the_last_entry_counts() -> None:
    async def scenario() -> None:
        broker = Broker()
        batch = produced(b"a")
        await broker.produce((0, batch))
        answers = await broker.fetch(part(offset=9), part(1), part(), part(-3))
        assert [answer.partition_index for answer in answers] == [0, 1, -3]
        assert [len(answer.records) for answer in answers] == [len(batch), 0, 0]
        assert answers[2].error_code is ErrorCode.unknown_topic_or_partition

    run(scenario)


@pytest.mark.parametrize("max_bytes", [0, 1])
def test_one_batch_is_answered_whatever_the_limit(max_bytes: int) -> None:
    async def scenario() -> None:
        broker = Broker()
        batch = produced(b"a")
        for index in (0, 1):
            await broker.produce((index, batch), (index, batch))
        answers = await broker.fetch(part(), part(1), max_bytes=max_bytes)
        assert [len(answer.records) for answer in answers] == [len(batch), 0]

    run(scenario)


@pytest.mark.parametrize(
    ("max_bytes", "partition_max_bytes"), [(-1, 1 << 20), (MIN_INT32, MIN_INT32), (100, MIN_INT32)]
)
def test_a_limit_below_nothing_gives_no_more_than_one_batch(max_bytes: int, partition_max_bytes: int) -> None:
    async def scenario() -> None:
        broker = Broker()
        batch = produced(b"a")
        for _ in range(5):
            await broker.produce((0, batch))
        (answer,) = await broker.fetch(part(max_bytes=partition_max_bytes), max_bytes=max_bytes)
        assert answer.error_code is ErrorCode.none
        assert len(answer.records) <= len(batch)

    run(scenario)


@pytest.mark.parametrize("replica", [-1, -2, MIN_INT32])
def test_a_consumer_reads_committed_records_only(replica: int) -> None:
    async def scenario() -> None:
        broker = Broker()
        await broker.produce((0, produced(b"a")))
        broker.elect(1, 1, isr=(1, 2))
        await broker.produce((0, produced(b"b")), acks=1)
        (answer,) = await broker.fetch(part(), replica=replica)
        assert answer.error_code is ErrorCode.none
        assert [header.base_offset for header, _ in batches.iterate(answer.records)] == [0]

    run(scenario)


@pytest.mark.parametrize("offset", [-1, MIN_INT64, 2, MAX_INT64])
def test_an_offset_outside_the_log_is_out_of_range(offset: int) -> None:
    async def scenario() -> None:
        broker = Broker()
        await broker.produce((0, produced(b"a")))
        for replica in (-1, 2):
            (answer,) = await broker.fetch(part(offset=offset, epoch=0), replica=replica)
            assert answer.error_code is ErrorCode.offset_out_of_range

    run(scenario)


def test_a_fetch_that_wants_more_than_it_may_have_is_answered_when_it_has_all_it_may() -> None:
    async def scenario() -> None:
        broker = Broker()
        batch = produced(b"a")
        for _ in range(5):
            await broker.produce((0, batch))
        size = len(batch)
        (answer,) = await broker.fetch(part(), wait_s=60.0, min_bytes=MAX_INT32, max_bytes=size)
        assert len(answer.records) == size

    run(scenario)


@pytest.mark.parametrize("wait_s", [-1.0, 0.0, MIN_INT32 / 1000])
def test_a_fetch_that_may_not_wait_does_not(wait_s: float) -> None:
    async def scenario() -> None:
        (answer,) = await Broker().fetch(part(), wait_s=wait_s)
        assert (answer.error_code, answer.records) == (ErrorCode.none, b"")

    run(scenario)


def test_a_waiting_fetch_is_refused_with_the_new_leader_as_soon_as_leadership_moves() -> None:
    async def scenario() -> None:
        broker = Broker()
        broker.elect(1, 1, isr=(1, 2))
        broker.follow(0, 0, epoch=1)
        follower = asyncio.ensure_future(broker.fetch(part(epoch=1), replica=2, wait_s=60.0))
        await broker.fetch(part(epoch=1), replica=2)  # it has been told the high watermark, so the next one waits
        consumer = asyncio.ensure_future(broker.fetch(part(), wait_s=60.0))
        fencing = asyncio.ensure_future(broker.fetch(part(epoch=1), replica=2, wait_s=60.0))
        await settle()
        broker.elect(2, 2, isr=(2,))
        await settle()
        assert consumer.done()
        assert fencing.done()
        (refused,), (fenced,) = consumer.result(), fencing.result()
        assert refused.error_code is ErrorCode.not_leader_or_follower
        assert (refused.current_leader.leader_id, refused.current_leader.leader_epoch) == (2, 2)
        assert fenced.error_code is ErrorCode.fenced_leader_epoch
        assert not broker.partition().changed.waiters
        await follower

    run(scenario)


def test_a_fetch_that_is_given_up_on_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        broker = Broker()
        waiting = asyncio.ensure_future(broker.fetch(part(), part(1), wait_s=MAX_INT32 / 1000))
        await settle()
        assert broker.partition(1).changed.waiters
        waiting.cancel()
        await asyncio.wait((waiting,))
        assert not broker.partition().changed.waiters
        assert not broker.partition(1).changed.waiters
        loop: Any = asyncio.get_running_loop()
        assert not [handle for handle in loop._scheduled if handle._callback is resolve]

    run(scenario)


@pytest.mark.parametrize(
    ("offset", "last_epoch", "error", "diverging"),
    [
        (1, 1, ErrorCode.none, (-1, -1)),
        (2, 3, ErrorCode.none, (-1, -1)),
        (2, 2, ErrorCode.none, (1, 1)),
        (2, 1, ErrorCode.none, (1, 1)),
        (9, 1, ErrorCode.none, (1, 1)),
        (2, 4, ErrorCode.offset_out_of_range, (-1, -1)),
    ],
)
def test_a_consumer_that_gives_its_last_fetched_epoch_is_told_where_its_log_diverges(
    offset: int, last_epoch: int, error: ErrorCode, diverging: tuple[int, int]
) -> None:
    """As in Kafka from Fetch v12 on, for any sender. The log is a record of epoch 1 and two of epoch 3."""

    async def scenario() -> None:
        broker = Broker()
        broker.elect(1, 1)
        await broker.produce((0, produced(b"a")))
        broker.elect(1, 3)
        for value in (b"b", b"c"):
            await broker.produce((0, produced(value)))
        (answer,) = await broker.fetch(part(offset=offset, last_epoch=last_epoch))
        assert answer.error_code is error
        assert (answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset) == diverging
        assert bool(answer.records) is (error is ErrorCode.none and diverging == (-1, -1))
        assert answer.high_watermark == (3 if error is ErrorCode.none else -1)

    run(scenario)


def test_a_consumer_below_the_log_start_is_out_of_range_whatever_epoch_it_has_read() -> None:
    """What it lacks was deleted, not cut off."""

    async def scenario() -> None:
        broker = Broker()
        broker.elect(1, 1)
        await broker.produce((0, produced(b"a")))
        await broker.produce((0, produced(b"b")))
        broker.elect(1, 3)
        await broker.produce((0, produced(b"c")))
        broker.partition().delete_records(1)
        (answer,) = await broker.fetch(part(offset=0, last_epoch=2))
        assert answer.error_code is ErrorCode.offset_out_of_range
        (answer,) = await broker.fetch(part(offset=1, last_epoch=2))
        assert (answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset) == (1, 2)

    run(scenario)


def test_the_partitions_of_a_follower_are_traced_whenever_they_are_others_with_a_session_or_without() -> None:
    async def scenario() -> None:
        broker = Broker()
        for partitions in ([part()], [part()], [part(1)], [part(), part(1)]):
            await broker.fetch(*partitions, replica=2)
        told = [event.detail["partitions"] for event in broker.trace if event.kind == "fetch_session"]
        assert told == [["t-0"], ["t-1"], ["t-0", "t-1"]]

    run(scenario)


@pytest.mark.parametrize("replica", [-1, 2])
@pytest.mark.parametrize("version", [12, 17])
def test_a_session_tells_of_an_error_each_time_and_traces_that_it_does(replica: int, version: int) -> None:
    async def scenario() -> None:
        broker = Broker()
        broker.elect(1, 2)
        body = fetching.FetchRequest(
            replica_state=fetching.ReplicaState(replica_id=replica, replica_epoch=1),
            max_wait=timedelta(0),
            min_bytes=1,
            session_id=0,
            session_epoch=0,
            topics=(fetching.FetchTopic(topic_id=TOPIC, partitions=(part(epoch=2), part(1, 3))),),
            forgotten_topics_data=(),
        )
        number = (await broker.ask(Api.FETCH, body, version=version, names={TOPIC: "t"})).session_id
        for epoch in (1, 2):
            request = replace(body, session_id=number, session_epoch=epoch, topics=())
            answer = await broker.ask(Api.FETCH, request, version=version, names={})
            (told,) = answer.responses[0].partitions
            assert (told.partition_index, told.error_code) == (1, ErrorCode.offset_out_of_range)
        traced = [event for event in broker.trace if event.kind == "fetch_refused"]
        assert [(event.topic, event.partition, event.offset) for event in traced] == [("t", 1, 3)] * 3
        refused = {"replica": replica, "refusal": "offset_out_of_range", "told": "offset_out_of_range"}
        assert all(event.detail == refused and event.topic_id == str(TOPIC) for event in traced)

    run(scenario)


def test_what_a_follower_asks_to_forget_is_traced_and_left_out() -> None:
    async def scenario() -> None:
        broker = Broker()
        body = fetching.FetchRequest(
            replica_state=fetching.ReplicaState(replica_id=2, replica_epoch=1),
            max_wait=timedelta(0),
            min_bytes=1,
            session_id=0,
            session_epoch=0,
            topics=(fetching.FetchTopic(topic_id=TOPIC, partitions=(part(), part(1))),),
            forgotten_topics_data=(),
        )
        number = (await broker.ask(Api.FETCH, body)).session_id
        forgotten = (fetching.ForgottenTopic(topic_id=TOPIC, partitions=(1,)),)
        follows = replace(body, session_id=number, session_epoch=1, topics=(), forgotten_topics_data=forgotten)
        await broker.ask(Api.FETCH, follows)
        first, second = (event.detail for event in broker.trace if event.kind == "fetch_session")
        assert (first["partitions"], first.get("forgotten")) == (["t-0", "t-1"], None)
        assert (second["partitions"], second["forgotten"]) == (["t-0"], ["t-1"])

    run(scenario)
