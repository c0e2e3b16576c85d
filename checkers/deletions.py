"""What may be gone from the start of a partition's log: how far deletion was asked for, or is permitted.

Two things permit it. An administrator asked for it: every `delete-records` fault says in its evidence below which
offset it asked, before it asked (`asked_below`), or that it asked for everything below the high watermark
(`to_high_watermark`). Or the topic has a retention by time or size. Then, and when everything was asked for, only the
brokers know how far that went; it is taken from their traces (`log_start` events), which `checkers.protocol` judges, or
where there is no trace from the replicas' own logs.

A record at a lower offset than is permitted is *deleted*, not lost; one above is held against the cluster as ever. What
it cannot see: whether retention deleted more than its settings give up.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow.compute as pc

from checkers.evidence import RunEvidence
from workloads.columns import NEVER

DELETE_RECORDS = "delete-records"
OWN_DECISIONS = frozenset({"delete_records", "retention_ms", "retention_bytes"})
"""Reasons of a `log_start` event for which a broker moves its log's start by itself, not after its leader."""


@dataclass(frozen=True, slots=True)
class DeletionRequest:
    """What was asked of one partition number; the runner has one topic of its own."""

    below: int = 0
    """The greatest offset named."""
    to_high_watermark: bool = False
    """Whether everything committed was asked for, too."""

    @property
    def bound(self) -> int:
        """The greatest start that DeleteRecords can have asked for; NEVER where only the high watermark bounds it."""
        return NEVER if self.to_high_watermark else self.below


def deletion_requests(evidence: RunEvidence) -> dict[int, DeletionRequest]:
    """By partition number, what administrators asked to have deleted."""
    found: dict[int, DeletionRequest] = {}
    for row in evidence.faults.filter(pc.field("fault") == DELETE_RECORDS).to_pylist():
        partition = int(json.loads(row["detail"] or "{}").get("partition", 0))
        numbers = json.loads(row["evidence"] or "{}")
        before = found.get(partition, DeletionRequest())
        found[partition] = DeletionRequest(
            max(before.below, int(numbers.get("asked_below", 0))),
            before.to_high_watermark or bool(numbers.get("to_high_watermark")),
        )
    return found


def deletable_below(evidence: RunEvidence) -> Mapping[tuple[str, int], int]:
    """For each partition of the history below which offset records may be gone; absent where none may."""
    wanted = deletion_requests(evidence)
    names = evidence.history.select(["topic", "partition"]).group_by(["topic", "partition"]).aggregate([]).to_pylist()
    told: Mapping[tuple[str, int], int] = {}
    if evidence.settings.retains_less or any(each.to_high_watermark for each in wanted.values()):
        told = _told(evidence)
    starts = {}
    for name in names:
        key = (name["topic"], name["partition"])
        of_partition = wanted.get(key[1], DeletionRequest())
        start = of_partition.below
        if evidence.settings.retains_less or of_partition.to_high_watermark:
            start = max(start, told.get(key, 0))
        if start > 0:
            starts[key] = start
    return starts


def _told(evidence: RunEvidence) -> dict[tuple[str, int], int]:
    """The greatest log start that any replica is known to have had."""
    starts: dict[tuple[str, int], int] = {}
    table, column = evidence.replica_ends, "log_start"
    if evidence.trace.num_rows:
        table, column = evidence.trace.filter(pc.field("kind") == "log_start"), "offset"
    for row in table.select(["topic", "partition", column]).to_pylist():
        key = (row["topic"], row["partition"])
        starts[key] = max(row[column], starts.get(key, 0))
    return starts
