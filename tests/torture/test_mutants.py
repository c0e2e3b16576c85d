"""Regressions: where each mutant was found, and that the full protocol stands where the mutant falls.

The seeds are those that `make torture` found. A change to the broker, the clients or the faults moves everything that
happens in a run, so a mutant may then come out at a neighbouring seed: a few are tried, beginning with the one found.
Mutants that need a story (nemesis/faults/scripted/leader.py and its like) are told that story alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from checkers.verdict import Validity
from harness.bench.bugs import FLAWS, Flaw
from harness.runner.outcome import Outcome
from harness.runner.run import run_in_simulation
from harness.spec import parse
from harness.suites.torture import MUTANTS, SETTINGS, WORKLOADS

TRIED = 12

FOUND_AT = {
    "maximal_isr": 0,
    "ack_after_high_watermark": 0,
    "truncate_on_divergence": 0,
    "unclean_leaves_elr": 0,
    "min_isr_gates_high_watermark": 0,
    "idempotent_dedupe": 0,
    "consumer_reads_below_high_watermark": 0,
    "offset_commit_after_high_watermark": 13,
    "generation_fences_commits": 0,
    "retention_stops_at_high_watermark": 0,
    "metadata_needs_majority": 0,
    "commit_only_own_epoch": 0,
}
"""Mutant → the first seed of the default run that finds it."""

FOUND_BY = {
    "fence_fetch_epoch": ({"fault": "zombie-follower"}, 0),
    "leso_gates_isr_join": ({"fault": "hidden-commit"}, 0),
    "log_start_never_above_high_watermark": ({"fault": "delete-records", "stalled": True}, 0),
    "broker_epoch_checked_in_alter_partition": ({"fault": "stale-broker-epoch", "victim": "b2"}, 0),
    "latest_confirmed_by_isr": ({"fault": "hidden-commit"}, 3),
    "partition_epoch_checked_in_alter_partition": ({"fault": "late-proposal"}, 1),
    "current_epoch_fetch_gates_isr_join": ({"fault": "removed-and-back"}, 2),
    "metadata_cut_on_divergence": ({"fault": "zombie-controller"}, 0),
    "vote_needs_up_to_date_log": ({"fault": "lagging-controller"}, 0),
    "vote_once_per_epoch": ({"fault": "zombie-controller"}, 4),
    "vote_is_synced": ({"fault": "power-loss", "nodes": ["controllers"], "keep": "nothing"}, 0),
    "metadata_is_synced": ({"fault": "power-loss", "nodes": ["controllers"], "keep": "nothing"}, 0),
}
"""Mutant → the story that finds it when it is told alone, and the first seed. Some the torture does not ask for."""

GUARDED_BY = {
    "applied_high_watermark": ("latest_confirmed_by_isr", {"fault": "quick-succession"}),
    "registration_waits_for_fencing": (
        "unclean_leaves_isr",
        {"fault": "wipe-disk", "nodes": ["follower/0"], "for": "300ms"},
    ),
}
"""Rules that nothing can find to be off while another one is on, that other one, and what finds both to be off.

Once every member of the ISR has fetched in the leader's epoch, the high watermark cannot be stale any more: who waits
for that need not look at the leader epoch start offset. And whether a broker leaves the ISR when the controller notices
that it is gone, or when it comes back: either of them keeps an emptied replica out, but for the instant between a
session's end and its being noticed (tests/broker/controller/test_controller_scope.py)."""

FEW_APPENDS = {"removed-and-back": {"rate": 3}}
"""What a story needs besides: with few appends the log often stands still between two of its steps."""


def _told(story: dict[str, Any], seed: int, without: Iterable[str] = ()) -> Outcome:
    return run_in_simulation(
        parse(
            {
                "name": story["fault"],
                "seed": seed,
                "partitions": 1,
                "time_limit": "30s",
                "faults": [{"at": "2s", "for": "27s", **story}],
                "without": list(without),
                **FEW_APPENDS.get(story["fault"], {}),
            }
        )
    )


def test_every_mutant_of_the_torture_has_its_regression() -> None:
    assert set(MUTANTS) <= {*FOUND_AT, *FOUND_BY}


@pytest.mark.parametrize("mutant", FOUND_AT)
def test_a_mutant_is_found_where_the_full_protocol_stands(mutant: str) -> None:
    for seed in range(FOUND_AT[mutant], FOUND_AT[mutant] + TRIED):
        spec = {"seed": seed, "workload": WORKLOADS.get(mutant, "append"), "settings": SETTINGS.get(mutant, {})}
        if run_in_simulation(parse({**spec, "without": [mutant]})).validity is Validity.INVALID:
            assert run_in_simulation(parse(spec)).validity is Validity.VALID
            return
    pytest.fail(f"not found within {TRIED} seeds; look with: faultline torture --seeds 0 --mutant {mutant}")


@pytest.mark.parametrize("mutant", FOUND_BY)
def test_a_mutant_that_needs_a_story_is_found_by_it_where_the_full_protocol_stands(mutant: str) -> None:
    story, first = FOUND_BY[mutant]
    for seed in range(first, first + TRIED):
        if _told(story, seed, [mutant]).validity is Validity.INVALID:
            assert _told(story, seed).validity is Validity.VALID
            return
    pytest.fail(f"not found within {TRIED} tellings of {story['fault']}")


@pytest.mark.parametrize("rule", GUARDED_BY)
def test_a_rule_with_a_second_guard_is_missed_by_nobody_until_both_are_off(rule: str) -> None:
    guard, story = GUARDED_BY[rule]
    for seed in range(TRIED):
        if _told(story, seed, [rule, guard]).validity is Validity.INVALID:
            assert _told(story, seed, [rule]).validity is Validity.VALID
            assert _told(story, seed, [guard]).validity is Validity.VALID
            return
    pytest.fail(f"not found within {TRIED} tellings of {story['fault']}")


@pytest.mark.parametrize("flaw", FLAWS, ids=lambda flaw: flaw.name)
def test_a_flawed_generation_is_found_by_its_story_where_the_full_protocol_stands(flaw: Flaw) -> None:
    for seed in range(TRIED):
        if run_in_simulation(flaw.spec(seed)).validity is Validity.INVALID:
            assert run_in_simulation(flaw.spec(seed, flawed=False)).validity is Validity.VALID
            return
    pytest.fail(f"not found within {TRIED} seeds")


@pytest.mark.parametrize(
    "story",
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
    ],
    ids=lambda story: story["fault"],
)
def test_every_story_bites_and_the_full_protocol_withstands_it(story: dict[str, Any]) -> None:
    outcome = _told(story, 1)
    assert outcome.validity is Validity.VALID, outcome.verdicts
    assert outcome.bitten == ("scripted",)
