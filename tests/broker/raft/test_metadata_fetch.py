"""Fetches of the metadata log and of its snapshots: which of them count as a voter's, and what each is given."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v16.request import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from kio.schema.fetch_snapshot.v1 import request as snapshots

from images.broker.metadata.internal_topics import CLUSTER_METADATA_TOPIC, CLUSTER_METADATA_TOPIC_ID
from images.broker.raft.fetch import MetadataFetchHandler
from images.broker.raft.values import NO_NODE, FetchValidation, MetadataFetch, RaftRole
from tests.broker.raft.test_metadata_snapshots import CHANGES, append, opened
from tests.workloads.virtual_time import run

VOTER, BROKER_EPOCH, NO_BROKER = 102, 17, -1


def fetch_request(
    broker_epoch: int, offset: int, *, wait_s: float = 0.0, min_bytes: int = 0, max_bytes: int = 999
) -> Any:
    """A request with the node id of a voter."""
    partition = FetchPartition(partition=0, current_leader_epoch=3, fetch_offset=offset, partition_max_bytes=max_bytes)
    body = FetchRequest(
        replica_state=ReplicaState(replica_id=VOTER, replica_epoch=broker_epoch),
        max_wait=timedelta(seconds=wait_s),
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        topics=(FetchTopic(topic_id=CLUSTER_METADATA_TOPIC_ID, partitions=(partition,)),),
        forgotten_topics_data=(),
    )
    return SimpleNamespace(body=body)


@pytest.mark.parametrize(("broker_epoch", "counts_for"), [(NO_BROKER, VOTER), (0, NO_NODE), (BROKER_EPOCH, NO_NODE)])
def test_a_fetch_with_a_broker_epoch_is_no_voters_even_with_its_node_id(broker_epoch: int, counts_for: int) -> None:
    fetches: list[MetadataFetch] = []

    def on_fetch(fetch: MetadataFetch) -> FetchValidation:
        fetches.append(fetch)
        return FetchValidation(ErrorCode.not_leader_or_follower)

    state = SimpleNamespace(high_watermark=0, leader=101, epoch=3, progress={VOTER: None})
    node: Any = SimpleNamespace(on_fetch=on_fetch, state=state, log=SimpleNamespace(start=0))
    asyncio.run(MetadataFetchHandler(node).fetch(fetch_request(broker_epoch, 9)))
    assert [(fetch.replica, fetch.epoch, fetch.offset) for fetch in fetches] == [(counts_for, 3, 9)]


@pytest.fixture
def leading(tmp_path: Path) -> Iterator[Any]:
    """A leader whose log has two records, the first of them committed."""
    log = opened(tmp_path)
    for records in CHANGES[:2]:
        append(log, records)

    async def nothing_new() -> None:
        await asyncio.sleep(3600)

    state = SimpleNamespace(high_watermark=1, leader=101, epoch=3, role=RaftRole.LEADER, progress={VOTER: None})
    yield SimpleNamespace(
        log=log,
        state=state,
        on_fetch=lambda fetch: FetchValidation(),
        on_fetch_snapshot=lambda replica, epoch: None,
        wait_for_progress=nothing_new,
    )
    log.close()


def fetched(node: Any, request: Any) -> tuple[bytes, float]:
    """The records of the answer, and after how many seconds it came."""

    async def timed() -> tuple[bytes, float]:
        began_s = asyncio.get_running_loop().time()
        answer = await MetadataFetchHandler(node).fetch(request)
        (partition,) = answer.responses[0].partitions
        assert partition.error_code is ErrorCode.none
        return partition.records or b"", asyncio.get_running_loop().time() - began_s

    return run(timed())


def test_a_broker_is_given_committed_records_alone_and_a_voter_all(leading: Any) -> None:
    first, second = (leading.log.read(offset, 999, offset + 1) for offset in (0, 1))
    assert (first, second) != (b"", b"")
    assert fetched(leading, fetch_request(BROKER_EPOCH, 0))[0] == first
    assert fetched(leading, fetch_request(BROKER_EPOCH, 1))[0] == b""
    assert fetched(leading, fetch_request(NO_BROKER, 0))[0] == first + second
    assert fetched(leading, fetch_request(NO_BROKER, 1))[0] == second


def test_a_fetch_waits_for_no_more_bytes_than_it_takes(leading: Any) -> None:
    records, seconds = fetched(leading, fetch_request(NO_BROKER, 0, wait_s=5, min_bytes=500, max_bytes=60))
    assert (bool(records), seconds) == (True, 0)
    assert fetched(leading, fetch_request(NO_BROKER, 2, wait_s=5, min_bytes=1)) == (b"", 5)


def test_a_snapshot_is_told_up_to_its_last_byte_and_no_position_behind_it(leading: Any) -> None:
    leading.log.snapshot_and_trim(2)
    (snapshot,) = leading.log.snapshots
    size = len(leading.log.read_snapshot(snapshot))

    def chunk(position: int) -> Any:
        wanted = snapshots.PartitionSnapshot(
            partition=0,
            current_leader_epoch=3,
            snapshot_id=snapshots.SnapshotId(end_offset=snapshot.end, epoch=snapshot.epoch),
            position=position,
        )
        topic = snapshots.TopicSnapshot(name=CLUSTER_METADATA_TOPIC, partitions=(wanted,))
        body = snapshots.FetchSnapshotRequest(replica_id=VOTER, max_bytes=999, topics=(topic,))
        request: Any = SimpleNamespace(body=body)
        (part,) = run(MetadataFetchHandler(leading).fetch_snapshot(request)).topics[0].partitions
        return part

    last = chunk(size - 1)
    assert (last.error_code, last.size, len(last.unaligned_records)) == (ErrorCode.none, size, 1)
    assert [chunk(position).error_code for position in (size, -1)] == [ErrorCode.position_out_of_range] * 2
