"""Triggers: random faults that wait for the protocol, and strike where it did what they waited for."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from harness.runner.observation import TraceSource
from harness.runner.run import run
from harness.spec import loads, parse
from images.trace import BROKER_KINDS, CONTROLLER_KINDS, GROUP_KINDS, TraceEvent
from nemesis.cluster_shape import ClusterShape
from nemesis.conditions import LogStartMoved, NodeOccurrence, ReplicaDeleted, Restarted, Traced, parse_condition
from nemesis.faults.message import MessageFault, NodeRequest
from nemesis.fields import FieldError
from nemesis.handle import ActiveEffects, FaultHandle
from nemesis.ports import EnvironmentCapability, KeepUnsynced
from nemesis.schedule import parse_script
from nemesis.situation import Situation
from nemesis.swarm import draw
from nemesis.targets import TRIGGER
from nemesis.timeline import Timeline
from nemesis.triggers import OCCURRENCES
from results.run.directory import RunDirectory
from results.store.tables import of_run
from tests.nemesis.fake_cluster import FakeCluster

CLUSTER = ClusterShape(("b1", "b2", "b3"), ("c1", "c2", "c3"), partitions=2)
LOSSES = ("kill", "power-loss", "wipe")


def test_triggers_move_neither_the_times_nor_the_kinds_of_faults() -> None:
    waiting = faults = 0
    for seed in range(150):
        plain, triggered = draw(Random(seed), CLUSTER, 60.0), draw(Random(seed), CLUSTER, 60.0, triggers=0.5)
        for before, after in zip(plain, triggered, strict=True):
            assert (before.at_s, before.for_s, type(before.fault)) == (after.at_s, after.for_s, type(after.fault))
            assert after.until is None or after.fault.removes_replicas
            if after.when is None and after.until is None:
                assert after == before
        waiting += sum(each.when is not None for each in triggered)
        faults += len(triggered)
    assert 0.3 < waiting / faults < 0.55


def test_what_processes_do_when_they_start_is_struck_then() -> None:
    starts = [
        each
        for seed in range(800)
        for each in draw(Random(seed), CLUSTER, 60.0, triggers=0.5)
        if isinstance(each.fault, MessageFault) and each.fault.api is NodeRequest.BROKER_REGISTRATION
    ]
    struck = [each for each in starts if isinstance(each.when, Restarted)]
    assert len(struck) > 20
    assert len(struck) > 0.8 * len(starts)
    assert all(each.fault.nodes in ((TRIGGER,), (each.when.node,)) for each in struck)


def test_something_always_happens_by_the_clock() -> None:
    for seed in range(300):
        schedule = draw(Random(seed), CLUSTER, 60.0, triggers=1.0)
        if any(each.when is not None for each in schedule):
            assert any(each.when is None and each.fault.effective_alone(CLUSTER) for each in schedule)


def test_a_triggered_schedule_names_what_exists_keeps_the_loss_budget_and_reads_back_the_same() -> None:
    kinds: Counter[str] = Counter()
    for seed in range(300):
        schedule = draw(Random(seed), CLUSTER, 60.0, triggers=0.5)
        schedule.check(CLUSTER.brokers, CLUSTER.controllers, CLUSTER.partitions)
        assert parse_script(schedule.to_script()) == schedule
        hit = {target for each in schedule if each.fault.family.name in LOSSES for target in each.fault.targets()}
        assert len(hit - {*CLUSTER.controllers, "controller"}) <= CLUSTER.loss_budget
        kinds.update(part.name for each in schedule if each.when for part in each.when.parts())
        kinds.update(target for each in schedule for target in each.fault.targets() if target == TRIGGER)
    others = {"proposed_isr", "isr", "elr", "leader", "replica_deleted", "log_start_moved", "traced", TRIGGER}
    assert {*kinds} == {*(kind.name for kind in OCCURRENCES), *others}
    assert kinds["left_isr"] > kinds["fenced"]


def test_a_fault_waits_for_a_deletion_only_where_one_that_takes_replicas_off_is_to_come() -> None:
    waiting = ended = losses = waiting_losses = 0
    for seed in range(300):
        schedule = [*draw(Random(seed), CLUSTER, 60.0, ["power-loss", "admin"], triggers=0.5)]
        for number, each in enumerate(schedule):
            to_come = any(later.fault.removes_replicas for later in schedule[number + 1 :])
            loses = to_come and bool({*each.fault.at_risk(CLUSTER)} & {*CLUSTER.brokers, "victim/0"})
            losses += loses
            if isinstance(each.when, ReplicaDeleted):
                waiting += 1
                waiting_losses += loses
                assert to_come
                assert each.when.node in (*each.fault.nodes_named(), "any")
            if each.until is not None:
                ended += 1
                assert each.fault.removes_replicas
                assert each.until.to_mapping().keys() <= {"replica_deleted", "fenced"}
    assert waiting - waiting_losses > 100
    assert ended > 100
    assert 0.4 < waiting_losses / losses < 0.7
    without = (each for seed in range(100) for each in draw(Random(seed), CLUSTER, 60.0, ["power-loss"], triggers=1.0))
    assert not any(isinstance(each.when, ReplicaDeleted) for each in without)


def test_a_loss_waits_for_a_log_start_only_where_records_are_still_to_be_deleted() -> None:
    waiting = 0
    for seed in range(200):
        schedule = [*draw(Random(seed), CLUSTER, 60.0, ["power-loss", "admin"], triggers=0.3)]
        for number, each in enumerate(schedule):
            if isinstance(each.when, LogStartMoved):
                waiting += 1
                assert any(later.fault.deletes_records for later in schedule[number + 1 :])
                assert {*each.fault.at_risk(CLUSTER)} & {*CLUSTER.brokers, "victim/0"}
                assert each.when.node in (*each.fault.nodes_named(), "any")
    assert waiting > 50


def traced_by_nodes(cluster: ClusterShape) -> dict[tuple[str, ...], set[str]]:
    """The nodes of faults that wait for an event of the trace → the kinds of these events."""
    kinds: dict[tuple[str, ...], set[str]] = {}
    for seed in range(700):
        for each in draw(Random(seed), cluster, 60.0, triggers=0.8):
            if isinstance(each.when, Traced):
                kinds.setdefault(each.fault.nodes_named(), set()).update(each.when.events)
                assert each.when.node in (*each.fault.nodes_named(), "any")
    return kinds


def test_every_event_that_nodes_of_its_role_write_is_one_that_a_fault_waits_for() -> None:
    kinds = traced_by_nodes(replace(CLUSTER, has_groups=True))
    assert {kind for each in kinds.values() for kind in each} == {*BROKER_KINDS, *GROUP_KINDS, *CONTROLLER_KINDS}
    assert kinds["controller",] <= {*CONTROLLER_KINDS}
    assert kinds["victim/0",] <= {*BROKER_KINDS, *GROUP_KINDS}
    assert not {*GROUP_KINDS} & {kind for each in traced_by_nodes(CLUSTER).values() for kind in each}


def test_a_fault_strikes_the_node_that_writes_an_event_at_that_moment(tmp_path: Path) -> None:
    strike = {"when": {"traced": {"node": "any", "events": ["offsets_storing"]}}, "for": 1, "fault": "pause"}
    spec = parse({"workload": "groups", "seed": 3, "time_limit": 6, "faults": [{**strike, "nodes": ["trigger"]}]})
    outcome = run(spec, RunDirectory.create(tmp_path, "struck", 3), report=False)
    assert outcome.directory is not None
    trace = RunDirectory.open(outcome.directory).load().trace.to_pylist()
    first = next(row for row in trace if row["kind"] == "offsets_storing")
    (pause,) = outcome.injections
    assert (pause.nodes, pause.detail["resolved"]) == ((first["node"],), {TRIGGER: [first["node"]]})
    assert 0 <= pause.started_ns - first["time_ns"] < 1_000_000


def test_an_event_of_the_trace_becomes_an_occurrence_only_while_a_step_waits_for_it() -> None:
    situation = Situation()
    source, timeline = TraceSource(situation, {2: "b2"}, "t"), Timeline(situation, 0.0, 60.0)
    condition = parse_condition({"traced": {"node": "any", "events": ["group_storing", "group_assigned"]}}, "when")

    async def wait() -> tuple[str, ...]:
        waiting = asyncio.ensure_future(timeline.until(condition))
        await asyncio.sleep(0)
        source.take("b1", TraceEvent("group_stored", "__consumer_offsets", 1))
        source.take("b2", TraceEvent("group_storing", "__consumer_offsets", 1))
        return await waiting

    source.take("b1", TraceEvent("group_storing", "__consumer_offsets", 1))
    assert situation.events == []
    assert asyncio.run(wait()) == ("b2",)
    source.take("b1", TraceEvent("group_storing", "__consumer_offsets", 1))
    assert len(situation.events) == 1


def test_a_new_log_start_is_seen_in_the_trace() -> None:
    situation = Situation()
    moved = parse_condition({"log_start_moved": "b2"}, "when")
    TraceSource(situation, {2: "b2"}, "t").take("b2", TraceEvent("log_start_written", "t", 1))
    assert moved.happened_to(situation, 0) == ("b2",)


def test_a_deletion_is_seen_in_the_trace_of_the_broker_that_deleted() -> None:
    situation = Situation()
    source = TraceSource(situation, {1: "b1", 2: "b2"}, "t")
    deleted = parse_condition({"replica_deleted": {"node": "any", "partition": 1}}, "when")
    source.take("b2", TraceEvent("replica_deleted", "t", 0))
    source.take("b2", TraceEvent("replica_deleted", "another", 1))
    assert not deleted.holds(situation, 0)
    source.take("b2", TraceEvent("replica_deleted", "t", 1))
    assert deleted.happened_to(situation, 0) == ("b2",)


LOG_STATES = [{"log_end": {"node": "b2", "at_least": 5}}, {"high_watermark": {"node": "b2", "at_least": 4}}]


@pytest.mark.parametrize("condition", LOG_STATES, ids=["log_end", "high_watermark"])
def test_what_a_replica_had_before_it_was_lost_does_not_hold_after(condition: object) -> None:
    situation, reached = Situation(), parse_condition(condition, "when")
    source = TraceSource(situation, {1: "b1", 2: "b2"}, "t")
    ends: list[Callable[[FaultHandle], Awaitable[object]]] = [
        lambda handle: handle.wipe("b2"),
        lambda handle: handle.power_off("b2", KeepUnsynced.PREFIX),
        lambda handle: handle.stop_unsynced("b2", 1, KeepUnsynced.PREFIX),
    ]

    def grows() -> None:
        for node in ("b1", "b2"):
            source.take(node, TraceEvent("appended", "t", 0, log_end=5))
            source.take(node, TraceEvent("follower_high_watermark", "t", 0, high_watermark=4))
        assert reached.holds(situation, 0)

    async def lose(end: Callable[[FaultHandle], Awaitable[object]]) -> None:
        await end(FaultHandle(FakeCluster(), ActiveEffects(), Random(1), "t", situation=situation))

    for end in ends:
        grows()
        asyncio.run(lose(end))
        assert not reached.holds(situation, 0), "nobody knows what is left"
        source.take("b2", TraceEvent("log_recovered", "t", 0, offset=0, log_end=5, high_watermark=4))
        assert reached.holds(situation, 0), "as its broker has found it"
    source.take("b2", TraceEvent("replica_deleted", "t", 0))
    assert not reached.holds(situation, 0)
    grows()
    source.take("b2", TraceEvent("log_recovered", "t", 0, offset=0, log_end=4, high_watermark=0))
    assert not reached.holds(situation, 0)
    assert situation.partition(0).log_ends["b1"] == 5


def test_a_killed_process_leaves_the_log_that_its_replica_had() -> None:
    situation, reached = Situation(), parse_condition(LOG_STATES[0], "when")
    TraceSource(situation, {2: "b2"}, "t").take("b2", TraceEvent("appended", "t", 0, log_end=5))
    asyncio.run(FaultHandle(FakeCluster(), ActiveEffects(), Random(1), "t", situation=situation).kill("b2"))
    assert reached.holds(situation, 0)


def test_where_traces_come_late_no_fault_waits_for_what_they_alone_show() -> None:
    lacking = replace(CLUSTER, unsupported=frozenset({EnvironmentCapability.LIVE_TRACE}))
    conditions = [
        condition
        for seed in range(100)
        for each in draw(Random(seed), lacking, 60.0, triggers=0.5)
        for _, condition in each.conditions()
    ]
    assert len(conditions) > 100
    assert not any(condition.rests_on_trace() for condition in conditions)


def test_a_replica_leaves_and_joins_the_isr_once_that_is_known() -> None:
    situation = Situation()
    situation.isr_changed(0, ("b1", "b2", "b3"))
    situation.partition(0).known = True
    assert situation.events == [], "the first report of an ISR is no change"
    situation.isr_changed(0, ("b1", "b3"))
    situation.isr_changed(0, ("b1", "b2", "b3"))
    left, joined = (parse_condition({name: "any"}, "when") for name in ("left_isr", "joined_isr"))
    assert left.happened_to(situation, 0) == joined.happened_to(situation, 0) == ("b2",)
    assert not left.holds(situation, 1)
    assert not parse_condition({"left_isr": {"node": "b2", "partition": 1}}, "when").holds(situation, 0)


def resolved(target: str, trigger: tuple[str, ...], seed: int) -> tuple[str, ...]:
    handle = FaultHandle(FakeCluster(), ActiveEffects(), Random(seed), situation=Situation(), trigger=trigger)
    return asyncio.run(handle.targets.resolve([target]))


def test_the_target_of_a_trigger_is_its_node_and_a_free_victim_is_that_node_too() -> None:
    for seed in range(20):
        assert resolved(TRIGGER, ("b2",), seed) == ("b2",)
        assert resolved("victim/0", ("b2",), seed) == ("b2",)
    assert {resolved(TRIGGER, (), seed) for seed in range(20)} == {("b1",), ("b2",), ("b3",)}
    assert len({resolved("victim/0", ("c1",), seed) for seed in range(20)}) == 3, "a controller is no broker"


@pytest.mark.parametrize("moment", [{"at": 1}, {"when": {"isr": {"below": 2}}}])
def test_a_fault_that_waits_for_no_occurrence_has_no_node_of_one(moment: dict[str, object]) -> None:
    schedule = parse_script([{**moment, "for": 1, "fault": "pause", "nodes": ["trigger"]}])
    with pytest.raises(FieldError, match=r"faults\[0\]: 'trigger' is the node of an occurrence, and it waits for none"):
        schedule.check(CLUSTER.brokers, CLUSTER.controllers, 2)


def test_a_run_with_triggers_counts_them_and_repeats_from_its_script(tmp_path: Path) -> None:
    small = {"partitions": 1, "controllers": 1, "rate": 5, "time_limit": 12, "faults": ["pause", "power-loss"]}
    outcome = run(
        parse({"triggers": 0.5, "seed": 33, **small}), RunDirectory.create(tmp_path, "triggered", 33), report=False
    )
    assert outcome.directory is not None
    waited = [each for each in outcome.injections if "when" in each.detail]
    struck = [each for each in waited if each.injected]
    assert struck
    for injection in struck:
        condition = parse_condition(injection.detail["when"], "when")
        if isinstance(condition, NodeOccurrence) and TRIGGER in injection.detail.get("nodes", ()):
            assert injection.detail["resolved"][TRIGGER]
    directory = RunDirectory.open(outcome.directory)
    marks = of_run(directory, directory.load(), cell="triggered")["coverage"].to_pylist()
    counts = {row["name"]: row["count"] for row in marks if row["kind"] == "trigger"}
    assert counts == Counter(name for each in struck for name in each.detail["when"])
    assert counts["traced"]
    scripted = loads((directory.path / "schedule.yaml").read_text(encoding="utf-8"))
    assert scripted.script.conditional
    assert scripted.triggers == 0
    again = run(scripted, RunDirectory.create(tmp_path, "again", 33), report=False)
    assert again.digest == outcome.digest
