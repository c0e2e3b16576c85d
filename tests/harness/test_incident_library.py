"""Shipped incidents: some are told here, each in all its variants; `make incidents` tells all of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from checkers.verdict import Validity, Verdict
from harness.cli.main import main
from harness.incidents import telling
from harness.incidents.expectation import Expectation
from harness.incidents.incident import Variant, library, load_incident
from harness.incidents.measurements import Measurement, read_measurements, record_measurements
from harness.incidents.telling import Telling
from harness.runner.outcome import Outcome
from harness.runner.run import run_in_simulation
from harness.spec import Spec

MEASURED = Path(__file__).parents[2] / "docs" / "incident-measurements.json"
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
    measured = read_measurements(MEASURED)
    assert set(measured) == set(library())
    assert all(entry.cpu_seconds for entry in measured.values())


def test_what_is_told_in_docker_was_as_expected_there_within_its_tries() -> None:
    measured = read_measurements(MEASURED)
    incidents = [incident for incident in map(load_incident, library()) if incident.docker_tries]
    assert len(incidents) >= 10
    for incident in incidents:
        tries = measured[incident.name].docker_tries
        assert list(tries) == [variant.name for variant in incident.variants], incident.name
        assert max(tries.values()) <= incident.docker_tries <= 5


def test_only_an_incident_told_in_all_its_variants_is_entered_with_its_seconds(tmp_path: Path) -> None:
    entries = tmp_path / "entries.json"
    entries.write_text('{"another": {"cpu_seconds": 2.5}}')
    story = ["incident", "run", "two-power-losses", "--store", str(tmp_path / "runs"), "--record", str(entries)]
    assert main([*story, "--variant", "high watermarks"]) == 0
    assert read_measurements(entries) == {"another": Measurement(2.5)}
    assert main(story) == 0
    assert set(read_measurements(entries)) == {"another", "two-power-losses"}


def test_the_tries_of_an_incident_stand_beside_its_seconds(tmp_path: Path) -> None:
    incident = load_incident("isr-of-one")
    entries = tmp_path / "entries.json"

    def told(variant: Variant, tries: int, *unmet: str) -> Telling:
        return Telling(incident, variant, Outcome(variant.spec), unmet, tries, seconds=60.0, cpu_seconds=1.2)

    one, two = incident.variants
    record_measurements(entries, [told(one, 1), told(two, 1)], "sim")
    record_measurements(entries, [told(one, 1), told(two, 3)], "docker")
    expected = {incident.name: Measurement(2.4, {one.name: 1, two.name: 3})}
    assert read_measurements(entries) == expected
    record_measurements(entries, [told(one, 2), told(two, 5, "the verdict is unknown, not valid")], "docker")
    assert read_measurements(entries) == expected


@pytest.mark.parametrize(
    ("validities", "tries"),
    [(["unknown", "valid"], 2), (["unknown"] * 5, 5), (["unknown", "invalid", "valid"], 2)],
    ids=["as expected", "undecided", "broken"],
)
def test_the_tries_of_a_sound_variant_end_with_a_broken_promise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, validities: list[str], tries: int
) -> None:
    outcomes = iter(validities)

    def run(spec: Spec, *rest: object, **options: object) -> Outcome:
        return Outcome(spec, (Verdict("loss", Validity(next(outcomes)), ()),))

    monkeypatch.setattr(telling, "run", run)
    incident = load_incident("acks-1-behind-an-isolated-leader")
    variant = replace(incident.variants[1], expect=Expectation(verdict=Validity.VALID))
    telling_result = telling.tell(incident, variant, tmp_path, environment="docker")
    assert (telling_result.tries, telling_result.met) == (tries, validities[tries - 1] == "valid")
