"""What the exploration assumes of the shell, compared with the shell."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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

from harness.search.exploration import replica_steps, restart_steps
from harness.search.exploration.breadth_first import explore
from harness.search.exploration.cluster_model import ClusterModel
from harness.search.exploration.cluster_values import (
    TOPIC,
    TOPIC_ID,
    BrokerState,
    FollowerRequest,
    LeaderAnswer,
    LogRecord,
    ReplicaDisk,
)
from harness.search.exploration.memory_log import MemoryLog
from harness.search.exploration.normal_form import normalised
from harness.search.exploration.replica_steps import OpenedReplica, ReplicaEvents
from harness.search.exploration.scope import Scope
from harness.search.exploration.scope_file import load
from harness.search.state_space.explored_model import Numbers
from images.broker.config import Endpoint
from images.broker.log.leader_epochs import EpochCache
from images.broker.log.log import Log
from images.broker.replication.fetcher import Fetcher, FetchLimits
from images.broker.replication.partition import Limits, ReplicaRole
from images.broker.truncation_protocol import TruncationProtocol
from images.wire.batch import parse
from images.wire.field_values import LATEST
from images.wire.messages import response_class_of
from images.wire.schema import convert
from nemesis.ports import KeepUnsynced
from tests.broker.log.disk_model import DiskModel, is_not_an_epoch_byte
from tests.broker.log.small_log import EVERYTHING, batch, open_log, read_all
from tests.scenarios.one_partition import RECORDS, Scene, played
from tests.workloads.virtual_time import run

NO_THROTTLE = timedelta(0)


# --- fetching: the events of the model are those of `Fetcher` ---------------------------------------------------------


def exchanges(scope: Scope) -> Iterator[tuple[BrokerState, FollowerRequest, LeaderAnswer]]:
    """Every follower of a scope with its request, and every answer that its leader may give."""
    model, events = ClusterModel(scope), ReplicaEvents(scope.limits)
    seen: set[Numbers] = {model.initial()}
    frontier = [model.initial()]
    pairs = set()
    while frontier:
        state = frontier.pop()
        brokers = [model.brokers.values[number] for number in state[:-2]]
        pairs |= {(it, brokers[it.partition.leader - 1]) for it in brokers if it.partition.role is ReplicaRole.FOLLOWER}
        after = {step.state for step in model.steps(state)} - seen
        seen |= after
        frontier += after
    for follower, leader in pairs:
        request = replica_steps.request_of(follower, events)
        yield follower, request, replica_steps.serve(leader, request, events)[1]


def fetched_by_shell(follower: BrokerState, answer: LeaderAnswer, limits: Limits) -> tuple[Any, BrokerState]:
    """The first request of a `Fetcher` for this follower, and the follower once it has processed this answer."""
    opened = OpenedReplica(follower, limits)
    requests: list[Any] = []

    async def call(request: Any) -> Any:
        requests.append(request)
        if len(requests) > 1 and not isinstance(request, ListOffsetsRequest):
            await asyncio.sleep(1e9)
        return _wire_answer(request, answer)

    async def scenario() -> None:
        tasks: list[asyncio.Task[None]] = []

        def spawn(work: Any, *arguments: Any) -> asyncio.Task[None]:
            tasks.append(asyncio.ensure_future(work(*arguments)))
            return tasks[-1]

        sizes = FetchLimits(max_wait_s=0, partition_max_bytes=1, max_bytes=1, backoff_s=1e6, timeout_s=1)
        leader = follower.partition.leader
        epoch = follower.broker_epoch
        fetcher = Fetcher(
            follower.partition.node, leader, Endpoint("b", 1), sizes, lambda: epoch, lambda line: None, spawn
        )
        fetcher._call = call  # type: ignore[method-assign]
        fetcher.follow([opened.replica])
        await asyncio.sleep(1)
        fetcher.close()
        await asyncio.wait(tasks)

    run(scenario())
    return requests[0], normalised(opened.read_out())


def _wire_answer(request: Any, answer: LeaderAnswer) -> Any:
    if isinstance(request, FetchRequest):
        fetched = answer.fetched
        assert fetched is not None
        epoch, end = fetched.diverging or (-1, -1)
        partition = PartitionData(
            partition_index=0,
            error_code=fetched.error,
            high_watermark=fetched.high_watermark,
            log_start_offset=fetched.log_start,
            diverging_epoch=DivergingEpoch(epoch=epoch, end_offset=end),
            aborted_transactions=None,
            records=fetched.records,
        )
        topic = FetchableTopicResponse(topic_id=TOPIC_ID, partitions=(partition,))
        return FetchResponse(throttle_time=NO_THROTTLE, error_code=ErrorCode.none, session_id=0, responses=(topic,))
    if isinstance(request, ListOffsetsRequest):
        error = ErrorCode.none if answer.leader_end is not None else ErrorCode.fenced_leader_epoch
        asked = request.topics[0].partitions[0].timestamp
        offset = answer.leader_end if asked == LATEST and answer.leader_end is not None else 0
        found = ListOffsetsPartitionResponse(partition_index=0, error_code=error, offset=offset)
        return ListOffsetsResponse(
            throttle_time=NO_THROTTLE, topics=(ListOffsetsTopicResponse(name=TOPIC, partitions=(found,)),)
        )
    epoch, end = answer.epoch_end or (-1, -1)
    error = ErrorCode.none if answer.epoch_end is not None else ErrorCode.fenced_leader_epoch
    ended = EpochEndOffset(error_code=error, partition=0, leader_epoch=epoch, end_offset=end)
    answered = OffsetForLeaderEpochResponse(
        throttle_time=NO_THROTTLE, topics=(OffsetForLeaderTopicResult(topic=TOPIC, partitions=(ended,)),)
    )
    return convert(answered, response_class_of(type(request)))


@pytest.mark.parametrize("protocol", list(TruncationProtocol))
def test_a_fetcher_sends_the_requests_of_the_model_and_takes_the_answers_as_it_does(
    protocol: TruncationProtocol,
) -> None:
    scope = Scope(replicas=2, records=1, leader_epochs=3, protocol=protocol)
    limits = scope.limits
    count = 0
    for follower, expected, answer in exchanges(scope):
        request, after = fetched_by_shell(follower, answer, limits)
        partition = request.topics[0].partitions[0]
        if expected.epoch_query is not None:
            assert partition.leader_epoch == expected.epoch_query
            assert getattr(partition, "current_leader_epoch", -1) == expected.fence
        else:
            fetch = expected.fetch
            assert (request.replica_state.replica_id, request.replica_state.replica_epoch) == fetch[:2]
            assert (partition.current_leader_epoch, partition.fetch_offset, partition.last_fetched_epoch) == fetch[2:5]
        assert after == replica_steps.receive(follower, expected, answer, ReplicaEvents(limits))
        count += 1
    assert count > 50


# --- an event is the same for all brokers that it is carried out once for ---------------------------------------------

SHARED = [
    ("isr-answers", TruncationProtocol.TRUNCATE_ON_FETCH, 8),
    ("restarts", TruncationProtocol.TRUNCATE_ON_FETCH, 11),
    ("truncation", TruncationProtocol.KIP320_FIRST_TRY, 5),
]


@pytest.mark.parametrize(("name", "protocol", "depth"), SHARED)
def test_an_event_that_brokers_share_is_what_each_of_them_does_alone(
    name: str, protocol: TruncationProtocol, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, compared = ReplicaEvents.after, set()

    def after(
        events: ReplicaEvents, broker: BrokerState, event: Callable[..., Any], *arguments: Any, **changes: Any
    ) -> tuple[BrokerState, Any]:
        found = shared(events, broker, event, *arguments, **changes)
        opened = OpenedReplica(broker, events.limits)
        result = event(opened, *arguments)
        assert repr(found) == repr((normalised(opened.read_out()._replace(**changes)), result))
        compared.add(event)
        return found

    monkeypatch.setattr(ReplicaEvents, "after", after)
    explore(load(name, protocol.value)[1], 1, depth_most=depth)
    assert len(compared) > 5


# --- the log in memory behaves as the log on a disk -------------------------------------------------------------------

OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 3)),
        st.tuples(st.just("truncate"), st.integers(0, 6)),
        st.tuples(st.just("assign_epoch"), st.integers(0, 4)),
    ),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(OPERATIONS)
def test_the_log_in_memory_is_the_log_on_a_disk(operations: list[tuple[str, int]]) -> None:
    disk, memory = open_log(DiskModel()), MemoryLog((), EpochCache())
    logs: tuple[Log, Log] = (disk, memory)
    for kind, number in operations:
        for log in logs:
            if kind == "append":
                log.append(batch(log.end, epoch=number, timestamp=number))
            elif kind == "truncate":
                log.truncate(number)
            else:
                log.assign_epoch(number, log.end)
        assert (disk.start, disk.end, disk.epochs) == (memory.start, memory.end, memory.epochs)
    assert memory.records == records_of(disk)


def records_of(log: Log) -> tuple[LogRecord, ...]:
    """The records of a log on a disk, each with its timestamp as its number."""
    headers = map(parse, read_all(log))
    return tuple(LogRecord(header.leader_epoch, header.max_timestamp) for header in headers)


@settings(max_examples=60, deadline=None)
@given(OPERATIONS, st.data())
def test_a_crash_leaves_a_log_and_epochs_that_the_exploration_knows(
    operations: list[tuple[str, int]], data: st.DataObject
) -> None:
    """A power loss keeps any prefix of a file's writes, the last of them perhaps damaged where a checksum covers it; a
    killed process leaves its files as they are."""
    disk = DiskModel()
    log, files = open_log(disk), ReplicaDisk()
    before: tuple[LogRecord, ...] = ()
    for number, (kind, argument) in enumerate(operations):
        if kind == "append":
            log.append(batch(log.end, epoch=argument, timestamp=number))
        elif kind == "truncate":
            log.truncate(argument)
        else:
            log.assign_epoch(argument, log.end)
        after = records_of(log)
        files, before = files.after(before, after, 0), after
    killed = records_of(open_log(copy.deepcopy(disk)))
    assert killed == before
    disk.lose_power(lambda low, high: data.draw(st.integers(low, high)), is_not_an_epoch_byte)
    recovered = open_log(disk)
    left = records_of(recovered)
    assert left == before or left in restart_steps.logs_after_loss(before, files)
    assert MemoryLog.recovered(left).epochs == recovered.epochs


# --- a new incarnation ------------------------------------------------------------------------------------------------


def test_a_broker_that_crashes_registers_once_it_is_fenced_and_is_unfenced_once_it_has_read_that() -> None:
    """Its log is opened upon the metadata with its registration; its high watermark is within that."""

    async def scenario(scene: Scene) -> None:
        leader, follower = scene.replicas
        since = len(scene.trace)
        await scene.deployment.power_off(follower, KeepUnsynced.NOTHING)
        await scene.deployment.start(follower)
        await scene.until("partition_changed", member=follower, since=since)
        kinds = ("broker_fenced", "broker_registered", "log_recovered", "became_follower", "broker_unfenced")
        events = [
            event
            for node, event in scene.trace[since:]
            if event.kind in kinds and (node == follower or {event.broker} == scene.ids(follower))
        ]
        assert [event.kind for event in events] == list(kinds)
        recovered = events[2]
        assert recovered.high_watermark <= recovered.log_end <= RECORDS
        assert leader not in (node for node, event in scene.trace[since:] if event.kind == "registered")

    played(scenario, brokers=2, replicas=2, settings={"min.insync.replicas": "2"})


def test_the_log_in_memory_reads_whole_batches() -> None:
    log = MemoryLog((LogRecord(0, 0), LogRecord(1, 0), LogRecord(1, 1)), EpochCache.of((0, 0), (1, 1)))
    one = log.read(0, 1, 3)
    assert one
    assert log.read(0, 1, 3, at_least_one=False) == b""
    assert log.read(0, EVERYTHING, 3).startswith(one)
    assert len(log.read(1, EVERYTHING, 2)) == len(one)
    assert log.read(3, EVERYTHING, 3) == b""
