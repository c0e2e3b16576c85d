"""The timeline of a run: reaches the moments of steps, by the clock and by what happens."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from nemesis.conditions import Traced, TriggerCondition
from nemesis.schedule import ScheduledStep
from nemesis.situation import Occurrence, Situation


class StepMoment(NamedTuple):
    """The moment of a step."""

    at_s: float
    """In seconds from the start of the workload."""
    missed: str = ""
    """Why it never comes; empty once it is there."""
    nodes: tuple[str, ...] = ()
    """The nodes of the occurrences that the step waited for."""


class Timeline:
    """From the start of the workload to its end, by the loop's clock."""

    def __init__(self, situation: Situation, start_s: float, until_s: float) -> None:
        self.situation = situation
        self._start_s = start_s
        self._until_s = until_s

    async def reach(self, step: ScheduledStep) -> StepMoment:
        """Wait for the moment of a step, or until it cannot come any more."""
        loop = asyncio.get_running_loop()
        nodes: tuple[str, ...] = ()
        await asyncio.sleep(max(0.0, self._start_s + step.at_s - loop.time()))
        if step.when is not None:
            end_s = self._until_s
            if step.timeout_s is not None:
                end_s = min(end_s, loop.time() + step.timeout_s)
            waited_from_s, since = loop.time(), len(self.situation.events)
            try:
                async with asyncio.timeout_at(end_s):
                    nodes = await self.until(step.when)
            except TimeoutError:
                waited_s = loop.time() - waited_from_s
                missed = f"the condition did not hold within {waited_s:.3g} s: {step.when.describe()}"
                lacking = step.when.lacking(self.situation, since)
                if lacking != step.when:
                    missed += f"; it still waited for: {lacking.describe()}"
                return StepMoment(loop.time() - self._start_s, missed)
        if step.then_after_s:
            await asyncio.sleep(min(step.then_after_s, max(0.0, self._until_s - loop.time())))
        missed = "" if loop.time() < self._until_s else "its moment came after the end of the workload"
        return StepMoment(loop.time() - self._start_s, missed, nodes)

    async def until(self, condition: TriggerCondition) -> tuple[str, ...]:
        """Wait until a condition holds; of occurrences those from now on count. The nodes that they happened to."""
        situation, since = self.situation, len(self.situation.events)
        kinds = [kind for part in condition.parts() if isinstance(part, Traced) for kind in part.events]
        with situation.watching(kinds):
            await situation.until(lambda: condition.holds(situation, since))
        return condition.happened_to(situation, since)

    def injected(self, step: str) -> None:
        """A fault has taken hold."""
        if step:
            self.situation.occurred(Occurrence.INJECTED, step)

    def ended(self, step: str) -> None:
        """A fault has healed, or an operation has ended."""
        if step:
            self.situation.occurred(Occurrence.HEALED, step)
