"""Regressions: where each mutant was found, and that the full protocol stands where the mutant falls.

The seeds are those that `make torture` found. A change to the broker, the clients or the faults moves everything that
happens in a run, so a mutant may then come out at a neighbouring seed: a few are tried, beginning with the one found.
The three mutants that need a story (nemesis/choreography.py) are told that story alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from checkers.verdict import Validity
from harness.bench_bugs import FLAWS, Flaw
from harness.outcome import Outcome
from harness.run import run_in_simulation
from harness.spec import parse
from harness.torture import MUTANTS, SETTINGS, WORKLOADS

TRIED = 12

FOUND_AT = {
    "maximal_isr": 2,
    "ack_after_high_watermark": 0,
    "truncate_on_divergence": 0,
    "unclean_leaves_elr": 0,
    "min_isr_gates_high_watermark": 0,
    "idempotent_dedupe": 0,
    "consumer_reads_below_high_watermark": 0,
    "offset_commit_after_high_watermark": 0,
    "generation_fences_commits": 0,
    "retention_stops_at_high_watermark": 0,
}
"""Mutant → the first seed of the default run that finds it."""

FOUND_BY = {
    "fence_fetch_epoch": ({"fault": "zombie-follower"}, 0),
    "leso_gates_isr_join": ({"fault": "hidden-commit"}, 0),
    "log_start_never_above_high_watermark": ({"fault": "delete-records", "stalled": True}, 0),
    "broker_epoch_checked_in_alter_partition": ({"fault": "lost-incarnation", "victim": "b2"}, 0),
}
"""Mutant → the story that finds it when it is told alone, and the first seed."""


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
            }
        )
    )


def test_every_mutant_of_the_torture_has_its_regression() -> None:
    assert sorted([*FOUND_AT, *FOUND_BY]) == sorted(MUTANTS)


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
        {"fault": "lost-incarnation", "victim": "b2"},
        {"fault": "quick-succession"},
    ],
    ids=lambda story: story["fault"],
)
def test_every_story_bites_and_the_full_protocol_withstands_it(story: dict[str, Any]) -> None:
    outcome = _told(story, 1)
    assert outcome.validity is Validity.VALID, outcome.verdicts
    assert outcome.bitten == ("choreography",)
