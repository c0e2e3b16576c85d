"""The claim on a host: there whole or not at all, whatever cuts the command off that makes it."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from harness.environments.machines.machine import CommandFailed, Machine, MachineError
from harness.environments.ssh import install
from harness.environments.ssh.install import ROOT, Claim, claim_on
from images.broker.system import SYSTEM
from images.system import System


@dataclass
class CutOff:
    """A host, here below a directory, whose connection breaks before it has received any input."""

    root: Path
    name: str = "b1"
    address: str = "192.0.2.1"

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 120.0) -> bytes:
        here = [word.replace(ROOT, str(self.root)) for word in argv]
        without_input = partial(subprocess.run, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        done = await asyncio.to_thread(without_input, here)
        if done.returncode:
            raise CommandFailed.of(self.name, argv[0], done.returncode, done.stderr)
        return done.stdout.encode()

    async def put(self, contents: bytes, path: str, *, mode: int = 0o644) -> None:
        raise NotImplementedError

    async def fetch(self, path: str) -> bytes:
        raise NotImplementedError


def test_a_claim_whose_connection_breaks_says_whose_it_is(tmp_path: Path) -> None:
    host, claim = CutOff(tmp_path / "faultline"), Claim.of_this_process("r1")
    asyncio.run(install._take(host, claim))
    assert asyncio.run(claim_on(host)) == claim


def test_a_claim_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "_NOTE", "/dev/full")
    host = CutOff(tmp_path / "faultline")
    with pytest.raises(CommandFailed):
        asyncio.run(install._take(host, Claim.of_this_process("r1")))
    assert not host.root.exists()


@dataclass
class LostMidway(CutOff):
    """A host that takes the claim and then is gone: neither takes files, nor lets itself be cleaned."""

    async def put(self, contents: bytes, path: str, *, mode: int = 0o644) -> None:
        raise MachineError("b1: the disk is full")

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 120.0) -> bytes:
        if argv[0] == "rm":
            raise MachineError("b1: connection refused")
        return await super().run(argv, stdin=stdin, timeout_s=timeout_s)


def test_what_failed_first_is_told_where_cleaning_fails_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def meets_all(_machine: Machine, _system: System) -> None: ...

    monkeypatch.setattr(install, "require", meets_all)
    monkeypatch.setattr(install, "_bundle", lambda _target, _system: b"")
    host = LostMidway(tmp_path / "faultline")
    with pytest.raises(MachineError, match=r"the disk is full; .* was left: b1: connection refused"):
        asyncio.run(install.install(host, Claim.of_this_process("r1"), SYSTEM))
