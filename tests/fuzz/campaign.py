"""A campaign of damaged frames against real node processes: `make fuzz`, or `python -m tests.fuzz.campaign`.

One broker and one controller run as processes on loopback. Frames go to both. A campaign holds when

- no process ends;
- a canary client, on a connection of its own, has every question answered;
- the memory of each process does not grow with the number of frames: after a quarter of the campaign, which fills
  caches, it stays below one and a half times its size then, plus 32 MiB.

A frame that was the last one before a process ended is written out in hexadecimal, with the seed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

from kio.schema.create_topics.v7 import request as creating
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v16 import request as fetching
from kio.schema.metadata.v12 import request as describing
from kio.schema.produce.v11 import request as producing
from rich.console import Console
from rich.progress import Progress

from harness.cluster.layout import ClusterNode
from harness.cluster.loopback import LoopbackCluster
from images.wire import batch
from images.wire.connection import Connection
from images.wire.messages import Api
from tests.fuzz.frames import Frames
from tests.fuzz.requests import OddRequests

FRAMES = 100_000
CANARY = "canary"
GROWTH_FACTOR = 1.5
GROWTH_BYTES = 32 << 20
ANSWER_LIMIT_S = 60.0
"""How long the canary may wait; generous, since a machine may be busy, and a node that hangs never answers."""
_LINGER_S = 0.5
"""How long an answer to a damaged frame is waited for: a node that waits for the rest of a frame answers nothing."""
_SENDERS = 64
_SHOWN_BYTES = 400
_CONTROLLER_ONLY = frozenset(
    {
        Api.VOTE,
        Api.BEGIN_QUORUM_EPOCH,
        Api.END_QUORUM_EPOCH,
        Api.FETCH_SNAPSHOT,
        Api.BROKER_REGISTRATION,
        Api.BROKER_HEARTBEAT,
        Api.ALTER_PARTITION,
        Api.ALLOCATE_PRODUCER_IDS,
    }
)


@dataclass
class Report:
    """The outcome of a campaign."""

    frames: int = 0
    answered: int = 0
    closed: int = 0
    canary_answers: int = 0
    seconds: float = 0.0
    memory: dict[str, list[int]] = field(default_factory=dict)
    """Resident bytes of each node after a quarter of the campaign, and at its end."""
    failures: list[str] = field(default_factory=list)


class Campaign:
    """`frames` damaged frames, drawn from `seed`, against a cluster below `directory`."""

    def __init__(self, directory: Path, frames: int, seed: int, *, progress: bool = False) -> None:
        self.cluster = LoopbackCluster(directory, brokers=1, controllers=1)
        self._frames = frames
        self._random = Random(seed)
        self._progress = progress
        self._report = Report()
        self._in_flight: dict[_Target, str] = {}

    def run(self) -> Report:
        """Play the whole campaign; what failed is in the report."""
        began = time.monotonic()
        with self.cluster:
            asyncio.run(self._play())
        self._report.seconds = time.monotonic() - began
        return self._report

    async def _play(self) -> None:
        canary = Canary(self.cluster)
        await canary.start()
        singing = asyncio.create_task(canary.sing(self._report))
        try:
            await self._send_all(singing)
        finally:
            canary.stop()
            await asyncio.wait((singing,))
        error = singing.exception()
        if error is not None:
            self._report.failures.append(f"the canary was not answered: {type(error).__name__}: {error}")

    async def _send_all(self, canary: asyncio.Task[None]) -> None:
        frames = self.frames()
        quarter = self._frames // 4
        with Progress(console=Console(stderr=True), disable=not self._progress) as progress:
            bar = progress.add_task("frames", total=self._frames)

            async def send() -> None:
                target = _Target()
                for what, node, frame in frames:
                    self._in_flight[target] = f"{node.name}: {what}: {frame[:_SHOWN_BYTES].hex()}"
                    outcome = await target.send(node.host, node.port, frame)
                    self._report.frames += 1
                    self._report.answered += outcome == "answered"
                    self._report.closed += outcome == "closed"
                    progress.advance(bar)
                    if self._report.frames == quarter:
                        self._measure_memory()
                    if self.cluster.ended or canary.done():
                        break
                target.close()

            await asyncio.gather(*(send() for _ in range(_SENDERS)))
        for name in self.cluster.ended:
            self._fail(f"{name} ended: {self._last_line(name)}")
        if canary.done():
            self._fail("the canary fell silent")
        if not self._report.failures:
            self._measure_memory()
        for name, sizes in self._report.memory.items():
            if len(sizes) == 2 and sizes[1] > sizes[0] * GROWTH_FACTOR + GROWTH_BYTES:
                self._report.failures.append(f"the memory of {name} grew from {sizes[0]:,} to {sizes[1]:,} bytes")

    def frames(self) -> Iterator[tuple[str, ClusterNode, bytes]]:
        """(frame in words, node to send it to, frame), as many as the campaign has."""
        requests = OddRequests(self._random, [uuid.UUID(int=1), uuid.UUID(int=5), uuid.UUID(int=0)])
        layout = self.cluster.layout
        drawn = []
        for node in layout.nodes:
            apis = tuple(api for api in Api if not (node in layout.brokers and api in _CONTROLLER_ONLY))
            drawn.append((node, iter(Frames(self._random, requests, apis))))
        for _ in range(self._frames):
            node, frames = self._random.choice(drawn)
            what, frame = next(frames)
            yield what, node, frame

    def _measure_memory(self) -> None:
        for name, pid in self.cluster.pids.items():
            self._report.memory.setdefault(name, []).append(_resident_bytes(pid))

    def _fail(self, what: str) -> None:
        self._report.failures.append("\n  ".join([f"{what}; the last frames were", *self._in_flight.values()]))

    def _last_line(self, name: str) -> str:
        return (self.cluster.log_of(name).strip().splitlines() or ["no log"])[-1]


class _Target:
    """A connection that frames are sent over; opened again for another node, or when a node has closed it."""

    def __init__(self) -> None:
        self._address = ("", 0)
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def send(self, host: str, port: int, frame: bytes) -> str:
        """Send one frame: `answered`, `closed`, or `silent` (the node waits for more, or wants no answer)."""
        if self._address != (host, port):
            self.close()
            self._address = host, port
        try:
            if self._reader is None or self._writer is None:
                self._reader, self._writer = await asyncio.open_connection(*self._address)
            self._writer.write(frame)
            async with asyncio.timeout(_LINGER_S):
                if await self._reader.read(1 << 16):
                    return "answered"
            outcome = "closed"
        except TimeoutError:
            outcome = "silent"
        except OSError:
            outcome = "closed"
        self.close()
        return outcome

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = None


class Canary:
    """A client whose every question must be answered: it produces a record and fetches, over and over.

    An error is an answer: frames that are well-formed may fence a broker or depose the controller, as an administrator
    may.
    """

    def __init__(self, cluster: LoopbackCluster) -> None:
        self._broker = cluster.layout.brokers[0]
        self._stopping = asyncio.Event()
        self._topic_id = uuid.UUID(int=0)
        self._connection: Connection | None = None

    async def start(self) -> None:
        """Make the canary's topic."""
        self._connection = await Connection.open(self._broker.host, self._broker.port, CANARY, ANSWER_LIMIT_S)
        async with asyncio.timeout(ANSWER_LIMIT_S):
            await self._until(self._created)
            await self._until(self._described)
            await self._until(self._led)

    def stop(self) -> None:
        """End after the answer that is waited for."""
        self._stopping.set()

    async def sing(self, report: Report) -> None:
        """Ask until told to stop. Raises what kept an answer away."""
        while not self._stopping.is_set():
            await self._produce()
            await self._fetch()
            report.canary_answers += 2
            await asyncio.sleep(0.05)

    async def _until(self, done: Callable[[], Awaitable[bool]]) -> None:
        while not await done():  # noqa: ASYNC110 - the answer of another process is asked for
            await asyncio.sleep(0.05)

    async def _created(self) -> bool:
        error = (await self._call(_create())).topics[0].error_code
        return error in (ErrorCode.none, ErrorCode.topic_already_exists)

    async def _described(self) -> bool:
        topic = (await self._call(_describe())).topics[0]
        self._topic_id = topic.topic_id
        return bool(topic.partitions)

    async def _led(self) -> bool:
        return await self._produce() >= 0

    async def _call(self, request: Any) -> Any:
        assert self._connection is not None
        return await self._connection.call(request, ANSWER_LIMIT_S)

    async def _produce(self) -> int:
        data = producing.PartitionProduceData(index=0, records=batch.build([b"note"], timestamp_ms=5))
        topic = producing.TopicProduceData(name=CANARY, partition_data=(data,))
        request = producing.ProduceRequest(acks=1, timeout=timedelta(seconds=1), topic_data=(topic,))
        answer = (await self._call(request)).responses[0].partition_responses[0]
        return int(answer.base_offset) if answer.error_code is ErrorCode.none else -1

    async def _fetch(self) -> None:
        partition = fetching.FetchPartition(
            partition=0, current_leader_epoch=-1, fetch_offset=0, last_fetched_epoch=-1, partition_max_bytes=1 << 20
        )
        request = fetching.FetchRequest(
            max_wait=timedelta(seconds=1),
            min_bytes=1,
            topics=(fetching.FetchTopic(topic_id=self._topic_id, partitions=(partition,)),),
            forgotten_topics_data=(),
        )
        await self._call(request)


def _create() -> Any:
    topic = creating.CreatableTopic(name=CANARY, num_partitions=1, replication_factor=1, assignments=(), configs=())
    return creating.CreateTopicsRequest(topics=(topic,), timeout=timedelta(seconds=5))


def _describe() -> Any:
    topic = describing.MetadataRequestTopic(topic_id=None, name=CANARY)
    return describing.MetadataRequest(topics=(topic,), include_topic_authorized_operations=False)


def _resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS:"))


def main() -> int:
    """`make fuzz`: 0 when the campaign holds, 1 when it does not."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz.campaign", description="Send damaged frames to a broker."
    )
    parser.add_argument("--frames", type=int, default=FRAMES, help="frames to send (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: %(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="faultline-fuzz-") as directory:
        report = Campaign(Path(directory), options.frames, options.seed, progress=True).run()
    console = Console(highlight=False)
    console.print(
        f"{report.frames:,} frames, seed {options.seed}: {report.answered:,} answered, "
        f"{report.closed:,} connections closed, {report.canary_answers:,} answers to the canary, {report.seconds:.0f} s"
    )
    for name, sizes in report.memory.items():
        console.print(f"{name}: {' → '.join(f'{size / (1 << 20):.0f} MiB' for size in sizes)}")
    for failure in report.failures:
        console.print(failure, markup=False, soft_wrap=True)
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
