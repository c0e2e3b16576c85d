"""A controller that is killed while it traces a change has traced the first events of it alone: its successor finds the
change committed, and traces all of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from checkers.decided_metadata import OF_BROKERS, OF_PARTITIONS
from checkers.protocol import checker as protocol
from checkers.protocol import decision_promises
from checkers.protocol.batches import UNKNOWN
from checkers.raft import checker as raft
from checkers.verdict import Validity
from harness.runner.run import run_in_simulation
from harness.spec import parse
from results.run.directory import RunDirectory

Row = dict[str, Any]


def taken_over(row: Row) -> Row:
    """The same event as a successor traces it, which knows no reason but that of a creation."""
    known = json.loads(row["detail"] or "{}")
    facts = known if row["kind"] == "partition_changed" else {}
    reason = known.get("reason") if known.get("reason") == "created" else "taken_over"
    return row | {"detail": json.dumps(facts | {"reason": reason, "taken_over": True})}


def cut(rows: Iterable[Row]) -> Iterator[Row]:
    """The trace in which each change of several events was cut after the first, and taken over."""
    for (_, decided_to), events in groupby(rows, lambda row: (row["node"], decided_to_of(row))):
        change = list(events)
        if decided_to is None or len(change) == 1:
            yield from change
        else:
            yield from (change[0], *map(taken_over, change))


def test_a_trace_that_ends_within_a_change_accuses_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a run that was killed, which nobody traces the rest of."""
    spec = parse({"seed": 2, "time_limit": 14, "faults": "all"})
    outcome = run_in_simulation(spec, tmp_path)
    assert outcome.directory is not None
    evidence = replace(RunDirectory.open(outcome.directory).load(), recovery={})
    rows = evidence.trace.to_pylist()
    within = [
        number
        for number, (row, after) in enumerate(pairwise(rows), 1)
        if decided_to_of(row) is not None and decided_to_of(row) == decided_to_of(after)
    ]
    for number in within:
        verdict = protocol.check(replace(evidence, trace=evidence.trace.slice(0, number)))
        assert verdict.validity is not Validity.INVALID, (number, verdict.findings)
    monkeypatch.setattr(decision_promises, "_perhaps_cut", lambda trace: UNKNOWN)
    assert any(
        protocol.check(replace(evidence, trace=evidence.trace.slice(0, number))).validity is Validity.INVALID
        for number in within
    )


def decided_to_of(row: Row) -> int | None:
    """Where the metadata log ends with the change that a row is of."""
    return row["offset"] if row["kind"] in (*OF_BROKERS, *OF_PARTITIONS) else None


def test_a_change_of_which_the_trace_is_cut_between_two_lines_accuses_nobody(tmp_path: Path) -> None:
    script = [{"at": "3s", "for": "3s", "fault": "kill", "nodes": ["b1"]}]
    settings = {"offsets.topic.num.partitions": "5"}
    spec = {"workload": "groups", "seed": 3, "time_limit": "10s", "faults": script, "settings": settings}
    outcome = run_in_simulation(parse(spec), tmp_path)
    assert outcome.directory is not None
    evidence = RunDirectory.open(outcome.directory).load()
    rows = evidence.trace.to_pylist()
    with_cuts = [row | {"seq": number} for number, row in enumerate(cut(rows))]
    assert len(with_cuts) > len(rows)
    evidence = replace(evidence, trace=pa.Table.from_pylist(with_cuts, evidence.trace.schema))
    for check in (raft.check, protocol.check):
        verdict = check(evidence)
        assert verdict.validity is Validity.VALID, verdict.findings
