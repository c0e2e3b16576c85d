"""Verdicts and findings of checkers, and how verdicts compose.

Three verdicts: `valid`, `invalid`, `unknown`. They compose by the worst, in the order valid < unknown < invalid:
one proven violation outweighs any number of checks that could not decide. A checker that crashes says `unknown`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Validity(StrEnum):
    """A checker's answer."""

    VALID = "valid"
    UNKNOWN = "unknown"
    INVALID = "invalid"


_SEVERITY = {Validity.VALID: 0, Validity.UNKNOWN: 1, Validity.INVALID: 2}


def worst(answers: Iterable[Validity]) -> Validity:
    """The most severe of `answers`; `unknown` when there are none, since nothing was checked."""
    return max(answers, key=_SEVERITY.__getitem__, default=Validity.UNKNOWN)


_OLD_CHECKER_NAMES: Mapping[str, str] = {"quorum": "raft"}
"""Checker in runs recorded by earlier versions → its name today."""


def checker_name(stored: str) -> str:
    """The name today of the checker that a stored verdict calls `stored`."""
    return _OLD_CHECKER_NAMES.get(stored, stored)


@dataclass(frozen=True, slots=True)
class Finding:
    """One violation, or one stated reason for not deciding."""

    kind: str
    """A stable name: `lost-append`, `real-time-order`, `log-mismatch` …"""
    lines: tuple[str, ...]
    """Two or three readable lines naming the operations involved, their times and offsets."""
    topic: str = ""
    partition: int = -1
    operations: tuple[int, ...] = ()
    """`index` of each operation involved, as in the history."""
    offsets: tuple[int, ...] = ()
    time_ns: int = -1


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict of one checker on one run."""

    checker: str
    validity: Validity
    findings: tuple[Finding, ...] = ()
    """At most a handful; `figures` gives their number in all."""
    figures: Mapping[str, float] = field(default_factory=dict)
    rests_on: tuple[str, ...] = field(default=(), compare=False)
    """The parts of the evidence that the verdict depends on (`checkers.evidence.EvidencePart`), set by the registry;
    empty when read from the tables of a store, which do not have them."""
