"""Worlds: drawn from the seed alone, within their constraints, recorded, and counted."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.schema.fetch_snapshot.v1.request import FetchSnapshotRequest
from kio.schema.fetch_snapshot.v1.response import FetchSnapshotResponse

from checkers.verdict import Validity
from harness.cli.main import main
from harness.client_spec import ClientSpec
from harness.cluster.random_streams import run_stream
from harness.cluster.systems import SYSTEMS
from harness.drawn_spec import with_drawn_world
from harness.exit_codes import VALID
from harness.runner.run import run, run_in_simulation
from harness.search.mutants.mutant import all_mutants
from harness.shrinking.passes import Reproducer, Sighting
from harness.shrinking.shrinker import Shrinker
from harness.spec import Spec, loads, parse
from harness.spec import load as load_spec
from harness.suites.plan import PlannedRun, Suite, load
from harness.suites.spark_task import is_known_wrong
from harness.worlds import CONSTRAINTS, DIMENSIONS, UNNAMED, departures, draw, possible_values, recorded
from harness.yaml_document import SpecError
from images.broker.config import BROKER_NAME_OF_TOPIC_KEY
from images.broker.raft.fetch import MetadataFetchHandler
from images.broker.runtime.server import Request
from nemesis.swarm import is_fair, victims_of
from results.coverage import drawn_worlds, never_drawn
from results.run.directory import RunDirectory
from results.store.tables import of_run

ROOT = Path(__file__).parents[2]
NAMES = tuple(dimension.name for dimension in DIMENSIONS)


def drawn(seed: int, **fields: Any) -> Spec:
    return with_drawn_world(parse({"vary": True, "seed": seed, **fields}))


def world_of(spec: Spec) -> dict[str, Any]:
    """The values that a spec's nodes and clients get, whether they were drawn or not."""
    world: dict[str, Any] = {"workload": spec.workload}
    for dimension in DIMENSIONS:
        name = dimension.name
        if dimension.is_setting:
            value = spec.settings.get(name, str(dimension.default))
            world[name] = int(value) if isinstance(dimension.default, int) else value
        elif name.startswith("clients."):
            world[name] = spec.clients.to_mapping()[name.removeprefix("clients.")]
        else:
            world[name] = getattr(spec, name)
    return world


def test_defaults_are_those_of_a_run_that_does_not_vary() -> None:
    spec, system = Spec(), SYSTEMS["broker"]
    clients = {f"clients.{name}": value for name, value in ClientSpec().to_mapping().items()}
    for dimension in DIMENSIONS:
        broker_name = BROKER_NAME_OF_TOPIC_KEY.get(dimension.name, dimension.name)
        if dimension.name == "unclean.recovery.strategy":
            assert dimension.default == UNNAMED
            assert dimension.name not in spec.settings
        elif dimension.is_setting:
            default = spec.settings.get(dimension.name, system.settings[broker_name])
            assert default.casefold() == str(dimension.default), dimension.name
        else:
            default = clients[dimension.name] if dimension.name in clients else getattr(spec, dimension.name)
            assert default == dimension.default, dimension.name
        assert dimension.broker_name in ("", broker_name)


def test_every_dimension_has_a_number_of_its_own() -> None:
    assert len({dimension.number for dimension in DIMENSIONS}) == len(DIMENSIONS) == len(set(NAMES))
    assert {name for names in CONSTRAINTS for name in names} <= {*NAMES, "workload"}


def test_every_value_of_every_dimension_is_drawn_within_a_thousand_seeds() -> None:
    seen = defaultdict(set)
    for seed in range(1000):
        for name, value in draw(seed, NAMES, {"workload": ("append", "groups")[seed % 2]}).items():
            seen[name].add(recorded(value))
    assert {name: sorted(values) for name, values in seen.items()} == {
        name: sorted(values) for name, values in possible_values(NAMES, "groups").items()
    }


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    workload=st.sampled_from(("append", "groups")),
    fields=st.fixed_dictionaries(
        {},
        optional={
            "brokers": st.integers(1, 6),
            "replication_factor": st.integers(1, 3),
            "settings": st.fixed_dictionaries(
                {}, optional={"log.segment.bytes": st.just("1024"), "broker.session.timeout.ms": st.just("900")}
            ),
        },
    ),
)
def test_a_drawn_world_keeps_to_its_constraints_and_to_what_is_given(
    seed: int, workload: str, fields: dict[str, Any]
) -> None:
    fields["replication_factor"] = min(fields.get("replication_factor", 1), fields.get("brokers", 3))
    spec = drawn(seed, workload=workload, **fields)
    given_settings = fields.pop("settings", {})
    assert {name: getattr(spec, name) for name in fields} == fields
    assert {name: spec.settings[name] for name in given_settings} == given_settings
    world = world_of(spec)
    for names, fit in CONSTRAINTS.items():
        if {*names} & {*spec.drawn} and ("segment.bytes" not in names or "log.segment.bytes" not in given_settings):
            assert fit(*(world[name] for name in names)), names
    assert spec.vary == ()
    assert not {*fields, *given_settings} & {*spec.drawn}
    for name, value in spec.drawn.items():
        assert value == (UNNAMED if world[name] == UNNAMED else recorded(world[name])), name


def test_a_given_burst_draws_a_pipeline_that_has_room_for_it() -> None:
    assert {drawn(seed, clients={"burst": 50}).clients.pipeline for seed in range(20)} == {100}


def test_unclean_elections_are_permitted_in_few_worlds_and_only_where_that_counts() -> None:
    strategies = []
    for seed in range(1000):
        settings = drawn(seed).settings
        if settings.get("unclean.leader.election.enable") == "true":
            strategies.append(settings["unclean.recovery.strategy"])
    assert 10 < len(strategies) <= 50
    assert set(strategies) == {"last-known-leader", "manual"}


def test_a_given_setting_by_the_name_that_brokers_have_for_it_limits_what_is_drawn() -> None:
    for seed in range(100):
        spec = drawn(seed, settings={"log.segment.bytes": 1024})
        assert "segment.bytes" not in spec.settings
        assert spec.clients.batch <= 20
        assert drawn(seed, workload="groups", settings={"log.segment.bytes": 1024}).clients.batch == 1


def test_a_script_keeps_the_nodes_and_partitions_that_it_may_name() -> None:
    for seed in range(30):
        spec = drawn(seed, faults=[{"at": 1, "for": 2, "fault": "kill", "nodes": ["b3"]}])
        assert (spec.brokers, spec.controllers, spec.partitions, spec.replication_factor) == (3, 3, 2, 3)
    assert "clients.batch" in spec.drawn
    assert "brokers" not in spec.drawn


def test_a_generation_with_a_known_flaw_is_never_drawn() -> None:
    (generations,) = (dimension.values for dimension in DIMENSIONS if dimension.name == "faultline.protocol")
    assert not {*generations} & {mutant.protocol for mutant in all_mutants().values()}
    assert {drawn(seed).settings.get("faultline.protocol") for seed in range(100)} == {None, "kip320"}
    assert drawn(1, settings={"faultline.protocol": "kip101"}).settings["faultline.protocol"] == "kip101"
    older = {"b1": {"faultline.protocol": "kip279", "faultline.release": "kip279"}}
    assert not any("faultline.protocol" in drawn(seed, node_settings=older).drawn for seed in range(30))
    on_kafka = [drawn(seed, system="kafka", environment="docker").drawn for seed in range(20)]
    assert not any(name.startswith("faultline.") for each in on_kafka for name in each)


def test_a_release_of_kafka_draws_the_settings_that_it_has() -> None:
    name = "controller.quorum.fetch.snapshot.max.bytes"
    assert not any(name in drawn(seed, system="kafka", environment="docker").drawn for seed in range(20))
    assert name in drawn(1, system="kafka", environment="docker", version="4.3.0").drawn


def test_a_run_in_a_drawn_generation_is_kept_where_it_fails_and_one_in_a_given_generation_is_known_wrong() -> None:
    seed = next(seed for seed in range(100) if "faultline.protocol" in drawn(seed).settings)
    assert not is_known_wrong(drawn(seed))
    assert is_known_wrong(drawn(seed, settings={"faultline.protocol": "kip101"}))
    assert is_known_wrong(drawn(seed, without=["maximal_isr"]))


def test_a_drawn_recovery_that_elects_the_last_leader_meets_kills_of_any_broker_and_no_loss() -> None:
    beyond_budget = 0
    for seed in range(300):
        spec = drawn(seed)
        if spec.settings.get("unclean.recovery.strategy") != "last-known-leader":
            continue
        cluster = spec.cluster_shape(spec.broker_names, spec.controller_names)
        schedule = spec.schedule(spec.broker_names, spec.controller_names, run_stream(seed, "schedule"))
        assert cluster.loss_budget == 0
        assert not victims_of(schedule, cluster)
        beyond_budget += not is_fair(schedule, replace(cluster, keeps_data=False, unclean_recovery=False))
    assert beyond_budget > 5


def test_a_given_recovery_keeps_the_losses_that_a_spec_asks_for() -> None:
    settings = {"unclean.recovery.strategy": "last-known-leader"}
    given_both = drawn(1, settings=settings, losses="promised")
    assert given_both.cluster_shape(given_both.broker_names, given_both.controller_names).loss_budget
    assert Spec(settings=settings).losses == "promised"
    assert {drawn(seed, settings=settings).losses for seed in range(20)} == {"none"}
    given_losses = (drawn(seed, losses="promised").settings.get("unclean.recovery.strategy") for seed in range(100))
    assert "last-known-leader" not in {*given_losses}


def test_a_dimension_has_its_own_stream() -> None:
    alone = draw(11, ["segment.bytes"], {"workload": "append", "clients.batch": 1})
    among_all = draw(
        11, [name for name in NAMES if name != "clients.batch"], {"workload": "append", "clients.batch": 1}
    )
    assert alone["segment.bytes"] == among_all["segment.bytes"]


@pytest.mark.parametrize(
    "name", ["clients.static_members", "clients.late_commits", "clients.awkward_members", "clients.groups_begin"]
)
def test_only_groups_draw_what_members_do_and_no_other_draw_depends_on_it(name: str) -> None:
    others = [other for other in NAMES if other != name]
    for seed in range(20):
        assert name not in draw(seed, NAMES, {"workload": "append"})
        world = draw(seed, NAMES, {"workload": "groups"})
        del world[name]
        assert world == draw(seed, others, {"workload": "groups", name: 1.0})


def test_another_process_draws_the_same_worlds_whatever_its_hash_seed() -> None:
    program = (
        "from harness.spec import parse; from harness.drawn_spec import with_drawn_world as d\n"
        "print([d(parse({'vary': True, 'seed': s})).to_yaml() for s in range(20)])"
    )
    out = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "4242"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert out.strip() == str([drawn(seed).to_yaml() for seed in range(20)])


def test_a_spec_that_is_still_to_be_drawn_is_read_back_as_the_same() -> None:
    for fields in ({}, {"brokers": 5, "clients": {"batch": 4}, "settings": {"segment.bytes": 4096}}):
        spec = parse({"vary": True, "seed": 1, **fields})
        assert loads(spec.to_yaml()) == spec
        assert with_drawn_world(loads(spec.to_yaml())) == with_drawn_world(spec)
    assert with_drawn_world(parse({"vary": ["brokers"], "seed": 9})).drawn.keys() == {"brokers"}
    assert with_drawn_world(parse({"seed": 9})) == parse({"seed": 9})


@pytest.mark.parametrize("size", [1, 3, 1_000])
def test_a_broker_asks_for_producer_ids_whenever_its_block_is_used_up(size: int, tmp_path: Path) -> None:
    block, lives = {"faultline.producer.id.block.size": size}, {"producer_life": 1.0}
    spec = parse({"seed": 1, "time_limit": 8, "faults": "none", "brokers": 1, "clients": lives, "settings": block})
    directory = RunDirectory.create(tmp_path, "blocks", 1)
    assert run(spec, directory, report=False).validity is Validity.VALID
    kinds = Counter(directory.load().trace.column("kind").to_pylist())
    assert kinds["producer_id_assigned"] > 10
    assert kinds["producer_ids_allocated"] == math.ceil(kinds["producer_id_assigned"] / size)


def test_snapshots_of_the_metadata_are_read_in_several_parts_in_drawn_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """By brokers and by controllers; and while one is read, two others may take its place."""
    parts: Counter[tuple[str, str]] = Counter()
    fetch = MetadataFetchHandler.fetch_snapshot

    async def counted(self: MetadataFetchHandler, request: Request[FetchSnapshotRequest]) -> FetchSnapshotResponse:
        answer = await fetch(self, request)
        for partition in answer.topics[0].partitions:
            part = "first" if partition.position == 0 else "later"
            outcome = part if partition.error_code is ErrorCode.none else partition.error_code.name
            parts["controller" if request.body.replica_id > 100 else "broker", outcome] += 1
        return answer

    monkeypatch.setattr(MetadataFetchHandler, "fetch_snapshot", counted)
    assert run_in_simulation(drawn(74, time_limit=15)).validity is Validity.VALID
    for role in ("broker", "controller"):
        assert parts[role, "later"] >= 2 * parts[role, "first"] > 0
    assert parts["broker", "snapshot_not_found"]


@pytest.mark.parametrize(
    ("vary", "message"),
    [("all", "is not true, false or a list"), (["colour"], "'colour' is not one of brokers, "), (3, "is not true")],
)
def test_vary_is_refused_in_a_line(vary: object, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse({"vary": vary})


def test_a_varied_run_is_recorded_as_drawn_and_repeats_without_drawing(tmp_path: Path) -> None:
    small = {"brokers": 3, "controllers": 1, "partitions": 1, "consumers": 1, "rate": 5}
    spec = parse({"vary": True, "seed": 5, "time_limit": 2, "faults": "none", **small})
    outcome = run(spec, RunDirectory.create(tmp_path, "varied", 5), report=False)
    assert not outcome.failure
    assert outcome.directory is not None
    directory = RunDirectory.open(outcome.directory)
    stored = loads(directory.read_spec_text())
    assert stored == with_drawn_world(spec)
    assert stored.drawn
    assert run_in_simulation(stored).digest == outcome.digest
    scripted = loads((directory.path / "schedule.yaml").read_text(encoding="utf-8"))
    assert (scripted.settings, scripted.clients, scripted.drawn) == (stored.settings, stored.clients, {})
    marked = of_run(directory, directory.load(), cell="varied")["coverage"].to_pylist()
    assert {row["name"] for row in marked if row["kind"] == "world"} == {
        f"{name}={value}" for name, value in stored.drawn.items()
    }


def test_the_command_says_what_it_drew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--brokers", "1", "--partitions", "1", "--rate", "5", "--time-limit", "1", "--faults", "none"]
    assert main(["run", "--vary", "--seed", "3", *options, "--store", str(tmp_path)]) == VALID
    (world,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("world:")]
    spec = drawn(3, brokers=1, partitions=1, rate=5.0, time_limit=1, faults="none")
    assert world.split(":", 1)[1].strip().split(", ") == departures(spec.drawn)
    assert departures({"brokers": "3", "clients.batch": "50"}) == ["clients.batch=50"]


def test_an_option_or_a_setting_that_is_given_to_a_drawn_run_is_drawn_no_longer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    worlds = (drawn(seed, time_limit="1s", faults="none") for seed in range(100))
    recorded_spec = next(spec for spec in worlds if spec.brokers == 4 and "segment.bytes" in spec.settings)
    (tmp_path / "drawn.yaml").write_text(recorded_spec.to_yaml())
    options = ["--brokers", "5", "--set", "segment.bytes=2000", "--store", str(tmp_path)]
    assert main(["run", str(tmp_path / "drawn.yaml"), *options]) == VALID
    again = load_spec(tmp_path / "latest" / "spec.yaml")
    assert (again.brokers, again.settings["segment.bytes"]) == (5, "2000")
    assert recorded_spec.drawn.keys() - again.drawn.keys() == {"brokers", "segment.bytes"}
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("world: "))
    assert line == f"world:  {', '.join(departures(again.drawn))}"


def test_shrinking_brings_back_every_default_that_a_failure_does_not_need() -> None:
    seed = next(seed for seed in range(1000) if drawn(seed).clients.batch == 50 and drawn(seed).brokers == 5)
    start = drawn(seed, faults="none")
    assert start.settings != Spec().settings

    def fails(spec: Spec) -> Sighting | None:
        return Sighting() if spec.clients.batch == 50 else None

    smallest = Shrinker(Reproducer(start, Sighting()), fails).shrink().smallest.spec
    assert (smallest.settings, smallest.clients) == (Spec().settings, ClientSpec(batch=50))
    assert (smallest.brokers, smallest.controllers, smallest.partitions) == (1, 1, 1)


def test_suites_vary_unless_they_compare_or_say_no(tmp_path: Path) -> None:
    def suite(text: str) -> Suite:
        (tmp_path / "s.yaml").write_text(text)
        return load(str(tmp_path / "s.yaml"))

    varied = suite("specs: {a: {brokers: 4}, g: {workload: groups}}")
    runs = [varied.spec(PlannedRun("x", "a", seed)) for seed in range(20)]
    assert {spec.brokers for spec in runs} == {4}
    assert len({spec.clients.batch for spec in runs}) > 2
    assert "offsets.topic.num.partitions" in varied.worlds
    assert Suite.from_json(varied.to_json()) == varied
    for text in (
        "specs: {a: {}}\nsettings: {x: {acks: 1}}",
        "specs: {a: {}}\nreference: a",
        "base: {vary: false}\nspecs: {a: {}}",
    ):
        fixed = suite(text)
        assert fixed.worlds == {}
        assert all(fixed.spec(run).drawn == {} for run in fixed.runs())
    assert not load("soak").worlds
    assert load("varied").worlds
    assert load("torture").worlds
    assert all(spec.vary for spec in load("torture").mutants.values())


def test_compared_cells_that_vary_share_the_world_that_none_of_them_gives() -> None:
    cells = {
        name: parse({"vary": True, "settings": {"min.insync.replicas": value}, "faults": ["kill"]})
        for name, value in (("one", 1), ("two", 2))
    }
    suite = Suite("compared", 5, 0, cells, "one")
    for seed in range(20):
        one, two = (suite.spec(PlannedRun(cell, cell, seed)) for cell in cells)
        assert {**one.drawn, "replication_factor": ""} == {**two.drawn, "replication_factor": ""}
        assert one.script == two.script


def test_values_that_were_never_drawn_are_named() -> None:
    worlds = {"brokers": ["3", "4"], "clients.batch": ["1"]}
    assert never_drawn(worlds, {"brokers=4"}) == ["brokers=3", "clients.batch=1"]
    assert drawn_worlds(worlds, {"brokers=4"}) == (
        "worlds: 1 of 3 values drawn, in 2 dimensions; never: brokers 3; clients.batch 1"
    )
    assert drawn_worlds(worlds, {"clients.batch=1"}) == (
        "worlds: 1 of 3 values drawn, in 2 dimensions; never: brokers 3, 4"
    )
    assert drawn_worlds(worlds, {"brokers=4", "brokers=3", "clients.batch=1"}) == (
        "worlds: 3 of 3 values drawn, in 2 dimensions"
    )
