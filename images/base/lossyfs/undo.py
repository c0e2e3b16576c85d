"""The way back from what a file holds to what its last fsync made durable.

A log of the unsynced changes of one file, oldest first, each with what it replaced. Undone from its end, it gives the
file as it was after any number of them. Appends, the common case, take eight bytes each: undoing one is cutting it off.

The log stays small: see the limits. Beyond them neighbouring changes become one, so that `rewind` has fewer places at
which to stop; the first, which is what fsync made durable, is always exact.
"""

from __future__ import annotations

import os
from array import array
from dataclasses import dataclass, field
from random import Random
from typing import Final

from images.base.lossyfs.saved_extents import SavedExtent, earliest_extents

APPENDS_MAX: Final = 65_536
"""Of one unbroken run; beyond that every other one is forgotten."""
OVERWRITES_MAX: Final = 4_096
SAVED_BYTES_MAX: Final = 16 << 20
"""In memory, for one file; beyond either, the older half of the log becomes one change."""


@dataclass(slots=True)
class AppendRun:
    """Writes that each began where the one before ended, at the end of the file."""

    start: int
    ends: array[int]


@dataclass(frozen=True, slots=True)
class Replacement:
    """A change that replaced bytes or set the size: a write at [start, end), or a truncation (start = end)."""

    size: int
    """Of the file before."""
    saved: tuple[SavedExtent, ...]
    start: int
    end: int
    written_bytes: int
    """By all the writes this stands for."""

    def undo(self, descriptor: int) -> None:
        """Make a file that is as after this change what it was before."""
        size_now = os.fstat(descriptor).st_size
        os.ftruncate(descriptor, self.size)
        for extent in self.saved:
            extent.write_back(descriptor, size_now)

    def tear(self, descriptor: int, cut: int) -> None:
        """Undo a write from `cut` on, start < cut < end."""
        os.ftruncate(descriptor, max(self.size, cut))
        for extent in self.saved:
            part = extent.clipped(cut, self.end)
            if part is not None:
                part.write_back(descriptor, self.end)


@dataclass(frozen=True, slots=True)
class RewindResult:
    """What undoing took from a file."""

    lost_bytes: int = 0
    torn_at: int | None = None
    """The offset at which the last write kept was cut."""


@dataclass(slots=True)
class UndoLog:
    """The unsynced changes of one file."""

    written_bytes: int = 0
    """By writes that are not synced; what was written twice counts twice."""
    _changes: list[AppendRun | Replacement] = field(default_factory=list)
    _saved_bytes: int = 0
    _saved_bytes_max: int = SAVED_BYTES_MAX

    def __bool__(self) -> bool:
        return bool(self._changes)

    @property
    def steps(self) -> int:
        """The changes between which `rewind` can stop."""
        return sum(len(change.ends) if isinstance(change, AppendRun) else 1 for change in self._changes)

    def record_append(self, start: int, end: int) -> None:
        """[start, end) was written at the end of the file."""
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
        """[start, end) was written when the file had `size` bytes, of which those `saved` were replaced."""
        self.written_bytes += end - start
        self._add(Replacement(size, saved, start, end, end - start))

    def record_resize(self, size: int, to: int, saved: tuple[SavedExtent, ...]) -> None:
        """The file of `size` bytes was cut, losing those `saved`, or extended."""
        self._add(Replacement(size, saved, to, to, 0))

    def clear(self) -> None:
        """Everything so far is durable."""
        self._changes.clear()
        self.written_bytes = self._saved_bytes = 0
        self._saved_bytes_max = SAVED_BYTES_MAX

    def rewind(self, descriptor: int, keep_steps: int, tear: Random | None = None) -> RewindResult:
        """Make the file as it was after the first `keep_steps` changes, and clear the log.

        With `tear` the last of these, if it is a write of two bytes or more, is cut at a place drawn from it.
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
    """(where the change was cut, bytes it lost); (None, 0) when it is no write of two bytes or more."""
    if isinstance(change, AppendRun):
        start = change.ends[-2] if len(change.ends) > 1 else change.start
        end = change.ends[-1]
    else:
        start, end = change.start, change.end
    if end - start < 2:
        return None, 0
    cut = random.randint(start + 1, end - 1)
    if isinstance(change, AppendRun):
        os.ftruncate(descriptor, cut)
    else:
        change.tear(descriptor, cut)
    return cut, end - cut
