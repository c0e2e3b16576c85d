"""Queries of the end of a partition, which are operations."""

from __future__ import annotations

import asyncio

from workloads.clients.connections import Backoff
from workloads.clients.library import ReadingClient
from workloads.history import Phase, Recorder


async def ask_for_end(
    recorder: Recorder, consumer: ReadingClient, process: int, phase: Phase, topic: str, partition: int
) -> int:
    """Query the end of a partition until it is answered, each query an operation."""
    backoff = Backoff(consumer.client.timeouts, consumer.client.random)
    while True:
        index = recorder.invoke(process, "end_offset", topic, partition, phase=phase)
        try:
            answer = await consumer.end_offset(topic, partition)
        except BaseException:
            recorder.discard(index)
            raise
        if answer.offset is not None:
            recorder.complete(index, "ok", offset=answer.offset, leader_epoch=answer.leader_epoch)
            return answer.offset
        recorder.complete(index, "fail", error=answer.error)
        await asyncio.sleep(backoff.next_s())
