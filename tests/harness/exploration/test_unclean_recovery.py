"""Exploration with an unclean recovery that elects the greatest log, once no member of ISR and ELR is left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from random import Random

import pytest

from harness.search.exploration import scope_file
from harness.search.exploration.breadth_first import explore
from harness.search.exploration.cluster_model import ClusterModel, ClusterStep
from harness.search.exploration.cluster_values import LogRecord, ReplicaDisk
from harness.search.state_space.explored_model import Numbers
from images.broker.controller.unclean_recovery import Strategy
from tests.harness.exploration.random_walks import kinds_of_canonical_walks
from tests.harness.exploration.test_restarts import walked

Patch = pytest.MonkeyPatch

_, SCOPE = scope_file.load("unclean-recovery")

LEADERLESS = (
    *("read 1", "append 1", "read 2", "fetch 2 1", "fetch 2 1"),
    *("crash 2", "fence 2", "crash 1", "fence 1"),
)
"""Both replicas have the record, which is committed, and both are down."""
BOTH_BACK = ("register 2", "read 2", "unfence 2", "register 1", "read 1", "unfence 1")


def recoveries_after(model: ClusterModel, state: Numbers) -> list[ClusterStep]:
    return [step for step in model.steps(state) if step.action.kind == "recover"]


def leaders_of(model: ClusterModel, steps: Iterable[ClusterStep]) -> set[int]:
    return {model.controllers.values[step.state[-2]].partition.leader for step in steps}


def test_every_state_of_the_shipped_scope_keeps_every_promise() -> None:
    result = explore(SCOPE, 1)
    assert result.violation is None
    assert result.depth > 20


@pytest.mark.parametrize("rule", ["recovery_waits_for_last_known_elr", "recovery_elects_greatest_log"])
def test_without_the_rule_a_replica_is_elected_that_has_lost_a_committed_record(rule: str) -> None:
    result = explore(replace(SCOPE, without=(rule,)), 1)
    assert result.violation is not None
    assert "lacks a committed record" in result.violation.promise
    assert result.violation.schedule[-1].startswith("the controller elects the greatest of the logs: ")


def test_nothing_is_elected_by_the_logs_before_both_have_told_theirs() -> None:
    model = ClusterModel(SCOPE)
    assert not recoveries_after(model, walked(model, *LEADERLESS))
    one = walked(model, *LEADERLESS, *BOTH_BACK[:3], lossy=False)
    assert not recoveries_after(model, one), "the other one may have what this one has lost"
    both = walked(model, *LEADERLESS, *BOTH_BACK, lossy=False)
    assert leaders_of(model, recoveries_after(model, both)) == {1, 2}, "with whole logs either may be preferred"


def test_with_manual_recovery_nobody_is_elected() -> None:
    model = ClusterModel(replace(SCOPE, unclean_recovery=Strategy.MANUAL))
    assert not recoveries_after(model, walked(model, *LEADERLESS, *BOTH_BACK, lossy=False))


def test_a_log_with_an_undone_cut_would_be_elected_and_so_none_appends_behind_one(monkeypatch: Patch) -> None:
    """Broker 2 leads with a record of epoch 1, and cuts it for the one of broker 1, of epoch 0, which is committed in
    epoch 2. Had it lost the cut with its power, its log would be the greatest."""
    assert not _logs_that_lack_what_is_committed(ClusterModel(CUT))
    monkeypatch.setattr(ReplicaDisk, "after", _every_cut_may_be_undone)
    assert _logs_that_lack_what_is_committed(ClusterModel(CUT)) == {(LogRecord(1, 0),)}


CUT = replace(SCOPE, records=2, leader_epochs=5)


def _logs_that_lack_what_is_committed(model: ClusterModel) -> set[tuple[LogRecord, ...]]:
    """Of all logs with which broker 2 may come back, those that are elected and lack a committed record."""
    leads = ("read 1", "read 2", "append 1", "elect 2", "read 2", "append 2", "elect 1", "read 1 1", "read 2")
    committed = ("fetch 2 1", "fetch 2 1", "fetch 2 1", *LEADERLESS[5:])
    down = walked(model, *leads, *committed)
    assert model.cluster(down).history.committed == (LogRecord(0, 0),)
    lacking = set()
    for registered in model.steps(down):
        if (registered.action.kind, registered.action.broker) != ("register", 2):
            continue
        log = model.cluster(registered.state).brokers[1].records
        both = walked(model, *BOTH_BACK[1:], begin=registered.state)
        elected = recoveries_after(model, both)
        assert elected
        lacking |= {log for step in elected if model.broken(step.state) is not None}
    return lacking


def _every_cut_may_be_undone(
    disk: ReplicaDisk, before: tuple[LogRecord, ...], log: tuple[LogRecord, ...], high_watermark: int
) -> ReplicaDisk:
    """As Kafka has it, which syncs none."""
    cut = () if log[: len(before)] == before else (before,)
    return ReplicaDisk(max(disk.checkpoint, high_watermark), tuple(sorted({*disk.truncated, *cut})))


def test_states_with_a_recovery_that_differ_by_the_names_of_brokers_have_one_canonical_state() -> None:
    kinds = kinds_of_canonical_walks(ClusterModel(SCOPE), 12, 30, _towards_recovery)
    assert "recover" in kinds


def _towards_recovery(random: Random, steps: Sequence[ClusterStep]) -> ClusterStep:
    """Any step, but one of crashes and what follows them, or of reading, oftener."""
    wanted = ("crash", "fence", "register", "unfence", "recover", "read")
    rare = [step for step in steps if step.action.kind in wanted]
    return random.choice(random.choice([it for it in (rare, rare, steps) if it]))
