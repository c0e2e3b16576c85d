"""Guarantees of the controller: sessions, broker epochs, elections, ELR, ISR changes, topics (docs/protocol.md,
sections 4 and 5)."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from images.broker.controller.alter_partition import AlterPartition
from images.broker.controller.placement import NewTopic
from images.broker.controller.requests import TopicResult
from images.broker.frozen_map import FrozenMap
from tests.broker.controller.controller_driver import TIMEOUT_MS, TOPIC, TOPIC_ID, Driver, changed, replayed, state

OTHER_ID = uuid.UUID(int=71)


# ---- registration and sessions (Kafka Replication Correctness §6.5.1) ------------------------------------------------


def test_a_broker_epoch_is_the_offset_of_its_registration_and_rises() -> None:
    driver = Driver()
    driver.start(1, 2)
    assert driver.register(3).broker_epoch == driver.epoch(3) == len(driver.log) - 1
    assert driver.epoch(1) < driver.epoch(2) < driver.epoch(3)


def test_a_registered_broker_stays_fenced_until_it_has_read_its_own_registration() -> None:
    driver = Driver()
    driver.start(2)
    epoch = driver.register(1).broker_epoch
    early = driver.beat(1, metadata_offset=epoch - 1)
    assert (early.error, early.fenced, early.caught_up) == (ErrorCode.none, True, False)
    assert not driver.beat(1, metadata_offset=epoch).fenced
    assert driver.epoch(1) == epoch, "unfencing keeps the broker epoch"


def test_a_second_incarnation_is_refused_while_the_session_of_the_first_is_alive() -> None:
    driver = Driver()
    driver.start(1)
    driver.now_ms += TIMEOUT_MS - 1
    assert driver.register(1).error is ErrorCode.duplicate_broker_registration
    driver.now_ms += 1
    assert driver.register(1).error is ErrorCode.none


def test_without_the_rule_a_second_incarnation_replaces_the_first_at_once() -> None:
    driver = Driver("registration_waits_for_fencing")
    driver.start(1)
    assert driver.register(1).error is ErrorCode.none


def test_a_retry_of_the_same_incarnation_gets_the_same_broker_epoch_and_changes_nothing() -> None:
    driver = Driver()
    first = driver.register(1, incarnation="once")
    answers = []
    assert not changed(driver, lambda: answers.append(driver.register(1, incarnation="once")))
    assert answers == [first]


def test_the_broker_epoch_of_an_incarnation_that_was_replaced_is_stale() -> None:
    driver = Driver()
    driver.start(1)
    old = driver.epoch(1)
    driver.fence(1)
    driver.start(1)
    assert driver.beat(1, epoch=old).error is ErrorCode.stale_broker_epoch
    assert driver.controller.allocate_producer_ids(1, old).answer.error is ErrorCode.stale_broker_epoch


def test_a_heartbeat_of_an_unregistered_broker_is_refused() -> None:
    assert Driver().beat(9, epoch=0).error is ErrorCode.broker_id_not_registered


def test_a_fenced_broker_whose_heartbeats_get_through_is_unfenced_in_the_same_broker_epoch() -> None:
    driver = Driver()
    driver.start(1, 2)
    epoch = driver.epoch(1)
    driver.fence(1)
    assert not driver.beat(1, epoch=epoch).fenced


def test_sessions_end_one_at_a_time_the_longest_silent_first() -> None:
    driver = Driver()
    driver.start(1, 2, 3)
    driver.now_ms = 5
    driver.beat(2)
    assert driver.controller.next_expiry_ms() == TIMEOUT_MS
    assert not changed(driver, lambda: driver.commit(driver.controller.tick(TIMEOUT_MS - 1)))
    order = []
    for _ in range(4):
        driver.commit(driver.controller.tick(TIMEOUT_MS + 5))
        order.append([broker.id for broker in driver.image.brokers.values() if broker.fenced])
    assert order == [[1], [1, 3], [1, 2, 3], [1, 2, 3]]
    assert driver.controller.next_expiry_ms() is None


def test_a_controller_that_takes_over_grants_everybody_a_full_session() -> None:
    driver = Driver()
    driver.start(1)
    successor = Driver().controller.activate(driver.image, now_ms=50_000)
    assert successor.next_expiry_ms() == 50_000 + TIMEOUT_MS
    assert successor.tick(50_000 + TIMEOUT_MS - 1).records == ()
    assert successor.tick(50_000 + TIMEOUT_MS).records != ()


def test_a_broker_that_wants_to_be_fenced_is_and_stays_so() -> None:
    driver = Driver()
    driver.start(1, 2)
    driver.topic(1, 2)
    assert driver.beat(1, want_fence=True).fenced
    assert driver.partition.leader == 2
    assert not changed(driver, lambda: driver.beat(1, want_fence=True))
    assert not driver.beat(1).fenced


# ---- fencing, elections, ELR (Kafka Replication Correctness §6.5, KIP-966) -------------------------------------------


def test_fencing_takes_the_broker_out_of_leadership_and_isr_and_bumps_both_epochs() -> None:
    driver = Driver()
    driver.start(1, 2, 3)
    driver.topic(1, 2, 3, min_isr=2)
    before = driver.partition
    driver.fence(1)
    after = driver.partition
    assert state(after) == (2, (2, 3), ())
    assert (after.leader_epoch, after.partition_epoch) == (before.leader_epoch + 1, before.partition_epoch + 1)


def test_fencing_a_follower_keeps_leader_and_leader_epoch() -> None:
    driver = Driver()
    driver.start(1, 2, 3)
    driver.topic(1, 2, 3, min_isr=2)
    before = driver.partition
    driver.fence(3)
    assert state(driver.partition) == (1, (1, 2), ())
    assert driver.partition.leader_epoch == before.leader_epoch


def test_below_min_isr_those_who_leave_the_isr_stay_eligible() -> None:
    driver = Driver()
    driver.start(1, 2, 3)
    driver.topic(1, 2, 3, min_isr=2)
    driver.fence(1)
    driver.fence(2)
    assert state(driver.partition) == (3, (3,), (2,)), "broker 1 left while the ISR was still large enough"
    driver.fence(3)
    assert state(driver.partition) == (-1, (), (2, 3))


def test_with_no_leader_only_an_eligible_replica_is_elected_when_it_comes_back() -> None:
    driver = Driver()
    driver.start(1, 2, 3)
    driver.topic(1, 2, 3, min_isr=2)
    driver.fence(1, 2, 3)
    epoch = driver.partition.leader_epoch
    driver.beat(1)
    assert driver.partition.leader == -1
    driver.beat(2)
    assert state(driver.partition) == (2, (2,), (3,))
    assert driver.partition.leader_epoch == epoch + 1


def test_the_elr_is_empty_again_once_the_isr_reaches_min_isr() -> None:
    driver = Driver()
    driver.start(1, 2, 3)
    driver.topic(1, 2, 3, min_isr=2)
    driver.fence(1, 2)
    driver.beat(1)
    assert driver.send(driver.proposal(1, 3)) is ErrorCode.none
    assert state(driver.partition) == (3, (1, 3), ())
    assert driver.partition.last_known_elr == ()


def test_an_isr_that_a_leader_shrinks_below_min_isr_leaves_its_members_eligible() -> None:
    driver = Driver()
    driver.start(1, 2, 3)
    driver.topic(1, 2, 3, min_isr=2)
    assert driver.send(driver.proposal(1)) is ErrorCode.none
    assert state(driver.partition) == (1, (1,), (2, 3))


def test_min_isr_above_the_number_of_replicas_asks_for_all_of_them() -> None:
    driver = Driver()
    driver.start(1, 2)
    driver.topic(1, 2, min_isr=5)
    driver.fence(1)
    assert state(driver.partition) == (2, (2,), (1,))
    driver.beat(1)
    driver.send(driver.proposal(1, 2))
    assert state(driver.partition) == (2, (1, 2), ())


def test_the_last_in_sync_replica_stays_eligible_even_with_min_isr_of_one() -> None:
    driver = Driver()
    driver.start(1, 2)
    driver.topic(1, 2)
    driver.fence(1, 2)
    assert state(driver.partition) == (-1, (), (2,))
    driver.beat(1)
    assert driver.partition.leader == -1, "broker 1 may lack what 2 committed alone"
    driver.beat(2)
    assert state(driver.partition) == (2, (2,), ())


def test_only_a_topic_that_allows_it_elects_a_replica_that_may_lack_records_and_says_so() -> None:
    driver = Driver()
    driver.start(1, 2)
    driver.topic(1, 2, min_isr=2, unclean=True)
    driver.send(driver.proposal(1))
    driver.fence(2)
    driver.start(2)  # uncleanly: it leaves the ELR
    driver.fence(1)
    assert state(driver.partition) == (2, (2,), ())
    assert driver.events("partition_changed")[-1].detail["unclean"] is True


def test_without_the_rule_a_replica_outside_isr_and_elr_is_elected_as_if_it_were_fit() -> None:
    driver = Driver("elect_from_isr_or_elr")
    driver.start(1, 2)
    driver.topic(1, 2)
    driver.send(driver.proposal(1))
    driver.fence(1)
    assert driver.partition.leader == 2
    assert driver.partition.isr == (2,)
    assert driver.events("partition_changed")[-1].detail["unclean"] is False


# ---- unclean restarts (Kafka Replication Correctness §6.5.1, cases 1 to 3) -------------------------------------------


@pytest.mark.parametrize("joined", [False, True], ids=["case 1: the leader", "case 2: a replica just added"])
def test_a_replica_that_restarts_uncleanly_leaves_leadership_isr_and_elr(joined: bool) -> None:
    driver = Driver()
    driver.start(1, 2)
    driver.topic(1, 2, min_isr=2)
    if joined:
        driver.send(driver.proposal(1))
        driver.send(driver.proposal(1, 2))
    lost = 2 if joined else 1
    driver.fence(lost)
    assert driver.partition.elr == (lost,), "fenced alone, it may still be complete"
    driver.register(lost)
    assert state(driver.partition) == (3 - lost, (3 - lost,), ())
    assert driver.partition.last_known_elr == (lost,)
    driver.beat(lost)
    driver.fence(3 - lost)
    assert driver.partition.leader == -1, "unfenced, but not to be elected before it has caught up"


def test_a_replica_that_shut_down_cleanly_stays_eligible() -> None:
    driver = Driver()
    driver.start(1, 2)
    driver.topic(1, 2, min_isr=2)
    stored = driver.epoch(1)
    driver.fence(1)
    driver.register(1, previous_epoch=stored)
    assert driver.partition.elr == (1,)
    assert driver.events("broker_registered")[-1].detail["clean"] is True


def test_a_broker_epoch_stored_before_a_later_unclean_life_is_not_clean() -> None:
    driver = Driver()
    driver.start(1, 2)
    driver.topic(1, 2, min_isr=2)
    stored = driver.epoch(1)
    driver.fence(1)
    driver.register(1, previous_epoch=stored)
    driver.now_ms += TIMEOUT_MS
    driver.register(1, previous_epoch=stored)
    assert driver.partition.elr == ()
    assert driver.events("broker_registered")[-1].detail["clean"] is False


def test_without_the_rule_an_unclean_replica_stays_eligible() -> None:
    driver = Driver("unclean_leaves_elr")
    driver.start(1, 2)
    driver.topic(1, 2, min_isr=2)
    driver.fence(1)
    driver.register(1)
    assert driver.partition.elr == (1,)


@pytest.mark.parametrize("off", [(), ("unclean_leaves_isr",)])
def test_registration_removes_the_broker_from_leadership_and_isr_in_its_own_batch(off: tuple[str, ...]) -> None:
    driver = Driver(*off)
    driver.start(1, 2)
    driver.topic(1, 2, min_isr=2)
    driver.now_ms += TIMEOUT_MS  # the session is over, and nobody has noticed yet
    epoch = driver.register(1).broker_epoch
    assert state(driver.partition) == ((1, (1, 2), ()) if off else (2, (2,), ()))
    assert driver.image.brokers[1].fenced
    assert driver.log[epoch : epoch + 1] == driver.log[-1:], "the last record of its batch"


def test_case_3_an_isr_member_in_an_older_broker_epoch_is_ineligible() -> None:
    driver = Driver()
    driver.start(1, 2)
    driver.topic(1, 2)
    driver.send(driver.proposal(1))
    seen = driver.proposal(1, 2)
    driver.fence(2)
    driver.start(2)
    assert seen.partition_epoch == driver.partition.partition_epoch, "fencing it changed nothing in the partition"
    assert driver.send(seen) is ErrorCode.ineligible_replica


def test_without_the_rule_a_member_in_an_older_broker_epoch_joins() -> None:
    driver = Driver("broker_epoch_checked_in_alter_partition")
    driver.start(1, 2)
    driver.topic(1, 2)
    driver.send(driver.proposal(1))
    seen = driver.proposal(1, 2)
    driver.fence(2)
    driver.start(2)
    assert driver.send(seen) is ErrorCode.none
    assert driver.partition.isr == (1, 2)


# ---- AlterPartition, check by check ----------------------------------------------------------------------------------


def three() -> Driver:
    """Brokers 1, 2, 3 and 4; a partition on the first three, led by 2 in a second leader epoch, 1 back and unfenced."""
    driver = Driver()
    driver.start(1, 2, 3, 4)
    driver.topic(1, 2, 3)
    driver.fence(1)
    driver.beat(1)
    assert state(driver.partition) == (2, (2, 3), ())
    return driver


def test_a_granted_change_bumps_the_partition_epoch_and_answers_the_new_state() -> None:
    driver = three()
    before = driver.partition
    request = AlterPartition(2, driver.epoch(2), (driver.proposal(3, 1, 2),))
    (result,) = driver.commit(driver.controller.alter_partition(request)).results
    assert result.error is ErrorCode.none
    assert result.partition == driver.partition
    assert driver.partition == replace(before, isr=(1, 2, 3), partition_epoch=before.partition_epoch + 1)


def test_a_change_to_the_same_isr_bumps_the_partition_epoch_too() -> None:
    driver = three()
    before = driver.partition
    assert driver.send(driver.proposal(2, 3)) is ErrorCode.none
    assert driver.partition == replace(before, partition_epoch=before.partition_epoch + 1)


EVERYTHING_WRONG: dict[str, Any] = {
    "topic_id": OTHER_ID,
    "index": 9,
    "leader_epoch": 99,
    "partition_epoch": 99,
    "members": ((4, -1),),
}
STALE = {"leader_epoch": 0}
"""Proposals that break several checks at once, and the first check each must be refused by."""
CHECKS: list[tuple[ErrorCode, dict[str, Any], int, int | None]] = [
    (ErrorCode.stale_broker_epoch, EVERYTHING_WRONG, 3, 0),
    (ErrorCode.unknown_topic_id, EVERYTHING_WRONG, 3, None),
    (ErrorCode.unknown_topic_or_partition, EVERYTHING_WRONG | {"topic_id": TOPIC_ID}, 3, None),
    (ErrorCode.not_controller, {"leader_epoch": 2, "partition_epoch": 0, "members": ((4, -1),)}, 3, None),
    (ErrorCode.not_controller, {"leader_epoch": 0, "partition_epoch": 2, "members": ((4, -1),)}, 3, None),
    (ErrorCode.fenced_leader_epoch, {"leader_epoch": 0, "partition_epoch": 0, "members": ((4, -1),)}, 3, None),
    (ErrorCode.invalid_request, {"partition_epoch": 0, "members": ((4, -1),)}, 3, None),
    (ErrorCode.invalid_update_version, {"partition_epoch": 0, "members": ((4, -1),)}, 2, None),
    (ErrorCode.invalid_request, {"members": ((2, -1), (4, -1))}, 2, None),
    (ErrorCode.invalid_request, {"members": ((3, -1),)}, 2, None),
    (ErrorCode.invalid_request, {"members": ((2, -1), (2, -1))}, 2, None),
    (ErrorCode.invalid_request, {"members": ()}, 2, None),
    (ErrorCode.ineligible_replica, {"members": ((2, -1), (3, -1))}, 2, None),
]


@pytest.mark.parametrize(("error", "wrong", "sender", "epoch"), CHECKS)
def test_a_proposal_is_refused_by_the_first_check_it_fails(
    error: ErrorCode, wrong: dict[str, Any], sender: int, epoch: int | None
) -> None:
    driver = three()
    assert (driver.partition.leader_epoch, driver.partition.partition_epoch) == (1, 1)
    proposal = driver.proposal(2, 3, **wrong)
    answers = []
    assert not changed(driver, lambda: answers.append(driver.send(proposal, sender=sender, epoch=epoch)))
    assert answers == [error]
    (refused,) = driver.events("alter_partition_refused")
    assert (refused.broker, refused.members, refused.detail["error"]) == (sender, proposal.isr, error.name)


def test_an_unregistered_sender_is_stale() -> None:
    assert three().send(three().proposal(2), sender=9, epoch=3) is ErrorCode.stale_broker_epoch


@pytest.mark.parametrize("how", ["fenced", "shutting down", "unregistered"])
def test_a_member_that_is_not_active_is_ineligible(how: str) -> None:
    driver = three()
    if how == "fenced":
        members = [(2, driver.epoch(2)), (1, driver.epoch(1))]
        driver.fence(1)
    elif how == "shutting down":
        create(driver, new("led-by-1", topic_id=OTHER_ID, **ASSIGNED, assignments=((0, (1,)),)))
        members = [(2, driver.epoch(2)), (1, driver.epoch(1))]
        assert not driver.beat(1, want_shut_down=True).fenced
    else:
        driver.controller = replace(
            driver.controller, image=replace(driver.image, brokers=driver.image.brokers.remove(1))
        )
        members = [(2, driver.epoch(2)), (1, 0)]
    assert driver.send(driver.proposal(members=tuple(members))) is ErrorCode.ineligible_replica


def test_without_the_rule_a_change_from_an_older_view_is_granted() -> None:
    driver = Driver("partition_epoch_checked_in_alter_partition")
    driver.start(1, 2, 3)
    driver.topic(1, 2, 3)
    old = driver.proposal(1, 2)
    assert driver.send(driver.proposal(1, 3)) is ErrorCode.none
    assert driver.send(old) is ErrorCode.none
    assert driver.partition.isr == (1, 2)


def test_one_request_judges_each_partition_by_itself_and_commits_the_good_ones_together() -> None:
    driver = three()
    good, bad = driver.proposal(2), driver.proposal(2, index=5)
    step = driver.controller.alter_partition(AlterPartition(2, driver.epoch(2), (bad, good, good)))
    assert [result.error for result in step.answer.results] == [
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.none,
        ErrorCode.invalid_update_version,
    ]
    assert len(step.records) == 1


# ---- controlled shutdown ---------------------------------------------------------------------------------------------


def test_a_broker_that_wants_to_go_hands_over_leadership_first_and_goes_when_it_leads_nothing() -> None:
    driver = Driver()
    driver.start(1, 2)
    driver.topic(1, 2)
    first = driver.beat(1, want_shut_down=True)
    assert (first.should_shut_down, first.fenced) == (False, False)
    assert driver.image.brokers[1].shutting_down
    assert state(driver.partition) == (2, (2,), ())
    second = driver.beat(1, want_shut_down=True)
    assert (second.should_shut_down, second.fenced) == (True, True)


def test_a_broker_that_has_gone_need_not_wait_for_its_session_to_register_again() -> None:
    driver = Driver()
    driver.start(1)
    stored = driver.epoch(1)
    assert driver.beat(1, want_shut_down=True).should_shut_down
    assert driver.register(1, previous_epoch=stored).error is ErrorCode.none
    assert not driver.beat(1).fenced


def test_a_late_heartbeat_does_not_bring_back_a_broker_that_has_gone() -> None:
    driver = Driver()
    driver.start(1)
    driver.beat(1, want_shut_down=True)
    assert driver.beat(1).fenced


def test_the_last_in_sync_replica_may_go_and_leads_again_when_it_is_back() -> None:
    driver = Driver()
    driver.start(1)
    driver.topic(1)
    stored = driver.epoch(1)
    driver.beat(1, want_shut_down=True)
    assert driver.beat(1, want_shut_down=True).should_shut_down
    assert state(driver.partition) == (-1, (), (1,))
    driver.register(1, previous_epoch=stored)
    driver.beat(1)
    assert state(driver.partition) == (1, (1,), ())


def test_a_fenced_broker_that_wants_to_go_is_told_to_and_its_session_ends() -> None:
    driver = Driver()
    driver.register(1)
    assert driver.beat(1, want_shut_down=True).should_shut_down
    assert driver.register(1).error is ErrorCode.none


# ---- topics and producer ids -----------------------------------------------------------------------------------------


def create(driver: Driver, *topics: NewTopic, validate_only: bool = False) -> tuple[TopicResult, ...]:
    results: tuple[TopicResult, ...] = driver.commit(
        driver.controller.create_topics(topics, validate_only=validate_only)
    )
    return results


def new(name: str = TOPIC, **given: Any) -> NewTopic:
    return NewTopic(name, given.pop("topic_id", TOPIC_ID), **{"partitions": 1, "replication_factor": 1} | given)


def test_replicas_are_placed_round_robin_from_the_start_drawn() -> None:
    driver = Driver()
    driver.start(1, 2, 3)
    create(driver, new(partitions=3, replication_factor=2, start=2))
    partitions = driver.image.topics[TOPIC].partitions
    assert [p.replicas for p in partitions] == [(3, 1), (1, 2), (2, 3)]
    assert [(p.leader, p.isr) for p in partitions] == [(3, (3, 1)), (1, (1, 2)), (2, (2, 3))]


def test_a_topic_records_the_settings_the_controller_goes_by_even_when_nobody_gave_them() -> None:
    driver = Driver()
    driver.start(1)
    create(driver, new(config=FrozenMap({"segment.bytes": "4096", "unclean.leader.election.enable": " TRUE"})))
    assert driver.image.topics[TOPIC].config == {
        "min.insync.replicas": "1",
        "segment.bytes": "4096",
        "unclean.leader.election.enable": "true",
        "unclean.recovery.strategy": "last-known-leader",
    }


def test_an_explicit_assignment_is_taken_and_only_active_replicas_are_in_sync() -> None:
    driver = Driver()
    driver.start(1, 2)
    driver.register(3)
    explicit = new(partitions=-1, replication_factor=-1, assignments=((1, (2, 1)), (0, (3, 2))))
    (result,) = create(driver, explicit)
    assert result.topic is not None
    assert [(p.replicas, p.isr, p.leader) for p in result.topic.partitions] == [
        ((3, 2), (2,), 2),
        ((2, 1), (2, 1), 2),
    ]


ASSIGNED = {"partitions": -1, "replication_factor": -1}


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (new(""), ErrorCode.invalid_topic_exception),
        (new("."), ErrorCode.invalid_topic_exception),
        (new("a b"), ErrorCode.invalid_topic_exception),
        (new("a\n"), ErrorCode.invalid_topic_exception),
        (new("x" * 250), ErrorCode.invalid_topic_exception),
        (new("__cluster_metadata"), ErrorCode.invalid_topic_exception),
        (new("taken"), ErrorCode.topic_already_exists),
        (new(config=FrozenMap({"no.such.key": "1"})), ErrorCode.invalid_config),
        (new(config=FrozenMap({"min.insync.replicas": "0"})), ErrorCode.invalid_config),
        (new(config=FrozenMap({"min.insync.replicas": "many"})), ErrorCode.invalid_config),
        (new(partitions=0), ErrorCode.invalid_partitions),
        (new(partitions=-2), ErrorCode.invalid_partitions),
        (new(partitions=2**31 - 1), ErrorCode.policy_violation),
        (new(replication_factor=0), ErrorCode.invalid_replication_factor),
        (new(replication_factor=3), ErrorCode.invalid_replication_factor),
        (new(assignments=((0, (1,)),)), ErrorCode.invalid_request),
        (new(**ASSIGNED, assignments=((1, (1,)),)), ErrorCode.invalid_replica_assignment),
        (new(**ASSIGNED, assignments=((0, (1,)), (0, (2,)))), ErrorCode.invalid_replica_assignment),
        (new(**ASSIGNED, assignments=((0, ()),)), ErrorCode.invalid_replica_assignment),
        (new(**ASSIGNED, assignments=((0, (1, 1)),)), ErrorCode.invalid_replica_assignment),
        (new(**ASSIGNED, assignments=((0, (7,)),)), ErrorCode.invalid_replica_assignment),
        (new(**ASSIGNED, assignments=((0, (3,)),)), ErrorCode.invalid_replica_assignment),
        (new(**ASSIGNED, assignments=((0, (1, 2)), (1, (1,)))), ErrorCode.invalid_replica_assignment),
    ],
)
def test_a_topic_that_cannot_be_is_refused_with_kafkas_error(topic: NewTopic, error: ErrorCode) -> None:
    driver = Driver()
    driver.start(1, 2)
    driver.register(3)  # registered, never unfenced
    create(driver, new("taken", topic_id=OTHER_ID))
    results = []
    assert not changed(driver, lambda: results.extend(create(driver, topic)))
    assert results[0].error is error
    assert results[0].message


def test_a_name_given_twice_in_one_request_is_refused_once_and_the_others_are_created() -> None:
    driver = Driver()
    driver.start(1)
    results = create(driver, new("a"), new("b", topic_id=OTHER_ID), new("a"))
    assert [(result.name, result.error) for result in results] == [
        ("a", ErrorCode.invalid_request),
        ("b", ErrorCode.none),
    ]
    assert list(driver.image.topics) == ["b"]


def test_topics_whose_metrics_would_be_one_do_not_exist_side_by_side() -> None:
    driver = Driver()
    driver.start(1)
    results = create(driver, new("a.b_c"), new("a_b.c", topic_id=OTHER_ID), new("a-b.c", topic_id=OTHER_ID))
    assert [result.error for result in results] == [
        ErrorCode.none,
        ErrorCode.invalid_topic_exception,
        ErrorCode.none,
    ]


def test_validating_creates_nothing() -> None:
    driver = Driver()
    driver.start(1)
    results = []
    assert not changed(driver, lambda: results.extend(create(driver, new(), validate_only=True)))
    assert results[0].error is ErrorCode.none
    assert TOPIC not in driver.image.topics


def test_topics_are_deleted_by_name_or_by_id() -> None:
    driver = Driver()
    driver.start(1)
    create(driver, new("a"), new("b", topic_id=OTHER_ID))
    wanted = [("a", None), (None, OTHER_ID), ("c", None), (None, uuid.UUID(int=77)), (None, None)]
    results = driver.commit(driver.controller.delete_topics(wanted))
    assert [result.error for result in results] == [
        ErrorCode.none,
        ErrorCode.none,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.invalid_request,
    ]
    assert len(driver.image.topics) == 0


def test_a_topic_given_twice_is_not_deleted_and_refused_once() -> None:
    driver = Driver()
    driver.start(1)
    create(driver, new("a"), new("b", topic_id=OTHER_ID))
    wanted = [("a", None), ("a", None), ("b", None), (None, OTHER_ID)]
    results = driver.commit(driver.controller.delete_topics(wanted))
    assert [(result.name, result.topic_id, result.error) for result in results] == [
        ("a", None, ErrorCode.invalid_request),
        ("b", OTHER_ID, ErrorCode.invalid_request),
    ]
    assert list(driver.image.topics) == ["a", "b"]


def test_no_producer_id_is_given_twice() -> None:
    driver = Driver()
    driver.start(1, 2)
    first = driver.commit(driver.controller.allocate_producer_ids(1, driver.epoch(1)))
    second = driver.commit(driver.controller.allocate_producer_ids(2, driver.epoch(2)))
    assert (first.first, first.count, second.first) == (0, 1000, 1000)


# ---- the log and the trace -------------------------------------------------------------------------------------------


def test_replaying_the_records_gives_the_same_image() -> None:
    driver = three()
    assert replayed(driver.log) == driver.image
    assert hash(replayed(driver.log)) == hash(driver.image)


def test_a_step_that_is_not_committed_has_changed_nothing() -> None:
    driver = three()
    before = driver.controller
    driver.controller.tick(10**9)
    driver.controller.alter_partition(AlterPartition(2, driver.epoch(2), (driver.proposal(2),)))
    assert driver.controller == before


def test_each_change_of_a_partition_is_traced_with_its_whole_state() -> None:
    driver = Driver()
    driver.start(1, 2)
    driver.topic(1, 2, min_isr=2)
    driver.fence(1)
    event = driver.events("partition_changed")[-1]
    assert (event.topic, event.partition, event.leader, event.leader_epoch) == (TOPIC, 0, 2, 1)
    assert (event.partition_epoch, event.members) == (1, (2,))
    assert event.detail == {
        "elr": [1],
        "last_known_elr": [],
        "replicas": [1, 2],
        "adding": [],
        "removing": [],
        "min_isr": 2,
        "reason": "fenced",
        "unclean": False,
    }
    assert [event.detail["reason"] for event in driver.events("broker_fenced")] == ["session_timeout"]
