"""The protocol trace of a real node: one line of JSON per event, written at once, so that a kill loses at most one
line.

This is the only module of the package that reads a clock other than the event loop's. A trace must give the true order
of events on all nodes, so it carries CLOCK_BOOTTIME, which all containers of a machine share. A clock fault preloads a
library in front of the C library's functions, which affects names looked up in the whole process; the function is
therefore looked up in the C library itself. Without glibc Python's own function is used. The simulation does not use
this module; its world records the trace itself.
"""

from __future__ import annotations

import ctypes
import time  # noqa: TID251  (see above)
from collections.abc import Callable
from json.encoder import c_make_encoder  # type: ignore[attr-defined]
from json.encoder import encode_basestring_ascii as quoted
from pathlib import Path
from types import TracebackType
from typing import Self

from images.trace import TraceEvent


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def boot_clock() -> Callable[[], int]:
    """A function that reads the machine's clock, in nanoseconds since boot, without any clock fault."""
    number = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    try:
        read = ctypes.CDLL("libc.so.6").clock_gettime
    except (OSError, AttributeError):
        return lambda: time.clock_gettime_ns(number)
    timespec = _Timespec()
    pointer = ctypes.byref(timespec)

    def now_ns() -> int:
        read(number, pointer)
        return int(timespec.seconds * 1_000_000_000 + timespec.nanoseconds)

    return now_ns


_chunks = c_make_encoder(None, dict, quoted, None, ":", ",", False, False, True)
"""The encoder that `JSONEncoder.encode` creates for each value; it writes any mapping like a dict."""


def _line(time_ns: int, event: TraceEvent) -> bytes:
    """One JSON object with all fields, as `json.dumps` would write it; there is a line for every batch and more."""
    members = ",".join(map(str, event.members))
    detail = "".join(_chunks(event.detail, 0)) if event.detail else "{}"
    return (
        f'{{"time_ns":{time_ns},"kind":{quoted(event.kind)},"topic":{quoted(event.topic)},'
        f'"partition":{event.partition},"leader":{event.leader},"leader_epoch":{event.leader_epoch},'
        f'"partition_epoch":{event.partition_epoch},"broker":{event.broker},"broker_epoch":{event.broker_epoch},'
        f'"offset":{event.offset},"log_end":{event.log_end},"high_watermark":{event.high_watermark},'
        f'"members":[{members}],"detail":{detail},"topic_id":{quoted(event.topic_id)}}}\n'
    ).encode()


class TraceFile:
    """Appends events to a file; `time_ns` is CLOCK_BOOTTIME (see above)."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._now_ns = boot_clock()

    def append(self, event: TraceEvent) -> None:
        """Append one event. Raises OSError."""
        line = _line(self._now_ns(), event)
        try:
            while line:  # a nearly full disk takes a part and refuses the rest
                line = line[self._file.write(line) :]
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._file.name) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()
