"""The truncation scenarios of KIP-101, KIP-279, KIP-320 and Kafka Log Divergence, under every truncation protocol.

Each replica is a whole `Replica` with its log on a disk in memory. The tests pass requests and answers themselves, as
`fetcher.py` and `produce_fetch.py` do, so that an answer is lost or a leader fails at the very step of the scenario.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from images.broker.replication.partition import Limits, PartitionRegistration, ReplicaFetch
from images.broker.rules import Rules
from images.broker.truncation_protocol import TruncationProtocol
from tests.broker.replication.replica_node import ACTIVE, PLENTY, Node, produced

LEADER_ONLY = 1
EVERY = tuple(TruncationProtocol)
FROM_KIP101, FROM_KIP279 = EVERY[1:], EVERY[2:]
FENCING = tuple(protocol for protocol in TruncationProtocol if protocol.fences_every_fetch)


def limits(protocol: TruncationProtocol, min_isr: int = 2, off: Sequence[str] = ()) -> Limits:
    return Limits(min_isr, 1_000, Rules().without(off), protocol)


def restarted(node: Node) -> Node:
    """The broker after a kill: the same disk, and the high watermark it had checkpointed."""
    return Node(node.replica.state.node, node.replica.limits, node.replica.state.high_watermark, node.disk)


def holding(
    number: int, protocol: TruncationProtocol, *batches: tuple[int, Sequence[bytes]], off: Sequence[str] = ()
) -> Node:
    """A replica that has led in these epochs, alone, and written a batch in each."""
    node = Node(number, limits(protocol, min_isr=1, off=off))
    for turn, (epoch, values) in enumerate(batches):
        node.replica.apply_registration(PartitionRegistration((1, 2, 3), (number,), number, epoch, turn))
        assert node.replica.append(produced(*values), LEADER_ONLY).error is ErrorCode.none
    return node


def lead(node: Node, epoch: int, *, isr: tuple[int, ...] = (1, 2)) -> None:
    node.replica.apply_registration(PartitionRegistration((1, 2, 3), isr, node.replica.state.node, epoch, 100 * epoch))


def follow(node: Node, leader: Node, epoch: int, *, isr: tuple[int, ...] = (1, 2)) -> None:
    node.replica.apply_registration(
        PartitionRegistration((1, 2, 3), isr, leader.replica.state.node, epoch, 100 * epoch)
    )


def exchange(leader: Node, follower: Node, *, answer_lost: bool = False) -> ErrorCode | str | None:
    """One request of a follower and its answer; an error, or a complaint about the records that came."""
    asking, asked = follower.replica, leader.replica
    state, protocol = asking.state, asking.limits.truncation_protocol
    if state.epoch_query is not None:
        error = asked.check_leader("offset_for_leader_epoch", asking.fence())
        if error is not ErrorCode.none:
            return error
        epoch, end = asked.state.epochs.end_offset_for(state.epoch_query, asked.state.log_end)
        asking.on_epoch_end(state.epoch_query, state.leader_epoch, epoch, end)
        return None
    last_epoch = state.epochs.latest if protocol is TruncationProtocol.TRUNCATE_ON_FETCH else -1
    request = ReplicaFetch(state.node, ACTIVE[state.node], asking.fence_of_fetch(), state.log_end, last_epoch)
    answer = asked.fetch_for_replica(request, 1, ACTIVE, PLENTY, True)
    if answer_lost:
        return None
    if answer.error is ErrorCode.offset_out_of_range:
        asking.truncate_to_leader_end(state.leader_epoch, asked.log.end)
    elif answer.error is not ErrorCode.none:
        return answer.error
    elif answer.diverging is not None:
        asking.on_divergence(state.log_end, state.leader_epoch, *answer.diverging)
    else:
        return asking.replicate(
            state.log_end, state.leader_epoch, answer.records, answer.high_watermark, answer.log_start
        )
    return None


def catch_up(leader: Node, follower: Node) -> ErrorCode | str | None:
    """Exchange until nothing changes any more; what the last exchange complained of."""
    for _ in range(50):
        before = follower.replica.state
        complaint = exchange(leader, follower)
        if follower.replica.state == before:
            return complaint
    raise AssertionError("the follower does not come to rest")


def truncation_rounds(follower: Node) -> list[int]:
    """How many exchanges each convergence took, as traced."""
    return [int(str(event.detail["exchanges"])) for event in follower.trace if event.kind == "converged"]


def numbered(first: int, last: int, mark: bytes) -> list[bytes]:
    """Values for the offsets `first` to `last`, both included, as KIP-279 counts."""
    return [mark + b"%d" % offset for offset in range(first, last + 1)]


# --- KIP-101: truncation to the high watermark ------------------------------------------------------------------------


def high_watermark_truncation_then_election(
    protocol: TruncationProtocol,
) -> tuple[list[bytes | None], list[bytes | None]]:
    """KIP-101 scenario 1: what the new leader holds, and what was acknowledged."""
    a, b = Node(1, limits(protocol)), Node(2, limits(protocol))
    lead(b, 1)
    follow(a, b, 1)
    catch_up(b, a)
    b.replica.append(produced(b"m1"), LEADER_ONLY)
    catch_up(b, a)
    b.replica.append(produced(b"m2"), LEADER_ONLY)
    exchange(b, a)
    exchange(b, a, answer_lost=True)  # by this fetch B knows that A has m2; A does not learn that m2 is committed
    acknowledged = b.values[: b.replica.state.high_watermark]
    assert acknowledged == [b"m1", b"m2"]
    assert a.replica.state.high_watermark == 1
    a = restarted(a)
    follow(a, b, 1)
    if a.replica.state.epoch_query is not None:
        exchange(b, a)
    lead(a, 2, isr=(1,))  # B fails at once
    return a.values, acknowledged


def test_truncating_to_the_high_watermark_loses_an_acknowledged_record() -> None:
    held, acknowledged = high_watermark_truncation_then_election(TruncationProtocol.HIGH_WATERMARK)
    assert acknowledged == [b"m1", b"m2"]
    assert held == [b"m1"]


@pytest.mark.parametrize("protocol", FROM_KIP101)
def test_asking_the_leader_keeps_what_truncating_to_the_high_watermark_loses(protocol: TruncationProtocol) -> None:
    held, acknowledged = high_watermark_truncation_then_election(protocol)
    assert held == acknowledged


def two_hard_failures(protocol: TruncationProtocol) -> tuple[Node, Node]:
    """KIP-101 scenario 2: A comes back with m2, B without it, and B is elected."""
    a = holding(1, protocol, (0, [b"m1"]), (0, [b"m2"]))
    b = holding(2, protocol, (0, [b"m1"]))
    assert a.replica.state.high_watermark == 2
    a, b = restarted(a), restarted(b)
    lead(b, 1)
    b.replica.append(produced(b"m3"), LEADER_ONLY)
    follow(a, b, 1)
    catch_up(b, a)
    return a, b


def test_truncating_to_the_high_watermark_lets_logs_diverge_after_two_hard_failures() -> None:
    a, b = two_hard_failures(TruncationProtocol.HIGH_WATERMARK)
    assert (a.values, b.values) == ([b"m1", b"m2"], [b"m1", b"m3"])


@pytest.mark.parametrize("protocol", FROM_KIP101)
def test_later_generations_converge_after_two_hard_failures(protocol: TruncationProtocol) -> None:
    a, b = two_hard_failures(protocol)
    assert a.values == b.values == [b"m1", b"m3"]


# --- KIP-279 ----------------------------------------------------------------------------------------------------------


def fast_fail_over(protocol: TruncationProtocol, n: int) -> tuple[Node, Node, ErrorCode | str | None]:
    """KIP-279, scenario 1: preferred election to B, and back to A before A has truncated. B wrote offsets 11 to n."""
    common = (1, numbered(0, 10, b"c"))
    a = holding(1, protocol, common, (1, numbered(11, 20, b"a")), (3, numbered(21, 30, b"A")))
    b = holding(2, protocol, common, (2, numbered(11, n, b"b")))
    follow(b, a, 3)
    return a, b, catch_up(a, b)


def test_kip101_is_stuck_when_the_follower_wrote_less() -> None:
    a, b, complaint = fast_fail_over(TruncationProtocol.KIP101, 15)
    assert "does not follow" in str(complaint)
    assert b.values == numbered(0, 10, b"c") + numbered(11, 15, b"b")
    assert len(a.values) == 31


def test_kip101_diverges_silently_when_the_follower_wrote_as_much() -> None:
    a, b, complaint = fast_fail_over(TruncationProtocol.KIP101, 20)
    assert complaint is None
    assert a.replica.log.end == b.replica.log.end == 31
    assert b.values[11:21] == numbered(11, 20, b"b")
    assert a.values[11:21] == numbered(11, 20, b"a")
    assert a.values[21:] == b.values[21:]


def test_kip101_converges_when_the_follower_wrote_more() -> None:
    a, b, complaint = fast_fail_over(TruncationProtocol.KIP101, 25)
    assert complaint is None
    assert a.values == b.values


@pytest.mark.parametrize("n", [15, 20, 25])
@pytest.mark.parametrize("protocol", FROM_KIP279)
def test_from_kip279_on_a_fast_fail_over_converges_in_one_exchange(protocol: TruncationProtocol, n: int) -> None:
    a, b, complaint = fast_fail_over(protocol, n)
    assert complaint is None
    assert a.values == b.values
    assert truncation_rounds(b) == [1]


def three_unclean_fail_overs(protocol: TruncationProtocol) -> tuple[Node, Node]:
    """KIP-279, scenario 2 of the motivation, 3 of the proposal: A and B led by turns, each without the other."""
    a = holding(1, protocol, (0, [b"A:0"]), (2, [b"A:1"]))
    b = holding(2, protocol, (1, [b"B:0"]), (3, [b"B:1"]))
    follow(a, b, 3)
    catch_up(b, a)
    return a, b


def test_kip101_diverges_after_three_unclean_fail_overs() -> None:
    a, b = three_unclean_fail_overs(TruncationProtocol.KIP101)
    assert a.values == [b"A:0", b"B:1"]
    assert b.values == [b"B:0", b"B:1"]


@pytest.mark.parametrize("protocol", FROM_KIP279)
def test_from_kip279_on_three_unclean_fail_overs_converge_in_two_exchanges(protocol: TruncationProtocol) -> None:
    a, b = three_unclean_fail_overs(protocol)
    assert a.values == b.values == [b"B:0", b"B:1"]
    assert truncation_rounds(a) == [2]


@pytest.mark.parametrize("protocol", FROM_KIP101)
def test_a_restart_behind_the_high_watermark_of_the_leader_cuts_nothing(protocol: TruncationProtocol) -> None:
    """KIP-279, scenario 2 of the proposal: A's high watermark is stale, its log is not."""
    runs = ((1, numbered(0, 10, b"c")), (1, numbered(11, 20, b"a")))
    a, b = holding(1, protocol, *runs), holding(2, protocol, *runs)
    a = Node(1, a.replica.limits, 11, a.disk)
    lead(b, 2)
    follow(a, b, 2)
    catch_up(b, a)
    assert a.values == b.values
    assert not [event for event in a.trace if event.kind == "truncated"]


def reassigned_leadership(protocol: TruncationProtocol) -> tuple[Node, Node]:
    """Kafka Log Divergence §3.1: r1 leads, r2 and r3 lack its last record when r2 is elected, and r1 becomes a
    follower."""
    r1, r2, r3 = (Node(number, limits(protocol)) for number in (1, 2, 3))
    lead(r1, 1, isr=(1, 2, 3))
    for follower in (r2, r3):
        follow(follower, r1, 1, isr=(1, 2, 3))
        catch_up(r1, follower)
    r1.replica.append(produced(b"A"), LEADER_ONLY)
    for follower in (r2, r3):
        exchange(r1, follower)
    assert [node.replica.state.high_watermark for node in (r1, r2, r3)] == [0, 0, 0]
    for follower in (r2, r3):
        exchange(r1, follower, answer_lost=True)
    r1.replica.append(produced(b"B"), LEADER_ONLY)
    assert [node.replica.log.end for node in (r1, r2, r3)] == [2, 1, 1]
    assert [node.replica.state.high_watermark for node in (r1, r2, r3)] == [1, 0, 0]
    lead(r2, 2, isr=(2, 3))
    follow(r1, r2, 2, isr=(2, 3))
    catch_up(r2, r1)
    return r1, r2


@pytest.mark.parametrize("protocol", EVERY)
def test_a_deposed_leader_cuts_what_the_new_leader_does_not_have(protocol: TruncationProtocol) -> None:
    r1, r2 = reassigned_leadership(protocol)
    assert r1.values == r2.values == [b"A"]


@pytest.mark.parametrize("protocol", FROM_KIP101)
def test_a_clean_election_takes_one_exchange(protocol: TruncationProtocol) -> None:
    r1, _ = reassigned_leadership(protocol)
    assert truncation_rounds(r1)[-1:] == [1]


# --- KIP-320: fencing -------------------------------------------------------------------------------------------------


def zombie(protocol: TruncationProtocol) -> tuple[Node, Node, ErrorCode | str | None]:
    """KAFKA-6880: broker 2 hears nothing of the controller any more; broker 1, which it follows, is elected anew."""
    leader, stale = Node(1, limits(protocol)), Node(2, limits(protocol))
    lead(leader, 1)
    follow(stale, leader, 1)
    catch_up(leader, stale)
    leader.replica.append(produced(b"one"), LEADER_ONLY)
    catch_up(leader, stale)
    lead(leader, 5, isr=(1, 3))  # meanwhile 3 led and 1 came back; of all this broker 2 knows nothing
    leader.replica.append(produced(b"two"), LEADER_ONLY)
    return leader, stale, catch_up(leader, stale)


@pytest.mark.parametrize("protocol", [item for item in EVERY if item not in FENCING])
def test_without_fencing_a_zombie_goes_on_and_rejoins_the_isr(protocol: TruncationProtocol) -> None:
    leader, stale, complaint = zombie(protocol)
    assert complaint is None
    assert stale.values == [b"one", b"two"]
    assert stale.replica.state.leader_epoch == 1
    assert 2 in leader.proposed[-1].members


@pytest.mark.parametrize("protocol", FENCING)
def test_with_fencing_a_zombie_is_refused(protocol: TruncationProtocol) -> None:
    leader, stale, complaint = zombie(protocol)
    assert complaint is ErrorCode.fenced_leader_epoch
    assert stale.values == [b"one"]
    assert not leader.proposed


@pytest.mark.parametrize("protocol", [item for item in FENCING if item.queries_epoch_end])
def test_the_question_where_an_epoch_ends_is_fenced_both_ways(protocol: TruncationProtocol) -> None:
    leader, follower = holding(1, protocol, (1, [b"one"])), holding(2, protocol, (1, [b"one"]))
    follow(follower, leader, 3)
    assert exchange(leader, follower) is ErrorCode.unknown_leader_epoch  # the leader has not heard of epoch 3 yet
    lead(leader, 4)
    assert exchange(leader, follower) is ErrorCode.fenced_leader_epoch
    follow(follower, leader, 4)
    assert catch_up(leader, follower) is None


@pytest.mark.parametrize(("off", "end"), [((), 4), (("ignore_stale_epoch_answer",), 1)])
def test_kip_320_an_epoch_answer_of_an_earlier_leadership_cuts_the_log_exactly_without_the_rule(
    off: tuple[str, ...], end: int
) -> None:
    """The answer to the query in epoch 3 is held up. In epoch 4 the follower led and wrote, in epoch 5 it follows a
    leader that has all of that, and then the answer arrives."""
    protocol = TruncationProtocol.KIP320
    leader = holding(1, protocol, (1, [b"one"]))
    follower = holding(2, protocol, (1, [b"one"]), (2, [b"two"]), off=off)
    follow(follower, leader, 3)
    query = follower.replica.state.epoch_query
    assert query == 2
    lead(leader, 3)
    held = leader.replica.state.epochs.end_offset_for(query, leader.replica.state.log_end)
    assert held == (1, 1)
    lead(follower, 4, isr=(2,))
    follower.replica.append(produced(b"three", b"four"), LEADER_ONLY)
    third = holding(3, protocol, (1, [b"one"]), (2, [b"two"]), (4, [b"three", b"four"]))
    lead(third, 5, isr=(2, 3))
    follow(follower, third, 5, isr=(2, 3))
    assert catch_up(third, follower) is None
    assert follower.values == third.values
    follower.replica.on_epoch_end(query, 3, *held)
    assert follower.replica.log.end == end


@pytest.mark.parametrize("off", [(), ("ignore_stale_epoch_answer",)])
def test_an_epoch_answer_does_not_cut_the_log_of_a_replica_that_was_removed(off: tuple[str, ...]) -> None:
    """It keeps the leader epoch and the query in which it was removed, until its files are deleted."""
    follower = holding(2, TruncationProtocol.KIP320, (1, [b"one"]), (2, [b"two"]), off=off)
    follow(follower, holding(1, TruncationProtocol.KIP320, (1, [b"one"])), 3)
    query = follower.replica.state.epoch_query
    assert query == 2
    follower.replica.resign()
    follower.replica.on_epoch_end(query, 3, 1, 1)
    assert follower.replica.log.end == 2


@pytest.mark.parametrize("off", [(), ("enter_leader_epoch_start",)])
def test_a_leader_without_a_record_of_its_epoch_knows_where_logs_diverge_exactly_with_the_rule(
    off: tuple[str, ...],
) -> None:
    """Kafka Log Divergence §3.3, case F: the leader's log has epoch 1 only, the follower's ends in epoch 2, and the
    leader, now in epoch 3, cannot append before the follower is in sync. Without the start of its epoch it does not
    know where epoch 2 ends: the follower compares the ends of the logs only, and then fetches in vain."""
    protocol = TruncationProtocol.TRUNCATE_ON_FETCH
    leader = holding(1, protocol, (1, [b"a"]), (1, [b"b"]), off=off)
    follower = holding(2, protocol, (1, [b"a"]), (2, [b"c"]), (2, [b"d"]))
    lead(leader, 3)
    follow(follower, leader, 3)
    catch_up(leader, follower)
    assert follower.values == ([b"a", b"c"] if off else [b"a", b"b"])


# --- every correct generation, whatever happened ----------------------------------------------------------------------


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Two logs, as the epoch of each offset, that elections, clean or not, can lead to: each epoch's leader starts from
    a prefix of some log there was, and appends."""
    logs: list[list[int]] = [[]]
    for epoch in range(draw(st.integers(1, 6))):
        origin = draw(st.sampled_from(logs))
        logs.append(origin[: draw(st.integers(0, len(origin)))] + [epoch] * draw(st.integers(0, 3)))
    one, other = draw(st.sampled_from(logs)), draw(st.sampled_from(logs))
    return one[: draw(st.integers(0, len(one)))], other[: draw(st.integers(0, len(other)))]


@pytest.mark.parametrize("protocol", FROM_KIP279)
@given(logs=histories())
@settings(max_examples=150, deadline=None)
def test_any_two_logs_converge_to_their_longest_common_prefix(
    protocol: TruncationProtocol, logs: tuple[list[int], list[int]]
) -> None:
    def written(number: int, epochs: list[int]) -> Node:
        return holding(number, protocol, *((epoch, [b"%d@%d" % (epoch, at)]) for at, epoch in enumerate(epochs)))

    mine, theirs = logs
    leader, follower = written(1, mine), written(2, theirs)
    lead(leader, 9)
    follow(follower, leader, 9)
    assert catch_up(leader, follower) is None
    assert follower.values == leader.values
    ends = [event.offset for event in follower.trace if event.kind == "truncated"]
    common = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(mine, theirs, strict=False))))
    assert min(ends, default=len(theirs)) == common
