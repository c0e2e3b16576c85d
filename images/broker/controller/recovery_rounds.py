"""The active controller's way to the logs of replicas: rounds of GetReplicaLogInfo (KIP-966).

While a partition is in need of an unclean recovery, everybody whose log matters and who lives is asked, and what one
round brought is put before the controller, which elects or does not (`unclean_recovery.py`). Nothing is kept from one
round to the next but the time at which the need arose, and nothing is written to the metadata log: after a fail-over
the next controller begins anew.
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
"""What was told of each (topic, partition), by replica."""


@dataclass(frozen=True, slots=True)
class RecoveryTimeouts:
    """How long things take."""

    request_timeout_s: float
    """What a broker has to connect and to answer."""
    interval_s: float
    """Between two rounds."""
    proactive_timeout_s: float
    """`unclean.recovery.timeout.ms`."""


class RecoveryRounds:
    """Rounds for as long as there is anything to recover."""

    def __init__(
        self, client_id: str, state: Callable[[], Controller], decide: Decide, timeouts: RecoveryTimeouts
    ) -> None:
        self._client_id = client_id
        self._state = state
        self._decide = decide
        self._timeouts = timeouts
        self._change = asyncio.Event()

    def metadata_changed(self) -> None:
        """The metadata has changed."""
        self._change.set()

    async def run(self) -> None:
        """Recover what is to be recovered, for ever."""
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
        """One round: everybody at the same time, each once."""
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
        """What one broker tells; nothing when it does not answer."""
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
