"""Trouble of the coordinator of a group, while a topic that the group commits offsets of is deleted and made anew."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from nemesis.handle import FaultHandle, Heal
from nemesis.ports import SIDE_GROUP, SIDE_TOPIC, ChannelName, Link, both_ways, on_channel, one_way

_GROUPS: Final = "__consumer_offsets"
_ONE_MORE_COMMIT_S: Final = 0.05
"""For the answers to the last fetches from a coordinator: its followers have a commit, and do not hear that it is
committed."""
_LOOKS_MOST, _LOOKS_BY_PATIENCE = 15, 5
"""How often it is looked at the coordinator, and how often within the patience."""
_Meanwhile = Callable[[Coroutine[None, None, object]], Awaitable[None]]
"""Goes on committing until something is done."""


class CoordinatorTrouble(StrEnum):
    """What becomes of the coordinator of the group that commits, while a topic is deleted and made anew."""

    BEHIND = "behind"
    """It reads no metadata, and then of both changes at once: its fetch of the deletion is broken off. Its session goes
    on."""
    ALONE = "alone"
    """Nobody fetches from it, so that its ISR may be too small to delete the offsets of the topic, until the group
    commits for the next one."""
    LOADING = "loading"
    """It is gone, and nobody fetches from its successor, which cannot have loaded the offsets before all is over."""


async def cut_coordinator_off(
    trouble: CoordinatorTrouble, handle: FaultHandle, patience_ms: float, meanwhile: _Meanwhile
) -> Heal | None:
    """Cut the coordinator off from what it is to lack, if there is one, and wait for what comes of it; what heals that
    again."""
    name = await handle.cluster.admin.coordinator(SIDE_GROUP)
    if name is None:
        return None
    handle.targets.add((name,))
    coordinator = _Coordinator(name, handle, patience_ms / 1000 / _LOOKS_BY_PATIENCE, meanwhile)
    match trouble:
        case CoordinatorTrouble.BEHIND:
            return await coordinator.fall_behind()
        case CoordinatorTrouble.ALONE:
            return await coordinator.be_left_alone()
        case CoordinatorTrouble.LOADING:
            return await coordinator.be_succeeded()


@dataclass(frozen=True, slots=True)
class _Coordinator:
    """The coordinator, and what heals each of its troubles."""

    name: str
    handle: FaultHandle
    look_s: float
    """The time between two looks at it."""
    meanwhile: _Meanwhile

    @property
    def _others(self) -> list[str]:
        return [broker for broker in self.handle.cluster.brokers if broker != self.name]

    @property
    def _controllers(self) -> tuple[Link, ...]:
        """The links with the controllers."""
        return both_ways((self.name,), self.handle.cluster.controllers)

    @property
    def _followers_fetches(self) -> tuple[Link, ...]:
        return on_channel(one_way(self._others, (self.name,)), ChannelName.FETCH)

    async def fall_behind(self) -> Heal:
        return await self.handle.cut(on_channel(self._controllers, ChannelName.METADATA), reset=True)

    async def be_left_alone(self) -> Heal:
        reconnect = await self.handle.hold(self._followers_fetches)
        # Nobody lags where nothing is appended: so the commits go on.
        await self.meanwhile(self._until(self._is_alone, f"{self.name} is not left alone"))
        return reconnect

    async def be_succeeded(self) -> Heal:
        heals: list[Heal] = []

        async def depose() -> None:
            heals.append(await self.handle.hold(self._followers_fetches))
            await self.handle.sleep(_ONE_MORE_COMMIT_S)
            fetches = on_channel(one_way(self._others, self._others), ChannelName.FETCH)
            with_brokers = both_ways((self.name,), self._others)
            heals.append(await self.handle.hold((*self._controllers, *with_brokers, *fetches)))
            await self._until(self._is_succeeded, f"{self.name} has no successor")

        async def reconnect() -> None:
            for heal in heals:
                await heal()
            await self._until(self._has_loaded, "the coordinator has not loaded the offsets")

        await self.meanwhile(depose())
        return reconnect

    async def _until(self, holds: Callable[[], Awaitable[bool]], otherwise: str) -> None:
        for _ in range(_LOOKS_MOST):
            if await holds():
                return
            await self.handle.sleep(self.look_s)
        self.handle.notes.append(otherwise)

    async def _is_alone(self) -> bool:
        view = await self.handle.cluster.admin.describe(_GROUPS)
        partitions = view.partitions.values() if view is not None else ()
        return any(one.leader == self.name and one.isr == (self.name,) for one in partitions)

    async def _is_succeeded(self) -> bool:
        return await self.handle.cluster.admin.coordinator(SIDE_GROUP) not in (None, self.name)

    async def _has_loaded(self) -> bool:
        """Of whichever broker coordinates the group by now: it tells offsets."""
        return await self.handle.cluster.admin.committed(SIDE_GROUP, SIDE_TOPIC, 0) is not None
