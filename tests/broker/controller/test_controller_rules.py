"""Rules of the controller, each on and off in one fixed schedule."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kio.schema.errors import ErrorCode

from images.wire.field_values import NO_LEADER
from tests.broker.controller.controller_driver import TIMEOUT_MS, TOPIC, Driver, state


def led(*off: str) -> Driver:
    """1 leads; 2 is in sync, 3 has left the ISR."""
    driver = Driver(*off)
    driver.start(1, 2, 3)
    driver.topic(1, 2, 3, min_isr=2)
    assert driver.send(driver.proposal(1, 2)) is ErrorCode.none
    return driver


@pytest.mark.parametrize(
    ("off", "error"),
    [
        ((), ErrorCode.fenced_leader_epoch),
        (("leader_epoch_checked_in_alter_partition",), ErrorCode.invalid_update_version),
        (("partition_epoch_checked_in_alter_partition",), ErrorCode.fenced_leader_epoch),
        (
            ("leader_epoch_checked_in_alter_partition", "partition_epoch_checked_in_alter_partition"),
            ErrorCode.none,
        ),
    ],
)
def test_a_late_proposal_of_an_earlier_leadership_changes_the_isr_exactly_without_both_epoch_checks(
    off: tuple[str, ...], error: ErrorCode
) -> None:
    driver = led(*off)
    late = driver.proposal(1, 2, 3)
    driver.beat(1, want_fence=True)
    assert driver.partition.leader == 2
    driver.beat(1)
    assert driver.send(driver.proposal(1, 2)) is ErrorCode.none
    driver.commit(driver.controller.elect([(TOPIC, 0)], unclean=False))
    assert state(driver.partition) == (1, (1, 2), ())
    assert driver.send(late) is error
    assert (3 in driver.partition.isr) is (error is ErrorCode.none), "3 may lack what 2 committed in between"


def test_an_isr_change_of_a_broker_that_does_not_lead_is_refused() -> None:
    driver = led()
    assert driver.send(driver.proposal(1, 2, 3), sender=2) is ErrorCode.invalid_request


@pytest.mark.parametrize(
    ("off", "error"),
    [((), ErrorCode.stale_broker_epoch), (("sender_epoch_checked_in_alter_partition",), ErrorCode.none)],
)
def test_a_late_proposal_of_an_earlier_incarnation_of_the_leader_changes_the_isr_exactly_without_the_rule(
    off: tuple[str, ...], error: ErrorCode
) -> None:
    """Both rules that are off in any case would take the leadership from a leader that restarts."""
    driver = led("unclean_leaves_isr", "registration_waits_for_fencing", *off)
    old, late = driver.epoch(1), driver.proposal(1, 2, 3)
    driver.register(1)
    driver.beat(1)
    late = replace(late, members=((1, driver.epoch(1)), *late.members[1:]))
    assert state(driver.partition) == (1, (1, 2), ())
    assert driver.send(late, sender=1, epoch=old) is error


@pytest.mark.parametrize("off", [(), ("stale_heartbeat_refused",)])
def test_a_late_heartbeat_of_an_earlier_incarnation_unfences_a_broker_exactly_without_the_rule(
    off: tuple[str, ...],
) -> None:
    driver = led(*off)
    old = driver.epoch(1)
    driver.now_ms += TIMEOUT_MS
    driver.register(1)
    answer = driver.beat(1, epoch=old, metadata_offset=driver.epoch(1))
    assert answer.error is (ErrorCode.none if off else ErrorCode.stale_broker_epoch)
    assert driver.image.brokers[1].fenced is not bool(off), "it has not read its own registration yet"


def test_without_an_elr_the_last_member_stays_in_the_isr_whatever_it_loses() -> None:
    for off, expected in (((), (NO_LEADER, (), (2,))), (("eligible_leader_replicas",), (1, (1,), ()))):
        driver = led(*off)
        driver.fence(2, 1)
        driver.register(1)
        driver.beat(1)
        assert state(driver.partition) == expected


@pytest.mark.parametrize("off", [(), ("reassignment_keeps_isr",)])
def test_a_reassignment_adds_to_the_isr_exactly_without_the_rule(off: tuple[str, ...]) -> None:
    driver = Driver(*off)
    driver.start(1, 2, 3)
    driver.topic(1, 2, min_isr=1)
    driver.commit(driver.controller.reassign([(TOPIC, 0, (1, 3))]))
    assert driver.partition.isr == ((1, 3) if off else (1, 2))
