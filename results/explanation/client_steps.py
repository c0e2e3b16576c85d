"""Broken steps of clients: what they reported and sent, compared with what brokers appended, acknowledged and told.

A broker's answer is in the trace and the operation that it ended is in the history; both have the true time of the run.
So a client that reports what no broker told it shows in the two together:

- an append is `ok` only upon an acknowledgement, with the offset in it, and `fail` only when it is in no log;
- a batch that may be in the log is sent again under its own sequence number alone: a broker recognizes nothing else,
  and it can neither renumber a batch nor change its records, since the checksum covers both;
- a read of the latest offset gives what a leader told, no less than was committed when it began, and a poll nothing
  that no leader's high watermark had passed when it ended;
- a commit is `ok` upon a coordinator's answer, a member starts where the coordinator told it, and it commits what polls
  have given it.

The trace has what a broker decided, and not the bytes that it sent: an answer that the client has and no broker decided
may also be a broker's that dropped the error, and the step says so.

Positions are the history's own, and the check `positions` names what moved them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from checkers.tables import TraceRow, of_partition, trace_rows
from results.explanation.event_facts import batch_of, is_unclean_election
from results.explanation.replay import PartitionReplay
from results.explanation.story import Step, StepKind, at, span
from workloads.columns import NEVER
from workloads.history import NO_GENERATION

_DROPPED: Final = "an error was dropped, by the broker that answered or by the client"
_COLUMNS: Final = (
    "index", "process", "kind", "invoked_ns", "completed_ns", "outcome", "value", "offset", "offsets", "values", "error"
)  # fmt: skip


@dataclass(slots=True)
class _BrokerAnswers:
    """What leaders appended and answered, by offset."""

    appended: dict[int, list[TraceRow]] = field(default_factory=dict)
    acknowledged: dict[int, list[TraceRow]] = field(default_factory=dict)
    unacknowledged: dict[int, list[TraceRow]] = field(default_factory=dict)
    """Answered with an error, although appended."""
    latest: list[TraceRow] = field(default_factory=list)

    @classmethod
    def of(cls, events: Sequence[TraceRow]) -> _BrokerAnswers:
        """The answers in the trace of one partition."""
        answers = cls()
        kinds = {
            "appended": answers.appended,
            "acknowledged": answers.acknowledged,
            "append_unacknowledged": answers.unacknowledged,
        }
        for event in events:
            if event.kind == "latest_told":
                answers.latest.append(event)
            elif event.kind in kinds and (event.kind != "appended" or event.leader in (event.number, -1)):
                for offset in range(event.offset, max(event.log_end, event.offset + 1)):
                    kinds[event.kind].setdefault(offset, []).append(event)
        return answers

    def batches(self, append: Mapping[str, Any], offset: int) -> list[TraceRow]:
        """The batches that a leader appended over `offset` since an append began, each once."""
        copies: dict[object, TraceRow] = {}
        for event in self.appended.get(offset, ()):
            if event.time_ns >= append["invoked_ns"]:
                copies.setdefault(batch_of(event) or event.time_ns, event)
        return list(copies.values())


def client_steps(
    events: Sequence[TraceRow], history: pa.Table, replicas: pa.Table, topic: str, partition: int
) -> Iterator[Step]:
    """The broken steps of producers and of readers of the latest offset, about one partition."""
    rows = of_partition(history, topic, partition).select(_COLUMNS).sort_by("index").to_pylist()
    answers, places = _BrokerAnswers.of(events), _places(rows, of_partition(replicas, topic, partition))
    for row in rows:
        if row["kind"] == "append":
            yield from _appended(row, answers, sorted(places.get(row["value"], ())))
        elif row["kind"] == "end_offset" and row["outcome"] == "ok":
            yield from _latest(row, answers)


def _places(rows: Sequence[Mapping[str, Any]], replicas: pa.Table) -> dict[int, set[int]]:
    """Value → the offsets at which polls, or replicas' logs at the end, have it."""
    places: dict[int, set[int]] = {}
    for row in rows:
        if row["kind"] == "poll" and row["outcome"] == "ok":
            for offset, value in zip(row["offsets"] or (), row["values"] or (), strict=True):
                places.setdefault(value, set()).add(offset)
    for offset, value in zip(*(replicas.column(name).to_pylist() for name in ("offset", "value")), strict=True):
        places.setdefault(value, set()).add(offset)
    return places


def _step(kind: StepKind, row: Mapping[str, Any], time_ns: int, text: str, first: int = 0, end: int = -1) -> Step:
    process = f"process {row['process']}"
    return Step(kind, time_ns, process, f"the client ({process}) {text}", first, end)


def _batch(event: TraceRow) -> str:
    """A batch in words: where and when it was appended, and its numbers."""
    detail = event.details()
    epoch = f" in producer epoch {detail['producer_epoch']}" if "producer_epoch" in detail else ""
    return (
        f"{event.node} appended it at {event.offset} {event.at} as sequence {detail.get('sequence')} of producer id "
        f"{detail.get('producer_id')}{epoch}"
    )


def _during(events: Sequence[TraceRow], row: Mapping[str, Any]) -> list[TraceRow]:
    """The events between the invocation of an operation and its completion."""
    completed = row["completed_ns"] if row["completed_ns"] is not None else NEVER
    return [event for event in events if row["invoked_ns"] <= event.time_ns <= completed]


# ---- producers -------------------------------------------------------------------------------------------------------


def _appended(row: Mapping[str, Any], answers: _BrokerAnswers, places: Sequence[int]) -> Iterator[Step]:
    append = f"append #{row['index']} of value {row['value']}"
    copies = [(offset, batches[0]) for offset in places if len(batches := answers.batches(row, offset)) == 1]
    if row["outcome"] == "fail" and copies:
        offset, batch = copies[0]
        after = [event for event in answers.unacknowledged.get(offset, ()) if event.node == batch.node]
        answer = (
            f"and answered {after[0].details()['error'].upper()} {after[0].at}" if after else "and did not refuse it"
        )
        yield _step(
            StepKind.APPEND_FAILED_THOUGH_APPENDED,
            row,
            row["completed_ns"],
            f"reported that {append} certainly failed ({row['error']}), although {_batch(batch)} {answer}: that does "
            "not prove that the record is in no log, so the outcome is unknown and may not be told as a failure",
            offset,
            offset + 1,
        )
    first = next(iter(copies), None)
    other = next((copy for copy in copies if first is not None and batch_of(copy[1]) != batch_of(first[1])), None)
    if first is not None and other is not None:
        earlier, later = sorted((first[1], other[1]), key=lambda event: event.time_ns)
        yield _step(
            StepKind.BATCH_SENT_UNDER_OTHER_NUMBER,
            row,
            later.time_ns,
            f"sent value {row['value']} again under another sequence number, although it may have been in the log and "
            f"was: {_batch(earlier)}, and {_batch(later)}. No broker can recognize that as a retry",
            min(first[0], other[0]),
            max(first[0], other[0]) + 1,
        )
    if row["outcome"] == "ok" and row["offset"] is not None:
        yield from _acknowledged(row, append, answers)


def _acknowledged(row: Mapping[str, Any], append: str, answers: _BrokerAnswers) -> Iterator[Step]:
    offset = row["offset"]
    if not _during(answers.acknowledged.get(offset, ()), row):
        failed = _during(answers.unacknowledged.get(offset, ()), row)
        answer = f" ({failed[0].node} ended it with {failed[0].details()['error'].upper()})" if failed else ""
        yield _step(
            StepKind.ACKNOWLEDGEMENT_NEVER_GIVEN,
            row,
            row["completed_ns"],
            f"has {append} acknowledged at offset {offset}, and no broker acknowledged a batch with that offset in the "
            f"meantime{answer}: {_DROPPED}",
            offset,
            offset + 1,
        )


def _latest(row: Mapping[str, Any], answers: _BrokerAnswers) -> Iterator[Step]:
    during = _during(answers.latest, row)
    if row["offset"] not in [event.high_watermark for event in during]:
        answered = ", ".join(f"{event.node} told {event.high_watermark}" for event in during) or "no leader told any"
        yield _step(
            StepKind.LATEST_OFFSET_NEVER_TOLD,
            row,
            row["completed_ns"],
            f"has {row['offset']} as the latest offset for read #{row['index']}, and {answered} in the meantime",
            row["offset"],
        )


# ---- readers ---------------------------------------------------------------------------------------------------------


def read_steps(events: Sequence[TraceRow], history: pa.Table, topic: str, partition: int) -> Iterator[Step]:
    """The reads of one partition that were answered wrongly, in the order of completion. From an unclean election on
    nothing that was committed before need be there."""
    times_ns, committed, ever, given_up_before = [0], [0], [0], 0
    for event in events:
        lasting = committed[-1]
        if is_unclean_election(event):
            lasting, given_up_before = 0, event.leader_epoch
        elif event.kind != "high_watermark":
            continue
        elif event.leader_epoch >= given_up_before:
            lasting = max(lasting, event.high_watermark)
        times_ns.append(event.time_ns)
        committed.append(lasting)
        ever.append(max(ever[-1], event.high_watermark))
    if not ever[-1]:
        return
    answers = [event for event in events if event.kind == "latest_told"]
    own = (pc.field("topic") == topic) & (pc.field("partition") == partition) & (pc.field("outcome") == "ok")
    reads = history.filter(own & pc.field("kind").isin(["poll", "end_offset"]))
    columns = ["index", "process", "kind", "invoked_ns", "completed_ns", "offset", "offsets"]
    for row in reads.select(columns).sort_by("completed_ns").to_pylist():
        began, ended = (bisect_right(times_ns, row[name]) for name in ("invoked_ns", "completed_ns"))
        if row["kind"] == "poll":
            highest, end = max(row["offsets"] or [-1]), ever[ended - 1]
            if highest >= end:
                yield _uncommitted(row, end, highest, events)
        elif row["offset"] < (end := min(committed[began - 1 : ended])):
            yield _outdated(row, end, answers)


def _uncommitted(row: dict[str, Any], end: int, highest: int, events: Sequence[TraceRow]) -> Step:
    """A poll beyond every high watermark, with the leaders that had the records by then."""
    state = PartitionReplay()
    for event in events:
        if event.time_ns <= row["completed_ns"]:
            state.apply(event)
    leaders = [one for _, one in sorted(state.replicas.items()) if one.role == "leader" and len(one.log) > highest]
    had = " and ".join(
        f"{one.node}, which led in epoch {one.leader_epoch}, had its high watermark at {max(one.high_watermark, 0)} "
        f"and its log end at {len(one.log)}"
        for one in leaders
    )
    return Step(
        StepKind.RECORD_READ_ABOVE_HIGH_WATERMARK,
        row["completed_ns"],
        leaders[0].node if len(leaders) == 1 else f"process {row['process']}",
        f"poll #{row['index']} of process {row['process']} returned {span(end, highest + 1)}, and no leader's "
        f"high watermark had passed {end}" + (f"; {had}: it answered with uncommitted records" if had else ""),
        end,
        highest + 1,
        lacking="" if len(leaders) == 1 else "which node answered the poll: the history names none",
    )


def _outdated(row: dict[str, Any], end: int, answers: Sequence[TraceRow]) -> Step:
    """A read of the latest offset, with the leader that answered during it last, and its high watermark by then."""
    during = [event for event in answers if row["invoked_ns"] <= event.time_ns <= row["completed_ns"]]
    by = ", and no leader told any offset in the meantime: it is one that was kept from an earlier answer"
    if during:
        last = during[-1]
        by = f". {last.node} answered as leader of epoch {last.leader_epoch}, its high watermark at "
        by += f"{last.high_watermark}" + (" by then" if last.high_watermark > row["offset"] else "")
        if last.high_watermark > row["offset"]:
            by += f": {row['offset']} is the high watermark of an earlier moment, not that after the read was confirmed"
    return Step(
        StepKind.LATEST_OFFSET_OUTDATED,
        row["completed_ns"],
        during[-1].node if during else f"process {row['process']}",
        f"read #{row['index']} of the latest offset was answered with {row['offset']}, and a leader had committed up "
        f"to {end} before it began {at(row['invoked_ns']).strip()}{by}",
        row["offset"],
        end,
    )


# ---- members of groups -----------------------------------------------------------------------------------------------


def member_steps(trace: pa.Table, history: pa.Table, topic: str, partition: int) -> Iterator[Step]:
    """The broken steps of group members about one partition: commits and starts that no coordinator answered so, and
    commits of what a member had not been given."""
    yield from _beyond_delivered(trace, history, topic, partition)
    rows = of_partition(history, topic, partition).filter(pc.field("kind").isin(["assign", "commit"]))
    events: dict[str, list[TraceRow]] = {"offsets_committed": [], "commit_failed": [], "offsets_told": []}
    for event in trace_rows(trace.filter(pc.field("kind").isin(list(events)))):
        events[event.kind].append(event)
    place, operations = f"{topic}-{partition}", rows.sort_by("index").to_pylist()
    commits = [row for row in operations if row["kind"] == "commit" and row["outcome"] != "fail"]
    for row in operations:
        if row["kind"] == "commit":
            committed, failed = (_during(events[kind], row) for kind in ("offsets_committed", "commit_failed"))
            same = [other for other in commits if _written(other) == _written(row)]
            yield from _commit(row, committed, failed, same, place)
        elif row["outcome"] == "ok":
            yield from _start(row, _during(events["offsets_told"], row), place)


def _written(commit: Mapping[str, Any]) -> tuple[int, int]:
    """The offset and the generation of a commit, by which a coordinator's answer to it is found."""
    return commit["offset"], commit["value"]


def _commit(
    row: Mapping[str, Any],
    committed: Sequence[TraceRow],
    failed: Sequence[TraceRow],
    same: Sequence[Mapping[str, Any]],
    place: str,
) -> Iterator[Step]:
    """`same`: the commits, of all groups and members, of which an answer may say the same, and that did not fail."""
    commit = f"commit #{row['index']} of {row['offset']} for {place} in generation {row['value']}"
    failed = [event for event in failed if event.details()["offsets"].get(place) == row["offset"]]
    accepted = [event for event in committed if event.details()["offsets"].get(place) == row["offset"]]
    own = [event for event in accepted if event.details()["generation"] == row["value"]]
    if row["outcome"] == "ok" and not own:
        did = f"has {commit} answered without an error, and no coordinator had committed it in the meantime: {_DROPPED}"
        if failed:
            error = failed[0].details()["error"].upper()
            did = f"has {commit} answered without an error, and it had failed: {failed[0].node} ended it with {error} "
            did += f"{failed[0].at}, its record was not committed: {_DROPPED}"
        elif accepted:
            did = f"sent {commit} with generation {accepted[0].details()['generation']}, as {accepted[0].node} took it"
        yield _step(StepKind.COMMIT_NEVER_ANSWERED, row, row["completed_ns"], did)
    elif row["outcome"] == "fail" and (own := [event for event in own if not any(_during([event], o) for o in same)]):
        yield _step(
            StepKind.COMMIT_FAILED_THOUGH_ACCEPTED,
            row,
            row["completed_ns"],
            f"reported that {commit} certainly failed ({row['error']}), and {own[0].node} had accepted it {own[0].at}",
        )


def _beyond_delivered(trace: pa.Table, history: pa.Table, topic: str, partition: int) -> Iterator[Step]:
    """A member commits the end of what polls have given it in a generation, be it in a later one. Beyond that it knows
    an offset only from the answer of a fetch that no poll has given it yet."""
    own = of_partition(history, topic, partition).filter(pc.field("kind").isin(["assign", "poll", "commit"]))
    moved = of_partition(trace, topic, partition).filter(pc.field("kind").isin(["appended", "log_start"]))
    ends: dict[int, int] = {}
    deleted_below = 0
    for event in trace_rows(moved):
        if event.kind == "appended":
            ends.setdefault(event.log_end, event.time_ns)
        else:
            deleted_below = max(deleted_below, event.offset)
    delivered: dict[int, dict[int, int]] = {}  # by process and generation
    # A commit is looked at as it begins, all else once it has ended.
    rows = own.select(_COLUMNS).to_pylist()
    for row in sorted(rows, key=lambda row: row["invoked_ns"] if row["kind"] == "commit" else row["completed_ns"]):
        ends_of, offset = delivered.setdefault(row["process"], {}), row["offset"]
        if row["kind"] == "assign":
            end = max(ends_of.pop(row["value"], offset), offset) if row["outcome"] == "ok" else NEVER
            ends_of[row["value"]] = end  # the last one from now on
        elif row["kind"] == "poll":
            end = row["offsets"][-1] + 1 if row["offsets"] else offset
            generation = next(reversed(ends_of), NO_GENERATION)
            ends_of[generation] = max(ends_of.get(generation, NEVER), end)
        elif offset > max(given := _given(ends_of, row["value"]), deleted_below):
            known = ends.get(offset, NEVER) <= row["invoked_ns"]
            what = "the position of its fetches, behind records that an answer had brought and" if known else "records"
            yield _step(
                StepKind.COMMITTED_BEYOND_DELIVERED,
                row,
                row["invoked_ns"],
                f"committed {offset} of {topic}-{partition} in generation {row['value']}, and polls had given it the "
                f"records below {given} only: it committed {what} that no poll had given it yet, so that whoever "
                "begins there skips them",
                given,
                offset,
            )


def _given(ends: Mapping[int, int], generation: int) -> int:
    """Up to where polls have given records to a member in a generation; in its last one before, where it was assigned
    nothing in that."""
    before = [number for number in ends if number <= generation]
    return ends[max(before)] if before else NEVER


def _start(row: Mapping[str, Any], during: Sequence[TraceRow], place: str) -> Iterator[Step]:
    told = [event.details()["offsets"].get(place, 0) for event in during]
    if row["offset"] not in told:
        answered = ", ".join(map(str, told)) if told else "none"
        yield _step(
            StepKind.START_NEVER_TOLD,
            row,
            row["completed_ns"],
            f"started at {row['offset']} of {place} in generation {row['value']}, and the committed offset that a "
            f"coordinator told in the meantime is {answered}",
        )
