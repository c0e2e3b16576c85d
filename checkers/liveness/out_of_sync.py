"""Why a replica is out of the ISR at the end of a run, from the protocol trace.

Each broker that the controllers' last decision about a partition leaves out of the ISR gets one line: the first of

1. its process has not registered since it started;
2. the controllers have fenced it;
3. its leader answers its fetches with a point of divergence, again and again the same one;
4. its leader proposes it for the ISR and is refused;
5. it has appended nothing for a while, or lags behind.

This explains a finding of `checkers.liveness.checker`; it finds nothing by itself.
"""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc

from checkers.tables import TraceRow, trace_rows
from workloads.history import TopicPartition

_REPEATED = 3
"""So many equal answers are no progress."""

_KINDS = (
    "partition_changed", "partition_deleted", "node_started", "registered", "broker_fenced", "broker_unfenced",
    "isr_rejected", "diverging", "appended", "became_leader", "became_follower", "log_recovered", "truncated",
)  # fmt: skip


def reasons(trace: pa.Table) -> list[str]:
    """A line for each replica that is out of the ISR at the end of `trace` (schema TRACE)."""
    changes: dict[TopicPartition, TraceRow] = {}
    nodes: dict[str, TraceRow] = {}
    fenced: dict[int, TraceRow] = {}
    diverging: Counter[tuple[TopicPartition, int, int, str]] = Counter()
    refused: Counter[tuple[TopicPartition, int, str, str]] = Counter()
    ends: dict[tuple[TopicPartition, str], tuple[int, int]] = {}
    for event in trace_rows(trace.filter(pc.field("kind").isin(_KINDS))):
        place, kind = (event.topic, event.partition), event.kind
        if kind == "partition_changed":
            changes[place] = event
        elif kind == "partition_deleted":
            changes.pop(place, None)
        elif kind in ("node_started", "registered"):
            nodes[event.node] = event
        elif kind in ("broker_fenced", "broker_unfenced"):
            fenced[event.broker] = event
        elif kind == "diverging":
            diverging[place, event.details().get("replica", -1), event.offset, event.node] += 1
        elif kind == "isr_rejected":
            for member in event.members:
                refused[place, member, str(event.details().get("error")), event.node] += 1
        else:
            ends[place, event.node] = event.time_ns, event.end_after
    lines = []
    for place, change in sorted(changes.items()):
        for replica in sorted(set(change.details().get("replicas") or ()) - set(change.members)):
            node, of = f"b{replica}", f"{place[0]}-{place[1]}"
            lines.append(
                _life(node, nodes.get(node), fenced.get(replica))
                or _repeated(node, of, place, replica, diverging, refused)
                or _behind(node, of, ends.get((place, node)), ends.get((place, f"b{change.leader}")))
            )
    return list(dict.fromkeys(lines))


def _life(node: str, last: TraceRow | None, fencing: TraceRow | None) -> str:
    if last is not None and last.kind == "node_started":
        return f"{node}: has not registered since it started at {last.time_ns / 1e9:.3f} s"
    if fencing is not None and fencing.kind == "broker_fenced":
        reason = fencing.details().get("reason", "no reason is given")
        return f"{node}: fenced by the controllers since {fencing.time_ns / 1e9:.3f} s ({reason})"
    return ""


def _repeated(
    node: str,
    of: str,
    place: TopicPartition,
    replica: int,
    diverging: Counter[tuple[TopicPartition, int, int, str]],
    refused: Counter[tuple[TopicPartition, int, str, str]],
) -> str:
    answers = [(count, key) for key, count in diverging.items() if key[:2] == (place, replica)]
    if answers and max(answers)[0] >= _REPEATED:
        count, (_, _, offset, leader) = max(answers)
        return f"{node}: {count:,} diverging answers at one offset, {offset} of {of}, from {leader}"
    proposals = [(count, key) for key, count in refused.items() if key[:2] == (place, replica)]
    if proposals and max(proposals)[0] >= _REPEATED:
        count, (_, _, error, leader) = max(proposals)
        return f"{node}: {leader} proposed it for the ISR of {of} and was refused {count:,} times ({error})"
    return ""


def _behind(node: str, of: str, own: tuple[int, int] | None, leaders: tuple[int, int] | None) -> str:
    if own is None:
        return f"{node}: the trace has no event of its log of {of}"
    line = f"{node}: its log of {of} ends at {own[1]:,} and last changed at {own[0] / 1e9:.3f} s"
    return line + (f"; its leader's ends at {leaders[1]:,}" if leaders is not None else "; there is no leader")
