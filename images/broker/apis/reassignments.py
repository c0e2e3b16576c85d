"""AlterPartitionReassignments, ListPartitionReassignments and ElectLeaders: moving replicas and leadership.

All three go to the controller, which knows of a reassignment, or of its end, before any broker does. If it does not
answer, the whole request fails with REQUEST_TIMED_OUT, and its changes may or may not have been made.
"""

from __future__ import annotations

from typing import Any

from kio.schema.alter_partition_reassignments.v0.request import AlterPartitionReassignmentsRequest
from kio.schema.alter_partition_reassignments.v0.response import AlterPartitionReassignmentsResponse
from kio.schema.elect_leaders.v2.request import ElectLeadersRequest
from kio.schema.elect_leaders.v2.response import ElectLeadersResponse
from kio.schema.errors import ErrorCode
from kio.schema.list_partition_reassignments.v0.request import ListPartitionReassignmentsRequest

from images.broker.controller import admin_messages
from images.broker.controller.channel import ControllerChannel
from images.broker.runtime.server import Handler, Request
from images.wire.connection import ConnectionLost
from images.wire.field_values import NO_THROTTLE
from images.wire.messages import Api


class ReassignmentApis:
    """The handlers of one broker."""

    def __init__(self, channel: ControllerChannel) -> None:
        self._channel = channel

    def handlers(self) -> dict[Api, Handler]:
        """The handler of each API."""
        return {
            Api.ALTER_PARTITION_REASSIGNMENTS: self.alter_partition_reassignments,
            Api.LIST_PARTITION_REASSIGNMENTS: self.list_partition_reassignments,
            Api.ELECT_LEADERS: self.elect_leaders,
        }

    async def alter_partition_reassignments(self, request: Request[AlterPartitionReassignmentsRequest]) -> Any:
        """Forward to the controller."""
        try:
            return await self._channel.forward(request.body)
        except ConnectionLost as lost:
            return AlterPartitionReassignmentsResponse(
                throttle_time=NO_THROTTLE,
                error_code=ErrorCode.request_timed_out,
                error_message=f"the controller did not answer: {lost}",
                responses=(),
            )

    async def list_partition_reassignments(self, request: Request[ListPartitionReassignmentsRequest]) -> Any:
        """Forward to the controller."""
        try:
            return await self._channel.forward(request.body)
        except ConnectionLost as lost:
            return admin_messages.list_reassignments_error(
                ErrorCode.request_timed_out, f"the controller did not answer: {lost}"
            )

    async def elect_leaders(self, request: Request[ElectLeadersRequest]) -> Any:
        """Forward to the controller."""
        try:
            return await self._channel.forward(request.body)
        except ConnectionLost:
            return ElectLeadersResponse(
                throttle_time=NO_THROTTLE, error_code=ErrorCode.request_timed_out, replica_election_results=()
            )
