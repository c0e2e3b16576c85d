"""Requests of clients that the controller answers: changes of topics, configurations and replicas, elections, the state
of the metadata quorum.

ListPartitionReassignments is among them because the controller knows of a reassignment, or of its end, before any
broker does. If no controller answers, the request fails with REQUEST_TIMED_OUT, each topic or resource by itself where
its response has no error of the whole; what it asked for may or may not have been done.
"""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from images.broker.controller.channel import ControllerChannel
from images.broker.controller.refusals import refusal
from images.broker.runtime.server import Handler, Request
from images.wire.connection import ConnectionLost
from images.wire.messages import Api

FORWARDED: Final = (
    Api.CREATE_TOPICS,
    Api.CREATE_PARTITIONS,
    Api.DELETE_TOPICS,
    Api.ALTER_CONFIGS,
    Api.INCREMENTAL_ALTER_CONFIGS,
    Api.ALTER_PARTITION_REASSIGNMENTS,
    Api.LIST_PARTITION_REASSIGNMENTS,
    Api.ELECT_LEADERS,
    Api.DESCRIBE_QUORUM,
)


class ForwardedApis:
    """The handlers of one broker."""

    def __init__(self, channel: ControllerChannel) -> None:
        self._channel = channel

    def handlers(self) -> dict[Api, Handler]:
        """The handler of each API."""
        return dict.fromkeys(FORWARDED, self.forward)

    async def forward(self, request: Request[Any]) -> Any:
        """The response of the controller."""
        try:
            return await self._channel.forward(request.body)
        except ConnectionLost as lost:
            message = f"the controller did not answer: {lost}"
            return refusal(request.api, request.body, ErrorCode.request_timed_out, message)
