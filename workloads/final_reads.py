"""Reading everything back, and the final appends that follow."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from workloads.clients.delivery import Delivery
from workloads.clients.native import CompletedFetch, Consumer

ACKS: Final = -1
"""Of the final appends: all."""
_OF_RECORD: Final = ("MESSAGE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_TIMESTAMP")
"""Errors with which a broker refuses a record for what its settings allow, and would at any time."""
_POLL_TIMEOUT_S: Final = 5.0


class FinalReads:
    """Reads the partitions of one topic, from the start of each."""

    def __init__(
        self, topic: str, consumer: Consumer, polled: Callable[[Consumer, CompletedFetch], Awaitable[None]]
    ) -> None:
        """`polled` takes each answer of the consumer."""
        self._topic = topic
        self._consumer = consumer
        self._polled = polled

    async def read_to(self, ends: Mapping[int, int]) -> None:
        """Poll until the end that each partition has is reached."""
        unread = [partition for partition, end in ends.items() if end > 0]
        while unread:
            for fetched in await self._consumer.poll(_POLL_TIMEOUT_S):
                await self._polled(self._consumer, fetched)
            delivered = self._consumer.next_offsets()
            unread = [number for number in unread if delivered[self._topic, number].offset < ends[number]]

    async def read_back(self, deliveries: Sequence[Delivery], until_s: float) -> tuple[str, ...]:
        """Read on to what was appended to each partition; what is not read by `until_s` is lost for `checkers.loss`.
        Gives back a line for each partition that has not taken its record, and may be expected to."""
        appended = (each.base_offset for each in deliveries)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until_s):
                await self.read_to({number: 0 if at is None else at + 1 for number, at in enumerate(appended)})
        refused = ((number, each.error) for number, each in enumerate(deliveries) if each.outcome != "ok")
        return tuple(f"{self._topic}-{number}: {error}" for number, error in refused if error not in _OF_RECORD)
