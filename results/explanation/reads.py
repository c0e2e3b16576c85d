"""Broken steps that only clients saw: a poll that returned records before any leader's high watermark had passed them,
and a read of the latest offset that was answered with less than had been committed when it began.

Compares the history with the trace; both have the true time of the run. A poll is taken as late as it may have been,
when it completed, and a read of the latest offset as early, when it was invoked, so a step here is certain.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from checkers.tables import TraceRow
from results.explanation.story import Step, StepKind, at, span


def read_steps(events: Sequence[TraceRow], history: pa.Table, topic: str, partition: int) -> Iterator[Step]:
    """The reads of one partition that were answered wrongly, in the order of completion."""
    times_ns: list[int] = []
    committed: list[int] = []
    for event in events:
        if event.kind == "high_watermark":
            times_ns.append(event.time_ns)
            committed.append(max(event.high_watermark, committed[-1] if committed else 0))
    if not committed:
        return
    answers = [event for event in events if event.kind == "latest_told"]
    own = (pc.field("topic") == topic) & (pc.field("partition") == partition) & (pc.field("outcome") == "ok")
    reads = history.filter(own & pc.field("kind").isin(["poll", "end_offset"]))
    columns = ["index", "process", "kind", "invoked_ns", "completed_ns", "offset", "offsets"]
    for row in reads.select(columns).sort_by("completed_ns").to_pylist():
        polled = row["kind"] == "poll"
        passed = bisect_right(times_ns, row["completed_ns" if polled else "invoked_ns"])
        end = committed[passed - 1] if passed else 0
        if polled and (highest := max(row["offsets"] or [-1])) >= end:
            yield _uncommitted(row, end, highest)
        elif not polled and row["offset"] < end:
            yield _outdated(row, end, answers)


def _uncommitted(row: dict[str, Any], end: int, highest: int) -> Step:
    return Step(
        StepKind.RECORD_READ_ABOVE_HIGH_WATERMARK,
        row["completed_ns"],
        f"process {row['process']}",
        f"poll #{row['index']} of process {row['process']} returned {span(end, highest + 1)}, and no leader's "
        f"high watermark had passed {end}",
        end,
        highest + 1,
        lacking="which node answered the poll: the history names none",
    )


def _outdated(row: dict[str, Any], end: int, answers: Sequence[TraceRow]) -> Step:
    """A read of the latest offset, with the leader that answered during it last, and its high watermark by then."""
    during = [event for event in answers if row["invoked_ns"] <= event.time_ns <= row["completed_ns"]]
    by = ", and no leader told any offset in the meantime: it is one that was kept from an earlier answer"
    if during:
        last = during[-1]
        by = f". {last.node} answered as leader of epoch {last.leader_epoch}, its high watermark at "
        by += f"{last.high_watermark}" + (" by then" if last.high_watermark > row["offset"] else "")
        if last.high_watermark > row["offset"]:
            by += f": {row['offset']} is the high watermark of an earlier moment, not that after the read was confirmed"
    return Step(
        StepKind.LATEST_OFFSET_OUTDATED,
        row["completed_ns"],
        during[-1].node if during else f"process {row['process']}",
        f"read #{row['index']} of the latest offset was answered with {row['offset']}, and a leader had committed up "
        f"to {end} before it began {at(row['invoked_ns']).strip()}{by}",
        row["offset"],
        end,
    )
