"""The command line: what it prints, what its options reach, and how it ends."""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from checkers.evidence import CheckSettings
from checkers.verdict import Finding, Validity, Verdict
from harness.cli.display import summary
from harness.cli.hunting import CORPORA
from harness.cli.main import main
from harness.cli.usage import terminal
from harness.cluster.systems import SYSTEMS
from harness.shrinking.subjects import ShrinkSubject
from harness.spec import Spec, load
from harness.suites.expectations import Tally, table
from harness.suites.plan import Suite
from harness.suites.progress_bar import ProgressBar
from nemesis.registry import FAIR_FAMILIES, FAMILIES


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["run", "--brokers", "x"], "faultline run: argument --brokers: 'x' is not a whole number"),
        (["run", "--rate", "x"], "faultline run: argument --rate: 'x' is not a number"),
        (["run", "--set", "a"], "faultline run: --set: 'a' is not KEY=VALUE, such as min.insync.replicas=2"),
        (["run", "--set", "a=1"], "faultline run: settings: unknown configuration 'a'"),
        (["run", "--faults", "quake"], "faultline run: faults: 'quake' is not one of partition, kill"),
        (["run", "--without", "gravity"], "faultline run: without: 'gravity' is not a rule"),
        (["run", "--environment", "mars"], "faultline run: environment: 'mars' is not one of sim"),
        (["run", "--time-limit", "soon"], "faultline run: time_limit: 'soon' is not a duration"),
        (["run", "--bogus"], "faultline run: unrecognized arguments: --bogus; see faultline run --help"),
        (["run", "/does/not/exist.yaml"], "faultline run: /does/not/exist.yaml: cannot be read: No such file"),
        (["check", "/does/not/exist"], "faultline: /does/not/exist: there is no such run directory"),
        (["replay", "/does/not/exist"], "faultline: /does/not/exist: there is no such run directory"),
        (["torture", "--mutant", "gravity"], "faultline torture: --mutant: 'gravity' is not a rule"),
        ([], "faultline: the following arguments are required: COMMAND; see faultline --help"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_64(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 64
    output = capsys.readouterr()
    assert output.err.startswith(line)
    assert output.err.count("\n") == 1
    assert output.out == ""


def test_every_rule_is_listed_with_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules"]) == 0
    output = capsys.readouterr().out
    assert all(name in output for name in (rule.name for rule in SYSTEMS["broker"].rules))
    assert "Kafka Replication Correctness §6.5.3" in output


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("faultline ")


def test_a_run_ends_with_verdicts_evidence_report_and_the_way_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["run", "--time-limit", "6", "--seed", "2", "--faults", "pause", "--store", str(tmp_path)])
    output = capsys.readouterr()
    assert code == 0, output
    assert "linearizability" in output.out
    assert "pause" in output.out
    assert "report.html" in output.out
    assert "faultline replay " in output.out
    assert "running" in output.err


def test_json_is_the_only_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["run", "--time-limit", "5", "--seed", "2", "--faults", "none", "--json", "--store", str(tmp_path)])
    output = capsys.readouterr()
    summary = json.loads(output.out)
    assert summary["exit_code"] == code == 0
    assert output.err == ""


def test_a_run_that_did_not_follow_its_script_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        "time_limit: 4s\nseed: 1\npartitions: 1\nclients: {producers: 0, consumers: 0, operations: [poll 0 until 9]}\n"
        "faults:\n"
        "  - {when: {restarted: b1}, timeout: 1s, for: 1s, fault: kill, nodes: [b2]}\n"
        "  - {at: 1s, until: {restarted: b1}, fault: pause, nodes: [b3]}\n"
    )
    lines = [
        "kill b2 was not injected: the condition did not hold within 1 s: restarted node b1",
        "pause b3 was not ended by its condition: it lasted to the end of the workload, since this did not hold: "
        "restarted node b1",
        "poll 0 until 9 (clients.operations[0]) was not performed: it had not ended when the workload did",
    ]
    assert main(["run", str(spec), "--store", str(tmp_path / "runs")]) == 0
    assert [f"note: {line}" for line in lines] == _notes(capsys.readouterr().out)
    run = tmp_path / "runs" / "latest"
    report = (run / "report.html").read_text(encoding="utf-8")
    assert all(line in report for line in lines)
    assert main(["check", str(run)]) == 0
    assert [f"note: {line}" for line in lines] == _notes(capsys.readouterr().out)


def _notes(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("note: ")]


def test_check_and_replay_follow_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["run", "--time-limit", "5", "--seed", "2", "--json", "--store", str(tmp_path)])
    directory = json.loads(capsys.readouterr().out)["run"]
    assert main(["check", directory]) in (0, 2)
    assert "linearizability" in capsys.readouterr().out
    assert main(["replay", directory]) == 0
    assert capsys.readouterr().out.startswith("identical: digest ")


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_damaged_spec_is_named_by_its_file(
    more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["run", "--time-limit", "1", "--seed", "1", "--json", "--store", str(tmp_path)])
    run = Path(json.loads(capsys.readouterr().out)["run"])
    (run / "spec.yaml").write_text("name: a\nb: [")
    (run / "manifest.json").unlink()
    assert main(["replay", str(run), *more]) == 3
    assert capsys.readouterr().err.startswith(f"faultline: {run / 'spec.yaml'}:2: not YAML")


def test_a_finding_outside_a_story_says_of_which_check_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    verdicts = [Verdict("liveness", Validity.UNKNOWN, (Finding("undecided", ("a line",), "t", 1),))]
    summary(terminal(), verdicts, CheckSettings(), deviations=())
    assert "\n? liveness: undecided t-1\n    a line\n" in capsys.readouterr().out


def test_figures_are_no_powers_of_ten(capsys: pytest.CaptureFixture[str]) -> None:
    figures = {"acks_share": 0.98765, "append_ms_p50": 999.7, "append_ms_p99": 2501.25, "append_ms_max": 12748.37}
    verdict = Verdict("availability", Validity.VALID, figures=figures)
    summary(terminal(), [verdict], CheckSettings(), deviations=())
    words = capsys.readouterr().out.split()
    shown = dict(pairwise(words))
    assert [shown[name] for name in figures] == ["0.988", "1000", "2501", "12748"]


def test_what_all_parts_of_a_run_lack_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["run", "--time-limit", "1", "--seed", "1", "--json", "--store", str(tmp_path)])
    run = Path(json.loads(capsys.readouterr().out)["run"])
    (run / "manifest.json").write_text("[]")
    assert main(["check", str(run)]) == 2
    output = capsys.readouterr().out
    parts = "history, replica logs, trace, fault evidence, recovery, settings"
    assert _notes(output) == [f"note: {parts}: manifest.json does not hold a JSON object"]
    assert "\n? processes: missing-evidence\n    trace, fault evidence, recovery: manifest.json does not" in output


AWKWARD = "[red]min.isr[/x] [low] :bug:"
"""A name in which Rich would see styles, the end of a style that never began, and an emoji."""


def test_names_and_paths_are_printed_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec, store = tmp_path / "spec.yaml", tmp_path / AWKWARD
    spec.write_text(f"name: '{AWKWARD}'\n")
    assert main(["run", str(spec), "--time-limit", "1", "--seed", "1", "--store", str(store)]) == 0
    run = (store / "latest").resolve()
    assert f"report: {run}/report.html\n" in capsys.readouterr().out
    assert main(["check", str(run)]) == 0
    assert f"report: {run}/report.html\n" in capsys.readouterr().out


def test_a_command_that_is_printed_can_be_given_to_a_shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "a b"
    assert main(["run", "--time-limit", "1", "--seed", "1", "--faults", "none", "--store", str(store)]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("again:"))
    command, *arguments = shlex.split(line.removeprefix("again:").partition("   (seed")[0])
    assert (command, main(arguments)) == ("faultline", 0)


@pytest.mark.parametrize(
    ("words", "again"),
    [
        (["shrink", "unclean-election"], ["shrink", "unclean-election"]),
        (["shrink", "unclean-election", "--variant", "a b"], ["shrink", "unclean-election", "--variant", "a b"]),
        (["torture"], ["torture", "--resume"]),
    ],
)
def test_what_was_interrupted_is_resumed_by_the_printed_command(
    words: list[str],
    again: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    subject = ShrinkSubject("a", "the incident a", Spec())
    monkeypatch.setattr("harness.shrinking.subjects.subject_of", lambda *_: subject)
    monkeypatch.setattr("harness.cli.shrinking._shrink_on", interrupted)
    monkeypatch.setattr("results.store.spark.session", interrupted)
    at = ["--store", str(tmp_path / "a b")]
    assert main([*words, *at]) == 130
    assert shlex.split(capsys.readouterr().err.partition(" with: ")[2]) == ["faultline", *again, *at]


def test_names_in_tables_and_progress_bars_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    terminal().print(table([Tally(AWKWARD)]))
    assert AWKWARD in capsys.readouterr().out
    drawn = StringIO()
    with ProgressBar(Console(file=drawn, force_terminal=True, width=200), AWKWARD, 1, f"of {AWKWARD}"):
        pass
    assert drawn.getvalue().count(AWKWARD) >= 2
    assert f"of {AWKWARD}" in drawn.getvalue()


def test_a_mutant_ends_with_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--without", "idempotent_dedupe", "--seed", "0", "--store", str(tmp_path)]
    assert main(["run", *options]) == 1
    output = capsys.readouterr().out
    assert "✗ batch-appended-again" in output
    assert "linearizability: duplicate" in output


def test_the_help_of_a_run_lists_the_families_and_which_of_them_are_not_among_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    text = " ".join(capsys.readouterr().out.split()).replace("- ", "-")
    named = text.partition("separated by commas: ")[2].partition(" (default: all)")[0]
    fair, _, others = named.partition("; not among all: ")
    assert {*fair.split(", ")} == {*FAIR_FAMILIES}
    assert {*others.split(", ")} == {*FAMILIES} - {*FAIR_FAMILIES}


def test_help_does_not_wait_for_the_checkers() -> None:
    code = "import sys; from harness.cli.main import main; main(['rules']); print('pyarrow' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert output.stdout.endswith("False\n")


# ---- options ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Plans of the suites that a command would carry out on Spark."""
    plans: list[Any] = []

    def on_spark(options: argparse.Namespace, command: str, opened: Callable[[Path], Any], *more: Any) -> int:
        plans.append(opened(tmp_path / "store").plan)
        return 0

    for module in ("suites", "hunting"):
        monkeypatch.setattr(f"harness.cli.{module}.on_spark", on_spark)
    return plans


def test_a_hunt_goes_on_in_the_corpus_and_the_rounds_that_it_is_given(
    tmp_path: Path, planned: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    at = ["--corpus", str(tmp_path / "corpus"), "--store", str(tmp_path / "store")]
    assert main(["hunt", "--runs", "9", "--round", "3", "--seed", "1", *at]) == 0
    (night,) = planned
    assert len(night.next_runs({})) == 3
    assert (tmp_path / "corpus").is_dir()
    assert not (tmp_path / CORPORA).exists()


def test_the_full_protocol_of_a_torture_has_the_workload_that_it_is_given(tmp_path: Path, planned: list[Any]) -> None:
    at = ["--store", str(tmp_path / "store")]
    for chosen in (["--workload", "groups"], []):
        assert main(["torture", "--seeds", "1", *chosen, *at]) == 0
    workloads = [{spec.workload for spec in plan.cells.values()} for plan in planned if isinstance(plan, Suite)]
    assert workloads == [{"groups"}, {"append"}]


def test_a_run_has_the_workload_that_it_is_given(tmp_path: Path) -> None:
    at = ["--time-limit", "1", "--seed", "1", "--faults", "none", "--store", str(tmp_path)]
    assert main(["run", "--workload", "groups", *at]) in (0, 2)
    assert load(tmp_path / "latest" / "spec.yaml").workload == "groups"


def test_comparisons_are_served_from_the_directory_that_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[tuple[Path, Path, int]] = []
    monkeypatch.setattr("harness.cli.serve.serve", lambda *places: served.append(places) or 0)
    at = ["--store", str(tmp_path / "store"), "--port", "0"]
    assert main(["serve", "--comparisons", str(tmp_path / "other"), *at]) == 0
    assert served == [(tmp_path / "store", tmp_path / "other", 0)]


def test_a_benchmark_measures_the_parts_and_sizes_that_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured: list[int] = []
    monkeypatch.setattr("harness.bench.checking.measure", lambda sizes: measured.extend(sizes) or [])
    assert main(["bench", "--part", "checking", "--largest", "10000000"]) == 0
    assert measured == [1_000_000, 10_000_000]
    titles = [line for line in capsys.readouterr().out.splitlines() if ": " in line]
    assert [title.partition(":")[0] for title in titles] == ["checking"]
