"""known_hosts is read as OpenSSH reads it; its own ssh-keygen checks hashes and fingerprints."""

from __future__ import annotations

import base64
import shutil
import subprocess
from pathlib import Path

import pytest

from harness.environments.ssh.known_hosts import HostKeyStatus, KnownHosts, fingerprint

KEY, OTHER_KEY = b"\0\0\0\x0bssh-ed25519 one", b"\0\0\0\x0bssh-ed25519 two"


def line(names: str, key: bytes = KEY, kind: str = "ssh-ed25519") -> str:
    return f"{names} {kind} {base64.b64encode(key).decode()} a comment\n"


@pytest.mark.parametrize(
    ("names", "address", "port", "status"),
    [
        ("192.0.2.1", "192.0.2.1", 22, HostKeyStatus.KNOWN),
        ("192.0.2.1", "192.0.2.2", 22, HostKeyStatus.UNKNOWN),
        ("lab,192.0.2.1", "192.0.2.1", 22, HostKeyStatus.KNOWN),
        ("Lab.Example", "lab.example", 22, HostKeyStatus.KNOWN),
        ("192.0.2.1", "192.0.2.1", 2222, HostKeyStatus.UNKNOWN),
        ("[192.0.2.1]:2222", "192.0.2.1", 2222, HostKeyStatus.KNOWN),
        ("[192.0.2.1]:2222", "192.0.2.1", 22, HostKeyStatus.UNKNOWN),
        ("*.example", "lab.example", 22, HostKeyStatus.KNOWN),
        ("192.0.2.?", "192.0.2.1", 22, HostKeyStatus.KNOWN),
        ("192.0.2.?", "192.0.2.11", 22, HostKeyStatus.UNKNOWN),
        ("*.example,!lab.example", "lab.example", 22, HostKeyStatus.UNKNOWN),
        ("192x0.2.1", "192.0.2.1", 22, HostKeyStatus.UNKNOWN),
        ("|1|not|hashes", "192.0.2.1", 22, HostKeyStatus.UNKNOWN),
        ("# 192.0.2.1", "192.0.2.1", 22, HostKeyStatus.UNKNOWN),
        ("@cert-authority 192.0.2.1", "192.0.2.1", 22, HostKeyStatus.UNKNOWN),
        ("@revoked 192.0.2.1", "192.0.2.1", 22, HostKeyStatus.REVOKED),
    ],
)
def test_a_line_is_about_the_hosts_it_names(names: str, address: str, port: int, status: HostKeyStatus) -> None:
    assert KnownHosts.parse(line(names)).status_of(address, port, KEY) is status


def test_a_host_may_have_several_keys_but_no_stranger() -> None:
    known = KnownHosts.parse(line("lab") + line("lab", OTHER_KEY) + line("lab", b"rsa", "ssh-rsa"))
    assert known.status_of("lab", 22, KEY) is known.status_of("lab", 22, OTHER_KEY) is HostKeyStatus.KNOWN
    assert known.status_of("lab", 22, b"stranger") is HostKeyStatus.OTHER
    assert known.kinds("lab", 22) == ("ssh-ed25519", "ssh-rsa")


def test_a_revoked_key_stays_so_whatever_another_line_says() -> None:
    known = KnownHosts.parse(line("lab") + line("@revoked *"))
    assert known.status_of("lab", 22, KEY) is HostKeyStatus.REVOKED


def test_lines_that_make_no_sense_are_passed_over() -> None:
    known = KnownHosts.parse("\n \nlab\nlab ssh-ed25519\nlab ssh-ed25519 ?!\n" + line("lab"))
    assert len(known.lines) == 1


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh-keygen")
def test_hashed_names_and_fingerprints_are_those_of_openssh(tmp_path: Path) -> None:
    def keygen(*arguments: str | Path) -> str:
        return subprocess.run(["ssh-keygen", *arguments], capture_output=True, text=True, check=True).stdout

    keygen("-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key")
    kind, encoded, *_ = (tmp_path / "key.pub").read_text().split()
    path = tmp_path / "known_hosts"
    path.write_text(f"lab {kind} {encoded}\n[192.0.2.1]:2222 {kind} {encoded}\n")
    keygen("-H", "-f", path)
    assert "lab" not in path.read_text()
    known, key = KnownHosts.read([path]), base64.b64decode(encoded)
    assert known.status_of("lab", 22, key) is known.status_of("192.0.2.1", 2222, key) is HostKeyStatus.KNOWN
    assert known.status_of("192.0.2.1", 22, key) is HostKeyStatus.UNKNOWN
    assert fingerprint(key) == keygen("-l", "-f", tmp_path / "key.pub").split()[1]
