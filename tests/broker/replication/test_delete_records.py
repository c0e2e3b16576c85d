"""Where the logs of one partition's replicas start: who moves it, how far, who follows, and who begins anew.

Replicas here are whole, on disks in memory, and fetch from each other as `fetcher.py` has them do.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.delete_records.v2 import request as deleting
from kio.schema.errors import ErrorCode

from images.broker.apis.delete_records import DeleteRecordsApis
from images.broker.log.leader_epochs import EpochCache
from images.broker.log.producer_state import Accept, Duplicate, check_sequence
from images.broker.log.retention import Retention
from images.broker.metadata.internal_topics import CONSUMER_OFFSETS_TOPIC
from images.broker.replication.partition import Limits, PartitionRegistration, ReplicaRole
from images.broker.replication.replica import Replica
from images.broker.replication.replica_manager import retention_of
from images.broker.rules import Rules
from images.broker.runtime.server import Request
from images.wire import batch as batches
from images.wire.messages import Api
from tests.broker.apis.data_path import CONFIG, Broker
from tests.broker.log.disk_model import DiskModel
from tests.broker.replication.replica_node import ACTIVE, LIMITS, PLENTY, Node, produced
from tests.broker.replication.test_replica import catch_up, fetch, in_step, run, soon

LEADER_ONLY = 1
TO_HIGH_WATERMARK = -1


def without(*rules: str) -> Limits:
    return replace(LIMITS, rules=Rules().without(rules))


def cluster(records: int = 6, *, committed: int | None = None, limits: Limits = LIMITS) -> list[Node]:
    """Replica 1 leading in epoch 1 with `records` of them, the first `committed` also on replicas 2 and 3."""
    nodes = [Node(number, limits) for number in (1, 2, 3)]
    leader = nodes[0].lead(1, isr=(1, 2, 3))
    committed = records if committed is None else committed
    for offset in range(records):
        if offset == committed:
            follow_all(nodes)
        leader.append(produced(b"%d" % offset, producer=7, sequence=offset), LEADER_ONLY)
    if committed == records:
        follow_all(nodes)
    assert leader.state.high_watermark == committed
    return nodes


def follow_all(nodes: list[Node]) -> None:
    for node in nodes[1:]:
        node.follow(1, 1, isr=(1, 2, 3))
    for _ in range(8):  # a fetch reads one segment at most
        for node in nodes[1:]:
            fetch_as_fetcher(nodes[0].replica, node.replica)


def fetch_as_fetcher(leader: Replica, follower: Replica, max_bytes: int = PLENTY) -> ErrorCode:
    """One round of replication, with what comes of an offset that the leader does not have."""
    before = follower.state
    answer = fetch(leader, follower, max_bytes=max_bytes)
    if answer.error is ErrorCode.offset_out_of_range:
        if leader.log.end < before.log_end:
            follower.truncate_to_leader_end(before.leader_epoch, leader.log.end)
        else:
            start, epochs = leader.log.start, leader.log.epochs
            follower.truncate_fully_and_start_at(before.log_end, before.leader_epoch, start, epochs.epoch_at(start - 1))
    return answer.error


def values(replica: Replica) -> dict[int, bytes | None]:
    """The records that a reader gets, by offset."""
    found, offset, log = {}, replica.log.start, replica.log
    while offset < log.end:
        for header, batch in batches.iterate(log.read(offset, PLENTY, log.end)):
            found |= {one.offset: one.value for one in batches.records(batch) if one.offset >= log.start}
            offset = header.next_offset
    return found


def moves(node: Node) -> list[tuple[int, str]]:
    return [(event.offset, str(event.detail["reason"])) for event in node.trace if event.kind == "log_start"]


# ---- deletion asked for ----------------------------------------------------------------------------------------------


def test_records_are_deleted_below_the_requested_offset() -> None:
    leader = cluster()[0].replica
    assert leader.delete_records(4) == (ErrorCode.none, 4)
    assert (leader.log.start, list(values(leader))) == (4, [4, 5])
    assert leader.delete_records(2) == (ErrorCode.none, 2), "which is done already"
    assert leader.log.start == 4
    assert in_step(leader)


@pytest.mark.parametrize(
    ("rules_off", "error", "start"),
    [((), ErrorCode.offset_out_of_range, 0), (("log_start_never_above_high_watermark",), ErrorCode.none, 5)],
)
def test_nothing_above_the_high_watermark_is_deleted(rules_off: tuple[str, ...], error: ErrorCode, start: int) -> None:
    leader = cluster(6, committed=3, limits=without(*rules_off))[0].replica
    assert leader.delete_records(5)[0] is error
    assert leader.log.start == start


@pytest.mark.parametrize(("rules_off", "start"), [((), 3), (("log_start_never_above_high_watermark",), 6)])
def test_minus_one_deletes_up_to_the_high_watermark(rules_off: tuple[str, ...], start: int) -> None:
    leader = cluster(6, committed=3, limits=without(*rules_off))[0].replica
    assert leader.delete_records(TO_HIGH_WATERMARK) == (ErrorCode.none, start)
    assert leader.log.start == start


@pytest.mark.parametrize("offset", [-2, 7, 1 << 62])
def test_an_offset_that_is_none_is_out_of_range(offset: int) -> None:
    assert cluster()[0].replica.delete_records(offset)[0] is ErrorCode.offset_out_of_range


def test_only_the_leader_deletes() -> None:
    nodes = cluster()
    assert nodes[1].replica.delete_records(1)[0] is ErrorCode.not_leader_or_follower
    assert nodes[1].replica.log.start == 0


def test_a_deletion_is_done_once_every_replica_in_sync_or_alive_starts_there() -> None:
    async def scenario() -> None:
        nodes = cluster()
        leader = nodes[0].replica
        error, wanted = leader.delete_records(4)
        done = asyncio.ensure_future(leader.wait_until_deleted(wanted, lambda: ACTIVE, await soon()))
        for follower in (1, 2):
            fetch_as_fetcher(leader, nodes[follower].replica)  # is told
            await soon()
            assert not done.done()
            fetch_as_fetcher(leader, nodes[follower].replica)  # tells
        assert await done == (ErrorCode.none, 4)
        assert error is ErrorCode.none
        assert moves(nodes[1]) == [(4, "leader")]

    run(scenario)


def test_a_replica_that_is_neither_alive_nor_in_sync_keeps_no_deletion_waiting() -> None:
    async def scenario() -> None:
        nodes = cluster()
        leader = nodes[0].lead(2, isr=(1, 2))
        leader.delete_records(4)
        nodes[1].follow(1, 2)
        for _ in range(2):
            fetch_as_fetcher(leader, nodes[1].replica)
        until = await soon()
        assert await leader.wait_until_deleted(4, lambda: {1: 11, 2: 12}, until) == (ErrorCode.none, 4)

    run(scenario)


def test_a_deletion_that_followers_do_not_reach_in_time_returns_the_low_watermark() -> None:
    async def scenario() -> None:
        nodes = cluster()
        leader = nodes[0].replica
        _, wanted = leader.delete_records(4)
        assert await leader.wait_until_deleted(wanted, lambda: ACTIVE, 0.0) == (ErrorCode.request_timed_out, 0)
        assert leader.log.start == 4

    run(scenario)


def test_a_waiting_deletion_fails_when_leadership_ends() -> None:
    async def scenario() -> None:
        nodes = cluster()
        leader = nodes[0].replica
        waiting = asyncio.ensure_future(leader.wait_until_deleted(4, lambda: ACTIVE, await soon()))
        await soon()
        nodes[0].follow(2, 2)
        assert await waiting == (ErrorCode.not_leader_or_follower, -1)

    run(scenario)


def test_a_retry_of_a_deleted_batch_is_still_known_to_leader_and_followers() -> None:
    nodes = cluster()
    nodes[0].replica.delete_records(TO_HIGH_WATERMARK)
    follow_all(nodes)
    retry = batches.parse(produced(b"3", producer=7, sequence=3))
    assert [node.replica.log.start for node in nodes] == [6, 6, 6]
    assert [check_sequence(node.replica.log.producers, retry, Rules()) for node in nodes] == [Duplicate(3, 3)] * 3


# ---- followers -------------------------------------------------------------------------------------------------------


def test_a_follower_takes_over_the_start_no_further_than_its_own_high_watermark() -> None:
    nodes = cluster()
    nodes[0].replica.delete_records(5)
    state = nodes[1].replica.state
    nodes[1].replica.replicate(state.log_end, state.leader_epoch, b"", 4, 5)
    assert (nodes[1].replica.log.start, nodes[1].replica.state.high_watermark) == (4, 4)


def test_a_diverging_answer_moves_no_start() -> None:
    nodes = cluster()
    nodes[1].lead(2)
    nodes[1].replica.append(produced(b"else"), LEADER_ONLY)
    nodes[0].lead(3)
    nodes[0].replica.delete_records(3)
    nodes[1].follow(1, 3)
    answer = fetch(nodes[0].replica, nodes[1].replica)
    assert answer.diverging is not None
    assert nodes[1].replica.log.start == 0
    fetch(nodes[0].replica, nodes[1].replica)
    assert nodes[1].replica.log.start == 3


def test_a_follower_that_ends_below_its_leaders_start_begins_there() -> None:
    nodes = cluster()
    nodes[1].replica.truncate_to_leader_end(1, 2)
    nodes[0].replica.delete_records(4)
    assert fetch_as_fetcher(nodes[0].replica, nodes[1].replica) is ErrorCode.offset_out_of_range
    state = nodes[1].replica.state
    assert (state.log_start, state.log_end, state.high_watermark) == (4, 4, 4)
    assert state.epochs == EpochCache.behind(1, 4)
    catch_up(nodes[0].replica, nodes[1].replica)
    assert values(nodes[1].replica) == values(nodes[0].replica)
    assert in_step(nodes[1].replica)
    cuts = [(event.offset, event.detail.get("log_start")) for event in nodes[1].trace if event.kind == "truncated"]
    assert cuts == [(2, None), (4, 4)]


@pytest.mark.parametrize("deleted_all", [True, False])
def test_producers_of_records_that_a_leader_deleted_unseen_are_forgotten(deleted_all: bool) -> None:
    """Replica 2 has led, and appended what nobody else has. Replica 3 leads after it, with other records there, and has
    deleted those: a retry of the batch is new to both, for it was never committed."""
    nodes = cluster(2)
    nodes[1].lead(2)
    lost = produced(b"lost", producer=9, sequence=0)
    nodes[1].replica.append(lost, LEADER_ONLY)
    leader = nodes[2].lead(3, isr=(1, 3))
    nodes[0].follow(3, 3, isr=(1, 3))
    for number in (2, 3):
        leader.append(produced(b"%d" % number, producer=7, sequence=number), LEADER_ONLY)
        catch_up(leader, nodes[0].replica)
    leader.delete_records(TO_HIGH_WATERMARK if deleted_all else 3)
    nodes[1].follow(3, 3, isr=(1, 3))
    for _ in range(3):
        fetch_as_fetcher(leader, nodes[1].replica)
    assert values(nodes[1].replica) == values(leader)
    retry = batches.parse(lost)
    assert [check_sequence(node.replica.log.producers, retry, Rules()) for node in nodes] == [Accept()] * 3


@pytest.mark.parametrize("committed_to", [6, 5])
def test_producers_of_the_records_that_a_leader_deleted_are_kept(committed_to: int) -> None:
    """Replica 3 has all of them, may not know that they are committed, and hears of the deletion from the next leader,
    after which it leads itself."""
    nodes = cluster()
    nodes[2] = Node(3, disk=nodes[2].disk, high_watermark=committed_to)
    nodes[0].replica.delete_records(TO_HIGH_WATERMARK)
    catch_up(nodes[0].replica, nodes[1].replica)
    leader = nodes[1].lead(2, isr=(1, 2, 3))
    nodes[2].follow(2, 2, isr=(1, 2, 3))
    fetch_as_fetcher(leader, nodes[2].replica)
    assert (nodes[2].replica.log.start, nodes[2].replica.log.end) == (6, 6)
    retry = batches.parse(produced(b"5", producer=7, sequence=5))
    assert check_sequence(nodes[2].replica.log.producers, retry, Rules()) == Duplicate(5, 5)


def test_producers_are_kept_by_an_answer_that_has_no_room_for_the_next_record() -> None:
    """The log of replica 3 ends where that of its leader starts, in the epoch of the leader's next record. The leader's
    first answer has data of other partitions, and no room for that record."""
    nodes = cluster(committed=5)
    fetch(nodes[0].replica, nodes[2].replica)
    assert (nodes[2].replica.state.high_watermark, nodes[2].replica.log.end) == (5, 6)
    for sequence in (6, 7):
        nodes[0].replica.append(produced(b"%d" % sequence, producer=7, sequence=sequence), LEADER_ONLY)
    catch_up(nodes[0].replica, nodes[1].replica)
    leader = nodes[1].lead(2, isr=(1, 2))
    nodes[0].follow(2, 2)
    nodes[2].follow(2, 2)
    catch_up(leader, nodes[0].replica)
    assert leader.delete_records(6) == (ErrorCode.none, 6)
    for has_room in (False, True):
        fetch(leader, nodes[2].replica, max_bytes=PLENTY if has_room else 0, at_least_one=has_room)
    assert values(nodes[2].replica) == values(leader) == {6: b"6", 7: b"7"}
    retry = batches.parse(produced(b"5", producer=7, sequence=5))
    assert check_sequence(nodes[2].replica.log.producers, retry, Rules()) == Duplicate(5, 5)


def test_an_empty_disk_is_filled_from_a_log_that_starts_above_zero() -> None:
    nodes = cluster()
    nodes[0].replica.delete_records(4)
    wiped = Node(3)
    wiped.follow(1, 1, isr=(1, 2, 3))
    fetch_as_fetcher(nodes[0].replica, wiped.replica)
    catch_up(nodes[0].replica, wiped.replica)
    assert values(wiped.replica) == values(nodes[0].replica) == {4: b"4", 5: b"5"}
    again = Node(3, disk=wiped.disk)
    assert (again.replica.log.start, again.replica.log.end) == (4, 6)


def test_an_empty_disk_is_filled_from_a_log_that_starts_inside_a_batch() -> None:
    nodes = [Node(1), Node(2)]
    leader = nodes[0].lead(1)
    leader.append(produced(b"a", b"b", b"c"), LEADER_ONLY)
    nodes[1].follow(1, 1)
    catch_up(leader, nodes[1].replica)
    leader.delete_records(2)
    empty = Node(2)
    empty.follow(1, 1)
    for _ in range(3):
        fetch_as_fetcher(leader, empty.replica)
    assert values(empty.replica) == {2: b"c"}
    assert in_step(empty.replica)


def test_a_follower_that_starts_above_its_leaders_end_begins_at_that_end() -> None:
    """An uncleanly elected leader may lack all that another replica has."""
    nodes = cluster()
    nodes[1].lead(2)
    nodes[1].replica.retention = Retention(bytes=0)
    nodes[1].replica.retain(0)
    assert nodes[1].replica.log.start == 6
    nodes[0].replica.apply_registration(PartitionRegistration((1, 2, 3), (1,), 2, 3, 30))
    nodes[0].replica.truncate_to_leader_end(3, 3)
    leader = nodes[0].lead(4, isr=(1,))
    nodes[1].follow(1, 4)
    for _ in range(3):
        fetch_as_fetcher(leader, nodes[1].replica)
    state = nodes[1].replica.state
    assert (state.log_start, state.log_end) == (3, 3)
    leader.append(produced(b"new"), LEADER_ONLY)
    catch_up(leader, nodes[1].replica)
    assert values(nodes[1].replica) == {3: b"new"}


def test_a_late_answer_begins_nothing_anew() -> None:
    nodes = cluster()
    state = nodes[1].replica.state
    nodes[1].replica.truncate_fully_and_start_at(state.log_end - 1, state.leader_epoch, 9, 1)
    nodes[1].replica.truncate_fully_and_start_at(state.log_end, state.leader_epoch - 1, 9, 1)
    assert nodes[1].replica.state == state


# ---- retention -------------------------------------------------------------------------------------------------------


def test_old_segments_are_removed_and_the_start_follows() -> None:
    nodes = cluster()  # every record is of time 5, and three make a segment
    leader = nodes[0].replica
    leader.retention = Retention(ms=10)
    leader.retain(15)
    assert leader.log.start == 0
    leader.retain(16)
    assert (leader.log.start, leader.log.end, moves(nodes[0])) == (6, 6, [(6, "retention_ms")])
    assert leader.append(produced(b"next"), LEADER_ONLY).base_offset == 6
    follow_all(nodes)
    assert moves(nodes[1]) == [(6, "leader")]


def test_large_logs_lose_their_oldest_segments_on_every_replica_by_itself() -> None:
    nodes = cluster(12)
    follower = nodes[1].replica
    follower.retention = Retention(bytes=follower.log.size - 1)
    follower.retain(0)
    assert follower.log.start == 0
    follower.retention = Retention(bytes=follower.log.size // 2)
    follower.retain(0)
    assert 0 < follower.log.start < 12
    assert moves(nodes[1]) == [(follower.log.start, "retention_bytes")]
    assert nodes[0].replica.log.start == 0


@pytest.mark.parametrize(("rules_off", "start"), [((), 0), (("retention_stops_at_high_watermark",), 6)])
def test_retention_keeps_uncommitted_records(rules_off: tuple[str, ...], start: int) -> None:
    leader = cluster(6, committed=2, limits=without(*rules_off))[0].replica
    leader.retention = Retention(ms=0, bytes=0)
    leader.retain(1000)
    assert leader.log.start == start


def test_committed_offsets_are_not_subject_to_retention() -> None:
    of_topic = CONFIG.topic({"retention.ms": "5", "retention.bytes": "7"})
    assert retention_of(CONSUMER_OFFSETS_TOPIC, of_topic) == Retention()
    assert retention_of("t", of_topic) == Retention(ms=5, bytes=7)


# ---- DeleteRecords on the wire ---------------------------------------------------------------------------------------


def asked(*parts: tuple[str, int, int], timeout_s: float = 1.0) -> Request:
    topics = tuple(
        deleting.DeleteRecordsTopic(
            name=topic, partitions=(deleting.DeleteRecordsPartition(partition_index=index, offset=offset),)
        )
        for topic, index, offset in parts
    )
    body = deleting.DeleteRecordsRequest(topics=topics, timeout=timedelta(seconds=timeout_s))
    return Request(Api.DELETE_RECORDS, 2, "test", 1, body, {})


def test_every_partition_is_answered_with_its_low_watermark_or_error() -> None:
    async def scenario() -> None:
        broker = Broker()
        await broker.produce((0, produced(b"a", b"b")), (1, produced(b"a")))
        broker.elect(2, 1, index=1)
        deletion = DeleteRecordsApis(broker.replica_manager, lambda: broker.image)

        async def results(*requested: tuple[str, int, int]) -> list[tuple[ErrorCode, int]]:
            answer = await deletion.delete_records(asked(*requested, timeout_s=0))
            return [(part.error_code, part.low_watermark) for topic in answer.topics for part in topic.partitions]

        assert await results(("t", 0, 1), ("t", 1, 0), ("t", 7, 0), ("no", 0, 0), (CONSUMER_OFFSETS_TOPIC, 0, 0)) == [
            (ErrorCode.request_timed_out, -1),
            (ErrorCode.not_leader_or_follower, -1),
            (ErrorCode.unknown_topic_or_partition, -1),
            (ErrorCode.unknown_topic_or_partition, -1),
            (ErrorCode.invalid_topic_exception, -1),
        ]
        assert await results(("t", 0, 9)) == [(ErrorCode.offset_out_of_range, -1)]
        last_entry_counts = await results(("t", 0, 2), ("t", 0, 9))
        assert last_entry_counts == [(ErrorCode.offset_out_of_range, -1)]
        assert broker.partition().log.start == 1

    run(scenario)


# ---- all of it, in any order -----------------------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("elect"), st.integers(0, 2)),
        st.tuples(st.just("append"), st.integers(1, 3)),
        st.tuples(st.just("fetch"), st.integers(0, 2)),
        st.tuples(st.just("fetch"), st.integers(0, 2)),
        st.tuples(st.just("delete"), st.integers(-1, 12)),
        st.tuples(st.just("retain"), st.integers(0, 2)),
        st.tuples(st.just("restart"), st.integers(0, 2)),
        st.tuples(st.just("wipe"), st.integers(0, 2)),
    ),
    min_size=5,
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_replicas_agree_from_their_starts_whatever_is_deleted_cut_and_wiped(steps: list[tuple[str, int]]) -> None:
    """Anybody is elected at any time, so logs diverge, start and end in every way they can."""
    disks = [DiskModel() for _ in range(3)]
    nodes = [Node(number + 1, disk=disk) for number, disk in enumerate(disks)]
    epoch, leader, count = 0, 0, 0

    def elect() -> None:
        for node in nodes:
            node.replica.apply_registration(PartitionRegistration((1, 2, 3), (1, 2, 3), leader + 1, epoch, epoch))

    for what, number in [("elect", 0), *steps]:
        replica = nodes[leader].replica
        if what == "elect":
            epoch, leader = epoch + 1, number
            elect()
        elif what == "append":
            replica.append(produced(*(b"%d" % (count + at) for at in range(number))), LEADER_ONLY)
            count += number
        elif what == "fetch" and number != leader:
            fetch_as_fetcher(replica, nodes[number].replica, max_bytes=1 if count % 2 else PLENTY)
        elif what == "delete":
            replica.delete_records(number)
        elif what == "retain":
            nodes[number].replica.retention = Retention(bytes=500)
            nodes[number].replica.retain(0)
        elif what in ("restart", "wipe"):
            kept = nodes[number].replica.state.high_watermark
            if what == "wipe":
                disks[number], kept = DiskModel(), 0
            nodes[number] = Node(number + 1, disk=disks[number], high_watermark=kept)
            epoch += 1
            elect()
        for node in nodes:
            assert in_step(node.replica)
            assert node.replica.state.log_start <= node.replica.state.high_watermark <= node.replica.state.log_end
    replica = nodes[leader].replica
    assert replica.state.role is ReplicaRole.LEADER
    for number, node in enumerate(nodes):
        if number != leader:
            for _ in range(20):
                fetch_as_fetcher(replica, node.replica)
            common = max(replica.log.start, node.replica.log.start)
            assert node.replica.log.end == replica.log.end
            ours, theirs = values(replica), values(node.replica)
            assert [ours[at] for at in range(common, replica.log.end)] == [
                theirs[at] for at in range(common, replica.log.end)
            ]
