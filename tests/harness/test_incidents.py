"""Incidents: their files, what is expected of them, and the command that tells them."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkers.verdict import Finding, Validity, Verdict
from harness.cli.main import main
from harness.incidents.expectation import ACKNOWLEDGED_LOST, Expectation, figure_of, parse_expectation
from harness.incidents.incident import library, load_incident
from harness.spec import load
from harness.yaml_document import SpecError
from nemesis.fields import FieldError
from results.explanation.signature import Signature, shown_signatures
from results.explanation.story import Consequence, Step, StepKind, Story
from results.run.directory import RunDirectory

LOST = Verdict(
    "loss", Validity.INVALID, (Finding("lost-append", ("",), "t", 0, offsets=(7,)),), {"lost": 2.0, "promised": 9.0}
)
SOUND = Verdict("logs", Validity.VALID)
LATE = Verdict("protocol", Validity.INVALID, (Finding("quorum-too-small", ("",), "t", 1),))
CAUSE = "elected-outside-isr"
SHOWN = shown_signatures([LOST, SOUND, LATE], [Signature("loss", "lost-append", CAUSE)])


@pytest.mark.parametrize(
    ("expect", "unmet"),
    [
        ({"verdict": "invalid"}, 0),
        ({"verdict": "valid"}, 1),
        ({"check": "loss", "finding": "lost-append", "about": {"partition": 0, "offset": 7}}, 0),
        ({"check": "logs", "finding": "lost-append"}, 1),
        ({"finding": "lost-append", "about": {"offset": 8}}, 1),
        ({"check": "loss", "finding": "lost-append", "cause": CAUSE, "about": {"offset": 7}}, 0),
        ({"cause": CAUSE}, 0),
        ({"cause": "unclean-election"}, 1),
        ({"finding": "lost-append", "cause": "lost-append"}, 1),
        ({"finding": "quorum-too-small", "cause": "quorum-too-small"}, 0),
        ({"cause": CAUSE, "about": {"partition": 1}}, 1),
        ({"figures": {"loss.lost": ">= 2", "loss.promised": "< 10", "acknowledged_lost": "== 2"}}, 0),
        ({"figures": {"loss.lost": "< 2"}}, 1),
        ({"figures": {"loss.lost": "> 2", "loss.found": ">= 0"}}, 2),
    ],
)
def test_an_expectation_is_met_by_all_its_parts(expect: object, unmet: int) -> None:
    expectation = parse_expectation(expect, "expect")
    assert len(expectation.unmet([LOST, SOUND, LATE], SHOWN, ())) == unmet
    assert parse_expectation(expectation.to_mapping(), "expect") == expectation


def told(verdict: Verdict, finding: Finding, cause: StepKind) -> Story:
    """A story of one finding."""
    return Story(
        signature=Signature(verdict.checker, finding.kind, cause),
        topic=finding.topic,
        partition=finding.partition,
        offsets=finding.offsets,
        step=Step(cause, 0, "b1", ""),
        first=Consequence(verdict.checker, finding.kind, -1, ""),
        consequences=(Consequence(verdict.checker, finding.kind, -1, ""),),
        findings=((verdict.checker, finding),),
        faults=(),
        requests=(),
        lacking=(),
    )


def test_the_cause_of_one_record_is_not_taken_for_that_of_another() -> None:
    here, there = (Finding("lost-append", ("",), "t", number, offsets=(7,)) for number in (0, 1))
    lost = Verdict("loss", Validity.INVALID, (here, there))
    stories = [told(lost, here, StepKind.ELECTED_OUTSIDE_ISR), told(lost, there, StepKind.UNCLEAN_ELECTION)]
    shown = shown_signatures([lost], [each for story in stories for each in story.signatures])
    causes = [(0, "elected-outside-isr"), (1, "unclean-election"), (0, "unclean-election"), (1, "elected-outside-isr")]
    unmet = [
        parse_expectation(
            {"check": "loss", "finding": "lost-append", "cause": cause, "about": {"partition": partition}}, "expect"
        ).unmet([lost], shown, stories)
        for partition, cause in causes
    ]
    assert unmet[:2] == [(), ()]
    assert [len(lines) for lines in unmet[2:]] == [1, 1]


def test_an_unmet_cause_is_told_with_the_causes_that_there_are() -> None:
    expectation = parse_expectation({"check": "loss", "cause": "unclean-election"}, "expect")
    assert expectation.unmet([LOST, SOUND, LATE], SHOWN, ()) == (
        f"no finding of loss caused by unclean-election; there are: lost-append of loss, caused by {CAUSE}",
    )


def test_a_figure_that_is_not_there_is_told_with_those_that_are() -> None:
    expectation = parse_expectation({"figures": {"loss.found": ">= 0", "reads.claims": "== 1"}}, "expect")
    assert expectation.unmet([LOST, SOUND], (), ()) == (
        "loss.found is not there: loss has lost, promised",
        "reads.claims is not there: reads did not check this run",
    )


def test_what_was_lost_is_no_figure_of_a_run_whose_losses_were_not_checked() -> None:
    wanted = parse_expectation({"figures": {"acknowledged_lost": "< 5"}}, "expect")
    there_is_none = "acknowledged_lost is not there: loss did not check this run"
    assert wanted.unmet([Verdict("reads", Validity.VALID)], (), ()) == (there_is_none,)


def test_an_expectation_is_narrowed_to_the_first_signature_that_the_verdict_rests_on() -> None:
    undecided = Verdict("liveness", Validity.UNKNOWN, (Finding("no-progress", ("",)),))
    shown = shown_signatures([undecided, LOST, LATE], [Signature("loss", "lost-append", CAUSE)])
    lost = Expectation(verdict=Validity.INVALID, check="loss", finding="lost-append", cause=CAUSE)
    assert Expectation().narrowed([undecided, LOST, LATE], shown) == lost
    late = Expectation(check="protocol").narrowed([undecided, LOST, LATE], shown)
    assert late == Expectation.of(Validity.INVALID, Signature("protocol", "quorum-too-small", "quorum-too-small"))
    assert Expectation().narrowed([undecided, SOUND], shown[-1:]).verdict is Validity.UNKNOWN
    assert Expectation().narrowed([SOUND], ()) == Expectation(verdict=Validity.VALID)
    figures = {"loss.lost": ">= 1"}
    wanted = parse_expectation({"check": "loss", "about": {"offset": 7}, "figures": figures}, "expect")
    assert wanted.narrowed([LOST], shown).to_mapping() == {**lost.to_mapping(), "figures": figures}


@pytest.mark.parametrize(
    ("expect", "message"),
    [
        ({"verdict": "fine"}, "expect.verdict: 'fine' is not one of"),
        ({"check": "luck"}, "expect: check: 'luck' is not one of"),
        ({"cause": "luck"}, "expect: cause: 'luck' is neither the finding nor one of high-watermark-without-proposed"),
        ({"finding": "lost-append", "cause": "skipped"}, "expect: cause: 'skipped' is neither the finding nor one of"),
        ({"figures": {"loss.lost": "some"}}, "figures.loss.lost: 'some' is not a comparison"),
        ({"figures": {"lost": ">= 1"}}, "figures.lost: is neither"),
        ({"figures": {"gravity.lost": ">= 1"}}, "figures.gravity.lost: is neither"),
        ({"about": {"place": 1}}, "expect.about.place: unknown field"),
        ("valid", "expect: 'valid' is not a mapping"),
        ({}, "expect: {} asks for nothing"),
        ({"verdict": None, "about": {}, "figures": {}}, "asks for nothing, which every run shows"),
    ],
)
def test_an_expectation_that_makes_no_sense_is_refused(expect: object, message: str) -> None:
    with pytest.raises(FieldError, match=message):
        parse_expectation(expect, "expect")


STORY = """title: Nothing happens
time_limit: 4s
seed: 1
faults: none
clients: {rate: 5}
variants:
  calm: {expect: {verdict: valid}}
  wrongly expected:
    clients: {batch: 2}
    expect: {verdict: invalid, check: loss}
"""


@pytest.fixture
def story(tmp_path: Path) -> Path:
    path = tmp_path / "story.yaml"
    path.write_text(STORY)
    return path


def test_variants_stand_on_the_shared_fields(story: Path) -> None:
    calm, other = load_incident(str(story)).variants
    assert (calm.spec.time_limit_s, calm.spec.rate, calm.spec.clients.batch) == (4.0, 5.0, 1)
    assert (other.spec.rate, other.spec.clients.batch) == (5.0, 2)


def test_a_variant_adds_to_the_settings_of_a_node(story: Path) -> None:
    shared = "node_settings: {b1: {flush.messages: 1, segment.bytes: 4096}, b2: {flush.messages: 1}}\nvariants:"
    own = "node_settings: {b1: {segment.bytes: 1024}}, expect: {verdict: valid}"
    story.write_text(STORY.replace("variants:", shared).replace("expect: {verdict: valid}", own))
    calm, other = load_incident(str(story)).variants
    b1, b2 = {"flush.messages": "1", "segment.bytes": "1024"}, {"flush.messages": "1"}
    assert calm.spec.node_settings == {"b1": b1, "b2": b2}
    assert other.spec.node_settings == {"b1": {**b1, "segment.bytes": "4096"}, "b2": b2}


@pytest.mark.parametrize("field", ["variants: {calm: {}}", "expect: {verdict: valid}", "docker: {tries: 5}"])
def test_an_incident_is_no_spec_and_is_refused_as_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], field: str
) -> None:
    path = tmp_path / "story.yaml"
    path.write_text(f"title: a line for readers\ntime_limit: 1s\n{field}\n")
    assert main(["run", str(path), "--store", str(tmp_path / "runs")]) == 64
    name = field.partition(":")[0]
    message = f"story.yaml:3: {name}: makes this an incident; run it with: faultline incident run"
    assert message in capsys.readouterr().err
    path.write_text("title: a line for readers\nsource: nowhere\nstory: none\ntime_limit: 1s\n")
    assert load(path).time_limit_s == 1.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("calm: {expect", "calm: {brokers: many, expect"), "story.yaml:7: variants.calm.brokers: 'many'"),
        (("batch: 2", "batch: none"), "story.yaml:9: variants.wrongly expected.clients.batch"),
        (("check: loss", "check: luck"), "story.yaml:10: variants.wrongly expected.expect: check"),
        (("faults: none", "faults: some"), "story.yaml:4: faults: 'some'"),
        (("{expect: {verdict: valid}}", "{}"), "variants.calm.expect: missing"),
        (("title: Nothing happens", "title: [7]"), "story.yaml:1: title: "),
    ],
)
def test_an_error_names_the_file_the_line_and_the_variant(story: Path, change: tuple[str, str], message: str) -> None:
    story.write_text(STORY.replace(*change))
    with pytest.raises(SpecError, match=message):
        load_incident(str(story))


def test_an_incident_that_expects_nothing_is_a_spec_for_faultline_run(tmp_path: Path) -> None:
    path = tmp_path / "plain.yaml"
    path.write_text("brokers: 3\n")
    with pytest.raises(SpecError, match=r"plain\.yaml:1: expect: missing.*faultline run"):
        load_incident(str(path))


def test_running_ends_with_0_exactly_when_every_variant_is_as_expected(
    story: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ["--store", str(tmp_path / "runs")]
    assert main(["incident", "run", str(story), "--variant", "calm", *store]) == 0
    assert main(["incident", "run", str(story), *store]) == 1
    output = capsys.readouterr().out
    assert "1 of 2 variants are as expected" in output
    assert "✗ story, wrongly expected: expected invalid, a finding of loss (" in output
    assert "the verdict is valid, not invalid" in output
    assert main(["incident", "run", "no-such-story", *store]) == 64
    assert "faultline incident list has all" in capsys.readouterr().err
    assert main(["incident", "run", "kip-207", *store]) == 64
    assert "did you mean kip-207-latest-offset-goes-back?" in capsys.readouterr().err
    assert main(["incident", "run", str(story), "--variant", "wild", *store]) == 64
    assert "no variant is called 'wild'; there are: 'calm', 'wrongly expected'" in capsys.readouterr().err


def test_a_variant_as_expected_shows_its_figures_and_the_faults_that_did_not_strike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "missed.yaml"
    path.write_text(
        """title: A fault that never strikes
time_limit: 2s
seed: 1
faults: [{when: {acknowledged: 1000}, for: 1s, fault: kill, nodes: [b1]}]
clients: {rate: 5}
expect: {figures: {acknowledged_lost: "< 5"}}
variants: {calm: {}}
"""
    )
    assert main(["incident", "run", str(path), "--store", str(tmp_path / "runs")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("✓ missed, calm: acknowledged_lost < 5 (")
    assert lines[1] == "    acknowledged_lost 0"
    assert lines[2].startswith(
        "    note: kill b1 was not injected: the condition did not hold within 2 s: acknowledged"
    )


def test_an_incident_made_from_a_run_is_told_as_the_run_ended(story: Path, tmp_path: Path) -> None:
    runs, new = tmp_path / "runs", tmp_path / "new.yaml"
    assert main(["incident", "run", str(story), "--variant", "calm", "--store", str(runs)]) == 0
    assert main(["incident", "new", "--from", str(runs / "latest"), "--out", str(new)]) == 0
    assert main(["incident", "run", str(new), "--store", str(runs)]) == 0


def test_no_incident_is_made_from_a_run_that_was_never_checked(
    story: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    assert main(["incident", "run", str(story), "--variant", "calm", "--store", str(runs)]) == 0
    (runs / "latest" / "verdict.json").unlink()  # as if it had been killed
    capsys.readouterr()
    assert main(["incident", "new", "--from", str(runs / "latest")]) == 64
    output = capsys.readouterr()
    assert output.out == ""
    assert "was never checked; faultline check says what its recorded part shows" in output.err


def test_an_incident_made_from_a_run_that_lost_with_permission_expects_the_loss(tmp_path: Path) -> None:
    runs, new = tmp_path / "runs", tmp_path / "new.yaml"
    lossy = ["incident", "run", "acks-1-behind-an-isolated-leader", "--variant", "acks=1", "--store", str(runs)]
    assert main(lossy) == 0
    assert main(["incident", "new", "--from", str(runs / "latest"), "--out", str(new)]) == 0
    (variant,) = load_incident(str(new)).variants
    assert variant.expect.to_mapping() == {"verdict": "valid", "figures": {"acknowledged_lost": ">= 1"}}
    table = (runs / "latest" / "lost.csv").read_text().splitlines()
    assert len(table) == 1 + figure_of(ACKNOWLEDGED_LOST, RunDirectory.open(runs / "latest").verdicts())


@pytest.mark.parametrize("name", library())
def test_a_shipped_incident_can_be_read_and_has_its_story(name: str) -> None:
    incident = load_incident(name)
    assert incident.title
    assert incident.story
    assert incident.source
