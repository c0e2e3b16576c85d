"""Segments of the logs of replicas, as far as a protocol trace tells, and when retention had to delete the first one.

A segment is known from the batch on that closed it by beginning the next one. All of its records had been appended by
then, so that none is stamped later, but for the error of its producer's clock. The same holds for the records of the
whole log and its last batch: retention deletes the last segment, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from checkers.evidence import CheckSettings

INEXACT_NS = 50_000_000
"""Timestamps are in milliseconds, and a clock of the one machine may be set while it runs."""


class ClosedSegment(NamedTuple):
    """A segment that is not the last one of its log."""

    end: int
    """Exclusive."""
    closed_ns: int
    """Time at which the next segment began."""
    size: int
    """In bytes."""


class Overdue(NamedTuple):
    """Records that a leader had to delete by its retention, and kept."""

    node: str
    start: int
    """Where its log started."""
    end: int
    """Where the first segment ended that it had to delete."""
    due_ns: int
    """Since when it had to, and was leader."""
    until_ns: int
    """As long it kept them, or was leader."""
    setting: str
    """By which the segment had to go."""
    by_age: bool
    """Whether it had to by the age of its records, on the wall clock of the node."""


@dataclass(slots=True)
class RetainedLog:
    """The log of one node, which a retention makes shorter."""

    closed: list[ClosedSegment] = field(default_factory=list)
    """Those that are known, in the order of the log."""
    appended_ns: int = -1
    """Time of the last batch; -1 if it is not known."""
    untimed: bool = False
    """Whether a batch may have no timestamp: then its segment stays, and all that follow."""
    leads_since_ns: int = -1
    """-1 while it does not lead."""
    high_watermarks: list[tuple[int, int]] = field(default_factory=list)
    """Each one of its leadership, and its time in ns."""

    def cut(self, end: int) -> None:
        """The log ends at `end`, or begins anew there."""
        while self.closed and self.closed[-1].end >= end:
            self.closed.pop()

    def ends_segment_above(self, start: int) -> bool:
        """Whether the end of a segment is known that ends above `start`, where the log starts."""
        while self.closed and self.closed[0].end <= start:
            del self.closed[0]
        return bool(self.closed)

    def overdue(self, node: str, start: int, end: int, until_ns: int, settings: CheckSettings) -> Overdue | None:
        """The first segment of the log from `start` to `end`, if its node had to delete it before `until_ns`. Of a log
        of which no segment is known to be closed, all segments."""
        if self.leads_since_ns < 0 or start >= end:
            return None
        due: list[tuple[int, str, bool]] = []
        first_end, youngest_ns = end, self.appended_ns
        if self.ends_segment_above(start):
            first_end, youngest_ns, _ = self.closed[0]
            full_ns = self._kept_ns(settings.retention_bytes) if settings.retention_bytes >= 0 else None
            if full_ns is not None:
                due.append((full_ns, f"retention.bytes={settings.retention_bytes}", False))
        if settings.retention_ms >= 0 and youngest_ns >= 0 and not self.untimed:
            age_ns = (settings.retention_ms + settings.clock_error_ms) * 1_000_000 + INEXACT_NS
            due.append((youngest_ns + age_ns, f"retention.ms={settings.retention_ms}", True))
        committed_ns = next((then_ns for offset, then_ns in self.high_watermarks if offset >= first_end), None)
        if not due or committed_ns is None:
            return None
        due_ns, setting, by_age = min(due)
        due_ns = max(due_ns, committed_ns, self.leads_since_ns)
        return Overdue(node, start, first_end, due_ns, until_ns, setting, by_age) if due_ns < until_ns else None

    def _kept_ns(self, retention_bytes: int) -> int | None:
        """Since when the segments behind the first one have that size; None if they are not known to have it."""
        kept = 0
        for segment in self.closed[1:]:
            kept += segment.size
            if kept >= retention_bytes:
                return segment.closed_ns
        return None
