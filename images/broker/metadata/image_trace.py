"""Metadata in the trace: the fields of a partition, and the events for metadata that a node has not read record by
record as it was decided, or tells a client."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Final

from kio.schema.describe_topic_partitions.v0.response import (
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from kio.schema.metadata.v12.request import MetadataRequest
from kio.schema.metadata.v12.response import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic

from images.broker.metadata.image import ClusterImage, PartitionImage, TopicImage
from images.trace import TraceEvent

TOPICS_TOLD_MAX: Final = 1_000
"""Answers about more topics, which take long enough without, are not traced."""


def metadata_loaded(image: ClusterImage, epoch: int) -> TraceEvent:
    """The event for an image that ends with a record of controller `epoch`: loaded from a snapshot, or replayed by a
    controller that takes charge."""
    partitions = {
        f"{topic.name}-{partition.index}": _partition(topic, partition) for topic, partition in image.partitions()
    }
    brokers = {
        str(broker.id): {"epoch": broker.epoch, "fenced": broker.fenced, "shutting_down": broker.shutting_down}
        for broker in image.brokers.values()
    }
    topics = {topic.name: _topic(topic) for topic in image.topics.values()}
    detail = {
        "partitions": partitions,
        "brokers": brokers,
        "topics": topics,
        "next_producer_id": image.next_producer_id,
    }
    return TraceEvent("metadata_loaded", leader_epoch=epoch, log_end=image.offset, detail=detail)


def applied_detail(image: ClusterImage) -> dict[str, object]:
    """Sums that tell an image from most others; they are cheap, since brokers apply metadata all the time."""
    partitions = [partition for topic in image.topics.values() for partition in topic.partitions]
    return {
        "partitions": len(partitions),
        "partition_epochs": sum(partition.partition_epoch for partition in partitions),
        "leader_epochs": sum(partition.leader_epoch for partition in partitions),
        "broker_epochs": sum(broker.epoch for broker in image.brokers.values()),
        "active": sorted(broker.id for broker in image.brokers.values() if broker.active),
    }


def _partition(topic: TopicImage, partition: PartitionImage) -> dict[str, object]:
    """All that a `partition_changed` has, too."""
    return {
        "leader": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "partition_epoch": partition.partition_epoch,
        "isr": list(partition.isr),
        **_partition_detail(topic, partition),
    }


def topic_configured(topic: TopicImage) -> TraceEvent:
    """The event for a topic that is created, or gets another configuration."""
    return TraceEvent("topic_configured", detail={"name": topic.name, **_topic(topic)})


def _topic(topic: TopicImage) -> dict[str, object]:
    return {"id": str(topic.id), "config": dict(topic.config)}


def partitions_deleted(topic: TopicImage) -> list[TraceEvent]:
    """An event for each partition of a topic that is deleted."""
    id = str(topic.id)
    return [TraceEvent("partition_deleted", topic.name, each.index, topic_id=id) for each in topic.partitions]


def partition_changed(topic: TopicImage | None, partition: PartitionImage, **detail: object) -> TraceEvent:
    """The event for a partition that is created or changed; `topic` is None once it is deleted."""
    return TraceEvent(
        "partition_changed",
        topic=partition.topic,
        partition=partition.index,
        leader=partition.leader,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        members=partition.isr,
        detail={**_partition_detail(topic, partition), **detail},
        topic_id=str(partition.topic_id),
    )


def _partition_detail(topic: TopicImage | None, partition: PartitionImage) -> dict[str, object]:
    """The facts about a partition that have no column of their own in the trace."""
    return {
        "elr": list(partition.elr),
        "last_known_elr": list(partition.last_known_elr),
        "replicas": list(partition.replicas),
        "adding": list(partition.adding),
        "removing": list(partition.removing),
        "min_isr": topic.min_isr(partition) if topic is not None else 1,
    }


def metadata_told(request: MetadataRequest, response: MetadataResponse, offset: int) -> TraceEvent:
    """The event for a Metadata answer from an image that ends at `offset`."""
    asked = None if request.topics is None else [topic.name for topic in request.topics if topic.name is not None]
    brokers = sorted(broker.node_id for broker in response.brokers)
    return TraceEvent(
        "metadata_told", log_end=offset, detail={"asked": asked, "topics": _told(response.topics), "brokers": brokers}
    )


def topics_told(asked: Set[str] | None, response: DescribeTopicPartitionsResponse, offset: int) -> TraceEvent:
    """… and for one to DescribeTopicPartitions, about these topics, or all of them."""
    detail = {"asked": asked if asked is None else sorted(asked), "topics": _told(response.topics)}
    return TraceEvent("metadata_told", log_end=offset, detail=detail)


def _told(topics: Iterable[MetadataResponseTopic | DescribeTopicPartitionsResponseTopic]) -> list[object]:
    return [
        [topic.name, topic.error_code.name, str(topic.topic_id), [_told_partition(each) for each in topic.partitions]]
        for topic in topics
        if topic.name is not None
    ]


def _told_partition(
    partition: MetadataResponsePartition | DescribeTopicPartitionsResponsePartition,
) -> dict[str, object]:
    told = {
        "partition": partition.partition_index,
        "error": partition.error_code.name,
        "leader": partition.leader_id,
        "leader_epoch": partition.leader_epoch,
        "replicas": list(partition.replica_nodes),
        "isr": list(partition.isr_nodes),
        "offline": list(partition.offline_replicas),
    }
    if isinstance(partition, DescribeTopicPartitionsResponsePartition):
        told["elr"] = list(partition.eligible_leader_replicas or ())
        told["last_known_elr"] = list(partition.last_known_elr or ())
    return told
