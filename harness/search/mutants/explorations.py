"""The exploration of small scopes without each mutant's rule, as Spark tasks.

A scope that has the same states and steps with a mutant as with the full protocol does not express the flaw: nothing
that the mutant does differently can happen in it. Where no step of the full protocol reads a rule
(`images.broker.rules`), that is known of the mutant without it, which is not explored then. A mutant of the quorum is
explored in scopes of controllers, and any other in scopes of brokers. The largest of these comes last, and is for rules
alone: of a generation or a mistake it is not known beforehand that a scope does not express it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from harness.search.mutants.campaign import CampaignNight
from harness.search.mutants.mutant import Mutant, MutantKind
from harness.search.mutants.record import FULL_PROTOCOL, CampaignRecord, Exploration

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BROKER_SCOPES: Final = (
    "two-replicas",
    "fetches-in-flight",
    "three-replicas",
    "reassignment",
    "restarts",
    "restarts-of-three",
)
"""Shipped scopes that take seconds; those in which brokers restart, for the mutants that are left, come last."""
_QUORUM_SCOPES: Final = ("quorum-restarts", "quorum", "quorum-messages", "quorum-four-epochs")
"""Likewise of controllers; they take up to half a minute."""
_RULE_SCOPES: Final = ("unclean-recovery", "elected-again", "reassignment-of-four", "answers-of-earlier-leaders")
"""Likewise of brokers, for the rules that no other scope finds; up to a minute each."""
DEPTHS: Final[Mapping[str, int]] = {
    "quorum-four-epochs": 7,
    "elected-again": 11,
    "reassignment-of-four": 10,
    "answers-of-earlier-leaders": 21,
}
"""Scopes that are too large to be exhausted in seconds, and how many steps deep they are explored: as deep as Raft's
figure 8 lies, a position of a follower from before another leadership, the loss of a record with a reassignment that is
cancelled, and the cut of a committed record upon an answer of an earlier leader."""
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


def scopes_of(mutant: Mutant) -> tuple[str, ...]:
    """The scopes in which a mutant is explored, in order, until one of them breaks a promise."""
    if mutant.of_quorum:
        return _QUORUM_SCOPES
    return (*_BROKER_SCOPES, *_RULE_SCOPES) if mutant.kind is MutantKind.RULE else _BROKER_SCOPES


def explore_missing(spark: SparkSession, night: CampaignNight, on_step: Callable[[int], None]) -> None:
    """Make the explorations that the record lacks, as far as their part of the budget lasts; `on_step` is told how many
    are left. Raises StoreError."""
    together = _TASKS_PER_SLOT * max(1, spark.sparkContext.defaultParallelism)
    missing = _still_missing(night.record, night.mutants)
    while missing and night.spent_s < BUDGET_SHARE * night.budget_s:
        tasks = missing[:together]
        results = spark.sparkContext.parallelize(tasks, len(tasks)).map(explored).collect()
        for task, result in zip(tasks, results, strict=True):
            night.record.explorations.setdefault(task.mutant, {})[task.scope] = replace(result, commit=night.commit)
            night.spent_s += result.cpu_s
        missing = _still_missing(night.record, night.mutants)
        night.record.save()
        on_step(len(missing))


def explored(task: ScopeOfMutant) -> Exploration:
    """Make one exploration, in this process."""
    from harness.environments.mistakes import applied
    from harness.search.exploration import scope_file
    from harness.search.exploration.breadth_first import explore
    from harness.search.quorum_exploration import scope_file as quorum_scope_file
    from harness.search.quorum_exploration.breadth_first import explore as explore_quorum

    quorum = quorum_scope_file.load(task.scope, task.without)
    rules_read: set[str] | None = None
    with applied(task.mistakes):
        if quorum is not None:
            result = explore_quorum(quorum[1], 1, depth_most=DEPTHS.get(task.scope))
        else:
            rules_read = set()
            _, scope = scope_file.load(task.scope, task.protocol or None, task.without)
            result = explore(replace(scope, rules_read=rules_read), 1, depth_most=DEPTHS.get(task.scope))
    broken = result.violation.promise if result.violation is not None else ""
    read = None if rules_read is None else sorted(rules_read)
    return Exploration(result.states, result.steps, result.depth, round(result.cpu_seconds, 3), broken, "", read)


def _fill_in_the_same(record: CampaignRecord, mutants: Iterable[Mutant]) -> None:
    """The explorations of mutants without a rule that none of the full protocol's steps reads: they are its own."""
    for scope, full in record.explorations.get(FULL_PROTOCOL, {}).items():
        for mutant in mutants:
            if scope in scopes_of(mutant) and reads_no_rule_of(mutant, full):
                record.explorations.setdefault(mutant.name, {}).setdefault(scope, replace(full, cpu_s=0.0))


def reads_no_rule_of(mutant: Mutant, full: Exploration) -> bool:
    """Whether the mutant is one without a rule, and no step of this exploration of the full protocol reads that."""
    is_known = mutant.kind is MutantKind.RULE and full.rules_read is not None
    return is_known and not set(mutant.without) & set(full.rules_read or ())


def _still_missing(record: CampaignRecord, mutants: Iterable[Mutant]) -> list[ScopeOfMutant]:
    _fill_in_the_same(record, mutants)
    return list(_missing(record, mutants))


def _missing(record: CampaignRecord, mutants: Iterable[Mutant]) -> Iterator[ScopeOfMutant]:
    """Scope by scope, each first without a mutant; no larger scope once a promise was broken. A scope of brokers waits
    with its mutants until it is known which rules are read in it."""
    mutants = list(mutants)
    for scope in (*_BROKER_SCOPES, *_QUORUM_SCOPES, *_RULE_SCOPES):
        left = [
            ScopeOfMutant(each.name, scope, each.protocol, each.without, each.mistakes)
            for each in mutants
            if scope in scopes_of(each)
            and scope not in record.explorations.get(each.name, {})
            and not _is_broken(record, each.name)
        ]
        full = record.explorations.get(FULL_PROTOCOL, {}).get(scope)
        is_open = full is None or (full.rules_read is None and scope not in _QUORUM_SCOPES)
        if left and is_open:
            yield ScopeOfMutant(FULL_PROTOCOL, scope)
        if not is_open or scope in _QUORUM_SCOPES:
            yield from left


def _is_broken(record: CampaignRecord, mutant: str) -> bool:
    return any(each.broken for each in record.explorations.get(mutant, {}).values())
