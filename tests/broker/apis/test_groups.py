"""Requests of groups with strings that a record of `__consumer_offsets` cannot hold: each is refused, and the broker
lives. Flexible versions carry strings of any length; a record gives a string's length in two bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from kio.schema.delete_groups.v2.request import DeleteGroupsRequest
from kio.schema.errors import ErrorCode
from kio.schema.join_group.v9.request import JoinGroupRequest, JoinGroupRequestProtocol
from kio.schema.offset_commit.v9.request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kio.schema.offset_fetch.v8.request import OffsetFetchRequest, OffsetFetchRequestGroup
from kio.schema.sync_group.v5.request import SyncGroupRequest, SyncGroupRequestAssignment

from images.broker.config import NODE_KEYS, ConfigError
from images.wire.connection import Connection
from tests.broker.small_cluster import Cluster

LONGEST = "é" * 16_383 + "x"
"""32,767 bytes."""
TOO_LONG = "é" * 16_384
"""One byte more, and half as many characters."""


def played(directory: Path, scenario: Callable[[Cluster], Coroutine[Any, Any, None]]) -> None:
    """Play a scenario with a broker that coordinates every group, and still runs at its end."""

    async def play() -> None:
        cluster = Cluster(directory)
        cluster.segment_bytes = 1 << 20
        async with asyncio.timeout(60), cluster.controlled(), cluster.broker() as (life, _):
            await cluster.create_topic()
            await cluster.coordinate("g")
            playing = asyncio.ensure_future(scenario(cluster))
            await asyncio.wait((playing, life), return_when=asyncio.FIRST_COMPLETED)
            assert not life.done(), life
            await playing

    asyncio.run(play())


def commit_of(group: str, metadata: str = "") -> OffsetCommitRequest:
    part = OffsetCommitRequestPartition(partition_index=0, committed_offset=7, committed_metadata=metadata)
    topic = OffsetCommitRequestTopic(name="t", partitions=(part,))
    return OffsetCommitRequest(
        group_id=group, generation_id_or_member_epoch=-1, member_id="", group_instance_id=None, topics=(topic,)
    )


def join_of(
    group: str = "g", *, kind: str = "consumer", name: str = "range", member: str = "", instance: str | None = None
) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout=timedelta(seconds=10),
        rebalance_timeout=timedelta(seconds=10),
        member_id=member,
        group_instance_id=instance,
        protocol_type=kind,
        protocols=(JoinGroupRequestProtocol(name=name, metadata=b"x"),),
        reason=None,
    )


def test_a_group_id_that_no_record_can_hold_is_invalid(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        committed = (await cluster.call(commit_of(TOO_LONG))).topics[0].partitions[0]
        assert committed.error_code is ErrorCode.invalid_group_id
        assert (await cluster.call(join_of(TOO_LONG))).error_code is ErrorCode.invalid_group_id
        deleted = (await cluster.call(DeleteGroupsRequest(groups_names=(TOO_LONG,)))).results[0]
        assert deleted.error_code is ErrorCode.invalid_group_id
        fetch = OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id=TOO_LONG, topics=None),))
        assert (await cluster.call(fetch)).groups[0].error_code is ErrorCode.invalid_group_id
        committed = (await cluster.call(commit_of(LONGEST))).topics[0].partitions[0]
        assert committed.error_code is ErrorCode.none

    played(tmp_path, scenario)


@pytest.mark.parametrize("long", [{"kind": TOO_LONG}, {"name": TOO_LONG}, {"instance": TOO_LONG}], ids=str)
def test_a_member_that_no_record_can_hold_is_refused(tmp_path: Path, long: dict[str, str]) -> None:
    async def scenario(cluster: Cluster) -> None:
        assert (await cluster.call(join_of(**long))).error_code is ErrorCode.invalid_request
        assert (await cluster.call(join_of(instance="i"))).error_code is ErrorCode.none

    played(tmp_path, scenario)


@pytest.mark.parametrize("static", [False, True])
def test_the_longest_strings_get_through_a_rebalance(tmp_path: Path, static: bool) -> None:
    """The member id begins with the client id, or the instance id, and is cut to fit a record."""

    async def scenario(cluster: Cluster) -> None:
        connection = await Connection.open("127.0.0.1", cluster.ports[1], LONGEST, 5.0)
        asked = {"group": LONGEST, "kind": LONGEST, "name": LONGEST, "instance": LONGEST if static else None}
        joined = await connection.call(join_of(**asked), 5.0)  # type: ignore[arg-type]
        if not static:
            assert joined.error_code is ErrorCode.member_id_required
            joined = await connection.call(join_of(**asked, member=joined.member_id), 5.0)  # type: ignore[arg-type]
        assert joined.error_code is ErrorCode.none
        assert len(joined.member_id.encode()) <= 32_767
        assert joined.member_id.startswith("é" * 16_000)
        sync = SyncGroupRequest(
            group_id=LONGEST,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            group_instance_id=asked["instance"],
            protocol_type=LONGEST,
            protocol_name=LONGEST,
            assignments=(SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"mine"),),
        )
        synced = await connection.call(sync, 5.0)
        assert (synced.error_code, synced.assignment) == (ErrorCode.none, b"mine")
        connection.close()

    played(tmp_path, scenario)


def test_metadata_of_offsets_can_be_allowed_no_longer_than_a_record_holds() -> None:
    name = "offset.metadata.max.bytes"
    assert NODE_KEYS[name].parse(name, "32767") == 32_767
    with pytest.raises(ConfigError, match="32768 is more than 32767"):
        NODE_KEYS[name].parse(name, "32768")
