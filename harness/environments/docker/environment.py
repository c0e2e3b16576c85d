"""Containers as machines: `--environment docker`.

One internal network a run, without a way out, and a container a node with a fixed address on it; everything carries the
run's labels. Clients reach nodes at their addresses, so the engine must run on this machine. A container gets what
`rights.py` lists and nothing else; it shares no directory with this machine. Its process 1 is the agent's `idle`, so
that it outlives the system it carries.

Everything is removed when the run ends, whatever ended it, but for a SIGKILL of the harness: then `faultline clean`
finds it by its labels.
"""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeVar

from harness.cluster.layout import Layout, cluster_layout
from harness.environments.base import Deployment, Listener
from harness.environments.docker.container import Container, as_machine_errors, one_line
from harness.environments.docker.engine import RUN_LABEL, connect, run_labels
from harness.environments.docker.rights import RIGHTS, require_limits
from harness.environments.interrupts import interruptions_ignored, run_cancellable
from harness.environments.machines.deployment import MachineDeployment
from harness.environments.machines.machine import Machine, MachineError
from harness.errors import EnvironmentUnavailable
from harness.node_images.building import Image, ready

T = TypeVar("T")

POOLS: Final = ipaddress.IPv4Network("10.192.0.0/10")
"""Networks of runs are drawn from here, beside whatever this machine has routes to."""
_FIRST_HOST = 10
_THREADS = 64
_SUBNET_DRAWS = 64


@dataclass(frozen=True, slots=True)
class Docker:
    """The environment called `docker`."""

    subnet: ipaddress.IPv4Network = field(default_factory=lambda: free_subnet())

    @property
    def name(self) -> str:
        """`docker`."""
        return "docker"

    @property
    def injection_s(self) -> float:
        """A command in each of six containers, side by side, and reading back what it did."""
        return 0.3

    @property
    def step_s(self) -> float:
        """A step is a command, too."""
        return self.injection_s

    def layout(self, brokers: int, controllers: int = 1) -> Layout:
        """Every node is a container of its own, called by its address."""
        numbers = count(_FIRST_HOST)
        return cluster_layout(brokers, controllers, lambda node: (str(self.subnet[next(numbers)]), node.port))

    def execute(
        self,
        layout: Layout,
        scenario: Callable[[Deployment], Awaitable[T]],
        *,
        seed: int,
        listener: Listener,
    ) -> T:
        """Run `scenario` on an event loop of this thread. Nothing of it is left in the engine afterwards."""
        client = connect()
        run = f"faultline-{secrets.token_hex(4)}"
        try:
            image = ready(client, layout.deployed_system)
            facts = {"containers": run, **_facts(client, image)}
            containers = Containers(client, run, image, self.subnet)

            async def carried_out() -> T:
                deployment = MachineDeployment(
                    layout, lambda: containers.make(layout), seed=seed, listener=listener, facts=facts
                )
                return await scenario(deployment)

            try:
                return run_cancellable(carried_out())
            finally:
                with interruptions_ignored():
                    containers.remove()
        finally:
            client.close()


class Containers:
    """The network and the containers of one run."""

    def __init__(self, client: Any, run: str, image: Image, subnet: ipaddress.IPv4Network) -> None:
        self._client = client
        self._run = run
        self._image = image
        self._subnet = subnet
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="docker")
        self._making: list[Future[Any]] = []
        """What is being made, and goes on in its thread whoever awaits it no more."""

    async def make(self, layout: Layout) -> Mapping[str, Machine]:
        """Make everything, containers side by side. Raises MachineError."""
        network = self._threads.submit(self._make_network)
        self._making.append(network)
        await asyncio.wrap_future(network)
        starts = [self._threads.submit(self._start, node.name, node.host) for node in layout.nodes]
        self._making += starts
        created = await asyncio.gather(*map(asyncio.wrap_future, starts))
        return {
            node.name: Container(node.name, node.host, self._client, container_id, self._threads)
            for node, container_id in zip(layout.nodes, created, strict=True)
        }

    def remove(self) -> None:
        """Remove everything with this run's label, once nothing more of it is being made. Raises MachineError naming
        what is left."""
        for making in self._making:
            making.cancel()
        wait(self._making)
        label = {"label": f"{RUN_LABEL}={self._run}"}
        api = self._client.api
        left: list[str] = []

        def removed(what: str, remove: Callable[[], object]) -> None:
            try:
                remove()
            except Exception as error:  # the SDK lets errors of three libraries through
                left.append(f"{what} ({one_line(error)})")

        try:
            containers = api.containers(all=True, filters=label)
        except Exception as error:
            raise MachineError(f"run {self._run} could not be removed ({one_line(error)}): faultline clean") from None
        removals = [
            self._threads.submit(removed, *_removal(item["Names"][0].lstrip("/"), api, item["Id"]))
            for item in containers
        ]
        for removal in removals:
            removal.result()
        networks: list[dict[str, Any]] = []
        try:
            networks = api.networks(filters=label)
        except Exception as error:
            left.append(f"the network of {self._run} ({one_line(error)})")
        for network in networks:
            removed(network["Name"], partial(api.remove_network, network["Id"]))
        self._threads.shutdown(wait=False, cancel_futures=True)
        if left:
            raise MachineError(f"left behind: {', '.join(left)}; remove it: faultline clean")

    def _make_network(self) -> None:
        from docker.types import IPAMConfig, IPAMPool

        with as_machine_errors("the network"):
            self._client.api.create_network(
                self._run,
                driver="bridge",
                internal=True,
                labels=run_labels(self._run),
                ipam=IPAMConfig(pool_configs=[IPAMPool(subnet=str(self._subnet))]),
            )

    def _start(self, node: str, address: str) -> str:
        api = self._client.api
        with as_machine_errors(node):
            created = api.create_container(
                self._image.digest,
                name=f"{self._run}-{node}",
                hostname=node,
                labels={**run_labels(self._run), "faultline.node": node},
                host_config=api.create_host_config(**RIGHTS, tmpfs={"/run": "size=64m"}, log_config={"type": "none"}),
                networking_config=api.create_networking_config(
                    {self._run: api.create_endpoint_config(ipv4_address=address)}
                ),
            )
            api.start(created["Id"])
        return str(created["Id"])


def free_subnet(routes: Path = Path("/proc/net/route")) -> ipaddress.IPv4Network:
    """256 addresses that this machine has no route of its own to, drawn at random."""
    taken = []
    with suppress(OSError):
        for line in routes.read_text().splitlines()[1:]:
            _, destination, _, _, _, _, _, mask = line.split()[:8]
            network = int.from_bytes(bytes.fromhex(destination), "little")
            prefix = int.from_bytes(bytes.fromhex(mask), "little").bit_count()
            if prefix:
                taken.append(ipaddress.IPv4Network((network, prefix)))
    for _ in range(_SUBNET_DRAWS):
        drawn = ipaddress.IPv4Network((int(POOLS.network_address) + (secrets.randbelow(1 << 14) << 8), 24))
        if not any(drawn.overlaps(other) for other in taken):
            return drawn
    raise EnvironmentUnavailable(f"no free network in {POOLS}: this machine has routes to all of it")


def _facts(client: Any, image: Image) -> dict[str, str]:
    with as_machine_errors("the engine"):
        info = client.info()
    require_limits(info)
    return {
        "image": image.name,
        "image_digest": image.digest,
        "engine": str(info.get("ServerVersion", "")),
        "kernel": str(info.get("KernelVersion", "")),
    }


def _removal(name: str, api: Any, container_id: str) -> tuple[str, Callable[[], object]]:
    return name, partial(api.remove_container, container_id, force=True, v=True)
