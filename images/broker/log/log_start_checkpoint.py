"""The log-start checkpoint of a log.

    0
    <start offset> <base offset of the segment that holds it>

It exists only once the log start has advanced. Segments below the base are left from a removal that a crash
interrupted. The producer snapshot of the base, if there is one, replaces all removed batches.
"""

from __future__ import annotations

from errno import EIO
from typing import NamedTuple

from images.broker.ports import Files
from images.broker.runtime.files import read_whole, write_durably

LOG_START_CHECKPOINT = "log-start-checkpoint"


class LogStart(NamedTuple):
    """A log starts at `offset`, which is in the segment with base offset `base`, or is that base offset."""

    offset: int
    base: int


def write_log_start(files: Files, path: str, start: LogStart) -> None:
    """Write the checkpoint durably. Raises OSError."""
    write_durably(files, path, f"0\n{start.offset} {start.base}\n".encode())


def read_log_start(files: Files, path: str) -> LogStart | None:
    """Read the checkpoint; None without one. Raises OSError, also for a damaged file: a guessed log start would restore
    deleted records."""
    data = read_whole(files, path)
    if data is None:
        return None
    lines = data.decode("ascii", "replace").split("\n")
    numbers = lines[1].split(" ") if len(lines) == 3 and lines[0] == "0" and not lines[2] else []
    if len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
        raise OSError(EIO, "is damaged, so the log start is unknown", path)
    return LogStart(int(numbers[0]), int(numbers[1]))
