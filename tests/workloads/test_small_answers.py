"""Answers that have no room for all partitions of a leader: none is starved, and an empty one is no end of a log."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from checkers.verdict import Validity
from harness.runner.run import run_in_simulation
from harness.spec import parse
from results.run import evidence_loader

SMALL_ANSWERS = {
    "seed": 3,
    "time_limit": 6,
    "faults": "none",
    "controllers": 1,
    "partitions": 4,
    "rate": 100,
    "consumers": 2,
    "recency": "strict",
    "clients": {"record_bytes": 1000, "fetch_bytes": 1024},
}
"""Each answer has one record, of one partition."""


def test_every_partition_of_a_leader_is_read_and_only_a_log_that_ends_there_is_taken_to(tmp_path: Path) -> None:
    outcome = run_in_simulation(parse(SMALL_ANSWERS), tmp_path)
    assert outcome.validity is Validity.VALID, outcome.verdicts
    assert outcome.directory is not None
    history = evidence_loader.load(outcome.directory).history.to_pylist()
    polls = [row for row in history if row["kind"] == "poll" and row["phase"] == "main"]
    read = Counter(row["partition"] for row in polls for _ in row["values"] or ())
    assert min(read[partition] for partition in range(4)) > 20, read
