"""The strategy `last-known-leader` (Apache Kafka 4.1): where ISR and ELR are empty, the last leader leads again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kio.schema.errors import ErrorCode

from images.broker.controller.placement import TopicDefaults
from images.broker.controller.requests import TopicResult
from images.broker.controller.topic_config import DELETE, SET, ConfigChange
from images.broker.frozen_map import FrozenMap
from images.wire.field_values import NO_LEADER
from tests.broker.controller.controller_driver import TOPIC, Driver, state
from tests.broker.controller.test_recovery_scope import Config, explore, started

STRATEGY = "unclean.recovery.strategy"


def led(*replicas: int, min_isr: int = 1, unclean: bool = False, recovery: str = "last-known-leader") -> Driver:
    driver = Driver()
    driver.start(*replicas)
    driver.topic(*replicas, min_isr=min_isr, unclean=unclean, recovery=recovery)
    return driver


def configure(driver: Driver, strategy: str) -> TopicResult:
    change = ConfigChange(STRATEGY, SET, strategy)
    return driver.commit(driver.controller.alter_config(TOPIC, [change]))


def test_it_is_the_default() -> None:
    driver = Driver()
    driver.start(1)
    driver.topic(1, recovery="")
    assert driver.image.topics[TOPIC].config[STRATEGY] == "last-known-leader"


def test_the_only_replica_leads_again_after_an_unclean_restart_and_the_possible_loss_is_traced() -> None:
    driver = led(1)
    driver.fence(1)
    assert (state(driver.partition), driver.partition.last_known_elr) == ((NO_LEADER, (), (1,)), (1,))
    driver.register(1)
    assert (state(driver.partition), driver.partition.last_known_elr) == ((NO_LEADER, (), ()), (1,)), "still fenced"
    driver.beat(1)
    assert (state(driver.partition), driver.partition.last_known_elr) == ((1, (1,), ()), ())
    elected = driver.events("partition_changed")[-1]
    assert (elected.detail["reason"], elected.detail["unclean"]) == ("last_known_leader", True)


def test_a_registration_at_once_leads_to_the_same_election() -> None:
    driver = led(1)
    driver.now_ms += 1000
    driver.register(1)
    assert state(driver.partition) == (NO_LEADER, (), ())
    driver.beat(1)
    assert driver.partition.leader == 1


def test_the_last_leader_is_elected_and_no_other_replica() -> None:
    driver = led(1, 2, 3, min_isr=2)
    driver.fence(3, 1, 2)
    for broker in (1, 3):
        driver.register(broker)
        driver.beat(broker)
    assert state(driver.partition) == (NO_LEADER, (), (2,)), "2 may be back with everything"
    driver.register(2)
    assert (state(driver.partition), driver.partition.last_known_elr) == ((NO_LEADER, (), ()), (2,))
    driver.beat(3)
    assert driver.partition.leader == NO_LEADER
    driver.beat(2)
    assert (state(driver.partition), driver.partition.last_known_elr) == ((2, (2,), ()), ())


def test_a_member_of_the_elr_leads_before_the_last_leader() -> None:
    driver = led(1, 2, 3, min_isr=2)
    driver.fence(3, 1, 2)
    driver.register(2)
    driver.beat(2)
    assert driver.partition.leader == NO_LEADER
    driver.beat(1)
    assert (state(driver.partition), driver.partition.last_known_elr) == ((1, (1,), ()), ())
    assert driver.events("partition_changed")[-1].detail["unclean"] is False


def test_of_several_last_known_replicas_none_is_elected() -> None:
    driver = led(1, 2, min_isr=2, recovery="manual")
    driver.fence(2, 1)
    for broker in (1, 2):
        driver.register(broker)
        driver.beat(broker)
    assert driver.partition.last_known_elr == (1, 2)
    configure(driver, "last-known-leader")
    assert driver.partition.leader == NO_LEADER


def test_a_change_of_the_strategy_elects_the_one_last_known_replica() -> None:
    single = led(1, recovery="manual")
    single.fence(1)
    single.register(1)
    single.beat(1)
    assert single.partition.leader == NO_LEADER
    configure(single, "last-known-leader")
    assert single.partition.leader == 1


@pytest.mark.parametrize("strategy", ["balanced", "manual"])
@pytest.mark.parametrize("before", ["last-known-leader", "proactive"])
def test_no_strategy_that_finds_every_record_begins_where_nobody_recorded_who_left_the_elr(
    before: str, strategy: str
) -> None:
    """2 has what it acknowledged with 1, and nothing says so; 3 has been away for longer, and may tell a greater log
    without it."""
    driver = led(1, 2, 3, min_isr=2, recovery=before)
    driver.fence(3, 2)
    driver.register(2)
    assert state(driver.partition) == (1, (1,), ())
    image = driver.image
    result = configure(driver, strategy)
    assert result.error is ErrorCode.invalid_config
    assert result.message == (
        f"unclean.recovery.strategy can become {strategy} only once ISR and ELR of every partition have "
        "min.insync.replicas members: those of partition 0 have 1 instead of 2"
    )
    assert driver.image == image
    driver.beat(2)
    driver.send(driver.proposal(1, 2))
    assert configure(driver, strategy).error is ErrorCode.none


@pytest.mark.parametrize("before", ["last-known-leader", "proactive"])
def test_where_isr_and_elr_suffice_it_begins_at_once_and_who_leaves_them_then_is_asked(before: str) -> None:
    """3 is asked for nothing: it may be gone for good."""
    driver = led(1, 2, 3, min_isr=2, recovery=before)
    driver.fence(3, 2)
    assert state(driver.partition) == (1, (1,), (2,))
    assert configure(driver, "balanced").error is ErrorCode.none
    assert driver.partition.last_known_elr == ()
    driver.register(2)
    driver.fence(1)
    driver.register(1)
    assert driver.controller.recoveries()[0].replicas == (1, 2)


@pytest.mark.parametrize(
    ("before", "strategy"),
    [
        ("last-known-leader", "proactive"),
        ("proactive", "last-known-leader"),
        ("balanced", "proactive"),
        ("balanced", "last-known-leader"),
        ("manual", "balanced"),
        ("balanced", "manual"),
    ],
)
def test_other_changes_of_the_strategy_need_no_replica(before: str, strategy: str) -> None:
    driver = led(1, 2, 3, min_isr=2, recovery=before)
    driver.fence(3, 2)
    driver.register(2)
    assert configure(driver, strategy).error is ErrorCode.none
    assert driver.image.topics[TOPIC].config[STRATEGY] == strategy


@pytest.mark.parametrize(("minimum", "error"), [("1", ErrorCode.none), ("2", ErrorCode.invalid_config)])
def test_the_minimum_that_counts_is_that_of_the_same_request(minimum: str, error: ErrorCode) -> None:
    driver = led(1, 2, 3, min_isr=3 - int(minimum))
    driver.fence(3, 2)
    driver.register(2)
    changes = [ConfigChange("min.insync.replicas", SET, minimum), ConfigChange(STRATEGY, SET, "balanced")]
    for asked in (changes, changes[::-1]):
        assert driver.controller.alter_config(TOPIC, asked, validate_only=True).answer.error is error


@pytest.mark.parametrize("replaces", [False, True])
def test_a_deleted_strategy_that_is_balanced_by_default_begins_no_earlier(replaces: bool) -> None:
    driver = led(1, 2, min_isr=2)
    topics = TopicDefaults(config=FrozenMap({STRATEGY: "balanced"}))
    driver.controller = replace(driver.controller, settings=replace(driver.controller.settings, topics=topics))
    changes = [ConfigChange("min.insync.replicas", SET, "2")]
    changes += [] if replaces else [ConfigChange(STRATEGY, DELETE)]
    driver.fence(2)
    assert driver.controller.alter_config(TOPIC, changes, replaces=replaces).answer.error is ErrorCode.none
    driver.register(2)
    assert driver.controller.alter_config(TOPIC, changes, replaces=replaces).answer.error is ErrorCode.invalid_config


@pytest.mark.parametrize("clean", [1, 2])
def test_a_member_of_the_elr_is_taken_for_the_last_leader_when_the_strategy_changes(clean: int) -> None:
    """The other one has left the ELR, and may lack what is committed."""
    other = 3 - clean
    driver = led(1, 2, min_isr=2, recovery="balanced")
    driver.fence(2, 1)
    driver.register(other)
    assert (driver.partition.elr, driver.partition.last_known_elr) == ((clean,), (other,))
    configure(driver, "last-known-leader")
    assert driver.partition.last_known_elr == (clean,)
    for broker in (other, clean):
        driver.register(broker)
        driver.beat(broker)
        assert driver.partition.leader == (clean if broker == clean else NO_LEADER)


@pytest.mark.parametrize(("back", "leader"), [((3, 2), 3), ((2, 3), 2)])
def test_where_the_topic_allows_unclean_election_any_replica_leads_while_the_last_leader_is_away(
    back: tuple[int, ...], leader: int
) -> None:
    driver = led(1, 2, 3, unclean=True)
    driver.fence(3, 2)
    driver.fence(1)
    for broker in back:
        driver.register(broker)
        driver.beat(broker)
    assert driver.partition.leader == leader


@pytest.mark.parametrize(("brokers", "min_isr"), [(1, 1), (2, 2), (3, 2)])
def test_without_any_loss_every_candidate_holds_every_committed_record_in_every_reachable_state(
    brokers: int, min_isr: int
) -> None:
    states, _, broken = explore(started(brokers, min_isr, strategy="last-known-leader"), 0)
    assert broken is None
    assert states >= 5


def test_one_loss_of_the_last_leader_is_enough_to_elect_a_replica_that_lacks_a_committed_record() -> None:
    _, _, broken = explore(started(2, 2, strategy="last-known-leader"), 1)
    assert broken is not None
    assert "heartbeats" in broken[-2], "which unfences, and so elects"


ALL_CONFIGS = [
    Config(strategy, minimum) for strategy in ("last-known-leader", "balanced", "manual") for minimum in (1, 2)
]


def test_without_any_loss_that_is_so_whatever_the_strategy_and_the_minimum_become() -> None:
    states, recovered, broken = explore(started(2, 2), 0, dict.fromkeys(ALL_CONFIGS, 0))
    assert broken is None
    assert states > 900
    assert recovered > 0
