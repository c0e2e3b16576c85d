"""The clock that the system's process sees, bent by libfaketime through a file it reads at every look at the clock.

libfaketime knows no rate that changes: what it shows is

    shown = start + offset + (now - start) * rate          start: when the process was started

for every clock of the process, the monotonic one included, whatever the file says at the time. To bend a clock from now
on the offset is therefore chosen so that the clock goes on from where it is. `Bend` is that arithmetic: where the clock
stood when it was last bent, and how fast it runs since. A frozen clock runs at FROZEN instead of 0, since libfaketime
divides by the rate; it gains a millisecond in ten seconds.

A clock stays as it is when the process ends, and goes on from there for the next one: it is the machine's. Evidence is
read back by asking the *witness*, a process that was started together with the system's and under the same library.
The two starts are some milliseconds apart, and rates apply to that difference too.

A clock that is turned back does go back: the jump is what the fault asks for. Apart from that it never does.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from images.base.agent.places import RUN, AgentError, keep, locked, read, replace, true_ns

FROZEN = 0.0001
WITNESS = "witness.socket"
LIBRARIES = tuple(
    f"/usr/lib/{place}faketime/libfaketime.so.1"
    for place in ("x86_64-linux-gnu/", "aarch64-linux-gnu/", "", "arm-linux-gnueabihf/")
)

_SETTING = "faketime"
_STATE = "clock.json"
_WITNESS_LIMIT_S = 3.0


@dataclass(frozen=True, slots=True)
class Bend:
    """A clock against true time: it was `offset_ns` ahead at `since_ns` and has run at `rate` since."""

    since_ns: int
    offset_ns: int = 0
    rate: float = 1.0
    before_ns: int | None = None
    """How far ahead it was before it was bent; None while it is not bent."""

    def offset_at(self, now_ns: int) -> int:
        """How far it is ahead at `now_ns`."""
        return self.offset_ns + round((now_ns - self.since_ns) * (self.rate - 1))

    def bent(self, now_ns: int, jump_ms: float, rate: float) -> Bend:
        """It jumps now and then runs at `rate`."""
        offset_ns = self.offset_at(now_ns)
        before_ns = offset_ns if self.before_ns is None else self.before_ns
        return Bend(now_ns, offset_ns + round(jump_ms * 1e6), max(rate, FROZEN), before_ns)

    def unbent(self, now_ns: int) -> Bend:
        """It runs true from now on and stays where it is."""
        return Bend(now_ns, self.offset_at(now_ns))

    def setting(self, start_ns: int) -> str:
        """What libfaketime is to read, in a process that was started at `start_ns`."""
        offset_ns = self.offset_ns + round((start_ns - self.since_ns) * (self.rate - 1))
        return f"{offset_ns / 1e9:+.9f} x{self.rate:.9g}\n"


def library() -> str | None:
    """Where libfaketime is; None when it is not installed."""
    return next((path for path in LIBRARIES if os.path.exists(path)), None)


def begin(start_ns: int) -> dict[str, str]:
    """The environment for a process started now, which goes on with the machine's clock. Raises AgentError."""
    path = library()
    if path is None:
        raise AgentError("libfaketime is not installed, so clocks cannot be bent")
    with locked("clock"):
        bend = _bend()
        keep(_STATE, {**asdict(bend), "start_ns": start_ns})
        replace(_SETTING, bend.setting(start_ns))
    for left in Path("/dev/shm").glob("*faketime_*"):  # of processes that were killed: their pids may come again
        left.unlink(missing_ok=True)
    return {
        "LD_PRELOAD": path,
        "FAKETIME_TIMESTAMP_FILE": str(RUN / _SETTING),
        "FAKETIME_NO_CACHE": "1",
    }


def change(jump_ms: float, rate: float) -> dict[str, Any]:
    """Jump by `jump_ms` and run at `rate` from now on; see `offset`."""
    with locked("clock"):
        _settle(_bend().bent(true_ns(), jump_ms, rate))
    return offset()


def reset() -> dict[str, Any]:
    """Run true from now on, without a step; `offset` as it was before."""
    with locked("clock"):
        seen = offset()
        _settle(_bend().unbent(true_ns()))
    return seen


def offset() -> dict[str, Any]:
    """`offset_ms`: how far the clock has come from where it was before it was bent, as the witness sees it.

    `read_back` is 0 when there is no witness, since no process runs; the offset is 0 then, too.
    """
    before_ns = _bend().before_ns
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_WITNESS_LIMIT_S)
            connection.connect(str(RUN / WITNESS))
            seen = json.loads(connection.makefile("rb").readline())
    except (OSError, ValueError):
        return {"offset_ms": 0.0, "read_back": 0}
    total_ns = seen["shown_ns"] - seen["true_ns"]
    return {"offset_ms": (total_ns - (total_ns if before_ns is None else before_ns)) / 1e6, "read_back": 1}


def _bend() -> Bend:
    kept = read(_STATE)
    if kept is None:
        return Bend(true_ns())
    kept.pop("start_ns")
    return Bend(**kept)


def _settle(bend: Bend) -> None:
    start_ns = (read(_STATE) or {}).get("start_ns", bend.since_ns)
    keep(_STATE, {**asdict(bend), "start_ns": start_ns})
    replace(_SETTING, bend.setting(start_ns))
