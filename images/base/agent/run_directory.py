"""The run directory: state of the agent between two commands."""

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
"""Lost with the machine's power, as it should be."""


class AgentError(Exception):
    """A command cannot be carried out; one line."""


def true_ns() -> int:
    """True time (see the package's docstring)."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def read(name: str) -> Any:
    """The value stored under this name; None if there is none."""
    try:
        return json.loads((RUN / name).read_bytes())
    except FileNotFoundError:
        return None


def keep(name: str, value: Any) -> None:
    """Store a JSON value under this name; a reader sees the old or the new one."""
    replace(name, json.dumps(value))


def replace(name: str, text: str) -> None:
    """Replace the content of the file by `text`; a reader sees the old or the new one."""
    RUN.mkdir(parents=True, exist_ok=True)
    temporary = RUN / f"{name}.{os.getpid()}"
    temporary.write_text(text)
    temporary.replace(RUN / name)


@contextmanager
def locked(name: str) -> Iterator[int]:
    """A lock around one command at a time. The kernel releases it with its holder.

    Yields the descriptor of the lock: a process forked inside that outlives the command must close it.
    """
    RUN.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(RUN / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)
