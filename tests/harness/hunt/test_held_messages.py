"""Schedules of a hunt whose faults hold messages back: in pairs, legal, and let go when something has happened."""

from __future__ import annotations

from random import Random

import pytest

from harness.search.hunt.fresh_specs import holding
from harness.search.hunt.held_messages import HOLDING_FAMILIES, held_messages
from harness.search.hunt.operators import is_legal
from harness.spec import loads, parse
from nemesis.cluster_shape import ClusterShape
from nemesis.faults.network_partition import NetworkPartition

FAMILIES = ("partition", "packets", "kill", "pause", "power-loss", "admin")
BASE = parse({"vary": True, "time_limit": 60, "faults": [*FAMILIES]})
CLUSTER = ClusterShape(("b1", "b2", "b3"), ("c1",), partitions=2, min_insync_replicas=2, patience_s=2.0)


def test_a_spec_that_holds_messages_is_legal() -> None:
    specs = [spec for seed in range(40) if (spec := holding(BASE, Random(seed))) is not None]
    assert len(specs) > 30
    for spec in specs:
        assert is_legal(spec, BASE)
        assert loads(spec.to_yaml()) == spec
        assert all(each.at_s + each.for_s <= spec.time_limit_s + 0.001 for each in spec.script)


@pytest.mark.parametrize("victims", [("b2",), ("victim/0",), ()])
def test_messages_are_held_while_another_fault_strikes(victims: tuple[str, ...]) -> None:
    faults = [*held_messages(Random(1), CLUSTER, 300.0, FAMILIES, victims)]
    struck_meanwhile, until = 0, set()
    for hold, strike in zip(faults[::2], faults[1::2], strict=True):
        assert hold.fault.family.name in HOLDING_FAMILIES
        assert {*strike.fault.at_risk(CLUSTER)} <= {*victims, "controller", "c1"}
        assert hold.at_s <= strike.at_s
        near = {*hold.fault.targets(), *(hold.until.nodes() if hold.until is not None else ())}
        if isinstance(hold.fault, NetworkPartition) and strike.fault.nodes_named():
            assert near & {*strike.fault.nodes_named()}
        struck_meanwhile += strike.at_s + strike.for_s < hold.at_s + hold.for_s
        if hold.until is not None:
            until.add(hold.until.name)
    assert struck_meanwhile > len(faults) / 4
    assert len(until) > 6
