"""A replica is its decision machine and its log, in step after everything that can happen to either.

Replicas here are whole, on disks in memory, and fetch from each other directly; only the network between them is left
out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from images.broker.replication.partition import Limits, PartitionRegistration, ReplicaFetch, ReplicaRole
from images.broker.replication.replica import Replica
from images.broker.replication.replica_results import FetchResult, LatestOffset
from images.broker.runtime.condition import resolve
from images.wire.batch import build, parse
from images.wire.field_values import NO_LEADER
from tests.broker.replication.replica_node import ACTIVE, LIMITS, PLENTY, Node, produced

ALL, LEADER_ONLY = -1, 1


def fetch(
    leader: Replica,
    follower: Replica,
    *,
    max_bytes: int = PLENTY,
    at_least_one: bool = True,
    connection: int = 1,
) -> FetchResult:
    """One round of replication from `leader` to `follower`."""
    state = follower.state
    asked = ReplicaFetch(
        state.node,
        ACTIVE[state.node],
        state.leader_epoch,
        state.log_end,
        state.epochs.latest,
        log_start=state.log_start,
    )
    answer = leader.fetch_for_replica(asked, connection, ACTIVE, max_bytes, at_least_one)
    if answer.error is ErrorCode.none:
        leader.on_fetch_answered(state.node, connection)
        if answer.diverging is not None:
            follower.on_divergence(asked.offset, asked.leader_epoch, *answer.diverging)
        else:
            follower.replicate(
                asked.offset, asked.leader_epoch, answer.records, answer.high_watermark, answer.log_start
            )
    return answer


def catch_up(leader: Replica, follower: Replica) -> None:
    """Fetch until there is nothing more to have."""
    for _ in range(20):
        before = follower.state
        fetch(leader, follower)
        if follower.state == before:
            return
    raise AssertionError("the follower does not come to rest")


def in_step(replica: Replica) -> bool:
    """Whether machine and log say the same."""
    state, log = replica.state, replica.log
    return state.epochs is log.epochs and (state.log_start, state.log_end) == (log.start, log.end)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(120):
            await scenario()

    asyncio.run(limited())


async def soon() -> float:
    """Let everything that can run do so; a time of the loop that is far enough to wait for."""
    for _ in range(5):
        await asyncio.sleep(0)
    return asyncio.get_running_loop().time() + 5.0


async def latest_offset(leader: Replica, until: float) -> LatestOffset:
    """A read of the latest offset alone."""
    with leader.latest_read() as read:
        return await leader.latest_offset(read, until)


def pair(limits: Limits = LIMITS) -> tuple[Node, Node]:
    """Replica 1 leading in epoch 1, with replica 2."""
    first, second = Node(1, limits), Node(2, limits)
    first.lead(1)
    second.follow(1, 1)
    return first, second


# --- acknowledging ----------------------------------------------------------------------------------------------------


def test_an_append_is_acknowledged_once_every_in_sync_replica_fetched_beyond_it() -> None:
    async def scenario() -> None:
        first, second = pair()
        appended = first.replica.append(produced(b"a"), ALL)
        waiting = asyncio.ensure_future(first.replica.wait_until_committed(appended, await soon()))
        fetch(first.replica, second.replica)
        await soon()
        assert not waiting.done()
        fetch(first.replica, second.replica)
        assert await waiting is ErrorCode.none

    run(scenario)


def test_a_repeated_batch_is_not_appended_again_and_is_acknowledged_no_sooner_than_the_first() -> None:
    async def scenario() -> None:
        first, second = pair()
        batch = produced(b"a", b"b", producer=7, sequence=0)
        original = first.replica.append(batch, ALL)
        repeated = first.replica.append(batch, ALL)
        assert repeated.retry is not None
        assert (repeated.retry.producer_id, repeated.retry.base_sequence) == (7, 0)
        assert repeated._replace(retry=None) == original
        assert first.values == [b"a", b"b"]
        waiting = [
            asyncio.ensure_future(first.replica.wait_until_committed(each, await soon()))
            for each in (original, repeated)
        ]
        fetch(first.replica, second.replica)
        await soon()
        assert not any(each.done() for each in waiting)
        fetch(first.replica, second.replica)
        assert await asyncio.gather(*waiting) == [ErrorCode.none, ErrorCode.none]

    run(scenario)


@pytest.mark.parametrize("epochs", [(2,), (2, 3)], ids=["deposed", "deposed and elected again"])
def test_an_append_that_waits_while_leadership_changes_is_not_acknowledged(epochs: tuple[int, ...]) -> None:
    async def scenario() -> None:
        first, _ = pair()
        appended = first.replica.append(produced(b"a"), ALL)
        waiting = asyncio.ensure_future(first.replica.wait_until_committed(appended, await soon()))
        await soon()
        for epoch in epochs:
            if epoch == 2:
                first.follow(2, epoch)
            else:
                first.lead(epoch)
        assert await waiting is ErrorCode.not_leader_or_follower

    run(scenario)


def test_an_append_of_an_earlier_leadership_is_not_acknowledged_for_other_records_at_its_offsets() -> None:
    """A Produce waits for its partitions in turn: by then this one may have been lost, replaced and committed anew."""

    async def scenario() -> None:
        first, second = pair()
        lost = first.replica.append(produced(b"lost"), ALL)
        second.lead(2)
        second.replica.append(produced(b"kept"), ALL)
        first.follow(2, 2)
        catch_up(second.replica, first.replica)
        first.lead(3)
        second.follow(1, 3)
        catch_up(first.replica, second.replica)
        assert first.replica.state.high_watermark == 1
        assert first.values == [b"kept"]
        assert await first.replica.wait_until_committed(lost, await soon()) is ErrorCode.not_leader_or_follower

    run(scenario)


def test_an_append_that_is_not_committed_in_time_is_not_acknowledged() -> None:
    async def scenario() -> None:
        first, _ = pair()
        appended = first.replica.append(produced(b"a"), ALL)
        now = asyncio.get_running_loop().time()
        for until in (now + 0.01, now, now - 1e6):
            assert await first.replica.wait_until_committed(appended, until) is ErrorCode.request_timed_out

    run(scenario)


def test_no_waiter_is_left_once_all_requests_are_answered_or_cancelled() -> None:
    async def scenario() -> None:
        first, _ = pair()
        appended = first.replica.append(produced(b"a"), ALL)
        patient = asyncio.ensure_future(first.replica.wait_until_committed(appended, await soon()))
        asking = asyncio.ensure_future(latest_offset(first.replica, await soon()))
        await soon()
        assert first.replica.changed.waiters
        patient.cancel()
        asking.cancel()
        await asyncio.wait((patient, asking))
        assert not first.replica.changed.waiters
        loop: Any = asyncio.get_running_loop()
        assert not [handle for handle in loop._scheduled if handle._callback is resolve]

    run(scenario)


# --- refusing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("records", "error"),
    [
        (produced(b"a")[:60], ErrorCode.corrupt_message),
        (produced(b"a")[:-1], ErrorCode.corrupt_message),
        (produced(b"a")[:16] + b"\x01" + produced(b"a")[17:], ErrorCode.corrupt_message),
        (produced(b"a")[:-1] + b"\xff", ErrorCode.corrupt_message),
        (produced(b"a", producer=7), ErrorCode.invalid_record),
        (produced(b"x" * PLENTY), ErrorCode.message_too_large),
    ],
    ids=[
        "less than a header",
        "cut short",
        "an old format",
        "damaged",
        "a producer without sequence",
        "too large",
    ],
)
def test_records_that_are_not_one_intact_batch_are_refused_and_not_stored(records: bytes, error: ErrorCode) -> None:
    first, _ = pair()
    assert first.replica.append(records, ALL).error is error
    assert first.replica.log.end == 0
    assert in_step(first.replica)


def test_a_timestamp_too_far_ahead_of_the_nodes_clock_is_refused() -> None:
    first, _ = pair()
    first.replica.timestamp_after_ms_max = 1000
    first.now_s = 5.0
    assert first.replica.append(build([b"a"], timestamp_ms=6001), ALL).error is ErrorCode.invalid_timestamp
    assert first.replica.log.end == 0
    assert first.replica.append(build([b"a"], timestamp_ms=6000), ALL).error is ErrorCode.none
    assert first.replica.append(build([b"a"], timestamp_ms=-1), ALL).error is ErrorCode.none


def test_a_full_disk_is_an_error_of_the_node_and_loses_nothing() -> None:
    first, second = pair()
    first.replica.append(produced(b"a", producer=7, sequence=0), ALL)
    catch_up(first.replica, second.replica)
    first.disk.capacity_bytes = first.disk.used_bytes() + 30
    with pytest.raises(OSError, match="No space left"):
        first.replica.append(produced(b"b", producer=7, sequence=1), ALL)
    assert first.values == [b"a"]
    assert in_step(first.replica)
    assert first.replica.state.high_watermark == 1


def test_a_fetch_accepted_before_a_cut_asks_for_nothing_that_is_there_no_more() -> None:
    """Possible only for who opts out of fencing: everybody else's fetch has outlived its leader epoch."""
    first, second = pair()
    first.replica.append(produced(b"a"), LEADER_ONLY)
    second.lead(2)
    first.follow(2, 2)
    catch_up(second.replica, first.replica)
    first.lead(3)
    assert first.replica.log.end == 0
    assert first.replica.read_for_replica(2, -1, 1, PLENTY, True).error is ErrorCode.offset_out_of_range


# --- the latest offset ------------------------------------------------------------------------------------------------


def test_a_deposed_leader_refuses_to_tell_the_latest_offset() -> None:
    async def scenario() -> None:
        first, second = pair()
        catch_up(first.replica, second.replica)
        waiting = asyncio.ensure_future(latest_offset(first.replica, await soon()))
        await soon()
        assert not waiting.done()
        first.follow(2, 2)
        assert await waiting == LatestOffset(ErrorCode.not_leader_or_follower)
        assert await latest_offset(first.replica, await soon()) == LatestOffset(ErrorCode.not_leader_or_follower)
        assert not [event for event in first.trace if event.kind == "latest_told"]

    run(scenario)


def test_a_leader_without_fetches_does_not_return_the_latest_offset() -> None:
    async def scenario() -> None:
        first, second = pair()
        catch_up(first.replica, second.replica)
        until = asyncio.get_running_loop().time() + 0.01
        assert await latest_offset(first.replica, until) == LatestOffset(ErrorCode.offset_not_available)

    run(scenario)


def test_the_latest_offset_is_returned_as_soon_as_the_last_silent_member_has_left_the_isr() -> None:
    async def scenario() -> None:
        first, second = pair(replace(LIMITS, min_insync_replicas=1))
        first.replica.append(produced(b"a"), ALL)
        catch_up(first.replica, second.replica)
        waiting = asyncio.ensure_future(latest_offset(first.replica, await soon()))
        await soon()
        assert not waiting.done()
        first.lead(1, isr=(1,), partition_epoch=11)
        await soon()
        assert waiting.done(), "the controller has fenced the member that was waited for"
        assert waiting.result() == LatestOffset(ErrorCode.none, 1, 1, (1,))

    run(scenario)


def test_a_fetch_is_answered_at_once_only_while_a_read_of_the_latest_offset_waits_for_it() -> None:
    async def scenario() -> None:
        first, second = pair()
        catch_up(first.replica, second.replica)
        assert not fetch(first.replica, second.replica).urgent
        with first.replica.latest_read(), first.replica.latest_read():
            assert fetch(first.replica, second.replica).urgent
        for end in ("answered", "cancelled"):
            until = await soon() if end == "cancelled" else 0
            waiting = asyncio.ensure_future(latest_offset(first.replica, until))
            await soon()
            waiting.cancel()
            await asyncio.wait((waiting,))
        assert not fetch(first.replica, second.replica).urgent, "nobody waits any more"

    run(scenario)


def test_a_read_of_the_latest_offset_is_not_confirmed_by_a_fetch_of_before_nor_in_another_leader_epoch() -> None:
    async def scenario() -> None:
        first, second = pair()
        catch_up(first.replica, second.replica)
        with first.replica.latest_read() as early:
            fetch(first.replica, second.replica)
            with first.replica.latest_read() as late:
                fetch(first.replica, second.replica)
                now = asyncio.get_running_loop().time()
                assert (await first.replica.latest_offset(early, now)).error is ErrorCode.none
                assert (await first.replica.latest_offset(late, now)).error is ErrorCode.offset_not_available
                first.lead(2)
                second.follow(1, 2)
                catch_up(first.replica, second.replica)
                for read in (early, late):
                    deposed = await first.replica.latest_offset(read, await soon())
                    assert deposed == LatestOffset(ErrorCode.not_leader_or_follower)

    run(scenario)


# --- cutting ----------------------------------------------------------------------------------------------------------


def test_truncated_batches_are_new_to_the_producer_table_and_kept_ones_are_duplicates() -> None:
    first, second = pair()
    kept, cut = produced(b"a", producer=7, sequence=0), produced(b"b", producer=7, sequence=1)
    first.replica.append(kept, LEADER_ONLY)
    fetch(first.replica, second.replica)
    first.replica.append(cut, LEADER_ONLY)
    second.lead(2)
    first.follow(2, 2)
    catch_up(second.replica, first.replica)
    assert first.values == [b"a"]
    leader = first.lead(3)
    assert leader.append(kept, LEADER_ONLY).end == 1
    assert leader.append(cut, LEADER_ONLY).end == 2
    assert first.values == [b"a", b"b"]


def test_the_trace_of_a_truncation_tells_the_answer_behind_it_and_the_log_after_it() -> None:
    first, second = pair()
    kept, lost = produced(b"a", producer=7, sequence=0), produced(b"b", producer=7, sequence=1)
    first.replica.append(kept, LEADER_ONLY)
    catch_up(first.replica, second.replica)
    first.replica.append(lost, LEADER_ONLY)
    second.lead(2)
    first.follow(2, 2)
    catch_up(second.replica, first.replica)
    (cut,) = (event for event in first.trace if event.kind == "truncated")
    expiration = {"producer_expiration_ms": first.replica.log.config.producer_expiration_ms}
    times = {"producer_times": {"7": parse(kept).max_timestamp}}
    known = {"epochs": [[1, 0]], "producers": {"7": 0}, "batches": {"7": [[0, 1]]}, **times}
    assert cut.detail == {**known, "answer": [1, 1], **expiration}
    (diverging,) = (event for event in second.trace if event.kind == "diverging")
    assert diverging.detail == {"replica": 1, "epoch": 1, "fetched": [1, 2]}
    (led,) = (event for event in second.trace if event.kind == "became_leader")
    led_with = {"epochs": [[1, 0], [2, 1]], "high_watermark": 1, "min_isr": 2}
    assert led.detail == {**known, **led_with, **expiration, "last_segment": [0, parse(kept).max_timestamp]}
    (accepted,) = (event for event in second.trace if event.kind == "fetch_accepted")
    assert (accepted.offset, accepted.detail) == (
        1,
        {"replica": 1, "requested": 2, "last_epoch": 1, "broker_epoch": 11},
    )


def test_a_cut_inside_a_batch_takes_all_of_it_and_the_machine_knows() -> None:
    """As when a leader that lost the end of its log goes on in the same epoch: only a broken rule leads there."""
    first, second = pair()
    first.replica.append(produced(b"a", b"b", b"c"), LEADER_ONLY)
    catch_up(first.replica, second.replica)
    follower = second.replica
    follower.truncate_to_leader_end(1, 2)
    assert in_step(follower)
    assert follower.state.log_end == 0
    assert follower.state.high_watermark == 0
    (cut,) = (event for event in second.trace if event.kind == "truncated")
    assert cut.offset == 0
    catch_up(first.replica, follower)
    assert second.values == [b"a", b"b", b"c"]


def test_a_follower_refuses_a_batch_that_does_not_begin_at_its_end_and_reports_it() -> None:
    first, second = pair()
    for value in (b"a", b"b"):
        first.replica.append(produced(value), LEADER_ONLY)
    later = first.replica.log.read(1, PLENTY, 2)
    assert "does not follow 0" in str(second.replica.replicate(0, 1, later, 0))
    assert "corrupt" in str(second.replica.replicate(0, 1, b"\xff" * 100, 0))
    assert in_step(second.replica)
    assert second.replica.log.end == 0


# --- in step ----------------------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("elect"), st.integers(0, 2)),
        st.tuples(st.just("nobody"), st.just(0)),
        st.tuples(st.just("append"), st.integers(1, 3)),
        st.tuples(st.just("fetch"), st.integers(0, 2)),
        st.tuples(st.just("fetch one batch"), st.integers(0, 2)),
        st.tuples(st.just("cut"), st.integers(0, 5)),
    ),
    min_size=5,
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_machine_and_log_agree_after_every_step(steps: list[tuple[str, int]]) -> None:
    """Any leader is elected at any time, so logs diverge in every way they can."""
    nodes = [Node(number) for number in (1, 2, 3)]
    epoch, leader, count = 0, nodes[0], 0
    for what, number in [("elect", 0), *steps]:
        if what in ("elect", "nobody"):
            epoch += 1
            leader = nodes[number]
            for node in nodes:
                elected = NO_LEADER if what == "nobody" else leader.replica.state.node
                node.replica.apply_registration(PartitionRegistration((1, 2, 3), (1, 2, 3), elected, epoch, epoch))
        elif what == "append" and leader.replica.state.role is ReplicaRole.LEADER:
            values = [b"%d" % (count + position) for position in range(number)]
            leader.replica.append(produced(*values, producer=7 + number, sequence=count), LEADER_ONLY)
            count += number
        elif what.startswith("fetch") and nodes[number] is not leader and leader.replica.state.leadership is not None:
            fetch(leader.replica, nodes[number].replica, max_bytes=1 if "one" in what else PLENTY)
        elif what == "cut":
            for node in nodes:
                if node.replica.state.role is ReplicaRole.FOLLOWER:
                    node.replica.truncate_to_leader_end(epoch, number)
        assert all(in_step(node.replica) for node in nodes)
        assert all(node.replica.state.high_watermark <= node.replica.log.end for node in nodes)
    if leader.replica.state.leadership is not None:
        for node in nodes:
            if node is not leader:
                catch_up(leader.replica, node.replica)
                assert node.values == leader.values
                assert node.replica.log.producers == leader.replica.log.producers
