"""`faultline shrink` and `faultline run SUITE/RUN`, with runs of the simulation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from checkers.verdict import Validity
from harness.cli.main import main
from harness.exit_codes import BAD_USAGE, INTERRUPTED, INVALID, NOT_CARRIED_OUT
from harness.incidents.expectation import Expectation
from harness.incidents.incident import load_incident, read_incident
from harness.runner.run import run_in_simulation
from harness.shrinking.incident_file import fields_off_default, shrunk_incident
from harness.shrinking.journal import TRIALS, CannotResumeShrinking
from harness.shrinking.reproduction import Reproduction, without_flaw
from harness.shrinking.session import NotShrinkable, ShrinkBudget, ShrinkResult, failing, shrink
from harness.shrinking.shrinker import ShrinkProgress
from harness.shrinking.subjects import ShrinkSubject, subject_of
from harness.shrinking.suite_failures import first_failures
from harness.spec import Spec, parse
from harness.suites.job import RunResult
from harness.suites.plan import Suite
from harness.suites.record import begin
from harness.suites.stored_spec import stored_spec
from harness.yaml_document import SpecError, parse_document
from results.errors import StoreError
from results.run.directory import RunDirectory
from results.store import tables

EARLY_FIELDS = {
    "time_limit": "6s",
    "partitions": 1,
    "faults": [
        {"at": 1.1, "for": 1.5, "fault": "pause", "nodes": ["follower/0"]},
        {"at": 2.2, "for": 1.5, "fault": "partition", "nodes": ["leader/0"]},
    ],
}
EARLY = parse({"name": "early", "seed": 3, **EARLY_FIELDS})
"""A leader without `ack_after_high_watermark` acknowledges records that it loses, or serves too soon."""
EXPECT = Expectation(verdict=Validity.INVALID, check="loss", finding="lost-append", cause="log-came-back-shorter")


def _incident_of(text: str) -> dict[str, object]:
    values = yaml.safe_load(text)
    assert isinstance(values, dict)
    return values


# ---- the incident file -----------------------------------------------------------------------------------------------

FLAWS: list[dict[str, object]] = [
    {"without": ["maximal_isr"]},
    {"settings": {"faultline.protocol": "kip101", "min.insync.replicas": 1}},
    {"node_settings": {"b1": {"faultline.protocol": "kip279", "replica.lag.time.max.ms": 900}}},
    {"clients": {"validate_positions": False, "batch": 3, "operations": ["produce 2 to 0"]}, "acks": 1},
]


@pytest.mark.parametrize("flaw", FLAWS, ids=lambda flaw: next(iter(flaw)))
def test_an_incident_file_reads_back_as_the_spec_and_as_the_spec_without_its_flaw(flaw: dict[str, object]) -> None:
    spec = replace(parse({"brokers": 4, **flaw}), seed=EARLY.seed, families=(), script=EARLY.script)
    text = shrunk_incident(spec, EXPECT, title="t", story="two\n  lines\n", repaired_holds=True)
    flawed, repaired = read_incident(parse_document(text), "shrunk").variants
    assert replace(flawed.spec, name=spec.name) == spec
    assert replace(repaired.spec, name=spec.name) == without_flaw(spec) != spec
    assert flawed.expect == EXPECT
    assert repaired.expect.verdict is Validity.VALID
    assert "story: |\n  two\n    lines\n" in text, "a text of several lines stands as it is read"
    fields = _incident_of(text)
    assert not {"producers", "ready_limit", "workload", "name", "environment"} & fields.keys(), "defaults are left out"


def test_an_incident_without_a_flaw_to_take_away_has_one_variant() -> None:
    text = shrunk_incident(EARLY, EXPECT, title="t", story="s", repaired_holds=False)
    (variant,) = read_incident(parse_document(text), "shrunk").variants
    assert replace(variant.spec, name=EARLY.name) == EARLY
    assert without_flaw(EARLY) is None
    assert set(fields_off_default(parse({"faults": "none"}))) == {"seed", "time_limit", "faults"}


# ---- a session -------------------------------------------------------------------------------------------------------


def test_a_mutant_is_shrunk_to_an_incident_that_fails_with_the_flaw_and_holds_without(tmp_path: Path) -> None:
    mutant = replace(EARLY, without=("ack_after_high_watermark",), drawn={"partitions": "1"})
    subject = ShrinkSubject("early", "the run early", mutant)
    results: list[ShrinkResult] = []
    for budget, resume in ((ShrinkBudget(runs=3), False), (ShrinkBudget(runs=2), True)):
        results.append(shrink(subject, tmp_path, sources="1", resume=resume, budget=budget))
    for result in results:
        assert result.unmet == ()
        assert result.failing.repaired_holds
        assert not result.shrunk.complete
    assert [result.runs for result in results] == [3, 2]
    assert results[1].shrunk.runs == 5, "the runs in the journal count as candidates, and are not made again"
    with pytest.raises(CannotResumeShrinking, match="has an earlier result"):
        shrink(subject, tmp_path, sources="1")
    text = results[1].path.read_text(encoding="utf-8")
    assert "drawn" not in _incident_of(text), "the world of a smaller run is not one that was drawn"
    flawed, repaired = read_incident(parse_document(text), "i").variants
    assert flawed.spec.without == mutant.without
    assert repaired.spec.without == ()


def test_a_resumed_session_does_not_put_a_larger_incident_in_the_place_of_the_smallest(tmp_path: Path) -> None:
    subject = ShrinkSubject("early", "the run early", replace(EARLY, without=("ack_after_high_watermark",)))
    result = shrink(subject, tmp_path, sources="1", budget=ShrinkBudget(runs=3))
    assert result.shrunk.smallest.spec != result.failing.start.spec
    smallest, seen = result.path.read_text(encoding="utf-8"), set[str]()

    def look(progress: ShrinkProgress) -> None:
        seen.add(result.path.read_text(encoding="utf-8"))
        if progress.runs == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shrink(subject, tmp_path, sources="1", resume=True, budget=ShrinkBudget(seconds=0.0), on_progress=look)
    assert seen == {smallest}


def test_a_run_of_the_same_cause_with_another_finding_is_told_from_one_that_fails_the_same_way() -> None:
    mutant = replace(EARLY, without=("ack_after_high_watermark",))
    same = Expectation(check="protocol", finding="acknowledged-uncommitted", cause="acknowledged-above-high-watermark")
    other = replace(same, finding="quorum-too-small")
    seen = [Reproduction(expect, repaired_holds=False)(mutant) for expect in (same, other, EXPECT)]
    assert [sighting and sighting.same_finding for sighting in seen] == [True, False, None]


def test_a_valid_run_cannot_be_shrunk() -> None:
    quiet = parse({"time_limit": "1s", "faults": "none", "producers": 1, "rate": 2, "recency": "default"})
    with pytest.raises(NotShrinkable, match=r"the run quiet, run again in simulation, is (valid|unknown)"):
        failing(ShrinkSubject("quiet", "the run quiet", quiet, EXPECT))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "nothing: is no run directory, no SUITE/RUN, no file, and no shipped incident"),
        (["none/such"], "'none/such': there is no such run in"),
        (["../nowhere/at-all"], "must consist of letters"),
        (["acks-1-behind-an-isolated-leader", "--variant", "x"], "isolated-leader: no variant expects the ver"),
        (["nothing", "--budget", "soon"], "--budget: 'soon' is not a duration"),
        (["nothing", "--runs", "0"], "--runs: 0 is less than 1"),
    ],
)
def test_a_subject_that_is_none_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["shrink", *arguments, "--store", str(tmp_path)]) == BAD_USAGE
    line = capsys.readouterr().err
    assert message in line
    assert line.count("\n") == 1


def test_an_incident_is_shrunk_in_its_first_variant_that_fails(tmp_path: Path) -> None:
    path = tmp_path / "told.yaml"
    path.write_text(
        """
faults: [{at: 1s, for: 1s, fault: kill, nodes: [b1]}]
variants:
  repaired: {expect: {verdict: valid}}
  as it was: {without: [maximal_isr], expect: {verdict: invalid, check: loss}}
  older: {settings: {faultline.protocol: kip101}, expect: {verdict: unknown}}
""",
        encoding="utf-8",
    )
    subject = subject_of(str(path), tmp_path)
    assert (subject.name, subject.spec.without) == ("told-as-it-was", ("maximal_isr",))
    assert subject.expect == Expectation(verdict=Validity.INVALID, check="loss")
    assert subject_of(str(path), tmp_path, "older").expect == Expectation(verdict=Validity.UNKNOWN)
    with pytest.raises(
        SpecError, match="told, repaired: is none of the variants that are expected to fail: as it was, older"
    ):
        subject_of(str(path), tmp_path, "repaired")


def test_a_suite_has_the_first_run_of_every_signature_shrunk(tmp_path: Path) -> None:
    plan = Suite(
        "night",
        seeds=3,
        first_seed=1,
        cells={"plain": Spec(), "older": parse({"settings": {"faultline.protocol": "kip101"}})},
        mutants={"mutant": Spec(without=("maximal_isr",))},
        mutant_seeds=1,
        repeats=1,
    )
    record = begin(tmp_path, plan)
    lost, skipped = ("loss/lost-append/unclean-election", "reads/skipped/skipped")
    beyond = "loss/fault-model-exceeded/log-came-back-shorter"
    signatures = {
        "plain-seed1": (lost, beyond),
        "plain-seed2": (skipped, lost),
        "plain-seed3": ("loss/lost-append/elected-outside-isr", skipped),
        "older-seed2": (lost, "reads/lost-append/unclean-election"),
        "mutant-seed1": (lost,),
        "plain-seed1-repeated": ("loss/lost-append/log-came-back-shorter",),
    }
    runs = [
        RunResult(
            run.run,
            run.cell,
            run.seed,
            "invalid" if run.run in signatures else "unknown",
            (),
            signatures.get(run.run, ()),
        )
        for run in plan.every_run()
    ]
    subjects = list(first_failures(record, runs))
    assert [subject.name for subject in subjects] == [
        "plain-seed1-unclean-election",
        "plain-seed2-skipped",
        "older-seed2-unclean-election",
        "older-seed2-reads-lost-append-unclean-election",
        "plain-seed3-elected-outside-isr",
        "mutant-seed1-unclean-election",
    ]
    assert subjects[5].spec.without == ("maximal_isr",)
    assert subjects[1].spec.seed == 2
    assert subjects[1].expect == Expectation(
        verdict=Validity.INVALID, check="reads", finding="skipped", cause="skipped"
    )


@pytest.mark.spark
def test_the_failures_of_a_suite_are_shrunk_once_it_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.shrinking.suite_failures.BUDGET", ShrinkBudget(runs=2))
    mutant = {**EARLY_FIELDS, "without": ["ack_after_high_watermark"]}
    plan, results = tmp_path / "early.yaml", tmp_path / "results.json"
    plan.write_text(yaml.safe_dump({"first_seed": 3, "specs": {"sound": EARLY_FIELDS, "mutant": mutant}}))
    at = ["--seeds", "1", "--master", "local[1]", "--json", str(results), "--store", str(tmp_path / "store")]
    assert main(["suite", str(plan), "--shrink", *at]) == INVALID
    shrunk = list((tmp_path / "store").glob("suites/*/shrunk/*/*.yaml"))
    assert shrunk
    for path in shrunk:
        assert path.parent.name.startswith("mutant-seed3-")
        flawed, _ = load_incident(str(path)).variants
        assert flawed.expect.verdict is Validity.INVALID
        assert flawed.spec.without == ("ack_after_high_watermark",)


# ---- any run of a suite comes back -----------------------------------------------------------------------------------


def test_a_stored_run_is_run_again_by_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run_in_simulation(parse({"name": "short", "time_limit": "1s", "faults": "none", "seed": 5}), tmp_path)
    assert outcome.directory is not None
    tables.add_run(tmp_path, "kept", RunDirectory.open(outcome.directory))
    name = f"kept/{outcome.directory.name}"
    assert stored_spec(tmp_path, name).spec == outcome.spec
    assert main(["run", name, "--store", str(tmp_path)]) == outcome.exit_code
    assert f"this run is the same, byte for byte, as {name}" in capsys.readouterr().out
    assert main(["run", "kept/other", "--store", str(tmp_path)]) == BAD_USAGE
    assert "there is no such run" in capsys.readouterr().err


def test_a_run_that_a_suite_has_not_made_yet_has_its_spec_in_the_plan(tmp_path: Path) -> None:
    plan = Suite("night", seeds=3, first_seed=10, cells={"plain": Spec(), "strict": Spec(recency="strict")})
    record = begin(tmp_path, plan)
    planned = list(plan.every_run())
    for run in planned:
        assert stored_spec(tmp_path, f"{record.name}/{run.run}").spec == plan.spec(run)
    assert stored_spec(tmp_path, f"{record.name}/{planned[0].run}", rate=3.0).spec.rate == 3.0
    with pytest.raises(StoreError, match="there is no such run"):
        stored_spec(tmp_path, f"{record.name}/other")
    with pytest.raises(SpecError, match="rate"):
        stored_spec(tmp_path, f"{record.name}/{planned[0].run}", rate=-1.0)


def test_a_run_that_does_not_fail_again_is_not_carried_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = Suite("night", 1, 1, {"quiet": parse({"time_limit": "1s", "faults": "none"})})
    record = begin(tmp_path, plan)
    assert main(["shrink", f"{record.name}/quiet-seed1", "--store", str(tmp_path)]) == NOT_CARRIED_OUT
    assert "run again in simulation, is" in capsys.readouterr().err


def test_an_interruption_names_a_command_that_goes_on_also_before_there_is_anything_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("harness.cli.shrinking._shrink_on", interrupt)
    out = str(tmp_path / "small.yaml")
    given = ["--budget", "120s", "--runs", "50", "--out", out]
    command = ["shrink", "isr-of-one", *given, "--store", str(tmp_path)]
    assert main(command) == INTERRUPTED
    line = f"interrupted; go on with: faultline shrink isr-of-one {' '.join(given)}{{}} --store {tmp_path}\n"
    assert capsys.readouterr().err == line.format("")
    directory = tmp_path / "shrinking" / subject_of("isr-of-one", tmp_path).name
    directory.mkdir(parents=True)
    (directory / TRIALS).write_text("{}\n")
    assert main(command) == INTERRUPTED
    assert capsys.readouterr().err == line.format(" --resume")
