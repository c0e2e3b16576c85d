"""The exploration of small scopes without each mutant's rule, as Spark tasks.

A scope that has the same states and steps with a mutant as with the full protocol does not express the flaw: nothing
that the mutant does differently can happen in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from harness.search.mutants.campaign import CampaignNight
from harness.search.mutants.record import FULL_PROTOCOL, CampaignRecord, Exploration

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from harness.search.mutants.mutant import Mutant

SCOPES: Final = ("two-replicas", "fetches-in-flight", "three-replicas", "reassignment", "restarts", "restarts-of-three")
"""Shipped scopes that take seconds; those in which brokers restart, for the mutants that are left, come last."""
BUDGET_SHARE: Final = 1 / 3
"""Of a night's budget, at most."""
_TASKS_PER_SLOT: Final = 2


class ScopeOfMutant(NamedTuple):
    """One exploration to make."""

    mutant: str
    """FULL_PROTOCOL for that without one."""
    scope: str
    protocol: str = ""
    without: tuple[str, ...] = ()
    mistakes: tuple[str, ...] = ()


def explore_missing(spark: SparkSession, night: CampaignNight, on_step: Callable[[int], None]) -> None:
    """Make the explorations that the record lacks, as far as their part of the budget lasts; `on_step` is told how many
    are left. Raises StoreError."""
    missing = list(_missing(night.record, night.mutants))
    together = _TASKS_PER_SLOT * max(1, spark.sparkContext.defaultParallelism)
    while missing and night.spent_s < BUDGET_SHARE * night.budget_s:
        tasks, missing = missing[:together], missing[together:]
        results = spark.sparkContext.parallelize(tasks, len(tasks)).map(explored).collect()
        for task, result in zip(tasks, results, strict=True):
            night.record.explorations.setdefault(task.mutant, {})[task.scope] = replace(result, commit=night.commit)
            night.spent_s += result.cpu_s
        night.record.save()
        missing = [task for task in missing if not _is_broken(night.record, task.mutant)]
        on_step(len(missing))


def explored(task: ScopeOfMutant) -> Exploration:
    """Make one exploration, in this process."""
    from harness.environments.mistakes import applied
    from harness.search.exploration.breadth_first import explore
    from harness.search.exploration.scope_file import load

    with applied(task.mistakes):
        result = explore(load(task.scope, task.protocol or None, task.without)[1], 1)
    broken = result.violation.promise if result.violation is not None else ""
    return Exploration(result.states, result.steps, result.depth, round(result.cpu_seconds, 3), broken, "")


def _missing(record: CampaignRecord, mutants: Iterable[Mutant]) -> Iterator[ScopeOfMutant]:
    """Scope by scope, each first without a mutant; no larger scope once a promise was broken."""
    mutants = list(mutants)
    for scope in SCOPES:
        tasks = [ScopeOfMutant(FULL_PROTOCOL, scope)]
        tasks += [ScopeOfMutant(each.name, scope, each.protocol, each.without, each.mistakes) for each in mutants]
        for task in tasks:
            if scope not in record.explorations.get(task.mutant, {}) and not _is_broken(record, task.mutant):
                yield task


def _is_broken(record: CampaignRecord, mutant: str) -> bool:
    return any(each.broken for each in record.explorations.get(mutant, {}).values())
