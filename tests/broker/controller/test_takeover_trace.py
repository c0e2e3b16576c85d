"""Changes that a new controller finds committed: their reasons are read off the state before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from images.broker.controller.takeover_trace import committed_changes
from images.broker.controller.unclean_recovery import ReplicaLogEnd
from images.broker.metadata.image import ClusterImage, Record, encode
from images.trace import TraceEvent
from images.wire import batch as batches
from images.wire.field_values import NO_LEADER
from tests.broker.controller.controller_driver import TOPIC, Driver


def left(strategy: str, *registered: int, unclean: bool = False) -> Driver:
    """3, 2 and 1 have fallen silent in this order; some are back from an unclean shutdown, 1 and 2 unfenced."""
    driver = Driver()
    driver.start(1, 2, 3)
    driver.topic(1, 2, 3, min_isr=2, unclean=unclean, recovery=strategy)
    driver.fence(3, 2, 1)
    for broker in registered:
        driver.register(broker)
        driver.beat(broker)
    return driver


def recover(driver: Driver) -> None:
    leader_epoch = driver.partition.leader_epoch
    told = {broker: ReplicaLogEnd(driver.epoch(broker), leader_epoch, 0, 5) for broker in (1, 2)}
    driver.commit(driver.controller.recover(TOPIC, 0, told, overdue=True))


def taken_over_from(image: ClusterImage, records: Sequence[Record]) -> list[TraceEvent]:
    """What a controller traces that finds `records` committed after `image`."""
    values = [encode(record) for record in records]
    batch = batches.build(values, timestamp_ms=0, leader_epoch=1, base_offset=image.offset)
    return [event for _, events in committed_changes(image, batch) for event in events]


def last(driver: Driver, act: Callable[[Driver], object]) -> tuple[TraceEvent, TraceEvent]:
    """The last change of the partition within `act`, as its controller traces it, and as its successor does."""
    image, before = driver.image, len(driver.log)
    act(driver)
    events = taken_over_from(image, driver.log[before:])
    assert all(event.detail["taken_over"] for event in events)
    return driver.events("partition_changed")[-1], [it for it in events if it.kind == "partition_changed"][-1]


def test_a_deletion_is_traced_by_the_controller_that_commits_it_and_by_one_that_finds_it_committed() -> None:
    driver = Driver()
    driver.start(1, 2, 3)
    driver.topic(1, 2, 3)
    image, before = driver.image, len(driver.log)
    driver.commit(driver.controller.delete_topics([(TOPIC, None)]))
    (own,), (taken_over,) = driver.events("partition_deleted"), taken_over_from(image, driver.log[before:])
    assert (own.topic, own.partition, own.topic_id) == (TOPIC, 0, str(image.topics[TOPIC].id))
    assert taken_over._replace(offset=own.offset) == own._replace(detail={"taken_over": True})


@pytest.mark.parametrize("strategy", ["balanced", "proactive"])
def test_an_unclean_recovery_of_a_deposed_controller_is_an_unclean_one(strategy: str) -> None:
    own, taken_over = last(left(strategy, 1, 2), recover)
    assert own.leader == taken_over.leader == 1
    for event in (own, taken_over):
        assert (event.detail["reason"], event.detail["unclean"]) == ("unclean_recovery", True)
    assert "told" not in taken_over.detail, "nobody knows it any more"


@pytest.mark.parametrize("strategy", ["manual", "balanced", "proactive", "last-known-leader"])
def test_an_election_out_of_the_elr_is_a_clean_one(strategy: str) -> None:
    driver = left(strategy)
    own, taken_over = last(driver, lambda driver: driver.beat(1))
    assert own.leader == taken_over.leader == 1
    assert (own.detail["unclean"], taken_over.detail["unclean"]) == (False, False)
    assert taken_over.detail["reason"] == "taken_over"


@pytest.mark.parametrize(
    ("replicas", "target", "leader"),
    [((1, 2, 3), (1, 2, 3), 1), ((1, 2), (1, 3), 1), ((1,), (3,), 3)],
    ids=["no reassignment", "the leader stays", "who joins leads"],
)
def test_who_joins_the_isr_does_so_by_request_of_the_leader(
    replicas: tuple[int, ...], target: tuple[int, ...], leader: int
) -> None:
    """Also in the change that completes a reassignment, and that may begin a leader epoch."""
    driver = Driver()
    driver.start(1, 2, 3)
    driver.topic(*replicas)
    if replicas == target:
        driver.send(driver.proposal(1, 2))
    else:
        driver.commit(driver.controller.reassign([(TOPIC, 0, target)]))
    own, taken_over = last(driver, lambda driver: driver.send(driver.proposal(*{*replicas, 3})))
    assert own.leader == taken_over.leader == leader
    assert own.detail["reason"] == taken_over.detail["reason"] == "alter_partition"
    assert not driver.partition.reassigning


@pytest.mark.parametrize(
    ("strategy", "leader", "unclean"), [("manual", 1, False), ("balanced", 3, False), ("balanced", 3, True)]
)
def test_a_leader_that_no_recovery_elects_is_taken_for_one_that_was_asked_for(
    strategy: str, leader: int, unclean: bool
) -> None:
    """Under `manual` there is none, and 3 is in no LastKnownELR, nor does the setting for unclean elections count under
    `balanced`. A controller that elects them is wrong, unless an administrator has asked for it."""
    driver = left(strategy, 1, 2, 3, unclean=unclean)
    before = driver.partition
    assert (before.leader, before.last_known_elr) == (NO_LEADER, (1, 2))
    wrong = replace(before, leader=leader, isr=(leader,), leader_epoch=9, partition_epoch=before.partition_epoch + 1)
    (event,) = taken_over_from(driver.image, [wrong])
    assert (event.detail["reason"], event.detail["unclean"]) == ("unclean_election", True)


def test_an_unclean_election_that_was_asked_for_is_told_alike_by_a_successor() -> None:
    driver = left("manual", 3)
    own, taken_over = last(driver, lambda driver: driver.commit(driver.controller.elect([(TOPIC, 0)], unclean=True)))
    assert own.leader == taken_over.leader == 3
    for event in (own, taken_over):
        assert (event.detail["reason"], event.detail["unclean"]) == ("unclean_election", True)


def test_one_that_is_asked_for_and_elects_a_member_of_the_elr_is_a_clean_one() -> None:
    driver = left("manual")
    waiting = replace(driver.image.brokers[1], fenced=False)
    image = replace(driver.image, brokers=driver.image.brokers.set(1, waiting))
    result = replace(driver.controller, image=image).elect([(TOPIC, 0)], unclean=True)
    (event,) = result.trace
    assert (event.leader, event.detail["reason"], event.detail["unclean"]) == (1, "unclean_election", False)


def test_the_last_known_leader_that_a_registration_lets_lead_is_an_unclean_one() -> None:
    """1 led last and lost its place; 2, the last of the ELR, loses its own as it registers, which elects 1 at once."""
    own, taken_over = last(left("last-known-leader", 1), lambda driver: driver.register(2))
    assert own.leader == taken_over.leader == 1
    for event in (own, taken_over):
        assert (event.detail["reason"], event.detail["unclean"]) == ("last_known_leader", True)


def test_an_unclean_election_upon_a_cancelled_reassignment_is_an_unclean_one() -> None:
    """3, alone in the ISR, is no replica any more, and 1 leads from outside the ISR: no leader has asked for that."""
    driver = Driver()
    driver.start(1, 2, 3, 4)
    driver.topic(1, 2, unclean=True)
    driver.commit(driver.controller.reassign([(TOPIC, 0, (3, 4))]))
    driver.send(driver.proposal(1, 2, 3))
    driver.fence(1, 2)
    for broker in (1, 2):
        driver.register(broker)
        driver.beat(broker)
    assert (driver.partition.leader, driver.partition.isr, driver.partition.elr) == (3, (3,), ())
    own, taken_over = last(driver, lambda driver: driver.commit(driver.controller.reassign([(TOPIC, 0, None)])))
    assert own.leader == taken_over.leader == 1
    assert (own.detail["reason"], own.detail["unclean"]) == ("reassignment_cancelled", True)
    assert (taken_over.detail["reason"], taken_over.detail["unclean"]) == ("taken_over", True)
