"""The undo log of a file: from its current content back to the content that its last fsync made durable.

It holds the unsynced changes of one file, oldest first, each with the content it replaced. Undoing from the end
restores the file after any number of changes. Appends, the common case, take eight bytes each: undoing one truncates
the file.

The log stays small (see the limits): beyond them adjacent changes are merged, so that `rewind` has fewer places to
stop; the first, which fsync made durable, is always exact.
"""

from __future__ import annotations

import os
from array import array
from dataclasses import dataclass, field
from random import Random
from typing import Final

from images.base.lossyfs.saved_extents import SavedExtent, earliest_extents
from images.base.lossyfs.survival import draw_tear

APPENDS_MAX: Final = 65_536
"""Appends of one run; beyond that every other one is merged."""
OVERWRITES_MAX: Final = 4_096
SAVED_BYTES_MAX: Final = 16 << 20
"""Bytes in memory for one file; beyond this or OVERWRITES_MAX the older half of the log becomes one change."""


@dataclass(slots=True)
class AppendRun:
    """A run of appends: each write starts at the end of the one before, at the end of the file."""

    start: int
    ends: array[int]


@dataclass(frozen=True, slots=True)
class Replacement:
    """A change that replaced bytes or set the size: a write at [start, end), or a truncation (start = end)."""

    size: int
    """Size of the file before."""
    saved: tuple[SavedExtent, ...]
    start: int
    end: int
    written_bytes: int
    """Bytes written by all merged writes."""

    def undo(self, descriptor: int) -> None:
        """Undo this change, the last one of the file."""
        size_now = os.fstat(descriptor).st_size
        os.ftruncate(descriptor, self.size)
        for extent in self.saved:
            extent.write_back(descriptor, size_now)

    def tear(self, descriptor: int, cut: int) -> None:
        """Undo the part of a write from `cut` on, start < cut < end."""
        os.ftruncate(descriptor, max(self.size, cut))
        for extent in self.saved:
            part = extent.clipped(cut, self.end)
            if part is not None:
                part.write_back(descriptor, self.end)


@dataclass(frozen=True, slots=True)
class RewindResult:
    """Result of a rewind."""

    lost_bytes: int = 0
    torn_at: int | None = None
    """Offset at which the last surviving write was cut."""


@dataclass(slots=True)
class UndoLog:
    """The unsynced changes of one file."""

    written_bytes: int = 0
    """Bytes of unsynced writes; bytes written twice count twice."""
    _changes: list[AppendRun | Replacement] = field(default_factory=list)
    _saved_bytes: int = 0
    _saved_bytes_max: int = SAVED_BYTES_MAX

    def __bool__(self) -> bool:
        return bool(self._changes)

    @property
    def steps(self) -> int:
        """Number of changes, after each of which `rewind` can stop."""
        return sum(len(change.ends) if isinstance(change, AppendRun) else 1 for change in self._changes)

    def record_append(self, start: int, end: int) -> None:
        """Record an append of [start, end)."""
        self.written_bytes += end - start
        last = self._changes[-1] if self._changes else None
        if isinstance(last, AppendRun) and last.ends[-1] == start:
            ends = last.ends
            ends.append(end)
            if len(ends) > APPENDS_MAX:
                last.ends = ends[(len(ends) - 1) % 2 :: 2]
        else:
            self._add(AppendRun(start, array("q", (end,))))

    def record_overwrite(self, size: int, start: int, end: int, saved: tuple[SavedExtent, ...]) -> None:
        """Record a write of [start, end) to a file of `size` bytes; `saved` is the replaced content."""
        self.written_bytes += end - start
        self._add(Replacement(size, saved, start, end, end - start))

    def record_resize(self, size: int, to: int, saved: tuple[SavedExtent, ...]) -> None:
        """Record a truncation or extension of a file of `size` bytes; `saved` is the lost content."""
        self._add(Replacement(size, saved, to, to, 0))

    def clear(self) -> None:
        """Clear the log: everything is durable."""
        self._changes.clear()
        self.written_bytes = self._saved_bytes = 0
        self._saved_bytes_max = SAVED_BYTES_MAX

    def rewind(self, descriptor: int, keep_steps: int, tear: Random | None = None) -> RewindResult:
        """Restore the file after its first `keep_steps` changes, and clear the log.

        With `tear` the last of these, if it is a write of two bytes or more, is cut at a random place, and what it
        added to the file behind the cut may read as zeros (`draw_tear`).
        """
        drop = self.steps - keep_steps
        lost_bytes = 0
        changes = self._changes
        while drop > 0:
            change = changes[-1]
            if isinstance(change, Replacement):
                change.undo(descriptor)
                lost_bytes += change.written_bytes
                drop -= 1
                changes.pop()
                continue
            taken = min(drop, len(change.ends))
            end = change.ends[-taken - 1] if taken < len(change.ends) else change.start
            os.ftruncate(descriptor, end)
            lost_bytes += change.ends[-1] - end
            drop -= taken
            del change.ends[-taken:]
            if not change.ends:
                changes.pop()
        torn_at = None
        if tear is not None and changes:
            torn_at, cut_off = _tear(changes[-1], descriptor, tear)
            lost_bytes += cut_off
        self.clear()
        return RewindResult(lost_bytes, torn_at)

    def _add(self, change: AppendRun | Replacement) -> None:
        self._changes.append(change)
        if isinstance(change, Replacement):
            self._saved_bytes += sum(extent.memory_bytes for extent in change.saved)
        if len(self._changes) > OVERWRITES_MAX or self._saved_bytes > self._saved_bytes_max:
            self._merge_older_half()

    def _merge_older_half(self) -> None:
        middle = (len(self._changes) + 1) // 2
        if middle < 2:
            return
        older = self._changes[:middle]
        size = older[0].start if isinstance(older[0], AppendRun) else older[0].size
        extents = [extent for change in older if isinstance(change, Replacement) for extent in change.saved]
        written = sum(
            change.ends[-1] - change.start if isinstance(change, AppendRun) else change.written_bytes
            for change in older
        )
        self._changes[:middle] = [Replacement(size, earliest_extents(extents, size), 0, 0, written)]
        self._saved_bytes = sum(
            extent.memory_bytes
            for change in self._changes
            if isinstance(change, Replacement)
            for extent in change.saved
        )
        self._saved_bytes_max = max(SAVED_BYTES_MAX, 2 * self._saved_bytes)


def _tear(change: AppendRun | Replacement, descriptor: int, random: Random) -> tuple[int | None, int]:
    """(offset of the cut, bytes lost); (None, 0) unless the change is a write of two bytes or more."""
    if isinstance(change, AppendRun):
        start = change.ends[-2] if len(change.ends) > 1 else change.start
        end = change.ends[-1]
    else:
        start, end = change.start, change.end
    if end - start < 2:
        return None, 0
    kept_bytes, zeros = draw_tear(end - start, random)
    cut = start + kept_bytes
    if isinstance(change, AppendRun):
        os.ftruncate(descriptor, cut)
    else:
        change.tear(descriptor, cut)
    if zeros and os.fstat(descriptor).st_size < end:
        os.ftruncate(descriptor, end)
    return cut, end - cut
