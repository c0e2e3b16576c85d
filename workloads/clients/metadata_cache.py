"""The metadata cache of a client: addresses of brokers, and the leader of each partition with its epoch.

Brokers answer Metadata from the metadata that each has replayed so far, so an answer may be older than one before it. A
leader is therefore replaced only by one of the same or a newer leader epoch, as long as the topic id is the same
(KIP-320, KIP-951); another topic id is another topic, whose epochs begin again. A partition or topic that an answer
does not contain stays as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

UNKNOWN_EPOCH = -1


@dataclass(frozen=True, slots=True)
class Leader:
    """The leader of a partition in one leader epoch; `broker` is -1 while there is none."""

    broker: int
    epoch: int


@dataclass(slots=True)
class TopicMetadata:
    """The id of one topic and the leaders of its partitions."""

    id: UUID
    leaders: dict[int, Leader] = field(default_factory=dict)


@dataclass(slots=True)
class MetadataCache:
    """The state of the cluster as this client knows it; changed by `update` and `update_leader` only."""

    addresses: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Host and port of every broker that an answer named, by broker id; the address of the newest answer."""
    topics: dict[str, TopicMetadata] = field(default_factory=dict)
    updated_s: float | None = None
    """Time of the last answer, in the loop's time; None before the first."""

    def update(self, response: Any, now_s: float) -> None:
        """Merge a Metadata response (v12)."""
        self.updated_s = now_s
        for broker in response.brokers:
            self.addresses[int(broker.node_id)] = (str(broker.host), int(broker.port))
        for topic in response.topics:
            if topic.error_code != 0 or topic.name is None or topic.topic_id is None:
                continue
            known = self.topics.get(topic.name)
            if known is None or known.id != topic.topic_id:
                known = self.topics[str(topic.name)] = TopicMetadata(topic.topic_id)
            for partition in topic.partitions:
                leader = Leader(int(partition.leader_id), int(partition.leader_epoch))
                self._replace(known, int(partition.partition_index), leader)

    def update_leader(self, topic: str, partition: int, leader: Leader) -> None:
        """Merge the leader named in an error answer (KIP-951); one without epoch or address is ignored."""
        known = self.topics.get(topic)
        if known is not None and leader.epoch > UNKNOWN_EPOCH and leader.broker in self.addresses:
            self._replace(known, partition, leader)

    def leader(self, topic: str, partition: int) -> Leader | None:
        """The newest leader known; None when there is none, or none with a known address."""
        known = self.topics.get(topic)
        leader = known.leaders.get(partition) if known is not None else None
        return leader if leader is not None and leader.broker in self.addresses else None

    def topic_id(self, topic: str) -> UUID | None:
        """The id of a topic, once known."""
        known = self.topics.get(topic)
        return known.id if known is not None else None

    def leaders(self, topic: str) -> Mapping[int, Leader]:
        """Every partition's newest leader known, whether or not it is up; empty for an unknown topic."""
        known = self.topics.get(topic)
        return dict(known.leaders) if known is not None else {}

    @staticmethod
    def _replace(topic: TopicMetadata, partition: int, leader: Leader) -> None:
        known = topic.leaders.get(partition)
        if known is None or leader.epoch >= known.epoch:
            topic.leaders[partition] = leader
