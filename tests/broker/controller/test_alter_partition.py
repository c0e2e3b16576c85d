"""ISR changes, check by check (docs/protocol.md, section 4)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from images.broker.controller.alter_partition import AlterPartition
from tests.broker.controller.controller_driver import (
    ASSIGNED,
    OTHER_ID,
    TOPIC_ID,
    Driver,
    changed,
    create_topics,
    new_topic,
    partition_of_three,
)


def test_a_granted_change_bumps_the_partition_epoch_and_answers_the_new_state() -> None:
    driver = partition_of_three()
    before = driver.partition
    request = AlterPartition(2, driver.epoch(2), (driver.proposal(3, 1, 2),))
    (result,) = driver.commit(driver.controller.alter_partition(request)).results
    assert result.error is ErrorCode.none
    assert result.partition == driver.partition
    assert driver.partition == replace(before, isr=(1, 2, 3), partition_epoch=before.partition_epoch + 1)


def test_a_change_to_the_same_isr_bumps_the_partition_epoch_too() -> None:
    driver = partition_of_three()
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
    driver = partition_of_three()
    assert (driver.partition.leader_epoch, driver.partition.partition_epoch) == (1, 1)
    proposal = driver.proposal(2, 3, **wrong)
    answers = []
    assert not changed(driver, lambda: answers.append(driver.send(proposal, sender=sender, epoch=epoch)))
    assert answers == [error]
    (refused,) = driver.events("alter_partition_refused")
    assert (refused.broker, refused.members, refused.detail["error"]) == (sender, proposal.isr, error.name)
    assert (refused.broker_epoch == refused.detail["registered"]) == (error is not ErrorCode.stale_broker_epoch)


@pytest.mark.parametrize(
    ("off", "error"),
    [
        ((), ErrorCode.fenced_leader_epoch),
        (("leader_epoch_checked_in_alter_partition",), ErrorCode.invalid_request),
    ],
)
def test_a_leader_that_was_deposed_is_refused_for_its_leader_epoch_before_it_is_asked_whether_it_leads(
    off: tuple[str, ...], error: ErrorCode
) -> None:
    """A broker proposes in leader epochs in which it leads; so the second check is for one that does not."""
    driver = Driver(*off)
    driver.start(1, 2, 3)
    driver.topic(1, 2, 3)
    late, deposed = driver.proposal(1, 2), driver.partition.leader
    driver.fence(deposed)
    assert driver.partition.leader != deposed
    assert driver.send(late, sender=deposed) is error


def test_an_unregistered_sender_is_stale() -> None:
    assert (
        partition_of_three().send(partition_of_three().proposal(2), sender=9, epoch=3) is ErrorCode.stale_broker_epoch
    )


@pytest.mark.parametrize("how", ["fenced", "shutting down", "unregistered"])
def test_a_member_that_is_not_active_is_ineligible(how: str) -> None:
    driver = partition_of_three()
    if how == "fenced":
        members = [(2, driver.epoch(2)), (1, driver.epoch(1))]
        driver.fence(1)
    elif how == "shutting down":
        create_topics(driver, new_topic("led-by-1", topic_id=OTHER_ID, **ASSIGNED, assignments=((0, (1,)),)))
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
    driver = partition_of_three()
    good, bad = driver.proposal(2), driver.proposal(2, index=5)
    step = driver.controller.alter_partition(AlterPartition(2, driver.epoch(2), (bad, good, good)))
    assert [result.error for result in step.answer.results] == [
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.none,
        ErrorCode.invalid_update_version,
    ]
    assert len(step.records) == 1
