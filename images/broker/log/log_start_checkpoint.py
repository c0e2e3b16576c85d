"""Where a log starts, written down: the log-start checkpoint of one log's directory.

    0
    <start offset> <base offset of the segment that holds it>

It is there only once the start has been moved. Segments below the base are leftovers of a removal that a crash cut
short, and the producer snapshot of the base, if there is one, stands for all the batches that were removed.
"""

from __future__ import annotations

from errno import EIO
from typing import NamedTuple

from images.broker.ports import Files
from images.broker.runtime.files import read_whole, write_durably


class LogStart(NamedTuple):
    """A log starts at `offset`, which lies in the segment that begins at `base`, or is where that will begin."""

    offset: int
    base: int


def write_log_start(files: Files, path: str, start: LogStart) -> None:
    """On return it survives a power loss. Raises OSError."""
    write_durably(files, path, f"0\n{start.offset} {start.base}\n".encode())


def read_log_start(files: Files, path: str) -> LogStart | None:
    """What was written; None when nothing was. Raises OSError, also for a file that makes no sense: a log that guessed
    would show what was deleted."""
    data = read_whole(files, path)
    if data is None:
        return None
    lines = data.decode("ascii", "replace").split("\n")
    numbers = lines[1].split(" ") if len(lines) == 3 and lines[0] == "0" and not lines[2] else []
    if len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
        raise OSError(EIO, "does not tell where the log starts", path)
    return LogStart(int(numbers[0]), int(numbers[1]))
