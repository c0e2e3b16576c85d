"""Batches of a producer: records of several appends to one partition that are sent together.

A batch is sent once it has `records_max` records, or `linger_s` after its first record. Every append has an outcome of
its own, as the records of a batch follow each other in the log.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

from workloads.clients.delivery import Delivery
from workloads.clients.producer import Producer


@dataclass(slots=True)
class _OpenBatch:
    """A batch that still takes records."""

    values: list[bytes] = field(default_factory=list)
    sent: asyncio.Event = field(default_factory=asyncio.Event)
    delivery: asyncio.Future[Delivery] | None = None
    timer: asyncio.TimerHandle | None = None


class BatchingProducer:
    """A producer whose appends share batches."""

    def __init__(self, producer: Producer, records_max: int = 1, linger_s: float = 0.0) -> None:
        self._producer = producer
        self._records_max = records_max
        self._linger_s = linger_s
        self._open: dict[int, _OpenBatch] = {}

    async def append(self, partition: int, value: bytes) -> Delivery:
        """Append one record, behind every record appended before."""
        if self._records_max == 1:
            return await self._producer.append(partition, [value])
        batch = self._open.get(partition)
        if batch is None:
            batch = self._open[partition] = _OpenBatch()
            batch.timer = asyncio.get_running_loop().call_later(self._linger_s, self._send, partition)
        place = len(batch.values)
        batch.values.append(value)
        if len(batch.values) == self._records_max:
            self._send(partition)
        await batch.sent.wait()
        assert batch.delivery is not None
        delivery = await asyncio.shield(batch.delivery)
        if delivery.base_offset is None:
            return delivery
        return replace(delivery, base_offset=delivery.base_offset + place)

    async def close(self) -> None:
        """Give up everything that was not delivered. May be called twice."""
        for batch in self._open.values():
            if batch.timer is not None:
                batch.timer.cancel()
            batch.delivery = asyncio.get_running_loop().create_future()
            batch.delivery.set_result(Delivery("fail", error="closed"))  # no byte of it ever left
            batch.sent.set()
        self._open.clear()
        await self._producer.close()

    def _send(self, partition: int) -> None:
        batch = self._open.pop(partition)
        if batch.timer is not None:
            batch.timer.cancel()
        batch.delivery = self._producer.append(partition, batch.values)
        batch.sent.set()
