"""The group coordinator of one partition of `__consumer_offsets`, while this broker leads it.

A `Shard` exists for one leadership. It first loads the log up to its leader epoch start offset, and serves once the
high watermark has reached that offset: only then is everything it loaded committed, including everything that an
earlier coordinator acknowledged. After that it appends these records:

- a *group* record that a generation begins: its members receive its number once it is committed;
- a *group* record with the assignment of a generation: members receive it once it is committed; and one with a static
  member in the place of another, which joins once it is committed;
- *offset* records: a commit is answered, and its offsets can be fetched, once they are committed. A commit whose wait
  timed out takes effect when the high watermark passes it, in log order.

The tombstones that delete a group are in one batch. At its append the group is gone for those that come later, whose
own records follow it in the log; its offsets can be fetched until the batch is committed.

The offsets of a deleted topic are forgotten at once, and deleted from the log by tombstones, which precede every later
commit: a new topic of the same name begins without offsets. A coordinator that begins to lead finds in what it loads
the offsets of topics that were gone then, also where new ones have their names: each offset has the id of its topic.

When the leadership ends, every waiting request is answered with NOT_COORDINATOR.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from images.broker.groups.answers import COMMIT_ERRORS, GROUP_ERRORS
from images.broker.groups.committed_offsets import CommittedOffsets, UncommittedChange
from images.broker.groups.group import (
    NEVER_MS,
    Caller,
    Group,
    GroupState,
    GroupStep,
    JoinAnswer,
    StoreGeneration,
    StoreGroup,
    StoreReplacement,
    SyncAnswer,
)
from images.broker.groups.membership import check_deletion, next_deadline_ms, on_tick
from images.broker.groups.rebalance import generation_record, generation_stored, replacement_stored, stored
from images.broker.groups.records import (
    GroupRecord,
    OffsetAndMetadata,
    OffsetRecord,
    Records,
    TopicPartition,
    UnreadableRecord,
    decode,
    encode_group,
    encode_group_gone,
    encode_offset,
)
from images.broker.groups.tombstones import Tombstones
from images.broker.groups.trace_details import (
    generation_detail,
    offset_changes,
    offsets_by_name,
    record_detail,
    waits_detail,
)
from images.broker.groups.waiting_requests import WaitingRequests
from images.broker.replication import leader as leading
from images.broker.replication.partition import ReplicaRole
from images.broker.replication.replica import ACKS_ALL, Replica
from images.broker.replication.replica_results import AppendResult, LatestRead
from images.broker.rules import Rules
from images.broker.runtime.condition import Condition, wait_for_any
from images.broker.runtime.spawn import Spawn
from images.wire import batch as batches

_LOAD_BYTES = 1 << 20
_RECHECK_S = 1.0


class Shard:
    """The coordinator of the groups of one partition.

    `clock` gives seconds, for deadlines; `record_ms` is the clock of records' timestamps; `changed` is notified of new
    deadlines.
    """

    def __init__(
        self,
        replica: Replica,
        rules: Rules,
        commit_timeout_s: float,
        clock: Callable[[], float],
        record_ms: Callable[[], int],
        spawn: Spawn,
        changed: Condition,
        log: Callable[[str], None],
    ) -> None:
        self.leader_epoch = replica.state.leader_epoch
        self.groups: dict[str, Group] = {}
        self.loaded = False
        self._replica = replica
        self._rules = rules
        self._commit_timeout_s = commit_timeout_s
        self._clock = clock
        self.record_ms = record_ms
        self._spawn = spawn
        self._changed = changed
        self._log = log
        self._offsets = CommittedOffsets()
        self._joins = WaitingRequests(JoinAnswer)
        self._syncs = WaitingRequests(SyncAnswer)
        self._deleted_topics: set[str] = set()
        """Deleted while the log was being loaded, which has offsets of earlier coordinators alone."""
        self._tombstones = Tombstones(self._append_now, spawn)

    @property
    def leads(self) -> bool:
        """Whether this broker still has the leadership of this shard, as far as it knows."""
        state = self._replica.state
        return state.role is ReplicaRole.LEADER and state.leader_epoch == self.leader_epoch

    def now_ms(self) -> int:
        """The time in milliseconds, for deadlines of groups."""
        return int(self._clock() * 1000)

    # --- loading ------------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Read the log, then wait until everything read is committed. Returns early when the leadership ends."""
        replica = self._replica
        offset, end = replica.log.start, replica.log.end
        while offset < end:
            data = replica.log.read(offset, _LOAD_BYTES, end)
            for header, batch in batches.iterate(data):
                self._replay(batch)
                offset = header.next_offset
            await asyncio.sleep(0)
            if not self.leads:
                return
        if not self.leads:
            return
        while not leading.knows_committed(replica.state, replica.limits) or replica.state.high_watermark < end:
            if not self._rules.coordinator_waits_for_high_watermark:
                break
            await wait_for_any((replica.changed,), self._clock() + _RECHECK_S)
            if not self.leads:
                return
        now_ms = self.now_ms()
        self.groups = {name: group.loaded(now_ms) for name, group in self.groups.items()}
        self.loaded = True
        for name, group in self.groups.items():
            self.trace("group_loaded", name, {"state": str(group.state), "at_ms": now_ms, **record_detail(group)})
        replica.trace(
            "coordinator_loaded",
            replica.log.start,
            end,
            {name: self._held(name) for name in self._offsets.groups},
        )
        self._changed.notify_all()

    def _replay(self, batch: bytes) -> None:
        for record in batches.records(batch):
            try:
                entry = decode(record.key, record.value)
            except UnreadableRecord as error:
                self._log(f"{self._replica.name}: skipping offset {record.offset}: {error}")
                continue
            if isinstance(entry, GroupRecord):
                self._replay_group(entry)
            else:
                self._replay_offset(entry)

    def _replay_group(self, record: GroupRecord) -> None:
        if record.value is None:
            self.groups.pop(record.group, None)
            self._offsets.delete_group(record.group)
        else:
            self.groups[record.group] = record.value

    def _replay_offset(self, record: OffsetRecord) -> None:
        if record.value is not None:
            self.groups.setdefault(record.group, Group(record.group))
        self._offsets.replay(record)

    # --- groups -------------------------------------------------------------------------------------------------------

    def apply(self, name: str, step: GroupStep) -> None:
        """Replace the group by the one in `step`, and carry out its decisions. A new group that stays empty is not
        kept."""
        if name not in self.groups and step.group == Group(name):
            return
        before, self.groups[name] = self.groups.get(name), step.group
        self._trace_group(before, step.group)
        generation = generation_detail(step.group, step.decisions)
        if step.group.state is GroupState.COMPLETING and generation:
            self.trace("generation_begun", name, generation)
        for decision in step.decisions:
            if isinstance(decision, StoreGroup | StoreGeneration | StoreReplacement):
                self._store(name, decision)
            elif isinstance(decision, JoinAnswer):
                self._joins.respond(name, decision.member_id, decision)
            else:
                self._syncs.respond(name, decision.member_id, decision)
        self._changed.notify_all()

    def _trace_group(self, before: Group | None, group: Group) -> None:
        """Trace a group that waits for something else than before."""
        detail = waits_detail(group)
        if before is None or waits_detail(before) != detail:
            self.trace("group_changed", group.id, {**detail, "held": self._held(group.id), "at_ms": self.now_ms()})

    def trace(self, kind: str, name: str, detail: Mapping[str, object]) -> None:
        """Trace an event of a group, at the end of the log."""
        end = self._replica.state.log_end
        self._replica.trace(kind, end, end, {"group": name, **detail})

    def trace_request(self, name: str, api: str, error: ErrorCode | None, facts: Mapping[str, object]) -> None:
        """Trace the error that the state of a group gives a request, before the request is carried out; None if it
        waits."""
        answer = {"api": api, "error": "waits" if error is None else error.name, "at_ms": self.now_ms()}
        unanswered = [[member_id, "join"] for member_id in self._joins.members(name)]
        unanswered += [[member_id, "sync"] for member_id in self._syncs.members(name)]
        self.trace("group_request", name, {**answer, **facts, "open": unanswered})

    async def join_answer(self, name: str, step: GroupStep) -> JoinAnswer:
        """Apply the step of a join, and wait for its response."""
        if isinstance(step.answer, JoinAnswer):
            self.apply(name, step)
            return step.answer
        waiting = self._joins.add(name, step.waiting_member_id)
        self.apply(name, step)
        return await waiting

    async def sync_answer(self, name: str, step: GroupStep) -> SyncAnswer:
        """Apply the step of a sync, and wait for its response."""
        if isinstance(step.answer, SyncAnswer):
            self.apply(name, step)
            answer = step.answer
        else:
            waiting = self._syncs.add(name, step.waiting_member_id)
            self.apply(name, step)
            answer = await waiting
        if answer.error is ErrorCode.none:
            told = {"generation": step.group.generation, "members": {answer.member_id: answer.assignment.hex()}}
            self.trace("assignment_told", name, told)
        return answer

    def on_tick(self) -> int:
        """Handle deadlines of all groups; returns the next deadline known now."""
        if not self.loaded:
            return NEVER_MS
        now_ms = self.now_ms()
        for name, group in list(self.groups.items()):
            if next_deadline_ms(group) <= now_ms:
                self.apply(name, on_tick(group, now_ms))
        return min((next_deadline_ms(group) for group in self.groups.values()), default=NEVER_MS)

    def _store(self, name: str, store: StoreGroup | StoreGeneration | StoreReplacement) -> None:
        """Append the record of the group that `store` asks for, and report the outcome to the state machine."""
        group = self.groups[name]
        if not isinstance(store, StoreGeneration):
            record = group
            members = {member.id: member.assignment.hex() for member in group.members}
            assignment = {"generation": store.generation, "leader": group.leader, "members": members}
            self.trace("group_assigned", name, assignment)
        elif self._rules.generation_stored_before_join:
            record = generation_record(group, store.generation)
        else:
            self.apply(name, generation_stored(group, store.generation, ErrorCode.none, self.now_ms()))
            return
        append_result = self._append((encode_group(record, self.record_ms()),))
        detail = {"group": name, **record_detail(record), "error": append_result.error.name}
        self._replica.trace("group_storing", append_result.base_offset, append_result.end, detail)
        self._spawn(self._report_stored, name, store, append_result)

    async def _report_stored(
        self, name: str, store: StoreGroup | StoreGeneration | StoreReplacement, append_result: AppendResult
    ) -> None:
        error = await self._wait_until_committed(append_result)
        group = self.groups.get(name)
        if group is None or not self.leads:
            return
        if isinstance(store, StoreGroup) and error is ErrorCode.coordinator_not_available:
            error = ErrorCode.rebalance_in_progress  # members only need to join again
        detail = {"group": name, "generation": store.generation, "error": error.name}
        self._replica.trace("group_stored", append_result.base_offset, append_result.end, detail)
        if isinstance(store, StoreReplacement):
            step = replacement_stored(group, store.member_id, error, self.now_ms())
        elif isinstance(store, StoreGeneration):
            step = generation_stored(group, store.generation, error, self.now_ms())
        else:
            step = stored(group, store.generation, error, self.now_ms())
        self.apply(name, step)

    def close(self) -> None:
        """End of the leadership: waiting requests get NOT_COORDINATOR, so that clients look up the new coordinator."""
        self.loaded = False
        self._joins.refuse_all(ErrorCode.not_coordinator)
        self._syncs.refuse_all(ErrorCode.not_coordinator)

    # --- offsets ------------------------------------------------------------------------------------------------------

    async def commit(
        self, name: str, caller: Caller, offsets: Iterable[tuple[TopicPartition, OffsetAndMetadata]]
    ) -> ErrorCode:
        """Append committed offsets of a group; no error once they are committed."""
        offsets = tuple(offsets)
        group = self.groups.setdefault(name, Group(name))
        detail = {
            "group": name,
            "member": caller.member_id,
            "generation": caller.generation,
            "current": group.generation,
            "offsets": offsets_by_name(dict(offsets)),
        }
        append_result = self._append(encode_offset(name, key.topic, key.partition, value) for key, value in offsets)
        if append_result.error is ErrorCode.none:
            self._offsets.append(UncommittedChange(append_result, name, offsets))
            if not self._rules.offset_commit_after_high_watermark:
                self._apply_committed_offsets()
                self._trace_commit("offsets_committed", append_result, detail)
                return ErrorCode.none
        error = await self._wait_until_committed(append_result, COMMIT_ERRORS)
        if error is ErrorCode.none:
            self._trace_commit("offsets_committed", append_result, detail)
        else:
            self._trace_commit("commit_failed", append_result, {**detail, "error": error.name})
        return error

    def _trace_commit(self, kind: str, append_result: AppendResult, detail: dict[str, Any]) -> None:
        held = {"held": self._held(detail["group"])}
        self._replica.trace(kind, append_result.base_offset, append_result.end, {**detail, **held})

    def _held(self, name: str) -> dict[str, int]:
        """For the trace: the committed offsets of a group, as this coordinator has them now."""
        return offsets_by_name(self._offsets.of(name))

    def offsets_read(self) -> AbstractContextManager[LatestRead | None]:
        """A read of committed offsets, which begins at once and ends with its block: None if nobody has to confirm
        it."""
        self._tombstones.append()
        return self._replica.latest_read() if self._rules.offset_fetch_confirmed_by_isr else nullcontext()

    async def committed_offsets(
        self, name: str, latest_read: LatestRead | None, until: float
    ) -> tuple[ErrorCode, dict[TopicPartition, OffsetAndMetadata]]:
        """The committed offsets of a group, none older than any that a later coordinator can have acknowledged before
        the read began, once none can have those of deleted topics."""
        error, read = ErrorCode.none, -1
        confirmed: tuple[int, ...] = ()
        if latest_read is not None:
            error, _, read, confirmed = await self._replica.latest_offset(latest_read, until)
        if error is ErrorCode.none and not self._tombstones.committed(self._replica.state.high_watermark):
            error = ErrorCode.offset_not_available
        if error is not ErrorCode.none or not self.leads:
            unconfirmed = error is ErrorCode.offset_not_available and self.leads
            return (ErrorCode.coordinator_load_in_progress if unconfirmed else ErrorCode.not_coordinator), {}
        self._apply_committed_offsets()
        offsets = self._offsets.of(name)
        told = {"offsets": offsets_by_name(offsets), "read": read, "confirmed": list(confirmed)}
        self.trace("offsets_told", name, told)
        return ErrorCode.none, offsets

    async def delete(self, name: str) -> ErrorCode:
        """Delete a group without members, and its offsets, also those of commits that are not committed yet.

        GROUP_ID_NOT_FOUND on account of another deletion waits until that one is committed.
        """
        self._apply_committed_offsets()
        uncommitted = self._offsets.uncommitted_of(name)
        error = check_deletion(self.groups.get(name))
        self.trace_request(name, "delete", error, {"member": "", "instance": None})
        if error is ErrorCode.group_id_not_found and uncommitted:
            waited = await self._wait_until_committed(uncommitted[-1].append_result)
            return error if waited is ErrorCode.none else waited
        if error is not ErrorCode.none:
            return error
        keys = dict.fromkeys(self._offsets.of(name))
        keys.update((key, None) for change in uncommitted for key, _ in change.offsets or ())
        tombstones = [encode_offset(name, key.topic, key.partition, None) for key in keys]
        append_result = self._append((*tombstones, encode_group_gone(name)))
        if append_result.error is ErrorCode.none:
            del self.groups[name]
            self._offsets.append(UncommittedChange(append_result, name, None))
        return await self._wait_until_committed(append_result)

    def _apply_committed_offsets(self) -> None:
        """Apply the changes of offsets that the high watermark has passed; without its rule, all."""
        waits = self._rules.offset_commit_after_high_watermark
        self._offsets.commit(self._replica.state.high_watermark if waits else None)

    # --- deleted topics -----------------------------------------------------------------------------------------------

    def forget_topics(self, topics: Iterable[str]) -> None:
        """Delete the offsets of deleted topics, also those above the high watermark. Before the log is loaded, that is
        left for `forget_other_topics`."""
        self._deleted_topics.update(topics)
        if self.loaded and self._deleted_topics:
            self._forget(lambda key, value: False)

    def forget_other_topics(self, topics: Mapping[str, UUID]) -> None:
        """Once the log is loaded: delete the offsets of all topics but these, given as names with ids. An offset
        without the id of its topic goes by the name alone, as in Kafka."""
        self._forget(lambda key, value: value.topic_id not in (None, topics.get(key.topic)) or key.topic not in topics)

    def _forget(self, is_gone: Callable[[TopicPartition, OffsetAndMetadata], bool]) -> None:
        deleted, self._deleted_topics = self._deleted_topics, set()
        gone = self._offsets.forget(lambda key, value: key.topic in deleted or is_gone(key, value))
        self._tombstones.add(encode_offset(name, key.topic, key.partition, None) for name, key in gone)

    # --- the log ------------------------------------------------------------------------------------------------------

    def _append(self, records: Iterable[tuple[bytes, bytes | None]]) -> AppendResult:
        self._tombstones.append()
        return self._append_now(tuple(records))

    def _append_now(self, content: Records) -> AppendResult:
        if not self.leads:
            return AppendResult(ErrorCode.not_leader_or_follower)
        append_result = self._replica.append(batches.build(content, timestamp_ms=self.record_ms()), ACKS_ALL)
        changes = offset_changes(content)
        if changes and append_result.error is ErrorCode.none:
            base, end = append_result.base_offset, append_result.end
            self._replica.trace("offsets_storing", base, end, {"changes": changes})
        return append_result

    async def _wait_until_committed(
        self, append_result: AppendResult, errors: Mapping[ErrorCode, ErrorCode] = GROUP_ERRORS
    ) -> ErrorCode:
        error = append_result.error
        if error is ErrorCode.none:
            error = await self._replica.wait_until_committed(append_result, self._clock() + self._commit_timeout_s)
        if error is ErrorCode.none:
            self._replica.trace_append_answered(append_result, ACKS_ALL, error)
            self._apply_committed_offsets()
        return errors.get(error, error)
