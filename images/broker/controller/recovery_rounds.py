"""Unclean recovery by the active controller: rounds of GetReplicaLogInfo (KIP-966).

While a partition needs an unclean recovery, the log ends of its active candidate replicas are requested, and the
controller elects a leader if they suffice (`unclean_recovery.py`). Between rounds only the start time of the recovery
is kept; nothing is written to the metadata log, so a new active controller starts over.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from images.broker.controller.controller import Controller, ControllerResult
from images.broker.controller.unclean_recovery import ReplicaLogEnd, UncleanRecovery
from images.broker.metadata.image import BrokerImage, ClusterImage
from images.wire.connection import Connection, ConnectionLost
from images.wire.get_replica_log_info import GetReplicaLogInfoRequest, TopicPartitions

Decide = Callable[[Callable[[Controller, int], ControllerResult[bool]]], Awaitable[bool]]
LogEnds = Mapping[tuple[str, int], Mapping[int, ReplicaLogEnd]]
"""Log ends of each (topic, partition), by replica."""


@dataclass(frozen=True, slots=True)
class RecoveryTimeouts:
    """Timeouts in seconds."""

    request_timeout_s: float
    """For a broker to connect and to respond."""
    interval_s: float
    """Pause between two rounds."""
    proactive_timeout_s: float
    """`unclean.recovery.timeout.ms`."""


class RecoveryRounds:
    """Runs rounds while any partition needs recovery."""

    def __init__(
        self, client_id: str, state: Callable[[], Controller], decide: Decide, timeouts: RecoveryTimeouts
    ) -> None:
        self._client_id = client_id
        self._state = state
        self._decide = decide
        self._timeouts = timeouts
        self._change = asyncio.Event()

    def metadata_changed(self) -> None:
        """The metadata has changed: check again for partitions to recover."""
        self._change.set()

    async def run(self) -> None:
        """Run rounds for ever."""
        clock = asyncio.get_running_loop().time
        since: dict[tuple[str, int, int], float] = {}
        while True:
            self._change.clear()
            recoveries = self._state().recoveries()
            keys = [(recovery.topic, recovery.index, recovery.leader_epoch) for recovery in recoveries]
            since = {key: since.get(key, clock()) for key in keys}
            if not recoveries:
                await self._change.wait()
                continue
            log_ends = await self._ask_all(recoveries, self._state().image)
            for key, recovery in zip(keys, recoveries, strict=True):
                logs, overdue = log_ends.get(key[:2], {}), clock() - since[key] >= self._timeouts.proactive_timeout_s
                if logs:
                    await self._decide(_recover(recovery, logs, overdue))
            await asyncio.sleep(self._timeouts.interval_s)

    async def _ask_all(self, recoveries: Sequence[UncleanRecovery], image: ClusterImage) -> LogEnds:
        """One round: one request to each broker, all at the same time."""
        of_broker: dict[int, dict[str, list[int]]] = {}
        for recovery in recoveries:
            for replica in recovery.replicas:
                if image.is_active(replica):
                    of_broker.setdefault(replica, {}).setdefault(recovery.topic, []).append(recovery.index)
        answers = await asyncio.gather(
            *(self._ask_broker(image.brokers[broker], wanted, image) for broker, wanted in of_broker.items())
        )
        log_ends: dict[tuple[str, int], dict[int, ReplicaLogEnd]] = {}
        for broker, answer in zip(of_broker, answers, strict=True):
            for partition, log in answer.items():
                log_ends.setdefault(partition, {})[broker] = log
        return log_ends

    async def _ask_broker(
        self, broker: BrokerImage, wanted: Mapping[str, Sequence[int]], image: ClusterImage
    ) -> dict[tuple[str, int], ReplicaLogEnd]:
        """The log ends on one broker; empty if it does not respond."""
        names: dict[uuid.UUID, str] = {image.topics[name].id: name for name in wanted}
        request = GetReplicaLogInfoRequest(
            broker_id=broker.id,
            topic_partitions=tuple(
                TopicPartitions(topic_id=topic_id, partitions=tuple(wanted[name])) for topic_id, name in names.items()
            ),
        )
        try:
            connection = await Connection.open(
                broker.host, broker.port, self._client_id, self._timeouts.request_timeout_s
            )
        except ConnectionLost:
            return {}
        try:
            answer = await connection.call(request, self._timeouts.request_timeout_s)
        except ConnectionLost:
            return {}
        finally:
            connection.close()
        return {
            (names[topic.topic_id], info.partition): ReplicaLogEnd(
                answer.broker_epoch, info.current_leader_epoch, info.last_written_leader_epoch, info.log_end_offset
            )
            for topic in answer.topic_partition_log_info_list
            if topic.topic_id in names
            for info in topic.partition_log_info
            if info.error_code is ErrorCode.none
        }


def _recover(
    recovery: UncleanRecovery, log_ends: Mapping[int, ReplicaLogEnd], overdue: bool
) -> Callable[[Controller, int], ControllerResult[bool]]:
    return lambda controller, _: controller.recover(recovery.topic, recovery.index, log_ends, overdue=overdue)
