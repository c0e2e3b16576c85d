"""Small histories of a consumer group, told line by line, and what its checker says of them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from checkers.evidence import CheckSettings, RunEvidence
from checkers.fault_model import Tolerances
from checkers.groups.checker import check
from checkers.verdict import Verdict
from checkers.violations import FaultModelExceeded, Tolerance
from tests.checkers import small_evidence
from workloads.history import SCHEMA

S = 1_000_000_000


class GroupHistory:
    """A history of one partition, told line by line; every operation takes one second unless said otherwise."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(
        self, at_s: float, process: int, kind: str, outcome: str = "ok", until_s: float | None = None, **values: Any
    ) -> None:
        completed = (
            None if outcome == "info" and until_s is None else (until_s if until_s is not None else at_s + 1) * S
        )
        row = dict.fromkeys(SCHEMA.names) | {
            "index": len(self.rows),
            "process": process,
            "kind": kind,
            "phase": "main",
            "topic": "t",
            "partition": 0,
            "invoked_ns": int(at_s * S),
            "completed_ns": completed and int(completed),
            "outcome": outcome,
        }
        self.rows.append(row | values)

    def append(self, at_s: float, *offsets: int) -> GroupHistory:
        for offset in offsets:
            self.add(at_s, 0, "append", value=100 + offset, offset=offset)
        return self

    def start(self, at_s: float, member: int, generation: int, offset: int, **values: Any) -> GroupHistory:
        self.add(at_s, member, "assign", value=generation, offset=offset, **values)
        return self

    def poll(self, at_s: float, member: int, first: int, end: int) -> GroupHistory:
        offsets = list(range(first, end))
        self.add(at_s, member, "poll", offset=first, offsets=offsets, values=[100 + offset for offset in offsets])
        return self

    def commit(
        self, at_s: float, member: int, generation: int, offset: int, outcome: str = "ok", **values: Any
    ) -> GroupHistory:
        self.add(at_s, member, "commit", outcome, value=generation, offset=offset, **values)
        return self

    def verdict(self, *faults: dict[str, Any], **settings: Any) -> Verdict:
        return check(
            RunEvidence(
                pa.Table.from_pylist(self.rows, SCHEMA),
                trace=small_evidence.trace(*settings.pop("events", ())),
                faults=small_evidence.faults(*faults),
                recovery={"final_reads": settings.pop("final_reads", True)},
                settings=CheckSettings(**{"groups": True} | settings),
            )
        )


def kinds(verdict: Verdict) -> list[str]:
    return [finding.kind for finding in verdict.findings]


def begun() -> GroupHistory:
    """Member 7 owns the partition in generation 1, was given records 0 to 4 and committed 5."""
    return GroupHistory().append(0, *range(8)).start(2, 7, 1, 0).poll(4, 7, 0, 5).commit(6, 7, 1, 5)


def after_losing(offset: int, time_s: int, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault model of the next checks was exceeded at that time, from `offset` of partition 0 of `topic` on."""
    exceeded = Tolerances(Tolerance())
    exceeded[topic, 0] = Tolerance(exceeded=(FaultModelExceeded(offset, time_s * S, ("everything",)),))
    monkeypatch.setattr("checkers.groups.checker.tolerances", lambda evidence: exceeded)
