"""Partitions and slow links that concern the connections of one name: what they carry stops, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from itertools import filterfalse
from pathlib import Path
from random import Random
from typing import Any

import pytest

from checkers.verdict import Validity
from harness.runner.outcome import Outcome
from harness.runner.run import run_in_simulation
from harness.simulation.network.channel_names import UNNAMED, name_of
from harness.spec import parse
from harness.yaml_document import SpecError
from images.wire.messages import Api
from nemesis.cluster_shape import ClusterShape
from nemesis.faults.fault import Fault
from nemesis.faults.network_partition import NetworkPartition, PartitionShape
from nemesis.faults.packets import Packets
from nemesis.ports import ChannelName, EnvironmentCapability
from nemesis.schedule import Schedule, ScheduledFault
from nemesis.swarm import draw
from results.run.directory import RunDirectory

CLUSTER = ClusterShape(("b1", "b2", "b3"), ("c1", "c2", "c3"), partitions=2)
FENCED, SHRUNK = "broker_fenced", "isr_proposed"


def played(directory: Path, fault: dict[str, Any]) -> tuple[Outcome, set[str]]:
    """A run with one fault, and the kinds of events while it was active."""
    small = {"seed": 1, "time_limit": "8s", "controllers": 1, "rate": 10, "partitions": 1, "brokers": 3}
    outcome = run_in_simulation(parse({**small, "faults": [{"at": 1, "for": 6, **fault}]}), directory)
    assert outcome.validity is Validity.VALID, outcome.verdicts
    assert outcome.directory is not None
    (injection,) = outcome.injections
    trace = RunDirectory.open(outcome.directory).load().trace.to_pylist()
    began_ns, ended_ns = injection.started_ns, injection.started_ns + 6_000_000_000
    return outcome, {row["kind"] for row in trace if began_ns <= row["time_ns"] <= ended_ns}


@pytest.mark.parametrize(
    ("channel", "seen", "unseen"),
    [
        (ChannelName.HEARTBEAT, {FENCED}, set()),
        (ChannelName.FETCH, {SHRUNK}, {FENCED}),
        (ChannelName.METADATA, set(), {SHRUNK}),
        (ChannelName.CLIENT, set(), {FENCED, SHRUNK}),
    ],
)
def test_a_broker_cut_off_on_one_channel_goes_on_with_all_others(
    channel: ChannelName, seen: set[str], unseen: set[str], tmp_path: Path
) -> None:
    outcome, kinds = played(tmp_path, {"fault": "partition", "nodes": ["b1"], "channel": channel.value})
    assert outcome.injections[0].evidence["held"] > 0
    assert seen <= kinds
    assert not unseen & kinds


def test_a_slow_channel_delays_its_packets_alone(tmp_path: Path) -> None:
    slow = {"fault": "packets", "nodes": ["brokers"], "against": ["controllers"], "delay_ms": 300}
    outcome, kinds = played(tmp_path, {**slow, "channel": "metadata"})
    evidence = outcome.injections[0].evidence
    assert evidence["delayed"] > 0
    assert 0.25 < evidence["delay_seconds"] / evidence["delayed"] < 0.35
    assert not {FENCED, SHRUNK} & kinds


def test_connections_of_a_channel_can_be_reset(tmp_path: Path) -> None:
    outcome, _ = played(
        tmp_path, {"fault": "partition", "nodes": ["b1"], "channel": "heartbeat", "flavour": "reset", "for": 1}
    )
    assert outcome.injections[0].evidence["reset"] > 0


@pytest.mark.parametrize(
    ("source", "target", "api", "name"),
    [
        ("b1", "b2", Api.FETCH, "fetch"),
        ("b1", "b2", Api.OFFSET_FOR_LEADER_EPOCH, "fetch"),
        ("b1", "c1", Api.FETCH, "metadata"),
        ("b1", "c1", Api.FETCH_SNAPSHOT, "metadata"),
        ("b1", "c1", Api.BROKER_REGISTRATION, "heartbeat"),
        ("b1", "c1", Api.BROKER_HEARTBEAT, "heartbeat"),
        ("b1", "c1", Api.ALTER_PARTITION, "alter-partition"),
        ("b1", "c1", Api.CREATE_TOPICS, "forwarding"),
        ("c1", "c2", Api.VOTE, "quorum"),
        ("harness", "b1", Api.FETCH, "client"),
        ("harness", "c1", Api.METADATA, "client"),
        ("c1", "b1", Api.GET_REPLICA_LOG_INFO, UNNAMED),
    ],
)
def test_a_connection_is_named_for_its_first_request(source: str, target: str, api: Api, name: str) -> None:
    frame = (60).to_bytes(4) + int(api).to_bytes(2) + bytes(58)
    assert name_of(source, target, frame) == name


def links_limited(schedule: Schedule) -> list[Fault]:
    return [each.fault for each in schedule if getattr(each.fault, "channel", None) is not None]


def is_slow_throughout(scheduled: ScheduledFault) -> bool:
    """Whether connections of one name are slow from the beginning to the end."""
    fault = scheduled.fault
    return isinstance(fault, Packets) and fault.channel is not None and (scheduled.at_s, scheduled.for_s) == (0, 60)


def test_some_connections_are_slow_throughout_where_channels_are_drawn_and_links_can_be_slowed() -> None:
    slow = [
        {each.fault.channel for each in draw(Random(seed), CLUSTER, 60.0, channels=0.2) if is_slow_throughout(each)}
        for seed in range(40)
    ]
    assert slow.count(set()) > 10
    assert {ChannelName.FETCH, ChannelName.METADATA} == set().union(*slow)
    for missing in (EnvironmentCapability.CHANNELS, EnvironmentCapability.DELAY):
        lacking = replace(CLUSTER, unsupported=frozenset({missing}))
        drawn = (draw(Random(seed), lacking, 60.0, channels=0.2) for seed in range(40))
        assert not any(is_slow_throughout(each) for schedule in drawn for each in schedule)


def test_channels_are_drawn_as_often_as_asked_for_and_change_no_other_draw() -> None:
    limited = 0
    for seed in range(25):
        plain, some = (draw(Random(seed), CLUSTER, 60.0, channels=share) for share in (0.0, 0.5))
        assert links_limited(plain) == []
        for before, after in zip(plain, filterfalse(is_slow_throughout, some), strict=True):
            if isinstance(after.fault, NetworkPartition | Packets):
                limited += after.fault.channel is not None
                assert replace(after, fault=replace(after.fault, channel=None)) == before
            else:
                assert after == before
        assert Schedule(tuple(some)).to_script() == parse({"faults": some.to_script() or "none"}).script.to_script()
        assert any(each.fault.effective_alone(CLUSTER) for each in some)
    assert limited > 8


@pytest.mark.parametrize(
    ("fault", "names"),
    [
        (NetworkPartition(PartitionShape.RING), {"fetch"}),
        (NetworkPartition(PartitionShape.CONTROLLERS_APART), {"quorum"}),
        (NetworkPartition(PartitionShape.ONE_WAY, ("c1",), ("c2",)), {"quorum"}),
        (NetworkPartition(PartitionShape.ONE_WAY, ("leader/0",), ("b2",)), {"fetch"}),
        (
            NetworkPartition(PartitionShape.ONE_WAY, ("b1",)),
            {"fetch", "metadata", "heartbeat", "alter-partition", "forwarding", "client"},
        ),
        (
            NetworkPartition(PartitionShape.ISOLATE, ("controller",)),
            {"metadata", "heartbeat", "alter-partition", "forwarding", "quorum"},
        ),
        (
            Packets(("c1",), ("all",), loss=0.1),
            {"metadata", "heartbeat", "alter-partition", "forwarding", "quorum"},
        ),
        (Packets(("b1",), ("controllers",), loss=0.1), {"metadata", "heartbeat", "alter-partition", "forwarding"}),
        (Packets(("controller",), ("brokers",), loss=0.1), {"metadata", "heartbeat", "alter-partition", "forwarding"}),
        (
            Packets(("b1",), ("all",), loss=0.1),
            {"fetch", "metadata", "heartbeat", "alter-partition", "forwarding", "client"},
        ),
    ],
)
def test_a_channel_is_drawn_among_those_between_the_nodes(fault: Fault, names: set[str]) -> None:
    drawn = (fault.limited(Random(seed), CLUSTER) for seed in range(60))
    assert {each.to_mapping()["channel"] for each in drawn} == names


def test_where_channels_cannot_be_told_apart_none_is_drawn_and_a_script_is_refused() -> None:
    lacking = replace(CLUSTER, unsupported=(EnvironmentCapability.CHANNELS,))
    for seed in range(20):
        assert links_limited(draw(Random(seed), lacking, 60.0, channels=1.0)) == []
    reason = {EnvironmentCapability.CHANNELS: "all connections lead to one port"}
    for fault in (NetworkPartition(channel=ChannelName.FETCH), Packets(loss=0.1, channel=ChannelName.FETCH)):
        line = f"faults[0]: {fault.name} needs channels, and all connections lead to one port"
        assert Schedule((ScheduledFault(1.0, 2.0, fault),)).unmet(reason) == line


@pytest.mark.parametrize("shape", [each for each in PartitionShape if each not in ("isolate", "one-way")])
def test_clients_are_cut_off_from_nodes_and_from_no_shape(shape: PartitionShape) -> None:
    with pytest.raises(SpecError, match="channel: client takes shape isolate or one-way, without against, not "):
        parse({"faults": [{"at": 1, "for": 1, "fault": "partition", "shape": shape, "channel": "client"}]})


def test_an_unknown_channel_is_one_line() -> None:
    with pytest.raises(SpecError, match=r"faults\[0\]\.channel: 'gossip' is not one of fetch, metadata, "):
        parse({"faults": [{"at": 1, "for": 1, "fault": "partition", "channel": "gossip"}]})
