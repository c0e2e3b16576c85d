"""Stories of the controllers' quorum; see `nemesis.faults.scripted.script`.

Whatever they ask the cluster to decide meanwhile changes `max.message.bytes` of the topic by a few bytes, which
disturbs nobody; they ask once for it to be changed back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from nemesis.faults.scripted.script import Story, until_seen
from nemesis.handle import Site
from nemesis.ports import both_ways

_KEY, _USUAL = "max.message.bytes", 1_048_588


@dataclass(frozen=True, slots=True)
class QuorumStory(Story):
    """A story about the active controller and those that may take over from it."""

    patience_ms: float = 2_000.0

    def targets(self) -> tuple[str, ...]:
        """The active controller."""
        return ("controller",)

    async def active_of_three(self, site: Site) -> str | None:
        """The active controller; None, and noted, where there are fewer than three."""
        if len(site.cluster.controllers) < 3:
            site.notes.append("three controllers are needed")
            return None
        (active,) = await site.find(self.targets())
        return active


@dataclass(frozen=True, slots=True)
class ZombieController(QuorumStory):
    """An active controller appends what it can never commit, and must drop it when it finds that it was deposed.

    1. The active controller is cut from the others; brokers see all of them.
    2. It is asked for a change, which only its own log takes.
    3. Another controller is elected and decides, at the same offset.
    4. The zombie is back, and follows; after a while its successor falls silent, so that the zombie may be elected.
    """

    name: ClassVar[str] = "zombie-controller"

    async def inject(self, site: Site) -> None:
        """Run through the steps; what is still held at the end comes back then."""
        patience_s, controllers = self.patience_ms / 1000, site.cluster.controllers
        zombie = await self.active_of_three(site)
        if zombie is None:
            return
        reunite = await site.cut(both_ways([zombie], controllers))
        await _have_something_decided(site)
        successor = await _until_another_is_active(site, zombie, 3 * patience_s)
        if successor is None:
            return
        await site.sleep(site.random.uniform(0.0, 0.3) * patience_s)
        if site.random.random() < 0.5:
            await _have_something_decided(site)
        await reunite()
        await site.sleep(site.random.uniform(0.1, 0.5) * patience_s)
        await site.cut(both_ways([successor], (*controllers, *site.cluster.brokers)))
        await site.sleep(site.random.uniform(1.0, 2.0) * patience_s)


@dataclass(frozen=True, slots=True)
class LaggingController(QuorumStory):
    """A controller that missed what was committed stands for election.

    1. A controller that is not active is cut from the others.
    2. The others decide something.
    3. The active one stalls, and the laggard sees the last one again: it has been without a leader for longer.
    """

    name: ClassVar[str] = "lagging-controller"

    async def inject(self, site: Site) -> None:
        """Run through the steps; what is still held at the end comes back then."""
        patience_s, controllers = self.patience_ms / 1000, site.cluster.controllers
        active = await self.active_of_three(site)
        if active is None:
            return
        laggard = site.random.choice([controller for controller in controllers if controller != active])
        site.aim((laggard,))
        reunite = await site.cut(both_ways([laggard], controllers))
        await site.sleep(site.random.uniform(0.3, 0.6) * patience_s)
        await _have_something_decided(site)
        await site.pause(active)
        await reunite()
        await site.sleep(site.random.uniform(1.5, 2.5) * patience_s)


async def _have_something_decided(site: Site) -> None:
    async def change(value: int) -> None:
        await site.cluster.admin.configure(site.topic, _KEY, str(value))

    async def back() -> None:
        await change(_USUAL)

    site.undone_by(back)
    await change(_USUAL + site.random.randint(1, 9))


async def _until_another_is_active(site: Site, former: str, limit_s: float) -> str | None:
    """The controller that takes over from `former` within `limit_s`, or None."""

    async def another() -> str | None:
        active = await site.cluster.controller()
        return active if active != former else None

    active = await until_seen(site, another, limit_s)
    if active is None:
        site.notes.append(f"nobody took over from {former}")
    return active
