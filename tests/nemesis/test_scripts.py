"""Scripts of faults are read strictly, and what is written as one reads back the same."""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings

from checkers.verdict import Validity
from harness.runner.run import run_in_simulation
from harness.spec import parse
from nemesis.cluster_shape import ClusterShape
from nemesis.faults.disk import PowerLoss
from nemesis.faults.network_partition import ConnectionFate, NetworkPartition, PartitionShape
from nemesis.faults.scripted.leader import StaleBrokerEpoch
from nemesis.fields import FieldError, read
from nemesis.ports import KeepUnsynced
from nemesis.registry import FAMILIES
from nemesis.schedule import Schedule, parse_script
from nemesis.strategies import schedules
from nemesis.swarm import draw

CLUSTER = ClusterShape(brokers=("b1", "b2", "b3"), controllers=("c1",), partitions=2)


def test_a_script_is_read_as_it_is_written() -> None:
    schedule = parse_script(
        [
            {"at": "6s", "for": "300ms", "fault": "power-loss", "nodes": ["b2"], "keep": "torn"},
            {"at": 5, "for": "1m", "fault": "partition", "shape": "one-way", "nodes": "leader/0", "flavour": "reset"},
        ]
    )
    first, second = schedule
    assert (first.at_s, first.for_s) == (5.0, 60.0)
    assert first.fault == NetworkPartition(PartitionShape.ONE_WAY, ("leader/0",), flavour=ConnectionFate.RESET)
    assert second.for_s == pytest.approx(0.3)
    assert second.fault == PowerLoss(("b2",), KeepUnsynced.TORN)


@pytest.mark.parametrize(
    ("script", "line"),
    [
        ([{"at": "5s", "fault": "kill"}], "faults[0].for: missing; a duration such as 5s"),
        ([{"at": "5s", "for": "x", "fault": "kill"}], "faults[0].for: 'x' is not a duration"),
        ([{"at": -1, "for": 1, "fault": "kill"}], "faults[0].at: -1 is not a duration"),
        ([{"at": 1, "for": 1, "fault": "quake"}], "faults[0].fault: 'quake' is not one of partition, kill"),
        ([{"at": 1, "for": 1, "fault": "kill", "node": ["b1"]}], "faults[0].node: unknown field; did you mean nodes?"),
        ([{"at": 1, "for": 1, "fault": "kill", "nodes": [1]}], "faults[0].nodes[0]: 1 is not a text"),
        (
            [{"at": 1, "for": 1, "fault": "partition", "shape": "star"}],
            "faults[0].shape: 'star' is not one of isolate, minority",
        ),
        (
            [{"at": 1, "for": 1, "fault": "clock"}],
            "faults[0]: rate: 1 without jump_ms and wall_jump_ms leaves the clock as it is",
        ),
        ([{"at": 1, "for": 1, "fault": "packets", "loss": 2}], "faults[0]: loss: 2.0 is not a share"),
        ([{"at": 1, "for": 1, "fault": "packets", "loss": 1}], "faults[0]: loss: 1.0 is not a share"),
        (
            [{"at": 1, "for": 1, "fault": "packets"}],
            "faults[0]: delay_ms, jitter_ms, loss: all are 0, so the links stay as they are",
        ),
        ([{"at": 1, "for": 1, "fault": "last-leader", "then": 2}], "faults[0].then: unknown field"),
        (
            [{"at": 1, "until": "cut", "fault": "delete-records"}],
            "faults[0].until: delete-records ends by itself; only `for` limits it",
        ),
        ([{"at": 1, "fault": "move-leadership", "moves": 0}], "faults[0]: moves: 0 is less than 1"),
        ([{"at": 1, "fault": "late-request", "appends": -1}], "faults[0]: appends: -1 is less than 0"),
        ([{"at": 1, "fault": "late-request", "timeout_ms": 0}], "faults[0]: timeout_ms: 0 is not more than 0"),
        ([{"at": 1, "fault": "recreate-topic", "topics": -2}], "faults[0]: topics: -2 is less than 1"),
        ([{"at": 1, "for": 1, "fault": "reassign", "again_ms": -5}], "faults[0]: again_ms: -5 is less than 0"),
        (["kill"], "faults[0]: 'kill' is not a fault such as"),
        ("kill", "faults: 'kill' is not a list of faults"),
    ],
)
def test_a_script_that_cannot_be_used_is_refused_in_one_line(script: object, line: str) -> None:
    with pytest.raises(FieldError) as refused:
        parse_script(script)
    assert str(refused.value).startswith(line)
    assert "\n" not in str(refused.value)


def test_a_script_of_an_earlier_version_is_read_under_the_names_of_today() -> None:
    (scheduled,) = parse_script([{"at": 1, "for": 9, "fault": "lost-incarnation", "victim": "b2"}])
    assert scheduled.fault == StaleBrokerEpoch("b2")


def test_a_target_outside_the_cluster_is_refused() -> None:
    schedule = parse_script([{"at": 1, "for": 1, "fault": "kill", "nodes": ["b7"]}])
    with pytest.raises(FieldError, match=r"faults\[0\]: 'b7' is neither a node"):
        schedule.check(CLUSTER.brokers, CLUSTER.controllers, 2)


@pytest.mark.parametrize("partition", [-1, 2])
def test_a_partition_that_the_topic_does_not_have_is_refused(partition: int) -> None:
    schedule = parse_script([{"at": 1, "for": 1, "fault": "reassign", "partition": partition}])
    with pytest.raises(FieldError, match=rf"faults\[0\].partition: there is no partition {partition}, only 0 to 1"):
        schedule.check(CLUSTER.brokers, CLUSTER.controllers, 2)


@pytest.mark.parametrize("target", ["c1", "controller", "controllers", "all"])
@pytest.mark.parametrize(("fault", "field"), [("wipe-disk", "nodes"), ("unclean-return", "victim")])
def test_a_fault_of_brokers_alone_takes_no_controller(fault: str, field: str, target: str) -> None:
    """One that forgot its vote might vote twice, against which no quorum promises anything."""
    schedule = parse_script([{"at": 1, "for": 1, "fault": fault, field: target}])
    with pytest.raises(FieldError, match=rf"^faults\[0\].*'{target}' stands for"):
        schedule.check(CLUSTER.brokers, CLUSTER.controllers, 2)


@pytest.mark.parametrize(
    "fields",
    [
        {"fault": "wipe-disk", "nodes": ["active"]},
        {"fault": "last-leader", "victim": "active"},
        {"fault": "unclean-return", "victim": "active"},
        {"fault": "late-log-end", "victim": "active"},
    ],
)
def test_a_fault_of_brokers_alone_strikes_no_controller_that_a_bound_name_stands_for(fields: dict[str, Any]) -> None:
    script = [
        {"at": 1, "fault": "observe", "nodes": ["controller"], "as": "active"},
        {"at": 2, "for": 1, **fields},
    ]
    outcome = run_in_simulation(parse({"seed": 1, "time_limit": "4s", "recovery_limit": "10s", "faults": script}))
    injected = outcome.injections[-1]
    assert re.search(r"TargetError: 'active' stands for c\d, and it is about brokers alone", injected.note)
    assert not injected.took_effect
    assert not {"c1", "c2", "c3"} & {*injected.evidence.get("nodes", {})}
    assert all(verdict.validity is not Validity.INVALID for verdict in outcome.verdicts)


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"fault": "kill", "for": 1, "nodes": []}, "faults[0].nodes: kill needs at least one node"),
        ({"fault": "message", "for": 1, "against": []}, "faults[0].against: message needs at least one node"),
        ({"fault": "kill", "for": 1, "nodes": ["leader/\u00b2"]}, "faults[0]: 'leader/\u00b2' is neither a node"),
        ({"fault": "kill", "for": 1, "nodes": ["victim/\u00b2"]}, "faults[0]: 'victim/\u00b2' is neither a node"),
        ({"fault": "kill", "for": 1, "as": "none"}, "faults[0].as: 'none' has a meaning of its own"),
        ({"fault": "kill", "for": 1, "as": "any"}, "faults[0].as: 'any' has a meaning of its own"),
        ({"fault": "kill", "for": 1, "as": "controller"}, "faults[0].as: 'controller' has a meaning of its own"),
        ({"fault": "kill", "for": 1, "after": "x", "id": "x"}, "faults[0].when: 'x' would wait for itself"),
        ({"fault": "deaf-leader", "patience_ms": 0}, "faults[0].patience_ms: 0 is not more than 0"),
        ({"fault": "unclean-return", "victim": "brokers"}, "faults[0].victim: 'brokers' stands for several nodes"),
        ({"fault": "recreate-topic", "victim": "minority"}, "faults[0].victim: 'minority' stands for several nodes"),
    ],
)
def test_a_fault_that_could_not_be_carried_out_is_refused_before_the_run(fields: dict[str, Any], line: str) -> None:
    schedule = parse_script([{"at": 1, **fields}])
    with pytest.raises(FieldError) as refused:
        schedule.check(CLUSTER.brokers, CLUSTER.controllers, 2)
    assert str(refused.value).startswith(line)


@settings(max_examples=100, deadline=None)
@given(schedules(CLUSTER))
def test_a_schedule_written_as_a_script_reads_back_the_same(schedule: Schedule) -> None:
    assert parse_script(schedule.to_script()) == schedule


def test_a_drawn_schedule_written_as_a_script_reads_back_the_same() -> None:
    for seed in range(200):
        drawn = draw(Random(seed), CLUSTER, 60.0, tuple(FAMILIES))
        assert parse_script(drawn.to_script()) == drawn


def test_a_field_that_is_given_under_both_of_its_names_is_refused() -> None:
    with pytest.raises(FieldError, match=r"^wait: given twice$"):
        read(_Waiting, {"wait": "5s", "wait_s": 3})


@dataclass(frozen=True)
class _Waiting:
    wait_s: float
