"""The nemesis: carries a schedule out and keeps the record of what it did.

Every fault runs by itself, so faults overlap as the schedule has them. A fault is injected at its moment. It is healed
when its duration is over, its end condition holds or the run ends, whichever comes first, and healed as well when the
nemesis is cancelled. The duration counts from when the fault holds, since a busy machine takes its time to inject it;
only that of a fault `in_steps` counts from its first step. Each is recorded when it begins, when it holds and whenever
something was measured, so that a run killed in the middle still shows what was broken at the time, and when it has
healed, with its evidence. The last record of a number counts. When everything is healed, the nemesis waits for late
effects of frozen or cut-off nodes and reverts them, and goes on with that for as long as the cluster recovers.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from nemesis.faults.fault import Fault
from nemesis.handle import ActiveEffects, FaultHandle
from nemesis.ports import ClusterUnderTest, EnvironmentCapability
from nemesis.schedule import Schedule, ScheduledFault
from nemesis.situation import Situation
from nemesis.timeline import StepMoment, Timeline

_LATE_S = 4.0
"""Time after the last fault in which an unanswered request usually still takes effect: longer than a broker keeps
forwarding it. Where a partition has held it, its kernel may send it again much later."""


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
    """The fault's own fields; under `resolved` the nodes its symbolic targets stood for; `not_injected` with the
    reason where its moment never came, `failed` where it could not be injected or its request was not done, `not_ended`
    where the condition that was to end it never held. Of a fault that waited for a condition that (`when`), and the
    seconds from the start of the workload to its moment (`struck_s`)."""
    evidence: Mapping[str, Any]
    """Numbers by name, summed over nodes, and under `nodes` the same of each node, as it was measured there; also
    `injection_seconds` and `healing_seconds`, which the environment took for it. `unknown_<name>` stands for a number
    that could not be read back."""
    took_effect: bool
    note: str

    @property
    def injected(self) -> bool:
        """Whether its moment came."""
        return "not_injected" not in self.detail


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
        situation: Situation | None = None,
        step_s: float = 0.0,
        replication_factor: int | None = None,
    ) -> None:
        """`situation` is what the conditions of the schedule are checked against; a source keeps it up to date. The
        environment takes `step_s` to carry out one step of a fault."""
        self._cluster = cluster
        self._schedule = schedule
        self._random = random
        self._record = record
        self._topic = topic
        self._min_isr = min_isr
        self._situation = situation or Situation()
        self._situation.names |= dict.fromkeys(schedule.bound_names, ())
        self._step_s = step_s
        self._replication_factor = replication_factor
        self._effects = ActiveEffects()
        self._active: dict[int, str] = {}
        self.injections: list[Injection] = []
        """Every fault that has healed, in that order."""
        self._handles: list[FaultHandle] = []
        self._unconfirmed: dict[str, str] = {}

    @property
    def unhealed(self) -> tuple[str, ...]:
        """What could not be undone so far, a line each."""
        return (*(line for handle in self._handles for line in handle.unhealed), *self._unconfirmed.values())

    @property
    def active(self) -> tuple[str, ...]:
        """The faults that are active now, in a few words each."""
        return tuple(self._active.values())

    async def run(self, until_s: float) -> None:
        """Carry the schedule out until the loop's clock reads `until_s`; return then, once everything is healed."""
        start_s = asyncio.get_running_loop().time()
        timeline = Timeline(self._situation, start_s, until_s)
        # One stream for each fault, drawn before anything happens: the draws of one fault do not shift the others.
        streams = [Random(self._random.getrandbits(64)) for _ in self._schedule]
        faults = [
            asyncio.ensure_future(self._carry_out(number, scheduled, stream, timeline, until_s))
            for number, (scheduled, stream) in enumerate(zip(self._schedule, streams, strict=True))
            if start_s + scheduled.at_s < until_s
        ]
        await asyncio.gather(*faults, asyncio.sleep(until_s - start_s))
        if self._effects.confirmations:
            await asyncio.sleep(_LATE_S)
            await self._confirm()

    async def keep_confirmed(self) -> None:
        """Confirm again and again what is healed, for as long as the caller waits for the cluster to recover.

        A request that was held by a partition is sent again after a time that doubles: once everything is healed, it
        may take effect as late again as it was asked for before. Where replicas can only be put back by cancelling what
        is under way, which may be what an earlier confirmation has begun, each pause is twice as long as the last one.
        """
        cancels = EnvironmentCapability.REPLACED_REASSIGNMENTS in self._cluster.unsupported
        pause_s = _LATE_S
        while self._effects.confirmations:
            await asyncio.sleep(pause_s)
            await self._confirm()
            pause_s *= 2 if cancels else 1

    async def _confirm(self) -> None:
        for purpose, confirm in self._effects.confirmations.items():
            try:
                await confirm()
            except Exception as error:
                self._unconfirmed[purpose] = f"{purpose}: {type(error).__name__}: {error}"
            else:
                self._unconfirmed.pop(purpose, None)

    async def _carry_out(
        self, number: int, scheduled: ScheduledFault, random: Random, timeline: Timeline, until_s: float
    ) -> None:
        loop = asyncio.get_running_loop()
        moment = await timeline.reach(scheduled)
        fault = scheduled.fault
        record = _Record(number, scheduled, moment, self._cluster.now_ns())

        def save() -> None:
            self._record(record.injection(handle))

        handle = FaultHandle(
            self._cluster,
            self._effects,
            random,
            topic=self._topic,
            min_isr=self._min_isr,
            situation=self._situation,
            on_evidence=save,
            step_s=self._step_s,
            trigger=moment.nodes,
            replication_factor=self._replication_factor,
            of_brokers=fault.of_brokers,
        )
        self._handles.append(handle)
        if moment.missed:
            handle.notes.append(f"not injected: {moment.missed}")
            record.ended_ns = record.started_ns
            self.injections.append(record.injection(handle))
            save()
            return
        self._active[number] = fault.describe()
        try:
            end_s = min(loop.time() + scheduled.for_s, until_s)
            async with asyncio.timeout_at(end_s if fault.in_steps else None) as limit:
                save()
                await fault.inject(handle)
                if not fault.ends_by_itself:
                    record.take_effect(self._cluster.now_ns())
                if not fault.in_steps:
                    limit.reschedule(min(loop.time() + scheduled.for_s, until_s))
                save()
                self._active[number] = " ".join((fault.describe(), *_resolved(handle)))
                if scheduled.binds:
                    self._situation.names[scheduled.binds] = handle.targets.stood_for(fault.nodes_named())
                timeline.injected(scheduled.id)
                if not fault.ends_by_itself:
                    await (timeline.until(scheduled.until) if scheduled.until else loop.create_future())
        except TimeoutError as error:
            if not limit.expired():
                record.fail(handle, "injecting failed", f"{type(error).__name__}: {error}")
            elif scheduled.until is not None and scheduled.for_s == math.inf:
                record.not_ended = (
                    f"it lasted to the end of the workload, since this did not hold: {scheduled.until.describe()}"
                )
                handle.notes.append(record.not_ended)
        except Exception as error:
            record.fail(handle, "injecting failed", f"{type(error).__name__}: {error}")
        finally:
            if handle.refusal:
                record.fail(handle, "not done", handle.refusal)
            record.healing_ns = self._cluster.now_ns()
            try:
                await handle.heal()
            finally:
                record.ended_ns = self._cluster.now_ns()
                del self._active[number]
                self.injections.append(record.injection(handle))
                save()
                timeline.ended(scheduled.id)


@dataclass(slots=True)
class _Record:
    """The times of one fault, and its record so far."""

    number: int
    scheduled: ScheduledFault
    moment: StepMoment
    started_ns: int
    injection_ns: int | None = None
    """How long its injection took; None before, and for a fault in steps."""
    healing_ns: int | None = None
    """When its healing began."""
    ended_ns: int | None = None
    not_ended: str = ""
    """Says that what was to end it never happened; empty for a fault that ended as it should."""
    failed: str = ""
    """Why it could not be injected, or what it asks for was not done."""

    def fail(self, handle: FaultHandle, what: str, reason: str) -> None:
        """Something that the fault is for did not come about."""
        self.failed = reason
        handle.notes.append(f"{what}: {reason}")

    @property
    def fault(self) -> Fault:
        """The fault itself."""
        return self.scheduled.fault

    def take_effect(self, now_ns: int) -> None:
        """The injection is over: the fault counts from now. One of several steps counts from its first."""
        if not self.fault.in_steps:
            self.injection_ns = now_ns - self.started_ns
            self.started_ns = now_ns

    def injection(self, handle: FaultHandle) -> Injection:
        """The record for others."""
        evidence: dict[str, Any] = dict(handle.evidence)
        if self.injection_ns is not None:
            evidence["injection_seconds"] = self.injection_ns / 1e9
        if self.healing_ns is not None and self.ended_ns is not None:
            evidence["healing_seconds"] = (self.ended_ns - self.healing_ns) / 1e9
        if handle.evidence_of_node:
            evidence["nodes"] = {node: dict(numbers) for node, numbers in handle.evidence_of_node.items()}
        return Injection(
            number=self.number,
            fault=self.fault.name,
            family=self.fault.family.name,
            nodes=tuple(handle.targets.nodes),
            started_ns=self.started_ns,
            ended_ns=self.ended_ns,
            detail=self._detail(handle),
            evidence=evidence,
            took_effect=self.fault.took_effect(handle.evidence),
            note="; ".join([" ".join((self.fault.describe(), *_resolved(handle))), *handle.notes]),
        )

    def _detail(self, handle: FaultHandle) -> dict[str, Any]:
        detail = {**self.fault.to_mapping(), "resolved": handle.targets.resolved}
        if self.scheduled.when is not None:
            detail |= {"when": self.scheduled.when.to_mapping(), "struck_s": round(self.moment.at_s, 6)}
        unmet = {"not_injected": self.moment.missed, "failed": self.failed, "not_ended": self.not_ended}
        return detail | {name: reason for name, reason in unmet.items() if reason}


def _resolved(handle: FaultHandle) -> list[str]:
    return [f"[{target}: {' '.join(nodes)}]" for target, nodes in handle.targets.resolved.items() if target != "all"]
