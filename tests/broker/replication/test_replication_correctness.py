"""The scenarios of Kafka Replication Correctness, step by step; a test's name begins with its section.

Controller and replicas are pure machines. Each test runs one schedule. Where the source names the rule that prevents
the loss, the test runs the same schedule with that rule switched off, and records are lost.
"""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from images.broker.replication.become_leader_or_follower import apply_registration
from images.broker.replication.follower import on_diverging
from images.broker.replication.leader import (
    appended,
    begin_latest_read,
    check_append,
    confirms_latest,
    knows_committed,
    maximal_isr,
    on_isr_committed,
    on_isr_refused,
    on_replica_fetch,
    on_tick,
)
from images.broker.replication.partition import (
    IsrCommitted,
    IsrRefused,
    Limits,
    Partition,
    PartitionRegistration,
    ProposeIsr,
    ReplicaFetch,
    ReplicaRole,
)
from images.broker.rules import Rules
from images.wire.field_values import NO_LEADER
from tests.broker.controller.controller_driver import TOPIC, Driver, state


class Scene:
    """One partition: the controller, and the replicas' machines, which know what `learn` told them and no more."""

    def __init__(self, *off: str, replicas: tuple[int, ...] = (1, 2, 3), min_isr: int = 2) -> None:
        self.controller = Driver(*off)
        self.controller.start(*replicas)
        self.controller.topic(*replicas, min_isr=min_isr)
        self.limits = Limits(min_isr, replica_lag_time_max_ms=1_000, rules=Rules().without(off))
        self.replicas = {replica: Partition(node=replica) for replica in replicas}
        self.learn(*replicas)

    def learn(self, *replicas: int) -> None:
        """Brokers read the metadata log to its end."""
        known = self.controller.partition
        view = PartitionRegistration(known.replicas, known.isr, known.leader, known.leader_epoch, known.partition_epoch)
        for replica in replicas:
            self.replicas[replica] = apply_registration(self.replicas[replica], view, 0, self.limits).partition

    @property
    def active(self) -> dict[int, int]:
        return {broker.id: broker.epoch for broker in self.controller.image.brokers.values() if broker.active}

    def append(self, leader: int, count: int) -> ErrorCode:
        """A producer writes with acks=all."""
        before = self.replicas[leader]
        error = check_append(before, -1, self.limits)
        if error is ErrorCode.none:
            epochs = before.epochs.assign(before.leader_epoch, before.log_end)
            self.replicas[leader] = appended(before, epochs, before.log_end + count, self.limits).partition
        return error

    def fetch(self, follower: int, leader: int, *, broker_epoch: int | None = None) -> list[ProposeIsr]:
        """A fetch and its answer; what the leader proposes upon it."""
        sender = self.replicas[follower]
        epoch = self.controller.epoch(follower) if broker_epoch is None else broker_epoch
        last = sender.epochs.entries[-1].epoch if sender.epochs.entries else -1
        asked = ReplicaFetch(follower, epoch, sender.leader_epoch, sender.log_end, last)
        answer = on_replica_fetch(self.replicas[leader], asked, self.active, 0, self.limits)
        assert answer.error is ErrorCode.none, answer.error
        assert answer.diverging is None
        source = self.replicas[leader] = answer.step.partition
        high_watermark = min(source.high_watermark, source.log_end)
        self.replicas[follower] = sender._replace(
            log_end=source.log_end, epochs=source.epochs, high_watermark=high_watermark
        )
        return [decision for decision in answer.step.decisions if isinstance(decision, ProposeIsr)]

    def cut(self, follower: int, leader: int) -> None:
        """A fetch is answered with where the logs part, and the follower cuts its own there."""
        sender = self.replicas[follower]
        last = sender.epochs.entries[-1].epoch
        asked = ReplicaFetch(follower, self.controller.epoch(follower), sender.leader_epoch, sender.log_end, last)
        answer = on_replica_fetch(self.replicas[leader], asked, self.active, 0, self.limits)
        assert answer.diverging is not None
        self.replicas[follower] = on_diverging(sender, *answer.diverging).partition

    def alter(self, proposal: ProposeIsr, leader: int) -> ErrorCode:
        """AlterPartition arrives at the controller; the answer does not yet arrive at the leader."""
        members = tuple(zip(proposal.members, proposal.broker_epochs, strict=True))
        request = self.controller.proposal(
            members=members, leader_epoch=proposal.leader_epoch, partition_epoch=proposal.partition_epoch
        )
        return self.controller.send(request, sender=leader)

    def answer(self, proposal: ProposeIsr, leader: int, error: ErrorCode) -> None:
        """The controller's answer arrives at the leader."""
        before, known = self.replicas[leader], self.controller.partition
        self.replicas[leader] = (
            on_isr_refused(before, proposal, IsrRefused(error, certain=True), self.limits)
            if error is not ErrorCode.none
            else on_isr_committed(
                before, IsrCommitted(known.isr, known.leader_epoch, known.partition_epoch), self.limits
            )
        ).partition

    def restart_unclean(self, broker: int) -> None:
        """The broker restarts and its log is gone."""
        if not self.controller.image.brokers[broker].fenced:
            self.controller.fence(broker)
        assert self.controller.register(broker).error is ErrorCode.none
        self.replicas[broker] = Partition(node=broker)
        self.controller.beat(broker)


def maximal(scene: Scene, leader: int) -> tuple[int, ...]:
    return maximal_isr(scene.replicas[leader], scene.limits.rules)


# --- 6.4 --------------------------------------------------------------------------------------------------------------


def _stale_high_watermark(*off: str) -> Scene:
    scene = Scene(*off)
    assert scene.append(1, 1) is ErrorCode.none
    for follower in (2, 3):
        scene.fetch(follower, 1)
    for follower in (2, 3):
        before = scene.replicas[follower]
        scene.fetch(follower, 1)
        scene.replicas[follower] = before  # the answers, which carry the high watermark, do not arrive
    assert [scene.replicas[replica].high_watermark for replica in (1, 2, 3)] == [1, 0, 0]
    scene.controller.fence(1)
    scene.learn(2, 3)
    assert scene.replicas[2].role is ReplicaRole.LEADER
    return scene


def test_6_4_1_a_new_leader_has_a_stale_high_watermark_until_its_isr_has_reached_its_start() -> None:
    scene = _stale_high_watermark()
    assert scene.replicas[2].high_watermark == 0, "the true one is 1"
    assert not knows_committed(scene.replicas[2], scene.limits)
    scene.fetch(3, 2)
    assert scene.replicas[2].high_watermark == 1
    assert knows_committed(scene.replicas[2], scene.limits)


@pytest.mark.parametrize(("off", "told"), [((), False), (("applied_high_watermark",), True)])
def test_6_4_2_a_stale_high_watermark_is_returned_exactly_without_the_rule(off: tuple[str, ...], told: bool) -> None:
    scene = _stale_high_watermark("latest_confirmed_by_isr", *off)
    leader, epoch_query = begin_latest_read(scene.replicas[2])
    assert confirms_latest(leader, epoch_query, scene.limits) is told
    assert leader.high_watermark == 0, "a client that has consumed offset 0 would be told that the log ends before it"


# --- 6.5 --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("off", "high_watermark"), [((), 0), (("positions_end_with_leadership",), 10)])
def test_6_5_a_leader_elected_again_after_another_keeps_no_positions(off: tuple[str, ...], high_watermark: int) -> None:
    """Leadership goes from 1 to 2 and back before 1 reads of either. Replica 3 has truncated the records from 1 to
    follow 2, so that nobody but 1 holds them, and the ISR is {1, 3}."""
    scene = Scene(*off, replicas=(2, 1, 3))
    scene.controller.fence(2)
    scene.controller.beat(2)
    scene.learn(1, 2, 3)
    (proposal,) = scene.fetch(2, 1)
    scene.answer(proposal, 1, scene.alter(proposal, 1))
    scene.append(1, 10)
    scene.fetch(3, 1)
    scene.fetch(3, 1)
    assert (scene.replicas[1].high_watermark, scene.replicas[3].log_end) == (0, 10), "2 has nothing of it yet"
    scene.controller.commit(scene.controller.controller.elect([(TOPIC, 0)], unclean=False))
    assert state(scene.controller.partition) == (2, (2, 1, 3), ())
    scene.learn(2, 3)
    scene.cut(3, 2)
    assert scene.replicas[3].log_end == 0
    scene.controller.fence(2)
    assert state(scene.controller.partition) == (1, (1, 3), ())
    scene.learn(1)
    assert scene.replicas[1].high_watermark == high_watermark, "3 has not fetched in this epoch"
    if off:
        scene.controller.fence(1)
        assert scene.controller.partition.leader == 3
        assert scene.replicas[3].log_end == 0, "and so it has nothing of what was committed"
        return
    scene.learn(3)
    scene.fetch(3, 1)
    scene.fetch(3, 1)
    assert scene.replicas[1].high_watermark == 10


# --- 6.5.1 ------------------------------------------------------------------------------------------------------------


def test_6_5_1_case_1_a_leader_that_restarts_uncleanly_leaves_leadership_isr_and_elr_until_it_has_caught_up() -> None:
    scene = Scene()
    scene.append(1, 5)
    for follower in (2, 3, 2, 3):
        scene.fetch(follower, 1)
    scene.restart_unclean(1)
    assert state(scene.controller.partition) == (2, (2, 3), ())
    scene.learn(1, 2, 3)
    scene.fetch(3, 2)
    assert scene.fetch(1, 2) == [], "it has not one of the committed records"
    (proposal,) = scene.fetch(1, 2)
    assert scene.alter(proposal, 2) is ErrorCode.none
    assert scene.controller.partition.isr == (1, 2, 3)


@pytest.mark.parametrize(("off", "elr"), [((), (3,)), (("unclean_leaves_elr",), (2, 3))])
def test_6_5_1_case_2_a_member_that_was_added_and_restarts_uncleanly_is_no_candidate(
    off: tuple[str, ...], elr: tuple[int, ...]
) -> None:
    scene = Scene(*off)
    scene.controller.fence(3, 2)
    assert state(scene.controller.partition) == (1, (1,), (2,)), "3 left an ISR that still sufficed"
    scene.restart_unclean(2)
    assert state(scene.controller.partition) == (1, (1,), (2,) if 2 in elr else ())


@pytest.mark.parametrize(
    ("off", "error"),
    [((), ErrorCode.ineligible_replica), (("broker_epoch_checked_in_alter_partition",), ErrorCode.none)],
)
def test_6_5_1_case_3_a_follower_that_restarted_uncleanly_since_its_fetch_does_not_join(
    off: tuple[str, ...], error: ErrorCode
) -> None:
    scene = Scene(*off)
    scene.controller.fence(3)
    scene.learn(1, 2)
    scene.append(1, 5)
    scene.fetch(2, 1)
    scene.fetch(2, 1)
    scene.controller.beat(3)
    scene.learn(3)
    scene.fetch(3, 1)
    (proposal,) = scene.fetch(3, 1)
    partition_epoch = scene.controller.partition.partition_epoch
    scene.controller.fence(3)
    scene.controller.register(3)
    scene.controller.beat(3)
    assert scene.controller.partition.partition_epoch == partition_epoch, "only the broker epoch can tell"
    assert scene.alter(proposal, 1) is error
    if error is not ErrorCode.none:
        scene.answer(proposal, 1, error)
        assert maximal(scene, 1) == (1, 2), "the refusal proves that nothing was changed"


@pytest.mark.parametrize(("off", "proposed"), [((), 0), (("fenced_stay_out_of_isr",), 1)])
def test_6_5_1_a_leader_does_not_propose_a_broker_that_has_been_fenced_since(
    off: tuple[str, ...], proposed: int
) -> None:
    scene = Scene(*off)
    scene.controller.fence(3)
    scene.learn(1, 2, 3)
    proposals = scene.fetch(3, 1)
    assert len(proposals) == proposed
    for proposal in proposals:
        assert scene.alter(proposal, 1) is ErrorCode.ineligible_replica, "nothing is lost: the controller knows, too"


@pytest.mark.parametrize(
    ("off", "error"),
    [((), ErrorCode.duplicate_broker_registration), (("registration_waits_for_fencing",), ErrorCode.none)],
)
def test_6_5_1_a_broker_is_not_registered_anew_while_its_earlier_life_has_a_session(
    off: tuple[str, ...], error: ErrorCode
) -> None:
    scene = Scene(*off)
    before = scene.controller.epoch(2)
    assert scene.controller.register(2).error is error
    if error is ErrorCode.none:
        assert 2 not in scene.controller.partition.isr, "nothing is lost: registering takes the earlier life out"
        assert scene.controller.beat(2, epoch=before).error is ErrorCode.stale_broker_epoch


# --- 6.5.2 ------------------------------------------------------------------------------------------------------------


def test_6_5_2_the_maximal_isr_of_an_expansion_has_the_member_that_the_controller_does_not_know_yet() -> None:
    scene = Scene()
    scene.controller.fence(3)
    scene.controller.beat(3)
    scene.learn(1, 2, 3)
    assert scene.fetch(3, 1)
    assert maximal(scene, 1) == (1, 2, 3)
    assert scene.controller.partition.isr == (1, 2)


def test_6_5_2_the_maximal_isr_of_a_shrink_keeps_the_member_that_the_controller_still_counts() -> None:
    scene = Scene()
    scene.append(1, 1)
    for _ in range(2):
        scene.fetch(2, 1)
    late = on_tick(scene.replicas[1], scene.active, 2_000, scene.limits)
    scene.replicas[1] = late.partition
    (proposal,) = [decision for decision in late.decisions if isinstance(decision, ProposeIsr)]
    assert proposal.members == (1, 2)
    assert maximal(scene, 1) == (1, 2, 3)
    assert scene.replicas[1].high_watermark == 0


def _isr_below_minimum(*off: str) -> Scene:
    """Everybody sees ISR [1, 2]; 2 is fenced, so that the controller has ELR [2]; 3 is proposed."""
    scene = Scene(*off)
    scene.controller.fence(3)
    scene.controller.beat(3)
    scene.controller.fence(2)
    scene.learn(1, 3)
    assert state(scene.controller.partition) == (1, (1,), (2,))
    scene.replicas[1] = scene.replicas[1]._replace(log_end=4)
    scene.fetch(3, 1)
    scene.fetch(3, 1)
    return scene


@pytest.mark.parametrize(
    ("off", "high_watermark"),
    [((), 0), (("min_isr_gates_high_watermark",), 4), (("min_isr_counts_committed_isr",), 4)],
)
def test_6_5_2_below_the_minimum_the_high_watermark_stands_still_since_the_elr_is_not_known(
    off: tuple[str, ...], high_watermark: int
) -> None:
    scene = _isr_below_minimum(*off)
    assert maximal(scene, 1) == (1, 3), "no superset of ISR and ELR, which is [1] and [2]"
    assert scene.replicas[1].high_watermark == high_watermark


@pytest.mark.parametrize(
    ("off", "error"), [((), ErrorCode.not_enough_replicas), (("min_isr_gates_append",), ErrorCode.none)]
)
def test_6_5_2_below_the_minimum_appends_are_refused_before_they_are_in_the_log(
    off: tuple[str, ...], error: ErrorCode
) -> None:
    scene = _isr_below_minimum(*off)
    assert scene.append(1, 1) is error


@pytest.mark.parametrize("off", [(), ("maximal_isr",)])
def test_6_5_2_the_eight_steps_lose_committed_records_exactly_without_the_maximal_isr(off: tuple[str, ...]) -> None:
    scene = Scene(*off)
    scene.controller.fence(3)
    scene.controller.beat(3)
    scene.learn(1, 2, 3)
    assert (scene.replicas[1].isr, scene.replicas[1].high_watermark) == ((1, 2), 0)  # step 1
    scene.fetch(2, 1)  # step 2
    (proposal,) = scene.fetch(3, 1)  # step 3: in flight
    assert scene.append(1, 10) is ErrorCode.none  # step 4
    scene.fetch(2, 1)  # step 5
    empty = scene.replicas[3]
    scene.fetch(2, 1)  # step 6
    committed = scene.replicas[1].high_watermark
    assert scene.alter(proposal, 1) is ErrorCode.none  # step 7
    assert scene.controller.partition.isr == (1, 2, 3)
    scene.controller.fence(1, 2)  # step 8
    assert scene.controller.partition.leader == 3
    assert empty.log_end == 0
    assert committed == (10 if off else 0), "what the leader called committed and the new leader does not have"


@pytest.mark.parametrize("off", [(), ("one_isr_change_at_a_time",)])
def test_6_5_2_a_second_proposal_takes_the_first_out_of_the_maximal_isr_exactly_without_the_rule(
    off: tuple[str, ...],
) -> None:
    """3 and 4 are back, and both are proposed before an answer to the first proposal."""
    scene = Scene(*off, replicas=(1, 2, 3, 4))
    scene.controller.fence(3, 4)
    scene.controller.beat(3)
    scene.controller.beat(4)
    scene.learn(1, 2, 3, 4)
    (first,) = scene.fetch(3, 1)
    empty = scene.replicas[3]
    assert len(scene.fetch(4, 1)) == len(off)
    assert scene.append(1, 10) is ErrorCode.none
    for _ in range(2):
        for follower in (2, 4):
            scene.fetch(follower, 1)
    assert scene.replicas[1].high_watermark == (10 if off else 0), "3 may be in the ISR by now"
    assert scene.alter(first, 1) is ErrorCode.none
    scene.controller.fence(1, 2)
    assert scene.controller.partition.leader == 3
    assert empty.log_end == 0


# --- 6.3 and 6.5.3 ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("off", "error"),
    [((), ErrorCode.invalid_update_version), (("partition_epoch_checked_in_alter_partition",), ErrorCode.none)],
)
def test_6_3_a_change_from_an_older_view_does_not_bring_back_a_member_that_has_fallen_behind(
    off: tuple[str, ...], error: ErrorCode
) -> None:
    """The leader's request to keep 3 is held up. Meanwhile 3 is fenced, records are committed without it, it is back
    in the same broker epoch; then the request arrives."""
    scene = Scene(*off)
    held = scene.controller.proposal(1, 2, 3)
    scene.controller.fence(3)
    scene.learn(1, 2)
    scene.append(1, 5)
    scene.fetch(2, 1)
    scene.fetch(2, 1)
    assert scene.replicas[1].high_watermark == 5
    scene.controller.beat(3)
    assert scene.controller.send(held) is error
    assert (3 in scene.controller.partition.isr) is (error is ErrorCode.none), "3 has not one of the five"


@pytest.mark.parametrize(("off", "joins"), [((), False), (("leso_gates_isr_join",), True)])
def test_6_5_3_a_follower_above_a_stale_high_watermark_and_below_the_start_does_not_join(
    off: tuple[str, ...], joins: bool
) -> None:
    scene = _stale_high_watermark(*off)
    scene.replicas[1] = Partition(node=1)  # it comes back without its log, caught up with the stale 0
    scene.controller.register(1)
    scene.controller.beat(1)
    scene.learn(1, 2)
    assert bool(scene.fetch(1, 2)) is joins


@pytest.mark.parametrize("off", [(), ("high_watermark_gates_isr_join",)])
def test_6_5_3_a_follower_below_the_high_watermark_joins_exactly_without_the_rule(off: tuple[str, ...]) -> None:
    scene = Scene(*off)
    scene.append(1, 5)
    for follower in (2, 3, 2, 3):
        scene.fetch(follower, 1)
    assert scene.replicas[1].high_watermark == 5
    scene.restart_unclean(3)
    scene.learn(1, 2, 3)
    empty = scene.replicas[3]
    proposals = scene.fetch(3, 1)
    assert len(proposals) == len(off)
    for proposal in proposals:
        assert scene.alter(proposal, 1) is ErrorCode.none
        scene.controller.fence(1, 2)
        assert scene.controller.partition.leader == 3
        assert empty.log_end == 0, "and it has not one of the five committed records"


# --- 6.7 --------------------------------------------------------------------------------------------------------------


def test_6_7_a_reassignment_adds_no_member_to_the_isr_and_does_not_leave_it_smaller_than_the_minimum() -> None:
    scene = Scene(replicas=(1, 2, 3, 4))
    driver = scene.controller
    driver.commit(driver.controller.reassign([(TOPIC, 0, (1, 2))]))
    assert driver.partition.isr == (1, 2)
    driver.commit(driver.controller.reassign([(TOPIC, 0, (3, 4))]))
    assert driver.partition.isr == (1, 2), "grown, and neither 3 nor 4 is taken to be in sync"
    driver.send(driver.proposal(1, 2, 3))
    assert driver.partition.reassigning, "4 has not caught up"
    driver.send(driver.proposal(1, 2, 3, 4))
    assert (driver.partition.replicas, driver.partition.isr) == ((3, 4), (3, 4))


# --- 6.8 --------------------------------------------------------------------------------------------------------------


def _isr_and_elr_of_the_minimum() -> Scene:
    """min.insync.replicas 2: the last in the ISR, and the one before in the ELR. Both are known to be complete."""
    scene = Scene()
    scene.controller.fence(3, 2, 1)
    assert scene.controller.partition.leader == NO_LEADER
    assert set(scene.controller.partition.elr) == {1, 2}
    return scene


@pytest.mark.parametrize(("lost", "elected"), [(1, 2), (2, 1)])
def test_6_8_with_one_loss_less_than_the_minimum_a_complete_replica_is_elected(lost: int, elected: int) -> None:
    scene = _isr_and_elr_of_the_minimum()
    scene.restart_unclean(lost)
    scene.controller.beat(3)
    assert scene.controller.partition.leader == NO_LEADER, "neither of those that are back is known to be complete"
    scene.controller.beat(elected)
    assert state(scene.controller.partition)[0] == elected
    assert scene.controller.events("partition_changed")[-1].detail["unclean"] is False


def test_6_8_with_as_many_losses_as_the_minimum_nobody_is_elected_unasked_and_then_a_loss_is_told() -> None:
    scene = _isr_and_elr_of_the_minimum()
    for lost in (1, 2):
        scene.restart_unclean(lost)
    scene.controller.beat(3)
    assert scene.controller.partition.leader == NO_LEADER
    assert set(scene.controller.partition.last_known_elr) >= {1, 2}
    scene.controller.commit(scene.controller.controller.elect([(TOPIC, 0)], unclean=True))
    assert scene.controller.partition.leader != NO_LEADER
    assert scene.controller.events("partition_changed")[-1].detail["unclean"] is True
