"""One replica on this broker: the decision machine of `partition.py`, its log, and the requests that wait for it.

This is the only place where decisions about a partition become I/O. Each decision is applied and traced in its order,
and requests that wait (a produce for the high watermark, a fetch for data) are notified of every change.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from kio.schema.errors import ErrorCode

from images.broker.log.leader_epochs import UNDEFINED
from images.broker.log.log import Log
from images.broker.log.producer_state import Duplicate, Refuse, check_sequence
from images.broker.log.retention import Retention, expiry
from images.broker.replication import become_leader_or_follower, follower, leader, log_start, truncation
from images.broker.replication.partition import (
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
from images.broker.replication.replica_results import AppendResult, FetchResult, LatestOffset, LatestRead
from images.broker.replication.replica_trace import ReplicaTrace
from images.broker.runtime.condition import Condition, wait_for_any
from images.trace import TraceEvent
from images.wire.batch import CorruptBatch, InvalidRecord, assign, check_produced, iterate
from images.wire.field_values import NO_EPOCH, NO_ERROR, NO_LEADER

ACKS_ALL = -1
NO_LIMIT_MS = (1 << 63) - 1


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
        record_ms: Callable[[], int],
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
        self.timestamp_after_ms_max = NO_LIMIT_MS
        """How far ahead of this node's clock a record's timestamp may be."""
        self.retention = Retention()
        self.configured: object = None
        """The topic configuration from which the settings were made; compared to detect a change. None when opened."""
        self._trace = ReplicaTrace(topic, topic_id, index, trace)
        self._clock = clock
        self._record_ms = record_ms
        """The clock of records' timestamps."""
        self._propose = propose
        self.changed = Condition()
        self.changed_for_followers = Condition()
        """Notified of every change but of the high watermark alone: the waiting fetch of a follower is read again."""
        self._last_answers: dict[int, tuple[int, int, int]] = {}
        """Follower → connection, read index and high watermark of the last answer to it."""
        self.fetched_epoch = NO_EPOCH
        """The last leader epoch in which a fetch of this follower was answered."""
        self._latest_reads = 0
        """Number of reads of the latest offset that have begun and not ended. Each fetch may confirm them."""
        self._deletions = 0
        """Number of deletions that wait for the low watermark, which each fetch may raise."""

    @property
    def name(self) -> str:
        """`topic-partition`, as Kafka names a log directory."""
        return f"{self.topic}-{self.index}"

    # --- metadata and time --------------------------------------------------------------------------------------------

    def apply_registration(self, registration: PartitionRegistration) -> None:
        """Apply the controller's metadata."""
        before = self.state
        self._apply(become_leader_or_follower.apply_registration(before, registration, self._now_ms(), self.limits))
        if self.state is not before:
            self._notify_all()  # an ISR change without a decision may end a wait, too

    def tick(self, active: Mapping[int, int]) -> None:
        """Let time pass: propose to remove lagging members from the ISR."""
        self._apply(leader.on_tick(self.state, active, self._now_ms(), self.limits))

    def isr_committed(self, answer: IsrCommitted) -> None:
        """The controller committed an ISR change of this leader."""
        self._apply(leader.on_isr_committed(self.state, answer, self.limits))

    def isr_refused(self, proposal: ProposeIsr, answer: IsrRefused) -> None:
        """The controller refused `proposal`."""
        self._apply(leader.on_isr_refused(self.state, proposal, answer, self.limits))

    def resign(self) -> None:
        """This broker no longer has a replica: waiting requests fail with NOT_LEADER_OR_FOLLOWER."""
        self.apply_registration(
            PartitionRegistration((), (), NO_LEADER, self.state.leader_epoch, self.state.partition_epoch + 1)
        )

    def still_proposes(self, proposal: ProposeIsr) -> bool:
        """Whether `proposal` is still the change in flight."""
        return leader.still_proposes(self.state, proposal)

    # --- producing ----------------------------------------------------------------------------------------------------

    def append(self, batch: bytes, acks: int) -> AppendResult:
        """Append one batch of a producer (`produced_batch`) as the leader, or find that it is a duplicate."""
        error = leader.check_append(self.state, acks, self.limits)
        if error is ErrorCode.not_enough_replicas:
            self._trace.event(self.state, "isr_too_small", members=self.state.isr)
            return self._refuse_append(error)
        if error is not NO_ERROR:
            return AppendResult(error)
        if len(batch) > self.max_batch_bytes:
            return AppendResult(ErrorCode.message_too_large)
        try:
            header, batch = check_produced(batch)
        except CorruptBatch:
            return AppendResult(ErrorCode.corrupt_message)
        except InvalidRecord:
            return self._refuse_append(ErrorCode.invalid_record)
        if header.max_timestamp - self._record_ms() > self.timestamp_after_ms_max:
            return self._refuse_append(ErrorCode.invalid_timestamp)
        if len(batch) > self.log.config.segment_bytes:
            return AppendResult(ErrorCode.record_list_too_large)
        if header.producer_id >= 0:
            verdict = check_sequence(self.log.producers, header, self.limits.rules)
            if isinstance(verdict, Duplicate):
                end = verdict.last_offset + 1
                epoch = self.state.leader_epoch
                return AppendResult(NO_ERROR, verdict.base_offset, end, epoch, self.log.start, header)
            if isinstance(verdict, Refuse):
                self._trace.append_refused(self.state, header, verdict.error, self.log)
                return self._refuse_append(verdict.error)
        base, epoch = self.log.end, self.state.leader_epoch
        self.log.append(assign(batch, base, epoch), trusted=True)
        self._trace.appended(self.state, base, epoch, header, self.log, epoch)
        self._apply(leader.appended(self.state, self.log.epochs, self.log.end, self.limits))
        self._notify_all()
        return AppendResult(NO_ERROR, base, self.log.end, epoch, self.log.start)

    def _refuse_append(self, error: ErrorCode) -> AppendResult:
        return AppendResult(error, log_start=self.log.start)

    async def wait_until_committed(self, appended: AppendResult, until: float) -> ErrorCode:
        """Wait until `appended` is committed; an error after `until`, or if a new leader epoch may have replaced it."""
        if not self.limits.rules.ack_after_high_watermark:
            return NO_ERROR
        while True:
            if self.state.role is not ReplicaRole.LEADER or self.state.leader_epoch != appended.leader_epoch:
                return ErrorCode.not_leader_or_follower
            if self.state.high_watermark >= appended.end:
                return NO_ERROR
            if not await wait_for_any((self.changed,), until):
                return ErrorCode.request_timed_out

    # --- being fetched from -------------------------------------------------------------------------------------------

    def fetch_for_replica(
        self, fetch: ReplicaFetch, connection: int, active: Mapping[int, int], max_bytes: int, at_least_one: bool
    ) -> FetchResult:
        """Answer a follower: record its position, then read."""
        last_answer = self._last_answers.get(fetch.replica)
        if last_answer is not None and last_answer[0] == connection:
            # The answer was sent on the connection on which this fetch followed, so the follower has received it.
            fetch = fetch._replace(read_index=last_answer[1])
        answer = leader.on_replica_fetch(self.state, fetch, active, self._now_ms(), self.limits)
        self._trace.reads_confirmed(self.state, answer.step.partition, fetch.replica, connection)
        if answer.error is NO_ERROR and answer.diverging is None:
            self._trace.fetch_accepted(self.state, fetch, active.get(fetch.replica, NO_EPOCH))
        self._apply(answer.step, fetch.replica)
        if self._latest_reads or self._deletions:
            self.changed.notify_all()
        if answer.error is not NO_ERROR:
            self._trace.fenced(self.state, "fetch", fetch.leader_epoch, answer.error, fetch)
            return FetchResult(answer.error)
        if answer.diverging is not None:
            self._trace.diverging(self.state, fetch, answer.diverging)
            return FetchResult(NO_ERROR, high_watermark=self.state.high_watermark, diverging=answer.diverging)
        # As in Kafka, a fetch that finds a new high watermark is answered at once; a waiting one is not woken for it.
        stale = last_answer is None or last_answer[2] != self.state.high_watermark
        return self.read_for_replica(fetch.replica, fetch.leader_epoch, fetch.offset, max_bytes, at_least_one, stale)

    def read_for_replica(
        self, replica: int, leader_epoch: int, offset: int, max_bytes: int, at_least_one: bool, urgent: bool = False
    ) -> FetchResult:
        """Read for an accepted fetch, without `urgent` for one that waits. Does not update the follower's position."""
        error = leader.check_leader(self.state, leader_epoch, self.limits)
        if error is NO_ERROR and not self.log.start <= offset <= self.log.end:
            error = ErrorCode.offset_out_of_range
        if error is not NO_ERROR:
            return FetchResult(error)
        last_answer = self._last_answers.get(replica)
        new_read = last_answer is None or last_answer[1] < self.state.leader_state.read_index
        return FetchResult(
            NO_ERROR,
            self.log.read(offset, max_bytes, self.log.end, at_least_one),
            self.state.high_watermark,
            self.log.start,
            urgent=urgent or (new_read and self._latest_reads > 0),
        )

    def on_fetch_answered(self, replica: int, connection: int) -> None:
        """Record that an answer with the current state is sent to `replica` on `connection`."""
        if self.state.leadership is not None:
            self._last_answers[replica] = (connection, self.state.leadership.read_index, self.state.high_watermark)
            self._trace.fetch_answered(self.state, replica, connection)

    def remember_start(self, replica: int, log_start: int) -> bool:
        """Remember where the log starts at an answer to `replica`; whether it did not at the last one, for the
        trace."""
        return self._trace.remember_start(replica, log_start)

    def fetch_for_consumer(
        self, leader_epoch: int, offset: int, last_fetched_epoch: int, max_bytes: int, at_least_one: bool
    ) -> FetchResult:
        """Answer a consumer with committed records, all below the same high watermark; if it gives the epoch of the
        record before `offset` and this log has another one there, with the point of divergence."""
        error, diverging = self.check_leader("fetch", leader_epoch), None
        if error is NO_ERROR:
            error, diverging = leader.check_position(self.state, last_fetched_epoch, offset, self.limits)
        if error is not NO_ERROR:
            return FetchResult(error)
        end = leader.readable_end(self.state, self.limits)
        if diverging is not None:
            return FetchResult(NO_ERROR, high_watermark=end, log_start=self.log.start, diverging=diverging)
        records = self.log.read(offset, max_bytes, end, at_least_one) if offset < end else b""
        return FetchResult(NO_ERROR, records, end, self.log.start)

    def check_leader(self, api: str, leader_epoch: int) -> ErrorCode:
        """The error for a request of `leader_epoch` that only the leader answers; a refusal is traced."""
        error = leader.check_leader(self.state, leader_epoch, self.limits)
        if error is not NO_ERROR:
            self._trace.fenced(self.state, api, leader_epoch, error)
        return error

    @contextmanager
    def latest_read(self, requested: int = NO_EPOCH) -> Iterator[LatestRead]:
        """A client's read of the latest offset, in the epoch `requested`. It begins at once and ends with its block."""
        if self.state.leadership is None:
            yield LatestRead(NO_EPOCH, 0)
            return
        self.state, read_index = leader.begin_latest_read(self.state)
        self._latest_reads += 1
        try:
            self._trace.latest_asked(self.state, read_index, requested)
            self._notify_all()
            yield LatestRead(self.state.leader_epoch, read_index)
        finally:
            self._latest_reads -= 1

    async def latest_offset(self, read: LatestRead, until: float) -> LatestOffset:
        """The latest offset, once no later leader can have acknowledged records above it before the read began."""
        while self.state.leader_epoch == read.leader_epoch and self.state.leadership is not None:
            if leader.confirms_latest(self.state, read.read_index, self.limits):
                confirmed = leader.confirmed_by(self.state, read.read_index)
                self._trace.latest_told(self.state, read.read_index, confirmed)
                return LatestOffset(NO_ERROR, self.state.high_watermark, read.read_index, confirmed)
            if not await wait_for_any((self.changed,), until):
                return LatestOffset(ErrorCode.offset_not_available)
        return LatestOffset(ErrorCode.not_leader_or_follower)

    def offset_for_time(self, timestamp_ms: int | None) -> tuple[ErrorCode, int, int]:
        """(no error, offset, timestamp) of the first committed record not older than `timestamp_ms`, with None of that
        with the largest timestamp; -1 without one, and OFFSET_NOT_AVAILABLE if it may be above the high watermark."""
        record = self.log.offset_of_max_timestamp() if timestamp_ms is None else self.log.offset_for_time(timestamp_ms)
        if record is not None and record[0] < leader.readable_end(self.state, self.limits):
            return NO_ERROR, *record
        known = leader.knows_committed(self.state, self.limits)
        return NO_ERROR if known else ErrorCode.offset_not_available, -1, -1

    # --- where the log starts -----------------------------------------------------------------------------------------

    def delete_records(self, offset: int) -> tuple[ErrorCode, int]:
        """Advance the log start to `offset`, or with -1 to the high watermark: an error, or the new log start, which
        the low watermark has to reach."""
        error, new_start, step = log_start.delete_records(self.state, offset, self.limits)
        if error is ErrorCode.offset_out_of_range:
            self._trace.deletion_refused(self.state, offset)
        self._apply(step)
        return error, new_start

    async def wait_until_deleted(
        self, new_start: int, active: Callable[[], Mapping[int, int]], until: float
    ) -> tuple[ErrorCode, int]:
        """Wait until the low watermark reaches `new_start`: an error and the low watermark. REQUEST_TIMED_OUT if it has
        not by `until`. `active` returns the active brokers."""
        leader_epoch = self.state.leader_epoch
        self._deletions += 1
        try:
            while True:
                if self.state.role is not ReplicaRole.LEADER or self.state.leader_epoch != leader_epoch:
                    return ErrorCode.not_leader_or_follower, -1
                low_watermark = log_start.low_watermark(self.state, active(), self.limits)
                if low_watermark >= new_start:
                    self._trace.event(self.state, "deletion_confirmed", offset=low_watermark)
                    return NO_ERROR, low_watermark
                if not await wait_for_any((self.changed,), until):
                    return ErrorCode.request_timed_out, low_watermark
        finally:
            self._deletions -= 1

    def retain(self, now_ms: int) -> None:
        """Delete the segments that exceed the retention. `now_ms` is on the clock of the records' timestamps."""
        if self.state.role is ReplicaRole.NONE or self.retention == Retention():
            return
        below = log_start.retention_limit(self.state, self.limits)
        expired = expiry(self.log.segments, self.retention, now_ms=now_ms, below=below)
        if expired is not None:
            if expired.offset == self.log.end:
                self.log.roll()
            self._apply(log_start.advance_log_start(self.state, expired.offset, expired.reason))

    # --- following ----------------------------------------------------------------------------------------------------

    def fence_of_fetch(self) -> int:
        """The leader epoch that the next fetch has, by which the leader fences it; -1 for none."""
        protocol = self.limits.truncation_protocol
        if not protocol.fences_every_fetch and self.fetched_epoch == self.state.leader_epoch:
            return NO_EPOCH
        return self.fence()

    def fence(self) -> int:
        """The leader epoch that other requests to the leader have; -1 if the protocol has no fencing."""
        return self.state.leader_epoch if self.limits.truncation_protocol.fences_requests else NO_EPOCH

    def on_divergence(self, sent_offset: int, sent_epoch: int, epoch: int, end: int) -> None:
        """A fetch was answered with a divergence at or before (`epoch`, `end`)."""
        if follower.answer_applies(self.state, sent_offset, sent_epoch, self.limits):
            self._apply(truncation.on_divergence(self.state, epoch, end))

    def on_epoch_end(self, queried_epoch: int, sent_epoch: int, epoch: int, end: int) -> None:
        """The leader's answer to the query for the end of `queried_epoch`, sent in leader epoch `sent_epoch`."""
        applies = self.state.epoch_query == queried_epoch and self.state.leader_epoch == sent_epoch
        if self.state.role is ReplicaRole.FOLLOWER and (applies or not self.limits.rules.ignore_stale_epoch_answer):
            self._apply(truncation.on_epoch_end(self.state, epoch, end, self.limits.truncation_protocol))

    def on_epoch_query_failed(self, queried_epoch: int, sent_epoch: int) -> bool:
        """The query for the end of `queried_epoch`, sent in leader epoch `sent_epoch`, was answered with an error, or
        not at all. Returns whether this replica goes on without the answer, as KIP-101 and KIP-279 have it."""
        if not self.limits.truncation_protocol.falls_back_to_high_watermark:
            return False
        self.on_epoch_end(queried_epoch, sent_epoch, UNDEFINED, UNDEFINED)
        return True

    def on_fit(self, sent_offset: int, sent_epoch: int) -> None:
        """A fetch was answered without divergence: the logs match."""
        if follower.answer_applies(self.state, sent_offset, sent_epoch, self.limits):
            self.fetched_epoch = sent_epoch
            if self.state.truncation_rounds:
                self._apply(truncation.on_fit(self.state))

    def truncate_to_leader_end(self, sent_epoch: int, leader_end: int) -> None:
        """The fetch offset is out of range: the leader's log ends below it, at `leader_end`."""
        if self.state.role is ReplicaRole.FOLLOWER and self.state.leader_epoch == sent_epoch:
            self._apply(follower.truncate(self.state, leader_end))

    def truncate_fully_and_start_at(
        self, sent_offset: int, sent_epoch: int, leader_start: int, epoch_before: int
    ) -> None:
        """The fetch offset is out of range: the leader's log starts above it, at `leader_start`, behind a record of
        `epoch_before` (-1: not known)."""
        if follower.answer_applies(self.state, sent_offset, sent_epoch, self.limits):
            self._apply(log_start.truncate_fully_and_start_at(self.state, leader_start, epoch_before))

    def replicate(
        self, sent_offset: int, sent_epoch: int, records: bytes, leader_high_watermark: int, leader_log_start: int = -1
    ) -> str | None:
        """Append the leader's records, then follow its high watermark and log start. Returns the problem with the
        records that could not be appended, None without one."""
        if not follower.answer_applies(self.state, sent_offset, sent_epoch, self.limits):
            return None
        problem = None
        self.on_fit(sent_offset, sent_epoch)
        try:
            for header, batch in iterate(records):
                if self.limits.truncation_protocol.fences_every_fetch and header.leader_epoch > sent_epoch:
                    break  # appended after this fetch was sent, in a leader epoch that this replica does not follow yet
                if self.log.start == self.log.end and header.base_offset < self.log.end < header.next_offset:
                    # The leader's log starts inside this batch, and batches are appended whole.
                    self._apply(log_start.truncate_fully_and_start_at(self.state, header.base_offset))
                if header.base_offset != self.log.end:
                    problem = f"{self.name}: batch at {header.base_offset} does not follow {self.log.end}"
                    self._trace.records_refused(self.state, header, self.log)
                    break
                self.log.append(batch)
                self._trace.appended(self.state, header.base_offset, header.leader_epoch, header, self.log, sent_epoch)
        except CorruptBatch as error:
            problem = f"{self.name}: corrupt batch from the leader: {error}"
            self._trace.records_refused(self.state, None, self.log)
        if self.log.end != self.state.log_end:
            self.state = follower.replicated(self.state, self.log.epochs, self.log.end)
        start = self.log.start
        self._apply(follower.on_leader_high_watermark(self.state, leader_high_watermark, self.limits))
        self._apply(log_start.on_leader_log_start(self.state, leader_log_start, self.limits))
        self._trace.leader_log_start(self.state, start, leader_high_watermark, leader_log_start)
        return problem

    # --- applying decisions -------------------------------------------------------------------------------------------

    def _apply(self, step: PartitionStep, fetch_of: int = -1) -> None:
        """Apply the decisions upon a fetch of the follower `fetch_of`, or with -1 upon anything else."""
        before, self.state = self.state, step.partition
        for decision in step.decisions:
            self._apply_decision(decision, before, fetch_of)
            if not isinstance(decision, HighWatermarkMoved):
                self.changed_for_followers.notify_all()
        if step.decisions:
            self.changed.notify_all()
        self._trace.isr_counted(self.state)

    def _notify_all(self) -> None:
        self.changed.notify_all()
        self.changed_for_followers.notify_all()

    def _apply_decision(self, decision: Decision, before_step: Partition, fetch_of: int) -> None:
        state = self.state
        if isinstance(decision, HighWatermarkMoved):
            self._trace.high_watermark(state, decision)
        elif isinstance(decision, Truncate | TruncateFullyAndStartAt):
            before = self.log.start
            if isinstance(decision, Truncate):
                self.log.truncate(decision.to)
            else:
                self.log.truncate_fully_and_start_at(decision.at, decision.epoch_before)
            self.state = follower.truncated(state, self.log.epochs, self.log.start, self.log.end)
            self._trace.truncated(self.state, decision, self.log.start if self.log.start != before else None, self.log)
        elif isinstance(decision, LogStartAdvanced):
            # Traced first: a crash in between may leave a new log start, which would have no event otherwise.
            self._trace.log_start(state, decision, self.log, self._record_ms())
            self.log.advance_start(decision.after)
            self.state = state._replace(epochs=self.log.epochs)
            self._trace.log_start_written(self.state, self.log)
        elif isinstance(decision, Converged):
            self._trace.converged(state, decision)
        elif isinstance(decision, BecameLeader):
            self._last_answers.clear()
            if self.limits.rules.enter_leader_epoch_start:
                self.log.assign_epoch(decision.leader_epoch, decision.start)
            self.state = state._replace(epochs=self.log.epochs)
            self._trace.became_leader(self.state, decision, self.limits.min_insync_replicas, self.log)
        elif isinstance(decision, BecameFollower):
            self._trace.event(state, "became_follower", log_end=state.log_end, high_watermark=state.high_watermark)
        elif isinstance(decision, Resigned):
            self._trace.event(state, "resigned", log_end=state.log_end)
        elif isinstance(decision, ProposeIsr):
            self._trace.isr_proposed(state, decision, before_step, fetch_of, self._now_ms(), self.limits)
            self._propose(self, decision)
        else:
            self._trace.isr_resolved(state, decision)

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    def trace_append_answered(self, appended: AppendResult, acks: int, error: ErrorCode) -> None:
        """Trace that an append, which was not refused, is answered."""
        self._trace.append_answered(self.state, appended, acks, error)

    def trace(self, kind: str, offset: int, log_end: int, detail: Mapping[str, object]) -> None:
        """Trace an event of an API, or of the group coordinator, that answers from this log."""
        watermark = self.state.high_watermark
        self._trace.event(self.state, kind, offset=offset, log_end=log_end, high_watermark=watermark, detail=detail)
