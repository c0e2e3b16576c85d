"""Schedules with reassignments as scripts, which the simulation plays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.cli.main import main
from harness.search.exploration.breadth_first import explore
from harness.search.exploration.cluster_model import ClusterModel
from harness.search.exploration.promises_of_runs import seen_broken
from harness.search.exploration.scope import Scope
from harness.search.scripted_schedules.incident_text import incident_text
from harness.search.scripted_schedules.step_times import step_times
from harness.search.scripted_schedules.translation import ScriptedSchedule, Untranslatable, translated
from harness.search.state_space.breadth_first import Violation
from harness.search.state_space.shortest_schedules import WalkedStep
from tests.harness.exploration import test_reassignments

ONE_OF_TWO, TWO_OF_THREE, TWO_OF_FOUR = (
    replace(scope, as_in_a_run=True)
    for scope in (test_reassignments.ONE_OF_TWO, test_reassignments.TWO_OF_THREE, test_reassignments.TWO_OF_FOUR)
)


def ends_as_expected(scope: Scope, found: Violation, folder: Path) -> bool:
    """Whether the script breaks the promise with the rule off, and none with everything on."""
    script = folder / "found.yaml"
    script.write_text(incident_text("found", scope, found))
    return main(["incident", "run", str(script), "--store", str(folder / "runs")]) == 0


@cache
def violation(scope: Scope) -> Violation:
    found = explore(scope, 1).violation
    assert found is not None
    return found


@pytest.mark.parametrize(
    "rule",
    [
        "reassignment_keeps_isr",
        "reassignment_waits_for_isr",
        "removal_bumps_leader_epoch",
        "current_epoch_fetch_gates_isr_join",
        "fence_fetch_epoch",
    ],
)
def test_a_reassignment_breaks_the_promise_in_the_simulation_and_not_with_everything_on(
    rule: str, tmp_path: Path
) -> None:
    scope = replace(ONE_OF_TWO, without=(rule,))
    assert ends_as_expected(scope, violation(scope), tmp_path)


def walked(scope: Scope, *actions: str) -> tuple[WalkedStep, ...]:
    """These steps, each a kind and the broker that takes it, or the target of a reassignment. Whoever reads reads the
    newest metadata."""
    model = ClusterModel(scope)
    state, steps = model.initial(), []
    for action in actions:
        kind, *numbers = action.split()
        brokers = tuple(map(int, numbers))
        *_, step = (
            it
            for it in model.steps(state)
            if it.action.kind == kind
            and (it.action.broker in brokers or model.cluster(it.state).controller.target == brokers)
        )
        steps.append(WalkedStep(step.action, model.cluster(state), model.cluster(step.state), action))
        state = step.state
    return tuple(steps)


def test_a_reassignment_whose_new_replica_leads_is_cancelled_in_the_simulation_exactly_without_its_rule(
    tmp_path: Path,
) -> None:
    """The shortest schedule without the rule, which takes half a minute to find."""
    scope = replace(TWO_OF_FOUR, without=("cancel_needs_min_isr",))
    steps = walked(
        scope,
        *("reassign 3 4", "read 3", "session_ends 2", "append 1", "read 1"),
        *("fetch 3", "fetch 3", "session_ends 1", "cancel 0"),
    )
    seen = seen_broken(steps[-1].before, steps[-1].after)
    assert seen is not None
    assert seen.finding == "reassignment-shrinks-isr"
    assert (
        "brokers [3, 4] are removed and nobody is left in ISR and ELR; committed: records of leader epochs [0]"
        in seen.promise
    )
    assert ends_as_expected(scope, Violation(seen.promise, steps), tmp_path)


def faults_of(script: ScriptedSchedule, step: int, name: str) -> list[Mapping[str, Any]]:
    return [line.fault for line in script.lines if line.step == step and line.fault["fault"] == name]


def test_the_replica_that_the_completion_of_a_reassignment_elects_is_placed_first() -> None:
    """To place it first only then would move the partition epoch, and the leader's proposal would be refused."""
    steps = walked(TWO_OF_FOUR, "reassign 3 4", "read 1", "read 3", "fetch 3", "read 4", "fetch 4")
    assert steps[-1].after.controller.partition.leader == 4
    (placed,) = faults_of(translated(TWO_OF_FOUR, steps), 1, "place-replicas")
    assert placed["nodes"] == ["b4", "b3"]
    assert placed["for"] < 0.5, "a refusal is not followed by another request"


def test_while_a_replica_that_is_added_is_in_sync_no_other_one_becomes_the_preferred_one() -> None:
    joined = ("reassign 3 4", "read 1", "read 3", "fetch 3")
    steps = walked(TWO_OF_FOUR, *joined, "session_ends 1")
    assert steps[-1].before.controller.partition.isr == (1, 2, 3)
    assert steps[-1].after.controller.partition.leader == 3
    translated(TWO_OF_FOUR, steps)
    after = steps[-1].after.controller
    other = after._replace(partition=replace(after.partition, leader=2))
    elects_2 = steps[-1]._replace(after=steps[-1].after._replace(controller=other))
    with pytest.raises(Untranslatable, match="step 5, session_ends 1: replicas that are reassigned have an order"):
        translated(TWO_OF_FOUR, (*steps[:-1], elects_2))


def test_after_the_schedule_all_brokers_have_a_replica_as_when_the_topic_was_created() -> None:
    steps = walked(TWO_OF_THREE, "reassign 1 3", "cancel 0")
    script = translated(TWO_OF_THREE, steps)
    (first,), (last,) = (faults_of(script, step, "place-replicas") for step in (0, len(steps) + 1))
    assert (first["nodes"], last["nodes"]) == (["b1", "b2"], ["b1", "b2", "b3"])
    assert last["at"] > script.end_s


def test_leaders_look_at_their_followers_once_in_a_script_at_its_step() -> None:
    scope = replace(ONE_OF_TWO, without=("current_epoch_fetch_gates_isr_join",))
    found = violation(scope)
    times, script = step_times(found.steps), translated(scope, found.steps)
    (place,) = (at for at, step in enumerate(found.steps) if step.action.kind == "tick")
    assert script.tick_s is not None
    assert times.starts[place] < script.tick_s < times.end_of(place)
    text = yaml.safe_load(incident_text("found", scope, found))
    assert text["replication_factor"] == text["brokers"] == 2, "a topic that is moved at first would be reassigned"
    assert int(text["settings"]["replica.lag.time.max.ms"]) == pytest.approx(2000 * script.tick_s)
    with pytest.raises(Untranslatable, match="a script has leaders look at their followers once"):
        translated(scope, (*found.steps[: place + 1], found.steps[place]))
