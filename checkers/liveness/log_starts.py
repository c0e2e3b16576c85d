"""Whether the replicas in the ISR have heard, at the end of a run, where their leader's log starts.

A follower that waits for a lost answer hears nothing for as long as its settings say. It is no concern here: the final
reads of the latest offsets were answered, for which every member of the ISR fetches once more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from checkers.liveness.run_end import RunEnd
from checkers.tables import TraceRow, trace_rows
from workloads.history import TopicPartition

_HEARD_AFTER_MS = 3_000
_MARGIN_MS = 1_000
"""Beyond the waits of fetches."""
_FETCH_WAIT: Final = "replica.fetch.wait.max.ms"
_WAITS: Final = (_FETCH_WAIT, "replica.fetch.backoff.ms", _FETCH_WAIT)
"""A partition that is delayed waits for the end of the fetch under way, and the leader holds the next one back."""
_KINDS = (
    "partition_changed", "partition_deleted", "became_leader", "log_recovered", "log_start", "truncated",
    "replica_deleted",
)  # fmt: skip


def hears_within_ms(configs: Sequence[Mapping[str, str]]) -> int:
    """Within what time a follower, whose node has one of these settings, hears of a leader that it reaches. -1 where
    the settings do not say."""
    try:
        return sum(max(int(config[key]) for config in configs if key in config) for key in _WAITS)
    except ValueError:
        return -1


def unheard(trace: pa.Table, end: RunEnd, faults: pa.Table, hears_ms: int) -> Iterator[str]:
    """A line for each replica in the ISR whose log starts below its leader's, although that has not changed, nor has
    the leader, in the last seconds before this `end` of `trace` (schema TRACE), in which no fault has held (schema
    FAULTS). These are more than within which a follower hears of its leader (`hears_ms`)."""
    patience_ns = max(_HEARD_AFTER_MS, hears_ms + _MARGIN_MS) * 1_000_000
    healed_ns = pc.max(faults.column("ended_ns")).as_py() or 0
    if faults.column("ended_ns").null_count or not end.is_long_after(healed_ns, patience_ns):
        return
    changes: dict[TopicPartition, TraceRow] = {}
    starts: dict[tuple[TopicPartition, str], int] = {}
    changed_ns: dict[tuple[TopicPartition, str], int] = {}
    for event in trace_rows(trace.filter(pc.field("kind").isin(_KINDS) & (pc.field("time_ns") <= end.last_ns))):
        place = (event.topic, event.partition)
        if event.kind == "partition_changed":
            if place not in changes or changes[place].leader != event.leader:
                changed_ns[place, f"b{event.leader}"] = event.time_ns
            changes[place] = event
        elif event.kind == "partition_deleted":
            changes.pop(place, None)
        elif event.kind == "replica_deleted":
            starts.pop((place, event.node), None)
        else:
            start = event.details().get("log_start") if event.kind == "truncated" else event.offset
            if event.kind != "became_leader" and start is not None:
                starts[place, event.node] = max(start, 0)
            changed_ns[place, event.node] = event.time_ns
    for place, change in sorted(changes.items()):
        leader = f"b{change.leader}"
        start, since_ns = starts.get((place, leader), 0), changed_ns[place, leader]
        for member in sorted(change.members):
            own = starts.get((place, f"b{member}"))
            if own is not None and own < start and end.is_long_after(since_ns, patience_ns):
                yield (
                    f"{leader}'s log of {place[0]}-{place[1]} starts at {start:,} since {since_ns / 1e9:.3f} s at the "
                    f"latest, and b{member}, in its ISR, has it start at {own:,}"
                )
