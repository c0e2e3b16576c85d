"""GetReplicaLogInfo: how far the logs of this broker's replicas reach, for an unclean recovery (KIP-966)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kio.schema.errors import ErrorCode

from images.broker.metadata.image import ClusterImage, TopicImage
from images.broker.replication.replica import Replica
from images.broker.replication.replica_manager import ReplicaManager
from images.broker.runtime.server import Handler, Request
from images.wire.get_replica_log_info import (
    GetReplicaLogInfoRequest,
    GetReplicaLogInfoResponse,
    PartitionLogInfo,
    TopicPartitionLogInfo,
)
from images.wire.messages import Api


class ReplicaLogInfoApis:
    """The handler of one broker. `image` returns the metadata that this broker has applied."""

    def __init__(
        self, replica_manager: ReplicaManager, image: Callable[[], ClusterImage], broker_epoch: Callable[[], int]
    ) -> None:
        self._replica_manager = replica_manager
        self._image = image
        self._broker_epoch = broker_epoch

    def handlers(self) -> dict[Api, Handler]:
        """The handler of each API."""
        return {Api.GET_REPLICA_LOG_INFO: self.get_replica_log_info}

    async def get_replica_log_info(self, request: Request[GetReplicaLogInfoRequest]) -> GetReplicaLogInfoResponse:
        """Errors of a partition: UNKNOWN_TOPIC_ID (100), REPLICA_NOT_AVAILABLE (9)."""
        return GetReplicaLogInfoResponse(
            broker_epoch=self._broker_epoch(),
            topic_partition_log_info_list=tuple(
                self._topic_log_info(requested) for requested in request.body.topic_partitions
            ),
        )

    def _topic_log_info(self, requested: Any) -> TopicPartitionLogInfo:
        topic = self._image().topic_by_id(requested.topic_id)
        return TopicPartitionLogInfo(
            topic_id=requested.topic_id,
            partition_log_info=tuple(self._partition_log_info(topic, index) for index in requested.partitions),
        )

    def _partition_log_info(self, topic: TopicImage | None, index: int) -> PartitionLogInfo:
        replica = self._replica_manager.get(topic.name, index) if topic is not None else None
        return PartitionLogInfo(
            partition=index,
            last_written_leader_epoch=last_epoch(replica) if replica is not None else -1,
            current_leader_epoch=replica.state.leader_epoch if replica is not None else -1,
            log_end_offset=replica.log.end if replica is not None else -1,
            error_code=ErrorCode.none
            if replica is not None
            else ErrorCode.unknown_topic_id
            if topic is None
            else ErrorCode.replica_not_available,
        )


def last_epoch(replica: Replica) -> int:
    """The leader epoch of the last record. If retention has left none, the latest epoch of the epoch cache; -1 where it
    does not have that of the last deleted record."""
    epochs = replica.log.epochs
    return epochs.epoch_at(replica.log.end - 1) if replica.log.end > replica.log.start else epochs.latest
