"""Broken steps that only clients saw: records that a poll returned before any leader's high watermark had passed them.

Compares the history with the trace; both have the true time of the run. A poll is taken as late as it may have been,
when it completed, so a step here is certain.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from checkers.tables import TraceRow
from results.explanation.story import Step, StepKind, span


def read_steps(events: Sequence[TraceRow], history: pa.Table, topic: str, partition: int) -> Iterator[Step]:
    """The polls of one partition that returned uncommitted records, in the order of completion."""
    times_ns: list[int] = []
    committed: list[int] = []
    for event in events:
        if event.kind == "high_watermark":
            times_ns.append(event.time_ns)
            committed.append(max(event.high_watermark, committed[-1] if committed else 0))
    if not committed:
        return
    own = (pc.field("topic") == topic) & (pc.field("partition") == partition) & (pc.field("kind") == "poll")
    polls = history.filter(own & (pc.field("outcome") == "ok")).select(["index", "process", "completed_ns", "offsets"])
    for row in polls.sort_by("completed_ns").to_pylist():
        passed = bisect_right(times_ns, row["completed_ns"])
        end, highest = committed[passed - 1] if passed else 0, max(row["offsets"] or [-1])
        if highest >= end:
            yield Step(
                StepKind.RECORD_READ_ABOVE_HIGH_WATERMARK,
                row["completed_ns"],
                f"process {row['process']}",
                f"poll #{row['index']} of process {row['process']} returned {span(end, highest + 1)}, and no leader's "
                f"high watermark had passed {end}",
                end,
                highest + 1,
                lacking="which node answered the poll: the history names none",
            )
