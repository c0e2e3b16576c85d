"""The nemesis: carries a schedule out and keeps the record of what it did.

Every fault runs by itself, so faults overlap as the schedule has them. A fault is injected at its time, healed when its
duration is over or the run's is, whichever comes first, and healed as well when the nemesis is cancelled. The duration
counts from when the fault holds, since a busy machine takes its time to inject it; only that of a fault `in_steps`
counts from its first step. Each is
recorded when it begins and when it holds, so that a run killed in the middle still shows what was broken at the time,
and when it has healed, with its evidence. The last record of a number counts. When everything is healed, the nemesis
waits for late effects of frozen or cut-off nodes and reverts them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from nemesis.faults.fault import Fault
from nemesis.handle import ActiveEffects, FaultHandle
from nemesis.ports import ClusterUnderTest
from nemesis.schedule import Schedule, ScheduledFault

_LATE_S = 4.0
"""Longest time after the last fault in which an unanswered request may still take effect: longer than a broker keeps
forwarding it."""


@dataclass(frozen=True, slots=True)
class Injection:
    """Record of one fault of the schedule."""

    number: int
    """Its place in the schedule, from 0; the later records of a fault have the number of the first."""
    fault: str
    family: str
    nodes: tuple[str, ...]
    started_ns: int
    """When the fault held: an environment may take its time to kill, and what was acknowledged meanwhile came before. A
    sequence of steps counts from its first."""
    ended_ns: int | None
    detail: Mapping[str, Any]
    """The fault's own fields, and under `resolved` the nodes its symbolic targets stood for."""
    evidence: Mapping[str, Any]
    """Numbers by name, summed over nodes; under `nodes` the same a node when there were several."""
    took_effect: bool
    note: str


class Nemesis:
    """Carries out one schedule on one cluster, once."""

    def __init__(
        self,
        cluster: ClusterUnderTest,
        schedule: Schedule,
        random: Random,
        record: Callable[[Injection], None],
        topic: str = "",
        min_isr: int = 1,
    ) -> None:
        self._cluster = cluster
        self._schedule = schedule
        self._random = random
        self._record = record
        self._topic = topic
        self._min_isr = min_isr
        self._effects = ActiveEffects()
        self._active: dict[int, str] = {}
        self.injections: list[Injection] = []
        """Every fault that has healed, in that order."""

    @property
    def active(self) -> tuple[str, ...]:
        """The faults that are active now, in a few words each."""
        return tuple(self._active.values())

    async def run(self, until_s: float) -> None:
        """Carry the schedule out until the loop's clock reads `until_s`; return then, once everything is healed."""
        start_s = asyncio.get_running_loop().time()
        # One stream for each fault, drawn before anything happens: the draws of one fault do not shift the others.
        streams = [Random(self._random.getrandbits(64)) for _ in self._schedule]
        faults = [
            asyncio.ensure_future(self._carry_out(number, scheduled, stream, start_s, until_s))
            for number, (scheduled, stream) in enumerate(zip(self._schedule, streams, strict=True))
            if start_s + scheduled.at_s < until_s
        ]
        await asyncio.gather(*faults, asyncio.sleep(until_s - start_s))
        if self._effects.confirmations:
            await asyncio.sleep(_LATE_S)
        for confirm in self._effects.confirmations.values():
            await confirm()

    async def _carry_out(
        self, number: int, scheduled: ScheduledFault, random: Random, start_s: float, until_s: float
    ) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, start_s + scheduled.at_s - loop.time()))
        fault = scheduled.fault
        handle = FaultHandle(self._cluster, self._effects, random, self._topic, self._min_isr)
        began_ns = self._cluster.now_ns()
        self._active[number] = fault.describe()
        try:
            end_s = min(loop.time() + scheduled.for_s, until_s)
            async with asyncio.timeout_at(end_s if fault.in_steps else None) as limit:
                self._record(_injection(number, fault, handle, began_ns, None))
                await fault.inject(handle)
                if not fault.ends_by_itself:
                    began_ns = self._cluster.now_ns()
                if not fault.in_steps:
                    limit.reschedule(min(loop.time() + scheduled.for_s, until_s))
                self._record(_injection(number, fault, handle, began_ns, None))
                self._active[number] = " ".join((fault.describe(), *_resolved(handle)))
                if not fault.ends_by_itself:
                    await loop.create_future()
        except TimeoutError:
            pass
        except Exception as error:
            handle.notes.append(f"injecting failed: {type(error).__name__}: {error}")
        finally:
            await handle.heal()
            del self._active[number]
            healed = _injection(number, fault, handle, began_ns, self._cluster.now_ns())
            self.injections.append(healed)
            self._record(healed)


def _injection(number: int, fault: Fault, handle: FaultHandle, began_ns: int, ended_ns: int | None) -> Injection:
    evidence: dict[str, Any] = dict(handle.evidence)
    if len(handle.evidence_of_node) > 1:
        evidence["nodes"] = handle.evidence_of_node
    return Injection(
        number=number,
        fault=fault.name,
        family=fault.family.name,
        nodes=tuple(handle.target_nodes),
        started_ns=began_ns,
        ended_ns=ended_ns,
        detail={**fault.to_mapping(), "resolved": handle.resolved},
        evidence=evidence,
        took_effect=fault.took_effect(handle.evidence),
        note="; ".join([" ".join((fault.describe(), *_resolved(handle))), *handle.notes]),
    )


def _resolved(handle: FaultHandle) -> list[str]:
    return [f"[{target}: {' '.join(nodes)}]" for target, nodes in handle.resolved.items() if target != "all"]
