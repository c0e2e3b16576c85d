"""The controller: one pure state machine over the committed metadata (Kafka Replication Correctness §6.3).

Each method takes a request, or the time, and returns a `ControllerResult`: records to append as one atomic batch, the
response to send once they are committed, and the state of the controller after that. Every decision is based on
committed state, one change at a time; a controller that cannot commit changes nothing, and gives no answer of which it
is asked that it rests on the newest metadata. Time is an argument, in milliseconds of one monotonic clock. There is no
I/O, so that every interleaving of a small scope can be explored.

*Broker epochs* (Kafka Replication Correctness §6.5.1). A broker epoch is the offset of the registration record, and so
rises across controllers. A second incarnation is refused while the session of the first is alive. Registration removes
the broker from leadership and ISRs in its own batch; unless the broker presents the broker epoch it stored at a clean
shutdown, it may have lost data and leaves every ELR too. One that presents another broker epoch than the registered one
is refused: it may be a request of an earlier life that arrives late, and the later life may have shut down cleanly. A
process that is refused so has to register without a broker epoch. The broker starts fenced, and its first heartbeat
after it has read its own registration unfences it, in the same broker epoch. A repeated registration of the same
incarnation is a retry and gets the same epoch.

*Sessions* are soft state, not in the log. A heartbeat renews the session; a new active controller grants every broker a
full one. A broker silent for `session_timeout_ms` is fenced: removed from leadership and ISRs. One broker per result.

*Controlled shutdown*. A broker that wants to shut down is marked, and leaves all leaderships and ISRs. Once it leads no
partition it is fenced and may stop, which ends its session.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from kio.schema.errors import ErrorCode

from images.broker.config import ConfigError
from images.broker.controller import unclean_recovery
from images.broker.controller.alter_partition import AlterPartition, AlterPartitionAnswer
from images.broker.controller.metadata_change import MetadataChange, Session
from images.broker.controller.placement import (
    NewPartitions,
    NewTopic,
    TopicDefaults,
    TopicRefused,
    check_total,
    partitions_added,
    partitions_of,
    plan,
    plan_partitions,
)
from images.broker.controller.requests import (
    Heartbeat,
    HeartbeatAnswer,
    PartitionResult,
    ProducerIdsAnswer,
    Registration,
    RegistrationAnswer,
    TopicResult,
)
from images.broker.controller.topic_config import ConfigChange, altered, altered_throttles, whole
from images.broker.controller.unclean_recovery import ReplicaLogEnd, UncleanRecovery
from images.broker.frozen_map import FrozenMap
from images.broker.metadata.image import BrokerConfigRecord, ClusterImage, NoOp, Record
from images.broker.rules import Rules
from images.trace import TraceEvent

A = TypeVar("A")
_New = TypeVar("_New", NewTopic, NewPartitions)


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Configuration of a controller."""

    session_timeout_ms: int
    topics: TopicDefaults
    producer_id_block_size: int


@dataclass(frozen=True, slots=True)
class ControllerResult(Generic[A]):
    """A decision: `records` to commit as one batch, and `state` after that. Without records `state` holds at once."""

    state: Controller
    answer: A
    records: tuple[Record, ...] = ()
    trace: tuple[TraceEvent, ...] = ()

    def confirmed(self) -> ControllerResult[A]:
        """This result with at least one record: its answer is given only once the metadata that it rests on has turned
        out to be the newest. A controller that does not know yet that it is deposed cannot commit."""
        if self.records:
            return self
        record = NoOp()
        image = self.state.image.apply(record, self.state.image.offset)
        return replace(self, state=replace(self.state, image=image), records=(record,))


@dataclass(frozen=True, slots=True)
class Controller:
    """The active controller. A value: every method returns a `ControllerResult` with the next one."""

    settings: ControllerSettings
    rules: Rules = field(default_factory=Rules)
    image: ClusterImage = field(default_factory=ClusterImage)
    sessions: FrozenMap[int, Session] = field(default_factory=FrozenMap)
    """That of each broker which has one."""

    def activate(self, image: ClusterImage, now_ms: int) -> Controller:
        """This controller with `image`, and a full session timeout for every unfenced broker."""
        unfenced = [broker for broker in image.brokers.values() if not broker.fenced]
        sessions = {broker.id: Session(broker.epoch, now_ms) for broker in unfenced}
        return replace(self, image=image, sessions=FrozenMap(sessions))

    def next_expiry_ms(self) -> int | None:
        """End of the first session to expire, None if no broker is unfenced."""
        ends = [self._session_end_ms(broker.id) for broker in self.image.brokers.values() if not broker.fenced]
        return min(ends, default=None)

    def tick(self, now_ms: int) -> ControllerResult[None]:
        """Fence the broker whose session ended first, if any has ended by `now_ms`."""
        expired = [
            (self._session_end_ms(broker.id), broker.id)
            for broker in self.image.brokers.values()
            if not broker.fenced and self._session_end_ms(broker.id) <= now_ms
        ]
        if not expired:
            return ControllerResult(self, None)
        change, broker_id = self._begin(), min(expired)[1]
        change.fence(self.image.brokers[broker_id], "session_timeout", **self._session(broker_id, now_ms))
        return self._result(change, None)

    def register(self, request: Registration, now_ms: int) -> ControllerResult[RegistrationAnswer]:
        """Grant a broker epoch. Errors: DUPLICATE_BROKER_REGISTRATION (101), STALE_BROKER_EPOCH (77)."""
        known = self.image.brokers.get(request.id)
        change = self._begin()
        if known is not None and known.incarnation == request.incarnation:
            return self._result(change, RegistrationAnswer(ErrorCode.none, known.epoch))
        alive = self._has_session(request.id, now_ms)
        if known is not None and alive and self.rules.registration_waits_for_fencing:
            change.refuse_registration(request, known, **self._session(request.id, now_ms))
            return self._result(change, RegistrationAnswer(ErrorCode.duplicate_broker_registration))
        clean = known is None or request.previous_epoch == known.epoch
        if known is not None and not clean and request.previous_epoch >= 0:
            change.refuse_clean_claim(request, known)
            return self._result(change, RegistrationAnswer(ErrorCode.stale_broker_epoch)).confirmed()
        change.register(request, known, clean, **self._session(request.id, now_ms))
        change.end_session(request.id)  # the first heartbeat begins the next one
        return self._result(change, RegistrationAnswer(ErrorCode.none, change.image.brokers[request.id].epoch))

    def heartbeat(self, request: Heartbeat, now_ms: int) -> ControllerResult[HeartbeatAnswer]:
        """Renew a session; unfence, fence or shut down its broker as it asks and its progress allows.

        Errors: BROKER_ID_NOT_REGISTERED (102), STALE_BROKER_EPOCH (77).
        """
        broker = self.image.brokers.get(request.id)
        if broker is None:
            return ControllerResult(self, HeartbeatAnswer(ErrorCode.broker_id_not_registered))
        if broker.epoch != request.epoch and self.rules.stale_heartbeat_refused:
            refused = TraceEvent(
                "heartbeat_refused", broker=broker.id, broker_epoch=request.epoch, detail={"known": broker.epoch}
            )
            return ControllerResult(self, HeartbeatAnswer(ErrorCode.stale_broker_epoch), trace=(refused,))
        change = self._begin()
        if not broker.fenced and not self._has_session(broker.id, now_ms):
            change.trace_late_heartbeat(broker, **self._session(broker.id, now_ms))
        change.renew_session(broker, request, now_ms)
        caught_up = request.metadata_offset >= broker.epoch
        leaves = False
        if request.want_shut_down:
            leads = any(partition.leader == broker.id for _, partition in self.image.partitions())
            leaves = broker.fenced or not leads
            if leaves:
                change.fence(broker, "controlled_shutdown")
            elif not broker.shutting_down:
                change.shut_down(broker, request)
        elif request.want_fence:
            change.fence(broker, "requested")
        elif broker.fenced and caught_up and not broker.shutting_down:
            change.unfence(broker, request)
        elif broker.fenced:
            change.keep_fenced(broker, request)
        if leaves:
            change.end_session(broker.id)
        fenced = change.image.brokers[broker.id].fenced
        return self._result(change, HeartbeatAnswer(ErrorCode.none, caught_up, fenced, leaves))

    def alter_partition(self, request: AlterPartition) -> ControllerResult[AlterPartitionAnswer]:
        """Commit the ISRs a leader proposes. Each proposal is checked by itself; the accepted ones share one batch."""
        change = self._begin()
        if not self._is_current(request.id, request.epoch) and self.rules.sender_epoch_checked_in_alter_partition:
            for proposal in request.proposals:
                change.refuse(request, proposal, ErrorCode.stale_broker_epoch)
            return self._result(change, AlterPartitionAnswer(ErrorCode.stale_broker_epoch))
        results = tuple(change.alter(request, proposal) for proposal in request.proposals)
        return self._result(change, AlterPartitionAnswer(ErrorCode.none, results))

    def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> ControllerResult[ProducerIdsAnswer]:
        """Give a broker the next block of producer ids, or STALE_BROKER_EPOCH (77)."""
        if not self._is_current(broker_id, broker_epoch):
            return ControllerResult(self, ProducerIdsAnswer(ErrorCode.stale_broker_epoch))
        change = self._begin()
        first = self.image.next_producer_id
        count = self.settings.producer_id_block_size
        change.allocate_producer_ids(self.image.brokers[broker_id], count)
        return self._result(change, ProducerIdsAnswer(ErrorCode.none, first, count))

    def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> ControllerResult[tuple[TopicResult, ...]]:
        """Create the topics that can be created, in one batch; with `validate_only` only report which. A topic named
        twice is refused, and answered once. A request for too many partitions in all is refused as a whole, with
        POLICY_VIOLATION (44)."""
        defaults = self.settings.topics
        return self._create(
            topics,
            lambda topic: partitions_of(topic, defaults),
            lambda image, topic: plan(image, topic, defaults),
            validate_only,
        )

    def create_partitions(
        self, requests: Sequence[NewPartitions], *, validate_only: bool = False
    ) -> ControllerResult[tuple[TopicResult, ...]]:
        """Add partitions to topics, in one batch; with `validate_only` only report whether that can be done. A topic
        named twice is refused, and answered once. A request for too many partitions in all is refused as a whole.

        Errors: UNKNOWN_TOPIC_OR_PARTITION (3), INVALID_TOPIC_EXCEPTION (17), INVALID_PARTITIONS (37),
        INVALID_REPLICATION_FACTOR (38), INVALID_REPLICA_ASSIGNMENT (39), INVALID_REQUEST (42), POLICY_VIOLATION (44).
        """
        return self._create(
            requests, lambda request: partitions_added(self.image, request), plan_partitions, validate_only
        )

    def _create(
        self,
        requests: Sequence[_New],
        count_partitions: Callable[[_New], int],
        plan_one: Callable[[ClusterImage, _New], Sequence[Record]],
        validate_only: bool,
    ) -> ControllerResult[tuple[TopicResult, ...]]:
        counts = Counter(request.name for request in requests)
        try:
            check_total(count_partitions(request) for request in requests if counts[request.name] == 1)
        except TopicRefused as refusal:
            return ControllerResult(self, tuple(TopicResult(name, refusal.error, str(refusal)) for name in counts))
        change = self._begin()
        results = []
        for name, request in {request.name: request for request in requests}.items():
            try:
                if counts[name] > 1:
                    raise TopicRefused(ErrorCode.invalid_request, "Duplicate topic name.")
                change.create(name, plan_one(change.image, request))
            except TopicRefused as refusal:
                results.append(TopicResult(name, refusal.error, str(refusal)))
            else:
                created = change.image.topics[name]
                results.append(TopicResult(name, ErrorCode.none, None, created, created.id))
        return ControllerResult(self, tuple(results)) if validate_only else self._result(change, tuple(results))

    def delete_topics(
        self, requested: Iterable[tuple[str | None, uuid.UUID | None]]
    ) -> ControllerResult[tuple[TopicResult, ...]]:
        """Delete topics, each given by its name or its id, in one batch. A topic given twice is refused, and
        answered once."""
        change, counts = self._begin(), Counter(requested)
        results = []
        for (name, topic_id), count in counts.items():
            topic = self.image.topics.get(name) if name is not None else self.image.topic_by_id(topic_id)
            by_both = topic is not None and (topic.name, None) in counts and (None, topic.id) in counts
            if by_both and topic_id is None:
                continue  # answered where its id is given
            if by_both or count > 1:
                given = topic.name if by_both and topic is not None else name
                message = "This topic is given more than once."
                results.append(TopicResult(given, ErrorCode.invalid_request, message, topic_id=topic_id))
            else:
                results.append(change.delete(name, topic_id))
        return self._result(change, tuple(results))

    def alter_config(
        self, name: str, changes: Sequence[ConfigChange], *, replaces: bool = False, validate_only: bool = False
    ) -> ControllerResult[TopicResult]:
        """Change the configuration of topic `name`, and the partitions as it requires. If it `replaces` the whole
        configuration, keys that are not in `changes` are deleted."""
        topic = self.image.topics.get(name)
        if topic is None:
            return ControllerResult(
                self, TopicResult(name, ErrorCode.unknown_topic_or_partition, "This topic does not exist.")
            )
        try:
            config = altered(topic, whole(topic.config, changes) if replaces else changes, self.settings.topics)
        except ConfigError as error:
            return ControllerResult(self, TopicResult(name, ErrorCode.invalid_config, str(error)))
        change = self._begin()
        if config != topic.config:
            change.configure(topic, config)
        result = TopicResult(name, ErrorCode.none, None, change.image.topics[name], topic.id)
        return ControllerResult(self, result) if validate_only else self._result(change, result)

    def alter_broker_config(
        self, broker_id: int, changes: Sequence[ConfigChange], *, replaces: bool = False, validate_only: bool = False
    ) -> ControllerResult[TopicResult]:
        """Change the throttles set on a broker, as `alter_config` does.

        Errors: BROKER_ID_NOT_REGISTERED (102), INVALID_REQUEST (42).
        """
        name = str(broker_id)
        if broker_id not in self.image.brokers:
            return ControllerResult(self, TopicResult(name, ErrorCode.broker_id_not_registered, "No such broker."))
        config = self.image.broker_configs.get(broker_id, FrozenMap())
        try:
            throttles = altered_throttles(config, whole(config, changes) if replaces else changes)
        except ConfigError as error:
            return ControllerResult(self, TopicResult(name, ErrorCode.invalid_request, str(error)))
        change = self._begin()
        if throttles != config:
            change.append(BrokerConfigRecord(broker_id, throttles))
        result = TopicResult(name, ErrorCode.none)
        return ControllerResult(self, result) if validate_only else self._result(change, result)

    def reassign(
        self, requested: Iterable[tuple[str, int, tuple[int, ...] | None]]
    ) -> ControllerResult[tuple[PartitionResult, ...]]:
        """Move each (topic, partition) to these replicas, or cancel its reassignment (None), in one batch."""
        change = self._begin()
        return self._result(change, tuple(change.reassign(topic, index, target) for topic, index, target in requested))

    def elect(
        self, requested: Iterable[tuple[str, int]] | None, *, unclean: bool
    ) -> ControllerResult[tuple[PartitionResult, ...]]:
        """Elect the preferred replica, or with `unclean` any replica where there is no leader. `requested` None: every
        partition.

        Errors: ELECTION_NOT_NEEDED (84), PREFERRED_LEADER_NOT_AVAILABLE (80), ELIGIBLE_LEADERS_NOT_AVAILABLE (83),
        UNKNOWN_TOPIC_OR_PARTITION (3).
        """
        change = self._begin()
        if requested is None:
            requested = [(topic.name, partition.index) for topic, partition in self.image.partitions()]
        return self._result(change, tuple(change.elect(topic, index, unclean) for topic, index in requested))

    def recoveries(self) -> tuple[UncleanRecovery, ...]:
        """The partitions that need an unclean recovery."""
        requested = (unclean_recovery.recovery_needed(topic, partition) for topic, partition in self.image.partitions())
        return tuple(recovery for recovery in requested if recovery is not None)

    def recover(
        self, topic: str, index: int, log_ends: Mapping[int, ReplicaLogEnd], *, overdue: bool
    ) -> ControllerResult[bool]:
        """Elect a leader by the log ends of replicas, if these suffice; the answer says whether one was elected.

        `overdue`: the time that a proactive recovery waits for all replicas is over.
        """
        change = self._begin()
        return self._result(change, change.recover(topic, index, log_ends, overdue=overdue))

    def _begin(self) -> MetadataChange:
        return MetadataChange(self.image, self.sessions, self.rules)

    def _result(self, change: MetadataChange, answer: A) -> ControllerResult[A]:
        state = replace(self, image=change.image, sessions=change.sessions)
        return ControllerResult(state, answer, tuple(change.records), tuple(change.trace))

    def _session(self, broker_id: int, now_ms: int) -> dict[str, int]:
        """The facts by which a session lasts or is over, for the trace."""
        session = self.sessions.get(broker_id)
        silent = {} if session is None else {"silent_ms": now_ms - session.contact_ms}
        return {**silent, "session_timeout_ms": self.settings.session_timeout_ms}

    def _has_session(self, broker_id: int, now_ms: int) -> bool:
        return broker_id in self.sessions and now_ms < self._session_end_ms(broker_id)

    def _session_end_ms(self, broker_id: int) -> int:
        return self.sessions[broker_id].contact_ms + self.settings.session_timeout_ms

    def _is_current(self, broker_id: int, broker_epoch: int) -> bool:
        broker = self.image.brokers.get(broker_id)
        return broker is not None and broker.epoch == broker_epoch
