"""The environments, by the name `--environment` gives them. Imported only when chosen."""

from __future__ import annotations

from harness.environments.base import Environment

ENVIRONMENTS: tuple[str, ...] = ("sim", "docker")

ONE_CLOCK: tuple[str, ...] = ("sim", "docker")
"""Environments whose nodes share one clock, so that the events of their traces have an order: the simulation's, or that
of the one kernel under all containers."""


def environment_named(name: str) -> Environment:
    """The environment called `name`. Raises ValueError naming those there are."""
    if name == "sim":
        from harness.environments.sim import Simulation

        return Simulation()
    if name == "docker":
        from harness.environments.docker import Docker

        return Docker()
    raise ValueError(f"environment: {name!r} is not one of {', '.join(ENVIRONMENTS)}")
