"""Time readers: clients that ask for offsets by time, as a consumer does that starts at what is an hour old.

About once per `end_offset_interval_s` a time reader asks some partition for the first record that is not older than a
time of the run: one `time_offset` operation, with that time and the offset answered. Recent times are asked for more
often, and now and then the beginning, whose answer is where the log starts. Beside that it asks for the record with the
largest timestamp (KIP-734), which is no operation: the trace of the leader has the answer. After the faults it asks
every partition for the beginning, and for a few times of the whole run, each until that is answered.

Records have the time at which their batch was first sent, on the clock of the history: so it is known between which
times the timestamp of each record lies, and `checkers.clients.time_offsets` judges the answers.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final

from workloads.clients.native import Backoff, Client
from workloads.clients.offsets import MAX_TIMESTAMP, list_offset
from workloads.history import Phase, Recorder
from workloads.workload import WorkloadSettings

_FINAL_QUERIES: Final = 3
_NEWEST_SHARE: Final = 0.5
_FIRST_SHARE: Final = 0.2
_NS_PER_MS: Final = 1_000_000


class TimeReader:
    """One of them: process `process` of the history."""

    def __init__(self, process: int, client: Client, settings: WorkloadSettings, recorder: Recorder) -> None:
        self._process = process
        self._client = client
        self._random: Random = client.random
        self._settings = settings
        self._recorder = recorder

    async def run(self) -> None:
        """Ask one partition after the other, drawn evenly, until cancelled."""
        while True:
            await asyncio.sleep(self._settings.end_offset_interval_s * self._random.uniform(0.5, 1.5))
            partition = self._random.randrange(self._settings.partitions)
            first = self._random.random() < _FIRST_SHARE
            await self._ask(partition, 0.0 if first else 1 - self._random.random() ** 2, "main")
            if self._random.random() < _NEWEST_SHARE:
                await list_offset(self._client, self._settings.topic, partition, MAX_TIMESTAMP)

    async def read_finally(self) -> None:
        """Ask every partition, until all queries are answered."""
        for partition in range(self._settings.partitions):
            for share in (0.0, *(self._random.random() for _ in range(_FINAL_QUERIES))):
                await self._ask_until_answered(partition, share)

    async def _ask_until_answered(self, partition: int, share: float) -> None:
        backoff = Backoff(self._client.timeouts, self._random)
        answered = await self._ask(partition, share, "final")
        while not answered:
            await asyncio.sleep(backoff.next_s())
            answered = await self._ask(partition, share, "final")

    async def _ask(self, partition: int, share: float, phase: Phase) -> bool:
        """Ask for the time at which so much of the run until now had passed. Whether it was answered."""
        topic, recorder = self._settings.topic, self._recorder
        now_ms = recorder.now_ns() // _NS_PER_MS
        asked_ms = round(now_ms * share)
        unix_ms = int(asyncio.get_running_loop().time() * 1000) + self._settings.unix_ahead_ms
        index = recorder.invoke(self._process, "time_offset", topic, partition, phase=phase, value=asked_ms)
        try:
            answer = await list_offset(self._client, topic, partition, unix_ms - now_ms + asked_ms)
        except BaseException:
            recorder.discard(index)
            raise
        if answer.offset is None:
            recorder.complete(index, "fail", error=answer.error)
            return False
        recorder.complete(index, "ok", offset=answer.offset, leader_epoch=answer.leader_epoch)
        return True
