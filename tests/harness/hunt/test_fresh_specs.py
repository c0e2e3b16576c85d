"""Fresh specs of a hunt: denser than random ones, legal, and drawn towards traits that have shown much."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from harness.drawn_spec import drawn_dimensions, given_world
from harness.search.hunt.fresh_specs import promising
from harness.search.hunt.operators import fresh, is_legal
from harness.search.hunt.traits import TraitYield, Trial, fitted, traits_of
from harness.spec import loads, parse
from harness.worlds import CONSTRAINTS, DIMENSIONS

BASE = parse({"vary": True, "time_limit": 20})
MUCH, LITTLE = TraitYield(200.0, 50.0), TraitYield(0.0, 100.0)


def test_a_fresh_spec_is_legal_and_has_more_faults_than_a_random_schedule() -> None:
    specs = [promising(BASE, Random(seed), {}) for seed in range(20)]
    for spec in specs:
        assert is_legal(spec, BASE)
        assert loads(spec.to_yaml()) == spec
        assert set(spec.drawn) == set(fresh(BASE, 1).drawn)
    one_schedule = parse({"vary": True, "time_limit": 20, "schedules": 1})
    random = [len(fresh(one_schedule, seed).script) for seed in range(20)]
    assert sum(len(spec.script) for spec in specs) > 3 * sum(random)


def test_long_runs_are_as_dense_as_short_ones() -> None:
    def faults_by_second(time_limit_s: float) -> float:
        base = replace(BASE, time_limit_s=time_limit_s)
        return sum(len(promising(base, Random(seed), {}).script) for seed in range(40)) / time_limit_s

    assert faults_by_second(80) > 0.7 * faults_by_second(20)


def test_values_and_densities_that_have_shown_much_are_drawn_more() -> None:
    yields = {"partitions=5": MUCH, "partitions=2": LITTLE, "faults<64": MUCH}
    specs = [promising(BASE, Random(seed), yields) for seed in range(20)]
    unlearned = [promising(BASE, Random(seed), {}) for seed in range(20)]
    assert sum(spec.partitions == 5 for spec in specs) > 3 * sum(spec.partitions == 5 for spec in unlearned)
    assert sum("faults<64" in traits_of(spec) for spec in specs) > 10


def test_all_values_of_a_world_fit_each_other() -> None:
    given = given_world(BASE)
    dimensions = {dimension.name: dimension for dimension in DIMENSIONS}
    for seed in range(20):
        drawn = promising(BASE, Random(seed), {"brokers=3": MUCH, "replication_factor=5": MUCH}).drawn
        values = {
            name: next(it for it in dimensions[name].values if str(it) == value or f"{it:g}" == value)
            if not isinstance(dimensions[name].default, str)
            else value
            for name, value in drawn.items()
        }
        world = {**given, **{name: dimensions[name].default for name in dimensions}, **values}
        assert all(fit(*(world[name] for name in names)) for names, fit in CONSTRAINTS.items())


def test_the_chances_of_a_dimension_are_those_of_random_worlds() -> None:
    (dimension,) = (each for each in DIMENSIONS if each.name == "replication_factor")
    world = {"workload": "append", "brokers": 4}
    chances = dimension.chances(0.6, world)
    assert sum(chances.values()) == pytest.approx(1)
    drawn = Counter(dimension.draw(seed, 0.6, world) for seed in range(4_000))
    assert set(drawn) == set(chances) == {1, 2, 3, 4}
    for value, chance in chances.items():
        assert drawn[value] / 4_000 == pytest.approx(chance, abs=0.03)


def test_traits_are_what_shapes_the_cluster_the_rate_and_the_number_of_faults() -> None:
    spec = fresh(BASE, 1)
    names = {trait.partition("=")[0] for trait in traits_of(spec) if "=" in trait}
    assert names == {dimension.name for dimension in DIMENSIONS if dimension.of_cluster} | {"rate"}
    assert [trait for trait in traits_of(spec) if "=" not in trait] == [f"faults<{1 << len(spec.script).bit_length()}"]


def test_a_hunt_with_a_script_keeps_its_faults() -> None:
    base = parse({"vary": ["rate"], "faults": [{"at": 1, "for": 1, "fault": "kill", "nodes": ["b1"]}]})
    spec = promising(base, Random(1), {})
    assert spec.script == base.script
    assert drawn_dimensions(base) == list(spec.drawn) == ["rate"]


def test_a_trait_that_comes_along_with_a_good_one_is_not_taken_for_good() -> None:
    trials = [Trial(f"both {number}", ("good", "beside"), 100) for number in range(30)]
    trials += [Trial(f"good {number}", ("good",), 100) for number in range(10)]
    trials += [Trial(f"beside {number}", ("beside",), 100) for number in range(10)]
    trials += [Trial(f"none {number}", (), 100) for number in range(10)]
    shown = [30.0 if "good" in trial.traits else 10.0 for trial in trials]
    yields = fitted(trials, shown)
    assert yields["good"].factor > 1.2
    assert yields["beside"].factor == pytest.approx(1, abs=0.1)
    assert fitted(trials, [0.0] * len(trials)) == {}


def test_a_run_that_costs_more_is_expected_to_show_more() -> None:
    trials = [Trial("cheap", ("cheap",), 100)] * 20 + [Trial("dear", ("dear",), 1_000)] * 20
    yields = fitted(trials, [10.0] * 20 + [20.0] * 20)
    assert yields["cheap"].factor > 1.5 > 1 > yields["dear"].factor


def test_another_process_draws_the_same_specs() -> None:
    code = (
        "from random import Random; import json\n"
        "from harness.search.hunt.fresh_specs import promising\n"
        "from harness.search.hunt.traits import TraitYield\n"
        "from harness.spec import parse\n"
        "base = parse({'vary': True, 'time_limit': 20})\n"
        "yields = {'partitions=5': TraitYield(200.0, 50.0), 'faults<64': TraitYield(200.0, 50.0)}\n"
        "print(json.dumps([promising(base, Random(seed), yields).to_yaml() for seed in range(3)]))"
    )
    texts = [
        json.loads(
            subprocess.run(
                [sys.executable, "-c", code], capture_output=True, env={"PYTHONHASHSEED": seed}, check=True
            ).stdout
        )
        for seed in ("1", "2")
    ]
    yields = {"partitions=5": MUCH, "faults<64": MUCH}
    assert texts == [[promising(BASE, Random(seed), yields).to_yaml() for seed in range(3)]] * 2
