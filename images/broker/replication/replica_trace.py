"""The trace events of one replica (docs/trace.md), each with the state of the replica at that moment."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping

from kio.schema.errors import ErrorCode

from images.broker.log.log import Log
from images.broker.log.log_config import NEVER
from images.broker.log.producer_state import ProducerState, ProducerTable
from images.broker.log.retention import LogStartReason
from images.broker.log.segment import segment_name
from images.broker.replication.partition import (
    BecameLeader,
    Converged,
    HighWatermarkMoved,
    IsrResolved,
    Limits,
    LogStartAdvanced,
    Partition,
    ProposeIsr,
    ReplicaFetch,
    ReplicaRole,
    Truncate,
    TruncateFullyAndStartAt,
)
from images.broker.replication.replica_results import AppendResult
from images.trace import TraceEvent
from images.wire.batch import Header
from images.wire.field_values import NO_ERROR


class ReplicaTrace:
    """Traces the replica of `topic`-`index`."""

    def __init__(self, topic: str, topic_id: uuid.UUID, index: int, trace: Callable[[TraceEvent], None]) -> None:
        self._topic = topic
        self._topic_id = str(topic_id)
        self._index = index
        self._trace = trace
        self._fetched_in: dict[int, tuple[int, int, int, int]] = {}
        """Follower → leader epoch in which its last fetch was accepted, and the epochs that it gave."""
        self._answered: dict[int, tuple[int, int, int]] = {}
        """Follower → leader epoch, connection, and number of reads begun, of the last answer to it that was traced."""
        self._answered_starts: dict[int, int] = {}
        """Follower → where the log started at the last answer to it."""
        self._isr: tuple[object, ...] = ()
        """The ISR that this leader counts, as it was last traced."""

    def event(
        self,
        state: Partition,
        kind: str,
        *,
        offset: int = -1,
        log_end: int = -1,
        high_watermark: int = -1,
        members: tuple[int, ...] = (),
        detail: Mapping[str, object] | None = None,
    ) -> None:
        """An event of `kind`."""
        self._trace(
            TraceEvent(
                kind,
                self._topic,
                self._index,
                state.leader,
                state.leader_epoch,
                state.partition_epoch,
                offset=offset,
                log_end=log_end,
                high_watermark=high_watermark,
                members=members,
                detail=detail or {},
                topic_id=self._topic_id,
            )
        )

    def appended(
        self, state: Partition, base: int, leader_epoch: int, header: Header, log: Log, fetched_in: int
    ) -> None:
        """A batch of `leader_epoch` was appended at `base`, by a follower that had asked for it in `fetched_in`."""
        synced = {"synced": True} if log.recovery_point == log.end else {}
        closed = {"closed_bytes": log.segments[-2].size} if log.begins_segment(base) else {}
        another = {} if fetched_in == state.leader_epoch else {"fetched_in": fetched_in}
        self._trace(
            TraceEvent(
                "appended",
                self._topic,
                self._index,
                state.leader,
                leader_epoch,
                state.partition_epoch,
                offset=base,
                log_end=log.end,
                detail={
                    "producer_id": header.producer_id,
                    "sequence": header.base_sequence,
                    "crc": header.crc,
                    "timestamp": header.max_timestamp,
                    **_producer_epoch(header),
                    **another,
                    **synced,
                    **closed,
                    **({"cut_unsynced": True} if log.is_behind_unsynced_cut else {}),
                },
                topic_id=self._topic_id,
            )
        )

    def append_answered(self, state: Partition, appended: AppendResult, acks: int, error: ErrorCode) -> None:
        """An append is acknowledged to its producer, or answered with an error although the log has it; of a retry with
        the batch that was taken for one."""
        detail: dict[str, object] = {"acks": acks}
        if error is not NO_ERROR:
            detail["error"] = error.name
        if (retry := appended.retry) is not None:
            detail["retry"] = [retry.producer_id, retry.base_sequence, retry.crc]
            detail |= _producer_epoch(retry)
        self.event(
            state,
            "acknowledged" if error is NO_ERROR else "append_unacknowledged",
            offset=appended.base_offset,
            log_end=appended.end,
            high_watermark=state.high_watermark,
            detail=detail,
        )

    def fetch_accepted(self, state: Partition, fetch: ReplicaFetch, known_epoch: int) -> None:
        """A fetch is accepted as a position: traced if it is a follower's first one in a leadership, or since the
        leader knows the follower in another broker epoch, or is of another leader epoch or life than the one before."""
        fetched_in = state.leader_epoch, fetch.leader_epoch, fetch.broker_epoch, known_epoch
        if self._fetched_in.get(fetch.replica) == fetched_in:
            return
        self._fetched_in[fetch.replica] = fetched_in
        detail = {
            "replica": fetch.replica,
            "requested": fetch.leader_epoch,
            "last_epoch": fetch.last_fetched_epoch,
            "broker_epoch": fetch.broker_epoch,
        }
        self.event(state, "fetch_accepted", offset=fetch.offset, log_end=state.log_end, detail=detail)

    def diverging(self, state: Partition, fetch: ReplicaFetch, answer: tuple[int, int]) -> None:
        """A fetch was answered with the epoch and offset where the logs part."""
        epoch, end = answer
        detail = {"replica": fetch.replica, "epoch": epoch, "fetched": [fetch.last_fetched_epoch, fetch.offset]}
        self.event(state, "diverging", offset=end, detail=detail)

    def became_leader(self, state: Partition, became: BecameLeader, minimum: int, log: Log) -> None:
        """This replica leads, from an offset on, with the high watermark and the positions that it has taken over, and
        with this minimum of in-sync replicas."""
        followers = state.leader_state.followers
        positions = {str(follower.id): follower.log_end for follower in followers if follower.log_end is not None}
        detail = {**log_detail(log), "high_watermark": became.high_watermark, "min_isr": minimum}
        if positions:
            detail["positions"] = positions
        self.event(state, "became_leader", offset=became.start, log_end=state.log_end, members=state.isr, detail=detail)

    def fenced(
        self, state: Partition, api: str, requested: int, error: ErrorCode, fetch: ReplicaFetch | None = None
    ) -> None:
        """A request of leader epoch `requested` was refused; `fetch` is that of a follower."""
        detail: dict[str, object] = {"api": api, "requested": requested, "error": error.name}
        if fetch is None:
            self.event(state, "request_fenced", detail={**detail, "replica": -1})
            return
        detail |= {"replica": fetch.replica, "broker_epoch": fetch.broker_epoch, "last_epoch": fetch.last_fetched_epoch}
        self.event(state, "request_fenced", offset=fetch.offset, log_end=state.log_end, detail=detail)

    def append_refused(self, state: Partition, header: Header, error: ErrorCode, log: Log) -> None:
        """A batch was refused by its sequence number."""
        known = log.producers.get(header.producer_id)
        last = known.batches[-1].last_sequence if known is not None else -1
        detail = {"producer_id": header.producer_id, "sequence": header.base_sequence, "error": error.name}
        detail |= {"last": last, **_producer_epoch(header)}
        self.event(state, "append_refused", log_end=state.log_end, detail=detail)

    def deletion_refused(self, state: Partition, offset: int) -> None:
        """A DeleteRecords below this offset is out of range."""
        self.event(state, "deletion_refused", offset=offset, high_watermark=state.high_watermark)

    def high_watermark(self, state: Partition, moved: HighWatermarkMoved) -> None:
        """The high watermark changed; an event of a leader has the positions that allowed it."""
        if state.role is not ReplicaRole.LEADER:
            self.event(state, "follower_high_watermark", offset=moved.before, high_watermark=moved.after)
            return
        self.event(
            state,
            "high_watermark",
            offset=moved.before,
            high_watermark=moved.after,
            members=moved.quorum,
            detail={"positions": _positions(state, moved.quorum)},
        )

    def truncated(
        self, state: Partition, cut: Truncate | TruncateFullyAndStartAt, log_start: int | None, log: Log
    ) -> None:
        """The log was truncated to the end in `state`; `log_start` is its start if that has changed."""
        detail = {**log_detail(log), **snapshots_detail(log)}
        if log_start is not None:
            detail["log_start"] = log_start
        if isinstance(cut, Truncate) and cut.answer is not None:
            detail["answer"] = list(cut.answer)
        self.event(
            state,
            "truncated",
            offset=state.log_end,
            log_end=cut.log_end_before,
            high_watermark=cut.high_watermark_before,
            detail=detail,
        )

    def latest_asked(self, state: Partition, read: int, requested: int) -> None:
        """A read of the latest offset begins; fetches from now on may confirm it."""
        self.event(state, "latest_asked", detail={"read": read, "requested": requested})

    def latest_told(self, state: Partition, read: int, confirmed: tuple[int, ...]) -> None:
        """It is answered."""
        detail = {"read": read}
        self.event(state, "latest_told", high_watermark=state.high_watermark, members=confirmed, detail=detail)

    def log_start(self, state: Partition, moved: LogStartAdvanced, log: Log, now_ms: int) -> None:
        """The log start is about to advance, at `now_ms` on the clock of the records' timestamps."""
        detail: dict[str, object] = {"before": moved.before, "reason": str(moved.reason)}
        if moved.reason is LogStartReason.RETENTION_BYTES:
            detail["kept_bytes"] = sum(segment.size for segment in log.segments if segment.end > moved.after)
        if moved.reason is LogStartReason.RETENTION_MS:
            detail["now_ms"] = now_ms
        self.event(
            state,
            "log_start",
            offset=moved.after,
            log_end=state.log_end,
            high_watermark=state.high_watermark,
            detail=detail,
        )

    def leader_log_start(self, state: Partition, start: int, leader_high_watermark: int, leader_log_start: int) -> None:
        """A follower whose log had its start at `start` has taken an answer: an event if its leader's starts above."""
        if leader_log_start <= start:
            return
        self.event(
            state,
            "leader_log_start",
            offset=leader_log_start,
            log_end=state.log_end,
            high_watermark=state.high_watermark,
            detail={"leader_high_watermark": leader_high_watermark},
        )

    def log_start_written(self, state: Partition, log: Log) -> None:
        """The new log start is on disk: what the log knows with it, and what replaces the batches that are gone."""
        detail = {**log_detail(log), **deleted_detail(log)}
        self.event(state, "log_start_written", offset=log.start, log_end=log.end, detail=detail)

    def converged(self, state: Partition, change: Converged) -> None:
        """The log fits the leader's."""
        self.event(state, "converged", log_end=state.log_end, detail={"exchanges": change.truncation_rounds})

    def records_refused(self, state: Partition, header: Header | None, log: Log) -> None:
        """A batch in the leader's answer does not follow this log, or, without a header, is damaged."""
        self.event(state, "records_refused", offset=-1 if header is None else header.base_offset, log_end=log.end)

    def isr_proposed(
        self, state: Partition, proposal: ProposeIsr, before: Partition, fetch_of: int, now_ms: int, limits: Limits
    ) -> None:
        """An ISR change is proposed by a leader whose state at that moment was `before`; upon a fetch of the follower
        `fetch_of`, or with -1 upon anything else."""
        leadership = state.leader_state
        positions = {
            str(follower.id): -1 if follower.log_end is None else follower.log_end
            for follower in leadership.followers
            if follower.id in proposal.members and follower.id not in state.isr
        }
        removed = [it for it in leadership.followers if it.id in state.isr and it.id not in proposal.members]
        unconfirmed = [follower.id for follower in removed if follower.read_index < leadership.read_index]
        self.event(
            state,
            "isr_proposed",
            offset=leadership.start,
            log_end=state.log_end,
            high_watermark=before.high_watermark,
            members=proposal.members,
            detail={
                "reason": proposal.reason,
                "positions": positions,
                "fetch_of": fetch_of,
                "epochs": {
                    str(member): epoch for member, epoch in zip(proposal.members, proposal.broker_epochs, strict=True)
                },
                "lag_ms": {str(follower.id): now_ms - follower.caught_up_ms for follower in removed},
                "lag_max_ms": limits.replica_lag_time_max_ms,
                **({"unconfirmed": unconfirmed} if unconfirmed else {}),
            },
        )

    def isr_counted(self, state: Partition) -> None:
        """Of a leader: the ISR, its partition epoch, and the changes whose outcome it does not know, if any of these is
        another one, with the high watermark once it counts them."""
        leadership = state.leadership
        if leadership is None:
            return
        counted = state.partition_epoch, state.isr, leadership.proposed, leadership.unresolved_members
        if counted == self._isr:
            return
        self._isr = counted
        detail: dict[str, object] = {"unresolved": list(leadership.unresolved_members)}
        if leadership.proposed is not None:
            detail["proposed"] = list(leadership.proposed)
        quorum = {*state.isr, *(leadership.proposed or ()), *leadership.unresolved_members}
        detail["positions"] = _positions(state, sorted(quorum))
        if leadership.awaited:
            detail["awaited"] = _positions(state, leadership.awaited)
        self.event(state, "isr_counted", members=state.isr, high_watermark=state.high_watermark, detail=detail)

    def fetch_answered(self, state: Partition, replica: int, connection: int) -> None:
        """An answer goes to a follower: traced if it is the first one since a read of the latest offset began."""
        answered = state.leader_epoch, connection, state.leader_state.read_index
        if state.leader_state.read_index and self._answered.get(replica) != answered:
            self._answered[replica] = answered
            self.event(state, "fetch_answered", detail={"replica": replica, "connection": connection})

    def remember_start(self, replica: int, log_start: int) -> bool:
        """Remember where the log starts at an answer to a follower; whether it started elsewhere at the last one, or
        above 0 at the first."""
        before, self._answered_starts[replica] = self._answered_starts.get(replica, 0), log_start
        return before != log_start

    def reads_confirmed(self, before: Partition, after: Partition, replica: int, connection: int) -> None:
        """A follower's fetch counts as a confirmation of reads, if it confirms more than those before."""
        counted = [state.leadership and state.leadership.follower(replica) for state in (before, after)]
        then, now = (follower.read_index if follower else 0 for follower in counted)
        if now > then:
            detail = {"replica": replica, "connection": connection, "read": now}
            self.event(after, "reads_confirmed", detail=detail)

    def isr_resolved(self, state: Partition, change: IsrResolved) -> None:
        """The ISR change in flight was resolved."""
        if change.committed:
            self.event(state, "isr_committed", members=change.isr)
            return
        detail = {"error": change.error.name, "rolled_back": change.rolled_back}
        self.event(state, "isr_rejected", members=change.isr, detail=detail)


def _positions(state: Partition, quorum: Iterable[int]) -> dict[str, int]:
    """The LEO that a leader holds for each of these; -1 for none."""
    ends = {follower.id: follower.log_end for follower in state.leader_state.followers}
    ends[state.node] = state.log_end
    return {str(member): -1 if (end := ends.get(member)) is None else end for member in quorum}


def _producer_epoch(header: Header) -> dict[str, object]:
    """The producer epoch of a batch, left out where it is the first one, as it mostly is."""
    return {"producer_epoch": header.producer_epoch} if header.producer_epoch > 0 else {}


def log_detail(log: Log) -> dict[str, object]:
    """The state of a log besides its records: epoch cache, last sequence number of each producer and the time from
    which it expires, bytes behind its end, the recovery point and the last index entry if those are above the end, and
    the largest timestamp in its last segment as far as it is known."""
    behind = log.bytes_behind
    last = [segment for segment in log.segments[-1:] if segment.size and segment.known_max_timestamp is not None]
    synced_behind = {"synced_below": log.recovery_point} if log.recovery_point > log.end else {}
    indexed = [above for segment in log.segments[-1:] if (above := segment.indexed_above) is not None]
    return {
        "epochs": [list(entry) for entry in log.epochs.entries],
        "producers": last_sequences(log.producers),
        "batches": {
            str(producer): [[batch.base_offset, batch.last_offset + 1] for batch in state.batches]
            for producer, state in log.producers.items()
        },
        "producer_times": _times(log.producers),
        "producer_expiration_ms": log.config.producer_expiration_ms,
        **({"bytes_behind": behind} if behind else {}),
        **synced_behind,
        **({"indexed_above": indexed[0]} if indexed else {}),
        **({"last_segment": [last[0].base_offset, last[0].known_max_timestamp]} if last else {}),
    }


def snapshots_detail(log: Log) -> dict[str, object]:
    """The offsets above the end of a log of which it has producer snapshots, if it has any. Raises OSError."""
    above = log.producer_snapshots_above
    return {"snapshots_above": above} if above else {}


def synced_detail(log: Log) -> dict[str, object]:
    """The segments that an opened log takes to be on disk, and the records that it does not know to be there, if its
    settings limit how many those are."""
    synced = {"synced_segments": [segment_name(each.base_offset) for each in log.segments if not each.unsynced]}
    is_limited = log.config.flush_interval_messages != NEVER
    return {**synced, **({"unsynced": log.end - log.recovery_point} if is_limited else {})}


def last_sequences(producers: ProducerTable) -> dict[str, int]:
    """The last sequence number of each producer, by its id."""
    return {str(producer): state.batches[-1].last_sequence for producer, state in producers.items()}


def _times(producers: Mapping[int, ProducerState]) -> dict[str, int]:
    """The time from which each producer expires, by its id."""
    return {str(producer): state.timestamp_ms for producer, state in producers.items()}


def expired_detail(before: ProducerTable, after: ProducerTable, now_ms: int) -> dict[str, object]:
    """The producers that have expired, each with the time from which it did, and the time at which that was found."""
    expired = {producer: state for producer, state in before.items() if producer not in after}
    return {"producers": _times(expired), "now_ms": now_ms}


def deleted_detail(log: Log) -> dict[str, object]:
    """Where the first segment of a log begins, and what replaces the batches before it."""
    return {"base": log.segments[0].base_offset, "producers_before": last_sequences(log.producers_before)}
