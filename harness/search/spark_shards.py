"""The shards of an exploration as Spark tasks, one a task, which keep their states in memory where Spark has slots.

Spark starts the tasks, all or none (a barrier stage). Each connects to the process that leads the search, which then
talks to it as to a process of its own: so the result is the same, and how many shards there are does not matter.
"""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge
from typing import TYPE_CHECKING, Any, Final

from harness.search.state_space.breadth_first import LostShard, RemoteShard, ShardsOf, Start, serve
from harness.suites.job import cause_in

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
        tasks = _Tasks(context, count, _serves((host, server.getsockname()[1]), key, start, count))
        ends.callback(tasks.end)
        shards: list[RemoteShard] = []
        for _ in range(count):
            connection = _accepted(server, key.encode(), tasks)
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


def _accepted(server: socket.socket, key: bytes, tasks: _Tasks) -> Connection:
    """The next task that connects."""
    while True:
        tasks.raise_error()
        try:
            accepted, _ = server.accept()
        except TimeoutError:
            continue
        accepted.setblocking(True)
        connection = Connection(accepted.detach())
        deliver_challenge(connection, key)
        answer_challenge(connection, key)
        return connection


class _Tasks:
    """The Spark job of all shards, in a thread of its own."""

    def __init__(self, context: SparkContext, count: int, task: Callable[[int, Iterable[Any]], Iterator[None]]) -> None:
        self._context = context
        self._error: Exception | None = None
        self._stage = context.parallelize(range(count), count).barrier().mapPartitionsWithIndex(task)
        self._thread = threading.Thread(target=self._work, name="exploration", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            self._stage.count()
        except Exception as error:
            self._error = error

    def raise_error(self) -> None:
        """LostShard with the cause that Spark gave, if the job has ended."""
        if self._thread.is_alive():
            return
        error = str(self._error)
        if _TOO_FEW_SLOTS in error:
            raise LostShard(f"Spark has no {self._stage.getNumPartitions()} slots at the same time")
        raise LostShard(f"Spark ended the tasks of the exploration: {cause_in(error)}")

    def end(self) -> None:
        """Tasks end when their connections are closed; none keeps running that did not."""
        from results.store.spark import unless_gone

        self._thread.join(_GONE_S)
        if self._thread.is_alive():
            with unless_gone():
                self._context.cancelAllJobs()
            self._thread.join(_GONE_S)
