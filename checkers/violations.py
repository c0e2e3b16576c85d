"""Violations, and the verdict that follows from them: what the fault model tolerates and what nothing excuses.

A checker finds `Violations`: arrays, so that a million of one kind cost as little as one, with a function that explains
the few that are shown. A `Tolerance` says what may happen to one partition, and each violation becomes one of

- *invalid*: nothing excuses it;
- *excused*, `unknown`: more replicas lost data at one time than the protocol survives (`FaultModelExceeded`); the
  violation concerns an offset that was lost with them, the record existed by then, and the violation was observed
  afterwards. The cause may be a bug or the loss;
- *counted*: the topic allows unclean elections, and it was observed after the first one; or its kind is in
  `OF_DELETED`, and a deletion may have caused it: it concerns a record that was gone when it was observed. It appears
  in the figures only.

Kinds in `INEXCUSABLE` are wrong whatever was lost: no disk failure writes a value that nobody appended, or commits an
offset that nobody committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from checkers.verdict import Finding, Validity, Verdict, worst
from workloads.columns import Int64

SHOWN_OF_A_KIND = 3
"""Findings explained for each kind of violation and partition; the figures count them all."""
SHOWN_IN_ALL = 12

INEXCUSABLE = frozenset(
    {
        "bytes-left-behind",
        "synced-beyond-end",
        "index-entry-left",
        "producer-snapshot-left",
        "cut-left-unsynced",
        "opened-unsynced",
        "none-told-early",
        "failed-append-seen",
        "phantom-value",
        "poll-gap",
        "poll-order",
        "impossible-offset",
        "log-mismatch",
        "replicas-differ",
        "two-leaders-one-epoch",
        "unclean-election",
        "unclean-not-excluded",
        "fenced-broker-elected",
        "fenced-broker-joined-isr",
        "quorum-too-small",
        "quorum-not-superset",
        "quorum-not-maximal-isr",
        "isr-change-kept",
        "isr-shrink-early",
        "isr-shrink-overdue",
        "isr-change-sent-again",
        "isr-change-not-sent-again",
        "isr-change-taken-back-early",
        "isr-change-taken-for-certain",
        "read-confirmed-early",
        "fetch-of-another-log",
        "divergence-misstated",
        "deleted-topic-served",
        "deleted-replica-kept",
        "decision-not-taken-over",
        "high-watermark-fell",
        "latest-below-start",
        "log-start-uncommitted",
        "log-start-unasked",
        "log-start-unfounded",
        "retention-below-size",
        "retention-unfounded",
        "retention-overdue",
        "offset-misstated",
        "log-start-fell",
        "log-start-ahead",
        "log-start-not-followed",
        "not-on-disk",
        "deleted-log-came-back",
        "log-beginning-missing",
        "log-with-hole",
        "log-end-below-start",
        "read-below-minimum",
        "read-answers-twice",
        "log-shortened",
        "synced-records-lost",
        "log-end-not-on-disk",
        "clean-shutdown-lost-records",
        "clean-claim-unsynced",
        "appended-batches-differ",
        "high-watermark-above-log-end",
        "high-watermark-unfounded",
        "isr-proposal-behind",
        "fetch-of-another-epoch",
        "query-of-another-epoch",
        "request-refused-otherwise",
        "deletion-refused-wrongly",
        "unacknowledged-otherwise",
        "fetch-of-no-replica",
        "fetch-of-an-earlier-life",
        "forgotten-partition-fetched",
        "refusal-untold",
        "log-start-untold",
        "isr-proposal-of-absent",
        "isr-proposal-without-fetch",
        "isr-change-outdated",
        "isr-change-of-an-earlier-life",
        "isr-change-refused-otherwise",
        "isr-change-given-up",
        "isr-change-unsettled",
        "position-of-another-leadership",
        "leader-epoch-not-entered",
        "epoch-cache-wrong",
        "truncation-incomplete",
        "truncation-needless",
        "producers-forgotten",
        "producer-state-wrong",
        "segment-time-wrong",
        "batch-appended-twice",
        "batch-out-of-sequence",
        "retry-without-batch",
        "batch-refused-wrongly",
        "logs-not-compared",
        "minimum-outdated",
        "appended-below-minimum",
        "refused-needlessly",
        "records-out-of-place",
        "answer-unasked",
        "replicas-otherwise",
        "high-watermark-below-log-start",
        "leader-otherwise",
        "isr-otherwise",
        "elr-otherwise",
        "last-known-elr-otherwise",
        "strategy-changed-early",
        "idle-broker-kept",
        "let-go-while-leading",
        "left-without-leader",
        "recovery-early",
        "recovery-outdated",
        "recovery-of-lesser-log",
        "recovery-misinformed",
        "last-known-elr-forgotten",
        "partition-epoch-stood",
        "leader-epoch-stood",
        "partition-epoch-skipped",
        "leader-epoch-skipped",
        "reassignment-joins-isr",
        "reassignment-completed-early",
        "reassignment-shrinks-isr",
        "reassignment-drops-last-known",
        "isr-answer-outdated",
        "isr-answer-undecided",
        "acted-on-undecided",
        "epoch-undecided",
        "acknowledged-uncommitted",
        "acknowledged-without-leading",
        "latest-unconfirmed",
        "offsets-unconfirmed",
        "deletion-unconfirmed",
        "deletion-below-minimum",
        "deletion-undone",
        "divergence-untold",
        "high-watermark-behind",
        "coordinator-serves-uncommitted",
        "coordinator-incomplete",
        "coordinator-not-loaded",
        "generation-told-early",
        "assignment-never-made",
        "assignment-told-early",
        "commit-not-fenced",
        "group-loaded-otherwise",
        "record-of-another-member",
        "offsets-held-otherwise",
        "request-misjudged",
        "wrong-coordinator",
        "member-id-repeated",
        "generation-unrecorded",
        "empty-group-unrecorded",
        "tombstone-missing",
        "offset-deleted-unasked",
        "deletion-told-early",
        "group-described-otherwise",
        "groups-listed-otherwise",
        "leave-answered-otherwise",
        "left-member-kept",
        "answer-missing",
        "member-removed",
        "member-kept",
        "rebalance-overdue",
        "group-time-otherwise",
        "generation-without-join",
        "joins-answered-otherwise",
        "assignment-told-otherwise",
        "commit-beyond-read",
        "records-skipped",
        "sequence-gap",
        "producer-epoch-fell",
        "producer-id-twice",
        "producer-expired-early",
        "producer-expiration-overdue",
        "leader-epoch-fell",
        "epoch-checkpoint-unordered",
        "epoch-checkpoint-damaged",
        "epoch-checkpoint-lacks",
        "epoch-checkpoint-stale",
        "read-above-high-watermark",
        "position-skipped",
        "position-went-back",
        "commit-uncommitted",
        "offset-uncommitted",
        "uncommitted-start",
        "committed-otherwise",
        "torn-log",
        "corrupt-log",
        "disordered-log",
    }
)

OF_DELETED = frozenset({"duplicate", "not-delivered", "sequence-gap", "producer-epoch-fell"})
"""Violations that deleted records may cause. A duplicate among them: as in Kafka, a replica that began anew above
0 knows no producer whose batches were deleted, and takes a retry for new. So the log began anew at an offset b above
the first copy, and the retry stands at b or higher. b1 has 4 and 5 deleted when a value stands at both: the deletion
below 6 came later, and no deletion made the copies."""


@dataclass(frozen=True, slots=True)
class FaultModelExceeded:
    """More replicas of one partition lost data at one time than the protocol promises to survive."""

    offset: int
    """The least offset that all of them lost; everything from it on may be gone."""
    time_ns: int
    """Time at which the last of them lost it."""
    lines: tuple[str, ...]
    """The replicas, their lost offsets and the times, for a finding."""


@dataclass(frozen=True, slots=True)
class Deletion:
    """A permitted deletion of the records of one partition."""

    time_ns: int
    """No record is deleted by it before."""
    below: int
    """The greatest offset that the log may begin at by it."""
    least: int
    """The least such offset; less than `below` where the steps of the deletion are not known."""


@dataclass(frozen=True, slots=True)
class RepeatedBatch:
    """A batch that a leader has appended again once it had forgotten the producer, whose state had expired."""

    first: range
    """The offsets of an earlier copy."""
    again: range
    time_ns: int
    """Time at which it appended it again."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The violations that one partition may show without a bug."""

    unclean: bool = False
    """Whether an unclean election may have lost records (`checkers.unclean_elections`)."""
    unclean_since_ns: int = 0
    """The time of the first one."""
    exceeded: tuple[FaultModelExceeded, ...] = ()
    deletions: tuple[Deletion, ...] = ()
    """The deletions that are permitted (`checkers.deletions`), in the order of the times."""
    repeated: tuple[RepeatedBatch, ...] = ()

    @classmethod
    def of_any(cls, tolerances: Iterable[Tolerance]) -> Tolerance:
        """The tolerance of an unclean election or a loss that any of these has."""
        each_of = tuple(tolerances)
        unclean_ns = [each.unclean_since_ns for each in each_of if each.unclean]
        exceeded = tuple(excess for each in each_of for excess in each.exceeded)
        return cls(bool(unclean_ns), min(unclean_ns, default=0), exceeded)

    @property
    def deleted_below(self) -> int:
        """Records at lower offsets may be gone at the end of the run."""
        return max((deletion.below for deletion in self.deletions), default=0)

    def deleted_by(self, times_ns: Int64) -> Int64:
        """Records at offsets lower than these may be gone at these times."""
        since_ns = np.array([deletion.time_ns for deletion in self.deletions], dtype=np.int64)
        below = np.array([0, *(deletion.below for deletion in self.deletions)], dtype=np.int64)
        return np.asarray(np.maximum.accumulate(below)[np.searchsorted(since_ns, times_ns, side="right")])

    def deleted(self, violations: Violations) -> npt.NDArray[np.bool_]:
        """Which of `violations` deletion may have caused."""
        second = violations.second
        if second is None:
            return violations.offsets < self.deleted_by(violations.times_ns)
        between = [
            (violations.offsets < deletion.below)
            & (deletion.least <= second.offsets)
            & (deletion.time_ns <= second.times_ns)
            for deletion in self.deletions
        ]
        return np.asarray(np.any(between, axis=0)) if between else np.zeros(len(violations), dtype=bool)

    def repeats(self, violations: Violations) -> npt.NDArray[np.bool_]:
        """Which of these duplicates are two copies of a batch that was appended again."""
        second, are = violations.second, np.zeros(len(violations), dtype=bool)
        for batch in self.repeated:
            place = violations.offsets - batch.first.start
            copies = (place >= 0) & (place < len(batch.first)) & (batch.time_ns <= violations.times_ns)
            are |= copies if second is None else copies & (second.offsets - batch.again.start == place)
        return are


@dataclass(frozen=True, slots=True, eq=False)
class SecondCopies:
    """The later copies of records that stand twice, one entry each in both arrays."""

    offsets: Int64
    times_ns: Int64
    """Time at which the copy is known to stand there."""

    def chosen(self, which: Int64) -> SecondCopies:
        """These of them only."""
        return SecondCopies(self.offsets[which], self.times_ns[which])


@dataclass(frozen=True, slots=True, eq=False)
class Violations:
    """Everything of one kind that a checker found in one partition; one entry a violation in each array."""

    kind: str
    offsets: Int64
    times_ns: Int64
    """Time at which the last operation involved completed, or the last event happened."""
    explain: Callable[[int], Finding]
    """Explains violation number i. Called for the few that are shown."""
    since_ns: Int64 | None = None
    """Time since which the violated record or state existed; always, if not given."""
    second: SecondCopies | None = None
    """Of duplicates, whose offsets are those of the first copies."""

    def __len__(self) -> int:
        return len(self.offsets)

    def chosen(self, which: Int64) -> Violations:
        """These of them only."""
        since_ns = None if self.since_ns is None else self.since_ns[which]
        second = None if self.second is None else self.second.chosen(which)
        offsets, times_ns, explain = self.offsets[which], self.times_ns[which], self.explain
        return Violations(self.kind, offsets, times_ns, lambda n: explain(int(which[n])), since_ns, second)


class SingleViolation(Protocol):
    """One broken promise, of a checker that finds them one by one."""

    @property
    def kind(self) -> str: ...

    @property
    def offset(self) -> int: ...

    @property
    def time_ns(self) -> int: ...

    @property
    def since_ns(self) -> int: ...


V = TypeVar("V", bound=SingleViolation)


def by_kind(found: Iterable[V], explain: Callable[[V], Finding]) -> list[Violations]:
    """Violations that were found one by one: all of a kind together, the kind that was found first first."""
    kinds: dict[str, list[V]] = {}
    for violation in found:
        kinds.setdefault(violation.kind, []).append(violation)

    def of_kind(kind: str, same: Sequence[V]) -> Violations:
        def numbers(values: Iterable[int]) -> Int64:
            return np.fromiter(values, dtype=np.int64)

        offsets, times_ns = numbers(each.offset for each in same), numbers(each.time_ns for each in same)
        since_ns = numbers(each.since_ns for each in same)
        return Violations(kind, offsets, times_ns, lambda number: explain(same[number]), since_ns)

    return [of_kind(kind, same) for kind, same in kinds.items()]


def verdict_of(
    checker: str,
    all_violations: Iterable[Violations],
    tolerance: Tolerance,
    figures: Mapping[str, float] | None = None,
    doubts: Sequence[Finding] = (),
) -> Verdict:
    """The verdict on one partition, which `doubts` keep from being valid. Figures: `invalid`, `excused` (unknown) and
    `allowed` (counted) violations."""
    answers, shown = [Validity.UNKNOWN if doubts else Validity.VALID], []
    counts = {"invalid": 0.0, "excused": 0.0, "allowed": 0.0}
    for violations in all_violations:
        if not len(violations):
            continue
        excusable = violations.kind not in INEXCUSABLE
        if violations.kind in OF_DELETED and tolerance.deletions:
            kept = np.flatnonzero(~tolerance.deleted(violations))
            counts["allowed"] += len(violations) - len(kept)
            violations = violations.chosen(kept)
            if not len(violations):
                continue
        if violations.kind == "duplicate" and tolerance.repeated:
            kept = np.flatnonzero(~tolerance.repeats(violations))
            counts["allowed"] += len(violations) - len(kept)
            violations = violations.chosen(kept)
            if not len(violations):
                continue
        if excusable and tolerance.unclean:
            kept = np.flatnonzero(violations.times_ns < tolerance.unclean_since_ns)
            counts["allowed"] += len(violations) - len(kept)
            violations = violations.chosen(kept)
            if not len(violations):
                continue
        by_excess = [explained_by(excess, violations) for excess in tolerance.exceeded if excusable]
        excused = np.any(by_excess, axis=0) if by_excess else np.zeros(len(violations), dtype=bool)
        wrong = np.flatnonzero(~excused)
        counts["invalid"] += len(wrong)
        counts["excused"] += len(violations) - len(wrong)
        if len(wrong):
            answers.append(Validity.INVALID)
            shown += [(0, violations.explain(int(number))) for number in wrong[:SHOWN_OF_A_KIND]]
        else:
            answers.append(Validity.UNKNOWN)
            excess = next(e for e, mask in zip(tolerance.exceeded, by_excess, strict=True) if mask[0])
            shown.append((1, _excused(violations.explain(0), len(violations), excess)))
    findings = tuple(finding for _, finding in sorted(shown, key=lambda entry: entry[0]))
    return Verdict(checker, worst(answers), (*findings, *doubts), {**(figures or {}), **counts})


def explained_by(excess: FaultModelExceeded, violations: Violations) -> npt.NDArray[np.bool_]:
    """Which of `violations` may come from what was lost in `excess`."""
    may = (violations.offsets >= excess.offset) & (violations.times_ns >= excess.time_ns)
    if violations.since_ns is not None:
        may &= violations.since_ns <= excess.time_ns
    return may


def _excused(finding: Finding, count: int, excess: FaultModelExceeded) -> Finding:
    return Finding(
        kind="fault-model-exceeded",
        lines=(*excess.lines, f"which may be why ({finding.kind}, {count} in all):", *finding.lines),
        topic=finding.topic,
        partition=finding.partition,
        operations=finding.operations,
        offsets=finding.offsets,
        time_ns=finding.time_ns,
    )


def merge_verdicts(checker: str, verdicts: Sequence[Verdict], nothing: str) -> Verdict:
    """One checker's verdicts on all partitions as one. Figures add up; `nothing` says why when there are none."""
    if not verdicts:
        return unknown_verdict(checker, nothing)
    figures: dict[str, float] = {}
    for verdict in verdicts:
        for name, value in verdict.figures.items():
            figures[name] = figures.get(name, 0.0) + value
    order = {Validity.INVALID: 0, Validity.UNKNOWN: 1, Validity.VALID: 2}
    findings = [
        finding for verdict in sorted(verdicts, key=lambda v: order[v.validity]) for finding in verdict.findings
    ]
    return Verdict(checker, worst(verdict.validity for verdict in verdicts), tuple(findings[:SHOWN_IN_ALL]), figures)


def unknown_verdict(checker: str, *lines: str, kind: str = "undecided") -> Verdict:
    """The verdict `unknown`, with its reason."""
    return Verdict(checker, Validity.UNKNOWN, (Finding(kind=kind, lines=lines),))
