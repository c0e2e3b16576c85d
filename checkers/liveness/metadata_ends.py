"""Whether every node has heard, at the end of a run, of all that the controllers had committed."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from checkers.liveness.run_end import RunEnd
from checkers.tables import TraceRow, trace_rows

_HEARD_AFTER_MS = 3_000
_MARGIN_MS = 1_000
"""After a controller was given up."""
_KINDS = (
    "node_started", "quorum_recovered", "metadata_appended", "metadata_truncated", "metadata_restored",
    "metadata_committed", "metadata_applied",
)  # fmt: skip


def unheard(trace: pa.Table, run_end: RunEnd, faults: pa.Table, silence_ms: int) -> Iterator[str]:
    """A line for each node whose metadata end below what was committed, although that was some seconds before the end
    of `trace` (schema TRACE), as were the last fault's end (schema FAULTS), the last stall of a process and the node's
    own start: as long as a node waits for a silent controller at most (`silence_ms`), and longer."""
    due_ns = run_end.last_ns - max(_HEARD_AFTER_MS, silence_ms + _MARGIN_MS) * 1_000_000
    healed_ns = pc.max(faults.column("ended_ns")).as_py() or 0
    if max(healed_ns, run_end.ran_since_ns) > due_ns or faults.column("ended_ns").null_count:
        return
    ends: dict[str, tuple[int, int]] = {}
    started_ns: dict[str, int] = {}
    committed: TraceRow | None = None
    for event in trace_rows(trace.filter(pc.field("kind").isin(_KINDS))):
        if event.kind == "metadata_committed":
            is_due = event.time_ns <= due_ns
            if is_due and (committed is None or event.high_watermark > committed.high_watermark):
                committed = event
        elif event.kind == "node_started":
            started_ns[event.node] = event.time_ns
            ends[event.node] = event.time_ns, 0
        else:
            is_set = event.kind in ("metadata_truncated", "metadata_restored")
            ends[event.node] = event.time_ns, event.offset if is_set else event.log_end
    if committed is None:
        return
    for node, (time_ns, end) in sorted(ends.items()):
        if end < committed.high_watermark and started_ns.get(node, 0) <= due_ns:
            yield (
                f"{node} has had the metadata up to {end:,} since {time_ns / 1e9:.3f} s, and {committed.node} had "
                f"committed it up to {committed.high_watermark:,} {committed.at}"
            )
