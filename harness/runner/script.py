"""The script of the clients: one operation after the other, each at its moment."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from harness.client_spec import ScriptedOperation
from nemesis.timeline import Timeline
from workloads.operations import OperationRefused, operation_text
from workloads.workload import Workload


async def perform_script(
    operations: Sequence[ScriptedOperation], workload: Workload, timeline: Timeline, until_s: float
) -> list[dict[str, Any]]:
    """Carry out the operations until the loop's clock reads `until_s`. Gives back what became of each."""
    outcomes: list[dict[str, Any]] = []
    for scripted in operations:
        text = operation_text(scripted.operation)
        reason = (await timeline.reach(scripted)).missed
        if not reason:
            try:
                async with asyncio.timeout_at(until_s):
                    await workload.perform(scripted.operation)
                timeline.ended(scripted.id)
            except TimeoutError:
                reason = "it had not ended when the workload did"
            except OperationRefused as refusal:
                reason = str(refusal)
        outcomes.append({"operation": text, "performed": not reason, "reason": reason})
    return outcomes
