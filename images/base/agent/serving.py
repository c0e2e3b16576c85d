"""Many commands in one process: `faultline-node serve`.

Every line on stdin is a request, `{"id": 7, "argv": ["network"], "stdin": "{…}"}`; every line on stdout is an answer,
`{"id": 7, "status": 0, "out": "{…}\\n", "err": ""}`, in the order in which commands end. The first line is empty: the
process is there. Each command runs in a child of its own, so that several may be under way; to start one takes a fork,
and no new Python with all its modules. Once stdin has ended this process ends, and commands under way go on.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

_CHUNK = 1 << 16
_DESCRIPTORS = 1 << 16
"""More than this process ever has."""


@dataclass(frozen=True, slots=True)
class _Command:
    """A command under way, and the files that take its output."""

    number: int
    out: int
    err: int

    def answer(self, status: int) -> bytes:
        """The line that answers the request, once the command has ended."""
        text = {"id": self.number, "status": status, "out": _contents(self.out), "err": _contents(self.err)}
        return json.dumps(text).encode() + b"\n"


def serve(carry_out: Callable[[Sequence[str]], int]) -> None:
    """Answer requests until stdin ends; `carry_out` runs a command, with output on stdout, and gives its status."""
    ended, child_ended = os.pipe()
    os.set_blocking(child_ended, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(child_ended, warn_on_full_buffer=False)
    under_way: dict[int, _Command] = {}
    _write(b"\n")
    unread = b""
    while True:
        readable, _, _ = select.select([0, ended], [], [])
        if ended in readable:
            os.read(ended, _CHUNK)
            for pid, status in _ended_children():
                _write(under_way.pop(pid).answer(status))
        if 0 in readable:
            chunk = os.read(0, _CHUNK)
            if not chunk:
                return
            *lines, unread = (unread + chunk).split(b"\n")
            for request in map(json.loads, lines):
                pid, command = _begin(request, carry_out)
                under_way[pid] = command


def _begin(request: dict[str, Any], carry_out: Callable[[Sequence[str]], int]) -> tuple[int, _Command]:
    standard = [os.memfd_create(name) for name in ("stdin", "stdout", "stderr")]
    with os.fdopen(os.dup(standard[0]), "wb") as file:
        file.write(request["stdin"].encode())
    os.lseek(standard[0], 0, os.SEEK_SET)
    pid = os.fork()
    if not pid:
        _become_command(standard, request["argv"], carry_out)
    os.close(standard[0])
    return pid, _Command(request["id"], *standard[1:])


def _become_command(
    standard: Sequence[int], arguments: Sequence[str], carry_out: Callable[[Sequence[str]], int]
) -> NoReturn:
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor, target in zip(standard, (0, 1, 2), strict=True):
            os.dup2(descriptor, target)
        os.closerange(3, _DESCRIPTORS)
        status = carry_out(arguments)
    except SystemExit as refused:
        status = refused.code if isinstance(refused.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _ended_children() -> Iterator[tuple[int, int]]:
    """Process ids with exit statuses, below 0 for the signal that ended the child."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        yield pid, os.waitstatus_to_exitcode(status)


def _contents(descriptor: int) -> str:
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)
        return file.read().decode(errors="replace")


def _write(line: bytes) -> None:
    unwritten = memoryview(line)
    while unwritten:
        unwritten = unwritten[os.write(1, unwritten) :]
