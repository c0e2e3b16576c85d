"""The cluster's metadata: the records of the metadata log and the image they add up to.

The metadata log is the cluster's single source of truth (Kafka Replication Correctness §6.3). Each record is JSON
inside a real v2 record batch; all records of one change share one batch, so that a crash or a fetch sees the whole
change or nothing of it. Brokers and controllers build the same `ClusterImage` by applying records in offset order, and
replaying a log always gives the same image.

record              meaning
------------------  --------------------------------------------------------------------------------------------------
RegisterBroker      a new incarnation of a broker; its broker epoch is this record's offset, and it starts fenced
ChangeBroker        a registered broker is fenced, unfenced or shutting down; its broker epoch stays
TopicRecord         a topic comes into being, without configuration or partitions yet
TopicConfigRecord   the topic's whole configuration, replacing the earlier one; the keys that decide elections are
                    always in it, so that all nodes go by the same values
PartitionRecord     a partition's whole state, new or changed
BrokerConfigRecord  the throttles set on a broker, replacing the earlier ones
RemoveTopic         the topic and its partitions are gone
ProducerIdsBlock    producer ids below `next_producer_id` are given away
LeaderChange        a controller takes charge in a new controller epoch; the first record of each, without effect
NoOp                nothing changes; its commit shows that the metadata before it was the newest
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from images.broker.frozen_map import FrozenMap


class MetadataError(ValueError):
    """A metadata record that cannot be read, or that contradicts the records before it."""


@dataclass(frozen=True, slots=True)
class RegisterBroker:
    """A new incarnation of broker `id`, reachable at `host`:`port`. Its offset becomes the broker epoch, but in a
    snapshot, where `epoch` says which that was."""

    id: int
    incarnation: str
    host: str
    port: int
    epoch: int = -1


@dataclass(frozen=True, slots=True)
class ChangeBroker:
    """The new state of broker `id` in broker epoch `epoch`."""

    id: int
    epoch: int
    fenced: bool
    shutting_down: bool


@dataclass(frozen=True, slots=True)
class BrokerConfigRecord:
    """All that is set on broker `id` while it runs, Kafka's names and text values."""

    id: int
    config: FrozenMap[str, str]


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic is created."""

    name: str
    topic_id: uuid.UUID


@dataclass(frozen=True, slots=True)
class TopicConfigRecord:
    """The whole configuration of a topic, Kafka's names and text values."""

    name: str
    config: FrozenMap[str, str]


@dataclass(frozen=True, slots=True)
class RemoveTopic:
    """A topic is deleted."""

    name: str
    topic_id: uuid.UUID


@dataclass(frozen=True, slots=True)
class ProducerIdsBlock:
    """Producer ids up to, not including, `next_producer_id` have been given to brokers."""

    next_producer_id: int


@dataclass(frozen=True, slots=True)
class LeaderChange:
    """Controller `leader` takes charge in controller epoch `epoch`."""

    leader: int
    epoch: int


@dataclass(frozen=True, slots=True)
class NoOp:
    """Nothing changes."""


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """One partition as the controller committed it.

    `replicas` is in order of preference; `isr`, `elr` and `last_known_elr` keep that order, so that equal sets are
    equal values. `leader` is NO_LEADER when nobody leads.
    """

    topic: str
    topic_id: uuid.UUID
    index: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    elr: tuple[int, ...]
    last_known_elr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    adding: tuple[int, ...] = ()
    """Replicas of the target of a reassignment under way that were none before."""
    removing: tuple[int, ...] = ()
    """Replicas that will be none once the reassignment is complete."""

    @property
    def reassigning(self) -> bool:
        """Whether a reassignment is under way."""
        return bool(self.adding or self.removing)


PartitionRecord = PartitionImage
"""A partition's record is its whole state."""

Record = (
    RegisterBroker
    | ChangeBroker
    | BrokerConfigRecord
    | TopicRecord
    | TopicConfigRecord
    | PartitionImage
    | RemoveTopic
    | ProducerIdsBlock
    | LeaderChange
    | NoOp
)

_TYPES: Mapping[str, type[Any]] = {
    "RegisterBroker": RegisterBroker,
    "ChangeBroker": ChangeBroker,
    "BrokerConfigRecord": BrokerConfigRecord,
    "TopicRecord": TopicRecord,
    "TopicConfigRecord": TopicConfigRecord,
    "PartitionRecord": PartitionImage,
    "RemoveTopic": RemoveTopic,
    "ProducerIdsBlock": ProducerIdsBlock,
    "LeaderChange": LeaderChange,
    "NoOp": NoOp,
}
_NAMES: Mapping[type[Any], str] = {kind: name for name, kind in _TYPES.items()}


def encode(record: Record) -> bytes:
    """The value of the Kafka record that carries `record`."""
    content = {"type": _NAMES[type(record)]} | {item.name: getattr(record, item.name) for item in fields(record)}
    return json.dumps(content, default=_plain, separators=(",", ":")).encode()


def decode(value: bytes) -> Record:
    """The record a Kafka record's value carries. Raises MetadataError when it is not one of ours."""
    try:
        content = json.loads(value)
        kind = _TYPES[content.pop("type")]
        return kind(**{name: _rich(name, item) for name, item in content.items()})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise MetadataError(f"not a metadata record: {value[:200]!r}") from error


def _plain(value: object) -> object:
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, FrozenMap):
        return dict(value)
    raise TypeError(f"a metadata record cannot hold {value!r}")


def _rich(name: str, value: object) -> object:
    if name == "topic_id":
        return uuid.UUID(str(value))
    if isinstance(value, dict):
        return FrozenMap(value)
    if isinstance(value, list):
        return tuple(value)
    return value


@dataclass(frozen=True, slots=True)
class BrokerImage:
    """One registered broker. `epoch` is its broker epoch. `incarnation` differs from one process of it to the next, but
    for one that had not heard of its registration when it stopped cleanly: the next one has its incarnation."""

    id: int
    epoch: int
    incarnation: str
    host: str
    port: int
    fenced: bool
    shutting_down: bool

    @property
    def active(self) -> bool:
        """Whether it may lead partitions and be in an ISR."""
        return not self.fenced and not self.shutting_down


@dataclass(frozen=True, slots=True)
class TopicImage:
    """One topic. `partitions[i].index == i`."""

    name: str
    id: uuid.UUID
    config: FrozenMap[str, str] = field(default_factory=FrozenMap)
    partitions: tuple[PartitionImage, ...] = ()

    def min_isr(self, partition: PartitionImage) -> int:
        """The effective `min.insync.replicas` of one of its partitions: never more than it has replicas."""
        return self.min_isr_of(len(partition.replicas))

    def min_isr_of(self, replicas: int) -> int:
        """The effective `min.insync.replicas` of a partition with so many replicas."""
        return min(int(self.config["min.insync.replicas"]), replicas)

    @property
    def unclean_election(self) -> bool:
        """Whether a replica that may lack committed records may lead when nobody else can."""
        return self.config["unclean.leader.election.enable"] == "true"


@dataclass(frozen=True, slots=True)
class ClusterImage:
    """Everything the metadata log says up to, not including, `offset`. A value: `apply` returns a new one."""

    offset: int = 0
    brokers: FrozenMap[int, BrokerImage] = field(default_factory=FrozenMap)
    topics: FrozenMap[str, TopicImage] = field(default_factory=FrozenMap)
    next_producer_id: int = 0
    broker_configs: FrozenMap[int, FrozenMap[str, str]] = field(default_factory=FrozenMap)
    """Settings of each broker that were set while it runs; a broker without an entry has none."""
    _names: FrozenMap[int, str] = field(default_factory=FrozenMap, repr=False, compare=False)
    """Topic names by the number that the id is: a UUID hashes and compares in Python, and every fetch looks here."""

    def topic_by_id(self, topic_id: uuid.UUID | None) -> TopicImage | None:
        """The topic with this id, or None."""
        name = self._names.get(topic_id.int) if topic_id is not None else None
        return None if name is None else self.topics[name]

    def partition(self, topic: str, index: int) -> PartitionImage | None:
        """One partition, or None when the topic or the partition does not exist."""
        image = self.topics.get(topic)
        return image.partitions[index] if image is not None and 0 <= index < len(image.partitions) else None

    def partitions(self) -> Iterator[tuple[TopicImage, PartitionImage]]:
        """Every partition with its topic, by topic name and index."""
        for topic in self.topics.values():
            for partition in topic.partitions:
                yield topic, partition

    def is_active(self, broker_id: int) -> bool:
        """Whether the broker is registered, unfenced and not shutting down."""
        broker = self.brokers.get(broker_id)
        return broker is not None and broker.active

    def apply(self, record: Record, offset: int) -> ClusterImage:
        """This image with the record at `offset` applied. Raises MetadataError when it does not fit."""
        if offset < self.offset:
            raise MetadataError(f"record at offset {offset} applied after offset {self.offset - 1}")
        image = replace(self, offset=offset + 1)
        if isinstance(record, PartitionImage):
            return _with_partition(image, record)
        if isinstance(record, RegisterBroker):
            epoch = record.epoch if record.epoch >= 0 else offset
            broker = BrokerImage(
                record.id, epoch, record.incarnation, record.host, record.port, fenced=True, shutting_down=False
            )
            return replace(image, brokers=image.brokers.set(record.id, broker))
        if isinstance(record, ChangeBroker):
            return _with_broker_change(image, record)
        if isinstance(record, BrokerConfigRecord):
            return replace(image, broker_configs=image.broker_configs.set(record.id, record.config))
        if isinstance(record, TopicRecord):
            if record.name in image.topics:
                raise MetadataError(f"topic {record.name} is created twice")
            topic = TopicImage(record.name, record.topic_id)
            return _with_topic(image, topic)
        if isinstance(record, TopicConfigRecord):
            return _with_topic(image, replace(_known_topic(image, record.name), config=record.config))
        if isinstance(record, RemoveTopic):
            _known_topic(image, record.name)
            return replace(
                image, topics=image.topics.remove(record.name), _names=image._names.remove(record.topic_id.int)
            )
        if isinstance(record, LeaderChange | NoOp):
            return image
        return replace(image, next_producer_id=record.next_producer_id)

    def apply_all(self, records: Sequence[Record], base_offset: int) -> ClusterImage:
        """This image with consecutive records applied, the first of them at `base_offset`."""
        image = self
        for position, record in enumerate(records):
            image = image.apply(record, base_offset + position)
        return image


def _known_topic(image: ClusterImage, name: str) -> TopicImage:
    topic = image.topics.get(name)
    if topic is None:
        raise MetadataError(f"record for topic {name}, which does not exist")
    return topic


def _with_topic(image: ClusterImage, topic: TopicImage) -> ClusterImage:
    names = image._names if image._names.get(topic.id.int) == topic.name else image._names.set(topic.id.int, topic.name)
    return replace(image, topics=image.topics.set(topic.name, topic), _names=names)


def _with_broker_change(image: ClusterImage, record: ChangeBroker) -> ClusterImage:
    broker = image.brokers.get(record.id)
    if broker is None or broker.epoch != record.epoch:
        raise MetadataError(f"change of broker {record.id} in epoch {record.epoch}, which is not registered")
    changed = replace(broker, fenced=record.fenced, shutting_down=record.shutting_down)
    return replace(image, brokers=image.brokers.set(record.id, changed))


def _with_partition(image: ClusterImage, partition: PartitionImage) -> ClusterImage:
    topic = _known_topic(image, partition.topic)
    if topic.id != partition.topic_id or partition.index > len(topic.partitions):
        raise MetadataError(f"record for {partition.topic}-{partition.index}, which does not fit the topic")
    partitions = (*topic.partitions[: partition.index], partition, *topic.partitions[partition.index + 1 :])
    return _with_topic(image, replace(topic, partitions=partitions))
