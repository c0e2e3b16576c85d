"""An idempotent producer that never claims more than it knows.

Each `append` is one record batch of one partition, and ends `ok`, `fail` or `info` (`workloads.clients.delivery`). Each
partition has a sender (`workloads.clients.partition_sender`), which keeps its batches in order, retries them and gives
them up.

DUPLICATE_SEQUENCE_NUMBER (46) means that the batch was appended long ago and the broker no longer knows its offset:
`info`, since an `ok` would have to name the offset. With `acks=0` there is no answer and no producer id: a batch is
sent once and ends `info` with the error `no acknowledgement`, or `fail` when it could not be sent in time. With
`acks=1` an acknowledged batch may be lost by an election; that is not an error of the producer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from kio.schema.init_producer_id.v4.request import InitProducerIdRequest

from images.wire.batch import Compression
from images.wire.connection import ConnectionLost
from workloads.clients.connections import Client, error_name
from workloads.clients.delivery import Delivery, ProducerBatch
from workloads.clients.partition_sender import PartitionSender, SendSettings
from workloads.clients.producer_clock import ProducerClock


class Producer:
    """Appends to the partitions of one topic."""

    def __init__(
        self,
        client: Client,
        topic: str,
        *,
        acks: int = -1,
        max_in_flight: int = 5,
        delivery_timeout_s: float = 8.0,
        clock: ProducerClock | None = None,
        compression: Compression = Compression.NONE,
        first_sequence: int = 0,
    ) -> None:
        client.track_topic(topic)
        self.client = client
        self.topic = topic
        self.delivery_timeout_s = delivery_timeout_s
        clock = clock or ProducerClock(client.random, 0)
        self._settings = SendSettings(topic, acks, max_in_flight, clock, compression, first_sequence)
        self._senders: dict[int, PartitionSender] = {}
        self._identity: tuple[int, int] | None = None
        self._identity_lock = asyncio.Lock()
        self._closed = False

    def append(self, partition: int, values: Sequence[bytes]) -> asyncio.Future[Delivery]:
        """Append `values` to `partition` as one batch, behind every batch appended before.

        Whatever the cluster does, the future gets a result; an exception in it is a bug of this module. Raises
        RuntimeError once closed, ValueError without values.
        """
        if self._closed:
            raise RuntimeError("this producer is closed")
        if not values:
            raise ValueError("a batch needs at least one value")
        loop = asyncio.get_running_loop()
        batch = ProducerBatch(tuple(values), loop.time() + self.delivery_timeout_s, loop.create_future())
        sender = self._senders.get(partition)
        if sender is None:
            sender = self._senders[partition] = PartitionSender(self.client, self._settings, self._identify, partition)
        sender.add(batch)
        return batch.future

    async def close(self) -> None:
        """Give up everything undelivered at once, each batch with the outcome that is known, and close the client,
        which is this producer's alone. May be called twice."""
        self._closed = True
        for partition in sorted(self._senders):
            await self._senders[partition].close()
        await self.client.close()

    async def _identify(self, not_this: int) -> tuple[int, int]:
        """A producer id other than `not_this`, and its first epoch. Raises ConnectionLost when no broker gave one."""
        async with self._identity_lock:
            if self._identity is None or self._identity[0] == not_this:
                request = InitProducerIdRequest(
                    transactional_id=None, transaction_timeout=timedelta(milliseconds=60_000)
                )
                response = await self.client.ask_any(request)
                if response.error_code != 0:
                    raise ConnectionLost(f"no producer id: {error_name(response.error_code)}")
                self._identity = (int(response.producer_id), int(response.producer_epoch))
            return self._identity
