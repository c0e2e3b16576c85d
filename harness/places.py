"""The environments, by the name `--environment` gives them. Imported only when chosen."""

from __future__ import annotations

from harness.environments.base import Environment

ENVIRONMENTS: tuple[str, ...] = ("sim",)


def environment_named(name: str) -> Environment:
    """The environment called `name`. Raises ValueError naming those there are."""
    if name == "sim":
        from harness.environments.sim import Simulation

        return Simulation()
    raise ValueError(f"environment: {name!r} is not one of {', '.join(ENVIRONMENTS)}")
