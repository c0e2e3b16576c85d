"""Producer tables of a log at earlier offsets, so that a truncation need not read the whole log.

They are: the table before the first segment, which replaces batches that may be deleted; in memory one table every
RECENT_TABLE_INTERVAL appended batches, since most truncations are near the end; and the snapshots on disk.
"""

from __future__ import annotations

from collections import deque

from images.broker.log.producer_snapshots import ProducerSnapshots
from images.broker.log.producer_state import ProducerTable

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

    def truncate(self, end: int) -> None:
        """Forget the tables above `end`."""
        while self._recent and self._recent[-1][0] > end:
            self._recent.pop()
        self._until_recent = RECENT_TABLE_INTERVAL

    def known(self, at_or_below: int) -> tuple[int, ProducerTable]:
        """The newest table known without reading batches, and the offset that it is of."""
        recent = next((known for known in reversed(self._recent) if known[0] <= at_or_below), None)
        offset, table = recent or (self.base, self.before)
        return self._snapshots.newest(above=offset, at_or_below=at_or_below) or (offset, table)
