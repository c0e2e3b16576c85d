"""The situations of an exploration are those that the traces of its brokers and controllers show."""

from __future__ import annotations

import errno
import json
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import combinations, pairwise, product
from pathlib import Path
from random import Random
from typing import Any

import pytest

from harness.cli.main import main
from harness.search import scope_situations
from harness.search.exploration import normal_form, replica_steps
from harness.search.exploration.breadth_first import explore
from harness.search.exploration.cluster_model import ClusterModel, ClusterStep
from harness.search.exploration.cluster_values import BrokerState, ControllerState, MetadataUpdate
from harness.search.exploration.controller_steps import ControllerStep
from harness.search.exploration.machine_steps import lagging_in
from harness.search.exploration.replica_steps import OpenedReplica, ReplicaEvents
from harness.search.exploration.scope import Scope
from harness.search.exploration.situations import StateSituations
from harness.search.state_space.breadth_first import ExplorationResult
from harness.search.state_space.explored_model import Numbers
from images.broker.controller.alter_partition import AlterPartition, AlterPartitionAnswer
from images.broker.replication.partition import ReplicaRole
from images.trace import TraceEvent
from results.errors import StoreError
from results.situations.replay import situations_of
from results.situations.situation import ProtocolSituation
from tests.checkers import small_evidence
from tests.results.trend.nights import make_night

SMALL = Scope(replicas=2, records=1, isr_changes_in_flight=True)


class TracedWalk:
    """A walk through the states of a scope, whose brokers and controllers write a trace."""

    def __init__(self, scope: Scope, monkeypatch: pytest.MonkeyPatch) -> None:
        self.model = ClusterModel(scope)
        self.rows: list[dict[str, Any]] = []
        self._decisions: list[MetadataUpdate] = []
        self._scope = scope
        self._now = 0
        self._monkeypatch = monkeypatch
        self._epoch = 0
        """The partition epoch of the events of this step."""
        controller = self.model.controllers.values[self.model.initial()[-2]]
        broker = self.model.brokers.values[self.model.initial()[0]]
        self._decide(broker.unread, controller)

    def take(self, state: Numbers, step: ClusterStep) -> None:
        """Trace a step from `state`."""
        self._now += 1
        opened = OpenedReplica.__init__

        def init(replica: OpenedReplica, broker: BrokerState, *rest: Any, **times: Any) -> None:
            patch.setattr(replica_steps, "_discard", partial(self._taken, f"b{broker.partition.node}"))
            opened(replica, broker, *rest, **times)

        with self._monkeypatch.context() as patch:
            patch.setattr(OpenedReplica, "__init__", init)
            self._carry_out(state, step)

    def _carry_out(self, state: Numbers, step: ClusterStep) -> None:
        action = step.action
        brokers = [self.model.brokers.values[number] for number in state[:-2]]
        controller, after = (self.model.controllers.values[it[-2]] for it in (state, step.state))
        broker, events = brokers[action.broker - 1], ReplicaEvents(self._scope.limits)
        match action.kind:
            case "read":
                update = broker.unread[action.other]
                self._epoch = self._number(update)
                hosted = action.broker in update.registration.replicas
                if hosted and broker.partition.role is ReplicaRole.NONE:
                    self._opened(action.broker, broker)
                replica_steps.read_update(broker, action.other, events)
                if not hosted:
                    self._row(f"b{action.broker}", "resigned")
                self._row(f"b{action.broker}", "metadata_applied", log_end=self._epoch)
            case "append":
                replica_steps.append(broker, 0, events)
            case "lag":
                replica_steps.tick(broker, events, lagging_in(action))
            case "fetch":
                request = replica_steps.request_of(broker, events)
                _, answer = replica_steps.serve(brokers[action.other - 1], request, events)
                replica_steps.receive(broker, request, answer, events)
            case "late_alter_partition":
                late = replica_steps.late_alter_partition_of(broker)
                assert late is not None
                self._decide(self._altered(controller, late, after)[0].updates, after)
            case "crash":
                self._row(f"b{action.broker}", "node_started")
            case "register":
                self._decide(self._updates(controller, step), after)
                self._row("c1", "broker_registered", {"clean": False}, broker=action.broker)
                self._opened(action.broker, self.model.brokers.values[step.state[action.broker - 1]])
            case "fence" | "unfence":
                self._decide(self._updates(controller, step), after)
                self._row("c1", f"broker_{action.kind}d", broker=action.broker)
            case "alter_partition":
                request_to_change = replica_steps.alter_partition_of(broker)
                assert request_to_change is not None
                changed, isr_answer = self._altered(controller, request_to_change, after)
                self._decide(changed.updates, after)
                self._epoch = len(self._decisions) - 1
                for it in changed.updates:
                    broker = normal_form.publish(broker, it)
                replica_steps.isr_answered(broker, isr_answer, events, certain=True)
            case _:
                self._decide(self._updates(controller, step), after)

    def _opened(self, node: int, broker: BrokerState) -> None:
        end, high_watermark = len(broker.records), broker.partition.high_watermark
        self._row(f"b{node}", "log_recovered", offset=0, log_end=end, high_watermark=high_watermark)

    def _altered(
        self, controller: ControllerState, request: AlterPartition, after: ControllerState
    ) -> tuple[ControllerStep, AlterPartitionAnswer]:
        """The answer to a request after which the controller is as in `after`."""
        steps = self.model.machines.controller_steps
        tries = (steps.alter_partition(controller, request, first) for first in self._scope.brokers)
        return next(it for it in tries if it[0].controller == after)

    def _updates(self, controller: ControllerState, step: ClusterStep) -> tuple[MetadataUpdate, ...]:
        """The decisions of a controller that acts unasked."""
        steps, broker = self.model.machines.controller_steps, step.action.broker
        if step.action.kind == "elect":
            tries = [steps.elect(controller, broker)]
        elif step.action.kind == "cancel":
            tries = [steps.cancel(controller, first) for first in self._scope.brokers]
        elif step.action.kind == "reassign":
            targets = combinations(self._scope.brokers, self._scope.replicas)
            tries = [steps.reassign(controller, *it) for it in product(targets, self._scope.brokers)]
        else:
            event = getattr(steps, step.action.kind)
            tries = [event(controller, broker, first) for first in self._scope.brokers]
        decided = (it for it in tries if it is not None)
        return next(it.updates for it in decided if self.model.controllers.number(it.controller) == step.state[-2])

    def _number(self, update: MetadataUpdate) -> int:
        """The newest decision that is this update."""
        known = update.registration
        return max(
            number
            for number, it in enumerate(self._decisions)
            if replace(it.registration, partition_epoch=0) == replace(known, partition_epoch=0)
        )

    def _decide(self, updates: tuple[MetadataUpdate, ...], after: ControllerState) -> None:
        for update in updates:
            known, number = update.registration, len(self._decisions)
            if self._decisions and not known.partition_epoch:
                continue  # of brokers alone
            self._decisions.append(update)
            detail = {
                "replicas": list(known.replicas),
                "elr": list(after.partition.elr),
                "adding": list(after.partition.adding),
                "min_isr": self._scope.min_insync_replicas,
            }
            fields = {"leader": known.leader, "leader_epoch": known.leader_epoch, "members": list(known.isr)}
            self._row("c1", "partition_changed", detail, **fields, offset=number, partition_epoch=number)

    def _taken(self, node: str, event: TraceEvent) -> None:
        fields = event._asdict() | {"members": list(event.members), "topic": "t", "partition": 0}
        fields["partition_epoch"] = self._epoch
        self._row(node, fields.pop("kind"), dict(fields.pop("detail")), **fields)

    def _row(self, node: str, kind: str, detail: dict[str, Any] | None = None, **fields: Any) -> None:
        self.rows.append(small_evidence.event(self._now, node, kind, detail) | fields)


@pytest.mark.parametrize(
    "scope",
    [
        SMALL,
        Scope(records=2, min_insync_replicas=2, isr_changes_in_flight=True),
        Scope(replicas=2, isr_changes_in_flight=True),
        Scope(records=2, min_insync_replicas=2, isr_changes_in_flight=True, restarts=2, losses=2),
        Scope(replicas=1, spare_brokers=1, records=1, isr_changes_in_flight=True, reassignments=3),
        Scope(replicas=2, spare_brokers=2, isr_changes_in_flight=True, reassignments=2),
    ],
)
def test_the_trace_of_a_walk_has_the_situations_of_its_states(scope: Scope, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(15):
        random = Random(seed)
        walk = TracedWalk(scope, monkeypatch)
        states = [walk.model.initial()]
        for _ in range(40):
            steps = list(walk.model.steps(states[-1]))
            if not steps:
                break
            step = random.choice(steps)
            walk.take(states[-1], step)
            states.append(step.state)
        _assert_same(walk, states)


def test_a_broker_that_has_crashed_knows_no_high_watermark(monkeypatch: pytest.MonkeyPatch) -> None:
    scope = Scope(replicas=2, records=1, min_insync_replicas=2, isr_changes_in_flight=True, restarts=1)
    walk = TracedWalk(scope, monkeypatch)
    states = [walk.model.initial()]
    for kind, broker in (
        *(("read", 1), ("read", 2), ("append", 1), ("fetch", 2), ("fetch", 2)),
        *(("crash", 2), ("fence", 2), ("register", 2)),
    ):
        step = next(it for it in walk.model.steps(states[-1]) if (it.action.kind, it.action.broker) == (kind, broker))
        walk.take(states[-1], step)
        states.append(step.state)
    assert walk.model.brokers.values[states[5][1]].partition.high_watermark == 1
    _assert_same(walk, states)


def _assert_same(walk: TracedWalk, states: list[Numbers]) -> None:
    codes = ["", *map(StateSituations(walk.model).code, states)]
    expected = Counter(after for before, after in pairwise(codes) if after != before)
    actual = situations_of(small_evidence.trace(*walk.rows)).situations
    assert actual == Counter({ProtocolSituation(code): count for code, count in expected.items()})


@pytest.fixture(scope="module")
def explored() -> ExplorationResult:
    return explore(SMALL, 1, schedules=True)


def test_every_situation_has_a_shortest_schedule(explored: ExplorationResult) -> None:
    model = ClusterModel(SMALL)
    situations = StateSituations(model)
    depths: dict[str, int] = {}
    seen, level = {model.initial()}, {model.initial()}
    for depth in range(explored.depth + 1):
        for state in level:
            depths.setdefault(situations.code(state), depth)
        level = {step.state for state in level for step in model.steps(state)} - seen
        seen |= level
    assert {it.situation.code: len(it.schedule) for it in explored.reached} == depths
    assert explored.situations == len(depths) > 200


def test_a_suite_is_compared_with_all_situations_of_a_scope(
    explored: ExplorationResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scope, command = tmp_path / "scope.json", ["coverage", make_night(tmp_path, 0), "--store", str(tmp_path)]
    file = tmp_path / "small.yaml"
    file.write_text("{replicas: 2, records: 1, alter_partition: in flight}")
    assert main(["explore", str(file), "--jobs", "1", "--situations", str(scope)]) == 0
    assert f"1,697 states in {explored.situations} situations" in capsys.readouterr().out
    assert scope_situations.read(scope).reached == explored.reached

    assert main([*command, "--scope", str(scope)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "situations: 61 in 60 runs, 60 of them in one run only" in lines[0]
    assert lines[1] == f"visited 1 of the {explored.situations} situations that exist in the scope small"
    first = explored.reached[1]
    assert lines[3:6] == [
        f"not visited: {first.situation.id}  {first.situation.code}",
        f"  {first.situation.sentence}",
        f"    1. {first.schedule[0]}",
    ]
    assert lines[-1] == f"and {explored.situations - 11} more; --json has all"

    assert main([*command, "--scope", str(scope), "--json"]) == 0
    compared = json.loads(capsys.readouterr().out)["scope"]
    assert (compared["name"], compared["visited"]) == ("small", 1)
    assert [it["code"] for it in compared["not_visited"]] == [it.situation.code for it in explored.reached[1:]]


def test_two_suites_are_compared_by_the_situations_that_each_visited_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = make_night(tmp_path, 0), make_night(tmp_path, 1, name="hunt-append", seeds=10)
    command = ["coverage", one, "--beside", "hunt-append", "--store", str(tmp_path)]
    assert main(command) == 0
    assert capsys.readouterr().out.splitlines()[1] == (f"21 situations in both, 40 in {one} alone, 0 in {other} alone")
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["apart"] == {"both": 21, one: 40, other: 0}


def test_what_was_explored_is_told_though_its_situations_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(path: Path, *_: object, **__: object) -> None:
        raise StoreError.of("write", path, OSError(errno.ENOSPC, "No space left on device"))

    monkeypatch.setattr(scope_situations, "put_json", full)
    (tmp_path / "small.yaml").write_text("{replicas: 2, records: 1, leader_epochs: 1}")
    arguments = ["explore", str(tmp_path / "small.yaml"), "--jobs", "1", "--situations", str(tmp_path / "scope.json")]
    assert main(arguments) == 3
    output = capsys.readouterr()
    assert "every state and every step keeps every promise" in output.out
    assert output.err.count("\n") == 1
    assert "No space left on device" in output.err


def test_a_scope_with_a_broken_promise_has_no_list_of_situations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scope = tmp_path / "scope.json"
    arguments = ["explore", "two-replicas", "--without", "maximal_isr", "--jobs", "1", "--situations", str(scope)]
    assert main(arguments) == 1
    assert not scope.exists()
    assert capsys.readouterr().err == f"{scope} is not written: the exploration ended early\n"


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (None, "there is no such file; faultline explore SCOPE --situations"),
        ("[]", "does not hold a JSON object"),
        ('{"format": 7}', "format: 7 is not 1; explore the scope again"),
        ('{"format": 1}', "does not hold the situations of a scope: KeyError: 'situations'"),
    ],
)
def test_a_bad_file_of_situations_is_one_line(
    content: str | None, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scope = tmp_path / "scope.json"
    if content is not None:
        scope.write_text(content)
    assert main(["coverage", "nightly", "--scope", str(scope), "--store", str(tmp_path)]) == 64
    error = capsys.readouterr().err
    assert error.startswith(f"faultline coverage: {scope}")
    assert line in error
    assert error.count("\n") == 1


def test_a_damaged_file_of_the_suite_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suite = make_night(tmp_path, 0)
    (damaged,) = (tmp_path / "tables").glob("v1/coverage/*/*.parquet")
    damaged.write_bytes(b"PAR1")
    assert main(["coverage", suite, "--store", str(tmp_path)]) == 3
    assert capsys.readouterr().err.startswith(f"left out: coverage/suite={suite}/")


def test_situations_of_what_is_not_there_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coverage", "nightly", "--store", str(tmp_path)]) == 64
    assert capsys.readouterr().err.startswith("faultline coverage: 'nightly': no suite of this name is stored in ")
    (tmp_path / "tables").touch()
    assert main(["coverage", "nightly", "--store", str(tmp_path)]) == 3
    assert "is not a directory, which a store has in its place" in capsys.readouterr().err
    elsewhere = str(tmp_path / "nowhere" / "scope.json")
    assert main(["explore", "two-replicas", "--situations", elsewhere]) == 64
    assert capsys.readouterr().err.startswith("faultline explore: --situations: ")
