"""FindCoordinator: which broker coordinates a group.

The coordinator is the leader of the partition of `__consumer_offsets` to which the group's name hashes. The first
request of this kind creates the topic and is answered with COORDINATOR_NOT_AVAILABLE, upon which clients ask again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

from kio.schema.create_topics.v7.request import CreatableTopic, CreateTopicsRequest
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v4.request import FindCoordinatorRequest
from kio.schema.find_coordinator.v4.response import Coordinator, FindCoordinatorResponse

from images.broker.config import NodeConfig
from images.broker.controller.channel import ControllerChannel
from images.broker.groups.records import partition_for
from images.broker.metadata.image import ClusterImage
from images.broker.metadata.internal_topics import CONSUMER_OFFSETS_TOPIC
from images.broker.runtime.server import Handler, Request
from images.broker.runtime.spawn import Spawn
from images.trace import TraceEvent
from images.wire.connection import ConnectionLost
from images.wire.messages import Api

_GROUP = 0
"""Kafka's key type of groups. There are no coordinators of transactions and of share groups."""


class FindCoordinatorApis:
    """The handler of one broker. `image` returns the metadata that this broker has applied."""

    def __init__(
        self,
        config: NodeConfig,
        image: Callable[[], ClusterImage],
        channel: ControllerChannel,
        spawn: Spawn,
        log: Callable[[str], None],
        trace: Callable[[TraceEvent], None],
    ) -> None:
        self._config = config
        self._image = image
        self._channel = channel
        self._spawn = spawn
        self._log = log
        self._trace = trace
        self._creating = False

    def handlers(self) -> dict[Api, Handler]:
        """The handler of each API."""
        return {Api.FIND_COORDINATOR: self.find_coordinator}

    async def find_coordinator(self, request: Request[FindCoordinatorRequest]) -> FindCoordinatorResponse:
        """The leader of the partition of each group. Creates the topic if there is none yet."""
        image = self._image()
        topic = image.topics.get(CONSUMER_OFFSETS_TOPIC)
        if topic is None and not self._creating and request.body.key_type == _GROUP:
            self._creating = True
            self._spawn(self._create_topic)
        coordinators = []
        for key in request.body.coordinator_keys:
            error, broker = ErrorCode.coordinator_not_available, None
            if request.body.key_type != _GROUP:
                error = ErrorCode.invalid_request
            elif topic is not None and topic.partitions:
                leader = topic.partitions[partition_for(key, len(topic.partitions))].leader
                broker = image.brokers.get(leader)
            if broker is not None:
                error = ErrorCode.none
            coordinators.append(
                Coordinator(
                    key=key,
                    node_id=broker.id if broker is not None else -1,
                    host=broker.host if broker is not None else "",
                    port=broker.port if broker is not None else -1,
                    error_code=error,
                    error_message=None,
                )
            )
        if request.body.key_type == _GROUP:
            groups = {each.key: [each.node_id, each.error_code.name] for each in coordinators}
            self._trace(TraceEvent("coordinators_told", log_end=image.offset, detail={"groups": groups}))
        return FindCoordinatorResponse(throttle_time=timedelta(0), coordinators=tuple(coordinators))

    async def _create_topic(self) -> None:
        request = CreateTopicsRequest(
            topics=(
                CreatableTopic(
                    name=CONSUMER_OFFSETS_TOPIC,
                    num_partitions=self._config.number("offsets.topic.num.partitions"),
                    replication_factor=self._config.number("offsets.topic.replication.factor"),
                    assignments=(),
                    configs=(),
                ),
            ),
            timeout=timedelta(seconds=self._config.seconds("replica.socket.timeout.ms")),
        )
        try:
            answer = await self._channel.forward(request)
            result = answer.topics[0]
            if result.error_code not in (ErrorCode.none, ErrorCode.topic_already_exists):
                reason = f"{result.error_code.name} {result.error_message or ''}".rstrip()
                self._log(f"{CONSUMER_OFFSETS_TOPIC} is not created: {reason}")
        except ConnectionLost as lost:
            self._log(f"{CONSUMER_OFFSETS_TOPIC} may not be created: {lost}")
        await asyncio.sleep(self._config.seconds("replica.fetch.backoff.ms"))
        self._creating = False
