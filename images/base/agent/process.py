"""The process of the system under test: started under a supervisor, signalled as one group, its exit
recorded.

The supervisor is a process of its own, detached from the caller of `start`; it gives up every privilege
(`privileges.py`), starts the system in a process group of its own, appends its output to the log, and records how it
exited. An exit is *expected* if a command of the agent caused it, otherwise it is a crash, as one with an error after
SIGTERM is. A machine runs one such process at a time; each start is an incarnation, counted from 1.

Signals go to the whole group, so that a start script dies, freezes and wakes with the processes it started.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

from images.base.agent import clock, privileges
from images.base.agent.run_directory import RUN, AgentError, keep, locked, read, true_ns

_EXITS = "exits.jsonl"
_PROCESS = "process.json"
_PAUSED = "paused.json"
_ASKED = "expected-end"
_POLL_S = 0.005
_SIGNAL_LIMIT_S = 60.0
_LOG_TAIL_BYTES = 4096
_STOPPED = (0, -signal.SIGTERM, 128 + signal.SIGTERM)
"""Exit statuses of a process that SIGTERM has stopped: by itself, by the default action, as a Java machine does."""


@dataclass(frozen=True, slots=True)
class Incarnation:
    """The process of one incarnation, running or exited."""

    pid: int
    """Also the id of its process group."""
    ticks: int
    """Start time by the kernel: pid and start time identify the process for good."""
    incarnation: int
    started_ns: int

    @property
    def alive(self) -> bool:
        """Whether it runs; a stopped process does, a zombie does not."""
        state, _, ticks = _stat(self.pid)
        return ticks == self.ticks and state not in ("Z", "X")

    @property
    def held(self) -> bool:
        """Whether it executes no instruction of its own once SIGSTOP was sent.

        It is stopped, or waits in the kernel and will stop before it returns from there. A parent in vfork waits like
        that for a child which is itself stopped, and is never seen as stopped.
        """
        return self.alive and _stat(self.pid)[0] in ("T", "t", "D")


def current() -> Incarnation | None:
    """The latest incarnation."""
    kept = read(_PROCESS)
    return Incarnation(**kept) if kept else None


def exits() -> list[dict[str, Any]]:
    """Exit records of all incarnations: incarnation, pid, status, expected, time_ns, error (the log's last lines)."""
    try:
        lines = (RUN / _EXITS).read_bytes().splitlines()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines]


# ---- commands --------------------------------------------------------------------------------------------------------


def start(request: Mapping[str, Any]) -> dict[str, Any]:
    """Start `argv` with `environment` added to the agent's, in `directory`, with output to the file `log`.

    With `bend_clock` the process runs under libfaketime. No effect if the last incarnation still runs.
    """
    with locked("process") as lock:
        last = current()
        if last is not None:
            if last.alive:
                return {"pid": last.pid, "incarnation": last.incarnation, "started": False}
            _wait_until(lambda: bool(_exit_record(last.incarnation)), "the last process's end was not recorded")
        incarnation = last.incarnation + 1 if last else 1
        (RUN / _PAUSED).unlink(missing_ok=True)
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.close(reader)
            os.close(lock)
            _become_supervisor(request, incarnation, writer)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            reply: dict[str, Any] = json.loads(pipe.read() or b'{"error": "the supervisor ended at once"}')
    if "error" in reply:
        raise AgentError(reply["error"])
    return {**reply, "started": True}


def stop(limit_s: float) -> dict[str, Any]:
    """SIGTERM, then wait; SIGKILL if it has not exited after `limit_s`. `stopped` is 1 if it exited without an error.

    Of a paused process also what `resume` would have answered.
    """
    running = _expect_end("stop")
    if running is None:
        return {"stopped": 0, "killed": 0}
    pause = _end_pause(running)
    with suppress(ProcessLookupError):
        os.kill(running.pid, signal.SIGTERM)
    _signal_group(running, signal.SIGCONT)
    try:
        _wait_until(lambda: bool(_exit_record(running.incarnation)), "", limit_s)
    except AgentError:
        _expect_end("kill")
        _kill(running)
        return {"stopped": 0, "killed": 1, **pause}
    status = _exit_record(running.incarnation)["status"]
    return {"stopped": int(status in _STOPPED), "killed": 0, "status": status, **pause}


def kill() -> dict[str, Any]:
    """SIGKILL, then wait. `killed` is 1 if it ran. Of a paused process also what `resume` would have answered."""
    running = _expect_end("kill")
    if running is None:
        return {"killed": 0}
    pause = _end_pause(running)
    _kill(running)
    return {"killed": 1, **pause}


def pause() -> dict[str, Any]:
    """SIGSTOP to every process of the group; returns once it is held."""
    running = current()
    if running is None or not running.alive:
        return {"paused": 0}
    if not _paused(running):
        keep(_PAUSED, {"incarnation": running.incarnation, "since_ns": true_ns()})
        try:
            _stop_group(running)
        except AgentError:
            _signal_group(running, signal.SIGCONT)
            (RUN / _PAUSED).unlink(missing_ok=True)
            raise
    return {"paused": 1}


def resume() -> dict[str, Any]:
    """SIGCONT. `frozen_seconds`; `missed`: connections with unread data or waiting to be accepted by then."""
    running = current()
    pause = {} if running is None or not running.alive else _end_pause(running)
    if running is None or not pause:
        return {"frozen_seconds": 0.0, "missed": 0, "missed_bytes": 0}
    _signal_group(running, signal.SIGCONT)
    return pause


def restart_waits() -> None:
    """Stop and continue the process: its waits end early and start again with the current clock (signal(7))."""
    running = current()
    if running is not None and running.alive and not _paused(running):
        try:
            _stop_group(running)
        finally:
            _signal_group(running, signal.SIGCONT)


def status() -> dict[str, Any]:
    """State of the last incarnation, and exit records of all."""
    running = current()
    return {
        "alive": running is not None and running.alive,
        "incarnation": running.incarnation if running else 0,
        "pid": running.pid if running else 0,
        "paused": running is not None and _paused(running),
        "exits": exits(),
        "true_ns": true_ns(),
    }


def wait(incarnation: int, limit_s: float) -> dict[str, Any]:
    """Wait for the exit of this incarnation; `ended` is None if it has not exited after `limit_s`.

    None at once if the incarnation is unknown, because the agent's state was removed. An empty line comes first, to
    show that the wait has begun.
    """
    print(flush=True)
    try:
        _wait_until(lambda: bool(_exit_record(incarnation)) or current() is None, "", limit_s, 0.1)
    except AgentError:
        return {"ended": None}
    return {"ended": _exit_record(incarnation) or None}


# ---- inside ----------------------------------------------------------------------------------------------------------


def _become_supervisor(request: Mapping[str, Any], incarnation: int, writer: int) -> NoReturn:
    """Leave the caller's session and its privileges, start the process, report it through `writer`, and stay until it
    exits."""
    os.setsid()
    if os.fork():
        os._exit(0)
    status = 1
    try:
        log = open(request["log"], "ab", buffering=0)
        null_device = os.open(os.devnull, os.O_RDWR)
        for descriptor, target in ((null_device, 0), (null_device, 1), (log.fileno(), 2)):
            os.dup2(descriptor, target)
        privileges.drop()
        _supervise(request, incarnation, writer, log)
        status = 0
    except (OSError, AgentError) as error:
        os.write(writer, json.dumps({"error": f"{request['argv'][0]} cannot be started: {error}"}).encode())
    finally:
        os._exit(status)


def _supervise(request: Mapping[str, Any], incarnation: int, writer: int, log: Any) -> None:
    bend = request.get("bend_clock", False)
    started_ns = true_ns()
    environment = {**os.environ, **request.get("environment", {}), **(clock.environment(started_ns) if bend else {})}
    process = subprocess.Popen(
        request["argv"],
        cwd=request.get("directory", "/"),
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    clock_reader = None
    try:
        clock_reader = _start_clock_reader(environment) if bend else None
        keep(_PROCESS, asdict(Incarnation(process.pid, _stat(process.pid)[2], incarnation, started_ns)))
    except OSError:  # of processes without a record nobody would ever know
        os.killpg(process.pid, signal.SIGKILL)
        if clock_reader is not None:
            clock_reader.kill()
        raise
    os.write(writer, json.dumps({"pid": process.pid, "incarnation": incarnation}).encode())
    os.close(writer)
    exit_status = process.wait()
    if clock_reader is not None:
        clock_reader.kill()
        clock_reader.wait()
    asked = read(f"{_ASKED}.{incarnation}")
    expected = asked == "kill" or (asked == "stop" and exit_status in _STOPPED)
    record = {
        "incarnation": incarnation,
        "pid": process.pid,
        "status": exit_status,
        "expected": expected,
        "time_ns": true_ns(),
        "error": "" if expected else _tail(request["log"]),
    }
    with open(RUN / _EXITS, "ab", buffering=0) as file:
        file.write(json.dumps(record).encode() + b"\n")


def _start_clock_reader(environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a process under the same clock as the system's, from which that clock is read."""
    return subprocess.Popen(
        [sys.executable, "-S", str(Path(__file__).with_name("clock_reader.py")), str(RUN / clock.CLOCK_READER)],
        env=environment,
        start_new_session=True,
    )


def _expect_end(asked: Literal["stop", "kill"]) -> Incarnation | None:
    """The running process, of which such an exit is expected from now on; None if none runs."""
    running = current()
    if running is None or not running.alive:
        return None
    keep(f"{_ASKED}.{running.incarnation}", asked)
    return running


def _paused(running: Incarnation) -> bool:
    paused = read(_PAUSED)
    return paused is not None and paused["incarnation"] == running.incarnation and running.held


def _end_pause(running: Incarnation) -> dict[str, Any]:
    """How long the process was paused and what waited for it, with `unknown_missed` where that cannot be read; nothing
    if it was not paused. From now on it is not."""
    paused = read(_PAUSED)
    (RUN / _PAUSED).unlink(missing_ok=True)
    if paused is None or paused["incarnation"] != running.incarnation:
        return {}
    frozen_seconds = (true_ns() - paused["since_ns"]) / 1e9
    try:
        missed, missed_bytes = _unread_sockets(running.pid)
    except OSError:  # no reason to leave the process frozen
        return {"frozen_seconds": frozen_seconds, "missed": 0, "missed_bytes": 0, "unknown_missed": 1}
    return {"frozen_seconds": frozen_seconds, "missed": missed, "missed_bytes": missed_bytes}


def _signal_group(running: Incarnation, number: signal.Signals) -> None:
    """Signal every process of the group; no group is left if they have ended since they were looked at."""
    with suppress(ProcessLookupError):
        os.killpg(running.pid, number)


def _stop_group(running: Incarnation) -> None:
    _signal_group(running, signal.SIGSTOP)
    _wait_until(lambda: running.held or not running.alive, "SIGSTOP does not hold the process")


def _kill(running: Incarnation) -> None:
    _signal_group(running, signal.SIGKILL)
    _wait_until(lambda: bool(_exit_record(running.incarnation)), "the process was killed and its end not recorded")


def _exit_record(incarnation: int) -> dict[str, Any]:
    return next((record for record in exits() if record["incarnation"] == incarnation), {})


def _wait_until(
    condition: Callable[[], bool], message: str, limit_s: float = _SIGNAL_LIMIT_S, poll_s: float = _POLL_S
) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() >= deadline_s:
            raise AgentError(message)
        time.sleep(poll_s)


def _stat(pid: int) -> tuple[str, int, int]:
    """State, process group and start time in ticks; state X if there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "X", 0, -1
    return fields[0], int(fields[2]), int(fields[19])


def _tail(path: str) -> str:
    with open(path, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
        return file.read().decode(errors="replace").strip()


def _group(leader: int) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _stat(int(entry.name))[1] == leader:
            yield int(entry.name)


def _unread_sockets(leader: int) -> tuple[int, int]:
    """TCP sockets of the process group with something in their receive queue, and the bytes there.

    The queue of a listening socket counts the connections that wait to be accepted.
    """
    owned = {inode for pid in _group(leader) for inode in _sockets(pid)}
    connections = unread = 0
    for line in _tcp_lines(("/proc/net/tcp", "/proc/net/tcp6")):
        queued = int(line[4].partition(":")[2], 16)
        if queued and line[9] in owned:
            listening = line[3] == "0A"
            connections += queued if listening else 1
            unread += 0 if listening else queued
    return connections, unread


def _tcp_lines(paths: Sequence[str]) -> Iterator[list[str]]:
    for path in paths:
        try:
            lines = Path(path).read_text().splitlines()[1:]
        except FileNotFoundError:
            continue
        yield from (line.split() for line in lines)


def _sockets(pid: int) -> Iterator[str]:
    try:
        descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
    except (FileNotFoundError, PermissionError):
        return
    for descriptor in descriptors:
        try:
            target = os.readlink(descriptor)
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            yield target[len("socket:[") : -1]
