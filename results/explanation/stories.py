"""From verdicts and evidence to stories, cause first. A pure function of both.

Findings belong to one story when they are about the same records: of one partition, and sharing an offset or an
operation, or offsets that one broken step concerns. A finding without either goes to the story of its partition that is
nearest in time. The cause is the first broken step (`steps`) that concerns a record of the story and was not later than
its last finding. A log that a power loss shortened is taken for one only where no other step is found. Where the trace
shows no step, the first finding of the checks nearest to the protocol stands for the cause, and the story says so.
Stories with a cause of the same kind are one: it tells the first and names the other partitions.

The signature is the same for the same cause in every run: the kind of the step, and the first finding of the check that
comes first in `NEAREST_FIRST`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from checkers.evidence import EvidencePart, RunEvidence
from checkers.fault_model import OFFSETS_TOPIC, NodeFailure, node_failures
from checkers.verdict import Finding, Validity, Verdict
from results.explanation.client_steps import client_steps, member_steps, read_steps
from results.explanation.context import faults_at, requests_about
from results.explanation.group_steps import group_steps
from results.explanation.image_steps import image_steps
from results.explanation.metadata_steps import metadata_steps
from results.explanation.replay import events_of
from results.explanation.signature import Signature
from results.explanation.standing.groups import group_standing_steps
from results.explanation.standing.nodes import file_steps, node_steps, restart_steps
from results.explanation.standing.partitions import standing_steps
from results.explanation.steps import beliefs_at, broken_steps
from results.explanation.story import Belief, Consequence, Step, StepKind, Story
from results.run.downtime import down_since, downtimes
from workloads.columns import NEVER

NEAREST_FIRST: Final = (
    "raft", "protocol", "coordinator", "processes", "logs", "visibility", "loss", "linearizability", "reads",
    "producers", "positions", "groups",
)  # fmt: skip
"""The checks from the inside of the protocol outwards."""
OF_GROUPS: Final = frozenset({"coordinator", "groups"})
"""Checks of what groups committed, which no log of the workload's topic holds."""
OF_NO_RECORDS: Final = OF_GROUPS | {"liveness", "processes"}
"""Checks that a log which a fault shortened cannot fail: what has to come back does so without it, no process ends by
itself for want of it, and groups have a log of their own."""
INSIDE: Final = frozenset({"raft", "protocol", "coordinator", "processes"})
"""Checks of the trace and of processes: they see a failure when it happens."""
OF_FETCHES: Final = frozenset({StepKind.FETCH_OF_OTHER_EPOCH_ACCEPTED, StepKind.DIVERGING_FETCH_ACCEPTED})
"""Steps that are traced after the decisions of the same instant that rest on them."""
OF_CLIENTS: Final = frozenset({
    "position-skipped", "position-went-back", "records-skipped", "commit-beyond-read", "commit-went-back"
})  # fmt: skip
"""Findings about what a client alone decides: they are their own cause."""
OF_RECORDS_THAT_ARE_THERE: Final = frozenset({"failed-append-seen"})
"""Findings about records that no loss of others explains."""
ONLY_LOSE: Final = frozenset({StepKind.UNCLEAN_ELECTION, StepKind.LOG_LOST_WITHOUT_FAULT})
"""Steps after which records may be missing, and none is there that was not."""
BEYOND_THE_FAULT_MODEL: Final = "fault-model-exceeded"
_LINES_OF_A_CAUSE: Final = 3
"""Of a finding that stands for the cause."""


def explain(verdicts: Sequence[Verdict], evidence: RunEvidence) -> tuple[Story, ...]:
    """The stories of a run, in the order of their causes; none for a run without violations."""
    groups = _by_records(list(_found(verdicts)), evidence)
    stories = sorted((_story(group, evidence) for group in groups), key=_order)
    return tuple(_united(stories))


def explained(finding: Finding, verdict: Verdict) -> bool:
    """Whether a finding is part of a story: a violation, not a reason for not deciding and not a note."""
    return verdict.validity is Validity.INVALID or (
        verdict.validity is Validity.UNKNOWN and finding.kind == BEYOND_THE_FAULT_MODEL
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """One finding, and the check that found it."""

    check: str
    finding: Finding
    place: tuple[str, int]
    offsets: frozenset[int]

    @property
    def order(self) -> tuple[int, bool, int, str]:
        """From the inside of the protocol outwards, then in time: what a client alone decided comes before what became
        of it, and an outcome, which has no time, last."""
        rank = NEAREST_FIRST.index(self.check) if self.check in NEAREST_FIRST else len(NEAREST_FIRST)
        time_ns = self.finding.time_ns if self.finding.time_ns >= 0 else NEVER
        return rank, self.finding.kind not in OF_CLIENTS, time_ns, self.finding.kind


@dataclass(slots=True)
class _Group:
    """Findings about the same records, and the broken steps of their partition."""

    found: list[_Found]
    steps: Sequence[Step] = ()

    @property
    def offsets(self) -> frozenset[int]:
        return frozenset(offset for one in self.found for offset in one.offsets)

    @property
    def operations(self) -> frozenset[int]:
        return frozenset(number for one in self.found for number in one.finding.operations)

    @property
    def last_ns(self) -> int:
        """Time of the last finding; NEVER when one has no time."""
        times = [one.finding.time_ns for one in self.found]
        return NEVER if min(times) < 0 else max(times)


def _found(verdicts: Sequence[Verdict]) -> Iterator[_Found]:
    for verdict in verdicts:
        for finding in verdict.findings:
            if explained(finding, verdict):
                offsets = frozenset(offset for offset in finding.offsets if 0 <= offset < NEVER)
                yield _Found(verdict.checker, finding, (finding.topic, finding.partition), offsets)


def _by_records(found: list[_Found], evidence: RunEvidence) -> list[_Group]:
    """The groups, each with the broken steps of its partition."""
    places: dict[tuple[str, int], list[_Found]] = {}
    for one in found:
        places.setdefault(one.place, []).append(one)
    traced = bool(found) and _is_traced(evidence)
    failures = node_failures(evidence.faults) if traced else []
    of_metadata = (*metadata_steps(evidence.trace), *image_steps(evidence.trace)) if traced else ()
    groups = []
    for (topic, partition), ones in places.items():
        checks = {one.check for one in ones}
        steps = _steps(evidence, failures, of_metadata, topic, partition, checks) if traced else ()
        groups += _groups_of_partition(ones, steps)
    return groups


def _steps(
    evidence: RunEvidence,
    failures: Sequence[NodeFailure],
    of_metadata: Sequence[Step],
    topic: str,
    partition: int,
    checks: Collection[str],
) -> Sequence[Step]:
    """The broken steps that findings of these checks about one partition may have as their cause, in time, those of the
    metadata among them. Findings without a topic are about the metadata log, or, unless they are those of Raft, about
    any partition."""
    steps = list(restart_steps(evidence.trace, failures, topic, partition))
    if topic:
        events = list(events_of(evidence.trace, topic, partition))
        steps += unexcused(broken_steps(events), evidence, failures)
        steps += read_steps(events, evidence.history, topic, partition)
        steps += client_steps(events, evidence.history, evidence.replicas, topic, partition)
        steps += of_metadata
        if topic == OFFSETS_TOPIC:  # what its coordinator does with any partition, which its own promises are about
            steps += group_steps(evidence.trace, "", -1)
        if not OF_GROUPS.isdisjoint(checks):
            steps += group_steps(evidence.trace, topic, partition)
            steps += member_steps(evidence.trace, evidence.history, topic, partition)
    else:
        steps += of_metadata
        if "raft" not in checks:
            # A process that is gone leaves undone what it should do, and is a cause itself.
            end_ns = -1 if _ended(evidence) else _end_ns(evidence)
            steps += group_steps(evidence.trace, topic, partition)
            steps += file_steps(evidence.recovery.get("crashes", ()), failures)
            steps += (*node_steps(evidence.trace, end_ns), *group_standing_steps(evidence.trace, end_ns))
            for name, number in _partitions(evidence.trace):
                events = list(events_of(evidence.trace, name, number))
                named = [*unexcused(broken_steps(events), evidence, failures), *standing_steps(events, end_ns)]
                steps += (replace(step, text=f"{name}-{number}: {step.text}") for step in named)
    return sorted(steps, key=lambda step: (step.time_ns, step.kind not in OF_FETCHES))


def unexcused(steps: Sequence[Step], evidence: RunEvidence, failures: Sequence[NodeFailure]) -> Iterator[Step]:
    """The steps; a log that came back shorter is no loss to a fault where no fault took anything from its node."""
    known = not any(gap.part is EvidencePart.FAULTS for gap in evidence.gaps)
    lossy = [failure for failure in failures if failure.may_have_lost] if known else []
    for step in steps:
        took = any(failure.node == step.node and failure.started_ns <= step.time_ns for failure in lossy)
        if not step.is_loss or took or not known:
            yield step
            continue
        text = (
            f"{step.text}, although no fault had taken anything from its disk: what a process has written to its log "
            "survives its end"
        )
        yield replace(step, kind=StepKind.LOG_LOST_WITHOUT_FAULT, text=text, is_loss=False)


def _ended(evidence: RunEvidence) -> bool:
    """Whether a process has ended by itself and did not start again."""
    starts = evidence.trace.filter(pc.field("kind") == "node_started").select(["node", "time_ns"]).to_pylist()
    last = {row["node"]: row["time_ns"] for row in starts}
    return any(last.get(crash["node"], -1) <= crash["time_ns"] for crash in evidence.recovery.get("crashes", ()))


def _end_ns(evidence: RunEvidence) -> int:
    """The end of the run, as far as the evidence knows: its last event, or what was waited for after that in vain."""
    times = (evidence.trace.column("time_ns"), evidence.history.column("completed_ns"))
    last_ns = max(pc.max(column).as_py() or 0 for column in times)
    recovery, began = evidence.recovery, None
    if not recovery.get("ready", True):
        return max(last_ns, int(recovery.get("seconds", 0) * 1e9))
    if not recovery.get("recovered", True):
        began = pc.max(evidence.faults.column("ended_ns")).as_py()
    elif not recovery.get("final_reads", True):
        began = pc.min(evidence.history.filter(pc.field("phase") == "final").column("invoked_ns")).as_py()
    limit_ns = int(recovery.get("limit_seconds", 0) * 1e9)
    return last_ns if began is None else max(last_ns, began + limit_ns)


def _partitions(trace: pa.Table) -> list[tuple[str, int]]:
    """The partitions that have an event in the trace, by name."""
    rows = trace.filter(pc.field("topic") != "").select(["topic", "partition"]).group_by(["topic", "partition"])
    return sorted((row["topic"], row["partition"]) for row in rows.aggregate([]).to_pylist())


def _groups_of_partition(found: list[_Found], steps: Sequence[Step]) -> list[_Group]:
    placed = [one for one in found if one.offsets or one.finding.operations]
    groups: list[_Group] = []
    for one in placed:
        joined = [group for group in groups if _same_records(group, one, steps)]
        groups = [group for group in groups if all(group is not other for other in joined)]
        groups.append(_Group([*(each for group in joined for each in group.found), one], steps))
    for one in found:
        if one not in placed:
            nearest = min(groups, key=lambda group: _distance_ns(group, one), default=None)
            if nearest is None:
                groups.append(_Group([one], steps))
            else:
                nearest.found.append(one)
    return groups


def _same_records(group: _Group, one: _Found, steps: Sequence[Step]) -> bool:
    if group.offsets & one.offsets or group.operations & set(one.finding.operations):
        return True
    exact = [step for step in steps if step.end >= 0 and not step.is_loss]
    return any(any(map(step.concerns, group.offsets)) and any(map(step.concerns, one.offsets)) for step in exact)


def _distance_ns(group: _Group, one: _Found) -> int:
    return min(abs(each.finding.time_ns - one.finding.time_ns) for each in group.found)


# ---- one story -------------------------------------------------------------------------------------------------------


def _story(group: _Group, evidence: RunEvidence) -> Story:
    found = sorted(group.found, key=lambda one: one.order)
    first, step = found[0], _cause(group)
    topic, partition = first.place
    time_ns = step.time_ns if step is not None else first.finding.time_ns
    cause = str(step.kind) if step is not None else first.finding.kind
    beliefs, decided = (step.beliefs, step.decided) if step is not None else _beliefs(first, evidence)
    down_ns = down_since(downtimes(evidence), time_ns) if beliefs else {}
    return Story(
        signature=Signature(first.check, first.finding.kind, cause),
        topic=topic,
        partition=partition,
        offsets=tuple(sorted(group.offsets)),
        step=step,
        first=replace(_consequence(first), text=_words(first.finding)),
        consequences=tuple(_consequences(found, time_ns)),
        findings=tuple((one.check, one.finding) for one in found),
        faults=faults_at(evidence.faults, time_ns),
        requests=requests_about(evidence.history, topic, partition, group.offsets, group.operations) if topic else (),
        lacking=tuple(_lacking(step, first, evidence)),
        beliefs=tuple(replace(belief, down_ns=down_ns.get(belief.node, -1)) for belief in beliefs),
        decided=decided,
    )


def _words(finding: Finding) -> str:
    """A finding that stands for the cause."""
    text = "; ".join(finding.lines[:_LINES_OF_A_CAUSE])
    return f"the client itself: {text}" if finding.kind in OF_CLIENTS else text


def _beliefs(first: _Found, evidence: RunEvidence) -> tuple[tuple[Belief, ...], str]:
    """What each node believed when a finding was made that no step explains; nothing without a partition, or a trace
    whose events have an order."""
    topic, partition = first.place
    if not topic or first.finding.time_ns < 0 or not _is_traced(evidence):
        return (), ""
    return beliefs_at(events_of(evidence.trace, topic, partition), first.finding.time_ns)


def _is_traced(evidence: RunEvidence) -> bool:
    """Whether there is a whole protocol trace whose events have an order."""
    return evidence.settings.has_ordered_trace and not any(gap.part is EvidencePart.TRACE for gap in evidence.gaps)


def _cause(group: _Group) -> Step | None:
    """The first broken step about the group's records; a loss to a fault only where there is no other. Commits concern
    every offset of a partition: of several with the same flaw, the one of an offset that the findings name."""
    offsets, last_ns = group.offsets, group.last_ns
    concerned = [
        step for step in group.steps if step.time_ns <= last_ns and (not offsets or any(map(step.concerns, offsets)))
    ]
    if all(one.finding.kind in OF_RECORDS_THAT_ARE_THERE for one in group.found):
        concerned = [step for step in concerned if step.kind not in ONLY_LOSE and not step.is_loss]
    broken = [step for step in concerned if not step.is_loss]
    if not broken and all(one.check in OF_NO_RECORDS for one in group.found):
        return None
    first = next(iter(broken or concerned), None)
    if first is None or first.committed < 0:
        return first
    same = [step for step in broken if step.kind is first.kind and step.committed in offsets]
    return same[0] if same else first


def _lacking(step: Step | None, first: _Found, evidence: RunEvidence) -> Iterator[str]:
    if step is not None:
        if step.lacking:
            yield step.lacking
    elif first.finding.kind in OF_CLIENTS:
        return
    elif not evidence.settings.has_ordered_trace:
        yield "the cause inside the protocol: the run has no protocol trace whose events have an order"
    elif any(gap.part is EvidencePart.TRACE for gap in evidence.gaps):
        yield "the cause inside the protocol: the protocol trace is not whole"
    elif first.check not in INSIDE:
        yield "the cause inside the protocol: no event of the trace breaks it for these records before clients saw it"


def _consequences(found: Sequence[_Found], cause_ns: int) -> Iterator[Consequence]:
    """One for each kind of finding of each check, by the time of its first. Last those without a time, and those whose
    time is that of an operation before the cause, of which the finding shows what became of it."""
    kinds: dict[tuple[str, str], list[_Found]] = {}
    for one in sorted(found, key=lambda one: (one.finding.time_ns < cause_ns, one.finding.time_ns, one.order)):
        kinds.setdefault((one.check, one.finding.kind), []).append(one)
    for ones in kinds.values():
        yield replace(_consequence(ones[0]), count=len(ones))


def _consequence(one: _Found) -> Consequence:
    finding = one.finding
    time_ns = finding.time_ns if finding.time_ns < NEVER else -1
    return Consequence(one.check, finding.kind, time_ns, finding.lines[0] if finding.lines else "")


def _order(story: Story) -> tuple[bool, int, int, str, int]:
    """Of stories with one cause, that of the earliest finding comes first."""
    earliest_ns = min((item.time_ns for item in story.consequences if item.time_ns >= story.time_ns), default=NEVER)
    return story.time_ns < 0, story.time_ns, earliest_ns, story.topic, story.partition


def _united(stories: Sequence[Story]) -> Iterator[Story]:
    """One story for each kind of cause: the first, with the findings of all, the records of its partition and the names
    of the other partitions."""
    by_cause: dict[str, list[Story]] = {}
    for story in stories:
        by_cause.setdefault(story.signature.cause, []).append(story)
    for same in by_cause.values():
        first = same[0]
        offsets = {offset for story in same if story.place == first.place for offset in story.offsets}
        elsewhere = dict.fromkeys(story.place for story in same if story.place != first.place)
        yield replace(
            first,
            offsets=tuple(sorted(offsets)),
            consequences=tuple(_merged(same, first.time_ns)),
            findings=tuple(told for story in same for told in story.findings),
            elsewhere=tuple(elsewhere),
        )


def _merged(stories: Sequence[Story], cause_ns: int) -> Iterator[Consequence]:
    """Of each kind of finding the first, with the number of all, in the order that those of one story have."""
    kinds: dict[tuple[str, str], Consequence] = {}
    every = [item for story in stories for item in story.consequences]
    for item in sorted(every, key=lambda item: (item.time_ns < cause_ns, item.time_ns)):
        known = kinds.get((item.check, item.finding))
        kinds[item.check, item.finding] = item if known is None else replace(known, count=known.count + item.count)
    yield from kinds.values()
