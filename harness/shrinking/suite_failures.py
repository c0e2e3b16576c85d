"""The failures of a suite that are worth shrinking: the first invalid run of every signature."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from checkers.verdict import Validity
from harness.incidents.expectation import Expectation
from harness.incidents.incident import plain
from harness.shrinking.session import ShrinkBudget
from harness.shrinking.subjects import ShrinkSubject
from harness.suites.job import RunResult
from harness.suites.record import SuiteRecord
from results.explanation.signature import Signature
from results.explanation.stories import BEYOND_THE_FAULT_MODEL

BUDGET: Final = ShrinkBudget(seconds=120.0)
"""For each of them."""


def first_failures(record: SuiteRecord, runs: Sequence[RunResult]) -> Iterator[ShrinkSubject]:
    """The first run, in the order of the plan, of every signature. The same one with other rules off, or in another
    generation of the protocol, is shrunk, too."""
    planned = {run.run: run for run in record.plan.every_run()}
    seen: set[tuple[object, ...]] = set()
    names: set[str] = set()
    for result in runs:
        if result.validity != "invalid" or planned[result.run].repeated:
            continue
        spec = record.plan.spec(planned[result.run])
        for signature in map(Signature.parse, result.signatures):
            failure = (signature, spec.without, spec.settings.get("faultline.protocol"))
            if failure in seen or signature.finding == BEYOND_THE_FAULT_MODEL:
                continue
            seen.add(failure)
            expect = Expectation.of(Validity.INVALID, signature)
            name = plain(f"{result.run}-{signature.cause}")
            if name in names:
                name = plain(f"{result.run}-{signature}")
            names.add(name)
            yield ShrinkSubject(name, f"the run {record.name}/{result.run}", spec, expect)
