"""Whose fetches of the metadata log count as fetches of a voter."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v16.request import FetchPartition, FetchRequest, FetchTopic, ReplicaState

from images.broker.metadata.internal_topics import CLUSTER_METADATA_TOPIC_ID
from images.broker.raft.fetch import MetadataFetchHandler
from images.broker.raft.values import NO_NODE, FetchValidation, MetadataFetch


@pytest.mark.parametrize(("broker_epoch", "counts_for"), [(-1, 102), (0, NO_NODE), (17, NO_NODE)])
def test_a_fetch_with_a_broker_epoch_is_no_voters_even_with_its_node_id(broker_epoch: int, counts_for: int) -> None:
    fetches: list[MetadataFetch] = []

    def on_fetch(fetch: MetadataFetch) -> FetchValidation:
        fetches.append(fetch)
        return FetchValidation(ErrorCode.not_leader_or_follower)

    state = SimpleNamespace(high_watermark=0, leader=101, epoch=3, progress={102: None})
    node: Any = SimpleNamespace(on_fetch=on_fetch, state=state, log=SimpleNamespace(start=0))
    partition = FetchPartition(partition=0, current_leader_epoch=3, fetch_offset=9, partition_max_bytes=1)
    body = FetchRequest(
        replica_state=ReplicaState(replica_id=102, replica_epoch=broker_epoch),
        max_wait=timedelta(0),
        min_bytes=0,
        topics=(FetchTopic(topic_id=CLUSTER_METADATA_TOPIC_ID, partitions=(partition,)),),
        forgotten_topics_data=(),
    )
    request: Any = SimpleNamespace(body=body)
    asyncio.run(MetadataFetchHandler(node).fetch(request))
    assert [(fetch.replica, fetch.epoch, fetch.offset) for fetch in fetches] == [(counts_for, 3, 9)]
