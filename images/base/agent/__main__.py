"""The command `faultline-node`; see the docstring of the package."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from images.base.agent import clock, disk, netem, network, process, serving
from images.base.agent.run_directory import AgentError, true_ns


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], dict[str, Any] | None] = options.command
    try:
        answer = command(options)
    except (AgentError, OSError, ValueError, KeyError) as error:
        message = f"{type(error).__name__} {error}" if isinstance(error, KeyError) else str(error)
        print(f"faultline-node: {' '.join(message.split())}", file=sys.stderr)
        return 1
    if answer is not None:
        print(json.dumps(answer))
    return 0


def describe() -> dict[str, Any]:
    """Features of the machine, each with the reason why it is unavailable, empty if available; and the true time."""
    return {
        "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "true_ns": true_ns(),
        "kernel": os.uname().release,
        "lacks": {
            "nftables": network.available(),
            "netem": netem.available(),
            "fuse": disk.unavailable_reason(),
            "libfaketime": "" if clock.library() else "libfaketime is not installed",
        },
    }


def prepare(request: Any) -> dict[str, Any]:
    """Write `files` (path → text), make `directories`, mount `disk` ([backing, mountpoint]); then `describe`."""
    for path, text in request.get("files", {}).items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)
    for path in request.get("directories", ()):
        Path(path).mkdir(parents=True, exist_ok=True)
    if "disk" in request:
        disk.mount(*request["disk"])
    return describe()


def power_off(keep: str, seed: int) -> dict[str, Any]:
    """Kill the process, then drop unsynced data of its disk, as far as `keep` says."""
    return {**process.kill(), **disk.send_command("power-loss", keep=keep, seed=seed)}


def wipe(directory: str) -> dict[str, Any]:
    """Kill the process, then delete everything below `directory` durably."""
    return {**process.kill(), **disk.wipe(directory)}


def remove() -> dict[str, Any]:
    """Undo everything the agent did, except for files: data, logs and traces stay. Raises the first failure, once all
    has been tried."""
    steps: Sequence[Callable[[], dict[str, Any] | None]] = (
        process.kill,
        clock.forget_killed,
        network.remove,
        disk.unmount,
    )
    answers, failures = [], []
    for step in steps:
        try:
            answers.append(step())
        except Exception as error:
            failures.append(error)
    if failures:
        raise failures[0]
    return answers[0] or {}


def idle() -> NoReturn:
    """Run as process 1 of a container: reap dead processes until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGINT, lambda *_: os._exit(0))
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    while True:
        signal.sigwaitinfo([signal.SIGCHLD])
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if not pid:
                break


def _collect(options: argparse.Namespace) -> None:
    from images.base.agent import node_archive  # which imports tarfile

    node_archive.collect(options.sources, sys.stdout.buffer)


def _request() -> Any:
    return json.loads(sys.stdin.buffer.read())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="faultline-node", description="Everything an environment does to a node.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(name: str, command: Callable[[argparse.Namespace], Any], does: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=does)
        added.set_defaults(command=command)
        return added

    add("describe", lambda _: describe(), "what the machine can do, and its true clock")
    add("prepare", lambda _: prepare(_request()), "files, directories and the disk that the JSON on stdin names")
    add("idle", lambda _: idle(), "be process 1 of a container")
    add("serve", lambda _: serving.serve(main), "carry out the commands that come on stdin, a line each")
    add("start", lambda _: process.start(_request()), "start the process that the JSON on stdin describes")
    stop = add("stop", lambda options: process.stop(options.limit), "SIGTERM, and wait")
    stop.add_argument("--limit", type=float, default=30.0, metavar="SECONDS", help="then SIGKILL")
    add("kill", lambda _: process.kill(), "SIGKILL, and wait")
    add("pause", lambda _: process.pause(), "SIGSTOP")
    add("resume", lambda _: process.resume(), "SIGCONT; for how long it was frozen and what waited")
    add("status", lambda _: process.status(), "whether the process runs, and how earlier ones ended")
    wait = add("wait", lambda options: process.wait(options.incarnation, options.limit), "return once it has ended")
    wait.add_argument("incarnation", type=int)
    wait.add_argument("--limit", type=float, default=20.0, metavar="SECONDS")
    add("network", lambda _: network.apply(_request()), "cut and degrade the links that the JSON on stdin names")
    add("counters", lambda _: network.counters(), "packets stopped so far, for each address")
    _add_clock(add("clock", lambda _: clock.offset(), "the clock of the process"))
    disk.add_commands(add("disk", lambda _: {}, "the lossy file system under the data"))
    off = add(
        "power-off", lambda options: power_off(options.keep, options.seed), "kill, and forget what was not synced"
    )
    off.add_argument("--keep", default="nothing", metavar="nothing|prefix|torn|everything")
    off.add_argument("--seed", type=int, default=0)
    wiped = add("wipe", lambda options: wipe(options.directory), "kill, and delete all below a directory")
    wiped.add_argument("directory")
    collect = add("collect", _collect, "a tar of what the node left, on stdout")
    collect.add_argument("sources", nargs="+", metavar="NAME=PATH")
    add("remove", lambda _: remove(), "end the process, take rules and mounts away")
    return parser


def _add_clock(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    commands.add_parser("read", help="how far it is off").set_defaults(command=lambda _: clock.offset())
    change = commands.add_parser("set", help="jump, and run at a rate from now on")
    change.add_argument("--jump-ms", type=float, default=0.0)
    change.add_argument("--rate", type=float, default=1.0)
    change.set_defaults(command=lambda options: _with_waits_restarted(clock.change(options.jump_ms, options.rate)))
    commands.add_parser("reset", help="run true again").set_defaults(
        command=lambda _: _with_waits_restarted(clock.reset())
    )


def _with_waits_restarted(answer: dict[str, Any]) -> dict[str, Any]:
    process.restart_waits()
    return answer


if __name__ == "__main__":
    sys.exit(main())
