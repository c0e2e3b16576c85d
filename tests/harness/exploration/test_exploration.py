"""Exhaustive exploration in scopes of a second or less; docs/exploration.md has the larger ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.search.exploration import controller_steps
from harness.search.exploration.breadth_first import explore
from harness.search.exploration.cluster_model import ClusterModel
from harness.search.exploration.controller_steps import ControllerSteps
from harness.search.exploration.machine_steps import Action
from harness.search.exploration.scope import Scope
from harness.search.exploration.scope_file import SHIPPED, load
from harness.search.quorum_exploration import scope_file as quorum_scope_file
from harness.search.state_space.breadth_first import ExplorationResult
from harness.search.state_space.canonical import CanonicalStates
from harness.search.state_space.explored_model import Numbers
from images.broker.controller.partition_change import PartitionChange, PartitionChangeBuilder
from images.broker.log.leader_epochs import EpochCache
from images.broker.replication import leader
from images.broker.replication.partition import Limits, Partition, PartitionStep
from images.broker.truncation_protocol import TruncationProtocol

TWO_REPLICAS = Scope(replicas=2, isr_changes_in_flight=True)
SMALL = replace(TWO_REPLICAS, records=1)
NEWEST = TruncationProtocol.TRUNCATE_ON_FETCH


def explored(scope: Scope) -> ExplorationResult:
    return explore(scope, 1)


def broken(scope: Scope) -> str:
    violation = explored(scope).violation
    assert violation is not None
    return violation.promise


@pytest.mark.parametrize("protocol", [TruncationProtocol.KIP320, NEWEST])
def test_the_sound_protocols_keep_every_promise_in_every_state(protocol: TruncationProtocol) -> None:
    result = explored(replace(SMALL, protocol=protocol))
    assert result.violation is None
    assert result.states > 1_000
    assert result.depth > 12


@pytest.mark.parametrize("protocol", [it for it in TruncationProtocol if it not in (TruncationProtocol.KIP320, NEWEST)])
def test_every_flawed_protocol_loses_or_contradicts_a_committed_record(protocol: TruncationProtocol) -> None:
    records = 2 if protocol is TruncationProtocol.HIGH_WATERMARK else 1
    result = explored(replace(TWO_REPLICAS, records=records, protocol=protocol))
    assert result.violation is not None
    assert "; committed: " in result.violation.promise
    assert len(result.violation.schedule) == result.depth


@pytest.mark.parametrize(
    ("rule", "promise"),
    [
        ("truncate_on_divergence", "Log Matching"),
        ("maximal_isr", "Leader Candidate Completeness"),
        ("follower_high_watermark_within_log", "Log Matching below the high watermark"),
        ("high_watermark_gates_isr_join", "Leader Candidate Completeness"),
        ("consumer_reads_below_high_watermark", "consumers read"),
        ("elect_from_isr_or_elr", "Leader Candidate Completeness"),
        ("full_isr_clears_elr", "Replication Quorum Superset"),
    ],
)
def test_a_rule_that_is_off_breaks_a_promise(rule: str, promise: str) -> None:
    assert promise in broken(replace(TWO_REPLICAS, without=(rule,)))


def test_a_high_watermark_that_falls_with_an_append_breaks_a_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    def appended(partition: Partition, epochs: EpochCache, log_end: int, limits: Limits) -> PartitionStep:
        return PartitionStep(partition._replace(epochs=epochs, log_end=log_end, high_watermark=0))

    monkeypatch.setattr(leader, "appended", appended)
    assert broken(replace(TWO_REPLICAS, leader_epochs=1)) == "the high watermark of leader 1 falls from 1 to 0"


def test_brokers_read_of_the_partition_epochs_of_the_shipped_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change without a newer partition epoch is no news for a broker, as in the shell."""
    before = controller_steps.created((1, 2), (1, 2))
    build = PartitionChangeBuilder.build

    def fenced(bump: int) -> list[int]:
        def built(builder: PartitionChangeBuilder) -> PartitionChange | None:
            change = build(builder)
            epoch = before.partition.partition_epoch + bump
            return change and replace(change, partition=replace(change.partition, partition_epoch=epoch))

        monkeypatch.setattr(PartitionChangeBuilder, "build", built)
        step = ControllerSteps(SMALL.rules, SMALL.topic_config).fence(before, 2, 1)
        assert step is not None
        assert step.controller.partition.isr == (1,)
        return [it.registration.partition_epoch for it in step.updates]

    assert [fenced(bump) for bump in (1, 0)] == [[1], [0]]


DELAYED = replace(SMALL, isr_changes_in_flight=False, fetches_in_flight=True)


def test_with_fetches_in_flight_a_new_leader_may_not_know_all_committed_records() -> None:
    """A follower learns of a new high watermark in an answer, which may be lost."""
    result = explored(replace(DELAYED, leader_epochs=2))
    assert result.violation is None
    assert "applied high watermark" in broken(replace(DELAYED, leader_epochs=2, without=("applied_high_watermark",)))
    assert explored(replace(SMALL, without=("applied_high_watermark",))).violation is None


def test_a_request_of_a_lost_connection_may_still_arrive() -> None:
    model = ClusterModel(DELAYED)
    kinds = set()
    seen = {model.initial()}
    frontier = [model.initial()]
    while "late" not in kinds:
        steps = [step for state in frontier for step in model.steps(state)]
        kinds |= {step.action.kind for step in steps}
        frontier = list({step.state for step in steps} - seen)
        seen |= set(frontier)
    assert {"send", "serve", "receive", "lose"} <= kinds


_TO_A_LATE_ANSWER = (
    "read 1, append 1, elect 2, read 1, send 1 2, read 2, serve 2 1, elect 1, read 2, read 1, "
    "send 2 1, serve 1 2, receive 2 1, send 2 1, serve 1 2, receive 2 1, send 2 1, serve 1 2, elect 2, read 1"
)
"""Broker 1 asks for the end of an epoch, leads and commits a record, and follows again when it has no answer yet."""


@pytest.mark.parametrize(
    ("shared", "off", "loses"),
    [(True, (), [False]), (True, ("ignore_stale_epoch_answer",), [True]), (False, ("ignore_stale_epoch_answer",), [])],
)
def test_an_answer_of_an_earlier_leadership_arrives_where_partitions_share_a_fetcher(
    shared: bool, off: tuple[str, ...], loses: list[bool]
) -> None:
    _, scope = load("answers-of-earlier-leaders")
    model = ClusterModel(replace(scope, without=off, fetchers_shared=shared))
    state = model.initial()
    for words in _TO_A_LATE_ANSWER.split(", "):
        kind, *numbers = words.split()
        steps = [step for step in model.steps(state) if step.action.kind == kind]
        state = [step for step in steps if [*map(str, step.action[1:])][: len(numbers)] == numbers][-1].state
        assert model.broken(state) is None
    received = [step.state for step in model.steps(state) if step.action == Action("receive", 1, 2)]
    assert [model.broken(after) is not None for after in received] == loses


_TO_A_LEADER_ELECTED_AGAIN = (
    (1, "read 1, append 1, read 2"),
    (3, "elect 3, fetch 2 1, fetch 2 1"),
    (1, "session_ends 3, read 1, read 2 0, read 3 1, fetch 2 3"),
)
"""The steps in each leader epoch, whose leader comes first. Broker 2 has a record of broker 1, then follows broker 3
without it; broker 1 leads again, and has not read of that."""


@pytest.mark.parametrize(("off", "loses"), [((), False), (("positions_end_with_leadership",), True)])
def test_a_leader_that_is_elected_again_does_not_count_on_a_log_of_two_leaderships_ago(
    off: tuple[str, ...], loses: bool
) -> None:
    _, scope = load("elected-again")
    model = ClusterModel(replace(scope, without=off))
    state = model.initial()
    for led_by, schedule in _TO_A_LEADER_ELECTED_AGAIN:
        for words in schedule.split(", "):
            assert model.broken(state) is None
            kind, *numbers = words.split()
            steps = [step for step in model.steps(state) if step.action.kind == kind]
            steps = [step for step in steps if model.cluster(step.state).controller.partition.leader == led_by]
            state = [step for step in steps if [*map(str, step.action[1:])][: len(numbers)] == numbers][-1].state
    assert (model.broken(state) is not None) == loses


def test_the_schedule_names_every_step_and_the_brokers_that_it_changes() -> None:
    result = explored(replace(TWO_REPLICAS, without=("consumer_reads_below_high_watermark",)))
    assert result.violation is not None
    assert result.violation.schedule == (
        "broker 1 reads the metadata of leader epoch 0, ISR [1, 2]: 1 leads in epoch 0, log [], high watermark 0",
        "a producer appends a record at broker 1: 1 leads in epoch 0, log [0], high watermark 0",
    )


@pytest.mark.parametrize("without", [(), ("maximal_isr",)])
def test_symmetry_leaves_out_states_and_changes_no_verdict(without: tuple[str, ...]) -> None:
    scope = Scope(records=1, leader_epochs=1, without=without, isr_changes_in_flight=True)
    reduced, whole = explored(scope), explored(replace(scope, symmetry=False))
    assert reduced.states < whole.states
    assert (reduced.violation is None, reduced.depth) == (whole.violation is None, whole.depth)


def test_states_that_differ_by_the_names_of_brokers_have_one_canonical_state() -> None:
    """A step under one name and the same step under another lead to states with one fingerprint."""
    model = ClusterModel(Scope(records=1, leader_epochs=2))
    canonical = CanonicalStates(model)
    levels: list[list[Numbers]] = [[model.initial()]]
    for _ in range(3):
        levels.append([step.state for state in levels[-1][:20] for step in model.steps(state)])
    for state in levels[-1]:
        fingerprint, renamed = canonical.of(state)
        assert canonical.of(renamed) == (fingerprint, renamed)
        after = {canonical.of(step.state)[0] for step in model.steps(state)}
        assert after == {canonical.of(step.state)[0] for step in model.steps(renamed)}


def test_processes_and_hash_seeds_change_no_count_and_no_schedule(tmp_path: Path) -> None:
    """A shard in a process of its own imports the broker again, so one pair of processes has to do."""
    path = tmp_path / "scope.yaml"
    path.write_text(
        "{replicas: 2, records: 1, leader_epochs: 1, min.insync.replicas: 2, fetch: in flight, restarts: 1, losses: 1, "
        "without: [fence_fetch_broker_epoch]}"
    )
    result = explored(load(str(path))[1])
    command = [sys.executable, "-m", "harness", "explore", str(path), "--jobs", "2", "--json"]
    ended = subprocess.run(
        command, env={**os.environ, "PYTHONHASHSEED": "7"}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1, ended.stderr
    other = json.loads(ended.stdout)
    assert result.violation is not None
    figures = ("states", "steps", "depth", "situations")
    assert [other[figure] for figure in figures] == [getattr(result, figure) for figure in figures]
    assert tuple(other["violation"]["schedule"]) == result.violation.schedule


def test_every_shipped_scope_can_be_read() -> None:
    names = {path.stem for path in SHIPPED.glob("*.yaml")}
    scopes = {name: load(name)[1] for name in names if quorum_scope_file.load(name) is None}
    assert scopes["truncation"] == Scope()
    assert scopes["two-replicas"] == TWO_REPLICAS
    assert scopes["reassignment-of-four"] == Scope(replicas=2, spare_brokers=2, records=1, reassignments=1)


def test_the_command_prints_the_schedule_and_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explore", "two-replicas", "--without", "elect_from_isr_or_elr", "--jobs", "1"]) == 1
    output = capsys.readouterr().out
    assert "broken: broker" in output
    assert "the session of broker" in output


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("replicas: 9", "{path}:1: replicas: 9 is not a number from 1 to 5"),
        ("{restarts: 1, losses: 2, min.insync.replicas: 2}", "{path}:1: losses: 2 is more than restarts, 1"),
        ("{restarts: 1, losses: 1}", "{path}:1: losses: with replicas or min.insync.replicas 1 a record may be on one"),
        ("{replicas: 1, min.insync.replicas: 2, restarts: 1, losses: 1}", "{path}:1: losses: with replicas or min.in"),
        ("restarts: -1", "{path}:1: restarts: -1 is not a number from 0 to 5"),
        ("records: many", "{path}:1: records: 'many' is not a number from 1 to 10"),
        ("protocol: kip1", "{path}:1: protocol: 'kip1' is not one of high_watermark, kip101"),
        ("without: [gravity]", "{path}:1: without: 'gravity' is not a rule"),
        ("alter_partition: never", "{path}:1: alter_partition: 'never' is not one of at once, in flight"),
        ("alter_partition: [at once]", "{path}:1: alter_partition: ['at once'] is not one of at once, in flight"),
        ("fetch: no", "{path}:1: fetch: False is not one of at once, in flight"),
        ("fetchers: shared", "{path}:1: fetchers: shared makes a difference only with fetch: in flight"),
        (
            "unclean.recovery.strategy: proactive",
            "{path}:1: unclean.recovery.strategy: 'proactive' is not one of manual",
        ),
        ("nodes: 3", "{path}:1: nodes: unknown field; one of: replicas, records"),
        ("brokers: 2", "{path}:1: brokers: 2 is not a number from 3 to 5"),
        (
            "reassignments: 1",
            "{path}:1: reassignments: every broker has a replica; brokers has to be more than replicas",
        ),
        ("[]", "{path}:1: a scope is a mapping"),
    ],
)
def test_a_bad_scope_is_one_line(text: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "scope.yaml"
    path.write_text(text)
    assert main(["explore", str(path)]) == 64
    output = capsys.readouterr()
    assert output.err.startswith("faultline explore: " + line.format(path=path))
    assert output.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["nowhere"],
            "faultline explore: nowhere: there is no such file, and none of that name is shipped; shipped are: ans",
        ),
        (["truncation", "--protocol", "kip1"], "faultline explore: protocol: 'kip1' is not one of"),
        (["truncation", "--protocol", ""], "faultline explore: protocol: '' is not one of"),
        (["truncation", "--without", "gravity"], "faultline explore: without: 'gravity' is not a rule"),
        (["truncation", "--jobs", "0"], "faultline explore: --jobs: 0 is not a number from 1 to"),
    ],
)
def test_bad_usage_is_one_line(arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explore", *arguments]) == 64
    assert capsys.readouterr().err.startswith(line)
