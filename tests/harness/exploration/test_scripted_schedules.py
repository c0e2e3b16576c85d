"""Schedules of the exploration as scripts, which the simulation plays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from harness.cli.main import main
from harness.incidents.incident import load_incident
from harness.search.exploration.breadth_first import explore
from harness.search.exploration.cluster_model import ClusterModel
from harness.search.exploration.promises_of_runs import SeenViolation, seen_broken
from harness.search.exploration.scope import Scope
from harness.search.scripted_schedules import incident_text as incident_text_module
from harness.search.scripted_schedules.incident_text import incident_text
from harness.search.scripted_schedules.message_gates import DroppingGate, HoldingGate, Passage
from harness.search.scripted_schedules.step_times import step_times
from harness.search.scripted_schedules.translation import ScriptedSchedule, Untranslatable, translated
from harness.search.state_space.breadth_first import Violation
from harness.search.state_space.shortest_schedules import WalkedStep
from images.broker.truncation_protocol import TruncationProtocol

TWO = Scope(replicas=2, isr_changes_in_flight=True, as_in_a_run=True)
RESTART = Scope(replicas=2, records=1, leader_epochs=2, min_insync_replicas=2, restarts=1, losses=1, as_in_a_run=True)

TWO_YAML = "{replicas: 2, brokers: 3, records: 2}"
IN_FLIGHT_YAML = "{replicas: 2, records: 1, alter_partition: in flight}"
RESTART_YAML = (
    "{replicas: 2, records: 1, leader_epochs: 1, min.insync.replicas: 2, restarts: 1, losses: 1, fetch: in flight}"
)


@pytest.mark.parametrize(
    ("scope", "flaw"),
    [
        (TWO_YAML, ("--protocol", "high_watermark")),
        (IN_FLIGHT_YAML, ("--protocol", "kip320_first_try")),
        (RESTART_YAML, ("--without", "fence_fetch_broker_epoch")),
        (RESTART_YAML, ("--without", "unclean_leaves_elr")),
    ],
)
def test_the_schedule_to_a_broken_promise_breaks_it_in_the_simulation_and_not_with_everything_on(
    scope: str, flaw: tuple[str, str], tmp_path: Path
) -> None:
    (tmp_path / "scope.yaml").write_text(scope)
    script = tmp_path / "found.yaml"
    assert main(["explore", str(tmp_path / "scope.yaml"), *flaw, "--jobs", "1", "--script", str(script)]) == 1
    flawed, sound = load_incident(script).variants
    assert (str(flawed.expect.verdict), flawed.expect.check) == ("invalid", "protocol")
    assert flawed.expect.finding == "candidate-incomplete"
    assert (str(sound.expect.verdict), sound.spec.without) == ("valid", ())
    assert main(["incident", "run", str(script), "--store", str(tmp_path / "runs")]) == 0


def test_no_script_is_written_when_every_promise_is_kept(tmp_path: Path) -> None:
    (tmp_path / "scope.yaml").write_text("{replicas: 2, records: 1, leader_epochs: 1}")
    script = tmp_path / "found.yaml"
    assert main(["explore", str(tmp_path / "scope.yaml"), "--jobs", "1", "--script", str(script)]) == 0
    assert not script.exists()


def test_a_step_without_a_translation_is_named_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(scope: Scope, steps: Sequence[WalkedStep]) -> ScriptedSchedule:
        raise Untranslatable(f"step 1, {steps[0].line}: no such fault")

    monkeypatch.setattr(incident_text_module, "translated", refuse)
    (tmp_path / "scope.yaml").write_text("{replicas: 1, brokers: 2, records: 1, leader_epochs: 2, reassignments: 1}")
    script = tmp_path / "found.yaml"
    command = ["explore", str(tmp_path / "scope.yaml"), "--without", "reassignment_keeps_isr", "--jobs", "1"]
    assert main([*command, "--script", str(script)]) == 3
    assert not script.exists()
    (line,) = (it for it in capsys.readouterr().out.splitlines() if it.startswith("not translated: "))
    assert line.startswith("not translated: step 1, a producer appends a record at broker 1")
    assert line.endswith("no such fault")


def test_no_fault_has_some_replicas_lag_alone() -> None:
    with pytest.raises(Untranslatable, match="step 2, lag 1: no fault has some replicas lag alone"):
        translated(TWO, walked(TWO, ("append", "lag 1")))


def test_of_the_shortest_schedules_one_that_a_script_can_have_is_written() -> None:
    """Without maximal_isr the leader may shrink the ISR by a replica that lags, or the controller as a session ends."""
    scope = Scope(records=1, leader_epochs=1, min_insync_replicas=2, isr_changes_in_flight=True, as_in_a_run=True)
    steps, _ = script_of(replace(scope, without=("maximal_isr",)))
    assert "lag" not in {step.action.kind for step in steps}


def test_situations_and_a_script_exclude_each_other(tmp_path: Path) -> None:
    options = ["--situations", str(tmp_path / "s.json"), "--script", str(tmp_path / "s.yaml")]
    assert main(["explore", "two-replicas", *options]) == 64


# --- what a run sees --------------------------------------------------------------------------------------------------


@cache
def violation(scope: Scope) -> Violation:
    found = explore(scope, 1).violation
    assert found is not None
    return found


def test_a_run_begins_with_brokers_that_know_the_partition() -> None:
    model = ClusterModel(TWO)
    cluster = model.cluster(model.initial())
    leader, follower = (it.partition for it in cluster.brokers)
    assert leader.leadership is not None
    assert (follower.leader, follower.leader_epoch) == (1, 0)
    assert not any(it.unread for it in cluster.brokers)


def test_a_follower_that_contradicts_committed_records_is_seen_once_it_is_in_the_isr() -> None:
    flawed = replace(TWO, protocol=TruncationProtocol.HIGH_WATERMARK)
    everywhere = violation(replace(flawed, as_in_a_run=False))
    assert "Log Matching below the high watermark" in everywhere.promise
    as_in_a_run = violation(flawed)
    last = as_in_a_run.steps[-1]
    assert last.action.kind == "alter_partition"
    assert seen_broken(last.before, last.after) == SeenViolation("candidate-incomplete", as_in_a_run.promise)
    assert all(seen_broken(step.before, step.after) is None for step in as_in_a_run.steps[:-1])


# --- translation ------------------------------------------------------------------------------------------------------


def script_of(scope: Scope) -> tuple[tuple[WalkedStep, ...], ScriptedSchedule]:
    steps = violation(scope).steps
    return steps, translated(scope, steps)


def faults_of(script: ScriptedSchedule, step: int) -> list[Mapping[str, Any]]:
    return [line.fault for line in script.lines if line.step == step]


def test_metadata_that_is_no_longer_the_newest_is_fetched_when_it_is_and_read_at_its_step() -> None:
    steps, script = script_of(replace(TWO, protocol=TruncationProtocol.KIP320_FIRST_TRY, records=1))
    times = step_times(steps)
    place, leader_epoch = next(
        (at, read)
        for at, step in enumerate(steps)
        if step.action.kind == "read"
        and (read := step.before.brokers[step.action.broker - 1].unread[step.action.other].registration.leader_epoch)
        < step.before.controller.partition.leader_epoch
    )
    epochs = [step.after.controller.partition.leader_epoch for step in steps]
    elected = epochs.index(leader_epoch)
    superseded = next(at for at, epoch in enumerate(epochs) if epoch > leader_epoch)
    answer, request, _ = faults_of(script, place + 1)
    assert (answer["part"], answer["effect"], answer["count"]) == ("response", "hold", 1)
    assert times.starts[elected] < answer["at"] < request["at"] < times.starts[superseded]
    assert answer["at"] + answer["for"] == pytest.approx(times.starts[place])


def test_a_late_request_outlives_the_power_loss_of_its_sender() -> None:
    steps, script = script_of(
        replace(RESTART, leader_epochs=1, fetches_in_flight=True, without=("unclean_leaves_elr",))
    )
    times = step_times(steps)
    kinds = [step.action.kind for step in steps]
    late, crash, registered = kinds.index("late"), kinds.index("crash"), kinds.index("register")
    sent = max(at for at, kind in enumerate(kinds[:late]) if kind == "send")
    (request,) = (it for it in faults_of(script, sent + 1) if it.get("effect") == "delay")
    assert times.starts[sent] + request["delay_ms"] / 1000 == pytest.approx(times.starts[late])
    power_loss = next(it for it in faults_of(script, crash + 1) if it["fault"] == "power-loss")
    assert power_loss["at"] + power_loss["for"] == pytest.approx(times.starts[registered])


LATE_BEHIND_A_LATER_EXCHANGE = (
    *("send", "crash", "fence", "register", "read", "unfence"),
    *("send", "append", "serve", "receive", "late"),
)


def test_an_exchange_of_the_next_incarnation_does_not_touch_the_late_request_of_the_one_before() -> None:
    scope = replace(RESTART, fetches_in_flight=True, losses=0)
    steps = walked(scope, LATE_BEHIND_A_LATER_EXCHANGE)
    times, script = step_times(steps), translated(scope, steps)
    kinds = list(LATE_BEHIND_A_LATER_EXCHANGE)
    first, second = (at for at, kind in enumerate(kinds) if kind == "send")
    arrivals = {}
    for sent in (first, second):
        (request,) = (it for it in faults_of(script, sent + 1) if it["effect"] == "delay")
        arrivals[sent] = times.starts[sent] + request["delay_ms"] / 1000
    assert arrivals[first] == pytest.approx(times.starts[kinds.index("late")])
    assert arrivals[second] == pytest.approx(times.starts[kinds.index("serve")])


def test_two_old_states_of_the_metadata_cannot_be_on_their_way_to_one_broker() -> None:
    scope = replace(TWO, leader_epochs=4)
    elections = ("elect", "elect 1", "elect")
    translated(scope, walked(scope, (*elections, "read")))
    with pytest.raises(Untranslatable, match="step 5, read: it reads one old state of the metadata after another"):
        translated(scope, walked(scope, (*elections, "read", "read")))


def walked(scope: Scope, kinds: Sequence[str]) -> tuple[WalkedStep, ...]:
    """The first steps of these kinds, one after the other, of a follower that is broker 2; `elect 1` of broker 1."""
    model = ClusterModel(scope)
    state = model.initial()
    steps = []
    for kind in kinds:
        name, _, broker = kind.partition(" ")
        takes = 1 if name in ("append", "serve", "late") else int(broker or 2)
        step = next(it for it in model.steps(state) if it.action[:2] == (name, takes))
        steps.append(WalkedStep(step.action, model.cluster(state), model.cluster(step.state), kind))
        state = step.state
    return tuple(steps)


def test_no_session_of_a_crashed_broker_ends_before_its_step() -> None:
    steps, script = script_of(
        replace(RESTART, leader_epochs=1, fetches_in_flight=True, without=("unclean_leaves_elr",))
    )
    times = step_times(steps)
    kinds = [step.action.kind for step in steps]
    crash, fenced = kinds.index("crash"), kinds.index("fence")
    assert times.starts[fenced] < times.starts[crash] + script.session_s < times.end_of(fenced)


def test_the_names_of_the_variants_and_the_story_say_what_is_off() -> None:
    scope = replace(RESTART, leader_epochs=1, fetches_in_flight=True, without=("unclean_leaves_elr",))
    text = incident_text("restarts", scope, violation(scope))
    assert "title: without unclean_leaves_elr in the scope restarts" in text
    assert f"  # 1. {violation(scope).schedule[0]}\n" in text


def test_a_session_cannot_end_while_another_broker_is_down_and_counts_as_alive() -> None:
    steps = violation(replace(RESTART, without=("unclean_leaves_isr", "registration_waits_for_fencing"))).steps
    crash = next(step for step in steps if step.action.kind == "crash")
    other = crash._replace(action=crash.action._replace(kind="session_ends", broker=3 - crash.action.broker))
    with pytest.raises(Untranslatable, match="another broker, which is down, must not be fenced meanwhile"):
        translated(RESTART, (crash, other))


# --- gates ------------------------------------------------------------------------------------------------------------


def test_each_fault_of_a_gate_is_injected_before_the_one_that_it_follows_ends() -> None:
    gate = DroppingGate("b2", ["b1"], "Fetch", 4.0, [Passage(1, 5.0), Passage(2, 6.0, holds_answer=True)])
    lines = [(line.step, line.fault) for line in gate.lines(9.0)]
    drops = [fault for _, fault in lines if fault["effect"] == "drop"]
    assert [round(it["at"] + it["for"], 3) for it in drops] == [5.0, 6.0, 9.0]
    for ending, following in pairwise(drops):
        between = [it for _, it in lines if ending["at"] < it["at"] <= following["at"]]
        assert following["at"] < ending["at"] + ending["for"]
        assert between[-1] is following
        assert {it["count"] for it in between[:-1]} == {1}
    held = next(fault for step, fault in lines if fault.get("part") == "response")
    assert held["at"] + held["for"] == 9.0


def test_a_holding_gate_lets_go_at_each_release_and_goes_on_holding() -> None:
    gate = HoldingGate("b1", ["controllers"], "AlterPartition", 4.0, [(3, 6.0), (5, 8.0)])
    spans = [(line.step, line.fault["at"], line.fault["at"] + line.fault["for"]) for line in gate.lines(9.0)]
    assert spans == [(0, 4.0, 6.0), (3, 5.999, 8.0), (5, 7.999, 9.0)]
