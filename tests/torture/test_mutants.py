"""Regressions: each mutant is found by a kept run, and the full protocol stands where the mutant falls.

A kept run is a spec in `regressions/`, named after the rule that is off. Every fault of its schedule is written out, so
that a change of the random draws does not move it. `make torture` found the seeds; mutants that need a certain sequence
of steps have that fault alone (`nemesis/faults/scripted/`). A change of the broker or the clients moves what happens
inside a run. Where a mutant then survives, look for another seed with

    FAULTLINE_WRITE_REGRESSIONS=1 .venv/bin/pytest tests/torture/test_mutants.py -k RULE

which replaces the spec by the first neighbour that finds the mutant.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from checkers.verdict import Validity
from harness.bench.bugs import FLAWS, Flaw
from harness.runner.outcome import Outcome
from harness.runner.run import run_in_simulation
from harness.search.mutants.mutant import GUARDED_BY
from harness.spec import Spec, load, parse
from harness.suites.plan import load as load_suite
from harness.suites.plan import without

KEPT = Path(__file__).parent / "regressions"
SPECS = tuple(sorted(KEPT.glob("*.yaml")))
SEEDS = range(5)
"""The seeds among which a script must find a flawed generation; `make bench` tells how many runs it takes."""
NEIGHBOURS = 12
"""How many seeds are tried when a spec is replaced."""

NAMED = {
    "cancel_needs_min_isr": "reassignment-shrinks-isr",
    "delete_replica_durably": "deleted-log-came-back",
    "latest_confirmed_by_isr": "latest-unconfirmed",
    "leso_gates_isr_join": "isr-proposal-behind",
    "metadata_needs_majority": "uncommitted-metadata-applied",
    "registration_waits_for_fencing": "registered-in-session",
    "truncate_on_divergence": "appended-batches-differ",
}
"""Rules whose absence the trace shows as the act that breaks them, and the finding that names it."""


def _kept(path: Path) -> tuple[Spec, tuple[str, ...]]:
    """The spec of the full protocol, and the rules to switch off."""
    rules = (path.stem, GUARDED_BY[path.stem]) if path.stem in GUARDED_BY else (path.stem,)
    spec = load(path)
    if "FAULTLINE_WRITE_REGRESSIONS" in os.environ:
        spec = _found(spec, rules)
        path.write_text(spec.to_yaml(), encoding="utf-8")
    return spec, rules


def _found(spec: Spec, rules: Sequence[str]) -> Spec:
    for seed in range(spec.seed, spec.seed + NEIGHBOURS):
        neighbour = replace(spec, seed=seed)
        if _validity(neighbour, *rules) is Validity.INVALID and _validity(neighbour) is Validity.VALID:
            return neighbour
    pytest.fail(f"not found within {NEIGHBOURS} seeds; look with: faultline torture --seeds 0 --mutant {rules[0]}")


def _validity(spec: Spec, *without: str) -> Validity:
    return run_in_simulation(replace(spec, without=without)).validity


def _violations(outcome: Outcome) -> set[str]:
    """The kinds of findings of the checks that say `invalid`."""
    invalid = [verdict for verdict in outcome.verdicts if verdict.validity is Validity.INVALID]
    return {finding.kind for verdict in invalid for finding in verdict.findings}


def _named(*rules: str) -> set[str]:
    return {NAMED[rule] for rule in rules if rule in NAMED}


def test_every_mutant_of_the_torture_has_its_regression() -> None:
    assert set(load_suite("torture").mutants) <= {without(path.stem) for path in SPECS}


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_a_mutant_is_found_where_the_full_protocol_stands(path: Path) -> None:
    spec, rules = _kept(path)
    assert spec.script, "its faults are written out"
    assert not spec.families
    rule, *guards = rules
    violations = _violations(run_in_simulation(replace(spec, without=rules)))
    assert violations - _named(*guards)
    assert _named(rule) <= violations
    assert _validity(spec) is Validity.VALID


@pytest.mark.parametrize("rule", [path.stem for path in SPECS if path.stem in GUARDED_BY])
def test_a_rule_with_a_second_guard_costs_nothing_until_both_are_off(rule: str) -> None:
    spec = load(KEPT / f"{rule}.yaml")
    assert _violations(run_in_simulation(replace(spec, without=(rule,)))) == _named(rule)
    of_guard = _violations(run_in_simulation(replace(spec, without=(GUARDED_BY[rule],))))
    assert of_guard == _named(GUARDED_BY[rule])


@pytest.mark.parametrize("flaw", FLAWS, ids=lambda flaw: flaw.name)
def test_a_flawed_generation_is_found_by_its_script_where_the_full_protocol_stands(flaw: Flaw) -> None:
    finding = next(seed for seed in SEEDS if run_in_simulation(flaw.spec(seed)).validity is Validity.INVALID)
    assert run_in_simulation(flaw.spec(finding, flawed=False)).validity is Validity.VALID


@pytest.mark.parametrize(
    "fault",
    [
        {"fault": "zombie-follower"},
        {"fault": "hidden-commit"},
        {"fault": "deaf-leader"},
        {"fault": "unclean-return", "victim": "b1"},
        {"fault": "stale-broker-epoch", "victim": "b2"},
        {"fault": "quick-succession"},
        {"fault": "late-proposal"},
        {"fault": "removed-and-back"},
        {"fault": "zombie-controller"},
        {"fault": "lagging-controller"},
        {"fault": "half-deleted-replica", "victim": "b1"},
        {"fault": "cancelled-in-doubt"},
        {"fault": "late-epoch-answer"},
        {"fault": "late-quorum-fetch"},
        {"fault": "late-join", "victim": "b2"},
        {"fault": "slow-catch-up"},
        {"fault": "late-vote"},
        {"fault": "there-and-back"},
        {"fault": "unaware-controller"},
    ],
    ids=lambda fault: fault["fault"],
)
def test_every_scripted_fault_takes_effect_and_the_full_protocol_withstands_it(fault: dict[str, Any]) -> None:
    outcome = _alone(fault)
    assert outcome.validity is Validity.VALID, outcome.verdicts
    assert outcome.effective_families == ("scripted",)


def test_a_late_answer_about_an_epoch_waits_until_something_has_been_written() -> None:
    """Seed 3000430 of runs of 20 s had nothing but this fault, before the first burst of any producer."""
    clients = {"burst": 20, "pipeline": 20}
    outcome = _alone({"fault": "late-epoch-answer", "at": "0s"}, producers=1, rate=5, clients=clients)
    assert outcome.validity is Validity.VALID, outcome.verdicts
    assert outcome.effective_families == ("scripted",)


WORLDS: dict[str, dict[str, Any]] = {
    "removed-and-back": {"rate": 3},
    "half-deleted-replica": {"settings": {"segment.bytes": 1024}},
    "cancelled-in-doubt": {"brokers": 4},
    "late-epoch-answer": {"partitions": 2, "settings": {"faultline.protocol": "kip320"}},
    "slow-catch-up": {"settings": {"replica.fetch.max.bytes": 300}},
}
"""What scripted faults need of their world."""


def _alone(fault: dict[str, Any], **world: Any) -> Outcome:
    faults = [{"at": "2s", "for": "27s", **fault}]
    world = {**WORLDS.get(fault["fault"], {}), **world}
    return run_in_simulation(parse({"seed": 1, "partitions": 1, "time_limit": "30s", "faults": faults, **world}))
