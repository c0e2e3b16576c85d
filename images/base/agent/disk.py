"""The lossy file system under the system's data: mounted once a machine, asked over its control socket.

    faultline-node disk mount BACKING MOUNTPOINT
    faultline-node disk control '{"command": "power-loss", "keep": "torn", "seed": 7}'
    faultline-node disk unmount

`images.base.lossyfs.control` lists the commands. The file system is imported by the functions that use it: commands of
the agent that do not, which are most, start in two thirds of the time.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from images.base.agent.run_directory import RUN, AgentError

CONTROL = "disk.socket"
_LOG = "disk.log"


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Add the commands of `disk`."""
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    mounts = commands.add_parser("mount", help="show BACKING at MOUNTPOINT, both made when missing")
    mounts.add_argument("backing")
    mounts.add_argument("mountpoint")
    mounts.set_defaults(command=lambda options: mount(options.backing, options.mountpoint))
    controls = commands.add_parser("control", help="one command to the mounted file system, as JSON")
    controls.add_argument("request", type=json.loads)
    controls.set_defaults(command=lambda options: send_command(**options.request))
    commands.add_parser("unmount", help="whatever still uses it").set_defaults(command=lambda _: unmount())


def mount(backing: str, mountpoint: str) -> dict[str, Any]:
    """Mount the lossy file system; it is usable on return. Raises AgentError with the file system's message."""
    from images.base.lossyfs import mounting

    for directory in (str(RUN), backing, mountpoint):
        os.makedirs(directory, exist_ok=True)
    try:
        with open(RUN / _LOG, "a+b") as log:
            pid = mounting.start(mounting.MountOptions(backing, mountpoint, str(RUN / CONTROL)), log)
    except mounting.MountError as error:
        raise AgentError(f"the lossy file system: {error}") from None
    return {"mountpoint": mountpoint, "pid": pid}


def send_command(command: str, **arguments: Any) -> dict[str, Any]:
    """Send one command to the mounted file system; returns its response. Raises AgentError."""
    from images.base.lossyfs import control

    try:
        return control.call(str(RUN / CONTROL), command, **arguments)
    except control.ControlError as error:
        raise AgentError(f"the lossy file system: {error}") from None


def wipe(directory: str) -> dict[str, Any]:
    """Delete everything below `directory`, durably. Raises OSError."""
    lost_bytes = lost_files = 0
    for directory_path, directories, files in os.walk(directory, topdown=False):
        for name in files:
            lost_bytes += os.lstat(os.path.join(directory_path, name)).st_size
            lost_files += 1
            os.unlink(os.path.join(directory_path, name))
        for name in directories:
            os.rmdir(os.path.join(directory_path, name))
        descriptor = os.open(directory_path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    return {"lost_bytes": lost_bytes, "lost_files": lost_files}


def unmount() -> dict[str, Any]:
    """Unmount every lossy file system, with a live daemon or a dead one. Raises AgentError once all have been tried."""
    from images.base.lossyfs import mounting

    mountpoints = [mount.mountpoint for mount in mounting.mounts()]
    failures = []
    for mountpoint in mountpoints:
        try:
            mounting.unmount(mountpoint, lazy=True)
        except mounting.MountError as error:
            failures.append(str(error))
    if failures:
        raise AgentError(f"the lossy file system: {'; '.join(failures)}")
    return {"unmounted": mountpoints}


def unavailable_reason() -> str:
    """Why FUSE is unavailable here; empty if it is available."""
    if not Path("/dev/fuse").exists():
        return "/dev/fuse is missing: modprobe fuse"
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return f"/dev/fuse cannot be opened: {error.strerror}"
    return ""
