"""Mistakes of replicas, each played by a running cluster: a check finds the promise that it breaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from images.broker.apis.produce_fetch import ProduceFetchApis
from images.broker.log import segment
from images.broker.log.log import Log
from images.broker.log.producer_snapshots import ProducerSnapshots
from images.broker.log.segment import Segment
from images.broker.replication import leader, log_start
from images.broker.replication.fetch_sessions import (
    FetchContext,
    FetchSession,
    FetchSessionCache,
    FetchSessionHandler,
)
from images.broker.replication.partition import (
    HighWatermarkMoved,
    Limits,
    Partition,
    PartitionStep,
    ProposeIsr,
)
from images.broker.replication.replica import Replica
from images.broker.replication.replica_results import AppendResult, FetchResult
from images.wire.batch import Header, parse
from images.wire.field_values import NO_EPOCH
from tests.simulation.applied_mistake import replace_in
from tests.torture.mistakes.caught_up import caught_up_by_any_fetch
from tests.torture.mistakes.mistake import Fault, Patch, PlayedMistake


def _synced_in_word(patch: Patch) -> None:
    """A log counts as synced what it has not synced."""
    patch.setattr(Segment, "fsync", lambda _: None)


def _found_once(patch: Patch) -> None:
    """A fetch session keeps the replica of each partition that it has found once."""
    right = ProduceFetchApis._find_by_id
    found: dict[object, Any] = {}

    def find(apis: ProduceFetchApis, topic_id: Any, partition: Any, session: FetchSession | None) -> Any:
        now = right(apis, topic_id, partition, session)
        if session is None or now.replica is None:
            return now
        kept = found.setdefault((session, topic_id, partition.partition), now.replica)
        return now._replace(replica=kept)

    patch.setattr(ProduceFetchApis, "_find_by_id", find)


def _directory_of_its_name(patch: Patch) -> None:
    """A broker that starts takes the log of a deleted topic for that of another one of its name."""
    function = "images.broker.replication.replica_manager:ReplicaManager._open"
    replace_in(patch, function, "files, directory) != topic.id:", by="files, directory) is None:")


def _nothing_forgotten(patch: Patch) -> None:
    """A fetch session keeps what its follower asks to leave out."""
    right = FetchSessionCache.open

    def opened(self: FetchSessionCache, request: Any, **told: Any) -> FetchContext:
        return right(self, replace(request, forgotten_topics_data=()), **told)

    patch.setattr(FetchSessionCache, "open", opened)


def _discarded_unnamed(patch: Patch) -> None:
    """A follower no longer knows that it sent a partition whose answer it has discarded, and so does not ask to leave
    it out."""
    patch.setattr(FetchSessionHandler, "discarded", lambda self, key: self._sent.pop(key, None))


def _known_by_name(patch: Patch) -> None:
    """A broker keeps the replica of a deleted topic where there is another one of its name by then."""
    by_id = "if key not in hosted or hosted[key][0].id != replica.topic_id"
    manager = "images.broker.replication.replica_manager:ReplicaManager._delete_all_except"
    replace_in(patch, manager, by_id, "if key not in hosted")


def _sent_once(patch: Patch) -> None:
    """A leader gives a change of the ISR up when the request with it was lost, and keeps it in flight."""
    right, sent = Replica.still_proposes, list[ProposeIsr]()

    def still_proposes(self: Replica, proposal: ProposeIsr) -> bool:
        again = any(each is proposal for each in sent)
        sent.append(proposal)
        return not again and right(self, proposal)

    patch.setattr(Replica, "still_proposes", still_proposes)


def _torn_tail_kept(patch: Patch) -> None:
    """A log forgets a torn last batch and leaves its bytes in the file."""
    right = Segment.recover

    def recover(self: Segment, on_batch: Callable[[Header], None], *, is_followed: bool) -> str:
        with pytest.MonkeyPatch.context() as unchanged:
            unchanged.setattr(type(self._file), "truncate", lambda *_: None)
            return right(self, on_batch, is_followed=is_followed)

    patch.setattr(Segment, "recover", recover)


def _times_cut_off(patch: Patch) -> None:
    """A segment that is cut forgets the largest timestamp of what is left in it."""
    target = "images.broker.log.segment:Segment.truncate"
    replace_in(patch, target, "self._max_timestamp = None if position else -1", "self._max_timestamp = -1")


def _index_uncut(patch: Patch) -> None:
    """A segment that is cut keeps the index entries of what it has lost."""
    cut = "del self._offsets[keep:], self._positions[keep:]"
    replace_in(patch, "images.broker.log.segment:Segment.truncate", cut, "pass")


def _synced_though_cut(patch: Patch) -> None:
    """A cut leaves what counts as synced as it was."""
    right = Log.truncate

    def truncate(self: Log, to: int) -> int:
        synced_below = self.recovery_point
        end = right(self, to)
        self.recovery_point = synced_below
        return end

    patch.setattr(Log, "truncate", truncate)


def _snapshots_left(patch: Patch) -> None:
    """A cut leaves the snapshots of the producers above it."""
    right = Log.truncate

    def truncate(self: Log, to: int) -> int:
        with pytest.MonkeyPatch.context() as within:
            within.setattr(ProducerSnapshots, "delete_above", lambda *_, **__: None)
            return right(self, to)

    patch.setattr(Log, "truncate", truncate)


def _leaders_alone_configured(patch: Patch) -> None:
    """A changed configuration is taken over by the replicas that lead."""
    replace_in(
        patch,
        "images.broker.replication.replica_manager:ReplicaManager.apply",
        "if replica.configured is not topic.config:",
        "if replica.configured is None or replica.state.role is ReplicaRole.LEADER:",
    )


def _opened_as_found(patch: Patch) -> None:
    """What a start finds in the file of a log is not synced."""
    right = Log._recover

    def recover(self: Log, bases: list[int]) -> None:
        with pytest.MonkeyPatch.context() as meanwhile:
            meanwhile.setattr(Log, "flush", lambda self: None)
            right(self, bases)

    patch.setattr(Log, "_recover", recover)


def _deleted_at_once(patch: Patch) -> None:
    """A deletion up to the high watermark waits for nobody."""
    right = log_start.delete_records

    def delete_records(partition: Partition, offset: int, limits: Limits) -> tuple[ErrorCode, int, PartitionStep]:
        error, _, step = right(partition, offset, limits)
        return error, offset, step

    patch.setattr(log_start, "delete_records", delete_records)


def _never_settled(patch: Patch) -> None:
    """A refused change of which an earlier request may still arrive is left at that."""
    right = leader.on_tick

    def on_tick(partition: Partition, active: Mapping[int, int], now_ms: int, limits: Limits) -> PartitionStep:
        step = right(partition, active, now_ms, limits)
        settles = any(isinstance(each, ProposeIsr) and each.reason == "settle" for each in step.decisions)
        return PartitionStep(partition) if settles else step

    patch.setattr(leader, "on_tick", on_tick)


def _deleted_with_any_isr(patch: Patch) -> None:
    """A deletion is answered also while the ISR is below its minimum, as by Kafka."""
    patch.setattr(log_start, "isr_suffices", lambda partition, limits: True)


def _start_of_leader_missed(patch: Patch) -> None:
    """A follower goes on with the start of its own log."""
    patch.setattr(log_start, "on_leader_log_start", lambda partition, *_: PartitionStep(partition))


def _lengths_alone_checked(patch: Patch) -> None:
    """A recovery takes a batch that is as long as it says for an intact one."""
    patch.setattr(segment, "check", parse)


def _never_the_first(patch: Patch) -> None:
    """A leader takes no batch as the first one of its second partition."""
    right = Replica.append

    def append(self: Replica, batch: bytes, acks: int) -> AppendResult:
        if self.index == 1 and self.log.end == 0:
            return AppendResult(ErrorCode.kafka_storage_error)
        return right(self, batch, acks)

    patch.setattr(Replica, "append", append)


def _committed_by_fetches_alone(patch: Patch) -> None:
    """The high watermark stays where it is when the ISR shrinks, until a follower fetches."""
    right = leader.on_isr_committed

    def on_isr_committed(partition: Partition, *answer: Any) -> PartitionStep:
        step = right(partition, *answer)
        decisions = tuple(each for each in step.decisions if not isinstance(each, HighWatermarkMoved))
        return PartitionStep(step.partition._replace(high_watermark=partition.high_watermark), decisions)

    patch.setattr(leader, "on_isr_committed", on_isr_committed)


def _range_first(patch: Patch) -> None:
    """A consumer beyond the log is out of range, whatever it says that it has read."""
    right = Replica.fetch_for_consumer

    def fetch_for_consumer(self: Replica, leader_epoch: int, offset: int, last_epoch: int, *size: Any) -> FetchResult:
        return right(self, leader_epoch, offset, last_epoch if offset <= self.log.end else NO_EPOCH, *size)

    patch.setattr(Replica, "fetch_for_consumer", fetch_for_consumer)


def _deposed_in_time(patch: Patch) -> None:
    """A leader whose batch is not committed in time says that it leads no more."""
    wait = "images.broker.replication.replica:Replica.wait_until_committed"
    replace_in(patch, wait, "ErrorCode.request_timed_out", "ErrorCode.not_leader_or_follower")


def _cut_to_high_watermark(patch: Patch) -> None:
    """A follower begins with a cut to its high watermark, as it did before KIP-101."""
    of_protocol = "truncation_protocol is TruncationProtocol.HIGH_WATERMARK and "
    replace_in(patch, "images.broker.replication.truncation:begin", of_protocol, "")


def _cut_to_leaders_end_alone(patch: Patch) -> None:
    """A follower cuts its log to where the leader's epoch ends, though its own records of that end before."""
    function = "images.broker.log.divergence:truncation_offset"
    replace_in(patch, function, "min(own.end, diverging.end, log_end)", "min(diverging.end, log_end)")


def _out_of_range_where_logs_part(patch: Patch) -> None:
    """A leader tells a follower whose log parts from its own that the offset is out of range, and not where they do."""
    above = "offset > partition.log_end if diverging is None else diverging.undefined"
    check_position = "images.broker.replication.leader:check_position"
    replace_in(patch, check_position, above, "diverging is not None or offset > partition.log_end")


def _start_before_high_watermark(patch: Patch) -> None:
    """A follower moves its log's start up to the high watermark that it knew before the answer."""
    watermark = "self._apply(follower.on_leader_high_watermark(self.state, leader_high_watermark, self.limits))"
    start = "self._apply(log_start.on_leader_log_start(self.state, leader_log_start, self.limits))"
    in_order, reversed_ = f"{watermark}\n    {start}", f"{start}\n    {watermark}"
    replace_in(patch, "images.broker.replication.replica:Replica.replicate", in_order, reversed_)


def _on_disk_if_read(patch: Patch) -> None:
    """A log that a killed process left takes all segments but the last one for synced."""
    recover = "images.broker.log.segment:Segment.recover"
    replace_in(
        patch, recover, "self.unsynced, self.cut_unsynced = True, not", "self.unsynced = self.cut_unsynced = not"
    )


def _last_loss_counts(patch: Patch) -> None:
    """Whether a change of the ISR may still be made goes by the last lost request with it."""
    send = "images.broker.replication.alter_partition_manager:AlterPartitionManager._send"
    replace_in(patch, send, "certain = certain and not lost.sent", "certain = not lost.sent")


POWER_LOSS: Fault = {"at": "4s", "for": "2s", "fault": "power-loss", "nodes": ["b1"], "keep": "nothing"}
MOVES: Fault = {"at": "2s", "for": "2s", "fault": "move-leadership"}

READ_AT_ONCE: Fault = {"at": 2, "for": 10, "fault": "recreate-topic", "topics": 4, "behind": "any"}
"""A broker reads in one fetch that the topic was deleted, and that another one has its name."""

TORN = POWER_LOSS | {"keep": "torn"}
OF_ONE: Fault = {"at": 3, "for": 8, "fault": "delete-records", "alone": True}
DELETION: Fault = {"at": "3s", "for": "2s", "fault": "delete-records", "stalled": True}
DELETIONS: Sequence[Fault] = [DELETION | {"at": at} for at in (2, 4, 6)]
DELETED_ALONE: Sequence[Fault] = [
    {"at": 1, "for": 8, "fault": "kill", "nodes": ["b3"]},
    {"at": 3.5, "for": 3.5, "fault": "partition", "shape": "isolate", "nodes": ["b2"]},
    {"at": 6.2, "for": 1, "fault": "delete-records", "stalled": True, "patience_ms": 200},
    {"at": 6.9, "for": 4, "fault": "pause", "nodes": ["b1"]},
]
"""b1 is alone in the ISR when it answers; b2 is in the ELR, has not heard of it, and leads once b1 stalls."""
CUT_OFF: Fault = {"at": "3s", "for": "4s", "fault": "partition", "shape": "isolate", "nodes": ["b1"]}

UNASKED: Fault = {
    "at": "2s",
    "for": "6s",
    "fault": "message",
    "api": "AlterPartition",
    "effect": "drop",
    "nodes": ["brokers"],
    "against": ["controllers"],
}
KILLED: Fault = {"at": 4, "for": 1, "fault": "kill", "nodes": ["b1"]}
REFUSED_LATE: Sequence[Fault] = [
    {"at": 1, "for": 3, "fault": "pause", "nodes": ["b3"]},
    {"at": 3.5, "for": 12, "fault": "message", "api": "AlterPartition", "effect": "hold", "nodes": ["b1"]}
    | {"against": ["controllers"]},
    {"at": 5, "for": 10, "fault": "kill", "nodes": ["b3"]},
]
"""The request of b1 to let b3 in again is held. When b1 repeats it b3 is fenced, and may not join."""
REFUSED_BY_NOBODY: Sequence[Fault] = [
    *REFUSED_LATE,
    {"at": 6, "for": 3, "fault": "kill", "nodes": ["controllers"]},
]
"""… It is lost, and so is the next one, which cannot even be sent."""
CUT: Fault = {"at": "2s", "for": "7s", "fault": "partition", "shape": "one-way", "nodes": ["b3"], "against": ["b1"]}
"""b1 leads in these runs."""
SLOW: Fault = {"at": "2s", "for": "8s", "fault": "packets", "nodes": ["b3"], "against": ["b1"], "delay_ms": 150}
UNANSWERED = {"settings": {"replica.socket.timeout.ms": "3000"}}
IMPATIENT = {"replica.lag.time.max.ms": "1000"}
LAGGING = {"settings": IMPATIENT | {"replica.fetch.max.bytes": "200"}, "rate": 40, "acks": 1}
"""One batch a fetch, and more of them than the slow follower fetches; the high watermark moves on with it."""

BEHIND: Sequence[Fault] = [
    {"at": "2s", "for": "3s", "fault": "partition", "shape": "one-way", "nodes": ["b2", "b3"], "against": ["b1"]},
    {"at": "4.9s", "for": "5s", "fault": "kill", "nodes": ["b1"]},
]
"""b1 goes on alone, and then an unclean election has somebody lead who is behind what consumers have read."""
UNCLEAN = {
    "settings": IMPATIENT | {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"},
    "clients": {"tell_epochs": True},
}

RAISED: Sequence[Fault] = [
    {"at": 2, "for": 7, "fault": "raise-min-isr"},
    {"at": 4, "for": 3, "fault": "kill", "nodes": ["leader/0"]},
]

ALONE: Fault = {"at": "3s", "for": "6s", "fault": "partition", "nodes": ["b1"]}

TO_AND_FRO: Fault = {"at": "1s", "fault": "move-leadership", "cut": True}

THERE_AND_BACK: Fault = {"at": "2s", "fault": "there-and-back"}

ENDED_EARLIER: Fault = {"at": "2s", "fault": "recreate-topic", "victim": "b2", "earlier": True, "topics": 4}

MISTAKES = (
    PlayedMistake("not-recovered", _found_once, [THERE_AND_BACK], {"partitions": 4, "time_limit": "14s"}),
    PlayedMistake("high-watermark-unfounded", _directory_of_its_name, [ENDED_EARLIER], {"time_limit": "14s"}),
    PlayedMistake("truncation-needless", _cut_to_high_watermark, world={"faults": ["kill"], "seed": 3}),
    PlayedMistake("segment-time-wrong", _times_cut_off, [TO_AND_FRO]),
    PlayedMistake("truncation-incomplete", _cut_to_leaders_end_alone, [TO_AND_FRO]),
    PlayedMistake("unacknowledged-otherwise", _deposed_in_time, [ALONE]),
    PlayedMistake("request-refused-otherwise", _out_of_range_where_logs_part, [ALONE]),
    PlayedMistake("synced-records-lost", _synced_in_word, [POWER_LOSS], {"settings": {"flush.messages": "1"}}),
    PlayedMistake("forgotten-partition-fetched", _nothing_forgotten, [MOVES], {"partitions": 2, "time_limit": "4s"}),
    PlayedMistake("deleted-replica-kept", _known_by_name, [READ_AT_ONCE], {"time_limit": "15s"}),
    PlayedMistake("answer-unasked", _discarded_unnamed, [MOVES], {"partitions": 3}),
    PlayedMistake("bytes-left-behind", _torn_tail_kept, [TORN], {"settings": {"flush.messages": "1000"}}),
    PlayedMistake("corrupt-log", _lengths_alone_checked, [TORN], {"clients": {"batch": 10}, "seed": 3}),
    PlayedMistake("index-entry-left", _index_uncut, [CUT_OFF]),
    PlayedMistake("synced-beyond-end", _synced_though_cut, [CUT_OFF], {"settings": {"flush.messages": "1"}}),
    PlayedMistake(
        "producer-snapshot-left", _snapshots_left, [CUT_OFF], {"settings": {"segment.bytes": "1024"}, "seed": 2}
    ),
    PlayedMistake("opened-unsynced", _opened_as_found, [TORN], {"settings": {"flush.messages": "10"}}),
    PlayedMistake("deletion-unconfirmed", _deleted_at_once, [DELETION], said="which it was to wait for"),
    PlayedMistake("deletion-below-minimum", _deleted_with_any_isr, DELETED_ALONE, {"time_limit": "12s"}),
    PlayedMistake("deletion-below-minimum", _deleted_with_any_isr, [OF_ONE], {"time_limit": "12s"}),
    PlayedMistake(
        "deletion-below-minimum", _deleted_with_any_isr, [OF_ONE | {"waits": True}], {"time_limit": "14s", "seed": 2}
    ),
    PlayedMistake("deletion-undone", _deleted_with_any_isr, DELETED_ALONE, {"time_limit": "12s"}),
    PlayedMistake("log-start-unheard", _start_of_leader_missed, [DELETION]),
    PlayedMistake("appends-not-accepted", _never_the_first, [], {"partitions": 2, "clients": {"idle_partitions": 1}}),
    PlayedMistake("isr-change-not-sent-again", _sent_once, [UNASKED, CUT], {"settings": IMPATIENT}),
    PlayedMistake("not-on-disk", _on_disk_if_read, [KILLED], {"settings": {"segment.bytes": "1024"}}),
    PlayedMistake("log-start-not-followed", _start_before_high_watermark, DELETIONS, {"seed": 18}),
    PlayedMistake(
        "isr-change-taken-for-certain", _last_loss_counts, REFUSED_BY_NOBODY, UNANSWERED | {"time_limit": "16s"}
    ),
    PlayedMistake("isr-change-unsettled", _never_settled, REFUSED_LATE, UNANSWERED | {"time_limit": "16s"}),
    PlayedMistake("high-watermark-behind", _committed_by_fetches_alone, [CUT], {"settings": IMPATIENT}),
    PlayedMistake("divergence-untold", _range_first, BEHIND, UNCLEAN),
    PlayedMistake("minimum-outdated", _leaders_alone_configured, RAISED),
    PlayedMistake("isr-shrink-overdue", caught_up_by_any_fetch, [SLOW], LAGGING, said="its own ended above"),
)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_of_replicas_is_found(mistake: PlayedMistake, monkeypatch: Patch) -> None:
    mistake.check_found(monkeypatch)
