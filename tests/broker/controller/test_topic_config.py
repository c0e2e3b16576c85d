"""A topic's configuration changes while it is in use, and no node acts on an outdated minimum."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from images.broker.controller.topic_config import APPEND, DELETE, SET, SUBTRACT, ConfigChange
from images.wire.field_values import NO_LEADER
from tests.broker.controller.controller_driver import TOPIC, Driver, replayed, state


def configure(driver: Driver, name: str, value: str | None, operation: int = SET) -> tuple[ErrorCode, str | None]:
    result = driver.commit(driver.controller.alter_config(TOPIC, [ConfigChange(name, operation, value)]))
    return result.error, result.message


def cluster(*off: str, min_isr: int) -> Driver:
    driver = Driver(*off)
    driver.start(1, 2, 3)
    driver.topic(1, 2, 3, min_isr=min_isr)
    return driver


@pytest.mark.parametrize(("off", "elr"), [((), ()), (("full_isr_clears_elr",), (2, 3))])
def test_a_lower_minimum_clears_the_elr_exactly_with_the_rule(off: tuple[str, ...], elr: tuple[int, ...]) -> None:
    driver = cluster(*off, min_isr=2)
    driver.send(driver.proposal(1))
    assert state(driver.partition) == (1, (1,), (2, 3))
    assert configure(driver, "min.insync.replicas", "1")[0] is ErrorCode.none
    assert state(driver.partition) == (1, (1,), elr), "1 may now acknowledge alone what 2 and 3 do not have"
    assert replayed(driver.log) == driver.image


def test_a_leader_that_does_not_know_the_new_minimum_has_no_isr_change_committed() -> None:
    driver = cluster(min_isr=1)
    in_ignorance = driver.proposal(1)
    configure(driver, "min.insync.replicas", "2")
    assert driver.send(in_ignorance) is ErrorCode.invalid_update_version
    assert state(driver.partition) == (1, (1, 2, 3), ())


def test_without_the_rule_the_elr_counts_on_members_that_an_ignorant_leader_does_not_wait_for() -> None:
    """The leader, still at minimum 1, learns from the answer that it is alone in the ISR and acknowledges alone; then
    it falls silent and a member of the ELR is elected, which the controller takes to have everything."""
    driver = cluster("min_isr_change_moves_partition_epoch", min_isr=1)
    in_ignorance = driver.proposal(1)
    configure(driver, "min.insync.replicas", "2")
    assert driver.send(in_ignorance) is ErrorCode.none
    assert state(driver.partition) == (1, (1,), (2, 3))
    driver.fence(1)
    assert driver.partition.leader in (2, 3)
    assert driver.events("partition_changed")[-1].detail["unclean"] is False, "a loss nobody has consented to"


def test_allowing_unclean_election_elects_where_nobody_leads() -> None:
    driver = cluster(min_isr=1)
    driver.send(driver.proposal(1))
    driver.fence(1)
    assert driver.partition.leader == NO_LEADER
    assert configure(driver, "unclean.leader.election.enable", "true")[0] is ErrorCode.none
    assert state(driver.partition) == (2, (2,), ())
    assert driver.events("partition_changed")[-1].detail["unclean"] is True


def test_a_deleted_setting_is_the_default_again() -> None:
    driver = cluster(min_isr=2)
    configure(driver, "min.insync.replicas", None, DELETE)
    assert driver.image.topics[TOPIC].config["min.insync.replicas"] == "1"


@pytest.mark.parametrize(
    ("name", "value", "operation", "message"),
    [
        ("min.insync", "2", SET, "unknown topic configuration 'min.insync'"),
        ("min.insync.replicas", "0", SET, "min.insync.replicas"),
        ("min.insync.replicas", None, SET, "a value to set is needed"),
        ("min.insync.replicas", "1", APPEND, "nothing can be appended"),
    ],
)
def test_a_wrong_change_is_refused_with_a_line_that_says_why(
    name: str, value: str | None, operation: int, message: str
) -> None:
    driver = cluster(min_isr=2)
    before = driver.image
    error, line = configure(driver, name, value, operation)
    assert error is ErrorCode.invalid_config
    assert message in (line or "")
    assert driver.image == before


def test_the_configuration_of_a_topic_that_is_not_there_cannot_be_changed() -> None:
    driver = Driver()
    assert configure(driver, "min.insync.replicas", "1")[0] is ErrorCode.unknown_topic_or_partition


def test_deleting_an_unknown_key_changes_nothing() -> None:
    """As in Kafka: kafka-reassign-partitions --verify deletes throttles that nobody has set."""
    driver = Driver()
    driver.start(1)
    driver.topic(1)
    before = driver.image.topics[TOPIC].config
    for name in ("leader.replication.throttled.replicas", "no.such.key"):
        assert configure(driver, name, None, DELETE)[0] is ErrorCode.none
    assert driver.image.topics[TOPIC].config == before


def test_a_list_is_set_appended_to_and_subtracted_from() -> None:
    driver = cluster(min_isr=1)
    throttled = "follower.replication.throttled.replicas"
    for value, operation, expected in (
        ("0:1", SET, "0:1"),
        ("0:2,0:1", APPEND, "0:1,0:2"),
        ("0:1,0:3", SUBTRACT, "0:2"),
        ("*", SET, "*"),
        ("", SET, ""),
        ("0:3", APPEND, "0:3"),
    ):
        assert configure(driver, throttled, value, operation) == (ErrorCode.none, None)
        assert driver.image.topics[TOPIC].config[throttled] == expected
    assert configure(driver, throttled, "0:1,*")[0] is ErrorCode.invalid_config
    assert replayed(driver.log) == driver.image


def test_a_list_does_not_grow_beyond_what_the_metadata_stores() -> None:
    driver = cluster(min_isr=1)
    throttled = "follower.replication.throttled.replicas"
    halves = [",".join(f"{partition}:1" for partition in range(first, first + 3_000)) for first in (0, 3_000)]
    assert configure(driver, throttled, halves[0]) == (ErrorCode.none, None)
    before = driver.image
    error, line = configure(driver, throttled, halves[1], APPEND)
    assert error is ErrorCode.invalid_config
    assert "at most 32767" in (line or "")
    assert driver.image == before


def test_a_replaced_configuration_loses_every_key_that_is_not_given() -> None:
    driver = cluster(min_isr=2)
    configure(driver, "retention.ms", "1000")
    changes = [ConfigChange("segment.bytes", SET, "4096")]
    result = driver.commit(driver.controller.alter_config(TOPIC, changes, replaces=True))
    assert result.error is ErrorCode.none
    assert driver.image.topics[TOPIC].config == {
        "min.insync.replicas": "1",
        "segment.bytes": "4096",
        "unclean.leader.election.enable": "false",
        "unclean.recovery.strategy": "last-known-leader",
    }


def alter_broker(driver: Driver, broker: int, *changes: ConfigChange, replaces: bool = False) -> ErrorCode:
    result = driver.commit(driver.controller.alter_broker_config(broker, changes, replaces=replaces))
    error: ErrorCode = result.error
    return error


def test_throttles_of_a_broker_are_kept_until_they_are_deleted() -> None:
    driver = cluster(min_isr=1)
    leaders, followers = "leader.replication.throttled.rate", "follower.replication.throttled.rate"
    assert (
        alter_broker(driver, 1, ConfigChange(leaders, SET, "10"), ConfigChange(followers, SET, "20")) is ErrorCode.none
    )
    assert driver.image.broker_configs == {1: {leaders: "10", followers: "20"}}
    assert alter_broker(driver, 1, ConfigChange(leaders, DELETE), ConfigChange("none", DELETE)) is ErrorCode.none
    assert driver.image.broker_configs == {1: {followers: "20"}}
    assert alter_broker(driver, 1, ConfigChange(leaders, SET, "5"), replaces=True) is ErrorCode.none
    assert driver.image.broker_configs == {1: {leaders: "5"}}
    driver.fence(1)
    driver.start(1)
    assert driver.image.broker_configs == {1: {leaders: "5"}}, "throttles outlive a process"
    assert replayed(driver.log) == driver.image


@pytest.mark.parametrize(
    ("broker", "change", "error"),
    [
        (9, ConfigChange("leader.replication.throttled.rate", SET, "1"), ErrorCode.broker_id_not_registered),
        (1, ConfigChange("leader.replication.throttled.rate", SET, "-1"), ErrorCode.invalid_request),
        (1, ConfigChange("leader.replication.throttled.rate", SET, "x"), ErrorCode.invalid_request),
        (1, ConfigChange("leader.replication.throttled.rate", APPEND, "1"), ErrorCode.invalid_request),
        (1, ConfigChange("leader.replication.throttled.rate", 9, "1"), ErrorCode.invalid_request),
        (1, ConfigChange("num.partitions", SET, "3"), ErrorCode.invalid_request),
    ],
)
def test_nothing_else_can_be_set_on_a_broker(broker: int, change: ConfigChange, error: ErrorCode) -> None:
    driver = cluster(min_isr=1)
    assert alter_broker(driver, broker, change) is error
    assert driver.image.broker_configs == {}
