"""Creation of topics and partitions: validation, and placement of replicas.

Replicas are placed round robin over the active brokers: partition p takes the brokers from position `start + p` on, so
that leaders spread evenly. The first replica is the preferred leader. An explicit assignment is used unchanged; its
replicas must be registered, and the active ones form the first ISR. Partitions added to a topic have as many replicas
as its first one.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode

from images.broker.config import TOPIC_KEYS, ConfigError, parse_topic_config
from images.broker.frozen_map import FrozenMap
from images.broker.metadata.image import ClusterImage, PartitionImage, Record, TopicConfigRecord, TopicRecord
from images.broker.metadata.internal_topics import CLUSTER_METADATA_TOPIC, CONSUMER_OFFSETS_TOPIC
from images.broker.metadata.topic_names import is_legal_name, metric_name

PARTITIONS_MAX = 10_000
"""As many partitions a topic may have, and a request may add in all, as in Kafka: they are one batch of the metadata
log, which brokers read as a whole."""
CONFIG_VALUE_LENGTH_MAX = 32_767
"""As many characters the value of a topic's key may have, as in Kafka."""
RECORDED_KEYS = ("min.insync.replicas", "unclean.leader.election.enable", "unclean.recovery.strategy")
"""Topic keys that are always stored in the metadata, so that all nodes use the same values."""


class TopicRefused(Exception):
    """A topic cannot be created: Kafka's error, and one line for the user."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error


@dataclass(frozen=True, slots=True)
class TopicDefaults:
    """Defaults for values that a topic does not set."""

    partitions: int = 1
    replication_factor: int = 1
    config: FrozenMap[str, str] = field(default_factory=FrozenMap)
    """Cluster-wide values of topic keys, by topic name; Kafka's own default where a key is absent."""


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. The caller drew `topic_id` and `start` at random. -1 is the default."""

    name: str
    topic_id: uuid.UUID
    start: int = 0
    partitions: int = -1
    replication_factor: int = -1
    assignments: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """(partition, replicas) for each partition, or empty."""
    config: FrozenMap[str, str] = field(default_factory=FrozenMap)


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """The topic `name` is to have `count` partitions in all. The caller drew `start` at random."""

    name: str
    count: int
    start: int = 0
    assignments: tuple[tuple[int, ...], ...] | None = None
    """The replicas of each new partition, or None."""


def check_total(partitions: Iterable[int]) -> None:
    """Raises TopicRefused if a request adds too many partitions, given how many it adds to each topic."""
    total = sum(partitions)
    if total > PARTITIONS_MAX:
        raise TopicRefused(
            ErrorCode.policy_violation, f"{total} partitions in one request, at most {PARTITIONS_MAX} are allowed."
        )


def partitions_of(topic: NewTopic, defaults: TopicDefaults) -> int:
    """How many partitions `topic` asks for."""
    if topic.assignments:
        return len(topic.assignments)
    return defaults.partitions if topic.partitions == -1 else max(0, topic.partitions)


def partitions_added(image: ClusterImage, requested: NewPartitions) -> int:
    """How many partitions `requested` asks to add."""
    if requested.assignments is not None:
        return len(requested.assignments)
    topic = image.topics.get(requested.name)
    return max(0, requested.count - len(topic.partitions)) if topic is not None else 0


def plan(image: ClusterImage, topic: NewTopic, defaults: TopicDefaults) -> tuple[Record, ...]:
    """The records that create `topic`. Raises TopicRefused."""
    if topic.name == CLUSTER_METADATA_TOPIC or not is_legal_name(topic.name):
        raise TopicRefused(
            ErrorCode.invalid_topic_exception,
            f"Topic name {topic.name!r} is not 1 to 249 characters of a-z A-Z 0-9 . _ - or is reserved.",
        )
    if topic.name in image.topics:
        raise TopicRefused(ErrorCode.topic_already_exists, f"Topic '{topic.name}' already exists.")
    same_metrics = [name for name in image.topics if metric_name(name) == metric_name(topic.name)]
    if same_metrics:
        raise TopicRefused(
            ErrorCode.invalid_topic_exception,
            f"Topic '{topic.name}' collides with existing topic: {same_metrics[0]}",
        )
    config = _config(topic, defaults)
    replicas = _explicit(image, topic) if topic.assignments else _round_robin(image, topic, defaults)
    return (
        TopicRecord(topic.name, topic.topic_id),
        TopicConfigRecord(topic.name, config),
        *(_new_partition(image, topic.name, topic.topic_id, index, members) for index, members in enumerate(replicas)),
    )


def plan_partitions(image: ClusterImage, requested: NewPartitions) -> tuple[PartitionImage, ...]:
    """The partitions that are added to an existing topic. Raises TopicRefused."""
    topic = image.topics.get(requested.name)
    if topic is None:
        raise TopicRefused(ErrorCode.unknown_topic_or_partition, "This topic does not exist.")
    if topic.name == CONSUMER_OFFSETS_TOPIC:
        raise TopicRefused(ErrorCode.invalid_topic_exception, "Groups are hashed to the partitions of this topic.")
    first, added = len(topic.partitions), requested.count - len(topic.partitions)
    if added <= 0:
        raise TopicRefused(
            ErrorCode.invalid_partitions,
            f"The topic has {first} partitions; {requested.count} would not be an increase.",
        )
    factor = len(topic.partitions[0].replicas)
    if requested.assignments is not None and len(requested.assignments) != added:
        raise TopicRefused(
            ErrorCode.invalid_replica_assignment,
            f"{added} partitions are added, and there are assignments for {len(requested.assignments)}.",
        )
    if requested.count > PARTITIONS_MAX:
        raise TopicRefused(
            ErrorCode.policy_violation,
            f"Number of partitions is {requested.count}, at most {PARTITIONS_MAX} are allowed.",
        )
    if requested.assignments is None:
        replicas = _placed(image, requested.start + first, added, factor)
    else:
        for index, members in enumerate(requested.assignments, start=first):
            _check_assignment(image, index, members, factor)
        replicas = requested.assignments
    return tuple(
        _new_partition(image, topic.name, topic.id, index, members) for index, members in enumerate(replicas, first)
    )


def _config(topic: NewTopic, defaults: TopicDefaults) -> FrozenMap[str, str]:
    try:
        parse_topic_config(topic.config)
        check_lengths(topic.config)
    except ConfigError as error:
        raise TopicRefused(ErrorCode.invalid_config, str(error)) from None
    recorded = {name: config_text(defaults.config.get(name, TOPIC_KEYS[name].default)) for name in RECORDED_KEYS}
    return FrozenMap(recorded | {name: config_text(value) for name, value in topic.config.items()})


def check_lengths(config: Mapping[str, str]) -> None:
    """Raises ConfigError if a value is too long to be stored in the metadata."""
    for name, value in config.items():
        if len(value) > CONFIG_VALUE_LENGTH_MAX:
            raise ConfigError(f"{name}: {len(value)} characters, at most {CONFIG_VALUE_LENGTH_MAX} are stored")


def config_text(value: object) -> str:
    """A configuration value as stored in the metadata."""
    text = str(value).strip()
    return text.lower() if text.lower() in ("true", "false") else text


def _round_robin(image: ClusterImage, topic: NewTopic, defaults: TopicDefaults) -> Sequence[tuple[int, ...]]:
    count = defaults.partitions if topic.partitions == -1 else topic.partitions
    factor = defaults.replication_factor if topic.replication_factor == -1 else topic.replication_factor
    if count < 1:
        raise TopicRefused(ErrorCode.invalid_partitions, f"Number of partitions is {count}, at least 1 is needed.")
    return _placed(image, topic.start, count, factor)


def _placed(image: ClusterImage, start: int, count: int, factor: int) -> Sequence[tuple[int, ...]]:
    """Replicas of `count` partitions: the leader of the first is the active broker at position `start`."""
    active = [broker.id for broker in image.brokers.values() if broker.active]
    if not 1 <= factor <= len(active):
        raise TopicRefused(
            ErrorCode.invalid_replication_factor,
            f"Replication factor is {factor}, with {len(active)} brokers unfenced.",
        )
    return [
        tuple(active[(start + index + position) % len(active)] for position in range(factor)) for index in range(count)
    ]


def _explicit(image: ClusterImage, topic: NewTopic) -> Sequence[tuple[int, ...]]:
    if topic.partitions != -1 or topic.replication_factor != -1:
        raise TopicRefused(
            ErrorCode.invalid_request, "With an assignment, partitions and replication factor must be -1."
        )
    assignments = sorted(topic.assignments)
    if [index for index, _ in assignments] != list(range(len(assignments))):
        raise TopicRefused(ErrorCode.invalid_replica_assignment, "Partitions must be numbered 0, 1, 2 … once each.")
    for index, replicas in assignments:
        _check_assignment(image, index, replicas, len(assignments[0][1]))
    return [replicas for _, replicas in assignments]


def _check_assignment(image: ClusterImage, index: int, replicas: tuple[int, ...], factor: int) -> None:
    """Raises TopicRefused unless partition `index` may have these replicas; the topic's first has `factor`."""
    problem = (
        assignment_problem(image, replicas)
        or ("all its brokers are fenced" if not any(map(image.is_active, replicas)) else "")
        or ("it has more or fewer replicas than the first" if len(replicas) != factor else "")
    )
    if problem:
        raise TopicRefused(ErrorCode.invalid_replica_assignment, f"Partition {index}: {problem}.")


def assignment_problem(image: ClusterImage, replicas: tuple[int, ...]) -> str:
    """Why no partition may have these replicas; empty if one may."""
    if not replicas:
        return "it has no replicas"
    if len(set(replicas)) < len(replicas):
        return "a broker stands twice in it"
    unknown = [replica for replica in replicas if replica not in image.brokers]
    return f"broker {unknown[0]} is not registered" if unknown else ""


def _new_partition(
    image: ClusterImage, topic: str, topic_id: uuid.UUID, index: int, replicas: tuple[int, ...]
) -> PartitionImage:
    isr = tuple(replica for replica in replicas if image.is_active(replica))
    return PartitionImage(
        topic=topic,
        topic_id=topic_id,
        index=index,
        replicas=replicas,
        isr=isr,
        elr=(),
        last_known_elr=(),
        leader=isr[0],
        leader_epoch=0,
        partition_epoch=0,
    )
