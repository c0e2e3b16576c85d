"""Permitted deletion: since when, and below which offset, the records of a partition may be gone.

Two things permit it. An administrator requested it: every `delete-records` fault records in its evidence, before the
request is sent, the offset below which records are to be deleted (`asked_below`), or that everything below the high
watermark is to be deleted (`to_high_watermark`). Or the topic has a retention by time or size.

A request may be refused, or never arrive. So where there is a trace, only what a broker decided in it counts
(`log_start` events with a reason of its own, which `checkers.protocol` checks): from that time on, up to that offset,
and no further than requests begun by then, or the retention for which it says to delete, permit.

Without a trace every request counts from its beginning, whatever became of it. How far brokers deleted for a retention,
or up to their high watermark, is then taken from the replicas' own logs. Where the run was killed the trace ends before
the history, and nobody has read those logs: any record may be gone by a retention, or up to a high watermark.

A record below the permitted offset is *deleted*, not lost; the loss of one above it is a violation as ever. So is
whatever was observed before the deletion (`checkers.violations`).

A producer whose state has expired is forgotten, too, with every batch of it: as in Kafka, a leader then takes a retry
of one for new, and a batch of any sequence number. The trace says which broker has forgotten whom, and when
(`producers_expired`); nothing else is permitted by it than what such a broker appends as leader, as long as its log is
not cut to before that.

Blind spots: a broker that has forgotten a producer too early, or knows it again since it started anew, and appends a
batch twice, which `checkers.protocol` finds. Without a trace, requests that were refused, and retention that deletes
more than its settings allow, which `checkers.protocol` finds otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from checkers.evidence import CheckSettings, RunEvidence
from checkers.tables import TraceRow, of_partition, trace_rows
from checkers.violations import Deletion
from workloads.columns import NEVER, named_partitions
from workloads.history import TopicPartition

DELETE_RECORDS = "delete-records"
OWN_DECISIONS = frozenset({"delete_records", "retention_ms", "retention_bytes"})
"""Reasons of a `log_start` event for which a broker moves its log's start by its own decision, not after its leader."""


@dataclass(frozen=True, slots=True)
class DeletionRequest:
    """The deletions requested of one partition number; the runner has one topic of its own."""

    requests: tuple[tuple[int, int], ...] = ()
    """(time in ns at which it began, the offset below which records are to go) of each; NEVER for everything
    committed."""
    ended_ns: tuple[int, ...] = ()
    """When each had its answer, NEVER without one: a request that nobody waits for any more may still arrive."""

    @property
    def bound(self) -> int:
        """The greatest log start that DeleteRecords can have requested; NEVER where only the high watermark bounds
        it."""
        return max((below for _, below in self.requests), default=0)

    def begun_alone_at(self, time_ns: int) -> int | None:
        """When the request began that was under way then, if no other was from its beginning on."""
        times = zip(self.requests, self.ended_ns, strict=True)
        begun = [(begun_ns, ended_ns) for (begun_ns, _), ended_ns in times if begun_ns <= time_ns]
        first_ns = min((begun_ns for begun_ns, ended_ns in begun if ended_ns >= time_ns), default=NEVER)
        beside = [begun_ns for begun_ns, ended_ns in begun if ended_ns >= first_ns]
        return first_ns if beside == [first_ns] else None

    def bound_at(self, time_ns: int) -> int:
        """The same of the requests that had begun by then."""
        return max((below for begun_ns, below in self.requests if begun_ns <= time_ns), default=0)


def deletion_requests(evidence: RunEvidence) -> dict[int, DeletionRequest]:
    """By partition number, the deletions that administrators requested."""
    requests: dict[int, DeletionRequest] = {}
    for row in evidence.faults.filter(pc.equal(evidence.faults["fault"], DELETE_RECORDS)).to_pylist():
        partition = int(json.loads(row["detail"] or "{}").get("partition", 0))
        numbers = json.loads(row["evidence"] or "{}")
        below = NEVER if numbers.get("to_high_watermark") else int(numbers.get("asked_below", 0))
        before = requests.get(partition, DeletionRequest())
        ended_ns = NEVER if row["ended_ns"] is None or numbers.get("unanswered") else row["ended_ns"]
        begun = (row["started_ns"], below)
        requests[partition] = DeletionRequest((*before.requests, begun), (*before.ended_ns, ended_ns))
    return requests


def deletable_below(evidence: RunEvidence) -> Mapping[TopicPartition, int]:
    """For each partition of the history, the offset below which records may be gone; absent where none may."""
    return {name: max(each.below for each in deleted) for name, deleted in deletions(evidence).items()}


def deletions(evidence: RunEvidence) -> Mapping[TopicPartition, tuple[Deletion, ...]]:
    """For each partition of the history, what may have been deleted; absent where nothing may."""
    requests = deletion_requests(evidence)
    if not requests and not evidence.settings.retains_less:
        return {}
    traced = is_traced(evidence)
    log_starts = _decided_log_starts(evidence) if traced else {}
    permitted = {}
    for name in named_partitions(evidence.history):
        request = requests.get(name[1], DeletionRequest())
        of_partition = [*_decided(log_starts.get(name, ()), request, evidence.settings)]
        if not traced or not evidence.recovery:
            of_partition += [Deletion(begun_ns, below, below) for begun_ns, below in request.requests if below < NEVER]
        if not evidence.recovery:
            of_partition += [Deletion(begun_ns, NEVER, 0) for begun_ns in _unlimited_since(evidence, request)]
        elif not traced:
            of_partition += _on_disk(evidence, name, request)
        of_partition = [deletion for deletion in of_partition if deletion.below > 0]
        if of_partition:
            permitted[name] = tuple(sorted(of_partition, key=lambda deletion: deletion.time_ns))
    return permitted


def knows_all_deletions(evidence: RunEvidence) -> bool:
    """Whether `deletions` are all that the run can have had: the trace has every one, up to the end of the run, or
    requests for fixed offsets were all. Where brokers write no trace, a replica may also have forgotten its log's start
    in a crash, as Kafka's do."""
    if is_traced(evidence):
        return bool(evidence.recovery)
    unlimited = any(request.bound == NEVER for request in deletion_requests(evidence).values())
    return not unlimited and not evidence.settings.retains_less


_LogStart = tuple[int, str, int]
"""time_ns, reason, offset."""


def is_traced(evidence: RunEvidence) -> bool:
    """Whether the steps of deletions are known."""
    return evidence.settings.has_trace and evidence.trace.num_rows > 0


def _decided_log_starts(evidence: RunEvidence) -> Mapping[TopicPartition, Sequence[_LogStart]]:
    """The log starts that brokers decided on by themselves.

    A start that a follower took from its leader permits nothing: the leader may have lost the records below it.
    """
    moves = evidence.trace.filter(pc.equal(evidence.trace["kind"], "log_start"))
    decided: dict[TopicPartition, list[_LogStart]] = {}
    for row in moves.select(["time_ns", "topic", "partition", "offset", "detail"]).to_pylist():
        reason = json.loads(row["detail"] or "{}").get("reason")
        if reason in OWN_DECISIONS:
            decided.setdefault((row["topic"], row["partition"]), []).append((row["time_ns"], reason, row["offset"]))
    return decided


def _decided(log_starts: Sequence[_LogStart], request: DeletionRequest, settings: CheckSettings) -> Iterator[Deletion]:
    """These log starts as far as something permits them. Times of traces whose clocks cannot be compared with that of
    the history say nothing: there a deletion counts from the beginning."""
    for time_ns, reason, offset in log_starts:
        bound = NEVER if settings.retains_less_by(reason) else 0
        if reason == "delete_records":
            bound = request.bound_at(time_ns) if settings.has_ordered_trace else request.bound
        below = min(offset, bound)
        yield Deletion(time_ns if settings.has_ordered_trace else 0, below, below)


def _unlimited_since(evidence: RunEvidence, request: DeletionRequest) -> list[int]:
    """The times since when something deletes that is limited by no offset."""
    since_ns = [begun_ns for begun_ns, below in request.requests if below == NEVER]
    return [*since_ns, 0] if evidence.settings.retains_less else since_ns


def _on_disk(evidence: RunEvidence, name: TopicPartition, request: DeletionRequest) -> Iterator[Deletion]:
    """Deletions by brokers that write no trace: up to the greatest start of any replica's log, in unknown steps."""
    since_ns = _unlimited_since(evidence, request)
    starts = of_partition(evidence.replica_ends, *name).column("log_start").to_pylist()
    if since_ns and starts:
        yield Deletion(min(since_ns), max(starts), 0)


# ---- producers that have expired -------------------------------------------------------------------------------------

_EXPIRED = "producers_expired"
_OF_LOGS = (_EXPIRED, "appended", "truncated", "log_recovered", "replica_deleted")


class ForgetfulAppend(NamedTuple):
    """A batch that a leader has appended since it has forgotten the producer's earlier ones."""

    offsets: range
    leader_epoch: int
    forgotten_below: int
    """Where its log ended when the state of the producer expired."""
    time_ns: int
    copies: tuple[range, ...]
    """Where the same batch was appended before that."""


def forgetful_appends(evidence: RunEvidence) -> Mapping[TopicPartition, Sequence[ForgetfulAppend]]:
    """For each partition of which a broker has forgotten a producer, what it has appended of that as leader since."""
    trace = evidence.trace
    expired = trace.filter(pc.equal(trace["kind"], _EXPIRED))
    names = {*zip(expired["topic"].to_pylist(), expired["partition"].to_pylist(), strict=True)}
    if not names or not evidence.settings.has_ordered_trace:
        return {}
    appends: dict[TopicPartition, list[ForgetfulAppend]] = {name: [] for name in sorted(names)}
    forgotten: dict[tuple[TopicPartition, str], dict[int, list[int]]] = {}
    places: dict[tuple[TopicPartition, tuple[int, ...]], list[range]] = {}
    for event in trace_rows(trace.filter(pc.is_in(trace["kind"], value_set=pa.array(_OF_LOGS)))):
        name = event.topic, event.partition
        if name not in appends:
            continue
        ends = forgotten.setdefault((name, event.node), {})
        if event.kind == _EXPIRED:
            for producer in event.details()["producers"]:
                ends.setdefault(int(producer), []).append(event.log_end)
        elif event.kind != "appended":
            _cut(ends, event)
        elif event.node == f"b{event.leader}" and (numbers := batch_numbers(event)) is not None:
            offsets, before = range(event.offset, event.log_end), places.setdefault((name, numbers), [])
            below = max((end for end in ends.get(numbers[0], ()) if end <= event.offset), default=None)
            if below is not None:
                copies = tuple(copy for copy in before if copy.stop <= below)
                appends[name].append(ForgetfulAppend(offsets, event.leader_epoch, below, event.time_ns, copies))
            before.append(offsets)
    return appends


def _cut(ends: dict[int, list[int]], event: TraceRow) -> None:
    """A log that is cut, or begins anew, has nothing of what was forgotten behind its end."""
    is_empty = event.kind == "replica_deleted" or event.end_after <= 0 or "log_start" in event.details()
    for producer in ends:
        ends[producer] = [end for end in ends[producer] if end <= event.end_after and not is_empty]


def batch_numbers(event: TraceRow) -> tuple[int, ...] | None:
    """By what a batch that is sent again is the same, its producer id first; None where it is of no idempotent
    producer."""
    detail = event.details()
    producer, sequence = int(detail.get("producer_id", -1)), int(detail.get("sequence", -1))
    if producer < 0 or sequence < 0:
        return None
    return producer, int(detail.get("producer_epoch", 0)), sequence, event.log_end - event.offset
