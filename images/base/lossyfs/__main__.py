"""`python -m images.base.lossyfs`: mount, unmount, and what happens to the disk. Answers are JSON, errors one line.

Exit codes: 0 done, 1 not done, 64 bad usage.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from tempfile import TemporaryFile
from typing import Any, NoReturn

from images.base.lossyfs.control import ControlError, call
from images.base.lossyfs.damage import ERRORS, OperationKind
from images.base.lossyfs.mounting import MountError, MountOptions, mounts, serve, start, unmount
from images.base.lossyfs.survival import Survival

DEFAULT_CONTROL = "/run/lossyfs.control"


class _LossyfsParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(64, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    parsed = _parser().parse_args(arguments)
    try:
        answer = _carry_out(parsed)
    except (MountError, ControlError) as error:
        print(f"lossyfs: {error}{_dead_mounts()}", file=sys.stderr)
        return 1
    if answer is not None:
        print(json.dumps(answer))
    return 0


def _carry_out(parsed: argparse.Namespace) -> object:
    command, control = parsed.command, parsed.control
    if command == "mount":
        return _mount(parsed)
    if command == "unmount":
        unmount(parsed.mountpoint, lazy=parsed.lazy)
        return None
    if command == "mounts":
        return [asdict(mount) for mount in mounts()]
    parameters: dict[str, Any] = {}
    if command == "power-loss":
        parameters = {"keep": parsed.keep, "seed": parsed.seed}
    elif command in ("lie", "damage"):
        parameters = {"on": parsed.state == "on"}
    elif command == "slow":
        parameters = {"ms": parsed.ms, "on": parsed.on}
    elif command == "fail":
        error = None if parsed.error == "off" else parsed.error
        parameters = {"error": error, "after": parsed.after, "path": parsed.path, "on": parsed.on}
    return call(control, command, **parameters)


def _mount(parsed: argparse.Namespace) -> object:
    options = MountOptions(
        parsed.backing, parsed.mountpoint, parsed.control, parsed.strict_names, parsed.cached, parsed.through
    )
    if parsed.foreground:
        serve(options)
        return None
    with open(parsed.log, "a+b") if parsed.log else TemporaryFile() as log:
        pid = start(options, log)
    return {"mountpoint": os.path.abspath(parsed.mountpoint), "control": os.path.abspath(parsed.control), "pid": pid}


def _dead_mounts() -> str:
    dead = [mount.mountpoint for mount in mounts() if not mount.alive]
    return "".join(f"; {mountpoint} is the mount of a dead daemon: fusermount3 -u {mountpoint}" for mountpoint in dead)


def _parser() -> argparse.ArgumentParser:
    parser = _LossyfsParser(prog="lossyfs", description="A file system that forgets what was not synced.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.add_argument(
            "--control",
            default=os.environ.get("LOSSYFS_CONTROL", DEFAULT_CONTROL),
            help="the file system's socket (LOSSYFS_CONTROL, else %(default)s)",
        )
        return added

    mount = command("mount", "show BACKING at MOUNTPOINT; returns once programs can use it")
    mount.add_argument("backing", metavar="BACKING", help="an existing directory; what it holds counts as durable")
    mount.add_argument("mountpoint", metavar="MOUNTPOINT", help="an existing directory")
    mount.add_argument("--strict-names", action="store_true", help="only fsync of a directory makes names durable")
    mount.add_argument("--cached", action="store_true", help="any descriptor can be mapped shared; slower appends")
    mount.add_argument("--through", action="store_true", help="fsync syncs the backing file as well")
    mount.add_argument("--foreground", action="store_true", help="be the daemon; returns once unmounted")
    mount.add_argument("--log", metavar="FILE", help="what the daemon has to say is appended there")
    unmounting = command("unmount", "unmount; everything written is kept")
    unmounting.add_argument("mountpoint", metavar="MOUNTPOINT")
    unmounting.add_argument("--lazy", action="store_true", help="also while programs use it")
    command("mounts", "the lossy file systems mounted here, and whether their daemons live")
    loss = command("power-loss", "drop what is not synced; the programs should have been killed before")
    loss.add_argument("--keep", choices=[keep.value for keep in Survival], default=Survival.NOTHING.value)
    loss.add_argument("--seed", type=int, default=0, help="draws what is kept (default: 0)")
    for name, text in (
        ("lie", "acknowledge syncs without keeping anything"),
        ("damage", "off: no damage acts until it is on again"),
    ):
        command(name, text).add_argument("state", choices=["on", "off"])
    slow = command("slow", "delay every operation, one after the other; 0 ends it")
    slow.add_argument("ms", metavar="MS", type=float)
    fail = command("fail", "make operations fail")
    fail.add_argument("error", choices=[*ERRORS, "off"])
    fail.add_argument("--after", metavar="BYTES", type=int, default=0, help="let that many through first")
    fail.add_argument("--path", metavar="GLOB", help="only these files, e.g. '*.log'")
    for damaging in (slow, fail):
        damaging.add_argument(
            "--on", nargs="+", choices=[kind.value for kind in OperationKind], default=[], metavar="KIND"
        )
    command("heal", "no lies, not slow, nothing fails")
    command("report", "unsynced data, requested damage, how often it took effect")
    return parser


if __name__ == "__main__":
    sys.exit(main())
