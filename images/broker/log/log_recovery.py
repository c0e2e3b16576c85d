"""Opening a log: what is left over of it is deleted, and a log that has lost its beginning dropped.

After a clean close the end, the checkpoint and the newest snapshot are trusted, and rebuilt from the batches if torn or
missing. Otherwise none of them is: every batch is checked from the first, the log ends before the first one that is
damaged or out of place, and the rest is rebuilt. The reason: a checkpoint can survive a power loss that undid the
truncation before it, and an epoch cache that contradicts the log hides divergence. One snapshot is trusted always, that
of the segment in the log-start checkpoint: it is synced before the checkpoint, and no truncation removes batches below
the log start. A log that ends below its log start has lost more than the records to delete; it continues, empty, at its
log start. A log whose first segment is missing (at offset 0, or where the log-start checkpoint says that it begins) has
lost its beginning, as one whose deletion was cut short; all of it is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from images.broker.log.log_start_checkpoint import LogStart, read_log_start
from images.broker.log.segment import Segment, base_offset_of, segment_name
from images.broker.ports import Files


@dataclass(frozen=True, slots=True)
class LogRecovery:
    """Whether a log was closed cleanly, and what had to be repaired."""

    clean: bool
    """Whether it was closed cleanly, so that no batch had to be checked."""
    cut_bytes: int = 0
    """Bytes truncated at the end: torn or damaged batches, and all behind them."""
    cut_reason: str = ""
    epochs_rebuilt: bool = False
    """Whether the epoch cache had to be rebuilt from the batches."""
    producers_rebuilt: bool = False
    """Whether the producer table had to be rebuilt, at least in part, from the batches."""


class LeftOver(NamedTuple):
    """Segments below the base in the log-start checkpoint: a crash leaves them while the log start advances, or while
    the log begins anew."""

    first: int
    """Base offset of the first one."""
    end: int
    """End of the last one."""
    start: LogStart

    def detail(self) -> dict[str, object]:
        """For the trace."""
        return {"left_over": [self.first, self.end], "start_checkpoint": [self.start.offset, self.start.base]}


def delete_left_over(
    files: Files, directory: str, bases: Sequence[int], start: LogStart, index_interval: int
) -> LeftOver | None:
    """Delete the segments of `bases` below the base in the log-start checkpoint; None without one."""
    below = [base for base in bases if base < start.base]
    if not below:
        return None
    last = Segment.open(files, directory, below[-1], index_interval, below[-1])
    last.recover(lambda header: None, is_followed=False)
    last.close()
    for base in below:
        files.delete(f"{directory}/{segment_name(base)}")
    return LeftOver(below[0], last.end, start)


def first_segment(files: Files, directory: str) -> int:
    """The base offset of the first segment of a log, -1 without any."""
    return min((base for name in files.list(directory) if (base := base_offset_of(name)) is not None), default=-1)


def late_beginning(files: Files, directory: str) -> dict[str, object]:
    """For the trace: the first segment of a log where it is not that of offset 0, and the one that the log-start
    checkpoint names, -1 without a checkpoint. Raises OSError."""
    first = first_segment(files, directory)
    if first <= 0:
        return {}
    checkpoint = read_log_start(files, directory)
    return {"first_segment": [first, -1 if checkpoint is None else checkpoint.base]}


def holes(segments: Sequence[Segment]) -> dict[str, object]:
    """For the trace: where a segment does not begin at the end of the one before, both offsets."""
    found = [[one.end, other.base_offset] for one, other in pairwise(segments) if one.end != other.base_offset]
    return {"holes": found} if found else {}


def drop_segments(files: Files, directory: str, bases: Sequence[int], first: int) -> LogRecovery:
    """Delete all segments of a log that has lost its first one: the records are no prefix of any state it had."""
    dropped_bytes = 0
    for base in bases:
        path = f"{directory}/{segment_name(base)}"
        file = files.open(path)
        dropped_bytes += file.size()
        file.close()
        files.delete(path)
    reason = f"{segment_name(first)}, the first segment, is missing"
    return LogRecovery(False, dropped_bytes, reason, epochs_rebuilt=True, producers_rebuilt=True)
