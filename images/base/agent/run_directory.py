"""Where the agent keeps what it knows between two commands, and how it writes it."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

RUN = Path(os.environ.get("FAULTLINE_RUN", "/run/faultline"))
"""Gone with the machine's power, as all of it should be."""


class AgentError(Exception):
    """What was asked for cannot be done; one line."""


def true_ns() -> int:
    """True time (see the package's docstring)."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def read(name: str) -> Any:
    """What was kept under this name; None when nothing was."""
    try:
        return json.loads((RUN / name).read_bytes())
    except FileNotFoundError:
        return None


def keep(name: str, value: Any) -> None:
    """Keep a JSON value under this name; a reader sees the old or the new one."""
    replace(name, json.dumps(value))


def replace(name: str, text: str) -> None:
    """Make the file hold `text`; a reader sees the old or the new one."""
    RUN.mkdir(parents=True, exist_ok=True)
    temporary = RUN / f"{name}.{os.getpid()}"
    temporary.write_text(text)
    temporary.replace(RUN / name)


@contextmanager
def locked(name: str) -> Iterator[int]:
    """One command at a time in here. The lock is the kernel's and goes with whoever held it.

    Gives the descriptor that holds it: who is forked in here and is to live on must close it.
    """
    RUN.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(RUN / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)
