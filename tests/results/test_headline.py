"""The headline of a run says what the verdict alone would hide."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from checkers.evidence import CheckSettings
from checkers.verdict import Validity, Verdict
from harness.runner.run import run_in_simulation
from harness.spec import parse
from images.wire.connection import Connection, ConnectionLost
from results.headline import headline
from workloads.clients.connections import Client

SETTINGS = CheckSettings(planned_appends=1200)


def verdict(checker: str, **figures: float) -> Verdict:
    return Verdict(checker, Validity.VALID, figures=figures)


@pytest.mark.parametrize(
    ("checker", "figures", "settings", "words"),
    [
        ("availability", {"ok": 32}, SETTINGS, "valid; 32 of 1,200 planned appends were acknowledged"),
        ("availability", {"ok": 300}, SETTINGS, "valid"),
        ("availability", {"ok": 0}, replace(SETTINGS, planned_appends=0), "valid"),
        (
            "loss",
            {"acknowledged_lost_allowed": 750, "allowed": 1},
            replace(SETTINGS, acks=1, unclean_election=True),
            "valid; 751 acknowledged records lost, permitted by acks=1 and unclean election",
        ),
        (
            "loss",
            {"allowed": 1},
            replace(SETTINGS, unclean_election=True),
            "valid; 1 acknowledged record lost, permitted by unclean election",
        ),
        ("loss", {"allowed": 2}, SETTINGS, "valid; 2 acknowledged records lost, permitted by unclean election"),
        ("loss", {"allowed": 2}, replace(SETTINGS, acks=1), "valid; 2 acknowledged records lost, permitted by acks=1"),
        ("loss", {"lost": 0.0, "allowed": 0.0}, replace(SETTINGS, unclean_election=True), "valid"),
        (
            "availability",
            {"ok": 400, "read": 8},
            replace(SETTINGS, consumers=2),
            "valid; 8 of 400 acknowledged records were read before the final reads",
        ),
        ("availability", {"ok": 400, "read": 100}, replace(SETTINGS, consumers=2), "valid"),
        ("availability", {"ok": 400, "read": 8}, SETTINGS, "valid"),
        ("availability", {"ok": 400}, replace(SETTINGS, consumers=2), "valid"),
        ("faults", {"injected": 45, "missed": 43}, SETTINGS, "valid; 43 of 45 faults missed"),
        ("faults", {"injected": 4, "missed": 2}, SETTINGS, "valid"),
        ("faults", {"injected": 0, "missed": 0}, SETTINGS, "valid"),
    ],
)
def test_a_headline_names_what_the_verdict_rests_on_and_what_was_permitted(
    checker: str, figures: dict[str, float], settings: CheckSettings, words: str
) -> None:
    assert headline([verdict(checker, **figures)], settings) == words


def test_a_run_whose_cluster_acknowledged_little_says_so() -> None:
    """Two of three brokers are down for nearly all of the run, so that min.insync.replicas is not met."""
    faults = [{"at": 0.2, "for": 60, "fault": "kill", "nodes": ["b1", "b2"]}]
    outcome = run_in_simulation(parse({"seed": 1, "time_limit": 8, "faults": faults}))
    words = outcome.to_json()["headline"]
    assert "of 160 planned appends were acknowledged" in words


@pytest.mark.parametrize("workload", ["append", "groups"])
def test_a_run_whose_consumers_read_little_says_so(workload: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Consumers, or members of the group, that get through to no broker, while producers do."""

    async def connection(self: Client, purpose: str, host: str, port: int) -> Connection:
        if self._client_id.startswith("consumer"):
            raise ConnectionLost("no way", sent=False)
        return await connected(self, purpose, host, port)

    connected = Client._connection
    monkeypatch.setattr(Client, "_connection", connection)
    outcome = run_in_simulation(parse({"seed": 1, "time_limit": 8, "faults": "none", "workload": workload}))
    words = outcome.to_json()["headline"]
    assert re.fullmatch(r"valid; 0 of (\d+) acknowledged records were read before the final reads", words)


def test_without_producers_no_appends_are_planned_of_which_a_share_could_be_acknowledged() -> None:
    script = {"producers": 0, "operations": ["produce 10 to 0"]}
    assert parse({"clients": script}).check_settings().planned_appends == 0
    outcome = run_in_simulation(parse({"seed": 1, "time_limit": 8, "faults": "none", "clients": script}))
    assert "planned" not in outcome.to_json()["headline"]
