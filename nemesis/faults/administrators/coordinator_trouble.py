"""Trouble of the coordinator of a group, while a topic that the group commits offsets of is deleted and made anew."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from enum import StrEnum
from typing import Final

from nemesis.handle import FaultHandle
from nemesis.ports import SIDE_GROUP, SIDE_TOPIC, ChannelName, both_ways, on_channel, one_way

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
) -> Callable[[], Awaitable[None]] | None:
    """Cut the coordinator off from what it is to lack, if there is one, and wait for what comes of it; what heals that
    again."""
    admin = handle.cluster.admin
    coordinator = await admin.coordinator(SIDE_GROUP)
    if coordinator is None:
        return None
    handle.targets.add((coordinator,))
    links = both_ways((coordinator,), handle.cluster.controllers)
    if trouble is CoordinatorTrouble.BEHIND:
        return await handle.cut(on_channel(links, ChannelName.METADATA), reset=True)
    others = [broker for broker in handle.cluster.brokers if broker != coordinator]

    async def is_succeeded() -> bool:
        return await admin.coordinator(SIDE_GROUP) not in (None, coordinator)

    async def is_loaded() -> bool:
        return await admin.committed(SIDE_GROUP, SIDE_TOPIC, 0) is not None

    async def is_alone() -> bool:
        view = await admin.describe(_GROUPS)
        partitions = view.partitions.values() if view is not None else ()
        return any(one.leader == coordinator and one.isr == (coordinator,) for one in partitions)

    async def until(holds: Callable[[], Awaitable[bool]], otherwise: str) -> None:
        for _ in range(_LOOKS_MOST):
            if await holds():
                return
            await handle.sleep(patience_ms / 1000 / _LOOKS_BY_PATIENCE)
        handle.notes.append(otherwise)

    if trouble is CoordinatorTrouble.LOADING:
        heals: list[Callable[[], Awaitable[None]]] = []

        async def depose() -> None:
            heals.append(await handle.hold(on_channel(one_way(others, (coordinator,)), ChannelName.FETCH)))
            await handle.sleep(_ONE_MORE_COMMIT_S)
            fetches = on_channel(one_way(others, others), ChannelName.FETCH)
            heals.append(await handle.hold((*links, *both_ways((coordinator,), others), *fetches)))
            await until(is_succeeded, f"{coordinator} has no successor")

        async def reconnect_all() -> None:
            for heal in heals:
                await heal()
            await until(is_loaded, "the coordinator has not loaded the offsets")

        await meanwhile(depose())
        return reconnect_all
    reconnect = await handle.hold(on_channel(one_way(others, (coordinator,)), ChannelName.FETCH))
    # Nobody lags where nothing is appended: so the commits go on.
    await meanwhile(until(is_alone, f"{coordinator} is not left alone"))
    return reconnect
