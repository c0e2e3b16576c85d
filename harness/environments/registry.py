"""The environments, by the name `--environment` gives them. Imported only when chosen."""

from __future__ import annotations

from collections.abc import Mapping

from harness.cluster.hosts import Host
from harness.environments.base import Environment

ENVIRONMENTS: tuple[str, ...] = ("sim", "docker", "ssh")

COMPARABLE_CLOCKS: tuple[str, ...] = ("sim", "docker")
"""Environments whose nodes share one clock, so that the events of their traces have an order: the simulation's, or that
of the one kernel under all containers."""


def environment_named(name: str, hosts: Mapping[str, Host]) -> Environment:
    """The environment called `name`, on these hosts if it is on any. Raises ValueError naming those there are."""
    if name == "sim":
        from harness.environments.sim import Simulation

        return Simulation()
    if name == "docker":
        from harness.environments.docker.environment import Docker

        return Docker()
    if name == "ssh":
        from harness.environments.ssh.environment import Ssh

        return Ssh(hosts)
    raise ValueError(f"environment: {name!r} is not one of {', '.join(ENVIRONMENTS)}")
