"""Runs in the simulation with a flaw: the story names the flaw without having read which rule was off."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.runner.outcome import Outcome
from harness.runner.run import run_in_simulation
from harness.spec import load, parse
from results.explanation.story import LINES_MAX

REGRESSIONS = Path(__file__).parents[2] / "torture" / "regressions"
CAUSES = {
    "ack_after_high_watermark": "acknowledged-above-high-watermark",
    "maximal_isr": "high-watermark-without-proposed-member",
    "truncate_on_divergence": "diverging-fetch-accepted",
    "fence_fetch_epoch": "fetch-of-other-epoch-accepted",
}
"""Rule that is off → the kind of the step that breaks the promise."""


def run_without(rule: str) -> Outcome:
    return run_in_simulation(replace(load(REGRESSIONS / f"{rule}.yaml"), without=(rule,)))


@pytest.mark.parametrize(("rule", "cause"), CAUSES.items())
def test_the_cause_of_a_mutants_failure_is_named(rule: str, cause: str) -> None:
    stories = run_without(rule).stories
    assert [story.signature.cause for story in stories] == [cause]
    assert cause in stories[0].lines()[0]
    assert len(stories[0].lines()) <= LINES_MAX
    assert rule not in str([story.lines() for story in stories])


def test_a_flaw_has_one_signature_in_every_run() -> None:
    fields = {"time_limit": 2, "faults": "none", "without": ["ack_after_high_watermark"]}
    runs = [run_in_simulation(parse({**fields, "seed": seed})) for seed in (1, 2)]
    assert {str(story.signature) for run in runs for story in run.stories} == {
        "protocol/acknowledged-uncommitted/acknowledged-above-high-watermark"
    }
