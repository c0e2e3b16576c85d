"""Shipped incidents: some are told here, each in all its variants; `make incidents` tells all of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.incidents.incident import library, load_incident
from harness.incidents.times import read_times
from harness.runner.run import run_in_simulation

MEASURED = Path(__file__).parents[2] / "docs" / "incident-times.json"
TOLD_HERE = (
    "kafka-15583-commit-below-min-isr",
    "kafka-7128-follower-behind-the-epoch-start",
    "kafka-7164-missed-leader-epochs",
    "kip-101-two-hard-failures",
    "kip-320-consumer-that-skips",
    "lower-minimum-with-an-elr",
    "removed-and-added-again",
    "zombie-controller",
)
"""Short ones of different kinds, about half a second of CPU for each variant."""


@pytest.mark.parametrize("name", TOLD_HERE)
def test_every_variant_of_an_incident_is_as_expected(name: str) -> None:
    for variant in load_incident(name).variants:
        outcome = run_in_simulation(variant.spec)
        assert not outcome.failure
        assert variant.expect.unmet(outcome.verdicts, outcome.signatures) == (), variant.name


@pytest.mark.parametrize("name", library())
def test_an_incident_has_a_variant_that_ends_differently(name: str) -> None:
    variants = load_incident(name).variants
    assert len({json.dumps(variant.expect.to_mapping()) for variant in variants}) > 1
    assert all(variant.expect.verdict is not None for variant in variants)


def test_every_shipped_incident_has_been_measured() -> None:
    assert set(read_times(MEASURED)) == set(library())


def test_only_an_incident_told_in_all_its_variants_is_entered_with_its_seconds(tmp_path: Path) -> None:
    times = tmp_path / "times.json"
    times.write_text('{"another": 2.5}')
    story = ["incident", "run", "two-power-losses", "--store", str(tmp_path / "runs"), "--times", str(times)]
    assert main([*story, "--variant", "high watermarks"]) == 0
    assert read_times(times) == {"another": 2.5}
    assert main(story) == 0
    assert set(read_times(times)) == {"another", "two-power-losses"}
    assert main([*story, "--environment", "docker"]) == 64
