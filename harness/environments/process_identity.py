"""Identity of a process, unique among all processes ever started, for marking the things that it creates.

An owner is written as `boot/pid/start`: the boot of its machine, its number, and when it started in ticks since the
boot, because numbers are used again.
"""

from __future__ import annotations

import os
from pathlib import Path

_PROC = Path("/proc")


def this_process() -> str:
    """This process as an owner."""
    return f"{_boot()}/{os.getpid()}/{_start(os.getpid())}"


def still_runs(owner: str) -> bool:
    """Whether the owner is a process of this machine that still runs. False for a process of another machine."""
    boot, _, rest = owner.partition("/")
    pid, _, start = rest.partition("/")
    return boot == _boot() and pid.isdigit() and start != "" and _start(int(pid)) == start


def _boot() -> str:
    return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _start(pid: int) -> str:
    """Empty when there is no such process, or only what is left of it until its parent notices."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # The second field is the program's name in parentheses and may hold anything, also spaces and parentheses.
    values = stat.rpartition(")")[2].split()
    return "" if values[0] in "ZX" else values[19]
