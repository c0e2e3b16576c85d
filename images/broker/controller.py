"""The controller: one pure state machine over the committed metadata (RC 6.3).

Requests and the passing of time go in; a `Step` comes out: records to append as one atomic batch, the answer to give
once they are committed, and the controller as it will be then. Every decision is made on committed state, one change
at a time; a controller that cannot commit changes nothing and answers nothing. Time is an argument, in milliseconds of
one monotonic clock. There is no I/O, so that every interleaving of a small scope can be explored.

*Broker epochs* (RC 6.5.1). A broker epoch is the offset of the registration record, and so rises across controllers.
A second incarnation is refused while the session of the first is alive. Registration takes the broker out of
leadership and ISRs in its own batch; unless the broker presents the broker epoch it stored at a clean shutdown, it may
have lost data and leaves every ELR too. It starts fenced, and its first heartbeat after it has read its own
registration unfences it, in the same broker epoch. The same incarnation asking again is a retry and gets its epoch.

*Sessions* are soft state, not in the log. A heartbeat renews one; a controller that takes over grants everybody a
fresh one. A broker silent for `session_timeout_ms` is fenced: out of leadership and ISRs. One broker a step.

*Controlled shutdown*. A broker that wants to go is marked shutting down, and leads and follows in sync nowhere from
then on. When it leads nothing it is fenced and told to go, which ends its session.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from kio.schema.errors import ErrorCode

from images.broker import reassignment, unclean_recovery
from images.broker.alter_partition import AlterPartition, AlterPartitionAnswer, IsrProposal, IsrResult, judge
from images.broker.config import ConfigError
from images.broker.election import change
from images.broker.frozen import FrozenMap
from images.broker.metadata import (
    NO_LEADER,
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
from images.broker.placement import NewTopic, TopicDefaults, TopicRefused, plan
from images.broker.rules import Rules
from images.broker.topic_config import ConfigChange, altered
from images.broker.trace import TraceEvent
from images.broker.unclean_recovery import LogEnd, Recovery

PRODUCER_IDS_PER_BLOCK = 1000
A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Registration:
    """A broker introduces itself. `previous_epoch` is what it stored at a clean shutdown, -1 without one."""

    id: int
    incarnation: str
    host: str
    port: int
    previous_epoch: int = -1


@dataclass(frozen=True, slots=True)
class RegistrationAnswer:
    """The broker epoch granted, -1 with an error."""

    error: ErrorCode
    broker_epoch: int = -1


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A broker is alive. `metadata_offset` is the offset of the last metadata record it has applied."""

    id: int
    epoch: int
    metadata_offset: int
    want_fence: bool = False
    want_shut_down: bool = False


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """What the broker is to the cluster once the step is committed."""

    error: ErrorCode
    caught_up: bool = False
    fenced: bool = True
    should_shut_down: bool = False


@dataclass(frozen=True, slots=True)
class ProducerIdsAnswer:
    """Ids from `first` on, `count` of them."""

    error: ErrorCode
    first: int = -1
    count: int = 0


@dataclass(frozen=True, slots=True)
class TopicResult:
    """What became of one topic to create or delete; `topic` as it is (or was) when that went well."""

    name: str | None
    error: ErrorCode
    message: str | None = None
    topic: TopicImage | None = None
    topic_id: uuid.UUID | None = None


@dataclass(frozen=True, slots=True)
class PartitionResult:
    """What became of a wish about one partition."""

    topic: str
    index: int
    error: ErrorCode = ErrorCode.none
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """What a controller is configured with."""

    session_timeout_ms: int
    topics: TopicDefaults


@dataclass(frozen=True, slots=True)
class Step(Generic[A]):
    """A decision: `records` to commit as one batch, and what then holds. Without records it holds at once."""

    state: Controller
    answer: A
    records: tuple[Record, ...] = ()
    trace: tuple[TraceEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class Controller:
    """The active controller. A value: every method returns a `Step` holding the next one."""

    settings: Settings
    rules: Rules = field(default_factory=Rules)
    image: ClusterImage = field(default_factory=ClusterImage)
    contacts: FrozenMap[int, int] = field(default_factory=FrozenMap)
    """When (ms) each broker with a session was last heard from."""

    def take_over(self, image: ClusterImage, now_ms: int) -> Controller:
        """This controller in charge of `image`, with a full session timeout ahead for every unfenced broker."""
        unfenced = {broker.id: now_ms for broker in image.brokers.values() if not broker.fenced}
        return replace(self, image=image, contacts=FrozenMap(unfenced))

    def next_expiry_ms(self) -> int | None:
        """When the first unfenced broker's session ends if nothing is heard, None when nobody is unfenced."""
        ends = [self._session_end_ms(broker.id) for broker in self.image.brokers.values() if not broker.fenced]
        return min(ends, default=None)

    def tick(self, now_ms: int) -> Step[None]:
        """Fence the broker whose session ended first, if one has by `now_ms`."""
        expired = [
            (self._session_end_ms(broker.id), broker.id)
            for broker in self.image.brokers.values()
            if not broker.fenced and self._session_end_ms(broker.id) <= now_ms
        ]
        if not expired:
            return Step(self, None)
        draft = _Draft(self)
        draft.fence(self.image.brokers[min(expired)[1]], "session_timeout")
        return draft.step(None)

    def register(self, request: Registration, now_ms: int) -> Step[RegistrationAnswer]:
        """Grant a broker epoch, or DUPLICATE_BROKER_REGISTRATION (101)."""
        known = self.image.brokers.get(request.id)
        draft = _Draft(self)
        if known is not None and known.incarnation == request.incarnation:
            draft.hear_from(known.id, now_ms)
            return draft.step(RegistrationAnswer(ErrorCode.none, known.epoch))
        alive = request.id in self.contacts and now_ms < self._session_end_ms(request.id)
        if known is not None and alive and self.rules.registration_waits_for_fencing:
            return Step(self, RegistrationAnswer(ErrorCode.duplicate_broker_registration))
        clean = known is None or request.previous_epoch == known.epoch
        draft.register(request, known, clean)
        draft.hear_from(request.id, now_ms)
        return draft.step(RegistrationAnswer(ErrorCode.none, draft.image.brokers[request.id].epoch))

    def heartbeat(self, request: Heartbeat, now_ms: int) -> Step[HeartbeatAnswer]:
        """Renew a session; unfence, fence or shut down its broker as it asks and its progress allows.

        Errors: BROKER_ID_NOT_REGISTERED (102), STALE_BROKER_EPOCH (77).
        """
        broker = self.image.brokers.get(request.id)
        if broker is None:
            return Step(self, HeartbeatAnswer(ErrorCode.broker_id_not_registered))
        if broker.epoch != request.epoch:
            return Step(self, HeartbeatAnswer(ErrorCode.stale_broker_epoch))
        draft = _Draft(self)
        draft.hear_from(broker.id, now_ms)
        caught_up = request.metadata_offset >= broker.epoch
        leaves = False
        if request.want_shut_down:
            leads = any(partition.leader == broker.id for _, partition in self.image.partitions())
            leaves = broker.fenced or not leads
            if leaves:
                draft.fence(broker, "controlled_shutdown")
            elif not broker.shutting_down:
                draft.shut_down(broker)
        elif request.want_fence:
            draft.fence(broker, "requested")
        elif broker.fenced and caught_up and not broker.shutting_down:
            draft.unfence(broker)
        if leaves:
            draft.forget(broker.id)
        fenced = draft.image.brokers[broker.id].fenced
        return draft.step(HeartbeatAnswer(ErrorCode.none, caught_up, fenced, leaves))

    def alter_partition(self, request: AlterPartition) -> Step[AlterPartitionAnswer]:
        """Commit the ISRs a leader asks for. Each proposal is judged by itself; those granted share one batch."""
        draft = _Draft(self)
        if not self._is_current(request.id, request.epoch):
            for proposal in request.proposals:
                draft.refuse(request, proposal, ErrorCode.stale_broker_epoch)
            return draft.step(AlterPartitionAnswer(ErrorCode.stale_broker_epoch))
        results = tuple(draft.alter(request, proposal) for proposal in request.proposals)
        return draft.step(AlterPartitionAnswer(ErrorCode.none, results))

    def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> Step[ProducerIdsAnswer]:
        """Give a broker the next block of producer ids, or STALE_BROKER_EPOCH (77)."""
        if not self._is_current(broker_id, broker_epoch):
            return Step(self, ProducerIdsAnswer(ErrorCode.stale_broker_epoch))
        draft = _Draft(self)
        first = self.image.next_producer_id
        draft.write(ProducerIdsBlock(first + PRODUCER_IDS_PER_BLOCK))
        return draft.step(ProducerIdsAnswer(ErrorCode.none, first, PRODUCER_IDS_PER_BLOCK))

    def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> Step[tuple[TopicResult, ...]]:
        """Create the topics that can be created, all in one batch; with `validate_only` just say which."""
        names = [topic.name for topic in topics]
        draft = _Draft(self)
        results = []
        for topic in topics:
            try:
                if names.count(topic.name) > 1:
                    raise TopicRefused(ErrorCode.invalid_request, "Duplicate topic name.")
                draft.create(topic, plan(draft.image, topic, self.settings.topics))
            except TopicRefused as refusal:
                results.append(TopicResult(topic.name, refusal.error, str(refusal)))
            else:
                created = draft.image.topics[topic.name]
                results.append(TopicResult(topic.name, ErrorCode.none, None, created, created.id))
        return Step(self, tuple(results)) if validate_only else draft.step(tuple(results))

    def delete_topics(self, wanted: Iterable[tuple[str | None, uuid.UUID | None]]) -> Step[tuple[TopicResult, ...]]:
        """Delete topics, each given by its name or its id, in one batch."""
        draft = _Draft(self)
        return draft.step(tuple(draft.delete(name, topic_id) for name, topic_id in wanted))

    def alter_config(
        self, name: str, changes: Sequence[ConfigChange], *, validate_only: bool = False
    ) -> Step[TopicResult]:
        """Change the configuration of topic `name`, with all that follows from it."""
        topic = self.image.topics.get(name)
        if topic is None:
            return Step(self, TopicResult(name, ErrorCode.unknown_topic_or_partition, "This topic does not exist."))
        try:
            config = altered(topic, changes, self.settings.topics)
        except ConfigError as error:
            return Step(self, TopicResult(name, ErrorCode.invalid_config, str(error)))
        draft = _Draft(self)
        if config != topic.config:
            draft.configure(topic, config)
        result = TopicResult(name, ErrorCode.none, None, draft.image.topics[name], topic.id)
        return Step(self, result) if validate_only else draft.step(result)

    def reassign(self, wanted: Iterable[tuple[str, int, tuple[int, ...] | None]]) -> Step[tuple[PartitionResult, ...]]:
        """Move each (topic, partition) to these replicas, or cancel its reassignment (None), in one batch."""
        draft = _Draft(self)
        return draft.step(tuple(draft.reassign(topic, index, target) for topic, index, target in wanted))

    def elect(self, wanted: Iterable[tuple[str, int]] | None, *, unclean: bool) -> Step[tuple[PartitionResult, ...]]:
        """Elect the preferred replica, or with `unclean` any replica where nobody leads. None: wherever it is needed.

        Errors: ELECTION_NOT_NEEDED (84), PREFERRED_LEADER_NOT_AVAILABLE (80), ELIGIBLE_LEADERS_NOT_AVAILABLE (83),
        UNKNOWN_TOPIC_OR_PARTITION (3).
        """
        draft = _Draft(self)
        everywhere = wanted is None
        if wanted is None:
            wanted = [(topic.name, partition.index) for topic, partition in self.image.partitions()]
        results = [draft.elect(topic, index, unclean) for topic, index in wanted]
        return draft.step(tuple(r for r in results if not (everywhere and r.error is ErrorCode.election_not_needed)))

    def recoveries(self) -> tuple[Recovery, ...]:
        """The partitions that an unclean recovery is to find a leader for, and whose logs must be told of."""
        wanted = (unclean_recovery.wanted(topic, partition) for topic, partition in self.image.partitions())
        return tuple(recovery for recovery in wanted if recovery is not None)

    def recover(self, topic: str, index: int, told: Mapping[int, LogEnd], *, overdue: bool) -> Step[bool]:
        """Elect a leader by what replicas `told` of their logs, if that suffices; answers whether it did.

        `overdue`: the time is over that a proactive recovery waits for everybody.
        """
        draft = _Draft(self)
        return draft.step(draft.recover(topic, index, told, overdue=overdue))

    def _session_end_ms(self, broker_id: int) -> int:
        return self.contacts[broker_id] + self.settings.session_timeout_ms

    def _is_current(self, broker_id: int, broker_epoch: int) -> bool:
        broker = self.image.brokers.get(broker_id)
        return broker is not None and broker.epoch == broker_epoch


class _Draft:
    """A step in the making: the records so far, and the image as they will leave it."""

    def __init__(self, controller: Controller) -> None:
        self.image = controller.image
        self._controller = controller
        self._contacts = controller.contacts
        self._records: list[Record] = []
        self._trace: list[TraceEvent] = []

    @property
    def _rules(self) -> Rules:
        return self._controller.rules

    def step(self, answer: A) -> Step[A]:
        state = replace(self._controller, image=self.image, contacts=self._contacts)
        return Step(state, answer, tuple(self._records), tuple(self._trace))

    def write(self, record: Record) -> None:
        self._records.append(record)
        self.image = self.image.apply(record, self.image.offset)

    def hear_from(self, broker_id: int, now_ms: int) -> None:
        self._contacts = self._contacts.set(broker_id, now_ms)

    def forget(self, broker_id: int) -> None:
        self._contacts = self._contacts.remove(broker_id)

    def register(self, request: Registration, known: BrokerImage | None, clean: bool) -> None:
        if known is not None and not known.fenced:
            self._tell_broker("broker_fenced", known, reason="registered")
        leaves_isr = self._rules.unclean_leaves_isr
        unclean = () if clean or not self._rules.unclean_leaves_elr else (request.id,)
        self._change_partitions(
            lambda partition: request.id in partition.replicas,
            "registered",
            without=request.id if leaves_isr else None,
            unclean=unclean,
        )
        self.write(RegisterBroker(request.id, request.incarnation, request.host, request.port))
        registered = self.image.brokers[request.id]
        self._tell_broker("broker_registered", registered, clean=clean, incarnation=request.incarnation)

    def fence(self, broker: BrokerImage, reason: str) -> None:
        if broker.fenced:
            return
        leaving = reason == "controlled_shutdown"
        self._leave(broker, reason if leaving else "fenced")
        self.write(ChangeBroker(broker.id, broker.epoch, fenced=True, shutting_down=broker.shutting_down or leaving))
        self._tell_broker("broker_fenced", broker, reason=reason)
        self.forget(broker.id)

    def unfence(self, broker: BrokerImage) -> None:
        self.write(ChangeBroker(broker.id, broker.epoch, fenced=False, shutting_down=False))
        self._tell_broker("broker_unfenced", broker)
        self._change_partitions(lambda partition: not self.image.is_active(partition.leader), "elected")

    def shut_down(self, broker: BrokerImage) -> None:
        self.write(ChangeBroker(broker.id, broker.epoch, fenced=False, shutting_down=True))
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
                self._change(topic, partition, isr, reason, without=without, unclean=unclean)

    def _change(
        self,
        topic: TopicImage,
        partition: PartitionImage,
        isr: Iterable[int],
        reason: str,
        *,
        without: int | None = None,
        unclean: Container[int] = (),
        always: bool = False,
        onto: PartitionImage | None = None,
        preferred: int = NO_LEADER,
        recovered: int = NO_LEADER,
        allow_unclean: bool | None = None,
        told: Mapping[int, LogEnd] | None = None,
    ) -> None:
        changed = change(
            topic,
            partition,
            isr=isr,
            eligible=lambda replica: replica != without and self.image.is_active(replica),
            rules=self._rules,
            unclean=unclean,
            always=always,
            onto=onto,
            preferred=preferred,
            recovered=recovered,
            allow_unclean=allow_unclean,
        )
        if changed is not None:
            self.write(changed.partition)
            self._tell_partition(topic, changed.partition, reason, changed.unclean, told)

    def alter(self, request: AlterPartition, proposal: IsrProposal) -> IsrResult:
        error = judge(self.image, request, proposal, self._rules)
        topic = self.image.topic_by_id(proposal.topic_id)
        if error is not ErrorCode.none or topic is None:
            return self.refuse(request, proposal, error)
        partition = topic.partitions[proposal.index]
        self._change(topic, partition, proposal.isr, "alter_partition", always=True)
        return IsrResult(proposal, error, self.image.partition(topic.name, proposal.index))

    def refuse(self, request: AlterPartition, proposal: IsrProposal, error: ErrorCode) -> IsrResult:
        topic = self.image.topic_by_id(proposal.topic_id)
        self._trace.append(
            TraceEvent(
                "alter_partition_refused",
                topic=topic.name if topic is not None else "",
                partition=proposal.index,
                leader_epoch=proposal.leader_epoch,
                partition_epoch=proposal.partition_epoch,
                broker=request.id,
                broker_epoch=request.epoch,
                members=proposal.isr,
                detail={"error": error.name},
            )
        )
        return IsrResult(proposal, error)

    def create(self, topic: NewTopic, records: Sequence[Record]) -> None:
        for record in records:
            self.write(record)
        created = self.image.topics[topic.name]
        for partition in created.partitions:
            self._tell_partition(created, partition, "created")

    def delete(self, name: str | None, topic_id: uuid.UUID | None) -> TopicResult:
        if (name is None) == (topic_id is None):
            return TopicResult(
                name, ErrorCode.invalid_request, "Give either the topic name or the topic id.", topic_id=topic_id
            )
        topic = self.image.topics.get(name) if name is not None else self.image.topic_by_id(topic_id)
        if topic is None:
            unknown = ErrorCode.unknown_topic_or_partition if name is not None else ErrorCode.unknown_topic_id
            return TopicResult(name, unknown, "This topic does not exist.", topic_id=topic_id)
        self.write(RemoveTopic(topic.name, topic.id))
        return TopicResult(topic.name, ErrorCode.none, None, topic, topic.id)

    def configure(self, topic: TopicImage, config: FrozenMap[str, str]) -> None:
        self.write(TopicConfigRecord(topic.name, config))
        configured = self.image.topics[topic.name]
        minimum = "min.insync.replicas"
        moves = topic.config[minimum] != config[minimum] and self._rules.min_isr_change_moves_partition_epoch
        for partition in configured.partitions:
            self._change(configured, partition, partition.isr, "configured", always=moves)

    def reassign(self, name: str, index: int, target: tuple[int, ...] | None) -> PartitionResult:
        topic, partition = self.image.topics.get(name), self.image.partition(name, index)
        if topic is None or partition is None:
            return _refused(name, index, ErrorCode.unknown_topic_or_partition, "This partition does not exist.")
        if target is None and not partition.reassigning:
            return _refused(name, index, ErrorCode.no_reassignment_in_progress, "No reassignment is under way.")
        if target is not None:
            unknown = [replica for replica in target if replica not in self.image.brokers]
            wrong = (
                "no replicas are named"
                if not target
                else "a broker is named twice"
                if len(set(target)) < len(target)
                else f"broker {unknown[0]} is not registered"
                if unknown
                else None
            )
            if wrong is not None:
                return _refused(name, index, ErrorCode.invalid_replica_assignment, f"Partition {index}: {wrong}.")
        onto = partition
        if partition.reassigning:
            if not reassignment.may_cancel(topic, partition, self._rules):
                return _refused(
                    name,
                    index,
                    ErrorCode.invalid_replica_assignment,
                    f"Partition {index}: too few of the original replicas are in sync for its reassignment to be "
                    "cancelled without an unclean election.",
                )
            onto = reassignment.cancelled(partition)
        if target is not None:
            onto = reassignment.begun(onto, target)
        reason = "reassignment_cancelled" if target is None else "reassignment"
        self._change(topic, partition, onto.isr, reason, onto=onto)
        return PartitionResult(name, index)

    def elect(self, name: str, index: int, unclean: bool) -> PartitionResult:
        topic, partition = self.image.topics.get(name), self.image.partition(name, index)
        if topic is None or partition is None:
            return _refused(name, index, ErrorCode.unknown_topic_or_partition, "This partition does not exist.")
        preferred = partition.replicas[0]
        if partition.leader != NO_LEADER if unclean else partition.leader == preferred:
            return _refused(name, index, ErrorCode.election_not_needed, "The leader is there already.")
        if unclean:
            self._change(topic, partition, partition.isr, "unclean_election", allow_unclean=True)
            elected = self.image.topics[name].partitions[index].leader != NO_LEADER
            error = ErrorCode.eligible_leaders_not_available
        else:
            self._change(topic, partition, partition.isr, "preferred_election", preferred=preferred)
            elected = self.image.topics[name].partitions[index].leader == preferred
            error = ErrorCode.preferred_leader_not_available
        return PartitionResult(name, index) if elected else _refused(name, index, error, "No such replica may lead.")

    def recover(self, name: str, index: int, told: Mapping[int, LogEnd], *, overdue: bool) -> bool:
        topic, partition = self.image.topics.get(name), self.image.partition(name, index)
        if topic is None or partition is None:
            return False

        def broker_epoch(replica: int) -> int | None:
            return self.image.brokers[replica].epoch if self.image.is_active(replica) else None

        leader = unclean_recovery.elected(topic, partition, told, broker_epoch, self._rules, overdue=overdue)
        if leader != NO_LEADER:
            self._change(topic, partition, (leader,), "unclean_recovery", recovered=leader, told=told)
        return leader != NO_LEADER

    def _tell_broker(self, kind: str, broker: BrokerImage, **detail: object) -> None:
        self._trace.append(TraceEvent(kind, broker=broker.id, broker_epoch=broker.epoch, detail=detail))

    def _tell_partition(
        self,
        topic: TopicImage,
        partition: PartitionImage,
        reason: str,
        unclean: bool = False,
        told: Mapping[int, LogEnd] | None = None,
    ) -> None:
        detail: dict[str, object] = {
            "elr": list(partition.elr),
            "last_known_elr": list(partition.last_known_elr),
            "replicas": list(partition.replicas),
            "adding": list(partition.adding),
            "removing": list(partition.removing),
            "min_isr": topic.min_isr(partition),
            "reason": reason,
            "unclean": unclean,
        }
        if told is not None:
            detail["told"] = {str(replica): [log.last_epoch, log.end] for replica, log in sorted(told.items())}
        self._trace.append(
            TraceEvent(
                "partition_changed",
                topic=partition.topic,
                partition=partition.index,
                leader=partition.leader,
                leader_epoch=partition.leader_epoch,
                partition_epoch=partition.partition_epoch,
                members=partition.isr,
                detail=detail,
            )
        )


def _refused(topic: str, index: int, error: ErrorCode, message: str) -> PartitionResult:
    return PartitionResult(topic, index, error, message)
