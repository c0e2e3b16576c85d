"""Prerequisites outside of this machine: images and containers of the Docker engine, hosts over SSH.

Everything that a test starts or installs is removed again.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.cluster.hosts import Host
from harness.cluster.systems import SYSTEMS
from harness.doctor.diagnosis import GIB, OTHER_KERNEL, STORE_BYTES_LEAST, Diagnosis, Prerequisite, Purpose
from harness.doctor.probes import Probes
from harness.environments.docker.engine import connect, run_labels
from harness.environments.docker.rights import RIGHTS
from harness.environments.interrupts import interruptions_ignored, run_cancellable
from harness.errors import EnvironmentUnavailable
from harness.node_images.building import Image, ImageState, build_command, states
from harness.node_images.jars import are_kept
from harness.node_images.recipes import packages
from harness.runner.client_processes import programs
from harness.spec import Spec
from images.system import System

_RUN = "faultline-doctor"
_NEEDED_ON_HOSTS = ("nftables", "fuse", "libfaketime")


def diagnosis(probes: Probes, store: Path, spec: Spec | None) -> Diagnosis:
    """This machine with its engine, and the hosts of `spec` for the system that it deploys."""

    def hosts() -> Sequence[Prerequisite]:
        return host_prerequisites(spec.hosts, spec.deployed_system) if spec is not None and spec.hosts else ()

    system = spec.deployed_system if spec is not None else SYSTEMS["broker"]

    def of_system() -> Sequence[Prerequisite]:
        if spec is None:
            return ()
        return [
            *archive_prerequisites(system, probes),
            *memory_prerequisites(spec, probes),
            *client_prerequisites(spec, probes),
        ]

    return Diagnosis(probes, store, lambda: image_prerequisites(system), container_lacks, hosts, of_system)


def archive_prerequisites(system: System, probes: Probes) -> list[Prerequisite]:
    """Whether the Java archives of a system are here, or can be fetched; empty for a system without any."""
    jars, subject = system.shipment.jars, f"archives of {system.name} {system.version}"
    return _archives(subject, jars, probes, Purpose.ARCHIVES, f"; then: {build_command(system)}") if jars else []


def _archives(
    subject: str, jars: Sequence[str], probes: Probes, purpose: Purpose, then: str = ""
) -> list[Prerequisite]:
    if are_kept(jars):
        return [Prerequisite(subject, True, "kept here", purpose=purpose)]
    if probes.program("mvn"):
        return [Prerequisite(subject, True, "Maven will fetch them", purpose=purpose)]
    remedy = f"on Debian: apt-get install maven{then}"
    return [Prerequisite(subject, False, "not here, and Maven is not installed", remedy, purpose)]


def client_prerequisites(spec: Spec, probes: Probes) -> list[Prerequisite]:
    """The library of the clients of a run, and for Java's a JDK; empty for the native one."""
    purpose = Purpose.CLIENTS
    match spec.clients.library:
        case "librdkafka":
            there = programs.has_librdkafka()
            state = "installed" if there else programs.MISSING_LIBRDKAFKA
            return [Prerequisite("librdkafka", there, state, programs.INSTALL_LIBRDKAFKA, purpose)]
        case "java":
            tools = programs.jdk()
            state = f"{tools}" if tools is not None else programs.MISSING_JDK
            jdk = Prerequisite("JDK", tools is not None, state, programs.INSTALL_JDK, purpose)
            archives = programs.java_archives(spec.deployed_system)
            return [jdk, *_archives("archives of Java's clients", archives, probes, purpose)]
    return []


def memory_prerequisites(spec: Spec, probes: Probes) -> list[Prerequisite]:
    """Whether this machine has memory for the containers of a run in Docker; empty for other environments."""
    available = probes.available_memory_bytes()
    if spec.environment != "docker" or available is None:
        return []
    nodes = spec.brokers + spec.controllers
    needed = nodes * spec.deployed_system.memory_bytes
    state = f"{available / GIB:.1f} GiB available, {needed / GIB:.1f} GiB for {nodes} nodes of {spec.system}"
    remedy = "free some, or run fewer nodes"
    return [Prerequisite("memory", needed <= available, state, remedy, Purpose.DOCKER)]


def image_prerequisites(system: System) -> list[Prerequisite]:
    """One prerequisite for each image that a node of `system` needs. Raises EngineUnreachable."""
    client = connect()
    try:
        return [_of_image(image, build_command(system)) for image in states(client, [system])]
    finally:
        client.close()


def _of_image(image: Image, build: str) -> Prerequisite:
    match image.condition:
        case ImageState.READY:
            return Prerequisite(f"image {image.name}", True, image.digest[:19], purpose=Purpose.DOCKER)
        case ImageState.STALE:
            detail = "not of this source tree"
        case ImageState.MISSING:
            detail = "not built"
    return Prerequisite(f"image {image.name}", False, detail, build, Purpose.DOCKER)


def container_lacks() -> dict[str, str] | None:
    """Features that a container of the base image lacks, feature → reason; None when none can be started."""
    client = connect()
    try:
        base = states(client, ())[-1]
        if base.condition is not ImageState.READY:
            return None
        name = f"{_RUN}-{secrets.token_hex(4)}"
        try:
            said = client.containers.run(
                base.tag,
                ["faultline-node", "describe"],
                name=name,
                network_mode="none",
                labels=run_labels(_RUN),
                **RIGHTS,
            )
        finally:
            # By its name, also when it was interrupted: then nobody knows how far its making has come.
            with interruptions_ignored(), suppress(Exception):
                client.api.remove_container(name, force=True, v=True)
        lacks: dict[str, str] = json.loads(said)["lacks"]
        return lacks
    except Exception:  # the other lines show why it could not run
        return None
    finally:
        client.close()


def host_prerequisites(hosts: Mapping[str, Host], system: System) -> Sequence[Prerequisite]:
    """The prerequisites of each host for a node of `system`, all asked side by side."""

    async def all_of_them() -> list[list[Prerequisite]]:
        trials = [asyncio.ensure_future(_of_host(name, host, system)) for name, host in hosts.items()]
        # Interrupted, too, each has left its host before any failure is raised here.
        await asyncio.gather(*trials, return_exceptions=True)
        return [trial.result() for trial in trials]

    return [finding for findings in run_cancellable(all_of_them()) for finding in findings]


async def _of_host(name: str, host: Host, system: System) -> list[Prerequisite]:
    from harness.environments.ssh.environment import HostLease, connected
    from harness.environments.ssh.install import Claim, claim_on

    subject = f"host {name}"
    lease = HostLease({name: host}, Claim.of_this_process(f"{_RUN}-{name}"), system)
    try:
        async with connected(name, host) as machine:
            other = await claim_on(machine)
            if other is not None:
                used = f"{host.address} is in use by {other}"
                remedy = "wait for it, or when it was killed: faultline clean SPEC.yaml"
                return [Prerequisite(subject, False, used, remedy, Purpose.HOSTS)]
        try:
            installed = (await lease.acquire())[name]
            description = json.loads(await installed.run(["faultline-node", "describe"]))
            free = int((await installed.run(["df", "--output=avail", "-B1", "/var/lib"])).split()[-1])
        finally:
            await lease.release()
    except EnvironmentUnavailable as error:
        return [Prerequisite(subject, False, str(error).removeprefix(f"{name}: "), purpose=Purpose.HOSTS)]
    return list(_of_description(name, host, description, free))


def _of_description(name: str, host: Host, description: Mapping[str, Any], free: int) -> Iterator[Prerequisite]:
    subject, lacks = f"host {name}", description["lacks"]
    where = f"{host.address}, kernel {description['kernel']}, {free / GIB:.1f} GiB free"
    missing = [f"{feature} ({lacks[feature]})" for feature in _NEEDED_ON_HOSTS if lacks[feature]]
    if missing:
        remedy = f"on Debian: apt-get install {' '.join(packages())}"
        yield Prerequisite(subject, False, f"{host.address} lacks {', '.join(missing)}", remedy, Purpose.HOSTS)
    elif free < STORE_BYTES_LEAST:
        yield Prerequisite(
            subject, False, where, f"make room, at least {STORE_BYTES_LEAST / GIB:.0f} GiB", Purpose.HOSTS
        )
    else:
        yield Prerequisite(subject, True, where, purpose=Purpose.HOSTS)
    if lacks["netem"]:
        yield Prerequisite(
            f"netem on {name}",
            False,
            f"{lacks['netem'].rstrip('.')} (kernel {description['kernel']})",
            OTHER_KERNEL,
            Purpose.DELAYS,
        )
