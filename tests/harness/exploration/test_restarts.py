"""Exploration with brokers that crash and come back as new incarnations, with and without a loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from harness.search.exploration.breadth_first import explore
from harness.search.exploration.cluster_model import ClusterModel, ClusterStep
from harness.search.exploration.cluster_values import LogRecord, ReplicaDisk
from harness.search.exploration.machine_steps import Action
from harness.search.exploration.scope import Scope
from harness.search.state_space.explored_model import Numbers
from tests.harness.exploration.random_walks import kinds_of_canonical_walks

RESTART = Scope(
    replicas=2, records=1, leader_epochs=1, min_insync_replicas=2, fetches_in_flight=True, restarts=1, losses=1
)
"""One restart while requests of the earlier incarnation are in flight."""
AT_ONCE = replace(RESTART, leader_epochs=2, fetches_in_flight=False)

COMMON = ("read", "send", "serve", "receive", "lose", "elect", "session_ends", "crash")


@pytest.mark.parametrize("without", [(), ("fence_fetch_broker_epoch",)])
def test_a_late_fetch_of_an_earlier_incarnation_loses_an_acknowledged_record_exactly_without_the_rule(
    without: tuple[str, ...],
) -> None:
    result = explore(replace(RESTART, without=without), 1)
    if not without:
        assert result.violation is None
        assert result.depth > 20
        return
    assert result.violation is not None
    assert result.violation.promise == (
        "broker 2, in the ISR, lacks a committed record: it has no record; committed: records of "
        "leader epochs [0] (Leader Candidate Completeness)"
    )
    schedule = result.violation.schedule
    assert "broker 2 crashes: 2 is down, log [0]" in schedule
    assert any(line.startswith("broker 2 registers in broker epoch 1, has lost data: ") for line in schedule)
    assert any(line.startswith("a request of broker 2, of a lost connection, reaches broker 1") for line in schedule)


@pytest.mark.parametrize(
    "without",
    [
        ("unclean_leaves_elr",),
        ("eligible_leader_replicas",),
        ("unclean_leaves_isr", "registration_waits_for_fencing"),
    ],
)
def test_a_broker_that_lost_records_is_a_candidate_without_the_rule(without: tuple[str, ...]) -> None:
    result = explore(replace(AT_ONCE, without=without), 1)
    assert result.violation is not None
    assert "lacks a committed record" in result.violation.promise
    assert any("has lost data" in line for line in result.violation.schedule)


READ_AND_REPLICATED = ("read 1", "read 2", "append 1", "fetch 2 1")


def walked(model: ClusterModel, *actions: str, lossy: bool = False, begin: Numbers | None = None) -> Numbers:
    """The state after these steps, each a kind and its brokers, from the initial one or `begin`; whoever registers has
    lost data if `lossy`."""
    state = model.initial() if begin is None else begin
    for action in actions:
        kind, broker, *other = action.split()
        state = next(
            step.state
            for step in model.steps(state)
            if (step.action.kind, step.action.broker) == (kind, int(broker))
            and (not other or step.action.other == int(other[0]))
            and (kind != "register" or model.brokers.values[step.state[int(broker) - 1]].lossy == lossy)
        )
    return state


def may_lose_data(model: ClusterModel, state: Numbers, broker: int) -> bool:
    """Whether the broker may have lost data when it registers now."""
    registered = [step.state for step in model.steps(state) if step.action == Action("register", broker)]
    assert registered
    return any(model.brokers.values[after[broker - 1]].lossy for after in registered)


@pytest.mark.parametrize("min_insync_replicas", [2, 3])
def test_fewer_brokers_lose_data_at_a_time_than_have_a_committed_record(min_insync_replicas: int) -> None:
    """The second of two may lose its data once the first is in the ISR again, also where the minimum is above both."""
    model = ClusterModel(replace(AT_ONCE, min_insync_replicas=min_insync_replicas, restarts=2, losses=2))
    crashed = (*READ_AND_REPLICATED, "crash 2", "fence 2")
    assert may_lose_data(model, walked(model, *crashed), 2)
    lost = (*crashed, "register 2")
    both = walked(model, *lost, "crash 1", "fence 1", lossy=True)
    assert not may_lose_data(model, both, 1)
    joins = ("read 2", "unfence 2", "read 1", "read 1", "read 1", "fetch 2 1", "fetch 2 1")
    joined = walked(model, *lost, *joins, lossy=True)
    assert model.controllers.values[joined[-2]].partition.isr == (1, 2)
    after = walked(model, *lost, *joins, "crash 1", "fence 1", lossy=True)
    assert may_lose_data(model, after, 1)


def test_a_loss_may_undo_a_truncation_until_something_is_appended_behind_it() -> None:
    """Broker 1 truncates its record for that of broker 2, which is committed once broker 1 has it."""
    model = ClusterModel(replace(AT_ONCE, records=2))
    truncated = ("read 1", "read 2", "append 1", "elect 2", "read 2", "read 1", "fetch 1 2")
    own, committed = LogRecord(0, 0), LogRecord(1, 0)
    assert logs_of_next_life(model, *truncated) == {((), 0), ((own,), 0)}
    appended = (*truncated, "append 2", "fetch 1 2", "fetch 1 2")
    assert logs_of_next_life(model, *appended) == {((committed,), 0), ((committed,), 1), ((), 0)}


def logs_of_next_life(model: ClusterModel, *actions: str) -> set[tuple[tuple[LogRecord, ...], int]]:
    """The logs and high watermarks with which broker 1 may come back from a crash, none of which breaks a promise."""
    crashed = walked(model, *actions, "crash 1", "fence 1")
    states = [step.state for step in model.steps(crashed) if step.action == Action("register", 1)]
    assert all(model.broken(state) is None for state in states)
    return {(it.records, it.partition.high_watermark) for it in (model.brokers.values[state[0]] for state in states)}


def rare_or_any(random: Random, steps: Sequence[ClusterStep]) -> ClusterStep:
    rare = [step for step in steps if step.action.kind not in COMMON]
    return random.choice(random.choice([it for it in (rare, steps) if it]))


def test_states_with_restarts_that_differ_by_the_names_of_brokers_have_one_canonical_state() -> None:
    scope = Scope(
        records=1,
        leader_epochs=2,
        min_insync_replicas=2,
        isr_changes_in_flight=True,
        fetches_in_flight=True,
        restarts=2,
        losses=1,
    )
    model = ClusterModel(scope)
    kinds = kinds_of_canonical_walks(model, 12, 20, rare_or_any)
    assert {"crash", "fence", "register", "unfence", "late", "late_alter_partition"} <= kinds


def test_a_disk_has_every_log_before_a_truncation_that_a_loss_may_undo() -> None:
    one, other = LogRecord(0, 0), LogRecord(1, 0)
    disk = ReplicaDisk().after((), (one,), 0).after((one,), (), 0)
    assert disk == ReplicaDisk(0, ((one,),))
    assert disk.after((), (), 0) == disk
    disk = disk.after((), (other,), 1)
    assert disk == ReplicaDisk(1), "the append has synced the truncation"
    disk = disk.after((other,), (one, other), 1).after((one, other), (one,), 1)
    assert disk == ReplicaDisk(1, ((one, other), (other,)))
