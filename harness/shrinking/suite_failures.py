"""The failures of a suite that are worth shrinking: the first invalid run of every signature."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from harness.incidents.incident import plain
from harness.shrinking.session import ShrinkBudget
from harness.shrinking.subjects import ShrinkSubject
from harness.suites.job import RunResult
from harness.suites.record import SuiteRecord

BUDGET: Final = ShrinkBudget(seconds=120.0)
"""For each of them."""


def first_failures(record: SuiteRecord, runs: Sequence[RunResult]) -> Iterator[ShrinkSubject]:
    """The first run, in the order of the plan, of every signature. The same finding with other rules off, or in another
    generation of the protocol, is another signature."""
    planned = {run.run: run for run in record.plan.every_run()}
    seen: set[tuple[object, ...]] = set()
    for result in runs:
        if result.validity != "invalid" or not result.causes or planned[result.run].repeated:
            continue
        spec = record.plan.spec(planned[result.run])
        signature = (result.causes[0], spec.without, spec.settings.get("faultline.protocol"))
        if signature not in seen:
            seen.add(signature)
            yield ShrinkSubject(plain(result.run), f"the run {record.name}/{result.run}", spec)
