"""The hosts of a spec: for each node of the cluster its machine, and how SSH reaches it.

    hosts:
      b1: {address: 192.0.2.11}
      b2: {address: 192.0.2.12, user: admin}
      b3: {address: 192.0.2.13, port: 2222, key: ~/.ssh/lab}
      c1: {address: 192.0.2.14, known_hosts: lab.known_hosts}

A host carries one node, since faults go by addresses: a partition between two nodes on one host cannot be made.
Anyone but root needs `sudo` without a password there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from nemesis.fields import FieldError

SSH_PORT = 22

_ADDRESS = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class Host:
    """One host. Raises ValueError naming the field that is wrong."""

    address: str
    """An IPv4 address, or a name that stands for one: SSH, the clients and the other nodes all go there."""
    port: int = SSH_PORT
    """Of sshd."""
    user: str = "root"
    key: str = ""
    """The private key's file; when empty, the agent's keys and those of ~/.ssh."""
    known_hosts: str = ""
    """The file that the host's key must be in; when empty, ~/.ssh/known_hosts and the system's."""

    def __post_init__(self) -> None:
        if not _ADDRESS.fullmatch(self.address):
            raise ValueError(f"address: {self.address!r} is neither an IPv4 address nor a name")
        if not 0 < self.port < 65536:
            raise ValueError(f"port: {self.port} is not from 1 to 65535")
        if not _USER.fullmatch(self.user):
            raise ValueError(f"user: {self.user!r} is not the name of a user")

    def to_mapping(self) -> dict[str, Any]:
        """As in a spec, defaults left out."""
        values = {item.name: (getattr(self, item.name), item.default) for item in fields(self)}
        return {name: value for name, (value, default) in values.items() if value != default}


def check_hosts(hosts: Mapping[str, Host], nodes: Sequence[str], *, all_needed: bool) -> None:
    """Raise FieldError unless each host is for one of `nodes`, no two are the same and, if asked, no node lacks one."""
    for name in hosts:
        if name not in nodes:
            raise FieldError(f"hosts.{name}: not a node of this cluster; its nodes are {', '.join(nodes)}")
    carries: dict[str, str] = {}
    for name, host in hosts.items():
        other = carries.setdefault(host.address, name)
        if other != name:
            raise FieldError(f"hosts.{name}: {host.address} carries {other} already; every node needs its own host")
    missing = [name for name in nodes if name not in hosts]
    if all_needed and missing:
        raise FieldError(
            f"hosts: {', '.join(missing)} missing; environment ssh needs a host for each of {', '.join(nodes)}"
        )
