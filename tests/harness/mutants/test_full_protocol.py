"""A run of a mutant whose rule nobody reads is that of the full protocol, and counts without being made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from harness.runner.run import run, run_in_simulation
from harness.search.ended_runs import EndedRun
from harness.search.mutants.campaign import CampaignNight
from harness.search.mutants.full_protocol import FullProtocol
from harness.search.mutants.mutant import FIRST_SEED, RUNS_MOST, Method, Mutant, MutantKind
from harness.search.mutants.record import CampaignRecord, SeedRange
from harness.search.mutants.searches import RandomSearch
from harness.spec import loads, parse
from harness.suites.boxes import BLACK, CPU_SECONDS, TOGETHER, WHITE
from images.broker.rules import NAMES
from results.coverage import RULE_READ, marks
from results.errors import StoreError
from results.run.directory import RunDirectory

MUTANT = Mutant("maximal_isr", MutantKind.RULE, without=("maximal_isr",))


def ended(*rules: str, validity: str | None = "valid", found: str = "") -> EndedRun:
    facts = {TOGETHER: found, WHITE: found, BLACK: "", CPU_SECONDS: 2.0}
    return EndedRun(validity, facts if validity else {}, [(RULE_READ, rule) for rule in rules])


def known(path: Path, mutant: Mutant, rules_read: Mapping[int, str]) -> FullProtocol:
    """Runs of the full protocol with these seeds, each with the rule that was read in it."""
    full = FullProtocol(path, "sources")
    planned = list(full.plan(mutant, Method.RANDOM, rules_read))
    full.take_in({each.run: ended(rules_read[each.seed]) for each in planned}, "night", "commit")
    return full


def test_a_run_in_which_nobody_reads_a_rule_is_the_run_without_the_rule(tmp_path: Path) -> None:
    """Played: the digests cover every decision of the scheduler."""
    spec = parse({"vary": True, "seed": 1000003, "time_limit": 6, "faults": ["kill", "partition", "admin"]})
    outcome = run(spec, RunDirectory.create(tmp_path, "run", spec.seed), report=False)
    assert outcome.directory is not None
    found = marks(RunDirectory.open(outcome.directory).load()).to_pylist()
    read = {row["name"] for row in found if row["kind"] == RULE_READ}
    unread = [name for name in NAMES if name not in read]
    assert read >= {"metadata_needs_majority", "metadata_is_synced"}
    assert len(unread) > 20
    for name in (unread[0], unread[len(unread) // 2], unread[-1]):
        assert run_in_simulation(replace(spec, without=(name,))).digest == outcome.digest
    assert run_in_simulation(replace(spec, without=("metadata_is_synced",))).digest != outcome.digest


def test_a_run_counts_without_being_made_where_nobody_read_the_rule(tmp_path: Path) -> None:
    first = FIRST_SEED
    full = known(tmp_path / "full.json", MUTANT, {first: "fence_fetch_epoch", first + 1: "maximal_isr"})
    seeds = SeedRange(0)
    search = RandomSearch(MUTANT, Method.RANDOM, seeds, full)
    planned = search.plan()
    assert (seeds.runs, seeds.not_made, seeds.cpu_s, seeds.not_made_cpu_s) == (1, 1, 2.0, 2.0)
    assert [(each.run, each.seed) for each in planned] == [
        (f"full-protocol-append-random-seed{first + 2}", first + 2),
        (f"maximal_isr-random-seed{first + 1}", first + 1),
    ]
    by_full, by_mutant = planned
    assert (loads(by_full.spec).without, loads(by_mutant.spec).without) == ((), ("maximal_isr",))
    full.take_in({by_full.run: ended()}, "night", "commit")
    search.take_in({by_mutant.run: ended()}, "night", "commit")
    assert (seeds.runs, seeds.not_made) == (3, 2)


def test_no_run_of_a_mutant_is_planned_twice_in_a_night(tmp_path: Path) -> None:
    """Results of a name that the night's tables have are dropped, so a run that is made again would never count."""
    first = FIRST_SEED
    full = known(tmp_path / "full.json", MUTANT, dict.fromkeys(range(first + 4, first + 12), "maximal_isr"))
    seeds, made = SeedRange(0, runs=2), list[str]()
    search = RandomSearch(MUTANT, Method.RANDOM, seeds, full)
    while seeds.runs < 12:
        results = {each.run: ended("maximal_isr") for each in search.plan()}
        made += results
        full.take_in(results, "night", "commit")
        search.take_in(results, "night", "commit")
    assert len(made) == len(set(made))
    assert sum(name.startswith("maximal_isr") for name in made) == seeds.runs - 2


def test_a_run_of_the_full_protocol_that_was_not_carried_out_leaves_the_mutant_to_make_its_own(tmp_path: Path) -> None:
    full = FullProtocol(tmp_path / "full.json", "sources")
    search = RandomSearch(MUTANT, Method.RANDOM, SeedRange(0), full)
    of_full_protocol = search.plan()
    results = {each.run: ended(validity=None) for each in of_full_protocol}
    full.take_in(results, "night", "commit")
    assert [each.run.split("-")[0] for each in search.plan()] == ["maximal_isr"] * len(of_full_protocol)


def test_a_finding_about_the_full_protocol_is_none_about_a_mutant(tmp_path: Path) -> None:
    full = FullProtocol(tmp_path / "full.json", "sources")
    seeds = SeedRange(0)
    search = RandomSearch(MUTANT, Method.RANDOM, seeds, full)
    full.take_in({each.run: ended(validity="invalid", found="raft: x") for each in search.plan()}, "night", "commit")
    own = search.plan()
    assert (seeds.runs, len(own)) == (0, 2)
    search.take_in({each.run: ended("maximal_isr", validity="invalid", found="raft: x") for each in own}, "n", "c")
    assert (seeds.runs, seeds.together, seeds.not_made) == (2, None, 0)
    assert full.invalid_runs() == [
        f"night/full-protocol-append-random-seed{seed}" for seed in (FIRST_SEED, FIRST_SEED + 1)
    ]


def test_searches_share_the_runs_of_the_full_protocol_and_go_on_when_these_complete_a_range(tmp_path: Path) -> None:
    other = replace(MUTANT, name="one_isr_change_at_a_time", without=("one_isr_change_at_a_time",), ranges=2)
    record = CampaignRecord(tmp_path / "record.json")
    night = CampaignNight((MUTANT, other), record, tmp_path, 3600.0)
    planned = night.next_round()
    assert len({each.run for each in planned}) == len(planned)
    assert sum(each.cell == "full protocol, append, random" for each in planned) == 2
    first_range = range(FIRST_SEED, FIRST_SEED + RUNS_MOST)
    known(tmp_path / "mutants" / "full-protocol.json", other, dict.fromkeys(first_range, "maximal_isr"))
    full = FullProtocol.load(tmp_path / "mutants" / "full-protocol.json", "sources")
    record = CampaignRecord(tmp_path / "record.json")
    night = CampaignNight((other,), record, tmp_path, 3600.0)
    night.full = full
    record.searches[other.name] = {
        method: [SeedRange(0, runs=RUNS_MOST), SeedRange(1, runs=RUNS_MOST)] for method in (Method.STORIES, Method.HUNT)
    }
    planned = night.next_round()
    assert [each.seed for each in planned] == [FIRST_SEED + RUNS_MOST, FIRST_SEED + RUNS_MOST + 1]
    assert [each.not_made for each in record.ranges(other.name, Method.RANDOM)] == [RUNS_MOST, 0]


def test_runs_of_other_sources_are_made_again_and_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "full.json"
    full = known(path, MUTANT, {FIRST_SEED: "maximal_isr"})
    assert FullProtocol.load(path, "sources").runs == full.runs
    assert FullProtocol.load(path, "other") == FullProtocol(path, "other")
    path.write_text('{"sources": "sources", "runs": {"x": {}}}')
    with pytest.raises(StoreError, match="is not a record of runs of the full protocol"):
        FullProtocol.load(path, "sources")
