"""Debian from its packages: a root directory by debootstrap, as one tar, where no registry has an image of it.

The mirror is the one that this machine's own apt uses; on a machine that is not Debian the user names one. debootstrap
makes device files and changes its root, so it needs root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Final

from harness.errors import EnvironmentUnavailable

APT_DIRECTORY = Path("/etc/apt")
_LIMIT_S: Final = 1800
_LEFT_OUT: Final = (
    "var/cache/apt/",
    "var/lib/apt/lists/",
    "var/log/",
    "usr/share/doc/",
    "usr/share/man/",
    "usr/share/locale/",
    "etc/ssh/ssh_host_",
    "proc/",
    "sys/",
)
"""Nothing that runs needs them. Host keys must not be shared by all who have the image."""


class BootstrapError(EnvironmentUnavailable):
    """Debian cannot be put together here; one line."""


def mirror_of(release: str, apt: Path = APT_DIRECTORY) -> str | None:
    """The address that apt takes the main packages of `release` from; None when it has none."""
    for file in sorted(apt.glob("sources.list.d/*.sources")):
        for stanza in file.read_text(errors="replace").split("\n\n"):
            fields: dict[str, str] = {}
            for name, value in _fields(stanza):
                fields[name] = f"{fields.get(name, '')} {value}"
            if release in fields.get("suites", "").split() and "main" in fields.get("components", "").split():
                for address in fields.get("uris", "").split():
                    return address
    for file in (apt / "sources.list", *sorted(apt.glob("sources.list.d/*.list"))):
        for line in file.read_text(errors="replace").splitlines() if file.exists() else ():
            words = [word for word in line.split("#")[0].split() if not word.startswith("[") and not word.endswith("]")]
            if len(words) >= 4 and words[0] == "deb" and words[2] == release and "main" in words[3:]:
                return words[1]
    return None


@contextmanager
def bootstrapped(release: str, packages: Sequence[str], mirror: str = "") -> Iterator[IO[bytes]]:
    """A tar of a minimal Debian with `packages`, ready to be read. Raises BootstrapError."""
    address = mirror or mirror_of(release)
    if address is None:
        raise BootstrapError(f"apt here knows no mirror of Debian {release}; name one: --mirror ADDRESS")
    if shutil.which("debootstrap", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is None:
        raise BootstrapError("debootstrap is not installed (on Debian: apt-get install debootstrap)")
    if os.geteuid() != 0:
        raise BootstrapError("debootstrap needs root; run as root, or use --base registry")
    with TemporaryDirectory(prefix="faultline-debian-") as directory, TemporaryFile() as packed:
        root = Path(directory, "root")
        command = ["debootstrap", "--variant=minbase", "--merged-usr", f"--include={','.join(packages)}"]
        try:
            done = subprocess.run(
                [*command, release, str(root), address],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=_LIMIT_S,
                env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise BootstrapError(f"debootstrap did not finish within {_LIMIT_S} s") from None
        if done.returncode:
            output = done.stdout.strip().splitlines() or [f"status {done.returncode}"]
            raise BootstrapError(f"debootstrap failed: {output[-1]}")
        with tarfile.open(fileobj=packed, mode="w") as archive:
            archive.add(root, arcname=".", filter=_kept)
        packed.seek(0)
        yield packed


def _kept(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    name = entry.name.removeprefix("./")
    return None if name.startswith(_LEFT_OUT) else entry


def _fields(stanza: str) -> Iterator[tuple[str, str]]:
    name = ""
    for line in stanza.splitlines():
        if line.startswith("#"):
            continue
        if line[:1].isspace():
            yield name, line
        elif ":" in line:
            name, _, value = line.partition(":")
            name = name.strip().lower()
            yield name, value
