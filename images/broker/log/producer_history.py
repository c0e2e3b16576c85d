"""Producer tables of a log at earlier offsets, so that no truncation need read the whole log.

Known are the table before the first segment, which replaces batches that may be deleted; in memory one table every
RECENT_TABLE_INTERVAL appended batches, since most truncations are near the end; and the snapshots on disk. From the
newest of these the batches below the offset are read.
"""

from __future__ import annotations

from collections import deque

from images.broker.log.producer_snapshots import ProducerSnapshots
from images.broker.log.producer_state import ProducerTable, record
from images.broker.log.segments import LogSegments

RECENT_TABLE_INTERVAL = 64
RECENT_TABLES_KEPT = 64


class ProducerHistory:
    """The earlier producer tables of one log, whose first segment begins at `base`."""

    __slots__ = ("_recent", "_snapshots", "_until_recent", "base", "before")

    def __init__(self, snapshots: ProducerSnapshots) -> None:
        self.base = 0
        self.before = ProducerTable()
        """The table before `base`."""
        self._snapshots = snapshots
        self._recent: deque[tuple[int, ProducerTable]] = deque(maxlen=RECENT_TABLES_KEPT)
        self._until_recent = RECENT_TABLE_INTERVAL

    def begin(self, base: int, *, trust_snapshot: bool = False) -> None:
        """The log begins at `base`, with the table of its snapshot if that is trusted, else with an empty one."""
        snapshot = self._snapshots.newest(above=base - 1, at_or_below=base) if trust_snapshot else None
        self.base, self.before = base, ProducerTable() if snapshot is None else snapshot[1]
        self._recent.clear()
        self._until_recent = RECENT_TABLE_INTERVAL

    def advance(self, base: int, before: ProducerTable) -> None:
        """The log begins at `base` from now on, with the table `before` in front of it."""
        self.base, self.before = base, before

    def appended(self, end: int, table: ProducerTable) -> None:
        """A batch was appended; `table` is the table behind it."""
        self._until_recent -= 1
        if not self._until_recent:
            self._until_recent = RECENT_TABLE_INTERVAL
            self._recent.append((end, table))

    def rebuild(self, segments: LogSegments, end: int) -> tuple[ProducerTable, bool]:
        """The table of a log that was opened or truncated to `end`, and whether batches had to be read for it."""
        while self._recent and self._recent[-1][0] > end:
            self._recent.pop()
        self._until_recent = RECENT_TABLE_INTERVAL
        known, table = self._known(end)
        for header in segments.headers(known):
            table = record(table, header)
            self.appended(header.next_offset, table)
        return table, known < end

    def table_before(self, segments: LogSegments, offset: int) -> ProducerTable:
        """The table before `offset`, the base offset of a segment."""
        known, table = self._known(offset)
        for header in segments.headers(known):
            if header.base_offset >= offset:
                break
            table = record(table, header)
        return table

    def _known(self, at_or_below: int) -> tuple[int, ProducerTable]:
        """The newest table known without reading batches, and the offset that it is of."""
        recent = next((known for known in reversed(self._recent) if known[0] <= at_or_below), None)
        offset, table = recent or (self.base, self.before)
        return self._snapshots.newest(above=offset, at_or_below=at_or_below) or (offset, table)
