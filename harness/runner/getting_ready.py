"""Getting a cluster ready, before any fault, and what it means when it does not become so.

Every broker must show all brokers unfenced; then the workload makes its topic, and every replica must be in sync. A
cluster that does not become ready ends the run. On real machines a busy host, a full disk or a firewall may be the
cause: the run could not be carried out. In the simulation time waits for every process, and nothing has been broken, so
that the system itself is the cause wherever its cluster lies within what worlds are drawn from, of which every one
gets ready: the run ends with a verdict.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final

from harness.cluster.readiness import ReadinessProbe
from harness.drawn_spec import given_world
from harness.environments.base import Deployment
from harness.spec import Spec
from harness.worlds import DIMENSIONS, Dimension, fits
from workloads.workload import LeadersMissing

_READY_LIMIT_S: Final = 120.0
"""As in every drawn world. A spec that waits for less may be too impatient."""


class NotCarriedOut(Exception):
    """The run could not be carried out; the message is one line for the user."""


async def get_ready(
    spec: Spec, deployment: Deployment, set_up: Callable[[], Awaitable[None]], readiness: ReadinessProbe
) -> tuple[str, ...]:
    """Wait until the cluster is ready; gives back what it misses for ever, a line each, where that is the system's own
    doing. `readiness` asks for the topic that `set_up` makes. Raises NotCarriedOut, and SetUpError."""
    limit_s = spec.ready_limit_s
    brokers = ReadinessProbe({node.name: (node.host, node.port) for node in deployment.layout.brokers})

    def crashed() -> bool:
        return bool(deployment.crashes)

    try:
        missing = await brokers.until_ready_or_stuck(limit_s, crashed)
    finally:
        brokers.close()
    if not missing:
        leaderless: LeadersMissing | None = None
        try:
            await set_up()
        except LeadersMissing as error:
            leaderless = error
        missing = await readiness.until_ready_or_stuck(limit_s, crashed)
        if leaderless is not None and not missing:
            raise leaderless
    if missing and not _is_to_blame(spec):
        raise NotCarriedOut(_reason(missing, deployment, limit_s))
    return tuple(missing)


def _is_to_blame(spec: Spec) -> bool:
    """Whether nothing but the system can be the cause."""
    return spec.environment == "sim" and lies_within_worlds(spec)


def _reason(missing: Sequence[str], deployment: Deployment, limit_s: float) -> str:
    if deployment.crashes:
        crash = deployment.crashes[0]
        last = (crash.error.strip().splitlines() or ["without any output"])[-1]
        return f"{crash.node} ended before the cluster was ready: {last}"
    return f"the cluster is not ready, and no nearer to it for {limit_s:g} s: {'; '.join(missing)}"


def lies_within_worlds(spec: Spec) -> bool:
    """Whether the cluster of a spec, which has been drawn, lies within what worlds are drawn from: no larger, with the
    settings of each node in between those that are drawn, and the default of any other number. Settings by hand may
    keep every cluster from getting ready, such as sessions that are shorter than a message takes."""
    nodes = ({}, *spec.node_settings.values())
    return spec.ready_limit_s >= _READY_LIMIT_S and all(
        _settings_lie_within_worlds(replace(spec, settings={**spec.settings, **each}, node_settings={}))
        for each in nodes
    )


def _settings_lie_within_worlds(spec: Spec) -> bool:
    defaults = {**spec.deployed_system.settings, **spec.deployed_system.defaults}
    drawn = {name for dimension in DIMENSIONS for name in (dimension.name, dimension.broker_name)}
    given = given_world(spec)
    world = {each.name: given[each.name] for each in DIMENSIONS if each.is_setting or each.of_cluster}
    return (
        all(name in drawn or value == defaults[name] for name, value in spec.settings.items() if _is_number(value))
        and all(_reaches(each, world[each.name]) for each in DIMENSIONS if each.name in world)
        and fits(world)
    )


def _reaches(dimension: Dimension, value: object) -> bool:
    """Whether a number lies within what is drawn. Any name that a setting can have lets a cluster get ready, and so
    does a smaller one."""
    drawn = [each for each in dimension.values if isinstance(each, int | float)]
    if not isinstance(value, int | float):
        return True
    return (not dimension.is_setting or min(drawn) <= value) and value <= max(drawn)


def _is_number(text: str) -> bool:
    return text.strip().lstrip("-").isdecimal()
