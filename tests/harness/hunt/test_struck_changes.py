"""Schedules of a hunt whose faults strike a node when something has happened to it: in pairs, legal, as meant."""

from __future__ import annotations

from random import Random

import pytest

from harness.search.hunt.fresh_specs import striking
from harness.search.hunt.operators import is_legal
from harness.search.hunt.struck_changes import struck_changes
from harness.spec import loads, parse
from nemesis.cluster_shape import ClusterShape
from nemesis.conditions import ControllerElected, LogStartMoved, NodeOccurrence, ReplicaDeleted, ReplicaResigned
from nemesis.targets import TRIGGER
from nemesis.triggers import OCCURRENCES

FAMILIES = ("partition", "packets", "kill", "pause", "power-loss", "admin")
BASE = parse({"vary": True, "time_limit": 60, "faults": [*FAMILIES]})
CLUSTER = ClusterShape(("b1", "b2", "b3"), ("c1",), partitions=2, min_insync_replicas=2, patience_s=2.0)


def test_a_spec_that_strikes_what_changes_is_legal() -> None:
    specs = [spec for seed in range(40) if (spec := striking(BASE, Random(seed))) is not None]
    assert len(specs) > 30
    for spec in specs:
        assert is_legal(spec, BASE)
        assert loads(spec.to_yaml()) == spec
        assert all(each.at_s < spec.time_limit_s for each in spec.script)


@pytest.mark.parametrize("victims", [("b2",), ("victim/0",), ()])
def test_a_node_is_struck_when_what_another_fault_may_bring_about_has_happened_to_it(victims: tuple[str, ...]) -> None:
    faults = [*struck_changes(Random(1), CLUSTER, 600.0, FAMILIES, victims)]
    kinds, losing = set[type](), 0
    for change, strike in zip(faults[::2], faults[1::2], strict=True):
        condition = strike.when
        assert change.when is None
        assert change.at_s == strike.at_s
        assert isinstance(condition, NodeOccurrence)
        assert change.fault.removes_replicas is isinstance(condition, ReplicaDeleted | ReplicaResigned)
        assert change.fault.deletes_records is isinstance(condition, LogStartMoved)
        at_risk = strike.fault.at_risk(CLUSTER)
        assert strike.fault.nodes_named() == (at_risk or (TRIGGER,))
        if at_risk:
            losing += 1
            assert at_risk == victims
            named = victims == ("b2",) and not isinstance(condition, ControllerElected)
            assert condition.nodes() == (victims if named else ())
        kinds.add(type(condition))
    assert kinds == {*OCCURRENCES, ReplicaDeleted, ReplicaResigned, LogStartMoved}
    assert (losing > len(faults) / 8) is bool(victims)


@pytest.mark.parametrize("families", [("kill",), ("pause", "partition"), ("admin",)])
def test_what_the_families_cannot_bring_about_is_not_waited_for(families: tuple[str, ...]) -> None:
    faults = [*struck_changes(Random(1), CLUSTER, 60.0, families, ("b2",))]
    assert bool(faults) is (families != ("admin",))
    assert {each.fault.family.name for each in faults} <= {*families}
    waited = {type(each.when) for each in faults if each.when is not None}
    assert waited <= {*OCCURRENCES}
