"""The log-start checkpoint of a log.

    1
    <start offset> <base offset of the segment that holds it> <leader epoch of the record before it, -1 if unknown>

It exists only once the log start has advanced. Segments below the base are left from a removal that a crash
interrupted. The producer snapshot of the base, if there is one, replaces all removed batches. Version 0, which earlier
releases wrote, has no epoch: it is read as unknown.
"""

from __future__ import annotations

import re
from errno import EIO
from typing import NamedTuple

from images.broker.log.leader_epochs import UNDEFINED
from images.broker.ports import Files
from images.broker.runtime.files import read_whole, write_durably

LOG_START_CHECKPOINT = "log-start-checkpoint"
_CONTENT = re.compile(r"(?:0|(?P<with_epoch>1))\n(?P<offset>\d+) (?P<base>\d+)(?(with_epoch) (?P<epoch>-1|\d+))\n")


class LogStart(NamedTuple):
    """A log starts at `offset`, which is in the segment with base offset `base`, or is that base offset."""

    offset: int
    base: int
    epoch: int
    """Of the record before `offset`, -1 if that is not known."""


def write_log_start(files: Files, directory: str, start: LogStart) -> None:
    """Write the checkpoint durably. Raises OSError."""
    text = f"1\n{start.offset} {start.base} {start.epoch}\n"
    write_durably(files, f"{directory}/{LOG_START_CHECKPOINT}", text.encode())


def read_log_start(files: Files, directory: str) -> LogStart | None:
    """Read the checkpoint; None without one. Raises OSError, also for a damaged file: a guessed log start would restore
    deleted records."""
    path = f"{directory}/{LOG_START_CHECKPOINT}"
    data = read_whole(files, path)
    if data is None:
        return None
    match = _CONTENT.fullmatch(data.decode("ascii", "replace"))
    if match is None:
        raise OSError(EIO, "is damaged, so the log start is unknown", path)
    offset, base, epoch = match["offset"], match["base"], match["epoch"]
    return LogStart(int(offset), int(base), UNDEFINED if epoch is None else int(epoch))
