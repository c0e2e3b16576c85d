"""Lines of the campaign, and the tables made of them."""

from __future__ import annotations

from typing import Any

from tests.systems import campaign

SUMMARY: dict[str, Any] = {
    "run": "/somewhere/20261123T000000-kafka-seed7",
    "seed": 7,
    "failure": None,
    "validity": "unknown",
    "checks": [
        {"checker": "logs", "validity": "valid", "findings": []},
        {
            "checker": "loss",
            "validity": "unknown",
            "findings": [
                {"kind": "fault-model-exceeded", "lines": ["two replicas lost data", "at once"]},
                {"kind": "fault-model-exceeded", "lines": ["another time"]},
            ],
        },
    ],
    "faults": {"kill": {"injected": 3, "took_effect": 2}, "pause": {"injected": 1, "took_effect": 0}},
    "operations": {"append": {"ok": 5}},
    "recovery": {"recovered": True, "seconds": 3.2},
}
RUN = campaign.CarriedOut(SUMMARY, (), 1.0)


def test_the_line_of_a_run_has_the_first_finding_of_each_kind_of_each_check_that_is_not_valid() -> None:
    row = campaign.row_of("4.1.1", "java", campaign.CarriedOut(SUMMARY, ("network x",), 12.6))
    assert row["run"] == "20261123T000000-kafka-seed7"
    assert row["not_valid"] == {
        "loss": {"verdict": "unknown", "findings": {"fault-model-exceeded": "two replicas lost data at once"}}
    }
    assert (row["faults"], row["left_behind"], row["seconds"]) == ({"kill": [2, 3], "pause": [0, 1]}, ["network x"], 13)


def test_the_table_says_what_took_effect_and_what_was_not_valid() -> None:
    row = campaign.row_of("4.1.1", "java", RUN)
    shown = "kill 2 of 3, pause 0 of 1", "`loss` unknown: fault-model-exceeded"
    assert list(campaign.table([row])) == [("4.1.1", "java", "7", "unknown", "5", "3 s", *shown)]


def test_a_command_that_crashes_has_a_line_that_says_so() -> None:
    row = campaign.row_of("4.1.1", "native", campaign.CarriedOut(campaign.crashed(3, -9), (), 1.0))
    (line,) = campaign.table([row])
    assert line[2:4] == ("3", "failed")
    assert "the command ended with -9" in line[-1]


def test_totals_count_each_family_over_all_runs() -> None:
    rows = [campaign.row_of("4.1.1", "java", RUN), campaign.row_of("4.1.1", "java", RUN)]
    totals = {family: rest for family, *rest in campaign.totals(rows)}
    assert (totals["`kill`"], totals["`pause`"], totals["`wipe`"]) == (
        ["4", "6", "2"],
        ["0", "2", "0"],
        ["0", "0", "0"],
    )
    assert "`message`" not in totals
