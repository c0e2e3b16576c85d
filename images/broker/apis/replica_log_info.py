"""GetReplicaLogInfo, answered by a broker: how far the logs of its replicas reach."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kio.schema.errors import ErrorCode

from images.broker.metadata.image import ClusterImage, TopicImage
from images.broker.replication.replica import Replica
from images.broker.replication.replica_manager import ReplicaManager
from images.broker.runtime.server import Request
from images.wire.get_replica_log_info import GetReplicaLogInfoResponse, PartitionLogInfo, TopicPartitionLogInfo


class ReplicaLogInfoApi:
    """Tells of the replicas of one broker."""

    def __init__(
        self, replicas: ReplicaManager, image: Callable[[], ClusterImage], broker_epoch: Callable[[], int]
    ) -> None:
        self._replicas = replicas
        self._image = image
        self._broker_epoch = broker_epoch

    async def get(self, request: Request) -> GetReplicaLogInfoResponse:
        """GetReplicaLogInfo. Errors of a partition: UNKNOWN_TOPIC_ID (100), REPLICA_NOT_AVAILABLE (9)."""
        return GetReplicaLogInfoResponse(
            broker_epoch=self._broker_epoch(),
            topic_partition_log_info_list=tuple(self._of_topic(asked) for asked in request.body.topic_partitions),
        )

    def _of_topic(self, asked: Any) -> TopicPartitionLogInfo:
        topic = self._image().topic_by_id(asked.topic_id)
        return TopicPartitionLogInfo(
            topic_id=asked.topic_id,
            partition_log_info=tuple(self._of_partition(topic, index) for index in asked.partitions),
        )

    def _of_partition(self, topic: TopicImage | None, index: int) -> PartitionLogInfo:
        replica = self._replicas.get(topic.name, index) if topic is not None else None
        if replica is None:
            unknown = ErrorCode.unknown_topic_id if topic is None else ErrorCode.replica_not_available
            return _told(index, -1, -1, -1, unknown)
        return _told(index, last_epoch(replica), replica.state.leader_epoch, replica.log.end, ErrorCode.none)


def last_epoch(replica: Replica) -> int:
    """The leader epoch of the last record; where retention has left none, of the last one there was."""
    epochs = replica.log.epochs
    return epochs.epoch_at(replica.log.end - 1) if replica.log.end > replica.log.start else epochs.latest


def _told(index: int, written: int, current: int, end: int, error: ErrorCode) -> PartitionLogInfo:
    return PartitionLogInfo(
        partition=index,
        last_written_leader_epoch=written,
        current_leader_epoch=current,
        log_end_offset=end,
        error_code=error,
    )
