"""Producer tables of a log at offsets gone by: a cut, or a start that moves, then need not read all of the log.

Known are: the table before the first segment, which stands for batches that may be gone; one of every so many batches
just appended, in memory, since most cuts are near the end; and the snapshots on disk.
"""

from __future__ import annotations

from collections import deque

from images.broker.log.producer_snapshots import ProducerSnapshots
from images.broker.log.producer_state import ProducerTable

RECENT_TABLE_INTERVAL = 64
RECENT_TABLES_KEPT = 64


class ProducerHistory:
    """Of one log, whose first segment begins at `base`."""

    __slots__ = ("_recent", "_snapshots", "_until_recent", "base", "before")

    def __init__(self, snapshots: ProducerSnapshots) -> None:
        self.base = 0
        self.before = ProducerTable()
        """The table before `base`."""
        self._snapshots = snapshots
        self._recent: deque[tuple[int, ProducerTable]] = deque(maxlen=RECENT_TABLES_KEPT)
        self._until_recent = RECENT_TABLE_INTERVAL

    def begin(self, base: int, *, snapshot_counts: bool = False) -> None:
        """The log begins at `base`, with what a snapshot of it tells if that counts, else with nothing known before."""
        found = self._snapshots.newest(above=base - 1, at_or_below=base) if snapshot_counts else None
        self.base, self.before = base, ProducerTable() if found is None else found[1]
        self._recent.clear()
        self._until_recent = RECENT_TABLE_INTERVAL

    def advance(self, base: int, before: ProducerTable) -> None:
        """The log begins at `base` from now on, and `before` is the table before it."""
        self.base, self.before = base, before

    def appended(self, end: int, table: ProducerTable) -> None:
        """A batch was appended, and gave `table`."""
        self._until_recent -= 1
        if not self._until_recent:
            self._until_recent = RECENT_TABLE_INTERVAL
            self._recent.append((end, table))

    def cut(self, end: int) -> None:
        """The log ends at `end` now."""
        while self._recent and self._recent[-1][0] > end:
            self._recent.pop()
        self._until_recent = RECENT_TABLE_INTERVAL

    def known(self, at_or_below: int) -> tuple[int, ProducerTable]:
        """The newest table known without reading batches, and the offset that it is of."""
        recent = next((known for known in reversed(self._recent) if known[0] <= at_or_below), None)
        offset, table = recent or (self.base, self.before)
        return self._snapshots.newest(above=offset, at_or_below=at_or_below) or (offset, table)
