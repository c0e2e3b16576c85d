"""InitProducerId: producer ids from the block that the controller has allocated to this broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta

from kio.schema.allocate_producer_ids.v0.request import AllocateProducerIdsRequest
from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v4.request import InitProducerIdRequest
from kio.schema.init_producer_id.v4.response import InitProducerIdResponse

from images.broker.controller.channel import ControllerChannel
from images.broker.runtime.server import Handler, Request
from images.trace import TraceEvent
from images.wire.connection import ConnectionLost
from images.wire.messages import Api

_NONE = -1
"""The request has no producer id, or no epoch."""


class ProducerIdApis:
    """The handler of one broker."""

    def __init__(
        self,
        node_id: int,
        channel: ControllerChannel,
        broker_epoch: Callable[[], int],
        trace: Callable[[TraceEvent], None],
    ) -> None:
        self._node_id = node_id
        self._channel = channel
        self._broker_epoch = broker_epoch
        self._trace = trace
        self._block: Iterator[int] = iter(())
        """The ids of the allocated block that no producer has yet."""
        self._allocating = asyncio.Lock()

    def handlers(self) -> dict[Api, Handler]:
        """The handler of each API."""
        return {Api.INIT_PRODUCER_ID: self.init_producer_id}

    async def init_producer_id(self, request: Request[InitProducerIdRequest]) -> InitProducerIdResponse:
        """A producer id that no producer has had before, at epoch 0.

        A transactional id is INVALID_REQUEST, since there are no transactions; so is a producer id without an epoch, or
        the reverse. COORDINATOR_LOAD_IN_PROGRESS if the controller allocates no block.
        """
        error, producer_id = ErrorCode.none, -1
        half = (request.body.producer_id == _NONE) != (request.body.producer_epoch == _NONE)
        if request.body.transactional_id is not None or half:
            error = ErrorCode.invalid_request
        else:
            async with self._allocating:
                error, producer_id = await self._next_producer_id()
            if error is ErrorCode.none:
                detail = {"producer_id": producer_id}
                self._trace(TraceEvent("producer_id_assigned", broker_epoch=self._broker_epoch(), detail=detail))
        return InitProducerIdResponse(
            throttle_time=timedelta(0),
            error_code=error,
            producer_id=producer_id,
            producer_epoch=0 if error is ErrorCode.none else -1,
        )

    async def _next_producer_id(self) -> tuple[ErrorCode, int]:
        producer_id = next(self._block, None)
        if producer_id is not None:
            return ErrorCode.none, producer_id
        try:
            answer = await self._channel.forward(
                AllocateProducerIdsRequest(broker_id=self._node_id, broker_epoch=self._broker_epoch())
            )
        except ConnectionLost:
            return ErrorCode.coordinator_load_in_progress, -1
        if answer.error_code is not ErrorCode.none:
            return ErrorCode.coordinator_load_in_progress, -1
        self._block = iter(range(answer.producer_id_start, answer.producer_id_start + answer.producer_id_len))
        return ErrorCode.none, next(self._block)
