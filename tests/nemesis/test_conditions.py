"""Conditions and triggers: what a schedule may wait for, and what a script may name."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from random import Random
from typing import NamedTuple

import pytest

from harness.cluster.administration import Administration
from harness.cluster.layout import cluster_layout
from harness.runner.observation import MetadataSource
from nemesis.conditions import parse_condition
from nemesis.faults.scripted.script import until_isr
from nemesis.fields import FieldError
from nemesis.handle import ActiveEffects, FaultHandle
from nemesis.nemesis import Injection, Nemesis
from nemesis.ports import ClusterView, EnvironmentCapability, PartitionView
from nemesis.schedule import parse_script
from nemesis.situation import Occurrence, Situation
from tests.nemesis.fake_cluster import FakeCluster
from tests.workloads.virtual_time import run

BROKERS, CONTROLLERS = ("b1", "b2", "b3"), ("c1",)


def holds(condition: object, situation: Situation, since: int = 0) -> bool:
    return parse_condition(condition, "when").holds(situation, since)


def led_by(leader: str | None, isr: tuple[str, ...]) -> Situation:
    situation = Situation()
    state = situation.partition(0)
    state.known, state.leader, state.isr = True, leader, isr
    state.proposed_isr = (*isr, "b3")
    return situation


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ({"leader": "b1"}, True),
        ({"leader": {"node": "b2"}}, False),
        ({"leader": {"node": "none"}}, False),
        ({"isr": {"below": 2}}, False),
        ({"isr": {"below": 3}}, True),
        ({"isr": {"at_least": 2, "has": "b2", "lacks": "b3"}}, True),
        ({"isr": {"lacks": "b2"}}, False),
        ({"elr": {"below": 1}}, True),
        ({"proposed_isr": {"has": "b3"}}, True),
        ({"proposed_isr": {"has": "b1", "lacks": "b3"}}, False),
        ({"all": [{"leader": "b1"}, {"isr": {"has": "b3"}}]}, False),
        ({"any": [{"leader": "b2"}, {"isr": {"has": "b2"}}]}, True),
    ],
)
def test_a_state_holds_or_not(condition: object, expected: bool) -> None:
    assert holds(condition, led_by("b1", ("b1", "b2"))) is expected


def test_a_state_does_not_hold_before_it_is_known() -> None:
    for condition in ({"isr": {"below": 3}}, {"leader": {"node": "none"}}, {"elr": {"below": 1}}):
        assert not holds(condition, Situation())
    assert holds({"leader": {"node": "none"}}, led_by(None, ()))


def test_an_occurrence_counts_only_from_when_the_step_began_to_wait() -> None:
    situation = Situation()
    situation.occurred(Occurrence.ELECTED, "b2", 1)
    assert holds({"elected": "b2"}, situation)
    assert holds({"elected": {"node": "b2", "partition": 1}}, situation)
    assert not holds({"elected": {"node": "b2", "partition": 0}}, situation)
    assert holds({"elected": "any"}, situation)
    assert not holds({"elected": "b2"}, situation, since=1)
    assert not holds({"elected": "any"}, situation, since=1)


def test_a_bound_name_stands_for_its_node_in_conditions() -> None:
    situation = led_by("b3", ("b3",))
    situation.names["old-leader"] = ()
    assert not holds({"isr": {"lacks": "old-leader"}}, situation), "no step has bound the name yet"
    situation.names["old-leader"] = ("b1",)
    assert holds({"isr": {"lacks": "old-leader"}}, situation)
    assert not holds({"leader": "old-leader"}, situation)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"fault": "kill", "for": "1s", "nodes": ["b1"]}, r"faults\[0\].at: missing"),
        ({"at": "1s", "fault": "kill", "nodes": ["b1"]}, r"faults\[0\].for: missing"),
        ({"when": {"elected": "b9"}, "for": "1s"}, r"faults\[0\].when.elected: 'b9' is neither a node nor"),
        ({"when": {"isr": {"partition": 7, "below": 2}}, "for": "1s"}, r"when.isr: there is no partition 7"),
        ({"when": {"isr": {"partition": 0}}, "for": "1s"}, r"when.isr: one of below, at_least, has, lacks"),
        ({"when": {"elected": "b1", "leader": "b1"}, "for": "1s"}, r"is not a condition"),
        ({"when": {"sunrise": "b1"}, "for": "1s"}, r"when.sunrise: unknown condition"),
        ({"when": {"traced": {"node": "b1", "events": ["sunrise"]}}, "for": "1s"}, r"events: 'sunrise' is no kind of"),
        ({"when": {"all": []}, "for": "1s"}, r"when.all: \[\] is not a list of conditions"),
        ({"after": "nothing", "for": "1s"}, r"when.healed: 'nothing' is not the id of a step"),
        ({"at": "1s", "timeout": "1s", "for": "1s"}, r"timeout: there is no condition to wait for"),
        ({"when": {"leader": "any"}, "for": "1s"}, r"faults\[0\].when.leader: 'any' stands for every node in an occ"),
        ({"when": {"all": [{"log_end": {"node": "any", "at_least": 1}}]}, "for": "1s"}, r"when: log_end: 'any' stands"),
        ({"at": "1s", "for": "1s", "nodes": ["old"], "as": "older"}, r"'old' is neither .* \(b1.*, c1.*, older\), nor"),
        ({"at": "1s", "for": "1s", "as": "b2"}, r"as: 'b2' is the name of a node$"),
        ({"at": "1s", "for": "1s", "id": "5"}, r"id: '5' is not a name"),
    ],
)
def test_a_step_that_makes_no_sense_is_refused_with_its_field(line: dict[str, object], message: str) -> None:
    with pytest.raises(FieldError, match=message):
        parse_script([{"fault": "kill", "nodes": ["b1"], **line}]).check(BROKERS, CONTROLLERS, 2)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([{"fault": "kill", "id": "cut"}] * 2, r"faults\[0\].id: 'cut' is the id of two steps"),
        ([{"fault": "kill", "as": "old"}] * 2, r"faults\[0\].as: 'old' is bound by two steps"),
        ([{"fault": "kill", "as": "any"}], r"faults\[0\].as: 'any' has a meaning of its own"),
        ([{"fault": "reassign", "as": "old"}], r"faults\[0\].as: reassign has no nodes that a name could be bound to"),
    ],
)
def test_a_name_that_stands_for_two_steps_or_for_none_is_refused(steps: list[dict[str, object]], message: str) -> None:
    with pytest.raises(FieldError, match=message):
        parse_script([{"at": 1, "for": 1, **step} for step in steps]).check(BROKERS, CONTROLLERS, 2)


SCRIPT = [
    {"id": "cut", "at": 1, "for": 30, "until": {"leader": "b2"}, "as": "old", "fault": "pause", "nodes": ["leader/0"]},
    {
        "when": {"all": [{"injected": "cut"}, {"isr": {"lacks": "old"}}]},
        "timeout": 5,
        "for": 2,
        "fault": "kill",
        "nodes": ["old"],
    },
    {"after": "cut", "then_after": 0.2, "for": 1, "fault": "kill", "nodes": ["b3"]},
    {"when": {"injected": "cut"}, "fault": "observe", "nodes": ["leader/1"], "as": "other"},
]


def test_a_script_with_conditions_reads_back_as_itself() -> None:
    schedule = parse_script(SCRIPT)
    schedule.check(BROKERS, CONTROLLERS, 2)
    assert parse_script(schedule.to_script()) == schedule


def test_a_fault_is_described_with_its_moment_and_what_ends_it() -> None:
    texts = [scheduled.describe() for scheduled in parse_script([*SCRIPT[:2], {"at": 4, "fault": "rolling-restart"}])]
    assert texts == [
        "1 s, for 30 s, until leader node b2 partition 0: pause leader/0",
        "0 s, when injected id cut and isr partition 0 lacks old, for 2 s: kill old",
        "4 s: rolling-restart",
    ]


def test_a_condition_that_only_a_trace_shows_needs_one_while_the_run_goes_on() -> None:
    schedule = parse_script([{"when": {"truncated": "b2"}, "for": 1, "fault": "kill", "nodes": ["b1"]}])
    lacking = {EnvironmentCapability.LIVE_TRACE: "traces come at the end"}
    assert schedule.unmet({}) == ""
    assert schedule.unmet(lacking) == "faults[0].when: truncated is seen in the trace alone, and traces come at the end"


def test_faults_follow_what_happens_and_bound_names_stick() -> None:
    cluster, situation = FakeCluster(), Situation()
    records: list[Injection] = []

    async def scenario() -> None:
        cluster.now_ns()
        loop = asyncio.get_running_loop()
        nemesis = Nemesis(cluster, parse_script(SCRIPT), Random(1), records.append, "t", situation=situation)
        running = loop.create_task(nemesis.run(loop.time() + 60))
        await asyncio.sleep(10)  # b1, the leader, is paused since 1 s; the second step has given up by now
        cluster.leading[("t", 0)] = "b2"
        state = situation.partition(0)
        state.known, state.leader, state.isr = True, "b2", ("b2", "b3")
        situation.changed()
        await running

    run(scenario())
    last = {record.number: record for record in records}
    times = {number: (record.started_ns / 1e9, (record.ended_ns or 0) / 1e9) for number, record in last.items()}
    assert last[0].nodes == ("b1",)
    assert times[0] == (1.0, 10.0)
    assert last[1].note.endswith(
        "not injected: the condition did not hold within 5 s: injected id cut and isr partition 0 lacks old; "
        "it still waited for: isr partition 0 lacks old"
    )
    assert not last[1].took_effect
    assert (last[0].injected, last[1].injected) == (True, False)
    assert last[2].nodes == ("b3",)
    assert times[2] == (10.2, 11.2)
    assert last[3].nodes == ("b2",)
    assert times[3][0] == 1.0
    assert situation.names == {"old": ("b1",), "other": ("b2",)}


def test_a_bound_name_goes_before_a_target_of_the_same_name() -> None:
    cluster = FakeCluster()
    script = [
        {"at": 1, "fault": "observe", "nodes": ["leader/0"], "as": "leader"},
        {"at": 1, "fault": "observe", "nodes": ["follower/0"], "as": "follower"},
        {"at": 3, "for": 1, "fault": "pause", "nodes": ["leader", "follower"]},
        {"at": 3, "for": 1, "fault": "pause", "nodes": ["leader/0"]},
    ]
    records: list[Injection] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        cluster.leading["t", 0] = "b1"
        loop.call_later(2, cluster.leading.__setitem__, ("t", 0), "b3")
        await Nemesis(cluster, parse_script(script), Random(1), records.append, "t").run(loop.time() + 10)

    run(scenario())
    nodes = {record.number: record.nodes for record in records}
    assert nodes[2] == (*nodes[0], *nodes[1]), "as they were found, whoever leads now"
    assert nodes[3] == ("b3",)


def test_what_the_first_metadata_shows_was_there_before_and_has_not_occurred() -> None:
    cluster, situation = FakeCluster(), Situation()
    cluster.leading["t", 0], cluster.active = "b1", "c1"

    async def scenario() -> None:
        source = MetadataSource(situation, cluster, "t")
        await source.poll()
        assert situation.events == []
        assert situation.partition(0).leader == "b1"
        cluster.leading["t", 0], cluster.active = "b2", "c2"
        await source.poll()

    run(scenario())
    assert [(event.kind, event.subject) for event in situation.events] == [
        (Occurrence.ELECTED, "b2"),
        (Occurrence.CONTROLLER_ELECTED, "c2"),
    ]


def test_a_broker_that_reads_no_metadata_does_not_hide_that_it_left_the_isr() -> None:
    """Nothing of that is a new leader epoch, and the broker answers clients all the same. So it is for faults, too."""
    fresh = ClusterView(("b2", "b3"), {0: PartitionView("b3", ("b3", "b2"), ())})
    stale = ClusterView(("b1", "b2", "b3"), {0: PartitionView("b3", ("b3", "b2", "b1"), ())})

    class Isolated(Administration):
        isolated = "b1"

        async def _describe(self, address: tuple[str, int], topic: str) -> tuple[ClusterView, dict[int, int]]:
            return (stale if address == self._addresses[self.isolated] else fresh), {0: 4}

    cluster = FakeCluster()
    for node in ("b1", "b2", "b3"):
        admin, situation = Isolated(cluster_layout(3), cluster.now_ns), Situation()
        admin.isolated = node
        cluster.describe = admin.describe  # type: ignore[method-assign]
        run(MetadataSource(situation, cluster, "t").poll())
        assert situation.partition(0).isr == ("b3", "b2")
        handle = FaultHandle(cluster, ActiveEffects(), Random(1), "t")
        assert run(until_isr(handle, 0, lambda isr: "b1" not in isr, patience_s=0.5))


def test_the_replicas_that_a_fault_puts_back_are_those_that_most_brokers_know() -> None:
    """The first broker may have read no metadata since another fault has moved the partition, and answers clients all
    the same."""

    class Told(NamedTuple):
        partition_index: int
        leader_epoch: int
        replica_nodes: tuple[int, ...]

    class Isolated(Administration):
        told: Mapping[str, Told | None]

        async def _partitions(self, address: tuple[str, int], topic: str) -> Sequence[Told] | None:
            (node,) = (name for name, where in self._addresses.items() if where == address)
            told = self.told[node]
            return None if told is None else (told,)

    stale, fresh = Told(0, 4, (1, 2)), Told(0, 4, (3, 1))
    of_another_leader = Told(0, 5, (2, 3))
    for told, placed in (
        ((stale, fresh, fresh), ("b3", "b1")),
        ((fresh, fresh, stale), ("b3", "b1")),
        ((stale, stale, of_another_leader), ("b2", "b3")),
        ((None, None, fresh), ("b3", "b1")),
        ((None, None, None), ()),
    ):
        admin = Isolated(cluster_layout(3), FakeCluster().now_ns)
        admin.told = dict(zip(("b1", "b2", "b3"), told, strict=True))
        assert run(admin.replicas("t", 0)) == placed


def test_where_no_broker_knows_of_a_partition_nothing_holds_of_its_isr() -> None:
    """Brokers that have just started have read no metadata."""
    cluster = FakeCluster()
    cluster.leading = {}
    handle = FaultHandle(cluster, ActiveEffects(), Random(1), "t")
    assert not run(until_isr(handle, 0, lambda isr: True, patience_s=0.5))
