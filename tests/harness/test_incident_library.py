"""Shipped incidents: some are told here, each in all its variants; `make incidents` tells all of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from checkers.verdict import Validity, Verdict
from harness.cli.main import main
from harness.cluster.layout import cluster_layout
from harness.cluster.systems import configured
from harness.environments.machines.system_capabilities import unsupported_anywhere
from harness.incidents import telling
from harness.incidents.expectation import Expectation
from harness.incidents.incident import kafka_library, library, load_incident
from harness.incidents.measurements import Measurement, read_measurements, record_measurements
from harness.incidents.recording import incident_text
from harness.incidents.telling import Telling, TryResult
from harness.incidents.tried import read_outcomes, record_outcomes, rows
from harness.runner.outcome import Outcome
from harness.runner.run import run_in_simulation
from harness.shrinking.session import NotShrinkable, failing
from harness.shrinking.subjects import ShrinkSubject
from harness.spec import Spec, parse

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
        assert variant.expect.unmet(outcome.verdicts, outcome.signatures, outcome.stories) == (), variant.name


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


@pytest.mark.parametrize("option", ["--record", "--outcomes"])
@pytest.mark.parametrize("text", ['{"two-power-losses"', '{"two-power-losses": {"a": {"b": {"c": 1}}}}', "[1]"])
def test_a_file_that_takes_no_entry_is_told_before_an_incident_is_run(
    option: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries, store = tmp_path / "entries.json", tmp_path / "runs"
    entries.write_text(text)
    assert main(["incident", "run", "two-power-losses", "--store", str(store), option, str(entries)]) == 3
    line = capsys.readouterr().err
    assert line.startswith(f"faultline: {entries}")
    assert line.count("\n") == 1
    assert not store.exists()
    assert entries.read_text() == text


def test_the_tries_of_an_incident_stand_beside_its_seconds(tmp_path: Path) -> None:
    entries = tmp_path / "entries.json"

    def told(environment: str, *tries: int, unmet: tuple[str, ...] = ()) -> list[Telling]:
        incident = load_incident("isr-of-one", {"environment": environment})
        return [
            Telling(incident, each, Outcome(each.spec), unmet, (TryResult("valid", 0, not unmet),) * count, 60.0, 1.2)
            for each, count in zip(incident.variants, tries, strict=True)
        ]

    record_measurements(entries, told("sim", 1, 1))
    record_measurements(entries, told("docker", 1, 3))
    expected = {"isr-of-one": Measurement(2.4, {"min.insync.replicas 1": 1, "min.insync.replicas 2": 3})}
    assert read_measurements(entries) == expected
    one_variant_twice = [told("docker", 1, 3)[0]] * 2
    record_measurements(entries, one_variant_twice)
    assert read_measurements(entries) == expected
    record_measurements(entries, told("docker", 2, 5, unmet=("the verdict is unknown, not valid",)))
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
    incident = load_incident("acks-1-behind-an-isolated-leader", {"environment": "docker"})
    variant = replace(incident.variants[1], expect=Expectation(verdict=Validity.VALID))
    telling_result = telling.tell(incident, variant, tmp_path)
    assert (telling_result.tries, telling_result.met) == (tries, validities[tries - 1] == "valid")


ON_KAFKA = {"system": "kafka", "version": "4.1.1", "environment": "docker"}


def test_every_incident_of_kafka_can_be_told_by_machines_with_any_kernel() -> None:
    assert set(kafka_library()).isdisjoint(library())
    for name in kafka_library():
        incident = load_incident(name)
        assert incident.docker_tries
        for variant in incident.variants:
            spec = variant.spec
            assert (spec.system, spec.environment) == ("kafka", "docker")
            layout = configured(spec.deployed_system, cluster_layout(spec.brokers, spec.controllers), spec.settings, ())
            assert spec.script.unmet(dict.fromkeys(unsupported_anywhere(layout), "lacking")) == "", name


def test_variants_that_another_system_cannot_be_are_left_out_with_the_reason() -> None:
    incident = load_incident("acks-1-behind-an-isolated-leader", ON_KAFKA)
    assert [(each.name, each.spec.system, each.spec.acks) for each in incident.variants] == [
        ("acks=1", "kafka", "1"),
        ("acks=all", "kafka", "all"),
    ]
    incident = load_incident("kip-903-stale-broker-epoch", ON_KAFKA)
    assert [variant.name for variant in incident.variants] == ["broker epoch compared"]
    assert incident.left_out == {"broker epoch not compared": "without: system kafka has no rule switches"}


def test_an_incident_that_the_system_cannot_be_in_any_variant_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--system", "kafka", "--environment", "docker"]
    assert main(["incident", "run", "isr-of-one", *asked]) == 64
    output = capsys.readouterr()
    assert "isr-of-one, min.insync.replicas 1: left out: settings: Kafka has no setting" in output.out
    assert "no variant is possible there" in output.err
    assert main(["incident", "run", "isr-of-one", *asked, "--record", "measured.json"]) == 64
    assert "with --system take --outcomes" in capsys.readouterr().err
    assert main(["incident", "run", "isr-of-one", "--record", "measured.json", "--tries", "3"]) == 64
    assert "with --tries take --outcomes" in capsys.readouterr().err, "the seconds of three runs are not those of one"
    assert main(["incident", "run", "isr-of-one", "--tries", "0"]) == 64
    capsys.readouterr()
    assert main(["incident", "run", "isr-of-one", "--system", "foo"]) == 64
    output = capsys.readouterr()
    assert (output.out, output.err) == ("", "faultline incident run: --system: 'foo' is not one of broker, kafka\n")


def test_every_try_that_is_asked_for_is_made_and_its_outcome_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = iter([("valid", 0.0), ("invalid", 3.0), ("valid", 0.0), ("unknown", 1.0)])
    seeds = []

    def run(spec: Spec, *rest: object, **options: object) -> Outcome:
        seeds.append(spec.seed)
        validity, lost = next(outcomes)
        return Outcome(spec, (Verdict("loss", Validity(validity), (), {"lost": lost}),))

    monkeypatch.setattr(telling, "run", run)
    incident = load_incident("acks-1-behind-an-isolated-leader", ON_KAFKA)
    variant = replace(incident.variants[0], expect=Expectation(verdict=Validity.VALID))
    first = telling.tell(incident, variant, tmp_path, tries=3)
    second = telling.tell(incident, variant, tmp_path, tries=1)
    assert seeds == [1, 2, 3, 1]
    assert first.unmet == ("the verdict is invalid, not valid",), "the last run is valid, and takes nothing back"
    record_outcomes(tmp_path / "outcomes.json", [first])
    record_outcomes(tmp_path / "outcomes.json", [second])
    assert list(rows(read_outcomes(tmp_path / "outcomes.json"))) == [
        (incident.name, "acks=1", "kafka 4.1.1", "2 valid, 1 invalid, 1 unknown", "2 of 4", "0, 3, 0, 1")
    ]


@pytest.mark.parametrize(("validities", "decides"), [(["unknown", "valid", "unknown"], 1), (["unknown", "unknown"], 1)])
def test_of_several_tries_one_as_expected_decides_else_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, validities: list[str], decides: int
) -> None:
    made = [
        Outcome(Spec(), (Verdict("loss", Validity(each), (), {"lost": number}),))
        for number, each in enumerate(validities)
    ]
    monkeypatch.setattr(telling, "run", lambda *rest, **options: runs.pop(0))
    runs = list(made)
    incident = load_incident("acks-1-behind-an-isolated-leader", ON_KAFKA)
    variant = replace(incident.variants[0], expect=Expectation(verdict=Validity.VALID))
    made_telling = telling.tell(incident, variant, tmp_path, tries=len(made))
    assert made_telling.outcome is made[decides]
    assert (made_telling.met, made_telling.tries) == ("valid" in validities, len(made))


def test_what_an_interrupt_follows_is_among_the_outcomes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(spec: Spec, *rest: object, **options: object) -> Outcome:
        if spec.acks == "all":
            raise KeyboardInterrupt
        return Outcome(spec, (Verdict("loss", Validity.INVALID, (), {"lost": 3.0}),))

    monkeypatch.setattr(telling, "run", run)
    outcomes = tmp_path / "outcomes.json"
    asked = ["incident", "run", "acks-1-behind-an-isolated-leader", "--store", str(tmp_path / "runs")]
    assert main([*asked, "--outcomes", str(outcomes)]) == 130
    ((_, variant, _, verdicts, met, lost),) = rows(read_outcomes(outcomes))
    assert (variant, verdicts, met, lost) == ("acks=1", "1 invalid", "0 of 1", "3")


def test_an_incident_made_from_a_run_of_kafka_stays_in_its_environment(tmp_path: Path) -> None:
    spec = load_incident("power-loss-of-all").variants[0].spec
    path = tmp_path / "made.yaml"
    path.write_text(incident_text(spec, Expectation(verdict=Validity.VALID), title="made"))
    (variant,) = load_incident(str(path)).variants
    assert (variant.spec.system, variant.spec.environment) == ("kafka", "docker")
    with pytest.raises(NotShrinkable, match="cannot be run in simulation: environment: system kafka does not run"):
        failing(ShrinkSubject("made", "the run of Kafka", spec))


def test_an_incident_made_from_a_run_of_another_client_library_stays_in_its_environment(tmp_path: Path) -> None:
    spec = parse({"environment": "docker", "clients": {"library": "librdkafka"}, "faults": "none"})
    path = tmp_path / "made.yaml"
    path.write_text(incident_text(spec, Expectation(verdict=Validity.VALID), title="made"))
    (variant,) = load_incident(str(path)).variants
    assert (variant.spec.clients.library, variant.spec.environment) == ("librdkafka", "docker")
    with pytest.raises(NotShrinkable, match=r"cannot be run in simulation: clients\.library: librdkafka needs real"):
        failing(ShrinkSubject("made", "the run of librdkafka", spec))
