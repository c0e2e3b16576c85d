"""A coordinator returns only committed state, and a new one responds only once it knows everything
acknowledged before."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from kio.schema.errors import ErrorCode

from images.broker.groups.group import Caller, Group, GroupState, JoinAnswer, JoinRequest
from images.broker.groups.membership import check_commit, heartbeat, leave
from images.broker.groups.rebalance import join, sync
from images.broker.groups.records import OffsetAndMetadata
from images.broker.groups.shard import Shard
from images.wire.batch import iterate
from tests.broker.groups.coordinators import (
    GROUPS,
    MEMBER,
    NOBODY,
    P0,
    UNIX_MS,
    Coordinators,
    asks,
    committed,
    committed_offsets,
    coordinators,
    in_virtual_time,
    stable_with,
    told,
    turns,
)
from tests.broker.replication.test_replica import fetch


@in_virtual_time
async def test_a_commit_is_answered_only_when_its_record_is_below_the_high_watermark() -> None:
    cluster = coordinators()
    shard = await cluster.lead_and_load(1, 1)
    assert shard.loaded
    committing = asyncio.ensure_future(shard.commit("g", MEMBER, [(P0, OffsetAndMetadata(7, 3))]))
    await turns()
    assert not committing.done()
    assert cluster.nodes[1].replica.log.end == 1
    cluster.replicate(1)
    assert await committing is ErrorCode.none
    assert await told(cluster, 1, shard) == {P0: OffsetAndMetadata(7, 3)}


@in_virtual_time
async def test_without_the_rule_a_commit_is_answered_that_nobody_else_has() -> None:
    cluster = coordinators("offset_commit_after_high_watermark")
    shard = await cluster.lead_and_load(1, 1)
    assert await shard.commit("g", MEMBER, [(P0, OffsetAndMetadata(7))]) is ErrorCode.none
    assert cluster.nodes[2].replica.log.end == 0


@in_virtual_time
async def test_a_commit_whose_wait_ended_counts_from_when_it_is_committed_after_all() -> None:
    cluster = coordinators()
    shard = await cluster.lead_and_load(1, 1)
    assert await shard.commit("g", MEMBER, [(P0, OffsetAndMetadata(7))]) is ErrorCode.coordinator_not_available
    assert await told(cluster, 1, shard) == {P0: OffsetAndMetadata(7)}


@in_virtual_time
async def test_what_is_too_large_for_the_log_is_refused_as_a_commit_or_as_a_group() -> None:
    cluster = coordinators()
    shard = await cluster.lead_and_load(1, 1)
    cluster.nodes[1].replica.max_batch_bytes = 60
    assert await shard.commit("g", NOBODY, [(P0, OffsetAndMetadata(7))]) is ErrorCode.invalid_commit_offset_size
    answer = await shard.join_answer("g", join(Group("g"), asks("m1"), shard.now_ms(), GROUPS))
    assert answer.error is ErrorCode.unknown_server_error


@in_virtual_time
async def test_a_new_coordinator_finds_every_acknowledged_offset_and_the_newest_generation() -> None:
    cluster = coordinators()
    shard = cluster.lead(1, 1)
    fetching = asyncio.ensure_future(cluster.keep_replicating(1))
    await turns()
    ask = JoinRequest("", "m1", "consumer", (("range", b"s"),), 10_000, 10_000)
    await shard.join_answer("g", join(Group("g"), ask, shard.now_ms(), GROUPS))
    step = sync(shard.groups["g"], Caller("m1", 1), (None, None), {"m1": b"mine"}, shard.now_ms())
    assert (await shard.sync_answer("g", step)).assignment == b"mine"
    assert await shard.commit("g", MEMBER, [(P0, OffsetAndMetadata(7, 3, "note"))]) is ErrorCode.none
    fetching.cancel()
    shard.close()

    second = await cluster.lead_and_load(2, 2)
    assert second.loaded
    group = second.groups["g"]
    assert (group.state, group.generation, group.members[0].assignment) == (GroupState.STABLE, 1, b"mine")
    found = (await told(cluster, 2, second))[P0]
    assert (found.offset, found.leader_epoch, found.metadata) == (7, 3, "note")


@pytest.mark.parametrize("rule_on", [True, False])
@in_virtual_time
async def test_a_new_coordinator_serves_once_all_it_read_is_committed(rule_on: bool) -> None:
    cluster = coordinators() if rule_on else coordinators("coordinator_waits_for_high_watermark")
    first = await cluster.lead_and_load(1, 1)
    committing = asyncio.ensure_future(first.commit("g", MEMBER, [(P0, OffsetAndMetadata(7))]))
    await turns()
    fetch(
        cluster.nodes[1].replica, cluster.nodes[2].replica
    )  # it has the record, and not the news that it is committed
    assert cluster.nodes[2].replica.state.log_end == 1
    assert cluster.nodes[2].replica.state.high_watermark == 0
    second = cluster.lead(2, 2)
    await turns()
    assert second.loaded is not rule_on
    assert await committing is ErrorCode.not_coordinator
    cluster.replicate(2)
    await turns()
    assert second.loaded


@in_virtual_time
async def test_a_static_member_comes_back_once_that_is_committed() -> None:
    cluster = coordinators()
    shard = cluster.lead(1, 1)
    await stable_with(cluster, shard, Caller("m1", 1, "i"))
    step = join(shard.groups["g"], asks("m2", instance="i"), shard.now_ms(), GROUPS)
    joining = asyncio.ensure_future(shard.join_answer("g", step))
    await turns()
    assert not joining.done()
    cluster.replicate(1)
    answer = await joining
    assert (answer.error, answer.member_id, answer.generation) == (ErrorCode.none, "m2", 1)
    step = sync(shard.groups["g"], Caller("m2", 1, "i"), (None, None), {}, shard.now_ms())
    assert (await shard.sync_answer("g", step)).assignment == b"mine"
    cluster.replicate(1)
    shard.close()
    second = await cluster.lead_and_load(2, 2)
    assert [member.id for member in second.groups["g"].members] == ["m2"]


@in_virtual_time
async def test_a_coordinator_that_was_deposed_unawares_lets_no_static_member_come_back() -> None:
    cluster = coordinators()
    shard = cluster.lead(1, 1)
    await stable_with(cluster, shard, Caller("m1", 1, "i"))
    cluster.nodes[2].lead(2)  # and the first one does not hear of it
    step = join(shard.groups["g"], asks("m2", instance="i"), shard.now_ms(), GROUPS)
    answer = await shard.join_answer("g", step)
    assert (answer.error, answer.id_known) == (ErrorCode.coordinator_not_available, False)
    assert [member.id for member in shard.groups["g"].members] == ["m1"]


@pytest.mark.parametrize("rule_on", [True, False])
@in_virtual_time
async def test_a_generation_is_given_out_twice_after_a_change_of_coordinator_exactly_without_the_rule(
    rule_on: bool,
) -> None:
    cluster = coordinators() if rule_on else coordinators("generation_stored_before_join")

    async def joined(shard: Shard, member: str) -> int:
        fetching = asyncio.ensure_future(cluster.keep_replicating(1 if shard is first else 2))
        request = JoinRequest("", member, "consumer", (("range", b"s"),), 10_000, 10_000)
        group = shard.groups.get("g") or Group("g")
        answer = await shard.join_answer("g", join(group, request, shard.now_ms(), GROUPS))
        fetching.cancel()
        assert answer.error is ErrorCode.none
        return answer.generation

    first = await cluster.lead_and_load(1, 1)
    assert await joined(first, "m1") == 1  # and its SyncGroup never arrives
    first.close()
    second = await cluster.lead_and_load(2, 2)
    assert second.loaded
    for member in second.groups["g"].members if rule_on else ():
        second.apply("g", leave(second.groups["g"], member.id, None, second.now_ms())[0])
    assert await joined(second, "m2") == (3 if rule_on else 1)


@in_virtual_time
async def test_a_group_keeps_its_members_through_a_change_of_coordinator_in_a_rebalance() -> None:
    cluster = coordinators()
    shard = cluster.lead(1, 1)
    await stable_with(cluster, shard, Caller("m1", 1))
    await committed(cluster, shard, P0, 7)
    fetching = asyncio.ensure_future(cluster.keep_replicating(1))
    again = await shard.join_answer("g", join(shard.groups["g"], asks("", "m1"), shard.now_ms(), GROUPS))
    fetching.cancel()
    assert again.generation == 2
    cluster.replicate(1)
    shard.close()

    second = await cluster.lead_and_load(2, 2)
    group = second.groups["g"]
    assert (group.state, group.generation) == (GroupState.PREPARING, 2)
    assert await second.delete("g") is ErrorCode.non_empty_group
    assert check_commit(group, NOBODY, second.now_ms(), GROUPS)[1] is ErrorCode.unknown_member_id
    fetching = asyncio.ensure_future(cluster.keep_replicating(2))
    step = sync(group, Caller("m1", 2), (None, None), {"m1": b"old"}, second.now_ms())
    assert (await second.sync_answer("g", step)).error is ErrorCode.rebalance_in_progress
    answer = await second.join_answer("g", join(second.groups["g"], asks("", "m1"), second.now_ms(), GROUPS))
    fetching.cancel()
    assert (answer.error, answer.generation, answer.leader) == (ErrorCode.none, 3, "m1")


@in_virtual_time
async def test_a_group_loaded_in_a_rebalance_is_empty_when_nobody_joins_again() -> None:
    cluster = coordinators()
    shard = cluster.lead(1, 1)
    await stable_with(cluster, shard, Caller("m1", 1))
    fetching = asyncio.ensure_future(cluster.keep_replicating(1))
    await shard.join_answer("g", join(shard.groups["g"], asks("", "m1"), shard.now_ms(), GROUPS))
    fetching.cancel()
    cluster.replicate(1)
    shard.close()
    second = await cluster.lead_and_load(2, 2)
    assert second.on_tick() == second.now_ms() + 10_000
    await asyncio.sleep(10)
    second.on_tick()
    cluster.replicate(2)
    await turns()
    assert (second.groups["g"].state, second.groups["g"].members) == (GroupState.EMPTY, ())
    deleting = asyncio.ensure_future(second.delete("g"))
    await turns()
    cluster.replicate(2)
    assert await deleting is ErrorCode.none


@in_virtual_time
async def test_a_new_coordinator_serves_the_offsets_above_the_high_watermark_that_it_started_with() -> None:
    cluster = coordinators()
    first = await cluster.lead_and_load(1, 1)
    committing = asyncio.ensure_future(first.commit("g", MEMBER, [(P0, OffsetAndMetadata(7))]))
    await turns()
    fetch(cluster.nodes[1].replica, cluster.nodes[2].replica)
    second = cluster.lead(2, 2)
    assert cluster.nodes[2].replica.state.high_watermark == 0
    assert await committing is ErrorCode.not_coordinator
    cluster.replicate(2)
    await turns()
    assert await told(cluster, 2, second) == {P0: OffsetAndMetadata(7)}


@pytest.mark.parametrize("rule_on", [True, False])
@in_virtual_time
async def test_a_coordinator_that_was_deposed_unawares_tells_no_offsets(rule_on: bool) -> None:
    cluster = coordinators() if rule_on else coordinators("offset_fetch_confirmed_by_isr")
    first = await cluster.lead_and_load(1, 1)
    committing = asyncio.ensure_future(first.commit("g", MEMBER, [(P0, OffsetAndMetadata(7))]))
    await turns()
    cluster.replicate(1)
    assert await committing is ErrorCode.none
    cluster.nodes[2].lead(2)  # and the first one does not hear of it, nor from its follower again
    error, found = await committed_offsets(first, asyncio.get_running_loop().time() + 0.05)
    if rule_on:
        assert (error, found) == (ErrorCode.coordinator_load_in_progress, {})
    else:
        assert (error, found) == (ErrorCode.none, {P0: OffsetAndMetadata(7)})


@in_virtual_time
async def test_a_group_that_nobody_could_join_does_not_come_to_be() -> None:
    cluster = coordinators()
    shard = await cluster.lead_and_load(1, 1)
    ask = JoinRequest("", "m1", "consumer", (("range", b"s"),), 1, 1)
    answer = await shard.join_answer("g", join(Group("g"), ask, shard.now_ms(), GROUPS))
    assert answer.error is ErrorCode.invalid_session_timeout
    assert shard.groups == {}


@in_virtual_time
async def test_records_of_groups_and_offsets_carry_the_time_of_records_not_that_of_deadlines() -> None:
    cluster = coordinators()
    shard = cluster.lead(1, 1)
    fetching = asyncio.ensure_future(cluster.keep_replicating(1))
    await turns()
    ask = JoinRequest("", "m1", "consumer", (("range", b"s"),), 10_000, 10_000)
    await shard.join_answer("g", join(Group("g"), ask, shard.now_ms(), GROUPS))
    assert await shard.commit("g", MEMBER, [(P0, OffsetAndMetadata(7, commit_ms=shard.record_ms()))]) is ErrorCode.none
    fetching.cancel()
    log = cluster.nodes[1].replica.log
    headers = [header for header, _ in iterate(log.read(0, 1 << 20, log.end))]
    assert {header.max_timestamp for header in headers} == {UNIX_MS}


@in_virtual_time
async def test_whoever_waits_for_a_rebalance_is_sent_to_the_new_coordinator() -> None:
    cluster = coordinators()
    shard = await cluster.lead_and_load(1, 1)
    limits = replace(GROUPS, initial_rebalance_delay_ms=10_000)
    ask = JoinRequest("", "m1", "consumer", (("range", b"s"),), 10_000, 10_000)
    step = join(Group("g"), ask, shard.now_ms(), limits)
    joining = asyncio.ensure_future(shard.join_answer("g", step))
    await turns()
    shard.close()
    assert await joining == JoinAnswer("m1", ErrorCode.not_coordinator)


async def next_coordinator_tells_who_joins_again(cluster: Coordinators, first: Shard) -> ErrorCode:
    """A client with the instance `i` joins as A2 while a record is under way; once that is committed, the next
    coordinator answers the first heartbeat in the generation that it was told."""
    again = join(first.groups["g"], asks("A2", instance="i"), first.now_ms(), GROUPS)
    heard = asyncio.ensure_future(first.join_answer("g", again))
    await turns()
    for _ in range(4):
        cluster.replicate(1)
        await turns()
    generation = (await heard).generation
    first.close()
    second = await cluster.lead_and_load(2, 2)
    return heartbeat(second.groups["g"], Caller("A2", generation, "i"), second.now_ms())[1]


@in_virtual_time
async def test_a_static_member_is_told_no_generation_whose_record_has_the_one_before_it() -> None:
    """A client asks anew, as it has no member id yet, while the record of the generation that it joins is committed."""
    cluster = coordinators()
    first = await cluster.lead_and_load(1, 1)
    joining = join(Group("g"), asks("A1", instance="i"), first.now_ms(), GROUPS)
    unheard = asyncio.ensure_future(first.join_answer("g", joining))
    await turns()
    told_next = await next_coordinator_tells_who_joins_again(cluster, first)
    assert (await unheard).error is ErrorCode.fenced_instance_id
    assert told_next is not ErrorCode.fenced_instance_id


@in_virtual_time
async def test_a_static_member_that_joins_anew_is_told_no_generation_whose_record_has_its_removed_one() -> None:
    """An administrator removes it while the record of the generation is committed, and its client joins at once."""
    cluster = coordinators()
    first = await cluster.lead_and_load(1, 1)
    joining = join(Group("g"), asks("A1", instance="i"), first.now_ms(), GROUPS)
    removed = asyncio.ensure_future(first.join_answer("g", joining))
    await turns()
    first.apply("g", leave(first.groups["g"], "", "i", first.now_ms())[0])
    assert (await removed).error is ErrorCode.unknown_member_id
    assert await next_coordinator_tells_who_joins_again(cluster, first) is not ErrorCode.fenced_instance_id
