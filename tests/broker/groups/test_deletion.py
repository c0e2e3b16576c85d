"""DeleteGroups: a deletion counts from when it is committed, and then for good, offsets and all."""

from __future__ import annotations

import asyncio

from kio.schema.errors import ErrorCode

from images.broker.groups.group import Group, JoinRequest
from images.broker.groups.rebalance import join
from images.broker.groups.records import GroupRecord, OffsetAndMetadata, OffsetRecord, decode, encode_group_gone
from images.broker.replication.partition import ReplicaFetch
from images.wire.batch import build, iterate, records
from tests.broker.groups.coordinators import (
    GROUPS,
    MEMBER,
    NOBODY,
    P0,
    P1,
    UNIX_MS,
    committed,
    committed_offsets,
    coordinators,
    in_virtual_time,
    told,
    turns,
)
from tests.broker.replication.replica_node import ACTIVE, PLENTY
from tests.broker.replication.test_replica import fetch


@in_virtual_time
async def test_a_deletion_takes_offsets_with_it_that_were_not_committed_before_it() -> None:
    cluster = coordinators()
    shard = await cluster.lead_and_load(1, 1)
    committing = asyncio.ensure_future(shard.commit("g", NOBODY, [(P0, OffsetAndMetadata(7))]))
    await turns()
    deleting = asyncio.ensure_future(shard.delete("g"))
    await turns()
    cluster.replicate(1)
    assert (await committing, await deleting) == (ErrorCode.none, ErrorCode.none)
    assert await told(cluster, 1, shard) == {}
    assert shard.groups == {}
    log = cluster.nodes[1].replica.log
    entries = [
        decode(one.key, one.value) for _, batch in iterate(log.read(0, 1 << 20, log.end)) for one in records(batch)
    ]
    assert entries[1:] == [OffsetRecord("g", *P0, None), GroupRecord("g", None)]
    shard.close()
    second = await cluster.lead_and_load(2, 2)
    assert second.groups == {}
    assert await told(cluster, 2, second) == {}


@in_virtual_time
async def test_a_tombstone_of_a_group_takes_all_of_its_offsets_with_it() -> None:
    """A coordinator that knew a commit of the group only as uncommitted may have written no tombstone for it."""
    cluster = coordinators()
    shard = await cluster.lead_and_load(1, 1)
    await committed(cluster, shard, P0, 7)
    cluster.nodes[1].replica.append(build([encode_group_gone("g")], timestamp_ms=UNIX_MS), -1)
    cluster.replicate(1)
    shard.close()
    second = await cluster.lead_and_load(2, 2)
    assert second.groups == {}
    assert await told(cluster, 2, second) == {}


@in_virtual_time
async def test_a_deletion_is_not_seen_before_it_is_committed() -> None:
    cluster = coordinators()
    shard = await cluster.lead_and_load(1, 1)
    await committed(cluster, shard, P0, 7)
    reading = asyncio.ensure_future(committed_offsets(shard, asyncio.get_running_loop().time() + 5))
    await turns()
    one, two = (cluster.nodes[number].replica for number in (1, 2))
    fetch(one, two)  # answered after the read began
    deleting = asyncio.ensure_future(shard.delete("g"))
    await turns()
    # The next fetch confirms the read, and the tombstones in the answer to it are lost.
    state = two.state
    position = ReplicaFetch(2, ACTIVE[2], state.leader_epoch, state.log_end, state.epochs.latest, state.log_start)
    one.fetch_for_replica(position, 1, ACTIVE, PLENTY, True)
    await turns()
    assert not deleting.done()
    error, before = await reading
    assert (error, before) == (ErrorCode.none, {P0: OffsetAndMetadata(7)})
    second = await cluster.lead_and_load(2, 2)
    assert await told(cluster, 2, second) == before
    assert await deleting is ErrorCode.not_coordinator


@in_virtual_time
async def test_a_commit_that_follows_a_deletion_in_the_log_stays() -> None:
    cluster = coordinators()
    shard = await cluster.lead_and_load(1, 1)
    await committed(cluster, shard, P0, 7)
    deleting = asyncio.ensure_future(shard.delete("g"))
    committing = asyncio.ensure_future(shard.commit("g", NOBODY, [(P1, OffsetAndMetadata(9))]))
    await turns()
    cluster.replicate(1)
    assert (await deleting, await committing) == (ErrorCode.none, ErrorCode.none)
    assert await told(cluster, 1, shard) == {P1: OffsetAndMetadata(9)}
    assert shard.groups == {"g": Group("g")}
    shard.close()
    second = await cluster.lead_and_load(2, 2)
    assert await told(cluster, 2, second) == {P1: OffsetAndMetadata(9)}


@in_virtual_time
async def test_a_group_is_not_said_to_be_gone_before_its_deletion_is_committed() -> None:
    cluster = coordinators()
    shard = await cluster.lead_and_load(1, 1)
    await committed(cluster, shard, P0, 7)
    assert await shard.delete("g") is ErrorCode.coordinator_not_available
    again = asyncio.ensure_future(shard.delete("g"))
    await turns()
    assert not again.done()
    cluster.replicate(1)
    assert await again is ErrorCode.group_id_not_found
    assert await told(cluster, 1, shard) == {}


@in_virtual_time
async def test_without_the_rule_commits_and_deletions_count_at_once_and_in_their_order() -> None:
    cluster = coordinators("offset_commit_after_high_watermark")
    shard = cluster.lead(1, 1)
    await turns()
    assert await shard.commit("g", NOBODY, [(P0, OffsetAndMetadata(7))]) is ErrorCode.none
    deleting = asyncio.ensure_future(shard.delete("g"))
    await turns()
    assert await shard.commit("g", NOBODY, [(P1, OffsetAndMetadata(9))]) is ErrorCode.none
    assert await told(cluster, 1, shard) == {P1: OffsetAndMetadata(9)}
    assert await deleting is ErrorCode.none


@in_virtual_time
async def test_only_a_group_without_members_is_deleted_and_its_offsets_with_it() -> None:
    cluster = coordinators()
    shard = cluster.lead(1, 1)
    fetching = asyncio.ensure_future(cluster.keep_replicating(1))
    await turns()
    assert await shard.delete("g") is ErrorCode.group_id_not_found
    assert await shard.commit("g", MEMBER, [(P0, OffsetAndMetadata(7))]) is ErrorCode.none
    ask = JoinRequest("", "m1", "consumer", (("range", b"s"),), 10_000, 10_000)
    await shard.join_answer("g", join(shard.groups["g"], ask, shard.now_ms(), GROUPS))
    assert await shard.delete("g") is ErrorCode.non_empty_group
    shard.groups["g"] = Group("g")
    assert await shard.delete("g") is ErrorCode.none
    fetching.cancel()
    shard.close()
    second = await cluster.lead_and_load(2, 2)
    assert second.groups == {}
    assert await told(cluster, 2, second) == {}
