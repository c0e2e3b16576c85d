"""Hosts for tests: containers running sshd, on an internal network of their own, with keys made for the occasion.

They have the operating-system layer of the node images and nothing of ours, as a machine fresh from its provider.
"""

from __future__ import annotations

import secrets
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from harness.cluster.hosts import Host
from harness.environments.cleanup import CleanupStatus, clean, in_docker
from harness.environments.docker.engine import connect, run_labels
from harness.node_images.building import build

_READY_LIMIT_S = 180.0
_BOOT = """
umask 077
mkdir -p /run/sshd /root/.ssh
printf '%s\\n' "$AUTHORIZED" >/root/.ssh/authorized_keys
printf '%s' "$HOST_KEY" >/etc/ssh/host_key
exec /usr/sbin/sshd -D -e -h /etc/ssh/host_key -o PermitRootLogin=prohibit-password
"""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A key in a file, as ssh-keygen would leave it."""

    path: Path
    public: str
    """Type and key, as in authorized_keys and known_hosts."""

    @classmethod
    def make(cls, path: Path, passphrase: str = "") -> KeyPair:
        key = Ed25519PrivateKey.generate()
        locked = serialization.BestAvailableEncryption(passphrase.encode()) if passphrase else None
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.OpenSSH,
                locked or serialization.NoEncryption(),
            )
        )
        path.chmod(0o600)
        public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        return cls(path, public.decode())


@dataclass(frozen=True, slots=True)
class Lab:
    """Some hosts, and what is needed to get into them."""

    hosts: dict[str, Host]
    containers: dict[str, Any]
    directory: Path

    def spec(self, rest: str = "", names: Sequence[str] = ()) -> str:
        """A spec for environment ssh on these hosts, or on some of them."""
        lines = [f"  {name}: {self.hosts[name].to_mapping()}" for name in names or self.hosts]
        return "\n".join(["environment: ssh", "controllers: 1", "hosts:", *lines, rest, ""])

    def shell(self, name: str, command: str) -> str:
        """The output of a command in the container; the test's own access, without SSH."""
        container = self.containers[name].name
        # The engine's own program: the SDK drops output that arrives together with the answer to the start.
        done = subprocess.run(
            ["docker", "exec", container, "sh", "-c", command], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@contextmanager
def lab(directory: Path, names: Sequence[str]) -> Iterator[Lab]:
    """Hosts with these names for as long as the block lasts; their keys are known and ours opens them."""
    client = connect()
    image = build(client, ())[0].tag
    run = f"sshd-{secrets.token_hex(4)}"
    ours, theirs = KeyPair.make(directory / "client"), KeyPair.make(directory / "host")
    known = directory / "known_hosts"
    containers: dict[str, Any] = {}
    client.networks.create(run, internal=True, labels=run_labels(run))
    try:
        for name in names:
            containers[name] = client.containers.run(
                image,
                ["sh", "-c", _BOOT],
                entrypoint=[],
                detach=True,
                name=f"{run}-{name}",
                hostname=name,
                network=run,
                labels=run_labels(run),
                environment={"AUTHORIZED": ours.public, "HOST_KEY": theirs.path.read_text()},
                cap_add=["NET_ADMIN", "SYS_ADMIN"],
                devices=["/dev/fuse"],
                security_opt=["apparmor=unconfined"],
                init=True,
            )
        addresses = {}
        for name, container in containers.items():
            container.reload()
            addresses[name] = container.attrs["NetworkSettings"]["Networks"][run]["IPAddress"]
            _wait_for(addresses[name])
        known.write_text("".join(f"{address} {theirs.public}\n" for address in addresses.values()))
        hosts = {name: Host(address, key=str(ours.path), known_hosts=str(known)) for name, address in addresses.items()}
        yield Lab(hosts, containers, directory)
    finally:
        for cleaned in clean(in_docker(client, run), everything=True):
            assert cleaned.status is CleanupStatus.REMOVED, cleaned.text()
        client.close()


def _wait_for(address: str) -> None:
    deadline = time.monotonic() + _READY_LIMIT_S
    while True:
        try:
            socket.create_connection((address, 22), 1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
