"""A reassignment grows, catches up and completes at once, or is cancelled; it never loses what was promised."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from kio.schema.elect_leaders.v2.request import ElectLeadersRequest
from kio.schema.errors import ErrorCode

from images.broker.controller.admin_messages import elect_leaders_response
from images.broker.controller.partition_change import PartitionChangeBuilder
from images.broker.metadata.image import PartitionImage
from images.broker.replication.become_leader_or_follower import apply_registration
from images.broker.replication.leader import FetchStep, appended, on_replica_fetch, on_tick
from images.broker.replication.partition import Limits, Partition, PartitionRegistration, ProposeIsr, ReplicaFetch
from images.broker.rules import Rules
from images.wire.field_values import NO_LEADER
from tests.broker.controller.controller_driver import TOPIC, Driver, replayed, state


def cluster(
    *off: str,
    replicas: tuple[int, ...] = (1, 2, 3),
    min_isr: int = 2,
    unclean: bool = False,
    recovery: str = "manual",
) -> Driver:
    """Five brokers, and a partition on some of them."""
    driver = Driver(*off)
    driver.start(1, 2, 3, 4, 5)
    driver.topic(*replicas, min_isr=min_isr, unclean=unclean, recovery=recovery)
    return driver


def reassign(driver: Driver, *target: int) -> ErrorCode:
    (result,) = driver.commit(driver.controller.reassign([(TOPIC, 0, target)]))
    return result.error


def cancel(driver: Driver) -> ErrorCode:
    (result,) = driver.commit(driver.controller.reassign([(TOPIC, 0, None)]))
    return result.error


# --- grow, catch up, complete -----------------------------------------------------------------------------------------


def test_growing_leaves_the_isr_and_the_leader_epoch_as_they_are() -> None:
    driver = cluster()
    before = driver.partition
    assert reassign(driver, 3, 4, 5) is ErrorCode.none
    grown = driver.partition
    assert (grown.replicas, grown.adding, grown.removing) == ((3, 4, 5, 1, 2), (4, 5), (1, 2))
    assert set(grown.isr) == {1, 2, 3}
    assert (grown.leader, grown.leader_epoch) == (1, before.leader_epoch)
    assert grown.partition_epoch == before.partition_epoch + 1


def test_a_reassignment_completes_in_the_very_change_that_brings_the_last_adding_replica_in_sync() -> None:
    driver = cluster()
    reassign(driver, 3, 4, 5)
    epoch = driver.partition.leader_epoch
    assert driver.send(driver.proposal(1, 2, 3, 4)) is ErrorCode.none
    assert driver.partition.reassigning
    records = len(driver.log)
    assert driver.send(driver.proposal(1, 2, 3, 4, 5)) is ErrorCode.none
    assert len(driver.log) == records + 1, "one record: nobody sees the target without the ISR that made it possible"
    done = driver.partition
    assert (done.replicas, done.adding, done.removing) == ((3, 4, 5), (), ())
    assert state(done) == (3, (3, 4, 5), ())
    assert done.leader_epoch == epoch + 1
    assert replayed(driver.log).partition(TOPIC, 0) == done


def test_a_leader_that_stays_still_begins_a_new_epoch_when_a_replica_goes() -> None:
    driver = cluster()
    epoch = driver.partition.leader_epoch
    reassign(driver, 1, 2)
    assert state(driver.partition) == (1, (1, 2), ())
    assert driver.partition.leader_epoch == epoch + 1


def test_a_target_that_is_in_sync_too_few_times_is_waited_for() -> None:
    driver = cluster()
    driver.fence(2)
    assert reassign(driver, 1, 2) is ErrorCode.none
    assert driver.partition.removing == (3,), "1 alone is not min.insync.replicas of the target"
    driver.beat(2)
    assert driver.send(driver.proposal(1, 2, 3)) is ErrorCode.none
    assert state(driver.partition) == (1, (1, 2), ())


@pytest.mark.parametrize("rule", ["reassignment_waits_for_isr"])
def test_completing_early_leaves_a_committed_record_on_too_few_replicas(rule: str) -> None:
    driver = cluster(rule)
    reassign(driver, 1, 4)
    assert driver.partition.isr == (1,), "4 has nothing yet: a record acknowledged by {1, 2, 3} is on one replica only"
    assert not set(driver.partition.replicas) & {2, 3}


def test_a_target_of_brokers_nobody_knows_or_named_twice_is_refused() -> None:
    driver = cluster()
    for wrong in ((), (1, 1), (1, 9)):
        assert reassign(driver, *wrong) is ErrorCode.invalid_replica_assignment
    assert not driver.partition.reassigning


def test_a_new_order_changes_nothing_but_who_is_preferred() -> None:
    driver = cluster()
    reassign(driver, 3, 2, 1)
    assert driver.partition.replicas == (3, 2, 1)
    assert (driver.partition.leader, driver.partition.leader_epoch) == (1, 0)
    assert not driver.partition.reassigning


def test_a_new_order_keeps_a_replica_out_of_the_isr_there_and_has_it_elected_no_sooner() -> None:
    driver = cluster()
    driver.fence(3)
    driver.beat(3)
    before = driver.partition
    assert reassign(driver, 3, 1, 2) is ErrorCode.none
    after = driver.partition
    assert (after.replicas, after.adding, after.removing) == ((3, 1, 2), (), ())
    assert state(after) == state(before) == (1, (1, 2), ())
    assert after.leader_epoch == before.leader_epoch
    assert elect(driver) is ErrorCode.preferred_leader_not_available


# --- cancel -----------------------------------------------------------------------------------------------------------


def test_cancelling_gives_the_original_replicas_and_a_new_leader_epoch() -> None:
    driver = cluster()
    reassign(driver, 1, 2, 4)
    driver.send(driver.proposal(1, 2))
    reassign(driver, 1, 2, 4)
    epoch = driver.partition.leader_epoch
    assert cancel(driver) is ErrorCode.none
    assert set(driver.partition.replicas) == {1, 2, 3}
    assert not driver.partition.reassigning
    assert driver.partition.leader_epoch == epoch + 1


# --- another target ---------------------------------------------------------------------------------------------------


def test_the_same_target_again_changes_nothing() -> None:
    driver = cluster()
    reassign(driver, 4, 5, 1)
    driver.send(driver.proposal(1, 2, 3, 4))
    before, records = driver.partition, len(driver.log)
    assert reassign(driver, 4, 5, 1) is ErrorCode.none
    assert (driver.partition, len(driver.log)) == (before, records)


@pytest.mark.parametrize("unclean", [False, True])
def test_the_only_replica_in_sync_goes_on_leading_when_its_target_is_asked_for_again(unclean: bool) -> None:
    driver = cluster(replicas=(1, 3), min_isr=1, unclean=unclean)
    reassign(driver, 5, 2)
    driver.send(driver.proposal(1, 3, 2))
    for broker in (3, 1):
        driver.fence(broker)
    assert state(driver.partition) == (2, (2,), ())
    assert reassign(driver, 5, 2) is ErrorCode.none
    assert state(driver.partition) == (2, (2,), ()), "5 has nothing, and nobody needs it"


def test_another_target_keeps_the_replicas_that_are_in_both() -> None:
    """5 has died; 6 is to take its place, and 4 has caught up by then."""
    driver = Driver()
    driver.start(1, 2, 3, 4, 5, 6)
    driver.topic(1, 2, 3, min_isr=2)
    reassign(driver, 4, 5, 1)
    driver.send(driver.proposal(1, 2, 3, 4))
    for broker in (2, 3, 5):
        driver.fence(broker)
    assert state(driver.partition) == (1, (4, 1), ())
    assert reassign(driver, 4, 6, 1) is ErrorCode.none
    after = driver.partition
    assert (after.replicas, after.adding, after.removing) == ((4, 6, 1, 2, 3), (4, 6), (2, 3))
    assert state(after) == (1, (4, 1), ())
    driver.send(driver.proposal(1, 4, 6))
    assert state(driver.partition) == (1, (4, 6, 1), ())
    assert not driver.partition.reassigning


def test_a_target_without_the_only_replica_in_sync_is_refused_also_where_unclean_election_is_allowed() -> None:
    driver = _resting_on_the_new_replica(unclean=True)
    before = driver.partition
    assert reassign(driver, 2, 3) is ErrorCode.invalid_replica_assignment
    assert driver.partition == before


def test_cancelling_what_is_not_under_way_is_refused() -> None:
    assert cancel(cluster()) is ErrorCode.no_reassignment_in_progress


def _resting_on_the_new_replica(*off: str, unclean: bool = False, recovery: str = "manual") -> Driver:
    driver = cluster(*off, unclean=unclean, recovery=recovery)
    reassign(driver, 1, 4, 5)
    driver.send(driver.proposal(1, 2, 3, 4))
    driver.send(driver.proposal(1, 4))
    return driver


def test_cancelling_is_refused_while_too_few_of_the_original_replicas_are_in_sync() -> None:
    driver = _resting_on_the_new_replica()
    assert cancel(driver) is ErrorCode.invalid_replica_assignment
    assert set(driver.partition.isr) == {1, 4}
    assert reassign(driver, 2, 3) is ErrorCode.invalid_replica_assignment, "another one would drop 4 just the same"


def test_cancelling_is_refused_while_the_new_replica_alone_may_hold_what_is_committed() -> None:
    """2 and 4 acknowledged, came back uncleanly, and are in neither ISR nor ELR any more."""
    driver = cluster(replicas=(2, 3))
    reassign(driver, 4, 5)
    driver.send(driver.proposal(2, 3, 4))
    driver.send(driver.proposal(2, 4))
    for broker in (2, 4):
        driver.fence(broker)
    for broker in (2, 4):
        driver.register(broker)
    before = driver.partition
    assert (before.isr, before.elr, set(before.last_known_elr)) == ((), (), {2, 4})
    assert cancel(driver) is ErrorCode.invalid_replica_assignment
    assert reassign(driver, 3, 5) is ErrorCode.invalid_replica_assignment, "another one would drop 4 just the same"
    assert driver.partition == before


def test_cancelling_goes_ahead_where_unclean_election_is_allowed() -> None:
    assert cancel(_resting_on_the_new_replica(unclean=True)) is ErrorCode.none


@pytest.mark.parametrize("strategy", ["balanced", "proactive"])
def test_cancelling_is_refused_under_a_strategy_under_which_the_setting_does_not_count(strategy: str) -> None:
    assert cancel(_resting_on_the_new_replica(unclean=True, recovery=strategy)) is not ErrorCode.none


def test_without_the_rule_cancelling_leaves_committed_records_on_one_replica() -> None:
    driver = _resting_on_the_new_replica("cancel_needs_min_isr")
    assert cancel(driver) is ErrorCode.none
    assert driver.partition.isr == (1,), "what {1, 4} acknowledged is on 1 alone"


# --- remove and add again (Kafka Replication Correctness §6.5.4) ------------------------------------------------------

LIMITS = Limits(min_insync_replicas=2, replica_lag_time_max_ms=1_000, rules=Rules())
ACTIVE = {1: 11, 2: 12, 3: 13}


def view(image: PartitionImage) -> PartitionRegistration:
    return PartitionRegistration(image.replicas, image.isr, image.leader, image.leader_epoch, image.partition_epoch)


def _fetch(state: Partition, replica: int, offset: int, limits: Limits, epoch: int) -> FetchStep:
    asked = ReplicaFetch(replica, ACTIVE[replica], epoch, offset, -1)
    return on_replica_fetch(state, asked, ACTIVE, 0, limits)


def _removed_and_added_again(*off: str) -> tuple[Partition, Limits]:
    """The leader holds ten committed records. Follower 3, out of the ISR, has them too; it is removed, emptied and
    added again, and the leader's broker reads both changes in one metadata update."""
    driver = Driver(*off)
    driver.start(1, 2, 3)
    driver.topic(1, 2, 3, min_isr=2)
    driver.send(driver.proposal(1, 2))
    limits = replace(LIMITS, rules=Rules().without(off))
    state = apply_registration(Partition(node=1), view(driver.partition), 0, limits).partition
    state = appended(state, state.epochs.assign(state.leader_epoch, 0), 10, limits).partition
    state = _fetch(state, 2, 10, limits, state.leader_epoch).step.partition
    follower = state.leader_state.follower(3)
    assert follower is not None
    known = tuple(f._replace(log_end=10, broker_epoch=13) if f.id == 3 else f for f in state.leader_state.followers)
    state = state._replace(leadership=state.leader_state._replace(followers=known))
    assert state.high_watermark == 10
    reassign(driver, 1, 2)
    reassign(driver, 1, 2, 3)
    return apply_registration(state, view(driver.partition), 0, limits).partition, limits


def test_6_5_4_a_replica_removed_and_added_again_joins_only_on_a_fetch_of_its_own() -> None:
    state, limits = _removed_and_added_again()
    assert not _proposals(on_tick(state, ACTIVE, 0, limits).decisions)
    assert not _proposals(_fetch(state, 3, 0, limits, state.leader_epoch).step.decisions), "it is empty"
    assert _proposals(_fetch(state, 3, 10, limits, state.leader_epoch).step.decisions)


def test_6_5_4_without_a_fetch_in_the_current_epoch_the_leaders_old_view_lets_an_emptied_replica_join() -> None:
    state, limits = _removed_and_added_again("current_epoch_fetch_gates_isr_join")
    assert _proposals(on_tick(state, ACTIVE, 0, limits).decisions) == [(1, 2, 3)], "3 has not one record"


def test_6_5_4_a_fetch_sent_before_the_removal_is_fenced_after_it() -> None:
    state, limits = _removed_and_added_again()
    assert _fetch(state, 3, 10, limits, state.leader_epoch - 1).error is ErrorCode.fenced_leader_epoch


def test_6_5_4_without_the_new_leader_epoch_a_fetch_sent_before_the_removal_lets_an_emptied_replica_join() -> None:
    state, limits = _removed_and_added_again("removal_bumps_leader_epoch")
    late = _fetch(state, 3, 10, limits, 0)
    assert late.error is ErrorCode.none
    assert _proposals(late.step.decisions) == [(1, 2, 3)]


def _proposals(decisions: tuple[object, ...]) -> list[tuple[int, ...]]:
    return [decision.members for decision in decisions if isinstance(decision, ProposeIsr)]


# --- elections somebody asks for --------------------------------------------------------------------------------------


def elect(driver: Driver, *, unclean: bool = False) -> ErrorCode:
    (result,) = driver.commit(driver.controller.elect([(TOPIC, 0)], unclean=unclean))
    return result.error


def test_a_preferred_election_hands_leadership_back() -> None:
    driver = cluster()
    assert elect(driver) is ErrorCode.election_not_needed
    driver.fence(1)
    driver.beat(1)
    assert elect(driver) is ErrorCode.preferred_leader_not_available, "1 is not in the ISR"
    driver.send(driver.proposal(1, 2, 3))
    epoch = driver.partition.leader_epoch
    assert elect(driver) is ErrorCode.none
    assert (driver.partition.leader, driver.partition.leader_epoch) == (1, epoch + 1)


def test_asking_for_every_partition_lists_every_topic_and_the_partitions_that_needed_it() -> None:
    driver = cluster()
    results = driver.commit(driver.controller.elect(None, unclean=False))
    body = ElectLeadersRequest(election_type=0, topic_partitions=None, timeout=timedelta(0))
    (topic,) = elect_leaders_response(body, results).replica_election_results
    assert (topic.topic, topic.partition_result) == ("orders", ())


def test_an_unclean_election_is_only_for_a_partition_without_a_leader_and_is_told_as_such() -> None:
    driver = cluster(replicas=(1, 2), min_isr=1)
    assert elect(driver, unclean=True) is ErrorCode.election_not_needed
    driver.fence(2, 1)
    assert driver.partition.leader == NO_LEADER
    assert elect(driver, unclean=True) is ErrorCode.eligible_leaders_not_available
    driver.beat(2)
    assert driver.partition.leader == NO_LEADER, "2 may lack what 1 acknowledged alone"
    assert elect(driver, unclean=True) is ErrorCode.none
    assert state(driver.partition) == (2, (2,), ())
    assert driver.events("partition_changed")[-1].detail["unclean"] is True


def test_a_change_of_nothing_is_no_change() -> None:
    driver = cluster()
    builder = PartitionChangeBuilder(driver.image.topics[TOPIC], driver.partition, driver.image.is_active, Rules())
    assert builder.build() is None
