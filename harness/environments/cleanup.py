"""`faultline clean`: remove containers, networks and installations that runs left behind.

A run removes its own things, also when it is interrupted. This finds the rest, after a run was killed or its machine
went down: containers and networks with the label `faultline.run`, and on the hosts of a spec the installation
directory. A run that is still going on this machine is spared unless everything is asked for. Nothing without our mark
is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

from harness.cluster.hosts import Host
from harness.environments.docker.container import one_line
from harness.environments.docker.engine import OWNER_LABEL, RUN_LABEL, EngineUnreachable, connect
from harness.environments.interrupts import run_cancellable
from harness.environments.process_identity import still_runs


@dataclass(frozen=True, slots=True)
class Leftover:
    """One thing with our mark on it."""

    kind: str
    """container, network, host."""
    name: str
    run: str
    """The run it was made for."""
    owner: str
    """The process that made it, as `harness.environments.process_identity` writes it; empty when unknown."""
    remove: Callable[[], None]
    """Removes it; does nothing when it has gone meanwhile. Raises LeftoverError."""


class LeftoverError(Exception):
    """Something could not be removed; the message is one line."""


class CleanupStatus(StrEnum):
    """Result of cleaning one leftover."""

    REMOVED = "removed"
    SPARED = "spared"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Cleaned:
    """One leftover and what became of it."""

    leftover: Leftover
    status: CleanupStatus
    why: str = ""

    def text(self) -> str:
        """One line."""
        of_run = f" of run {self.leftover.run}" if self.leftover.run else ""
        return f"{self.status} {self.leftover.kind} {self.leftover.name}{of_run}{f': {self.why}' if self.why else ''}"


def clean(leftovers: Iterator[Leftover], *, everything: bool = False) -> Iterator[Cleaned]:
    """Remove leftovers in their order; one result each. With `everything`, also those of a run that is still going."""
    for leftover in leftovers:
        if leftover.owner and not everything and still_runs(leftover.owner):
            yield Cleaned(leftover, CleanupStatus.SPARED, "the run is still going; --all removes it too")
            continue
        try:
            leftover.remove()
        except LeftoverError as error:
            yield Cleaned(leftover, CleanupStatus.FAILED, str(error))
        else:
            yield Cleaned(leftover, CleanupStatus.REMOVED)


def sweep(hosts: Mapping[str, Host], *, run: str, everything: bool, report: Callable[[str], None]) -> bool:
    """Clean the Docker engine and these hosts, with a line for each thing; whether all was seen and cleaned.

    Without hosts an engine that does not answer is a failure; with them it is only reported.
    """
    well, count = True, 0

    def remove(leftovers: Iterator[Leftover]) -> None:
        nonlocal well, count
        for cleaned in clean(leftovers, everything=everything):
            report(cleaned.text())
            count += 1
            well = well and cleaned.status is not CleanupStatus.FAILED

    try:
        client = connect()
    except EngineUnreachable as error:
        report(f"Docker passed over: {error}")
        well = bool(hosts)
    else:
        try:
            remove(in_docker(client, run))
        finally:
            client.close()
    remove(in_hosts(hosts, run))
    if well and not count:
        report("nothing was left behind")
    return well


def in_docker(client: Any, run: str = "") -> Iterator[Leftover]:
    """Containers, then networks, since a network goes only once nothing hangs on it; of one run alone if it is named.

    `client` is a docker client.
    """
    marked = {"label": f"{RUN_LABEL}={run}" if run else RUN_LABEL}
    list_containers = partial(client.containers.list, all=True, filters=marked, ignore_removed=True)
    yield from _all_of_docker("container", list_containers, lambda it: it.remove(force=True, v=True))
    list_networks = partial(client.networks.list, filters=marked)
    yield from _all_of_docker("network", list_networks, lambda it: it.remove())


def _all_of_docker(kind: str, list_items: Callable[[], list[Any]], remove: Callable[[Any], None]) -> Iterator[Leftover]:
    """Items of one kind; one that cannot be removed where the engine does not list them."""
    try:
        items = list_items()
    except Exception as error:  # the SDK lets errors of three libraries through
        yield Leftover(f"{kind}s", "of the engine", "", "", _refusal(one_line(error)))
        return
    for item in items:
        yield _of_docker(kind, item, remove)


def _refusal(reason: str) -> Callable[[], None]:
    """Removes nothing, for this reason."""

    def refused() -> None:
        raise LeftoverError(reason)

    return refused


def _of_docker(kind: str, item: Any, remove: Callable[[Any], None]) -> Leftover:
    from docker.errors import APIError, NotFound

    def removed() -> None:
        try:
            remove(item)
        except NotFound:
            return
        except Exception as error:
            if isinstance(error, APIError) and error.status_code == 409 and "already in progress" in str(error):
                return
            raise LeftoverError(one_line(error)) from None

    labels = (item.attrs.get("Config") or item.attrs).get("Labels") or {}
    return Leftover(kind, item.name, labels.get(RUN_LABEL, ""), labels.get(OWNER_LABEL, ""), removed)


def in_hosts(hosts: Mapping[str, Host], run: str = "") -> Iterator[Leftover]:
    """The claim on each host, of one run alone if it is named. A host that does not answer is a failure."""
    if not hosts:
        return
    from harness.environments.machines.machine import MachineError
    from harness.environments.ssh.environment import connected
    from harness.environments.ssh.install import Claim, claim_on, uninstall

    async def claim(name: str, host: Host) -> Claim | None:
        async with connected(name, host) as machine:
            return await claim_on(machine)

    async def free(name: str, host: Host) -> None:
        async with connected(name, host) as machine:
            await uninstall(machine)

    def reason(error: MachineError) -> str:
        _, _, text = str(error).partition(": ")  # after the node's name, which the line has already
        return text

    def removal(name: str, host: Host) -> Callable[[], None]:
        def removed() -> None:
            try:
                run_cancellable(free(name, host))
            except MachineError as error:
                raise LeftoverError(reason(error)) from None

        return removed

    for name, host in hosts.items():
        place = f"{name} at {host.address}"
        try:
            holder = run_cancellable(claim(name, host))
        except MachineError as error:
            yield Leftover("host", place, "", "", _refusal(reason(error)))
            continue
        if holder is not None and run in ("", holder.run):
            yield Leftover("host", place, holder.run, holder.owner, removal(name, host))
