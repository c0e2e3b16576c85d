"""The clean-shutdown marker of a log: a file that exists only from a clean close to the next open.

    0
    <log end offset> <base offset of the last segment> <bytes in it>

Opening the log deletes the marker first, so that it never covers later writes.
"""

from __future__ import annotations

from typing import NamedTuple

from images.broker.ports import Files
from images.broker.runtime.files import read_whole, write_durably

CLEAN_SHUTDOWN = "clean-shutdown"


class CleanShutdownMarker(NamedTuple):
    """The end of a log at its clean close."""

    end: int
    last_base: int
    """Base offset of the last segment."""
    last_size: int
    """Bytes in it."""


def write_clean_shutdown_marker(files: Files, directory: str, closed: CleanShutdownMarker) -> None:
    """Write the marker durably. The log must be durable before. Raises OSError."""
    state = f"0\n{closed.end} {closed.last_base} {closed.last_size}\n"
    write_durably(files, f"{directory}/{CLEAN_SHUTDOWN}", state.encode())


def take_clean_shutdown_marker(files: Files, directory: str) -> CleanShutdownMarker | None:
    """Read the marker and delete it durably; None without a marker, or if it is damaged. Raises OSError."""
    path = f"{directory}/{CLEAN_SHUTDOWN}"
    data = read_whole(files, path)
    if data is None:
        return None
    files.delete(path)
    files.sync_directory(directory)
    lines = data.decode("ascii", "replace").split("\n")
    numbers = lines[1].split(" ") if len(lines) == 3 and lines[0] == "0" and not lines[2] else []
    if len(numbers) != 3 or not all(number.isdecimal() for number in numbers):
        return None
    return CleanShutdownMarker(*map(int, numbers))
