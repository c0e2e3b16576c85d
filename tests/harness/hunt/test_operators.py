"""Operators of the guided search: each yields legal specs, changes what it says, and draws from its stream alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from random import Random

import pytest

from harness.search.hunt.operators import OPERATORS, Parents, fresh, is_legal, mutate
from harness.spec import Spec, loads, parse
from nemesis.faults.administrators.recreate_topic import RecreateTopic
from nemesis.swarm import is_fair, victims_of
from nemesis.targets import TRIGGER

BASE = parse({"vary": True, "time_limit": 30})
BASE_HELD = """
time_limit: 30
faults:
  - {at: 2, for: 4, fault: kill, nodes: [b1]}
  - {at: 3, for: 9, until: {registered: b1}, fault: partition, shape: one-way, nodes: [b2], against: [b3]}
"""
SEEDS = range(8)


@cache
def parent(seed: int) -> Spec:
    return fresh(BASE, seed)


@cache
def children(operator: str) -> tuple[tuple[Parents, Spec], ...]:
    return tuple(_children(operator))


def _children(operator: str) -> Iterator[tuple[Parents, Spec]]:
    for seed in SEEDS:
        parents = Parents(parent(seed), parent(seed + 1), BASE)
        for draw in range(3):
            child = mutate(OPERATORS[operator], parents, Random(f"{operator}/{seed}/{draw}"))
            if child is not None:
                yield parents, child


@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operator_yields_legal_specs_that_read_back_as_they_are(operator: str) -> None:
    found = children(operator)
    assert len(found) >= 3
    for parents, child in found:
        assert child not in (parents.spec, parents.mate)
        assert not child.families
        assert child.time_limit_s == BASE.time_limit_s
        assert loads(child.to_yaml()) == child
        cluster = child.cluster_shape(child.broker_names, child.controller_names)
        assert is_fair(child.script, cluster)
        assert any(each.when is None and each.fault.effective_alone(cluster) for each in child.script)
        assert all(each.at_s + each.for_s <= child.time_limit_s + 0.002 for each in child.script)


@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operator_draws_from_its_stream_alone(operator: str) -> None:
    parents = Parents(parent(2), parent(3), BASE)
    once, again = (mutate(OPERATORS[operator], parents, Random(5)) for _ in range(2))
    assert once == again


def test_half_of_the_children_keep_the_seed_and_so_the_run_up_to_the_change() -> None:
    kept: list[bool] = []
    for operator in OPERATORS:
        same = [child.seed == parents.spec.seed for parents, child in children(operator)]
        if operator in ("reseed", "new_faults", "new_world"):
            assert not any(same)
        else:
            kept += same
    assert 0.35 < sum(kept) / len(kept) < 0.65


def test_a_new_world_keeps_the_schedule_and_says_what_was_drawn() -> None:
    changed = 0
    for parents, child in children("new_world"):
        assert child.script == parents.spec.script
        changed += child.drawn != parents.spec.drawn
        assert child.drawn.keys() >= parents.spec.drawn.keys() - {"offsets.topic.num.partitions"}
        for name, value in child.drawn.items():
            if "." in name and not name.startswith(("clients.", "unclean.")):
                assert child.settings.get(name, value) == value, name
    assert changed


def test_new_faults_are_drawn_as_for_the_world_of_the_parent() -> None:
    for parents, child in children("new_faults"):
        assert (child.settings, child.brokers, child.clients) == (
            parents.spec.settings,
            parents.spec.brokers,
            parents.spec.clients,
        )


def test_new_faults_are_as_dense_as_those_of_the_parent() -> None:
    asked = {"triggers": 0.5, "channels": 0.5, "blackouts": 0.5, "schedules": 3, "administrators": 2}
    base = parse({"time_limit": 30, **asked})
    child = OPERATORS["new_faults"](Parents(fresh(base, 1), fresh(base, 2), base), Random(1))
    assert child == fresh(base, child.seed if child is not None else 0)
    for parents, drawn in children("new_faults"):
        changed = [each.fault for each in drawn.script if isinstance(each.fault, RecreateTopic) and each.fault.changes]
        assert len(changed) >= int(parents.spec.drawn["administrators"])


def test_the_first_run_of_a_seed_is_that_of_a_suite_with_its_faults_as_a_script() -> None:
    spec = parent(4)
    assert spec == fresh(BASE, 4)
    assert len(spec.script) > 0
    assert is_legal(spec, BASE)


def test_added_triggers_wait_and_dropped_ones_do_not() -> None:
    def waiting(spec: Spec) -> int:
        return sum(each.when is not None for each in spec.script)

    assert all(waiting(child) == waiting(parents.spec) + 1 for parents, child in children("add_trigger"))
    assert all(waiting(child) == waiting(parents.spec) - 1 for parents, child in children("drop_trigger"))
    for _, child in children("drop_trigger"):
        assert all(each.when is not None for each in child.script if TRIGGER in each.fault.targets())


def test_a_fault_that_ends_by_itself_takes_the_place_of_one_that_a_condition_ended() -> None:
    held = loads(BASE_HELD)
    (_, ended) = held.script
    assert ended.until is not None
    base = replace(BASE, families=("scripted",))
    swapped = [mutate(OPERATORS["swap_fault"], Parents(held, held, base), Random(draw)) for draw in range(20)]
    found = [child for child in swapped if child is not None]
    assert all(loads(child.to_yaml()) == child for child in found)
    at_its_place = [child.script.faults[1] for child in found if child.script.faults[1].fault != ended.fault]
    assert at_its_place, "none took the place"
    assert all(each.until is None and each.for_s == ended.for_s for each in at_its_place)


def test_faults_of_a_mate_lose_the_data_of_the_victims_of_the_schedule_they_join() -> None:
    """Two schedules whose victims are two brokers would together lose more than the protocol promises to keep."""

    def one(victim: str) -> Spec:
        faults = [
            {"at": number, "for": 1, "fault": fault, "nodes": nodes}
            for number, (fault, nodes) in enumerate(
                [("power-loss", [victim]), ("pause", ["b1"]), ("kill", [victim])], 2
            )
        ]
        return parse({"seed": 1, "faults": faults})

    base = parse({})
    parents = Parents(one("b2"), one("b3"), base)
    for operator in ("splice", "transplant", "pack"):
        for seed in range(20):
            child = mutate(OPERATORS[operator], parents, Random(seed))
            assert child is not None or operator != "pack", "it has the faults of both, for which victims are exchanged"
            if child is not None:
                cluster = child.cluster_shape(child.broker_names, child.controller_names)
                assert victims_of(child.script, cluster) in ((), ("b2",))


def test_faults_beyond_the_loss_budget_that_a_hunt_asks_for_are_no_reason_to_draw_anew() -> None:
    base = parse({"vary": True, "time_limit": 30, "faults": ["power-loss-all"]})
    parents = Parents(fresh(base, 1), fresh(base, 2), base)
    assert mutate(OPERATORS["shift"], parents, Random(1)) is not None


def test_a_power_loss_of_controllers_that_joins_a_schedule_stays_one() -> None:
    loss = {"at": 1, "for": 2, "fault": "power-loss", "nodes": ["controllers"]}
    mate = parse({"time_limit": 30, "faults": [loss]})
    parents = Parents(parse({"time_limit": 30, "faults": [{"at": 9, "for": 2, "fault": "kill"}]}), mate, BASE)
    joined = [child for draw in range(9) if (child := OPERATORS["pack"](parents, Random(draw))) is not None]
    losses = [each.fault.nodes_named() for child in joined for each in child.script if each.fault.name == "power-loss"]
    assert losses
    assert {*losses} == {("controllers",)}


def test_a_schedule_beyond_the_loss_budget_or_without_any_effect_is_not_legal() -> None:
    def spec(*faults: dict[str, object]) -> Spec:
        return parse({"seed": 1, "faults": [{"for": 1, **fault} for fault in faults]})

    base = parse({})
    one = {"at": 1, "fault": "power-loss", "nodes": ["b1"]}
    assert is_legal(spec(one), base)
    assert not is_legal(spec(one, {"at": 2, "fault": "kill", "nodes": ["b2"]}), base)
    assert not is_legal(spec(one, {"at": 2, "fault": "kill", "nodes": ["victim/0"]}), base)
    assert not is_legal(spec({"when": {"fenced": "b2"}, "fault": "kill", "nodes": ["b2"]}), base)
    many = [{**one, "at": number / 10} for number in range(301)]
    assert is_legal(spec(*many[1:]), base)
    assert not is_legal(spec(*many), base)
    short = replace(base, time_limit_s=20.0)
    assert is_legal(replace(spec(*many[:100]), time_limit_s=20.0), short)
    assert not is_legal(replace(spec(*many[:101]), time_limit_s=20.0), short)
