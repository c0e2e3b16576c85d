"""The shards of an exploration as Spark tasks, one a task, which keep their states in memory where Spark has slots.

Spark starts the tasks, all or none (a barrier stage). Each connects to the process that leads the search, which then
talks to it as to a process of its own: so the result is the same, and how many shards there are does not matter.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge
from typing import TYPE_CHECKING, Any, Final

from harness.search.state_space.breadth_first import LostShard, RemoteShard, ShardsOf, Start, serve
from harness.suites.job import cause_in
from results.store.spark import BackgroundJob

if TYPE_CHECKING:
    from pyspark import SparkContext

SETTINGS: Final[Mapping[str, str]] = {
    "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "5s",
    "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "3",
    "spark.task.maxFailures": "1",
    "spark.stage.maxConsecutiveAttempts": "1",
    "spark.python.worker.reuse": "false",
}
"""Of a session for shards: Spark waits a quarter of a minute for as many slots, begins nothing anew, as the states of a
shard that is lost are lost, too, and has no process keep states that are needed no more."""
_TOO_FEW_SLOTS: Final = "BarrierJobSlotsNumberCheckFailed"
_POLL_S: Final = 0.2
_GONE_S: Final = 30


def spark_shards(context: SparkContext, count: int = 0) -> ShardsOf:
    """`count` shards, or one for each slot; starting them raises LostShard when Spark cannot run all at once."""
    return partial(_shards, context, count)


@contextmanager
def _shards(context: SparkContext, count: int, start: Start) -> Iterator[Sequence[RemoteShard]]:
    count = count or max(1, context.defaultParallelism)
    host, key = context.getConf().get("spark.driver.host") or "localhost", secrets.token_hex(32)
    with ExitStack() as ends:
        server = ends.enter_context(socket.create_server((host, 0)))
        server.settimeout(_POLL_S)
        serve_shard = _serves((host, server.getsockname()[1]), key, start, count)
        stage = context.parallelize(range(count), count).barrier().mapPartitionsWithIndex(serve_shard)
        job = BackgroundJob(context, "exploration", stage.count)
        ends.callback(_end, job)
        shards: list[RemoteShard] = []
        for _ in range(count):
            connection = _accepted(server, key.encode(), lambda: _raise_end(job, count))
            ends.callback(connection.close)
            shards.append(RemoteShard(connection))
        # Tasks connect in any order, and the states of a shard are those of its number.
        yield [shard for _, shard in sorted(((it.receive(), it) for it in shards), key=lambda each: each[0])]


def _serves(
    address: tuple[str, int], key: str, start: Start, count: int
) -> Callable[[int, Iterable[Any]], Iterator[None]]:
    """What each task does."""

    def serve_shard(index: int, _: Iterable[Any]) -> Iterator[None]:
        with Client(address, authkey=key.encode()) as connection:
            serve(connection, start, index, count)
        return iter(())

    return serve_shard


def _accepted(server: socket.socket, key: bytes, raise_end: Callable[[], None]) -> Connection:
    """The next task that connects."""
    while True:
        raise_end()
        try:
            accepted, _ = server.accept()
        except TimeoutError:
            continue
        accepted.setblocking(True)
        connection = Connection(accepted.detach())
        deliver_challenge(connection, key)
        answer_challenge(connection, key)
        return connection


def _raise_end(job: BackgroundJob, count: int) -> None:
    """LostShard with the cause that Spark gave, if the job has ended."""
    if job.is_running():
        return
    error = str(job.error)
    if _TOO_FEW_SLOTS in error:
        raise LostShard(f"Spark has no {count} slots at the same time")
    raise LostShard(f"Spark ended the tasks of the exploration: {cause_in(error)}")


def _end(job: BackgroundJob) -> None:
    """Tasks end when their connections are closed; none keeps running that did not."""
    job.is_running(_GONE_S)
    job.stop()
