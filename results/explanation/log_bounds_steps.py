"""Broken steps of where a replica's log begins and ends: what its opening kept and cut, bytes behind its end in its
file, the checkpointed high watermark, and its log start.

A log starts where somebody asked for everything below to be deleted, or where its leader's log starts when it begins
anew; and no file goes on behind the end of its log, since what is appended next would lie behind those bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from checkers.tables import WITH_BYTES_BEHIND, TraceRow
from results.explanation.replay import PartitionReplay
from results.explanation.story import Step, StepKind, span


def cut_as(event: TraceRow) -> str:
    """What the opening of a log cut as damaged, in words."""
    detail = event.details()
    reason = detail.get("cut_reason")
    return f" (it cut {detail['cut_bytes']} bytes: {reason})" if reason else ""


def live_segment_deleted(event: TraceRow) -> tuple[int, int, str] | None:
    """The records that the opening of a log deleted with segments that reach above its start, and that in words."""
    detail = event.details()
    if "left_over" not in detail:
        return None
    (first, end), (start, base) = detail["left_over"], detail["start_checkpoint"]
    if end <= start:
        return None
    text = (
        f"{event.node} opened its log and deleted the segment that holds its log start, with {span(start, end)}: its "
        f"log-start checkpoint has log start {start} and names {base} as the base offset of the first segment to keep, "
        f"and the segments from {first}, which lie below that, end at {end}"
    )
    return start, end, text


def _opened(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    replica = state.replica(event.node)
    known = len(replica.log)
    if (deleted := live_segment_deleted(event)) and event.log_end < known:
        first, end, text = deleted
        yield Step(StepKind.LIVE_SEGMENT_DELETED, event.time_ns, event.node, text, first, end)
    elif event.log_end < known and not replica.removed:
        clean = event.details().get("clean") is True and event.log_end > 0
        closed = ", although it had been closed as clean, all of it on disk" if clean else ""
        closed += cut_as(event)
        yield Step(
            StepKind.CLEAN_LOG_CAME_BACK_SHORTER if clean else StepKind.LOG_CAME_BACK_SHORTER,
            event.time_ns,
            event.node,
            f"the log of {event.node} ended at {known} and came back ending at {event.log_end}{closed}",
            event.log_end,
            known,
            is_loss=not clean,
        )


def _recovered_start(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    """The log start survives a restart once it was in force: an event of the replica followed it. One without
    records brings none back: a wiped disk may have emptied it."""
    replica = state.replica(event.node)
    if 0 <= event.offset < min(replica.settled_start, event.log_end) and not replica.removed:
        yield Step(
            StepKind.LOG_START_FELL,
            event.time_ns,
            event.node,
            f"the log of {event.node} started at {replica.settled_start} and came back starting at {event.offset}: "
            "deleted records are back",
        )


def _checkpoint(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    """The high watermark with which a log is opened is one that the replica had, or at least a leader."""
    replica = state.replica(event.node)
    known = max(replica.greatest_high_watermark, replica.log_start, event.offset, len(state.committed))
    if event.high_watermark > known:
        yield Step(
            StepKind.CHECKPOINT_ABOVE_HIGH_WATERMARK,
            event.time_ns,
            event.node,
            f"{event.node} opened its log with the checkpointed high watermark {event.high_watermark}, and no high "
            f"watermark had ever been above {known}: what lies between counts as committed, and nobody has counted it",
            known,
        )


def bytes_left(event: TraceRow) -> tuple[int, str] | None:
    """The end of a log whose file goes on behind it when it was opened, cut or led, and that in words."""
    left = event.details().get("bytes_behind", 0)
    if not left:
        return None
    end = event.end_after
    did = {
        "truncated": f"cut its log {event.log_end} → {end}",
        "became_leader": f"became leader with a log that ends at {end}",
    }.get(event.kind, f"opened its log, which ends at {end}{cut_as(event)}")
    return end, (
        f"{event.node} {did}, and its file still has {left} bytes behind the last batch: they were not removed, so "
        f"{WITH_BYTES_BEHIND}"
    )


def _bytes_left(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    if found := bytes_left(event):
        yield Step(StepKind.BYTES_LEFT_BEHIND_LOG_END, event.time_ns, event.node, found[1], found[0])


def _begun_anew(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    """A follower takes its log start from its leader: that of the leader's log, not of anything above it. One whose log
    began there or higher, since an unclean election has undone a deletion, skips nothing by that."""
    detail, own = event.details(), state.replicas.get(event.node)
    start = detail.get("log_start") if event.kind == "truncated" else event.offset
    leader = state.replicas.get(f"b{event.leader}")
    if event.kind == "log_start" and detail.get("reason") != "leader":
        return
    if start is None or leader is None or leader.role != "leader" or start <= leader.log_start:
        return
    if own is not None and start <= own.log_start:
        return
    did = f"deleted its log, which ended at {event.log_end}, and began it anew at {start}"
    if event.kind == "log_start":
        did = f"moved its log start to {start}"
    end = ", where that log ends" if start == len(leader.log) else ""
    yield Step(
        StepKind.LOG_START_ABOVE_LEADERS,
        event.time_ns,
        event.node,
        f"{event.node} {did}{end}, as follower of {leader.node}, whose log starts at {leader.log_start}: it skips "
        f"{span(leader.log_start, start)}, which nobody asked to delete",
        leader.log_start,
        start,
    )


def _log_start(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    detail: dict[str, Any] = event.details()
    committed = len(state.committed)
    if event.offset > committed:
        yield Step(
            StepKind.UNCOMMITTED_RECORDS_DELETED,
            event.time_ns,
            event.node,
            f"{event.node} moved its log start {detail.get('before')} → {event.offset} ({detail.get('reason')}), "
            f"above its high watermark {event.high_watermark}: no leader had committed {span(committed, event.offset)}",
            committed,
            event.offset,
        )


LOOKS: Final[Mapping[str, tuple[Callable[[PartitionReplay, TraceRow], Iterator[Step]], ...]]] = {
    "log_recovered": (_bytes_left, _recovered_start, _checkpoint, _opened),
    "became_leader": (_bytes_left,),
    "truncated": (_bytes_left, _begun_anew),
    "log_start": (_log_start, _begun_anew),
}
