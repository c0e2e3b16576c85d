"""The protocol trace of a real node: one JSON object a line, written at once, so that a kill loses a line at most.

This is the one place in the package that reads a clock which is not the event loop's: a trace carries the wall clock,
so that the traces of several nodes can be laid beside each other. It is never part of a simulation, whose world keeps
the trace itself.
"""

from __future__ import annotations

import json
import time  # noqa: TID251  (see above)
from pathlib import Path
from types import TracebackType
from typing import Self

from images.broker.trace import TraceEvent


class TraceFile:
    """Appends events to a file; `time_ns` is the wall clock in nanoseconds since 1970."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def append(self, event: TraceEvent) -> None:
        """Write one event. Raises OSError."""
        row = {"time_ns": time.time_ns()} | event._asdict()
        line = json.dumps(row, separators=(",", ":"), default=dict).encode() + b"\n"
        try:
            while line:  # a nearly full disk takes a part and refuses the rest
                line = line[self._file.write(line) :]
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._file.name) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()
