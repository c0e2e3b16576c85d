"""Mounting and unmounting, and the list of mounts, dead ones included.

`serve` is the daemon: it returns once the file system is unmounted. `start` starts one in the background and waits
until programs can use it. A daemon that dies leaves its mount behind; every access then fails with ENOTCONN until
`unmount` or `fusermount3 -u` clears it.
"""

from __future__ import annotations

import errno
import gc
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import IO, Final

from images.base.lossyfs.control import Control, ControlError, call
from images.base.lossyfs.damage import DamageInjector
from images.base.lossyfs.volume import Volume

DEVICE: Final = Path("/dev/fuse")
SUBTYPE: Final = "lossyfs"
MOUNT_TIMEOUT_S: Final = 120.0
UNMOUNT_TIMEOUT_S: Final = 60.0


class MountError(Exception):
    """Mounting or unmounting failed; the message is one line with the reason."""


@dataclass(frozen=True, slots=True)
class MountOptions:
    """Options of a mount."""

    backing: str
    mountpoint: str
    control: str
    strict_names: bool = False
    """Only fsync of a directory makes names durable."""
    cached: bool = False
    """Never bypass the kernel's page cache: any descriptor can be mapped shared, appends take longer."""
    through: bool = False
    """fsync also syncs the backing file, so that it takes as long as a disk does."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted lossy file system."""

    mountpoint: str
    backing: str
    alive: bool
    """Its daemon answers."""


def mounts() -> list[Mount]:
    """The lossy file systems this process can see mounted."""
    mounted = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        source, mountpoint, kind, *_ = (_unescaped(word) for word in line.split(" "))
        if kind == f"fuse.{SUBTYPE}":
            mounted.append(Mount(mountpoint, source, not _dead(mountpoint)))
    return mounted


def serve(options: MountOptions) -> None:
    """Mount and serve until unmounted. Raises MountError."""
    options = _check_options(options)
    os.environ.setdefault("FUSE_LIBRARY_NAME", "fuse3")
    try:
        from images.base.lossyfs.fuse_session import FuseSession
        from images.base.lossyfs.operations import Operations
    except ImportError:
        raise MountError("mfusepy is missing: pip install mfusepy") from None
    except OSError:
        raise MountError("libfuse is missing: apt-get install fuse3 libfuse3-3") from None
    injector, lock = DamageInjector(), Lock()
    try:
        volume = Volume(options.backing, strict_names=options.strict_names)
        control = Control(volume, injector, lock, options.mountpoint)
        control.serve(options.control)
    except OSError as error:
        raise MountError(str(error)) from None
    os.umask(0)
    gc.freeze()  # what is there now stays; the collector need not look at it again
    operations = Operations(volume, injector, lock, cached=options.cached, through=options.through)
    try:
        FuseSession(
            operations,
            options.mountpoint,
            raw_fi=True,
            foreground=True,
            nothreads=True,
            fsname=options.backing.replace(",", "\\,"),
            subtype=SUBTYPE,
            default_permissions=True,
            allow_other=os.geteuid() == 0,
        )
    except RuntimeError:  # libfuse has said why in its own words before
        raise MountError(f"{options.mountpoint} cannot be mounted: that needs CAP_SYS_ADMIN and {DEVICE}") from None
    finally:
        control.close(options.control)
        volume.close()


def start(options: MountOptions, log: IO[bytes]) -> int:
    """Mount in the background; returns the daemon's process id once the mount can be used. Raises MountError."""
    options = _check_options(options)
    arguments = [options.backing, options.mountpoint, "--control", options.control, "--foreground"]
    for name in ("strict_names", "cached", "through"):
        if getattr(options, name):
            arguments.append("--" + name.replace("_", "-"))
    log_start = log.seek(0, os.SEEK_END)
    daemon = subprocess.Popen(
        [sys.executable, "-m", "images.base.lossyfs", "mount", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
        cwd="/",
        env={**os.environ, "PYTHONPATH": f"{Path(__file__).parents[3]}:{os.environ.get('PYTHONPATH', '')}"},
    )
    deadline = time.monotonic() + MOUNT_TIMEOUT_S
    while not _daemon_answers(options):
        if daemon.poll() is not None or time.monotonic() > deadline:
            daemon.kill()
            daemon.wait()
            log.seek(log_start)
            lines = log.read().decode(errors="replace").strip().splitlines()
            raise MountError(lines[-1].removeprefix("lossyfs: ") if lines else "the daemon ended without a word")
        time.sleep(0.01)
    return daemon.pid


def unmount(mountpoint: str, *, lazy: bool = False) -> None:
    """Unmount, and wait for the daemon's end; `lazy` also while programs use it. Raises MountError."""
    mountpoint = os.path.abspath(mountpoint)
    ours = [mount for mount in mounts() if mount.mountpoint == mountpoint]
    if not ours:
        raise MountError(f"{mountpoint} is no lossy file system's mount point")
    result = subprocess.run(
        ["fusermount3", "-uz" if lazy else "-u", mountpoint], capture_output=True, text=True, check=False
    )
    if result.returncode != 0:
        raise MountError(f"{mountpoint} cannot be unmounted: {result.stderr.strip()}")
    deadline = time.monotonic() + UNMOUNT_TIMEOUT_S
    while not lazy and Path(ours[0].backing, ".lossyfs").exists() and ours[0].alive and time.monotonic() < deadline:
        time.sleep(0.01)


def _check_options(options: MountOptions) -> MountOptions:
    backing, mountpoint = (os.path.realpath(path) for path in (options.backing, options.mountpoint))
    if not DEVICE.exists():
        raise MountError(f"{DEVICE} is missing: modprobe fuse, or give the container --device {DEVICE}")
    for mount in mounts():
        if mount.mountpoint == os.path.abspath(options.mountpoint):
            if not mount.alive:
                raise MountError(f"{mountpoint} is the mount of a dead daemon: fusermount3 -u {mountpoint}")
            raise MountError(f"{mountpoint} is mounted already")
        if mount.backing == backing and mount.alive:
            raise MountError(f"BACKING {backing} is mounted already, at {mount.mountpoint}")
    for name, path in (("BACKING", backing), ("MOUNTPOINT", mountpoint)):
        if not os.path.isdir(path):
            raise MountError(f"{name} {path} is not a directory")
    if backing == mountpoint or backing.startswith(f"{mountpoint}/") or mountpoint.startswith(f"{backing}/"):
        raise MountError(f"BACKING {backing} and MOUNTPOINT {mountpoint} must not contain each other")
    return MountOptions(
        backing, mountpoint, os.path.abspath(options.control), options.strict_names, options.cached, options.through
    )


def _daemon_answers(options: MountOptions) -> bool:
    if not any(mount.mountpoint == options.mountpoint for mount in mounts()):
        return False
    try:
        call(options.control, "report")
    except ControlError:
        return False
    return True


def _dead(mountpoint: str) -> bool:
    try:
        os.stat(mountpoint)
    except OSError as error:
        return error.errno == errno.ENOTCONN
    return False


def _unescaped(word: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), word)
