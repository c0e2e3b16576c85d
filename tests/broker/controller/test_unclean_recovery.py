"""Unclean recovery (Kafka Replication Correctness §6.8, KIP-966): whose logs are asked for, when that is enough, and
who leads by it.

The controller is asked directly, with what replicas told of their logs; who lost what is up to the test.
"""

from __future__ import annotations

import itertools

import pytest
from kio.schema.errors import ErrorCode

from images.broker.controller.placement import NewTopic
from images.broker.controller.unclean_recovery import ReplicaLogEnd
from images.broker.frozen_map import FrozenMap
from images.wire.field_values import NO_LEADER
from tests.broker.controller.controller_driver import TOPIC, TOPIC_ID, Driver, state

WHOLE, CUT, EMPTY = (4, 100), (4, 60), (-1, 0)
"""A log as (leader epoch of its last record, end): 100 records are committed."""


class Ruin:
    """A partition of three replicas, min.insync.replicas 2, and what became of its brokers."""

    def __init__(self, strategy: str, *off: str, unclean: bool = False, min_isr: int = 2) -> None:
        self.driver = Driver(*off)
        self.driver.start(1, 2, 3)
        config = {
            "min.insync.replicas": str(min_isr),
            "unclean.recovery.strategy": strategy,
            "unclean.leader.election.enable": str(unclean).lower(),
        }
        new = NewTopic(TOPIC, TOPIC_ID, assignments=((0, (1, 2, 3)),), config=FrozenMap(config))
        (result,) = self.driver.commit(self.driver.controller.create_topics([new]))
        assert result.error is ErrorCode.none, result.message

    def all_gone(self) -> None:
        """3, then 2, then 1 fall silent; 1 and 2 come back from unclean shutdowns, still fenced."""
        self.driver.fence(3, 2, 1)
        for broker in (1, 2):
            self.driver.register(broker)
        assert state(self.driver.partition) == (NO_LEADER, (), ())
        assert self.driver.partition.last_known_elr == (1, 2)

    def log(self, broker: int, log: tuple[int, int], *, broker_epoch: int = 0, leader_epoch: int = 0) -> ReplicaLogEnd:
        """The log end that `broker` reports now; a given epoch is added to the true one."""
        true = self.driver.partition.leader_epoch
        return ReplicaLogEnd(self.driver.epoch(broker) + broker_epoch, true + leader_epoch, *log)

    def recover(self, told: dict[int, ReplicaLogEnd], *, overdue: bool = False) -> int:
        self.driver.commit(self.driver.controller.recover(TOPIC, 0, told, overdue=overdue))
        return self.driver.partition.leader


def asked(ruin: Ruin) -> tuple[int, ...]:
    recoveries = ruin.driver.controller.recoveries()
    return recoveries[0].replicas if recoveries else ()


# --- when -------------------------------------------------------------------------------------------------------------


def test_manual_recovery_asks_nobody_and_elects_nobody() -> None:
    ruin = Ruin("manual")
    ruin.all_gone()
    ruin.driver.beat(1)
    ruin.driver.beat(2)
    assert asked(ruin) == ()
    assert ruin.recover({1: ruin.log(1, WHOLE), 2: ruin.log(2, WHOLE)}, overdue=True) == NO_LEADER


def test_balanced_recovery_begins_only_when_isr_and_elr_are_empty_and_asks_the_last_known_elr() -> None:
    ruin = Ruin("balanced")
    ruin.driver.fence(3, 2, 1)
    assert ruin.driver.partition.elr == (1, 2)
    assert asked(ruin) == (), "they are merely away, and hold everything"
    ruin.driver.register(1)
    assert asked(ruin) == ()
    ruin.driver.register(2)
    assert asked(ruin) == (1, 2)


def test_proactive_recovery_begins_as_soon_as_nobody_may_lead_and_asks_every_replica() -> None:
    ruin = Ruin("proactive")
    ruin.driver.fence(3, 2)
    assert asked(ruin) == ()
    ruin.driver.fence(1)
    assert asked(ruin) == (1, 2, 3)


def test_a_partition_with_a_leader_is_not_recovered() -> None:
    for strategy in ("balanced", "proactive"):
        assert asked(Ruin(strategy)) == ()


# --- who --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lossy", [1, 2])
@pytest.mark.parametrize("lost", [CUT, EMPTY])
def test_6_8_with_f_losses_balanced_recovery_elects_a_replica_that_lost_nothing(
    lossy: int, lost: tuple[int, int]
) -> None:
    ruin = Ruin("balanced")
    ruin.all_gone()
    ruin.driver.beat(1)
    ruin.driver.beat(2)
    told = {broker: ruin.log(broker, lost if broker == lossy else WHOLE) for broker in (1, 2)}
    assert ruin.recover(told) == 3 - lossy
    change = ruin.driver.events("partition_changed")[-1]
    assert change.detail["reason"] == "unclean_recovery"
    assert change.detail["unclean"] is True, "always told, since nobody can be sure"
    assert change.detail["told"] == {str(broker): list(told[broker][2:]) for broker in (1, 2)}


@pytest.mark.parametrize("lossy", list(itertools.permutations((1, 2, 3), 2)))
def test_6_8_with_min_isr_three_any_two_may_lose_their_logs(lossy: tuple[int, int]) -> None:
    ruin = Ruin("balanced", min_isr=3)
    ruin.driver.fence(*lossy)
    ruin.driver.fence(*({1, 2, 3} - set(lossy)))
    for broker in (1, 2, 3):
        ruin.driver.register(broker)
        ruin.driver.beat(broker)
    assert asked(ruin) == (1, 2, 3)
    logs = {broker: ruin.log(broker, EMPTY if broker in lossy else WHOLE) for broker in (1, 2, 3)}
    assert ruin.recover(logs) == 6 - sum(lossy)


@pytest.mark.parametrize(("off", "leader"), [((), NO_LEADER), (("recovery_waits_for_last_known_elr",), 1)])
def test_balanced_recovery_waits_for_the_whole_last_known_elr(off: tuple[str, ...], leader: int) -> None:
    ruin = Ruin("balanced", *off)
    ruin.all_gone()
    ruin.driver.beat(1)
    ruin.driver.beat(3)
    logs = {1: ruin.log(1, EMPTY), 3: ruin.log(3, CUT)}
    assert ruin.recover(logs, overdue=True) == leader, "1 has lost everything, and 2 has not"


@pytest.mark.parametrize(("off", "leader"), [((), 2), (("recovery_elects_greatest_log",), 1)])
def test_the_greatest_log_is_elected(off: tuple[str, ...], leader: int) -> None:
    ruin = Ruin("balanced", *off)
    ruin.all_gone()
    ruin.driver.beat(1)
    ruin.driver.beat(2)
    assert ruin.recover({1: ruin.log(1, CUT), 2: ruin.log(2, WHOLE)}) == leader


@pytest.mark.parametrize(
    ("logs", "leader"),
    [
        (((5, 7), (4, 100), (4, 100)), 1),
        (((4, 99), (4, 100), (4, 98)), 2),
        (((4, 100), (4, 100), (4, 100)), 1),
        (((-1, 0), (-1, 0), (0, 1)), 3),
        (((4, 99), (-1, 100), (4, 98)), 2),
        (((5, 99), (-1, 100), (4, 101)), 3),
        (((-1, 90), (-1, 100), (4, 100)), 3),
    ],
    ids=[
        "the leader epoch counts first",
        "then the end",
        "then the order of the replicas",
        "an empty log is least",
        "but where all of its records have been deleted, which were committed",
        "a log with an epoch is greater than such a one if it goes as far",
        "the emptied log that goes furthest counts",
    ],
)
def test_logs_compare_by_the_leader_epoch_of_the_last_record_then_by_the_end(
    logs: tuple[tuple[int, int], ...], leader: int
) -> None:
    ruin = Ruin("proactive")
    ruin.driver.fence(3, 2, 1)
    for broker in (1, 2, 3):
        ruin.driver.register(broker)
    for broker in (1, 2, 3):
        ruin.driver.beat(broker)
    assert ruin.driver.partition.leader == NO_LEADER
    assert ruin.recover({broker: ruin.log(broker, log) for broker, log in enumerate(logs, 1)}) == leader


@pytest.mark.parametrize(("lossy", "lost"), [(1, CUT), (1, EMPTY), (2, (-1, 80))])
def test_6_8_a_replica_whose_records_have_all_been_deleted_has_lost_nothing(lossy: int, lost: tuple[int, int]) -> None:
    """Its epoch cache was rebuilt from no record. One that has lost its power may be as empty, at its log start."""
    ruin = Ruin("balanced")
    ruin.all_gone()
    ruin.driver.beat(1)
    ruin.driver.beat(2)
    emptied = (-1, WHOLE[1])
    assert ruin.recover({each: ruin.log(each, lost if each == lossy else emptied) for each in (1, 2)}) == 3 - lossy


@pytest.mark.parametrize(
    "stale", [{"broker_epoch": -1}, {"leader_epoch": -1}], ids=["an earlier life", "an earlier leader epoch"]
)
@pytest.mark.parametrize("off", [(), ("recovery_counts_current_lives_only",)])
def test_a_log_told_in_an_earlier_life_or_while_somebody_was_followed_does_not_count(
    stale: dict[str, int], off: tuple[str, ...]
) -> None:
    ruin = Ruin("balanced", *off)
    ruin.all_gone()
    ruin.driver.beat(1)
    ruin.driver.beat(2)
    told = {1: ruin.log(1, WHOLE, **stale), 2: ruin.log(2, CUT)}
    assert ruin.recover(told) == (1 if off else NO_LEADER), "1 may have been cut or emptied since it told that"


def test_a_log_of_a_broker_that_is_fenced_again_does_not_count() -> None:
    ruin = Ruin("balanced")
    ruin.all_gone()
    ruin.driver.beat(1)
    ruin.driver.beat(2)
    logs = {1: ruin.log(1, WHOLE), 2: ruin.log(2, CUT)}
    ruin.driver.fence(1)
    assert ruin.recover(logs) == NO_LEADER


def test_proactive_recovery_waits_for_everybody_until_its_time_is_over() -> None:
    ruin = Ruin("proactive")
    ruin.driver.fence(3, 2, 1)
    ruin.driver.beat(3)
    logs = {3: ruin.log(3, CUT)}
    assert ruin.recover({}, overdue=True) == NO_LEADER
    assert ruin.recover(logs) == NO_LEADER
    assert ruin.recover(logs, overdue=True) == 3, "1 and 2, which hold everything, are merely away"


# --- and then ---------------------------------------------------------------------------------------------------------


def test_the_others_stay_last_known_so_that_a_second_shutdown_needs_their_logs_once_more() -> None:
    ruin = Ruin("balanced")
    ruin.all_gone()
    ruin.driver.beat(1)
    ruin.driver.beat(2)
    assert ruin.recover({1: ruin.log(1, WHOLE), 2: ruin.log(2, WHOLE)}) == 1
    assert (ruin.driver.partition.isr, ruin.driver.partition.last_known_elr) == ((1,), (2,))
    ruin.driver.fence(1)
    ruin.driver.register(1)
    ruin.driver.beat(1)
    assert asked(ruin) == (1, 2)
    assert ruin.recover({1: ruin.log(1, EMPTY)}) == NO_LEADER
    assert ruin.recover({1: ruin.log(1, EMPTY), 2: ruin.log(2, WHOLE)}) == 2


def test_the_last_known_elr_is_forgotten_once_the_isr_suffices_again() -> None:
    ruin = Ruin("balanced")
    ruin.all_gone()
    ruin.driver.beat(1)
    ruin.driver.beat(2)
    ruin.recover({1: ruin.log(1, WHOLE), 2: ruin.log(2, WHOLE)})
    ruin.driver.send(ruin.driver.proposal(1, 2))
    assert (ruin.driver.partition.isr, ruin.driver.partition.last_known_elr) == ((1, 2), ())


def test_unclean_election_counts_under_manual_recovery_only() -> None:
    for strategy, leader in (("manual", 3), ("balanced", NO_LEADER), ("proactive", NO_LEADER)):
        ruin = Ruin(strategy, unclean=True)
        ruin.driver.fence(3, 2, 1)
        ruin.driver.beat(3)
        assert ruin.driver.partition.leader == leader, strategy


def test_a_recovery_bumps_leader_and_partition_epoch_once() -> None:
    ruin = Ruin("balanced")
    ruin.all_gone()
    ruin.driver.beat(1)
    ruin.driver.beat(2)
    before = ruin.driver.partition
    ruin.recover({1: ruin.log(1, WHOLE), 2: ruin.log(2, WHOLE)})
    after = ruin.driver.partition
    assert (after.leader_epoch, after.partition_epoch) == (before.leader_epoch + 1, before.partition_epoch + 1)
    assert ruin.recover({1: ruin.log(1, CUT), 2: ruin.log(2, WHOLE)}) == 1, "it leads already"
