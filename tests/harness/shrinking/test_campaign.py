"""The measured mutants of docs/shrinking.md: as small as promised, each with an incident that holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.incidents.incident import read_incident
from harness.yaml_document import parse_document
from tests.harness.shrinking import campaign

ROWS = campaign.read_rows(Path(__file__).parents[3] / "docs" / "shrinking-measurements.jsonl")


def test_twenty_mutants_are_as_small_as_promised_and_none_is_left_out() -> None:
    assert campaign.absent_mutants(ROWS) == []
    assert {row["mutant"] for row in ROWS} <= set(campaign.campaign_mutants(ROWS))
    assert all(row["faults"][0] >= campaign.FAULTS_LEAST for row in ROWS if row["seed"] is not None)
    assert campaign.as_wanted(ROWS)


@pytest.mark.parametrize("row", [row for row in ROWS if row["seed"] is not None], ids=lambda row: row["mutant"])
def test_the_incident_of_a_measured_mutant_keeps_its_signature_and_its_flaw(row: dict[str, str]) -> None:
    assert campaign.holds(row)
    flawed, repaired = read_incident(parse_document(row["incident"]), "shrunk").variants
    assert str(flawed.expect.signature) == row["signature"]
    assert [f"without {rule}" for rule in flawed.spec.without] == [row["mutant"]]
    assert repaired.spec.without == ()


def test_the_next_mutant_of_the_suite_takes_the_place_of_one_none_of_whose_runs_fails() -> None:
    mutants = list(campaign.torture_mutants())
    assert list(campaign.campaign_mutants([])) == mutants[: campaign.MUTANTS]
    rows = [{"mutant": mutants[4], "seed": None}, {"mutant": mutants[0], "seed": 3}]
    assert list(campaign.campaign_mutants(rows)) == mutants[: campaign.MUTANTS + 1]
    assert campaign.absent_mutants(rows) == [*mutants[1:4], *mutants[5 : campaign.MUTANTS + 1]]
