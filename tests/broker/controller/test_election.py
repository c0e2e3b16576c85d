"""Elections, ELR and unclean restarts (docs/protocol.md, sections 4 and 5)."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from tests.broker.controller.controller_driver import TIMEOUT_MS, Driver, state

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


def back_after_a_clean_shutdown() -> tuple[Driver, int]:
    """A cluster of two in which broker 1 was fenced and registers anew, with the broker epoch that it had stored."""
    driver = Driver()
    driver.start(1, 2)
    driver.topic(1, 2, min_isr=2)
    stored = driver.epoch(1)
    driver.fence(1)
    driver.register(1, previous_epoch=stored)
    return driver, stored


def test_a_replica_that_shut_down_cleanly_stays_eligible() -> None:
    driver, _ = back_after_a_clean_shutdown()
    assert driver.partition.elr == (1,)
    assert driver.events("broker_registered")[-1].detail["clean"] is True


def test_a_broker_epoch_stored_before_a_later_unclean_life_is_not_clean() -> None:
    driver, stored = back_after_a_clean_shutdown()
    driver.now_ms += TIMEOUT_MS
    assert driver.register(1, previous_epoch=stored).error is ErrorCode.stale_broker_epoch
    driver.register(1)
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
