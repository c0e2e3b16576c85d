"""Visibility: consumers read committed records only, those below the high watermark of the leader that they ask.

read-above-high-watermark   a poll returned a record, or the answer to a query by time named one, of an offset at which
                            its leader's high watermark had not arrived when the operation completed

`checkers.loss` and `checkers.linearizability` find such a read when its record is lost later. Here it is found even
where the run was lucky, and named. The answering leader is the node that became leader in the operation's leader
epoch. Its high watermark by then is the greatest that any of its events up to the completion carries: a node traces
every move of its high watermark before it answers a fetch with it, and a kill loses at most the line of an answer that
was never sent. The greatest, since a restarted node may begin again at an older checkpoint. Where no node has traced
that it leads in the epoch, or the operation has none, the greatest of all nodes counts.

No fault excuses a violation: a leader answers below its own high watermark, be it right or wrong.

It needs a trace whose times compare with those of the history, and says `unknown` when a partition was read of which
the trace has no high watermark.

Blind spots: a high watermark that itself was moved too far (`checkers.protocol`); a record read in the instants between
the answer and the completion of its poll while the high watermark passes it.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.evidence import EvidencePart, RunEvidence
from checkers.tables import of_partition
from checkers.verdict import Finding, Validity, Verdict
from checkers.violations import Tolerance, Violations, merge_verdicts, unknown_verdict, verdict_of
from workloads.columns import NEVER, NOTHING, Int64, named_partitions, numbers

NAME = "visibility"
RESTS_ON = frozenset({EvidencePart.HISTORY, EvidencePart.TRACE, EvidencePart.SETTINGS})

_ALL_NODES = ""


def check(evidence: RunEvidence) -> Verdict:
    """Every partition of which a client was told of records."""
    returned = (pc.field("kind") == "poll") & (pc.list_value_length(pc.field("offsets")) > 0)
    named = (pc.field("kind") == "time_offset") & (pc.field("outcome") == "ok") & (pc.field("offset") >= 0)
    answers = evidence.history_within_trace().filter(returned | named)
    verdicts = [
        check_partition(
            of_partition(answers, topic, number),
            of_partition(evidence.trace, topic, number),
            topic=topic,
            partition=number,
        )
        for topic, number in named_partitions(answers)
    ]
    if not verdicts and evidence.history.num_rows:
        return Verdict(NAME, Validity.VALID, figures={"answers": 0.0})
    return merge_verdicts(NAME, verdicts, "no operation was recorded")


def check_partition(answers: pa.Table, trace: pa.Table, *, topic: str = "", partition: int = -1) -> Verdict:
    """One partition of one run: its polls with records and the answers to queries by time, and its events."""
    marks = _watermarks(trace)
    if not marks:
        return unknown_verdict(NAME, f"{topic}-{partition}: the trace has no high watermark")
    leader_of = _leaders(trace)
    completed_ns = numbers(answers.column("completed_ns"), NEVER)
    highest = _highest_told(answers)
    epochs = numbers(answers.column("leader_epoch"), -1)
    reached = np.full(len(highest), -1, dtype=np.int64)
    for epoch in np.unique(epochs):
        rows = np.flatnonzero(epochs == epoch)
        times_ns, greatest = marks.get(leader_of.get(int(epoch), _ALL_NODES), marks[_ALL_NODES])
        place = np.searchsorted(times_ns, completed_ns[rows], side="right")
        reached[rows] = np.concatenate([[-1], greatest])[place]
    above = np.flatnonzero(highest >= reached)

    def explain(number: int) -> Finding:
        row = int(above[number])
        answer = answers.slice(row, 1).to_pylist()[0]
        leader = leader_of.get(int(epochs[row]), "any node")
        told = answer["offsets"] or [answer["offset"]]
        first = next(offset for offset in told if offset >= reached[row])
        asked = f"poll from {answer['offset']}" if answer["offsets"] else f"query of {answer['value'] / 1e3:.3f} s"
        mark = f"had reached {reached[row]}" if reached[row] >= 0 else "was not known"
        lines = (
            f"#{answer['index']} {asked} by process {answer['process']} "
            f"({answer['invoked_ns'] / 1e9:.6f} s to {completed_ns[row] / 1e9:.6f} s) → "
            f"offsets {told[0]} to {told[-1]}, leader epoch {answer['leader_epoch']}",
            f"the high watermark of {leader} {mark} by then: offset {first} was not committed",
        )
        return Finding(
            "read-above-high-watermark",
            lines,
            topic,
            partition,
            (answer["index"],),
            (first,),
            int(completed_ns[row]),
        )

    violations = Violations("read-above-high-watermark", highest[above], completed_ns[above], explain)
    return verdict_of(NAME, [violations], Tolerance(), {"answers": float(len(highest))})


def _highest_told(answers: pa.Table) -> Int64:
    """The highest offset that each of them told of."""
    lengths = numbers(pc.list_value_length(answers.column("offsets")), 0)
    highest = numbers(answers.column("offset"), NOTHING).copy()
    polled = np.flatnonzero(lengths)
    if len(polled):
        offsets = numbers(pc.list_flatten(answers.column("offsets").combine_chunks()), NOTHING)
        highest[polled] = np.maximum.reduceat(offsets, (np.cumsum(lengths) - lengths)[polled])
    return highest


def _watermarks(trace: pa.Table) -> dict[str, tuple[Int64, Int64]]:
    """Node → times in order, and the greatest high watermark that it had traced by each; `_ALL_NODES` for all."""
    events = trace.filter(pc.field("high_watermark") >= 0)
    if not events.num_rows:
        return {}
    nodes = events.column("node")
    marks = {_ALL_NODES: _running_maximum(events)}
    for node in pc.unique(nodes).to_pylist():
        marks[node] = _running_maximum(events.filter(pc.equal(nodes, node)))
    return marks


def _running_maximum(events: pa.Table) -> tuple[Int64, Int64]:
    times_ns, values = numbers(events.column("time_ns"), 0), numbers(events.column("high_watermark"), -1)
    order = np.argsort(times_ns, kind="stable")
    return times_ns[order], np.maximum.accumulate(values[order])


def _leaders(trace: pa.Table) -> dict[int, str]:
    """Leader epoch → the node that traced that it leads in it."""
    led = trace.filter(pc.field("kind") == "became_leader")
    return dict(zip(led.column("leader_epoch").to_pylist(), led.column("node").to_pylist(), strict=True))
