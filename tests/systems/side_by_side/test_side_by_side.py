"""The specs of both systems are the same, their scripts do what they say, and the table tells what became of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from harness.cluster.systems import SYSTEMS
from harness.runner.run import run
from results import measures
from results.run.directory import RunDirectory
from tests.systems.campaign import FAILED, CarriedOut, crashed
from tests.systems.side_by_side import page, runs
from tests.systems.side_by_side.__main__ import main

PAIRS = runs.load()
OF_THE_SYSTEM = {"name", "system", "version", "settings"}
NAME = "last-in-sync-loses-power"


def in_simulation(name: str, store: Path) -> tuple[dict[str, Any], Any]:
    """The line of the prototype's run of a spec, and its outcome."""
    spec = replace(PAIRS[name].by_system["prototype"], environment="sim")
    directory = RunDirectory.create(store, spec.name, spec.seed)
    outcome = run(spec, directory)
    carried_out = CarriedOut(outcome.to_json(), (), 12.6)
    return runs.row_of(name, "prototype", spec, carried_out, measures.measure(directory.load()), 0.46), outcome


def row(name: str, system: str, verdict: str = "valid", **changed: Any) -> dict[str, Any]:
    """The line of a run that nothing happened in."""
    spec = PAIRS[name].by_system[system]
    summary: dict[str, Any] = {
        "run": f"/store/{spec.name}",
        "failure": None,
        "validity": verdict,
        "checks": [],
        "faults": {},
    }
    figures = {"acknowledged": 60.0, "lost": 3.0, "append_ms_p50": 2.0, "unavailable_longest_s": 3.25, "main_s": 30.0}
    return {**runs.row_of(name, system, spec, CarriedOut(summary, (), 1.0), figures, 0.5), **changed}


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return "".join(f"{' | '.join(line)}\n" for line in (head, *rows))


def part(*rows: Mapping[str, Any], reasons: page.Reasons = MappingProxyType({})) -> str:
    return page.part(PAIRS, {(each["spec"], each["system"]): each for each in rows}, reasons, table)


def test_there_are_ten_specs_and_both_systems_get_the_same() -> None:
    assert len(PAIRS) == 10
    for pair in PAIRS.values():
        prototype, kafka = pair.by_system.values()
        assert (prototype.system, kafka.system) == ("broker", "kafka")
        for field in fields(prototype):
            if field.name not in OF_THE_SYSTEM:
                assert getattr(prototype, field.name) == getattr(kafka, field.name), field.name


def test_no_setting_of_which_both_systems_have_a_default_differs() -> None:
    shared = SYSTEMS["broker"].defaults.keys() & SYSTEMS["kafka"].defaults.keys()
    assert len(shared) > 10
    for pair in PAIRS.values():
        prototype, kafka = pair.by_system.values()
        assert {name: prototype.settings[name] for name in shared} == {name: kafka.settings[name] for name in shared}


@pytest.mark.parametrize("name", [NAME, "unclean-election"])
def test_the_script_takes_the_records_that_the_last_replica_in_sync_alone_had(name: str, tmp_path: Path) -> None:
    line, outcome = in_simulation(name, tmp_path)
    assert [each.took_effect for each in outcome.injections] == [True, True]
    assert line["deviations"] == []
    assert 0 < line["figures"]["lost"] < line["figures"]["acknowledged"]
    assert line["verdict"] == ("unknown" if name == NAME else "valid")


def test_the_line_of_a_run_has_the_figures_of_the_measures_by_their_names(tmp_path: Path) -> None:
    line, _ = in_simulation("slow-disk-of-the-leader", tmp_path)
    assert (line["spec"], line["system"], line["release"], line["load"]) == (
        *("slow-disk-of-the-leader", "prototype", ""),
        0.5,
    )
    assert line["run"].endswith("slow-disk-of-the-leader-prototype-seed1")
    assert line["figures"].keys() == {figure.name for figure in measures.stored_figures()} | {"planned"}
    assert line["figures"]["planned"] == 600
    assert len(line["sources"]) == 32
    cells = next(each for each in part(line).splitlines() if each.startswith(f"`{line['spec']}` | valid"))
    assert cells.count("–") == len(cells.split(" | ")) - 1, "those of Kafka alone"


def test_a_run_without_a_line_is_made_and_one_that_could_not_be_carried_out_is_made_again() -> None:
    failed = row(NAME, "Kafka", FAILED)
    made = [row("no-fault", "prototype"), row("no-fault", "Kafka"), row(NAME, "prototype"), failed]
    left = list(runs.still_to_be_made(PAIRS, made))
    assert left[0] == ("leader-killed", "prototype")
    assert (NAME, "Kafka") in left
    assert len(left) == 17


def test_a_run_for_which_no_node_was_started_has_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = {**crashed(1, 3), "run": str(tmp_path / "discarded"), "failure": "no engine answers"}
    monkeypatch.setattr(runs, "carry_out", lambda *_: CarriedOut(refused, (), 1.0))
    out = tmp_path / "rows.jsonl"
    with pytest.raises(SystemExit):
        main(["--out", str(out), "--store", str(tmp_path)])
    assert not out.exists()
    assert capsys.readouterr().err == "side_by_side: no engine answers\n"


def test_a_command_that_crashes_has_a_line_that_says_so() -> None:
    spec = PAIRS[NAME].by_system["Kafka"]
    line = runs.row_of(NAME, "Kafka", spec, CarriedOut(crashed(1, -9), (), 1.0), {}, 0.5)
    assert (line["verdict"], line["figures"], line["release"]) == ("failed", {}, SYSTEMS["kafka"].version)
    shown = part(line)
    assert "– / failed" in shown
    assert f"- `{NAME}`, Kafka: the command ended with -9 and no summary" in shown


def test_the_table_has_a_row_a_spec_with_both_systems_side_by_side() -> None:
    loss = {"loss": {"verdict": "unknown", "findings": {}}}
    shown = part(row(NAME, "prototype"), row(NAME, "Kafka", "unknown", not_valid=loss, figures={}))
    (cells,) = [line.split(" | ") for line in shown.splitlines() if line.startswith(f"`{NAME}` | valid")]
    head = next(line.split(" | ") for line in shown.splitlines() if line.startswith("spec | verdict"))
    by_head = dict(zip(head, cells, strict=True))
    assert by_head["verdict"] == "valid / unknown (`loss`)"
    assert by_head["available"] == "10.00 % / –"
    assert by_head["longest"] == "3.2 s / –"
    assert by_head["lost"] == "3 of 60 / –"
    assert by_head["p50"] == "2 ms / –"
    assert by_head["recovery"] == "– / –"
    assert f"Not explained yet: `{NAME}`." in shown


def test_the_table_says_what_was_not_made() -> None:
    assert "None of these runs was made yet." in part()
    shown = part(row("no-fault", "prototype"))
    assert "`no-fault` | valid / –" in shown
    assert "on one system alone: `no-fault`, `leader-killed`" in shown


def test_reasons_stand_below_the_table_with_their_lines() -> None:
    reason = {"says": "it starts for longer", "line": "Kafka Server started", "from": "a-run/nodes/b1/node.log"}
    shown = part(row(NAME, "prototype"), row(NAME, "Kafka"), reasons={NAME: [reason]})
    assert f"- `{NAME}`: it starts for longer: `Kafka Server started` (`a-run/nodes/b1/node.log`)" in shown
    assert "Not explained" not in shown


def test_verdicts_that_differ_need_a_reason_and_reasons_a_run_and_a_line() -> None:
    def found(verdict: str, *given: Mapping[str, str]) -> list[str]:
        lines = row(NAME, "prototype"), row(NAME, "Kafka", verdict)
        rows = {(line["spec"], line["system"]): line for line in lines}
        return list(page.mistakes(PAIRS, rows, {NAME: given}))

    reason = {"says": "it lost", "line": "…", "from": f"{row(NAME, 'Kafka')['run']}/nodes/b1/node.log"}
    assert found("valid") == []
    assert found("unknown") == [f"{NAME}: the verdicts differ, and reasons.yaml does not say why"]
    assert found("unknown", reason) == []
    assert found("valid", {**reason, "from": "another-run/faults"}) == [
        f"{NAME}: another-run/faults is of no run in the table"
    ]
    (mistake,) = found("valid", {**reason, "line": ""})
    assert mistake.startswith(f"{NAME}: a reason has from, line, says, not ")
