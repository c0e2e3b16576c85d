"""The timeline of a run: reaches the moments of steps, by the clock and by what happens."""

from __future__ import annotations

import asyncio

from nemesis.conditions import TriggerCondition
from nemesis.schedule import ScheduledStep
from nemesis.situation import Occurrence, Situation


class Timeline:
    """From the start of the workload to its end, by the loop's clock."""

    def __init__(self, situation: Situation, start_s: float, until_s: float) -> None:
        self.situation = situation
        self._start_s = start_s
        self._until_s = until_s

    async def reach(self, step: ScheduledStep) -> str:
        """Wait for the moment of a step. Gives back why it never comes; empty once it is there."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._start_s + step.at_s - loop.time()))
        if step.when is not None:
            end_s = self._until_s
            if step.timeout_s is not None:
                end_s = min(end_s, loop.time() + step.timeout_s)
            waited_from_s = loop.time()
            try:
                async with asyncio.timeout_at(end_s):
                    await self.until(step.when)
            except TimeoutError:
                return f"the condition did not hold within {loop.time() - waited_from_s:.3g} s: {step.when.describe()}"
        if step.then_after_s:
            await asyncio.sleep(step.then_after_s)
        return "" if loop.time() < self._until_s else "its moment came after the end of the workload"

    async def until(self, condition: TriggerCondition) -> None:
        """Wait until a condition holds; of occurrences those from now on count."""
        situation, since = self.situation, len(self.situation.events)
        await situation.until(lambda: condition.holds(situation, since))

    def injected(self, step: str) -> None:
        """A fault has taken hold."""
        if step:
            self.situation.occurred(Occurrence.INJECTED, step)

    def ended(self, step: str) -> None:
        """A fault has healed, or an operation has ended."""
        if step:
            self.situation.occurred(Occurrence.HEALED, step)
