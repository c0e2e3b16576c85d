"""Every state of a small cluster with balanced unclean recovery, while fewer than MinISR replicas lose data (Kafka
Replication Correctness §6.8).

The scope of `test_controller_scope`, with two kinds of unclean restart that the controller cannot tell apart: in one
the broker keeps what it had, in the other it loses it, which happens to at most f = MinISR − 1 replicas at a time; a
replica has made good its loss once it has caught up. Whenever the controller wants a recovery, every active replica may
tell its log. A log with every committed record goes further than one that has lost some; retention may have deleted all
of its records before the restart, and then it is empty and knows no epoch. A replica that has lost nothing and yet
lacks a committed record was out of the ISR when that was committed. It may have led before, and have records of its own
leader epoch that were never committed, behind which the log is greater than any with the committed records of older
epochs.

An administrator may ask for another strategy and MinISR. Each configuration has its own number of losses that it
survives: no more happen under it, and it is chosen only while no more are left to be made good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import pytest
from kio.schema.errors import ErrorCode

from images.broker.controller import unclean_recovery
from images.broker.controller.placement import NewTopic
from images.broker.controller.topic_config import SET, ConfigChange
from images.broker.controller.unclean_recovery import STRATEGY, ReplicaLogEnd
from images.broker.frozen_map import FrozenMap
from images.wire.field_values import NO_LEADER
from tests.broker.controller.controller_driver import TOPIC, TOPIC_ID, Driver
from tests.broker.controller.early_strategies import begin_early, begin_early_with_all
from tests.broker.controller.test_controller_scope import World, quiet, successors, wrong

Lost = frozenset[int]

WHOLE, EMPTIED, CUT, STALE = (1, 2), (-1, 2), (0, 1), (2, 3)
"""Logs as (leader epoch of the last record, end): two records are committed. Those of epoch 2 are not."""
MINIMUM = "min.insync.replicas"


class Config(NamedTuple):
    """What an administrator may change of the topic."""

    strategy: str
    min_isr: int

    @classmethod
    def of(cls, world: World) -> Config:
        config = world.controller.image.topics[TOPIC].config
        return cls(config[STRATEGY], int(config[MINIMUM]))


Losses = Mapping[Config, int]
"""The configurations of the topic → how many replicas may at one time have lost data under it."""


def started(brokers: int, min_isr: int, *off: str, strategy: str = "balanced") -> World:
    driver = Driver(*off)
    driver.start(*range(1, brokers + 1))
    config = FrozenMap({MINIMUM: str(min_isr), STRATEGY: strategy})
    new = NewTopic(TOPIC, TOPIC_ID, assignments=((0, tuple(range(1, brokers + 1))),), config=config)
    (result,) = driver.commit(driver.controller.create_topics([new]))
    assert result.error is ErrorCode.none
    return World(quiet(driver.controller), frozenset(driver.partition.replicas))


def steps(now: World, lost: Lost, losses: Losses) -> Iterator[tuple[str, World, Lost]]:
    """Each event, the world after it, and who has then lost data that it has not made good."""
    config = Config.of(now)
    for chosen, survived in losses.items():
        if chosen != config and len(lost) <= survived:
            changes = [ConfigChange(STRATEGY, SET, chosen.strategy), ConfigChange(MINIMUM, SET, str(chosen.min_isr))]
            step = now.controller.alter_config(TOPIC, changes)
            yield f"the topic becomes {chosen}", World(quiet(step.state), now.complete), lost
    for name, then, _ in successors(now):
        if "uncleanly" in name:
            yield f"{name} with all it had", replace(then, complete=now.complete), lost
            losing = lost | (now.complete - then.complete)
            if len(losing) <= losses[config]:
                yield name, then, losing
        else:
            yield name, then, lost - then.complete
    image = now.controller.image
    for recovery in now.controller.recoveries():
        active = [replica for replica in recovery.replicas if image.is_active(replica)]
        for logs in product(*(_may_tell(replica, now, lost) for replica in active)):
            told = {
                replica: ReplicaLogEnd(image.brokers[replica].epoch, recovery.leader_epoch, *log)
                for replica, log in zip(active, logs, strict=True)
            }
            step = now.controller.recover(TOPIC, 0, told, overdue=True)
            yield f"recovery by {told}", World(quiet(step.state), now.complete), lost


def _may_tell(replica: int, now: World, lost: Lost) -> tuple[tuple[int, int], ...]:
    if replica in now.complete:
        return WHOLE, EMPTIED
    return (CUT,) if replica in lost else (CUT, STALE)


def key(world: World, lost: Lost) -> object:
    return world.key(), Config.of(world), lost


def explore(start: World, f: int, losses: Losses | None = None) -> tuple[int, int, list[str] | None]:
    """How many states there are, how many recoveries elected, and the shortest way to a broken promise: with up to `f`
    losses under the first configuration, and the others of `losses`, if these may be chosen."""
    losses = {Config.of(start): f, **(losses or {})}
    paths: dict[object, list[str]] = {key(start, frozenset()): []}
    frontier: list[tuple[World, Lost]] = [(start, frozenset())]
    recovered = 0
    while frontier:
        found = []
        for now, lost in frontier:
            for name, then, losing in steps(now, lost, losses):
                path = [*paths[key(now, lost)], name]
                broken = wrong(now.controller.image, then.controller.image)
                if not {*then.partition.isr, *then.partition.elr} <= then.complete:
                    broken = f"a candidate lacks a committed record: {then.partition}, complete: {then.complete}"
                if broken is not None:
                    return len(paths), recovered, [*path, broken]
                recovered += name.startswith("recovery") and then.partition.leader != NO_LEADER
                if key(then, losing) not in paths:
                    paths[key(then, losing)] = path
                    found.append((then, losing))
        frontier = found
    return len(paths), recovered, None


@pytest.mark.parametrize(("brokers", "min_isr"), [(1, 1), (2, 2), (3, 2)])
def test_6_8_whoever_is_elected_holds_every_committed_record_in_every_reachable_state(
    brokers: int, min_isr: int
) -> None:
    states, recovered, broken = explore(started(brokers, min_isr), min_isr - 1)
    assert broken is None
    assert states > 5
    assert recovered > 0, "or nothing was shown of recoveries"


@pytest.mark.parametrize("brokers", [2, 3])
def test_6_8_so_does_whoever_is_elected_after_a_change_of_the_strategy_that_makes_a_loss_survivable(
    brokers: int,
) -> None:
    start = started(brokers, 2, strategy="last-known-leader")
    states, recovered, broken = explore(start, 0, {Config("balanced", 2): 1})
    assert broken is None
    assert states > 200
    assert recovered > 0, "or nothing was shown of recoveries"


@pytest.mark.parametrize(("mistake", "losses"), [(begin_early, 1), (begin_early_with_all, 0)])
def test_where_balanced_recovery_begins_too_early_it_may_elect_one_that_lacks_a_committed_record(
    mistake: Callable[[pytest.MonkeyPatch], None], losses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One loss is enough where nobody knows who left the ELR. Where that may have been anybody, no loss is needed: the
    replica that has been away for long tells the greatest log."""
    mistake(monkeypatch)
    _, _, broken = explore(started(3, 2, strategy="last-known-leader"), 0, {Config("balanced", 2): losses})
    assert broken is not None
    assert broken[-2].startswith("recovery")
    assert ("last_epoch=2" in broken[-2]) is (losses == 0), broken[-2]


def test_6_8_with_one_loss_more_a_recovery_may_elect_one_that_lacks_a_committed_record() -> None:
    _, _, broken = explore(started(2, 2), 2)
    assert broken is not None
    assert broken[-2].startswith("recovery")


def test_by_epochs_alone_a_recovery_may_elect_one_that_lacks_what_another_one_has_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def by_epochs(logs: Mapping[int, ReplicaLogEnd]) -> int:
        return max(logs, key=lambda replica: (logs[replica].last_epoch, logs[replica].end))

    monkeypatch.setattr(unclean_recovery, "greatest_log", by_epochs)
    _, _, broken = explore(started(2, 2), 1)
    assert broken is not None
    assert broken[-2].startswith("recovery")
    assert "last_epoch=-1" in broken[-2]


@pytest.mark.parametrize(
    "rule", ["recovery_waits_for_last_known_elr", "recovery_elects_greatest_log", "recovery_keeps_last_known_elr"]
)
def test_without_the_rule_a_recovery_electing_one_that_lacks_a_committed_record_is_within_reach(rule: str) -> None:
    _, _, broken = explore(started(2, 2, rule), 1)
    assert broken is not None
    assert broken[-2].startswith("recovery")
