"""Broken steps of group coordinators: what they load, the generations that they begin, the offsets that they commit and
tell. The partition of `__consumer_offsets` does not matter: every group has one coordinator at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from checkers.fault_model import OFFSETS_TOPIC
from checkers.tables import TraceRow, trace_rows
from results.explanation.event_facts import is_unclean_election
from results.explanation.replay import UNKNOWN, Decision, PartitionReplay, ReplicaView
from results.explanation.story import Step, StepKind, at
from workloads.clients.assignments import UnreadableAssignment, decode_assignment
from workloads.history import TopicPartition

_KINDS: Final = (
    "coordinator_loaded", "generation_begun", "offsets_committed", "offsets_told", "group_changed", "group_stored",
    "group_assigned", "assignment_told", "group_storing", "offsets_storing",
)  # fmt: skip
_OF_METADATA: Final = ("metadata_applied", "partition_deleted")


class _StoredOffset(NamedTuple):
    """An offset that was appended, None where it is deleted."""

    offset: int | None
    batch: TraceRow
    deletions: int
    """How many deletions of its topic the coordinator had read of then."""


@dataclass(slots=True)
class _Deletions:
    """Those of all topics of one name, one after the other."""

    topic: str
    ends: list[int] = field(default_factory=list)
    """The end of the metadata log with each."""
    read: Counter[str] = field(default_factory=Counter)
    """Broker's node → how many it has read of."""

    def apply(self, event: TraceRow) -> None:
        """Take in a deletion, or the metadata that a broker applies."""
        if event.kind == "metadata_applied":
            self.read[event.node] = sum(end <= event.log_end for end in self.ends)
        elif event.topic_name == self.topic:
            self.ends.append(event.offset)


@dataclass(slots=True)
class _GroupAnswers:
    """A group as its coordinators have answered so far."""

    generations: dict[int, TraceRow] = field(default_factory=dict)
    records: list[TraceRow] = field(default_factory=list)
    """Records of the group itself whose commit was waited for, in order."""
    commits: dict[str, list[tuple[int, TraceRow]]] = field(default_factory=dict)
    """By partition, the offsets whose commit was answered, in order: those of one leader in that of its log."""
    stored: list[_StoredOffset] = field(default_factory=list)
    """What was appended about the partition at hand, in order."""
    assignments: dict[int, dict[str, str]] = field(default_factory=dict)
    """By generation, the assignment of each member, those of static members that were replaced included."""
    assigned: TraceRow | None = None
    """The last of these whose record is still to be appended."""
    assignment_records: dict[tuple[int, str], TraceRow] = field(default_factory=dict)
    """(Generation, member) → the first record with its assignment."""
    members: dict[int, set[str]] = field(default_factory=dict)
    """By generation, everybody who was a member in it."""
    static: set[str] = field(default_factory=set)
    """The static ones of all records: a generation may begin without them."""
    failed: TraceRow | None = None
    """The last write of the group itself that failed."""
    unassigned: tuple[int, int] | None = None
    """Leader epoch of the coordinator, and generation, whose members wait for their partitions to be committed."""


def group_steps(trace: pa.Table, topic: str, partition: int) -> Iterator[Step]:
    """The broken steps of coordinators that concern the committed offset of one partition, or the whole group."""
    groups: dict[str, _GroupAnswers] = {}
    logs: dict[int, PartitionReplay] = {}
    place = f"{topic}-{partition}"
    loaded: dict[tuple[int, str], TraceRow] = {}
    deletions = _Deletions(topic)
    kinds = pc.field("kind").isin((*_KINDS, *_OF_METADATA))
    for event in trace_rows(trace.filter(kinds | (pc.field("topic") == OFFSETS_TOPIC))):
        if event.kind in _OF_METADATA:
            deletions.apply(event)
            continue
        log = logs.setdefault(event.partition, PartitionReplay())
        if event.kind not in _KINDS:
            log.apply(event)
            if is_unclean_election(event):
                _give_up(groups, event.partition, len(log.committed))
            continue
        if event.leader_epoch < log.given_up_before:
            continue  # a coordinator of before the election answers still
        detail = event.details()
        if event.kind == "coordinator_loaded":
            loaded[event.partition, event.node] = event
            yield from _loaded(groups, event, detail, place, log.replica(event.node))
            continue
        if event.kind == "offsets_storing":
            _stored_offsets(groups, event, detail["changes"], place, deletions.read[event.node])
            continue
        group = groups.setdefault(detail["group"], _GroupAnswers())
        if event.kind == "generation_begun":
            yield from _begun(group, event, detail)
        elif event.kind == "group_changed":
            yield from _changed(group, event, detail)
            if "held" in detail:
                upon = f"when the group became {detail['state']}"
                own, read = log.replica(event.node).log, deletions.read[event.node]
                yield from _forgotten(group, event, place, detail["held"], upon, own, read)
        elif event.kind == "group_storing":
            group.failed = event if detail["error"] != "none" else group.failed
            _storing(group, event, detail)
        elif event.kind == "group_stored":
            group.unassigned = None
            group.failed = event if detail["error"] != "none" else group.failed
            group.records.append(event)
            yield from _stored(event, detail)
        elif event.kind == "group_assigned":
            group.assigned = event
            group.assignments.setdefault(detail["generation"], {}).update(detail["members"])
            yield from _assigned(event, detail, topic, partition)
        elif event.kind == "assignment_told":
            yield from _told_assignment(group, event, detail)
        elif event.kind == "offsets_told":
            serves = _serves(event, loaded.get((event.partition, event.node)), log.decision)
            own = log.replica(event.node).log
            yield from _outdated(group, event, place, detail["offsets"], "told a member", own, serves=serves)
        elif place in detail["offsets"]:
            yield from _committed(group, event, detail, place)
        elif "held" in detail:
            of = ", ".join(f"{offset} for {name}" for name, offset in sorted(detail["offsets"].items()))
            upon = f"with the commit of {of} by {detail['member'][:12] or 'nobody'}"
            own, read = log.replica(event.node).log, deletions.read[event.node]
            yield from _forgotten(group, event, place, detail["held"], upon, own, read)


def _stored_offsets(
    groups: dict[str, _GroupAnswers], event: TraceRow, changes: Sequence[Sequence[Any]], place: str, deletions: int
) -> None:
    """Take in a batch of offsets, committed or deleted; the generations of a group that is deleted begin anew."""
    for name, changed, offset in changes:
        group = groups.setdefault(name, _GroupAnswers())
        if changed is None:
            group.generations.clear()
        elif changed == place:
            group.stored.append(_StoredOffset(offset, event, deletions))


def _give_up(groups: dict[str, _GroupAnswers], partition: int, end: int) -> None:
    """From an unclean election on, which the topic allows, only those answers hold that rest on records below `end`."""
    for group in groups.values():
        for place, commits in group.commits.items():
            group.commits[place] = [one for one in commits if one[1].partition != partition or one[1].offset < end]
        group.generations = {
            number: begun
            for number, begun in group.generations.items()
            if begun.partition != partition or begun.log_end <= end
        }


def _may_have(
    group: _GroupAnswers,
    commits: Sequence[tuple[int, TraceRow]],
    event: TraceRow,
    log: Sequence[int],
    offset: int | None,
) -> bool:
    """Whether a coordinator may have this offset, or none, after these commits: that of the last one or of none of
    them, or what its log has behind the last one."""
    last, commit = commits[-1]
    is_earlier = offset is None or offset in [earlier for earlier, _ in commits[:-1]]
    return offset == last or not is_earlier or _is_behind(group, commit, event, log, offset)


def _is_behind(group: _GroupAnswers, commit: TraceRow, event: TraceRow, log: Sequence[int], offset: int | None) -> bool:
    """Whether the log of a coordinator has this offset, or the deletion of all, behind a commit: another one that was
    not answered, or the tombstone of a deleted topic."""
    return any(
        value == offset
        and batch.partition == event.partition
        and commit.offset < batch.offset < len(log)
        and log[batch.offset] in (batch.leader_epoch, UNKNOWN)
        for value, batch, _ in group.stored
    )


def _topic_ended(group: _GroupAnswers, commit: TraceRow, read: int) -> bool:
    """Whether a coordinator that has read of so many deletions knows one of the topic that a commit was for."""
    stored = [
        deletions
        for _, batch, deletions in group.stored
        if (batch.partition, batch.leader_epoch, batch.offset) == (commit.partition, commit.leader_epoch, commit.offset)
    ]
    return read > max(stored, default=0)


def _step(kind: StepKind, event: TraceRow, text: str, committed: int = -1) -> Step:
    return Step(kind, event.time_ns, event.node, f"{event.node} {text}", committed=committed)


def _log(event: TraceRow) -> str:
    return f"{event.topic}-{event.partition}"


def _loaded(
    groups: dict[str, _GroupAnswers], event: TraceRow, detail: dict[str, Any], place: str, coordinator: ReplicaView
) -> Iterator[Step]:
    log = coordinator.log
    began = f"began to serve its groups with what it had read up to {event.log_end} of {_log(event)}"
    if event.log_end > event.high_watermark:
        yield _step(
            StepKind.COORDINATOR_LOADED_UNCOMMITTED,
            event,
            f"{began}, and its high watermark was {event.high_watermark}: what lies between may be lost",
        )
    if event.log_end < len(log):
        stale = ", the high watermark with which it became leader" if event.log_end == coordinator.taken_over else ""
        yield _step(
            StepKind.COORDINATOR_LOADED_PART,
            event,
            f"{began} only{stale}, and its own log ends at {len(log)}: it does not know the commits and members in "
            "between",
        )
    for name in dict.fromkeys((*detail, *groups)):
        group = groups.setdefault(name, _GroupAnswers())
        commits = group.commits.get(place, [])
        if name in detail or (commits and commits[-1][1].partition == event.partition):
            yield from _outdated(group, event, place, detail.get(name, {}), "loaded", log)


def _begun(group: _GroupAnswers, event: TraceRow, detail: dict[str, Any]) -> Iterator[Step]:
    number = detail["generation"]
    later = max(group.generations, default=-1)
    if number < later or (number == later and group.generations[number].leader_epoch != event.leader_epoch):
        begun = group.generations[later]
        yield _step(
            StepKind.GENERATION_NUMBER_REUSED,
            event,
            f"began generation {number} of the group {detail['group']}, and {begun.node} had begun generation {later} "
            f"{begun.at}: members of both have a valid number",
        )
    group.generations.setdefault(number, event)


def _changed(group: _GroupAnswers, event: TraceRow, detail: dict[str, Any]) -> Iterator[Step]:
    """A rebalance that writes waits for a generation, which begins when all members have joined, or some and the others
    are static."""
    members = detail["members"]
    group.members.setdefault(detail["generation"], set()).update(members)
    silent = [member for member, answer in members.items() if answer != "join"]
    absent = [one[:12] for one in silent if one not in group.static or len(silent) == len(members)]
    generation = detail["generation"]
    if detail["state"] == "PreparingRebalance" and detail["storing"] and absent:
        yield _step(
            StepKind.GROUP_WAITS_FOR_NO_WRITE,
            event,
            f"began a rebalance of the group {detail['group']} after generation {generation} and waits for a write "
            f"(storing), although {', '.join(absent)} has not joined yet, so that no generation is being written: the "
            f"mark of an earlier write was kept{_failed(group.failed)}, and no write ends it, so the rebalance never "
            "completes",
        )
    if detail["state"] == "CompletingRebalance":
        group.unassigned = event.leader_epoch, generation
    if detail["state"] == "Stable" and group.unassigned == (event.leader_epoch, generation):
        yield _step(
            StepKind.GROUP_RECORD_NOT_COMMITTED,
            event,
            f"handed out the partitions of generation {generation} of the group {detail['group']} before the record "
            "with them was committed",
        )


def _failed(write: TraceRow | None) -> str:
    if write is None:
        return ""
    detail = write.details()
    return f" (the record of generation {detail['generation']} failed with {detail['error'].upper()} {write.at})"


def _assigned(event: TraceRow, detail: dict[str, Any], topic: str, partition: int) -> Iterator[Step]:
    """Each partition belongs to one member. The leader of the generation, a client, decides which."""
    owned = {member: _partitions(content) for member, content in detail["members"].items()}
    owners = [member[:12] for member, places in owned.items() if (topic, partition) in places]
    if len(owners) != 1 and any(name == topic for places in owned.values() for name, _ in places):
        given = "to both " + " and ".join(owners) if owners else "to no member"
        text = f"the client (member {detail['leader'][:12]}), the leader of generation {detail['generation']} of the "
        text += f"group {detail['group']}, assigned {topic}-{partition} {given}"
        yield Step(StepKind.PARTITION_ASSIGNED_WRONGLY, event.time_ns, event.node, text)


def _storing(group: _GroupAnswers, event: TraceRow, detail: dict[str, Any]) -> None:
    """The record of an assignment is appended, or refused, as soon as it is made."""
    assigned, group.assigned = group.assigned, None
    group.static |= {member for member, (instance, *_) in detail.get("record", {}).items() if instance is not None}
    if assigned is not None and detail["error"] == "none":
        for member in assigned.details()["members"]:
            group.assignment_records.setdefault((detail["generation"], member), event)


def _told_assignment(group: _GroupAnswers, event: TraceRow, detail: dict[str, Any]) -> Iterator[Step]:
    generation = detail["generation"]
    assigned = group.assignments.get(generation)
    for member, content in detail["members"].items():
        record = group.assignment_records.get((generation, member))
        if record is not None and record.leader_epoch == event.leader_epoch and record.log_end > event.high_watermark:
            yield _step(
                StepKind.GROUP_RECORD_NOT_COMMITTED,
                event,
                f"gave the member {member[:12]} of the group {detail['group']} the partitions {_listed(content)} in "
                f"generation {generation} before the record with them was committed, which ends at {record.log_end} of "
                f"{_log(event)}, and its high watermark was {event.high_watermark}: the next coordinator may not know "
                "this member",
            )
        if assigned is None:
            yield _step(
                StepKind.ASSIGNMENT_NOT_OF_GENERATION,
                event,
                f"gave the member {member[:12]} of the group {detail['group']} the partitions {_listed(content)} in "
                f"generation {generation}, whose leader had assigned nothing yet",
            )
        elif content != assigned.get(member):
            yield _step(
                StepKind.ASSIGNMENT_NOT_OF_GENERATION,
                event,
                f"gave the member {member[:12]} of the group {detail['group']} the partitions {_listed(content)} in "
                f"generation {generation}, whose leader had assigned it {_listed(assigned.get(member, ''))}",
            )


def _partitions(content: str) -> tuple[TopicPartition, ...]:
    try:
        return decode_assignment(bytes.fromhex(content))
    except UnreadableAssignment:
        return ()


def _listed(content: str) -> str:
    return "{" + ", ".join(f"{topic}-{partition}" for topic, partition in _partitions(content)) + "}"


def _stored(event: TraceRow, detail: dict[str, Any]) -> Iterator[Step]:
    if detail["error"] == "none" and event.log_end > event.high_watermark:
        yield _step(
            StepKind.GROUP_RECORD_NOT_COMMITTED,
            event,
            f"took the record of generation {detail['generation']} of the group {detail['group']} for committed, which "
            f"ends at {event.log_end} of {_log(event)}, and its high watermark was {event.high_watermark}: members act "
            "on a generation, or an assignment, that the next coordinator may not have",
        )


def _committed(group: _GroupAnswers, event: TraceRow, detail: dict[str, Any], place: str) -> Iterator[Step]:
    offset, generation = detail["offsets"][place], detail["generation"]
    commit = f"answered the commit of {offset} for {place}"
    later = max((number for number in group.generations if number > generation), default=None)
    if generation >= 0 and (detail["current"] != generation or later is not None):
        number = later if later is not None else detail["current"]
        begun = f", which {group.generations[number].node} had begun" if number in group.generations else ""
        yield _step(
            StepKind.COMMIT_OF_EARLIER_GENERATION,
            event,
            f"accepted the commit of {offset} for {place} by {detail['member'][:12]} in generation {generation}, while "
            f"the group is in generation {number}{begun}",
            offset,
        )
    known = group.members.get(generation, set())
    if generation >= 0 and known and detail["member"] not in known and generation == detail["current"]:
        yield _step(
            StepKind.COMMIT_OF_NO_MEMBER,
            event,
            f"accepted the commit of {offset} for {place} by {detail['member'][:12]}, which is no member in generation "
            f"{generation}: its members are {', '.join(sorted(member[:12] for member in known))}",
            offset,
        )
    if event.log_end > event.high_watermark:
        yield _step(
            StepKind.COMMIT_ANSWERED_ABOVE_HIGH_WATERMARK,
            event,
            f"{commit}, whose record is at {event.offset} of {_log(event)}, while its high watermark was "
            f"{event.high_watermark}: the record is not committed",
            offset,
        )
    commits = group.commits.setdefault(place, [])
    behind = takewhile(
        lambda one: one[1].leader_epoch == event.leader_epoch and one[1].offset > event.offset, reversed(commits)
    )
    commits.insert(len(commits) - len(list(behind)), (offset, event))


def _serves(event: TraceRow, loaded: TraceRow | None, decision: Decision | None) -> str:
    """Why a coordinator should not have answered; empty where it may."""
    if loaded is None or loaded.leader_epoch != event.leader_epoch:
        last = f", last in leader epoch {loaded.leader_epoch} {loaded.at}" if loaded is not None else ""
        return f"; it had not loaded that log in its leader epoch {event.leader_epoch}{last}"
    if decision is not None and decision.leader_epoch > event.leader_epoch and decision.leader != event.number:
        leads = f"b{decision.leader} leads" if decision.leader >= 0 else "nobody leads"
        return f"; {leads} that partition in leader epoch {decision.leader_epoch} {at(decision.time_ns).strip()}"
    return ""


def _outdated(
    group: _GroupAnswers,
    event: TraceRow,
    place: str,
    offsets: dict[str, int],
    did: str,
    log: Sequence[int],
    *,
    serves: str = "",
) -> Iterator[Step]:
    """An offset other than the one that was committed last, and that an earlier commit wrote, or none at all."""
    commits = group.commits.get(place, [])
    if not commits or (did != "loaded" and not offsets and not group.generations):
        return
    (last, commit), offset = commits[-1], offsets.get(place)
    if _may_have(group, commits, event, log, offset):
        return
    value = f"the offset {offset} of {place}" if offset is not None else f"no offset of {place}"
    read = (
        f"reading {_log(event)} up to {event.log_end}"
        if did == "loaded"
        else f"its high watermark was {event.high_watermark}"
    )
    kind = StepKind.COMMITTED_OFFSET_OUTDATED
    text = f"{did} {value} ({read}), and the commit of {last} had been answered by {commit.node} {commit.at}, at "
    text += f"{commit.offset} of that log{serves}"
    loaded = log[: event.log_end] if did == "loaded" else ()
    if commit.offset < len(loaded) and loaded[commit.offset] == commit.leader_epoch:
        kind = StepKind.COMMIT_DROPPED_WHILE_LOADING
        text += f": its own log has that record, which it read and dropped while it loaded{_behind(group, commit)}"
    yield _step(kind, event, text)


def _behind(group: _GroupAnswers, commit: TraceRow) -> str:
    """The first record of the group itself behind a commit."""
    for record in group.records:
        if record.partition == commit.partition and record.offset > commit.offset:
            return f"; behind it, at {record.offset}, the group's own record of generation {_generation(record)}"
    return ""


def _forgotten(
    group: _GroupAnswers,
    event: TraceRow,
    place: str,
    held: dict[str, int],
    upon: str,
    log: Sequence[int],
    deletions: int,
) -> Iterator[Step]:
    """A coordinator keeps every offset whose commit it, or an earlier one, has answered, whatever else changes, until
    it deletes that, or reads that its topic is deleted: a tombstone may have to wait until the ISR suffices. Offsets
    are told only once it is committed, so `_outdated` goes by the log alone."""
    commits = [one for one in group.commits.get(place, []) if one[1].leader_epoch <= event.leader_epoch]
    if not commits or commits[-1][1].partition != event.partition:
        return
    (last, commit), offset = commits[-1], held.get(place)
    if _may_have(group, commits, event, log, offset) or (offset is None and _topic_ended(group, commit, deletions)):
        return
    left = ", ".join(f"{value} for {name}" for name, value in sorted(held.items())) or "none at all"
    changed = (
        f"forgot the committed offset {last} of {place}"
        if offset is None
        else (f"replaced the committed offset {last} of {place} by the earlier {offset}")
    )
    yield _step(
        StepKind.OFFSETS_FORGOTTEN,
        event,
        f"{changed} {upon}: {commit.node} had answered the commit of {last} {commit.at}, and the group's offsets are "
        f"{left} now",
    )


def _generation(record: TraceRow) -> int:
    generation: int = record.details()["generation"]
    return generation
