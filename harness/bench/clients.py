"""Rates at which appends are recorded: by the harness alone, and of each client library against Kafka in Docker.

Records of 100 bytes, three partitions, three producers, no faults and no reads, so that nothing but the clients, the
history and the cluster works; all of it on this machine. With a client that acknowledges at once and does nothing else,
the rate is that of the harness: invoking, recording and completing. Against Kafka (acks=all, idempotent, replication
factor 3) producers make batches of up to 500 records, linger 5 ms, out of bursts of as many, and the rate is that of
acknowledged appends.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from statistics import median
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from checkers.verdict import Validity
from harness.client_spec import ClientSpec
from harness.runner.run import run
from harness.spec import Spec
from results.run.directory import RunDirectory
from results.run.temporary_directory import temporary_directory
from workloads.append import AppendWorkload
from workloads.clients.delivery import Delivery
from workloads.clients.library import BurstAppendingClient, ReadingClient
from workloads.clients.positions import Truncation
from workloads.history import Recorder
from workloads.workload import WorkloadSettings

LIBRARIES: Final = ("native", "librdkafka", "java")
ROUNDS: Final = 3
_SECONDS: Final = 5.0
_PARTITIONS: Final = 3
_PRODUCERS: Final = 3
_RECORD_BYTES: Final = 100
_RATE: Final = 100_000.0
"""More than any client takes: appends that fall due while it is busy are skipped."""
_BURST: Final = 500
_PIPELINE: Final = 1_000


class InstantProducer:
    """Acknowledges every append at once."""

    def __init__(self) -> None:
        self._offset = -1

    async def append(
        self, partition: int, values: Sequence[bytes], on_delivery: Callable[[Sequence[tuple[int, Delivery]]], None]
    ) -> None:
        """See `BurstAppendingClient`."""
        deliveries = []
        for place in range(len(values)):
            self._offset += 1
            deliveries.append((place, Delivery("ok", self._offset)))
        on_delivery(deliveries)

    async def close(self) -> None:
        """See `BurstAppendingClient`."""


class InstantLibrary:
    """Implements `ClientLibrary` without a cluster."""

    async def start(self) -> None:
        """See `ClientLibrary`."""

    def producer(self, name: str) -> BurstAppendingClient:
        """See `ClientLibrary`."""
        return InstantProducer()

    def consumer(
        self,
        name: str,
        on_fetch: Callable[[str, int, int], int] = lambda _topic, _partition, _position: -1,
        on_truncation: Callable[[str, int, Truncation], None] = lambda _topic, _partition, _truncation: None,
    ) -> ReadingClient:
        """There is nothing to read."""
        raise NotImplementedError

    async def close(self) -> None:
        """See `ClientLibrary`."""


def harness_alone(seconds: float = _SECONDS) -> tuple[float, float]:
    """Appends recorded in a second of time, and in one of this process's processor time."""
    settings = WorkloadSettings(
        bootstrap=(("127.0.0.1", 1),),
        partitions=_PARTITIONS,
        producers=_PRODUCERS,
        consumers=0,
        end_offset_readers=0,
        rate=_RATE,
        burst=_BURST,
        pipeline=_PIPELINE,
        record_bytes=_RECORD_BYTES,
    )

    async def record(path: Path) -> int:
        recorder = Recorder(path, time.monotonic_ns)
        workload = AppendWorkload(settings, recorder, Random, InstantLibrary())
        try:
            await workload.run(asyncio.get_running_loop().time() + seconds)
            return recorder.recorded
        finally:
            await workload.close()
            recorder.close()

    with temporary_directory("bench") as directory:
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        appends = asyncio.run(record(directory / "history.jsonl"))
        return appends / (time.monotonic() - began_s), appends / (time.process_time() - began_cpu_s)


def on_kafka(library: str, rounds: int = ROUNDS, seconds: float = 2 * _SECONDS) -> float:
    """Acknowledged appends a second, the median of the rounds. Raises RuntimeError when a run is not carried out, or
    its history is not that of a log."""
    spec = Spec(
        name=f"rate-{library}",
        environment="docker",
        system="kafka",
        controllers=0,
        partitions=_PARTITIONS,
        producers=_PRODUCERS,
        consumers=0,
        end_offset_readers=0,
        rate=_RATE,
        time_limit_s=seconds,
        families=(),
        clients=ClientSpec(
            library=library,
            batch=500,
            linger_s=0.005,
            burst=_BURST,
            pipeline=_PIPELINE,
            record_bytes=_RECORD_BYTES,
            delivery_timeout_s=60.0,
            request_timeout_s=15.0,
        ),
    )
    rates = []
    for _ in range(rounds):
        with temporary_directory("bench") as store:
            directory = RunDirectory.create(store, spec.name, spec.seed)
            outcome = run(spec, directory, report=False)
            if outcome.failure:
                raise RuntimeError(outcome.failure)
            if outcome.validity is Validity.INVALID:
                raise RuntimeError("invalid: " + ", ".join(str(signature) for signature in outcome.signatures))
            rates.append(acknowledged_a_second(directory.seal().history, seconds))
    return median(rates)


def acknowledged_a_second(history: pa.Table, seconds: float) -> float:
    """Appends acknowledged within so many seconds of the first one's invocation; what was open then is not counted."""
    appends = history.filter(pc.field("kind") == "append")
    until_ns = pc.min(appends["invoked_ns"]).as_py() + round(seconds * 1e9)
    return appends.filter((pc.field("outcome") == "ok") & (pc.field("completed_ns") <= until_ns)).num_rows / seconds
