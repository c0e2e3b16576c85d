"""Putting a node's programs on a host, and taking them away again.

Everything lies below one directory, `/opt/faultline-ssh`, made from this machine's own copies: the packages
`images.base` (node agent, lossy file system) and what the system under test ships, with the wheels they need for the
host's Python. The host needs what `host_requirements` asks for, tar, and the programs that faults use; it needs no pip
and no network. The directory is also the claim on the host: one run at a time may have it, and a note in it says which.
"""

from __future__ import annotations

import asyncio
import getpass
import io
import json
import platform
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from harness.environments.machines.machine import CommandFailed, Machine, MachineError
from harness.environments.process_identity import still_runs, this_process
from harness.environments.ssh.host_requirements import require
from harness.node_images.jars import JarsError
from harness.node_images.recipes import (
    base_requirements,
    base_sources,
    image_of,
    system_jars,
    system_requirements,
    system_sources,
)
from harness.node_images.wheels import Target, WheelsError, wheels
from images.system import System

ROOT = "/opt/faultline-ssh"
PROGRAMS = f"{ROOT}/bin"
"""To come first in the PATH of every command."""
LEFT = ("/run/faultline", "/var/lib/faultline")
"""The agent's state, and data, logs and traces."""

_NOTE = f"{ROOT}/run.json"
_CLAIMING = 'mkdir -m 755 "$1" && { printf %s "$3" >"$2" || { rm -r "$1"; exit 1; }; }'


@dataclass(frozen=True, slots=True)
class Claim:
    """The run that occupies a host."""

    run: str
    owner: str
    """The process, as harness.environments.process_identity writes it."""
    by: str
    """user@machine, for people."""
    since: str

    @classmethod
    def of_this_process(cls, run: str) -> Claim:
        """Of a run that begins now."""
        return cls(run, this_process(), f"{getpass.getuser()}@{platform.node()}", time.strftime("%Y-%m-%d %H:%M:%S %z"))

    def __str__(self) -> str:
        return f"run {self.run} of {self.by}, {self.since}"


async def install(machine: Machine, claim: Claim, system: System) -> None:
    """Claim the host and put everything there that a node of `system` needs. Raises MachineError, having left nothing
    if the host could still be reached.

    When it is cancelled the claim may stay: see `claim_on`.
    """
    await _take(machine, claim)
    try:
        target = await require(machine, system)
        try:
            bundle = await asyncio.to_thread(_bundle, target, system)
        except (WheelsError, JarsError) as error:
            raise MachineError(f"{machine.name}: {error}") from None
        await machine.put(bundle, f"{ROOT}/bundle.tar.gz")
        await machine.run(["tar", "-xzf", f"{ROOT}/bundle.tar.gz", "-C", ROOT, "--no-same-owner"], timeout_s=60)
        await machine.run(["rm", f"{ROOT}/bundle.tar.gz"])
    except Exception as error:
        try:
            await machine.run(["rm", "-rf", ROOT])
        except MachineError as uncleaned:
            raise MachineError(f"{error}; {ROOT} was left: {uncleaned}") from error
        raise


async def uninstall(machine: Machine) -> None:
    """End what the agent started, then remove everything, data and all. Raises MachineError."""
    await machine.run(["sh", "-c", f"[ ! -x {PROGRAMS}/faultline-node ] || {PROGRAMS}/faultline-node remove"])
    await machine.run(["rm", "-rf", *LEFT, ROOT])


async def claim_on(machine: Machine) -> Claim | None:
    """The claim on the host; None when it is free. A claim that cannot be read has `?` for its run."""
    script = f"[ ! -d {ROOT} ] || cat {_NOTE} || echo '{{}}'"
    text = (await machine.run(["sh", "-c", f"exec 2>/dev/null; {script}"])).decode(errors="replace")
    if not text.strip():
        return None
    try:
        return Claim(**json.loads(text))
    except (ValueError, TypeError):
        return Claim("?", "", "?", "?")


async def _take(machine: Machine, claim: Claim) -> None:
    note = json.dumps(asdict(claim))
    try:
        # All in the command: of input that is cut off half there would be a claim of nobody, which nobody removes.
        await machine.run(["sh", "-c", _CLAIMING, "sh", ROOT, _NOTE, note])
    except CommandFailed:
        other = await claim_on(machine)
        if other is None:
            raise
        if still_runs(other.owner):
            raise MachineError(f"{machine.name}: {machine.address} is in use by {other}") from None
        raise MachineError(
            f"{machine.name}: {machine.address} is in use by {other}, or was left behind by it; "
            "in that case remove it: faultline clean SPEC.yaml"
        ) from None


# ---- what is put there -----------------------------------------------------------------------------------------------


_one_at_a_time = threading.Lock()
_bundles: dict[tuple[Target, str], bytes] = {}


def _bundle(target: Target, system: System) -> bytes:
    """A gzipped tar: all packages at its top, as the node images have them, and `bin/faultline-node`.

    Hosts are installed side by side, most often alike: it is made once.
    """
    with _one_at_a_time:
        key = (target, image_of(system))
        if key not in _bundles:
            _bundles[key] = _packed(target, system)
        return _bundles[key]


def _packed(target: Target, system: System) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=5) as tar:
        for name, data in contents(target, system):
            item = tarfile.TarInfo(name)
            item.size = len(data)
            item.mode = 0o755 if name.startswith("bin/") else 0o644
            tar.addfile(item, io.BytesIO(data))
    return packed.getvalue()


def contents(target: Target, system: System) -> Iterator[tuple[str, bytes]]:
    """The files that go to a host: path below the root → contents."""
    yield from (base_sources() | system_sources(system)).items()
    yield from ((name, file.read_bytes()) for name, file in system_jars(system))
    for wheel in wheels(_requirements(system), target):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if not name.endswith("/"):
                    yield _installed_name(name), archive.read(name)
    # Last: where it is, everything is, and `uninstall` can count on the agent.
    yield "bin/faultline-node", _LAUNCHER.encode()


def _requirements(system: System) -> list[str]:
    """As the images have them, without pip: wheels are unpacked here."""
    return [name for name in (*base_requirements(), *system_requirements(system)) if name != "pip"]


def _installed_name(name: str) -> str:
    """Where an installer puts a file of a wheel: `x.data/purelib/…` and `x.data/platlib/…` go to the top."""
    first, _, rest = name.partition("/")
    if first.endswith(".data"):
        kind, _, inner = rest.partition("/")
        if kind in ("purelib", "platlib"):
            return inner
    return name


_LAUNCHER = f"""#!/bin/sh
FAULTLINE_HOME={ROOT} exec sh {ROOT}/images/base/agent/faultline-node "$@"
"""
