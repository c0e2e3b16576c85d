"""The claim on a host: there whole or not at all, whatever cuts the command off that makes it."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from harness.environments.machines.machine import CommandFailed
from harness.environments.ssh import install
from harness.environments.ssh.install import ROOT, Claim, claim_on


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
