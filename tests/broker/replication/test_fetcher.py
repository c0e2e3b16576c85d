"""A follower's fetcher: when it pauses, and what it does without an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v16.request import FetchRequest
from kio.schema.fetch.v16.response import EpochEndOffset as DivergingEpoch
from kio.schema.fetch.v16.response import FetchableTopicResponse, FetchResponse, PartitionData
from kio.schema.list_offsets.v7.request import ListOffsetsRequest
from kio.schema.list_offsets.v7.response import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kio.schema.offset_for_leader_epoch.v4.response import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)

from images.broker.config import Endpoint
from images.broker.log.leader_epochs import EpochCache
from images.broker.replication.fetcher import Fetcher, FetchLimits
from images.broker.replication.partition import Limits, PartitionRegistration
from images.broker.rules import Rules
from images.broker.truncation_protocol import TruncationProtocol
from images.wire import batch as batches
from images.wire.connection import ConnectionLost
from images.wire.field_values import EARLIEST, NO_EPOCH
from images.wire.messages import Api, request_class, response_class_of
from images.wire.schema import convert
from tests.broker.replication.replica_node import Node, produced
from tests.workloads.virtual_time import run

BACKOFF_S = 1.0
Answer = Callable[[Any], Any]


def fetched(
    *nodes: Node, seconds: float, answer: Answer, halfway: Callable[[Fetcher], None] = lambda fetcher: None
) -> tuple[list[Any], list[str]]:
    """The requests that a fetcher sends to its leader, broker 2, and the lines that it logs."""
    requests: list[Any] = []
    lines: list[str] = []

    async def call(request: Any) -> Any:
        requests.append(request)
        await asyncio.sleep(0.001)
        return answer(request)

    async def scenario() -> None:
        tasks: list[asyncio.Task[None]] = []

        def spawn(work: Any, *arguments: Any) -> asyncio.Task[None]:
            tasks.append(asyncio.ensure_future(work(*arguments)))
            return tasks[-1]

        limits = FetchLimits(max_wait_s=0.5, partition_max_bytes=1000, max_bytes=1000, backoff_s=BACKOFF_S, timeout_s=1)
        fetcher = Fetcher(1, 2, Endpoint("b2", 9092), limits, lambda: 11, lines.append, spawn)
        fetcher._call = call  # type: ignore[method-assign]
        fetcher.follow([node.replica for node in nodes])
        await asyncio.sleep(seconds / 2)
        halfway(fetcher)
        await asyncio.sleep(seconds / 2)
        fetcher.close()
        await asyncio.wait(tasks)

    run(scenario())
    return requests, lines


def _fetch_answer(request: Any, **fields: Any) -> FetchResponse:
    partition = PartitionData(
        **{
            "partition_index": 0,
            "error_code": ErrorCode.none,
            "high_watermark": 0,
            "last_stable_offset": 0,
            "log_start_offset": 0,
            "aborted_transactions": None,
            "records": b"",
            **fields,
        }
    )
    topic = FetchableTopicResponse(topic_id=request.topics[0].topic_id, partitions=(partition,))
    return FetchResponse(throttle_time=timedelta(0), error_code=ErrorCode.none, session_id=0, responses=(topic,))


def _offset_answer(offset: int, leader_epoch: int) -> ListOffsetsResponse:
    partition = ListOffsetsPartitionResponse(
        partition_index=0, error_code=ErrorCode.none, offset=offset, leader_epoch=leader_epoch
    )
    return ListOffsetsResponse(
        throttle_time=timedelta(0), topics=(ListOffsetsTopicResponse(name="t", partitions=(partition,)),)
    )


def _epoch_answer(error: ErrorCode, epoch: int, end: int) -> OffsetForLeaderEpochResponse:
    partition = EpochEndOffset(error_code=error, partition=0, leader_epoch=epoch, end_offset=end)
    topic = OffsetForLeaderTopicResult(topic="t", partitions=(partition,))
    return OffsetForLeaderEpochResponse(throttle_time=timedelta(0), topics=(topic,))


def test_a_follower_of_a_leader_whose_log_contradicts_its_epochs_pauses_and_says_so_once() -> None:
    """The leader has a batch of epoch 1 at offset 0, and epochs that do not have it: without a pause the follower
    appends and truncates it as fast as the network allows."""
    node = Node(1)
    node.follow(2, 5)

    def answer(request: FetchRequest) -> FetchResponse:
        if request.topics[0].partitions[0].last_fetched_epoch == 1:
            return _fetch_answer(request, diverging_epoch=DivergingEpoch(epoch=0, end_offset=0))
        return _fetch_answer(request, records=batches.assign(produced(b"a"), 0, 1))

    requests, lines = fetched(node, seconds=30.5, answer=answer)
    assert 30 < len(requests) < 100
    (line,) = lines
    assert "t-0: diverges again from broker 2 in leader epoch 5, at epoch 0, offset 0" in line


def test_a_follower_that_converges_in_several_rounds_does_not_pause() -> None:
    node = Node(1)
    for turn, epoch in enumerate((1, 2, 3)):
        node.replica.apply_registration(PartitionRegistration((1, 2), (1,), 1, epoch, turn))
        node.replica.append(produced(b"x"), 1)
    node.follow(2, 5)

    def answer(request: FetchRequest) -> FetchResponse:
        last = request.topics[0].partitions[0].last_fetched_epoch
        if last > 0:
            return _fetch_answer(request, diverging_epoch=DivergingEpoch(epoch=last - 1, end_offset=9))
        return _fetch_answer(request)

    requests, lines = fetched(node, seconds=0.1, answer=answer)
    assert [request.topics[0].partitions[0].fetch_offset for request in requests[:4]] == [3, 2, 1, 0]
    assert lines == []


@pytest.mark.parametrize("read_before_answer", [False, True])
def test_a_follower_that_was_fenced_fetches_as_soon_as_it_has_read_of_the_new_leader_epoch(
    read_before_answer: bool,
) -> None:
    """The leader leads in epoch 6 by now. Its follower reads of that 50 ms after the refusal of its fetch in epoch 5,
    or just before the refusal arrives: in neither case is there a reason for a pause of a second any more."""
    node = Node(1)
    node.follow(2, 5)

    def answer(request: FetchRequest) -> FetchResponse:
        if node.replica.state.leader_epoch == 6 and request.session_id:
            return FetchResponse(throttle_time=timedelta(0), error_code=ErrorCode.none, session_id=7, responses=())
        fenced = request.topics[0].partitions[0].current_leader_epoch == 5
        if read_before_answer:
            node.follow(2, 6)
        error = ErrorCode.fenced_leader_epoch if fenced else ErrorCode.none
        return replace(_fetch_answer(request, error_code=error), session_id=0 if fenced else 7)

    def read(fetcher: Fetcher) -> None:
        node.follow(2, 6)
        fetcher.follow([node.replica])

    requests, _ = fetched(node, seconds=0.1, answer=answer, halfway=read)
    first, second, *_ = requests
    assert first.topics[0].partitions[0].current_leader_epoch == 5
    assert second.topics[0].partitions[0].current_leader_epoch == 6


def test_a_follower_that_sends_no_epoch_names_a_partition_again_after_its_answer_was_discarded() -> None:
    """The answer has an error for the first partition. While the fetcher asks for the leader's offsets because of it,
    the leader epoch of the second one rises, so that the rest of the same answer is discarded."""
    nodes = [Node(1, Limits(2, 1_000, Rules(), TruncationProtocol.KIP279)) for _ in range(2)]
    for index, node in enumerate(nodes):
        node.replica.index = index
        node.follow(2, 5)
        node.replica.state = node.replica.state._replace(epoch_query=None)

    def answer(request: Any) -> Any:
        if not isinstance(request, FetchRequest):
            nodes[1].follow(2, 6)
            nodes[1].replica.state = nodes[1].replica.state._replace(epoch_query=None)
            return _offset_answer(0, 5)
        if request.session_id:
            return FetchResponse(throttle_time=timedelta(0), error_code=ErrorCode.none, session_id=7, responses=())
        whole = _fetch_answer(request, error_code=ErrorCode.offset_out_of_range)
        (topic,) = whole.responses
        partitions = (*topic.partitions, replace(topic.partitions[0], error_code=ErrorCode.none, partition_index=1))
        return replace(whole, session_id=7, responses=(replace(topic, partitions=partitions),))

    requests, _ = fetched(*nodes, seconds=0.1, answer=answer)
    first, second, third, *_ = (request for request in requests if isinstance(request, FetchRequest))
    assert first.topics[0].partitions[1].current_leader_epoch == NO_EPOCH
    assert second.topics[0].partitions == first.topics[0].partitions[1:]
    assert third.topics == (), "the second answer applied"


def following(partitions: int) -> list[Node]:
    """The replicas of so many partitions, from 0 on, all of which follow one leader."""
    nodes = [Node(1) for _ in range(partitions)]
    for index, node in enumerate(nodes):
        node.replica.index = index
        node.follow(2, 5)
    return nodes


def test_partitions_that_got_data_are_fetched_after_the_others() -> None:
    """The answers have room for one batch, and the leader, without a session for this follower, serves the partitions
    as they are asked for: one that got no data is never behind one that did."""
    nodes = following(3)
    orders: list[list[int]] = []

    def answer(request: FetchRequest) -> FetchResponse:
        partitions = [partition for topic in request.topics for partition in topic.partitions]
        orders.append([partition.partition for partition in partitions])
        served = partitions[1 if len(orders) == 1 else 0]
        batch = batches.assign(produced(b"a"), served.fetch_offset, 5)
        return _fetch_answer(request, partition_index=served.partition, records=batch)

    fetched(*nodes, seconds=0.1, answer=answer)
    assert orders[:4] == [[0, 1, 2], [0, 2, 1], [2, 1, 0], [1, 0, 2]]


def test_the_order_of_partitions_stays_when_others_are_followed() -> None:
    nodes = following(4)
    orders: list[list[int]] = []

    def answer(request: FetchRequest) -> FetchResponse:
        orders.append([partition.partition for topic in request.topics for partition in topic.partitions])
        return _fetch_answer(request, records=batches.assign(produced(b"a"), 0, 5) if len(orders) == 1 else b"")

    def follow_others(fetcher: Fetcher) -> None:
        fetcher.follow([node.replica for node in nodes[1:]])
        fetcher.follow([node.replica for node in nodes])

    fetched(*nodes[:3], seconds=0.1, answer=answer, halfway=follow_others)
    assert orders[0] == [0, 1, 2]
    assert orders[1] == [1, 2, 0]
    assert orders[-1] == [1, 2, 3, 0]


# --- the leader's log start -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("leader_epochs", "known"),
    [
        (((3, 7), (5, 8)), 3),
        (((4, 7), (5, 8)), 4),
        (((5, 7),), 5),
        (((5, 8),), -1),
        (((0, 7), (1, 8)), 0),
        (((0, 7),), 0),
        ((), -1),
    ],
)
def test_a_replica_that_begins_anew_knows_the_epoch_before_if_its_leader_does(
    leader_epochs: tuple[tuple[int, int], ...], known: int
) -> None:
    """The leader's log starts at 8, and ends at 10. Of an epoch below all that it knows it answers that this ends where
    the first one begins, as Kafka's: so it does not say of which one the record at 7 is."""
    node, epochs = Node(1), EpochCache.of(*leader_epochs)
    node.follow(2, 5)

    def answer(request: Any) -> Any:
        if isinstance(request, FetchRequest):
            out_of_range = request.topics[0].partitions[0].fetch_offset < 8
            return _fetch_answer(request, error_code=ErrorCode.offset_out_of_range if out_of_range else ErrorCode.none)
        asked = request.topics[0].partitions[0]
        if isinstance(request, ListOffsetsRequest):
            offset = 8 if asked.timestamp == EARLIEST else 10
            return _offset_answer(offset, epochs.epoch_at(offset))
        return _epoch_answer(ErrorCode.none, *epochs.end_offset_for(asked.leader_epoch, 10))

    fetched(node, seconds=0.1, answer=answer)
    assert node.replica.log.epochs == EpochCache.behind(known, 8)
    assert node.replica.log.start == 8


@pytest.mark.parametrize(("leader_epochs", "start"), [(((2, 0),), 9), (((0, 0), (2, 5)), 9), (((2, 0), (3, 9)), 11)])
def test_a_replica_begins_anew_also_while_its_leaders_start_moves_with_every_answer(
    leader_epochs: tuple[tuple[int, int], ...], start: int
) -> None:
    """The leader's log starts at 8, and at the next offset with each question for the end of an epoch. In the last case
    epoch 3 begins at 9: of which one the record before the new start is cannot be said, so all is asked again."""
    node, records = Node(1), EpochCache.of(*leader_epochs)
    node.follow(2, 5)
    starts_at = [8]

    def answer(request: Any) -> Any:
        if isinstance(request, FetchRequest):
            out_of_range = request.topics[0].partitions[0].fetch_offset < starts_at[-1]
            return _fetch_answer(request, error_code=ErrorCode.offset_out_of_range if out_of_range else ErrorCode.none)
        asked = request.topics[0].partitions[0]
        if isinstance(request, ListOffsetsRequest):
            offset = starts_at[-1] if asked.timestamp == EARLIEST else 40
            return _offset_answer(offset, records.epoch_at(offset))
        found = records.advance_start(starts_at[-1]).end_offset_for(asked.leader_epoch, 40)
        starts_at.append(starts_at[-1] + 1)
        return _epoch_answer(ErrorCode.none, *found)

    fetched(node, seconds=BACKOFF_S + 0.1, answer=answer)
    assert node.replica.log.start == start == starts_at[-1]
    assert node.replica.log.epochs == EpochCache.behind(records.epoch_at(start - 1), start)


# --- the epoch query --------------------------------------------------------------------------------------------------


def _lost(request: Any) -> Any:
    raise ConnectionLost("no answer in time")


def _refused(request: Any) -> Any:
    return convert(_epoch_answer(ErrorCode.unknown_server_error, -1, -1), response_class_of(type(request)))


@pytest.mark.parametrize("failure", [_lost, _refused])
@pytest.mark.parametrize(
    ("protocol", "version", "end"),
    [(TruncationProtocol.KIP101, 0, 1), (TruncationProtocol.KIP279, 1, 1), (TruncationProtocol.KIP320, 4, 3)],
)
def test_without_an_answer_to_its_epoch_query_a_follower_truncates_to_its_high_watermark_until_kip_320(
    protocol: TruncationProtocol, version: int, end: int, failure: Answer
) -> None:
    """KIP-279: any error of OffsetForLeaderEpoch results in truncating to the high watermark, also a timeout."""
    node = Node(1, Limits(2, 1_000, Rules(), protocol))
    node.replica.apply_registration(PartitionRegistration((1, 2), (1, 2), 1, 1, 0))
    for _ in range(3):
        node.replica.append(produced(b"x"), 1)
    node.replica.state = node.replica.state._replace(high_watermark=1)
    node.follow(2, 5)

    def answer(request: Any) -> Any:
        return _fetch_answer(request) if isinstance(request, FetchRequest) else failure(request)

    requests, _ = fetched(node, seconds=2.5, answer=answer)
    assert node.replica.log.end == end
    assert any(isinstance(request, FetchRequest) for request in requests) is (end == 1)
    assert type(requests[0]) is request_class(Api.OFFSET_FOR_LEADER_EPOCH, version)
