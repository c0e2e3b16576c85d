"""That a log was closed cleanly, written down: a file in its directory, there only until the next open.

    0
    <log end offset> <base offset of the last segment> <bytes in it>

Whoever opens the log takes it away before anything else, so that it never vouches for what was written since.
"""

from __future__ import annotations

from typing import NamedTuple

from images.broker.ports import Files
from images.broker.runtime.files import read_whole, write_durably

CLEAN_SHUTDOWN = "clean-shutdown"


class CleanShutdownMarker(NamedTuple):
    """A log as it was closed."""

    end: int
    last_base: int
    """Base offset of the last segment."""
    last_size: int
    """Bytes in it."""


def write_clean_shutdown_marker(files: Files, directory: str, closed: CleanShutdownMarker) -> None:
    """On return it survives a power loss, as must all that it vouches for. Raises OSError."""
    state = f"0\n{closed.end} {closed.last_base} {closed.last_size}\n"
    write_durably(files, f"{directory}/{CLEAN_SHUTDOWN}", state.encode())


def take_clean_shutdown_marker(files: Files, directory: str) -> CleanShutdownMarker | None:
    """What a clean close left behind, taken away for good; None when there is nothing, or nothing that makes sense.
    Raises OSError."""
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
