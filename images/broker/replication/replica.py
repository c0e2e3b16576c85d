"""One replica on this broker: the decision machine of `partition.py`, its log, and those who wait for it.

This is the only place where decisions about a partition become I/O. Decisions are carried out in the order given,
traced as they are carried out, and whoever waits for the replica (a produce for the high watermark, a fetch for data)
is woken when anything changed.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from images.broker.log.log import Log
from images.broker.log.producer_state import Duplicate, Refuse, check_sequence
from images.broker.log.retention import Retention, expiry
from images.broker.replication import become_leader_or_follower, follower, leader, log_start, truncation
from images.broker.replication.partition import (
    NO_LEADER,
    BecameFollower,
    BecameLeader,
    Converged,
    Decision,
    HighWatermarkMoved,
    IsrCommitted,
    IsrRefused,
    Limits,
    LogStartAdvanced,
    Partition,
    PartitionRegistration,
    PartitionStep,
    ProposeIsr,
    ReplicaFetch,
    ReplicaRole,
    Resigned,
    Truncate,
    TruncateFullyAndStartAt,
)
from images.broker.replication.replica_trace import ReplicaTrace
from images.broker.runtime.condition import Condition, wait_for_any
from images.trace import TraceEvent
from images.wire.batch import CorruptBatch, InvalidRecord, assign, check_produced, iterate

ACKS_ALL = -1


class AppendResult(NamedTuple):
    """What became of a produced batch. `end` is exclusive; a duplicate carries the offsets of the first time."""

    error: ErrorCode
    base_offset: int = -1
    end: int = -1
    leader_epoch: int = -1
    """The leadership in which it was found in the log: only that one can tell that it is committed."""


class FetchResult(NamedTuple):
    """What a fetch of one partition is given."""

    error: ErrorCode
    records: bytes = b""
    high_watermark: int = -1
    log_start: int = -1
    diverging: tuple[int, int] | None = None
    urgent: bool = False
    """Worth answering at once although it carries no records."""


class Replica:
    """One replica of `topic`-`index`. `propose` takes an ISR change to the controller; it must not block."""

    def __init__(
        self,
        topic: str,
        topic_id: uuid.UUID,
        index: int,
        node: int,
        limits: Limits,
        max_batch_bytes: int,
        log: Log,
        high_watermark: int,
        *,
        trace: Callable[[TraceEvent], None],
        clock: Callable[[], float],
        propose: Callable[[Replica, ProposeIsr], None],
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.limits = limits
        self.log = log
        self.state = Partition(
            node=node,
            log_start=log.start,
            log_end=log.end,
            epochs=log.epochs,
            high_watermark=max(log.start, min(high_watermark, log.end)),
        )
        self.max_batch_bytes = max_batch_bytes
        self.retention = Retention()
        """How much of the log is kept."""
        self.configured: object = None
        """The topic configuration that the settings here are taken from, to tell whether it has changed."""
        self._trace = ReplicaTrace(topic, index, trace)
        self._clock = clock
        self._propose = propose
        self.changes = Condition()
        """Told of whenever anything here changed."""
        self.offers = Condition()
        """Told of whenever there may be something for a follower's fetch that is waiting: of every change but a mere
        move of the high watermark, for which, as in Kafka, no such fetch is answered."""
        self._told: dict[int, tuple[int, int, int]] = {}
        """Per follower: connection, newest question and high watermark when its last fetch was answered."""
        self._asking = 0
        self._deleting = 0

    @property
    def name(self) -> str:
        """`topic-partition`, as Kafka names a log directory."""
        return f"{self.topic}-{self.index}"

    # --- metadata and time --------------------------------------------------------------------------------------------

    def apply_registration(self, view: PartitionRegistration) -> None:
        """Take over the controller's metadata."""
        before = self.state
        self._take(become_leader_or_follower.apply_registration(before, view, self._now_ms(), self.limits))
        if self.state is not before:
            self._tell_all()  # also for an ISR without a member that is being waited for, which asks for no decision

    def tick(self, active: Mapping[int, int]) -> None:
        """Let time pass: lagging members are proposed for removal."""
        self._take(leader.on_tick(self.state, active, self._now_ms(), self.limits))

    def isr_committed(self, answer: IsrCommitted) -> None:
        """The controller committed an ISR change of this leader."""
        self._take(leader.on_isr_committed(self.state, answer, self.limits))

    def isr_refused(self, proposal: ProposeIsr, answer: IsrRefused) -> None:
        """The controller refused `proposal`."""
        self._take(leader.on_isr_refused(self.state, proposal, answer))

    def resign(self) -> None:
        """This broker no longer hosts the partition: whoever waits is told that it does not lead."""
        self.apply_registration(
            PartitionRegistration((), (), NO_LEADER, self.state.leader_epoch, self.state.partition_epoch + 1)
        )

    def still_proposes(self, proposal: ProposeIsr) -> bool:
        """Whether `proposal` is still the change in flight."""
        leadership = self.state.leadership
        return (
            leadership is not None
            and leadership.proposed == proposal.members
            and self.state.partition_epoch == proposal.partition_epoch
            and self.state.leader_epoch == proposal.leader_epoch
        )

    # --- producing ----------------------------------------------------------------------------------------------------

    def append(self, records: bytes | None, acks: int) -> AppendResult:
        """Append what was produced, which must be one batch, as the leader, or find that it was appended before."""
        error = leader.check_append(self.state, acks, self.limits)
        if error is not ErrorCode.none:
            return AppendResult(error)
        batch = records or b""
        if len(batch) > self.max_batch_bytes:
            return AppendResult(ErrorCode.message_too_large)
        try:
            header = check_produced(batch)
        except CorruptBatch:
            return AppendResult(ErrorCode.corrupt_message)
        except InvalidRecord:
            return AppendResult(ErrorCode.invalid_record)
        if header.producer_id >= 0:
            verdict = check_sequence(self.log.producers, header, self.limits.rules)
            if isinstance(verdict, Duplicate):
                end = verdict.last_offset + 1
                return AppendResult(ErrorCode.none, verdict.base_offset, end, self.state.leader_epoch)
            if isinstance(verdict, Refuse):
                return AppendResult(verdict.error)
        base = self.log.end
        self.log.append(assign(batch, base, self.state.leader_epoch), trusted=True)
        self._trace.appended(self.state, base, self.state.leader_epoch, header, self.log.end)
        self._take(leader.appended(self.state, self.log.epochs, self.log.end, self.limits))
        self._tell_all()
        return AppendResult(ErrorCode.none, base, self.log.end, self.state.leader_epoch)

    async def committed(self, appended: AppendResult, until: float) -> ErrorCode:
        """Wait until the high watermark passes `appended`; an error if it has not by `until`, or if the leadership it
        was appended in is over: then other records may stand in its place, committed or not."""
        if not self.limits.rules.ack_after_high_watermark:
            return ErrorCode.none
        while True:
            if self.state.role is not ReplicaRole.LEADER or self.state.leader_epoch != appended.leader_epoch:
                return ErrorCode.not_leader_or_follower
            if self.state.high_watermark >= appended.end:
                return ErrorCode.none
            if not await wait_for_any((self.changes,), until):
                return ErrorCode.request_timed_out

    # --- being fetched from -------------------------------------------------------------------------------------------

    def fetch_for_replica(
        self, fetch: ReplicaFetch, connection: int, active: Mapping[int, int], max_bytes: int, at_least_one: bool
    ) -> FetchResult:
        """Answer a follower: record its position, then read."""
        told = self._told.get(fetch.replica)
        if told is not None and told[0] == connection:
            # An answer was sent on this very connection, and this fetch came behind it: the follower has seen it.
            fetch = fetch._replace(read_index=told[1])
        answer = leader.on_replica_fetch(self.state, fetch, active, self._now_ms(), self.limits)
        self._take(answer.step)
        if self._asking or self._deleting:
            self.changes.notify_all()
        if answer.error is not ErrorCode.none:
            self._trace.fenced(self.state, "fetch", fetch.leader_epoch, answer.error, fetch.replica)
            return FetchResult(answer.error)
        if answer.diverging is not None:
            epoch, end = answer.diverging
            self._trace.event(self.state, "diverging", offset=end, detail={"replica": fetch.replica, "epoch": epoch})
            return FetchResult(ErrorCode.none, high_watermark=self.state.high_watermark, diverging=answer.diverging)
        found = self.read_for_replica(fetch.replica, fetch.leader_epoch, fetch.offset, max_bytes, at_least_one)
        # As in Kafka, a high watermark that moved since the last answer is worth an answer now, but no fetch that is
        # already waiting is woken for it.
        stale = told is None or told[2] != self.state.high_watermark
        return found._replace(urgent=True) if stale else found

    def read_for_replica(
        self, replica: int, leader_epoch: int, offset: int, max_bytes: int, at_least_one: bool
    ) -> FetchResult:
        """Read again for a fetch that was accepted and has been waiting since: it is no news of its sender."""
        error = leader.check_leader(self.state, leader_epoch, self.limits)
        if error is ErrorCode.none and not self.log.start <= offset <= self.log.end:
            error = ErrorCode.offset_out_of_range
        if error is not ErrorCode.none:
            return FetchResult(error)
        told = self._told.get(replica)
        read_index = told is None or told[1] < self.state.leader_state.read_index
        return FetchResult(
            ErrorCode.none,
            self.log.read(offset, max_bytes, self.log.end, at_least_one),
            self.state.high_watermark,
            self.log.start,
            urgent=read_index and self._asking > 0,
        )

    def answered(self, replica: int, connection: int) -> None:
        """An answer to `replica` that says what this replica holds now is about to leave on `connection`."""
        if self.state.leadership is not None:
            self._told[replica] = (connection, self.state.leadership.read_index, self.state.high_watermark)

    def fetch_for_consumer(self, leader_epoch: int, offset: int, max_bytes: int, at_least_one: bool) -> FetchResult:
        """Answer a consumer: committed records only, all below one high watermark."""
        error = self.check_leader("fetch", leader_epoch)
        if error is not ErrorCode.none:
            return FetchResult(error)
        end = leader.readable_end(self.state, self.limits)
        if not self.log.start <= offset <= self.log.end:
            return FetchResult(ErrorCode.offset_out_of_range, high_watermark=end, log_start=self.log.start)
        records = self.log.read(offset, max_bytes, end, at_least_one) if offset < end else b""
        return FetchResult(ErrorCode.none, records, end, self.log.start)

    def check_leader(self, api: str, leader_epoch: int) -> ErrorCode:
        """The error for a request in `leader_epoch` that only the leader may answer; none if it may be answered."""
        error = leader.check_leader(self.state, leader_epoch, self.limits)
        if error is not ErrorCode.none:
            self._trace.fenced(self.state, api, leader_epoch, error, -1)
        return error

    async def latest(self, until: float) -> tuple[ErrorCode, int]:
        """The latest offset for a client, once it is certain that no later leader can have told more."""
        if self.state.leadership is None:
            return ErrorCode.not_leader_or_follower, -1
        leader_epoch = self.state.leader_epoch
        self.state, read_index = leader.ask_latest(self.state)
        self._asking += 1
        self._tell_all()
        try:
            while not leader.confirms_latest(self.state, read_index, self.limits):
                if self.state.leader_epoch != leader_epoch or self.state.leadership is None:
                    return ErrorCode.not_leader_or_follower, -1
                if not await wait_for_any((self.changes,), until):
                    return ErrorCode.offset_not_available, -1
        finally:
            self._asking -= 1
        if self.state.leader_epoch != leader_epoch:
            return ErrorCode.not_leader_or_follower, -1
        self._trace.event(self.state, "latest_told", high_watermark=self.state.high_watermark)
        return ErrorCode.none, self.state.high_watermark

    def offset_for_time(self, timestamp_ms: int | None) -> tuple[ErrorCode, int, int]:
        """(no error, offset, timestamp) of the first committed record not older than `timestamp_ms`, or with None of
        the newest record; offset and timestamp -1 when there is none, and an error when that is not certain."""
        found = self.log.offset_of_max_timestamp() if timestamp_ms is None else self.log.offset_for_time(timestamp_ms)
        if found is not None and found[0] < leader.readable_end(self.state, self.limits):
            return ErrorCode.none, *found
        known = leader.knows_committed(self.state, self.limits)
        return ErrorCode.none if known else ErrorCode.offset_not_available, -1, -1

    # --- where the log starts -----------------------------------------------------------------------------------------

    def delete_records(self, offset: int) -> tuple[ErrorCode, int]:
        """Let the log start at `offset`, or at the high watermark if that is -1: an error, or the offset that has come
        of it, which every replica that counts is to reach."""
        error, wanted, step = log_start.delete_records(self.state, offset, self.limits)
        self._take(step)
        return error, wanted

    async def deleted(
        self, wanted: int, active: Callable[[], Mapping[int, int]], until: float
    ) -> tuple[ErrorCode, int]:
        """Wait until the low watermark has reached `wanted`; an error and what it is if it has not by `until`, or if
        this replica leads no more. `active` gives the brokers that are alive."""
        leader_epoch = self.state.leader_epoch
        self._deleting += 1
        try:
            while True:
                if self.state.role is not ReplicaRole.LEADER or self.state.leader_epoch != leader_epoch:
                    return ErrorCode.not_leader_or_follower, -1
                reached = log_start.low_watermark(self.state, active(), self.limits)
                if reached >= wanted:
                    return ErrorCode.none, reached
                if not await wait_for_any((self.changes,), until):
                    return ErrorCode.request_timed_out, reached
        finally:
            self._deleting -= 1

    def retain(self, now_ms: int) -> None:
        """Remove the segments that retention gives up, at `now_ms` of the clock that timestamps go by."""
        if self.state.role is ReplicaRole.NONE or self.retention == Retention():
            return
        below = log_start.retained_from(self.state, self.limits)
        found = expiry(self.log.segments, self.retention, now_ms=now_ms, below=below)
        if found is not None:
            if found.offset == self.log.end:
                self.log.roll()
            self._take(log_start.move_start(self.state, found.offset, found.reason))

    # --- following ----------------------------------------------------------------------------------------------------

    def on_divergence(self, sent_offset: int, sent_epoch: int, epoch: int, end: int) -> None:
        """The leader says that the logs part at or before (`epoch`, `end`)."""
        if follower.still_awaited(self.state, sent_offset, sent_epoch, self.limits):
            self._take(truncation.on_divergence(self.state, epoch, end))

    def on_epoch_end(self, asked_epoch: int, sent_epoch: int, epoch: int, end: int) -> None:
        """The leader's answer to the question where `asked_epoch` ends, put while following in `sent_epoch`."""
        if self.state.epoch_query == asked_epoch and self.state.leader_epoch == sent_epoch:
            self._take(truncation.on_epoch_end(self.state, epoch, end, self.limits.truncation_protocol))

    def on_fit(self, sent_offset: int, sent_epoch: int) -> None:
        """The leader had nothing to say to a fetch of this replica, so the logs do not part."""
        if self.state.truncation_rounds and follower.still_awaited(self.state, sent_offset, sent_epoch, self.limits):
            self._take(truncation.on_fit(self.state))

    def truncate_to_leader_end(self, sent_epoch: int, leader_end: int) -> None:
        """The leader does not have the offset asked for; its log ends at `leader_end`."""
        if self.state.role is ReplicaRole.FOLLOWER and self.state.leader_epoch == sent_epoch:
            self._take(follower.truncate(self.state, leader_end))

    def truncate_fully_and_start_at(self, sent_offset: int, sent_epoch: int, leader_start: int) -> None:
        """The leader's log starts at `leader_start`, above the offset asked for, at which this one ends."""
        if follower.still_awaited(self.state, sent_offset, sent_epoch, self.limits):
            self._take(log_start.truncate_fully_and_start_at(self.state, leader_start))

    def replicate(
        self, sent_offset: int, sent_epoch: int, records: bytes, leader_high_watermark: int, leader_log_start: int = -1
    ) -> str | None:
        """Append what the leader sent, take over its high watermark and where its log starts; gives a complaint about
        what could not be."""
        if not follower.still_awaited(self.state, sent_offset, sent_epoch, self.limits):
            return None
        complaint = None
        if self.state.truncation_rounds:
            self._take(truncation.on_fit(self.state))
        fences_requests = self.limits.truncation_protocol.fences_requests
        try:
            for header, batch in iterate(records):
                if fences_requests and header.leader_epoch > sent_epoch:
                    break  # written after this fetch was sent: it belongs to a leadership not followed yet
                if self.log.start == self.log.end and header.base_offset < self.log.end < header.next_offset:
                    # The leader's log starts inside this batch, and so this one was to; but batches come whole.
                    self._take(log_start.truncate_fully_and_start_at(self.state, header.base_offset))
                if header.base_offset != self.log.end:
                    complaint = f"{self.name}: batch at {header.base_offset} does not follow {self.log.end}"
                    break
                self.log.append(batch)
                self._trace.appended(self.state, header.base_offset, header.leader_epoch, header, self.log.end)
        except CorruptBatch as error:
            complaint = f"{self.name}: corrupt batch from the leader: {error}"
        if self.log.end != self.state.log_end:
            self.state = follower.replicated(self.state, self.log.epochs, self.log.end)
        self._take(follower.on_leader_high_watermark(self.state, leader_high_watermark))
        self._take(log_start.on_leader_log_start(self.state, leader_log_start, self.limits))
        return complaint

    # --- carrying out -------------------------------------------------------------------------------------------------

    def _take(self, step: PartitionStep) -> None:
        self.state = step.partition
        if step.decisions:
            for decision in step.decisions:
                self._carry_out(decision)
                if not isinstance(decision, HighWatermarkMoved):
                    self.offers.notify_all()
            self.changes.notify_all()

    def _tell_all(self) -> None:
        self.changes.notify_all()
        self.offers.notify_all()

    def _carry_out(self, decision: Decision) -> None:
        state = self.state
        if isinstance(decision, HighWatermarkMoved):
            self._trace.high_watermark(state, decision)
        elif isinstance(decision, Truncate | TruncateFullyAndStartAt):
            before = self.log.start
            if isinstance(decision, Truncate):
                self.log.truncate(decision.to)
            else:
                self.log.truncate_fully_and_start_at(decision.at)
            self.state = follower.was_cut(state, self.log.epochs, self.log.start, self.log.end)
            self._trace.truncated(self.state, decision, self.log.start if self.log.start != before else None)
        elif isinstance(decision, LogStartAdvanced):
            # Traced first: a crash in between may leave the new start, and it would come from nowhere.
            self._trace.log_start(state, decision)
            self.log.advance_start(decision.after)
            self.state = state._replace(epochs=self.log.epochs)
        elif isinstance(decision, Converged):
            self._trace.event(
                state, "converged", log_end=state.log_end, detail={"exchanges": decision.truncation_rounds}
            )
        elif isinstance(decision, BecameLeader):
            self._told.clear()
            self.log.assign_epoch(decision.leader_epoch, decision.start)
            self.state = state._replace(epochs=self.log.epochs)
            self._trace.event(
                self.state, "became_leader", offset=decision.start, log_end=state.log_end, members=state.isr
            )
        elif isinstance(decision, BecameFollower):
            self._trace.event(state, "became_follower", log_end=state.log_end)
        elif isinstance(decision, Resigned):
            self._trace.event(state, "resigned", log_end=state.log_end)
        elif isinstance(decision, ProposeIsr):
            self._trace.event(state, "isr_proposed", members=decision.members, detail={"reason": decision.reason})
            self._propose(self, decision)
        else:
            self._trace.settled(state, decision)

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    def acknowledged(self, base: int, end: int, acks: int) -> None:
        """An append is about to be acknowledged to its producer."""
        self._trace.acknowledged(self.state, base, end, acks)
