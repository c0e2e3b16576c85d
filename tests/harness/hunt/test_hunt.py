"""A hunt: the same corpus in one night and in two, in whatever order its runs end; its findings come back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.exit_codes import BAD_USAGE, INVALID
from harness.search.hunt.folder import CorpusFolder
from harness.search.hunt.hunt import Hunt, HuntSession, begin
from harness.spec import parse
from harness.suites.record import CannotResume, resume
from harness.suites.record import begin as begin_suite
from harness.suites.spark_task import make
from harness.suites.stored_spec import stored_spec
from results.store import finished_runs
from results.suites import read_suite

SMALL = {"brokers": 3, "controllers": 1, "partitions": 1, "rate": 5, "time_limit": 4}
BASE = parse({**SMALL, "faults": ["pause", "kill"], "vary": ["replica.lag.time.max.ms", "triggers"]})


def night(folder: CorpusFolder, store: Path, runs: int, *, backwards: bool = False) -> str:
    """One night in this process; its runs end in the order of the plan, or in the reverse. The name of its suite."""
    with folder.locked():
        plan, corpus = begin(folder, BASE, 1, 0, 2)
        session = HuntSession(plan, corpus, folder, store, runs, lambda: True)
        record = begin_suite(store, Hunt.night("hunt-small", session))
        session.suite = record.name
        validities: dict[str, str] = {}
        while planned := record.plan.next_runs(validities):
            for each in reversed(planned) if backwards else planned:
                make(record.path, each, record.plan.spec(each))
            ended = finished_runs.finished_names(record.path / "ended")
            for run in ended:
                (row,) = finished_runs.read_finished(record.path / "ended", run)["runs"].to_pylist()
                validities[run] = row["validity"]
            finished_runs.move_to_tables(store, record.name, ended)
    return record.name


@pytest.fixture(scope="module")
def in_one_night(tmp_path_factory: pytest.TempPathFactory) -> tuple[CorpusFolder, Path, str]:
    directory = tmp_path_factory.mktemp("hunt")
    folder = CorpusFolder(directory / "corpus")
    return folder, directory, night(folder, directory, 4)


def contents(folder: CorpusFolder) -> dict[str, str]:
    return {str(path.relative_to(folder.path)): path.read_text() for path in sorted(folder.path.rglob("*.json"))}


def test_two_nights_whose_runs_end_in_another_order_leave_the_corpus_of_one(
    in_one_night: tuple[CorpusFolder, Path, str], tmp_path: Path
) -> None:
    folder = CorpusFolder(tmp_path / "corpus")
    names = [night(folder, tmp_path, 2, backwards=True) for _ in range(2)]
    assert len({*names}) == 2
    assert contents(folder) == contents(in_one_night[0])
    state = json.loads((folder.path / "hunt.json").read_text())
    assert (state["runs"], state["rounds"]) == (4, 2)
    assert len(state["situations"]) > 5
    assert state["yields"]["fresh"]["runs"] < 3.5, "the second round has children"


def test_a_night_is_a_suite_whose_runs_come_back(in_one_night: tuple[CorpusFolder, Path, str]) -> None:
    folder, store, name = in_one_night
    suite = read_suite(store, name)
    assert suite is not None
    assert suite.planned == len(suite.runs) == 4
    assert suite.thoroughness is not None
    assert suite.thoroughness.seen == len(json.loads((folder.path / "hunt.json").read_text())["situations"])
    run = next(each for each in suite.runs if each.cell != "fresh")
    entry = json.loads((folder.path / "entries" / f"{run.run}.json").read_text())
    assert stored_spec(store, f"{name}/{run.run}").spec.to_yaml() == entry["spec"]
    with pytest.raises(CannotResume, match="is one night of a search; go on with: faultline hunt"):
        resume(store, name)


@pytest.mark.spark
def test_the_command_keeps_what_it_finds_and_ends_with_its_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mutant.yaml").write_text(
        """
partitions: 1
time_limit: 14s
without: [ack_after_high_watermark]
vary: [clients.in_flight]
faults:
  - {at: 4, for: 6, fault: partition, shape: leader-only, nodes: [leader/0]}
  - {at: 5.5, for: 5, fault: power-loss, nodes: [leader/0], keep: nothing}
"""
    )
    arguments = ["hunt", "mutant.yaml", "--runs", "2", "--seed", "1", "--store", "store", "--master", "local[2]"]
    assert main(arguments) == INVALID
    printed = capsys.readouterr().out
    assert "hunt: " in printed
    assert "situations in 2 runs of 1 round," in printed
    kept = sorted((tmp_path / "store" / "suites").glob("hunt-mutant-*/runs/*"))
    assert kept
    assert (tmp_path / "results" / "corpora" / "mutant" / "hunt.json").exists()
    assert main(["replay", str(kept[0])]) == 0


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--runs", "0"], "--runs: 0 is not more than 0"),
        (["--hours", "-1"], "--hours: -1 is not more than 0"),
        ([], "one of the arguments --runs --hours is required"),
        (["--runs", "1", "missing.yaml"], "missing.yaml"),
    ],
)
def test_bad_usage_is_one_line(arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hunt", *arguments]) == BAD_USAGE
    error = capsys.readouterr().err
    assert line in error
    assert len(error.splitlines()) == 1
