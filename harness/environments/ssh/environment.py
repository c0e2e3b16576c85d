"""Hosts as machines: `--environment ssh`.

Each node has a host of its own, named in the spec's `hosts`. A host has to have what `images/base/packages.txt` names,
sshd with our key, and a firewall that lets nodes and clients reach the nodes' ports; everything else is put there when
the run begins and taken away when it ends, whatever ended it (`install`). After a SIGKILL of the harness
`faultline clean SPEC.yaml` does it. Faults act on the node's process, its disk, and packets that come from other nodes:
never on SSH, and never on the host itself.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from harness.cluster.hosts import Host
from harness.cluster.layout import Layout, cluster_layout
from harness.environments.base import Deployment, Listener
from harness.environments.interrupts import interruptions_ignored, run_cancellable
from harness.environments.machines.deployment import MachineDeployment
from harness.environments.machines.machine import Machine, MachineError
from harness.environments.ssh.install import Claim, claim_on, install, uninstall
from harness.environments.ssh.machine import SshMachine
from harness.errors import EnvironmentUnavailable
from images.system import System

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ssh:
    """The environment called `ssh`, on these hosts."""

    hosts: Mapping[str, Host]
    """By node."""

    @property
    def name(self) -> str:
        """`ssh`."""
        return "ssh"

    @property
    def injection_s(self) -> float:
        """As in Docker, and a round trip to each host."""
        return 0.5

    @property
    def step_s(self) -> float:
        """A step is a command, too."""
        return self.injection_s

    def layout(self, brokers: int, controllers: int = 1) -> Layout:
        """Every node is called by the IPv4 address of its host. Raises EnvironmentUnavailable when a name has none."""
        return cluster_layout(
            brokers, controllers, lambda node: (_address(node.name, self.hosts[node.name]), node.port)
        )

    def execute(
        self,
        layout: Layout,
        scenario: Callable[[Deployment], Awaitable[T]],
        *,
        seed: int,
        listener: Listener,
    ) -> T:
        """Run `scenario` on an event loop of this thread. Nothing of it is left on the hosts afterwards."""
        hosts = {node.name: self.hosts[node.name] for node in layout.nodes}
        lease = HostLease(hosts, Claim.of_this_process(f"faultline-{secrets.token_hex(4)}"), layout.deployed_system)
        facts = {f"host_{node.name}": node.host for node in layout.nodes}

        async def carried_out() -> T:
            return await scenario(MachineDeployment(layout, lease.acquire, seed=seed, listener=listener, facts=facts))

        try:
            return run_cancellable(carried_out())
        finally:
            with interruptions_ignored():
                asyncio.run(lease.release())


class HostLease:
    """The hosts of one run."""

    def __init__(self, hosts: Mapping[str, Host], claim: Claim, system: System) -> None:
        self._system = system
        self._hosts = hosts
        self._claim = claim
        self._machines: dict[str, SshMachine] = {}

    async def acquire(self) -> Mapping[str, Machine]:
        """Log in everywhere, then install everywhere. Raises MachineError; `release` is for that case, too."""

        async def log_in(name: str, host: Host) -> None:
            self._machines[name] = await SshMachine.connect(name, host)

        await _all(log_in(name, host) for name, host in self._hosts.items())
        await _all(install(machine, self._claim, self._system) for machine in self._machines.values())
        return self._machines

    async def release(self) -> None:
        """Uninstall wherever the claim is ours. Raises MachineError naming the hosts where that failed.

        Over new connections: the first ones may be broken, or be busy with what was interrupted.
        """
        left: list[str] = []

        async def released(name: str, machine: SshMachine) -> None:
            await machine.close()
            try:
                async with connected(name, self._hosts[name]) as again:
                    if await claim_on(again) == self._claim:
                        await uninstall(again)
            except MachineError as error:
                left.append(str(error))

        await _all(released(name, machine) for name, machine in self._machines.items())
        if left:
            raise MachineError(f"left behind: {'; '.join(left)}; remove it: faultline clean SPEC.yaml")


@asynccontextmanager
async def connected(name: str, host: Host) -> AsyncIterator[SshMachine]:
    """The host as a machine, for as long as the block lasts. Raises MachineError."""
    machine = await SshMachine.connect(name, host)
    try:
        yield machine
    finally:
        await machine.close()


async def _all(deeds: Iterable[Awaitable[T]]) -> list[T]:
    """Wait for all of them, then raise the first failure."""
    results = await asyncio.gather(*deeds, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


def _address(name: str, host: Host) -> str:
    try:
        return socket.gethostbyname(host.address)
    except OSError as error:
        raise EnvironmentUnavailable(f"{name}: {host.address} has no IPv4 address: {error.strerror or error}") from None
