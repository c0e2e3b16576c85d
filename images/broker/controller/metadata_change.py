"""A metadata change under construction: the records that carry out one decision of the controller.

One change is one batch. Each step sees the image after the records before it, and adds trace events. The controller
decides whether a change is made; the exceptions are checks that depend on earlier steps: a proposal, a reassignment and
an election are checked here, each by itself.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from images.broker.controller import reassignment, unclean_recovery
from images.broker.controller.alter_partition import AlterPartition, IsrProposal, IsrResult, check_proposal
from images.broker.controller.partition_change import PartitionChangeBuilder
from images.broker.controller.placement import assignment_problem
from images.broker.controller.requests import Heartbeat, PartitionResult, Registration, TopicResult
from images.broker.controller.unclean_recovery import LAST_KNOWN_LEADER_ELECTED, ReplicaLogEnd, Strategy, strategy_of
from images.broker.frozen_map import FrozenMap
from images.broker.metadata.image import (
    BrokerImage,
    ChangeBroker,
    ClusterImage,
    PartitionImage,
    ProducerIdsBlock,
    Record,
    RegisterBroker,
    RemoveTopic,
    TopicConfigRecord,
    TopicImage,
)
from images.broker.metadata.image_trace import partition_changed, partitions_deleted, topic_configured
from images.broker.rules import Rules
from images.trace import TraceEvent
from images.wire.field_values import NO_LEADER


class Session(NamedTuple):
    """A broker is alive as far as a controller knows."""

    broker_epoch: int
    """The life that the last heartbeat was sent in."""
    contact_ms: int
    """Time of the last contact."""


class MetadataChange:
    """`records` and `trace` events so far, and `image` and `sessions` after them."""

    def __init__(self, image: ClusterImage, sessions: FrozenMap[int, Session], rules: Rules) -> None:
        self.image = image
        self.sessions = sessions
        self.records: list[Record] = []
        self.trace: list[TraceEvent] = []
        self._rules = rules

    def append(self, record: Record) -> None:
        self.records.append(record)
        self.image = self.image.apply(record, self.image.offset)

    def renew_session(self, broker: BrokerImage, heartbeat: Heartbeat, now_ms: int) -> None:
        session = self.sessions.get(broker.id)
        if session is None or session.broker_epoch != heartbeat.epoch:
            self._trace_heartbeat("session_begun", broker, heartbeat)
        self.sessions = self.sessions.set(broker.id, Session(heartbeat.epoch, now_ms))

    def end_session(self, broker_id: int) -> None:
        self.sessions = self.sessions.remove(broker_id)

    def register(self, request: Registration, known: BrokerImage | None, clean: bool, **session: int) -> None:
        """Register a broker; `session` has the trace's facts about that of its earlier incarnation."""
        if known is not None and not known.fenced:
            self._trace_broker("broker_fenced", known, reason="registered")
        leaves_isr = self._rules.unclean_leaves_isr
        unclean = () if clean or not self._rules.unclean_leaves_elr else (request.id,)
        self._change_partitions(
            lambda partition: request.id in partition.replicas,
            "registered",
            without=request.id if leaves_isr else None,
            unclean=unclean,
        )
        self.append(RegisterBroker(request.id, request.incarnation, request.host, request.port))
        registered = self.image.brokers[request.id]
        previous = {"previous": request.previous_epoch, "known": known.epoch if known is not None else -1}
        self._trace_broker(
            "broker_registered", registered, clean=clean, incarnation=request.incarnation, **previous, **session
        )

    def refuse_registration(
        self, request: Registration, known: BrokerImage, *, silent_ms: int, session_timeout_ms: int
    ) -> None:
        """No record: the session of the earlier incarnation is said to last."""
        detail = {
            "incarnation": request.incarnation,
            "contact_ms": self.sessions[known.id].contact_ms,
            "session_timeout_ms": session_timeout_ms,
            "over": silent_ms >= session_timeout_ms,
            "ahead": silent_ms < 0,
        }
        self.trace.append(TraceEvent("registration_refused", broker=known.id, broker_epoch=known.epoch, detail=detail))

    def refuse_clean_claim(self, request: Registration, known: BrokerImage) -> None:
        """No record: the broker presents the clean shutdown of another life than the registered one."""
        detail = {"incarnation": request.incarnation, "previous": request.previous_epoch}
        self.trace.append(TraceEvent("clean_claim_refused", broker=known.id, broker_epoch=known.epoch, detail=detail))

    def fence(self, broker: BrokerImage, reason: str, **session: int) -> None:
        if broker.fenced:
            return
        leaving = reason == "controlled_shutdown"
        self._leave(broker, reason if leaving else "fenced")
        self.append(ChangeBroker(broker.id, broker.epoch, fenced=True, shutting_down=broker.shutting_down or leaving))
        self._trace_broker("broker_fenced", broker, reason=reason, **session)
        self.end_session(broker.id)

    def unfence(self, broker: BrokerImage, heartbeat: Heartbeat) -> None:
        self.append(ChangeBroker(broker.id, broker.epoch, fenced=False, shutting_down=False))
        self._trace_heartbeat("broker_unfenced", broker, heartbeat, metadata_offset=heartbeat.metadata_offset)
        self._change_partitions(lambda partition: not self.image.is_active(partition.leader), "elected")

    def keep_fenced(self, broker: BrokerImage, heartbeat: Heartbeat) -> None:
        """No record: a heartbeat does not unfence its broker, for which the trace has the reason."""
        detail = {"metadata_offset": heartbeat.metadata_offset, "shutting_down": broker.shutting_down}
        self._trace_heartbeat("broker_stays_fenced", broker, heartbeat, **detail)

    def trace_late_heartbeat(self, broker: BrokerImage, **session: int) -> None:
        """No record: a heartbeat comes of an unfenced broker that has no session any more."""
        self._trace_broker("session_outlived", broker, **session)

    def shut_down(self, broker: BrokerImage, heartbeat: Heartbeat) -> None:
        self.append(ChangeBroker(broker.id, broker.epoch, fenced=False, shutting_down=True))
        self._trace_heartbeat("broker_shutting_down", broker, heartbeat)
        self._leave(broker, "controlled_shutdown")

    def _leave(self, broker: BrokerImage, reason: str) -> None:
        self._change_partitions(
            lambda partition: broker.id in partition.isr or partition.leader == broker.id, reason, without=broker.id
        )

    def _change_partitions(
        self,
        concerned: Callable[[PartitionImage], bool],
        reason: str,
        *,
        without: int | None = None,
        unclean: Container[int] = (),
    ) -> None:
        for topic, partition in tuple(self.image.partitions()):
            if concerned(partition):
                isr = tuple(member for member in partition.isr if member != without)
                change = self._partition_change(topic, partition, without).set_isr(isr).set_unclean_replicas(unclean)
                self._append_change(change, reason)

    def _partition_change(
        self, topic: TopicImage, partition: PartitionImage, without: int | None = None
    ) -> PartitionChangeBuilder:
        """A change of `partition`, in which `without` is not eligible as leader."""

        def eligible(replica: int) -> bool:
            return replica != without and self.image.is_active(replica)

        return PartitionChangeBuilder(topic, partition, eligible, self._rules)

    def _append_change(
        self, builder: PartitionChangeBuilder, reason: str, log_ends: Mapping[int, ReplicaLogEnd] | None = None
    ) -> None:
        change = builder.build()
        if change is not None:
            self.append(change.partition)
            reason = LAST_KNOWN_LEADER_ELECTED if change.last_known_leader else reason
            self._trace_partition(builder.topic, change.partition, reason, change.unclean, log_ends)

    def alter(self, request: AlterPartition, proposal: IsrProposal) -> IsrResult:
        error = check_proposal(self.image, request, proposal, self._rules)
        topic = self.image.topic_by_id(proposal.topic_id)
        if error is not ErrorCode.none or topic is None:
            return self.refuse(request, proposal, error)
        partition = topic.partitions[proposal.index]
        change = self._partition_change(topic, partition).set_isr(proposal.isr).bump_epoch()
        self._append_change(change, "alter_partition")
        return IsrResult(proposal, error, self.image.partition(topic.name, proposal.index))

    def refuse(self, request: AlterPartition, proposal: IsrProposal, error: ErrorCode) -> IsrResult:
        topic = self.image.topic_by_id(proposal.topic_id)
        known = self.image.partition(topic.name, proposal.index) if topic is not None else None
        facts = [known.leader, known.leader_epoch, known.partition_epoch] if known is not None else None
        epochs = {str(member): epoch for member, epoch in proposal.members}
        sender = self.image.brokers.get(request.id)
        registered = sender.epoch if sender is not None else -1
        self.trace.append(
            TraceEvent(
                "alter_partition_refused",
                topic=topic.name if topic is not None else "",
                partition=proposal.index,
                leader_epoch=proposal.leader_epoch,
                partition_epoch=proposal.partition_epoch,
                broker=request.id,
                broker_epoch=request.epoch,
                members=proposal.isr,
                detail={"error": error.name, "known": facts, "registered": registered, "epochs": epochs},
                topic_id=str(proposal.topic_id),
            )
        )
        return IsrResult(proposal, error)

    def allocate_producer_ids(self, broker: BrokerImage, count: int) -> None:
        first = self.image.next_producer_id
        self.append(ProducerIdsBlock(first + count))
        self._trace_broker("producer_ids_allocated", broker, first=first, count=count)

    def create(self, topic: str, records: Sequence[Record]) -> None:
        """Create a topic, or partitions of one that exists, by these records."""
        for record in records:
            self.append(record)
        for record in records:
            if isinstance(record, TopicConfigRecord):
                self.trace.append(topic_configured(self.image.topics[topic]))
            elif isinstance(record, PartitionImage):
                self._trace_partition(self.image.topics[topic], record, "created")

    def delete(self, name: str | None, topic_id: uuid.UUID | None) -> TopicResult:
        if (name is None) == (topic_id is None):
            return TopicResult(
                name, ErrorCode.invalid_request, "Give either the topic name or the topic id.", topic_id=topic_id
            )
        topic = self.image.topics.get(name) if name is not None else self.image.topic_by_id(topic_id)
        if topic is None:
            unknown = ErrorCode.unknown_topic_or_partition if name is not None else ErrorCode.unknown_topic_id
            return TopicResult(name, unknown, "This topic does not exist.", topic_id=topic_id)
        self.append(RemoveTopic(topic.name, topic.id))
        self.trace += partitions_deleted(topic)
        return TopicResult(topic.name, ErrorCode.none, None, topic, topic.id)

    def configure(self, topic: TopicImage, config: FrozenMap[str, str]) -> None:
        self.append(TopicConfigRecord(topic.name, config))
        configured = self.image.topics[topic.name]
        self.trace.append(topic_configured(configured))
        minimum = "min.insync.replicas"
        moves = topic.config[minimum] != config[minimum] and self._rules.min_isr_change_moves_partition_epoch
        kept_last_leader, keeps_it = (strategy_of(each) is Strategy.LAST_KNOWN_LEADER for each in (topic, configured))
        for partition in configured.partitions:
            change = self._partition_change(configured, partition).bump_epoch(moves)
            if keeps_it and not kept_last_leader:
                change.take_elr_for_last_leader()
            self._append_change(change, "configured")

    def reassign(self, name: str, index: int, target: tuple[int, ...] | None) -> PartitionResult:
        topic, partition = self.image.topics.get(name), self.image.partition(name, index)
        if topic is None or partition is None:
            return _refused(name, index, ErrorCode.unknown_topic_or_partition, "This partition does not exist.")
        if target is None and not partition.reassigning:
            return _refused(name, index, ErrorCode.no_reassignment_in_progress, "No reassignment is under way.")
        if target is not None and (problem := assignment_problem(self.image, target)):
            return _refused(name, index, ErrorCode.invalid_replica_assignment, f"Partition {index}: {problem}.")
        if target is None:
            allowed = reassignment.may_cancel(topic, partition, self._rules)
            reassigned = reassignment.cancel_reassignment(partition)
        else:
            allowed = reassignment.may_replace(topic, partition, target, self._rules)
            reassigned = reassignment.start_reassignment(partition, target)
            if not self._rules.reassignment_keeps_isr:
                added = tuple(filter(self.image.is_active, reassigned.adding))
                reassigned = replace(reassigned, isr=reassigned.isr + added)
        if not allowed:
            return _refused(
                name,
                index,
                ErrorCode.invalid_replica_assignment,
                f"Partition {index}: too few of the replicas that would remain are in sync for others to be removed "
                "without an unclean election.",
            )
        reason = "reassignment_cancelled" if target is None else "reassignment"
        self._append_change(self._partition_change(topic, partition).set_replicas(reassigned), reason)
        return PartitionResult(name, index)

    def elect(self, name: str, index: int, unclean: bool) -> PartitionResult:
        topic, partition = self.image.topics.get(name), self.image.partition(name, index)
        if topic is None or partition is None:
            return _refused(name, index, ErrorCode.unknown_topic_or_partition, "This partition does not exist.")
        preferred = partition.replicas[0]
        if partition.leader != NO_LEADER if unclean else partition.leader == preferred:
            return _refused(name, index, ErrorCode.election_not_needed, "The leader is there already.")
        if unclean:
            change = self._partition_change(topic, partition).allow_unclean_election()
            self._append_change(change, unclean_recovery.UNCLEAN_ELECTION)
            elected = self.image.topics[name].partitions[index].leader != NO_LEADER
            error = ErrorCode.eligible_leaders_not_available
        else:
            change = self._partition_change(topic, partition).prefer_leader(preferred)
            self._append_change(change, "preferred_election")
            elected = self.image.topics[name].partitions[index].leader == preferred
            error = ErrorCode.preferred_leader_not_available
        return PartitionResult(name, index) if elected else _refused(name, index, error, "No such replica may lead.")

    def recover(self, name: str, index: int, log_ends: Mapping[int, ReplicaLogEnd], *, overdue: bool) -> bool:
        topic, partition = self.image.topics.get(name), self.image.partition(name, index)
        if topic is None or partition is None:
            return False

        def broker_epoch(replica: int) -> int | None:
            return self.image.brokers[replica].epoch if self.image.is_active(replica) else None

        leader = unclean_recovery.elect_leader(topic, partition, log_ends, broker_epoch, self._rules, overdue=overdue)
        if leader != NO_LEADER:
            change = self._partition_change(topic, partition).set_isr((leader,)).recover_leader(leader)
            self._append_change(change, unclean_recovery.UNCLEAN_RECOVERY, log_ends)
        return leader != NO_LEADER

    def _trace_broker(self, kind: str, broker: BrokerImage, **detail: object) -> None:
        self.trace.append(TraceEvent(kind, broker=broker.id, broker_epoch=broker.epoch, detail=detail))

    def _trace_heartbeat(self, kind: str, broker: BrokerImage, heartbeat: Heartbeat, **detail: object) -> None:
        """An event upon a heartbeat, with the broker epoch that this gave."""
        self._trace_broker(kind, broker, heartbeat_epoch=heartbeat.epoch, **detail)

    def _trace_partition(
        self,
        topic: TopicImage,
        partition: PartitionImage,
        reason: str,
        unclean: bool = False,
        log_ends: Mapping[int, ReplicaLogEnd] | None = None,
    ) -> None:
        detail: dict[str, object] = {"reason": reason, "unclean": unclean}
        if log_ends is not None:
            reports = sorted(log_ends.items())
            detail["told"] = {str(replica): [log.last_epoch, log.end] for replica, log in reports}
            detail["told_in"] = {str(replica): [log.broker_epoch, log.leader_epoch] for replica, log in reports}
        self.trace.append(partition_changed(topic, partition, **detail))


def _refused(topic: str, index: int, error: ErrorCode, message: str) -> PartitionResult:
    return PartitionResult(topic, index, error, message)
