"""A controller under test, with its clock, its log and the brokers' side of the conversation in a few words."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from kio.schema.errors import ErrorCode

from images.broker.controller.alter_partition import AlterPartition, AlterPartitionAnswer, IsrProposal
from images.broker.controller.controller import Controller, ControllerResult, ControllerSettings
from images.broker.controller.placement import NewTopic, TopicDefaults
from images.broker.controller.requests import Heartbeat, HeartbeatAnswer, Registration, RegistrationAnswer, TopicResult
from images.broker.frozen_map import FrozenMap
from images.broker.metadata.image import ClusterImage, PartitionImage, Record
from images.broker.rules import Rules
from images.trace import TraceEvent

TIMEOUT_MS = 1000
TOPIC = "orders"
TOPIC_ID = uuid.UUID(int=70)
OTHER_ID = uuid.UUID(int=71)
ASSIGNED = {"partitions": -1, "replication_factor": -1}
SETTINGS = ControllerSettings(session_timeout_ms=TIMEOUT_MS, topics=TopicDefaults(), producer_id_block_size=1000)


class Driver:
    """Feeds one controller, committing every step at once, and remembers what it wrote and traced."""

    def __init__(self, *off: str) -> None:
        self.controller = Controller(SETTINGS, Rules().without(off))
        self.now_ms = 0
        self.log: list[Record] = []
        self.trace: list[TraceEvent] = []
        self.incarnations: dict[int, int] = {}

    def commit(self, step: ControllerResult[Any]) -> Any:
        self.log.extend(step.records)
        self.trace.extend(step.trace)
        self.controller = step.state
        return step.answer

    @property
    def image(self) -> ClusterImage:
        return self.controller.image

    @property
    def partition(self) -> PartitionImage:
        found = self.image.partition(TOPIC, 0)
        assert found is not None
        return found

    def epoch(self, broker: int) -> int:
        return self.image.brokers[broker].epoch

    def register(self, broker: int, previous_epoch: int = -1, incarnation: str | None = None) -> RegistrationAnswer:
        """A new process of the broker registers, unless `incarnation` names an old one."""
        if incarnation is None:
            self.incarnations[broker] = self.incarnations.get(broker, 0) + 1
            incarnation = f"{broker}/{self.incarnations[broker]}"
        request = Registration(broker, incarnation, f"b{broker}", 9092, previous_epoch)
        answer: RegistrationAnswer = self.commit(self.controller.register(request, self.now_ms))
        return answer

    def beat(
        self,
        broker: int,
        *,
        epoch: int | None = None,
        metadata_offset: int | None = None,
        want_fence: bool = False,
        want_shut_down: bool = False,
    ) -> HeartbeatAnswer:
        """A heartbeat of the registered process, up to date with the metadata by default."""
        request = Heartbeat(
            broker,
            self.epoch(broker) if epoch is None else epoch,
            self.image.offset - 1 if metadata_offset is None else metadata_offset,
            want_fence,
            want_shut_down,
        )
        answer: HeartbeatAnswer = self.commit(self.controller.heartbeat(request, self.now_ms))
        return answer

    def start(self, *brokers: int) -> None:
        """Each broker registers and is unfenced."""
        for broker in brokers:
            assert self.register(broker).error is ErrorCode.none
            assert not self.beat(broker).fenced

    def fence(self, *brokers: int) -> None:
        """Each broker in turn falls silent for a session timeout while the other unfenced ones do not."""
        for silent in brokers:
            others = [b.id for b in self.image.brokers.values() if not b.fenced and b.id != silent]
            self.now_ms += TIMEOUT_MS
            for other in others:
                self.beat(other)
            self.commit(self.controller.tick(self.now_ms))
            assert self.image.brokers[silent].fenced

    def topic(self, *replicas: int, min_isr: int = 1, unclean: bool = False, recovery: str = "manual") -> None:
        """A topic of one partition on these replicas."""
        config = {
            "min.insync.replicas": str(min_isr),
            "unclean.leader.election.enable": str(unclean).lower(),
        }
        if recovery:
            config["unclean.recovery.strategy"] = recovery
        new = NewTopic(TOPIC, TOPIC_ID, assignments=((0, replicas),), config=FrozenMap(config))
        (result,) = self.commit(self.controller.create_topics([new]))
        assert result.error is ErrorCode.none, result.message

    def proposal(self, *isr: int, **changed: Any) -> IsrProposal:
        """The current leader's proposal of this ISR; keywords replace fields of it."""
        known = self.partition
        given: dict[str, Any] = {
            "topic_id": TOPIC_ID,
            "index": 0,
            "leader_epoch": known.leader_epoch,
            "partition_epoch": known.partition_epoch,
            "members": tuple((member, self.epoch(member)) for member in isr),
        }
        return IsrProposal(**given | changed)

    def send(self, proposal: IsrProposal, *, sender: int | None = None, epoch: int | None = None) -> ErrorCode:
        """Send a proposal, from the leader by default; returns the error of the request or of the proposal."""
        sender = self.partition.leader if sender is None else sender
        request = AlterPartition(sender, self.epoch(sender) if epoch is None else epoch, (proposal,))
        answer: AlterPartitionAnswer = self.commit(self.controller.alter_partition(request))
        return answer.error if answer.error is not ErrorCode.none else answer.results[0].error

    def events(self, kind: str) -> list[TraceEvent]:
        return [event for event in self.trace if event.kind == kind]


def state(partition: PartitionImage) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Leader, ISR, ELR."""
    return partition.leader, partition.isr, partition.elr


def replayed(records: list[Record]) -> ClusterImage:
    return ClusterImage().apply_all(records, 0)


def changed(driver: Driver, act: Callable[[], object]) -> bool:
    """Whether `act` wrote anything."""
    before = len(driver.log)
    act()
    return len(driver.log) > before


def partition_of_three() -> Driver:
    """Brokers 1, 2, 3 and 4; a partition on the first three, led by 2 in a second leader epoch, 1 back and unfenced."""
    driver = Driver()
    driver.start(1, 2, 3, 4)
    driver.topic(1, 2, 3)
    driver.fence(1)
    driver.beat(1)
    assert state(driver.partition) == (2, (2, 3), ())
    return driver


def create_topics(driver: Driver, *topics: NewTopic, validate_only: bool = False) -> tuple[TopicResult, ...]:
    results: tuple[TopicResult, ...] = driver.commit(
        driver.controller.create_topics(topics, validate_only=validate_only)
    )
    return results


def new_topic(name: str = TOPIC, **given: Any) -> NewTopic:
    return NewTopic(name, given.pop("topic_id", TOPIC_ID), **{"partitions": 1, "replication_factor": 1} | given)
