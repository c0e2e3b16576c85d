"""Permitted deletion: below which offset the records of a partition may be gone.

Two things permit it. An administrator requested it: every `delete-records` fault records in its evidence, before the
request is sent, the offset below which records are to be deleted (`asked_below`), or that everything below the high
watermark is to be deleted (`to_high_watermark`). Or the topic has a retention by time or size. In that case, and when
everything was to be deleted, only the brokers know how far the deletion went; it is taken from their traces
(`log_start` events), which `checkers.protocol` checks, or, where there is no trace, from the replicas' own logs.

A record below the permitted offset is *deleted*, not lost; the loss of one above it is a violation as ever.

Blind spots: retention that deletes more than its settings allow.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow.compute as pc

from checkers.evidence import RunEvidence
from workloads.columns import NEVER, named_partitions

DELETE_RECORDS = "delete-records"
OWN_DECISIONS = frozenset({"delete_records", "retention_ms", "retention_bytes"})
"""Reasons of a `log_start` event for which a broker moves its log's start by its own decision, not after its leader."""


@dataclass(frozen=True, slots=True)
class DeletionRequest:
    """The deletions requested of one partition number; the runner has one topic of its own."""

    below: int = 0
    """The greatest offset named."""
    to_high_watermark: bool = False
    """Whether deletion of everything committed was requested, too."""

    @property
    def bound(self) -> int:
        """The greatest log start that DeleteRecords can have requested; NEVER where only the high watermark bounds
        it."""
        return NEVER if self.to_high_watermark else self.below


def deletion_requests(evidence: RunEvidence) -> dict[int, DeletionRequest]:
    """By partition number, the deletions that administrators requested."""
    requests: dict[int, DeletionRequest] = {}
    for row in evidence.faults.filter(pc.equal(evidence.faults["fault"], DELETE_RECORDS)).to_pylist():
        partition = int(json.loads(row["detail"] or "{}").get("partition", 0))
        numbers = json.loads(row["evidence"] or "{}")
        before = requests.get(partition, DeletionRequest())
        requests[partition] = DeletionRequest(
            max(before.below, int(numbers.get("asked_below", 0))),
            before.to_high_watermark or bool(numbers.get("to_high_watermark")),
        )
    return requests


def deletable_below(evidence: RunEvidence) -> Mapping[tuple[str, int], int]:
    """For each partition of the history, the offset below which records may be gone; absent where none may."""
    wanted = deletion_requests(evidence)
    traced_starts: Mapping[tuple[str, int], int] = {}
    if evidence.settings.retains_less or any(each.to_high_watermark for each in wanted.values()):
        traced_starts = _greatest_log_starts(evidence)
    starts = {}
    for key in named_partitions(evidence.history):
        of_partition = wanted.get(key[1], DeletionRequest())
        start = of_partition.below
        if evidence.settings.retains_less or of_partition.to_high_watermark:
            start = max(start, traced_starts.get(key, 0))
        if start > 0:
            starts[key] = start
    return starts


def _greatest_log_starts(evidence: RunEvidence) -> dict[tuple[str, int], int]:
    """The greatest log start that a broker decided on by itself; without a trace, the greatest of any replica's log.

    A start that a follower took from its leader permits nothing: the leader may have lost the records below it.
    """
    starts: dict[tuple[str, int], int] = {}
    if evidence.settings.has_trace and evidence.trace.num_rows:
        moves = evidence.trace.filter(pc.equal(evidence.trace["kind"], "log_start")).select(
            ["topic", "partition", "offset", "detail"]
        )
        log_starts = [
            ((row["topic"], row["partition"]), row["offset"])
            for row in moves.to_pylist()
            if json.loads(row["detail"] or "{}").get("reason") in OWN_DECISIONS
        ]
    else:
        ends = evidence.replica_ends.select(["topic", "partition", "log_start"]).to_pylist()
        log_starts = [((row["topic"], row["partition"]), row["log_start"]) for row in ends]
    for key, start in log_starts:
        starts[key] = max(start, starts.get(key, 0))
    return starts
