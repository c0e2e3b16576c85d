"""The clock that the system's process sees, bent by libfaketime through a file it reads at every look at the clock.

libfaketime knows no rate that changes: what it shows is

    shown = start + offset + (now - start) * rate          start: when the process was started

for every clock of the process, the monotonic one included, whatever the file says at the time. To bend a clock from now
on the offset is therefore chosen so that the clock goes on from where it is. `ClockSkew` is that arithmetic: where the
clock stood when it was last bent, and how fast it runs since. A frozen clock runs at FROZEN instead of 0, since
libfaketime divides by the rate; it gains a millisecond in ten seconds.

A clock stays as it is when the process ends, and goes on from there for the next one: it is the machine's. Evidence is
read back by asking the *clock reader*, a process that was started together with the system's and under the same
library. The two starts are some milliseconds apart, and rates apply to that difference too.

A clock that is turned back does go back: the jump is what the fault asks for. Apart from that it never does.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from images.base.agent.run_directory import RUN, AgentError, keep, locked, read, replace, true_ns

FROZEN = 0.0001
CLOCK_READER = "clock-reader.socket"
LIBRARIES = tuple(
    f"/usr/lib/{place}faketime/libfaketime.so.1"
    for place in ("x86_64-linux-gnu/", "aarch64-linux-gnu/", "", "arm-linux-gnueabihf/")
)

_SETTING = "faketime"
_STATE = "clock.json"
_CLOCK_READER_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True)
class ClockSkew:
    """Offset of a clock from true time: `offset_ns` ahead at `since_ns`, running at `rate` since then."""

    since_ns: int
    offset_ns: int = 0
    rate: float = 1.0
    before_ns: int | None = None
    """Offset before the fault; None without a clock fault."""

    def offset_at(self, now_ns: int) -> int:
        """Offset at `now_ns`."""
        return self.offset_ns + round((now_ns - self.since_ns) * (self.rate - 1))

    def skewed(self, now_ns: int, jump_ms: float, rate: float) -> ClockSkew:
        """The clock jumps now and then runs at `rate`."""
        offset_ns = self.offset_at(now_ns)
        before_ns = offset_ns if self.before_ns is None else self.before_ns
        return ClockSkew(now_ns, offset_ns + round(jump_ms * 1e6), max(rate, FROZEN), before_ns)

    def steadied(self, now_ns: int) -> ClockSkew:
        """The clock runs at the true rate from now on and keeps its offset."""
        return ClockSkew(now_ns, self.offset_at(now_ns))

    def setting(self, start_ns: int) -> str:
        """The setting that libfaketime reads, in a process that was started at `start_ns`."""
        offset_ns = self.offset_ns + round((start_ns - self.since_ns) * (self.rate - 1))
        return f"{offset_ns / 1e9:+.9f} x{self.rate:.9g}\n"


def library() -> str | None:
    """Path of libfaketime; None if it is not installed."""
    return next((path for path in LIBRARIES if os.path.exists(path)), None)


def environment(start_ns: int) -> dict[str, str]:
    """The environment for a process started now, which continues the machine's clock. Raises AgentError."""
    path = library()
    if path is None:
        raise AgentError("libfaketime is not installed, so clocks cannot be bent")
    with locked("clock"):
        skew = _current_skew()
        keep(_STATE, {**asdict(skew), "start_ns": start_ns})
        replace(_SETTING, skew.setting(start_ns))
    forget_killed()
    return {
        "LD_PRELOAD": path,
        "FAKETIME_TIMESTAMP_FILE": str(RUN / _SETTING),
        "FAKETIME_NO_CACHE": "1",
    }


def forget_killed() -> None:
    """Remove the shared memory that libfaketime leaves of processes that were killed: their pids may come again."""
    for left in Path("/dev/shm").glob("*faketime_*"):
        pid = left.name.rpartition("_")[2]
        if not os.path.exists(f"/proc/{pid}"):
            left.unlink(missing_ok=True)


def change(jump_ms: float, rate: float) -> dict[str, Any]:
    """Jump by `jump_ms` and run at `rate` from now on; returns `offset`."""
    with locked("clock"):
        _store(_current_skew().skewed(true_ns(), jump_ms, rate))
    return offset()


def reset() -> dict[str, Any]:
    """Run at the true rate from now on, without a step; returns `offset` before that."""
    with locked("clock"):
        reading = offset()
        _store(_current_skew().steadied(true_ns()))
    return reading


def offset() -> dict[str, Any]:
    """`offset_ms`: how far the clock has come from where it was before it was bent, as the clock reader sees it.

    `read_back` is 0 when there is no clock reader, since no process runs; the offset is 0 then, too.
    """
    before_ns = _current_skew().before_ns
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_CLOCK_READER_LIMIT_S)
            connection.connect(str(RUN / CLOCK_READER))
            reading = json.loads(connection.makefile("rb").readline())
    except (OSError, ValueError):
        return {"offset_ms": 0.0, "read_back": 0}
    total_ns = reading["shown_ns"] - reading["true_ns"]
    return {"offset_ms": (total_ns - (total_ns if before_ns is None else before_ns)) / 1e6, "read_back": 1}


def _current_skew() -> ClockSkew:
    stored = read(_STATE)
    if stored is None:
        return ClockSkew(true_ns())
    stored.pop("start_ns")
    return ClockSkew(**stored)


def _store(skew: ClockSkew) -> None:
    start_ns = (read(_STATE) or {}).get("start_ns", skew.since_ns)
    keep(_STATE, {**asdict(skew), "start_ns": start_ns})
    replace(_SETTING, skew.setting(start_ns))
