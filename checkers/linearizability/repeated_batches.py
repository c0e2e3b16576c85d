"""Batches that stand twice since a deletion, or the expiry of their producer, made the log forget them.

A replica that begins anew above 0 knows no producer whose batches were deleted, as in Kafka. When it leads and the
producer sends a batch once more, since no answer to the first time came, it takes this for a new one. Then the same
records have two places in the log, and an append is acknowledged at one of them at most. Where nobody reads the other
one before it is deleted, no operation tells what stood there.

The trace tells: a leader appended a batch of the same producer and sequence numbers before, a deletion reached the end
of that one, and the second one stands where the log can have begun by then, or above. Whether that leader should have
known better is for `checkers.protocol` to say. Without a trace every deleted record may be such a first one.

The same holds where the state of a producer has expired (`checkers.deletions.forgetful_appends`): the leader that had
forgotten it, by the trace, has appended the batch again behind the end that its log had then, and the first one lies
before that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow.compute as pc

from checkers.deletions import batch_numbers, deletions, forgetful_appends, is_traced
from checkers.evidence import RunEvidence
from checkers.tables import TraceRow, trace_rows
from checkers.violations import Deletion
from workloads.history import TopicPartition


def offsets_of_copies(evidence: RunEvidence) -> Mapping[TopicPartition, Sequence[range]]:
    """For each partition of the history, the offsets of both copies of such batches."""
    deleted = deletions(evidence)
    if not is_traced(evidence):
        return {name: [range(max(deletion.below for deletion in each))] for name, each in deleted.items()}
    copies: dict[TopicPartition, list[range]] = {}
    for name, appends in forgetful_appends(evidence).items():
        for append in appends:
            if append.copies:
                copies.setdefault(name, []).extend((*append.copies, append.offsets))
    if not deleted:
        return copies
    appended: dict[tuple[TopicPartition, tuple[int, ...]], list[range]] = {}
    for event in trace_rows(evidence.trace.filter(pc.equal(evidence.trace["kind"], "appended"))):
        name = event.topic, event.partition
        if name not in deleted or event.node != f"b{event.leader}" or (numbers := batch_numbers(event)) is None:
            continue
        of_batch = appended.setdefault((name, numbers), [])
        for before in of_batch:
            if any(_forgot(deletion, before, event) for deletion in deleted[name]):
                copies.setdefault(name, []).extend((before, range(event.offset, event.log_end)))
        of_batch.append(range(event.offset, event.log_end))
    return copies


def _forgot(deletion: Deletion, before: range, again: TraceRow) -> bool:
    """Whether a replica that begins where this deletion went can have forgotten a batch when it appends it again."""
    return before.stop <= deletion.below and deletion.least <= again.offset and deletion.time_ns <= again.time_ns
