"""The search: level by level, one shard in every process, so that the first broken promise has a shortest schedule."""

from __future__ import annotations

import gc
import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from signal import SIG_IGN, SIGINT, signal
from time import perf_counter, process_time
from typing import Any, Final, NamedTuple

from harness.search.scope_situations import ReachedSituation
from harness.search.state_space.canonical import Fingerprint
from harness.search.state_space.checkpoint import LevelFigures, SearchCheckpoint
from harness.search.state_space.explored_model import Explored
from harness.search.state_space.shard import BrokenPromise, FirstReach, Level, Round, StateShard, owner
from harness.search.state_space.shortest_schedules import ShortestSchedules, WalkedStep
from results.situations.situation import ProtocolSituation

_GONE: Final = "a process of the exploration has ended before its end, and the states that it had are lost"


class ExplorationProgress(NamedTuple):
    """How far an exploration is."""

    depth: int
    """The steps from the first state to those of this level."""
    states: int
    steps: int
    left: int
    """States of this level whose steps have yet to be taken."""
    seconds: float


class Violation(NamedTuple):
    """A broken promise, and the shortest schedule to it."""

    promise: str
    steps: tuple[WalkedStep, ...]

    @property
    def schedule(self) -> tuple[str, ...]:
        """The steps in words."""
        return tuple(step.line for step in self.steps)


class ExplorationResult(NamedTuple):
    """The end of an exploration."""

    states: int
    steps: int
    depth: int
    seconds: float
    """From the first state on, without the start of the processes."""
    cpu_seconds: float
    """Of all shards."""
    memory_mb: int
    """The greatest memory of all shards together."""
    violation: Violation | None
    situations: int | None
    """Of the protocol, in all states found; None for a model that they do not speak of."""
    reached: tuple[ReachedSituation, ...] = ()
    """All of them, if they were asked for; the nearest to the first state first."""


class _Usage(NamedTuple):
    """What the process of a shard has used."""

    cpu_seconds: float
    memory_mb: int


class LostShard(RuntimeError):
    """The process of a shard is gone, and the states that it had with it; the message is one line for the user."""


class RemoteShard:
    """A shard in a process of its own. A call is sent to all shards before the first answer is awaited."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def send(self, call: str, *arguments: Any) -> None:
        """Send a call. Raises LostShard."""
        try:
            self._connection.send((call, arguments))
        except OSError:
            raise LostShard(_GONE) from None

    def receive(self) -> Any:
        """The result of the last call; at first, the shard's number. Raises LostShard."""
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            raise LostShard(_GONE) from None


class LocalShard:
    """The only shard of a search, in this process."""

    def __init__(self, shard: StateShard) -> None:
        self._shard = shard
        self._result: Any = None

    def send(self, call: str, *arguments: Any) -> None:
        """Make a call."""
        self._result = _called(self._shard, call, arguments)

    def receive(self) -> Any:
        """The result of the last call."""
        return self._result


Shards = Sequence[RemoteShard | LocalShard]
Start = Callable[[], Explored]
"""Makes the model anew, in each process."""
ShardsOf = Callable[[Start], AbstractContextManager[Shards]]
"""Starts the shards of a search elsewhere, and ends them."""


def search(
    start: Start,
    processes: int | ShardsOf,
    progress: Callable[[ExplorationProgress], None] = lambda _: None,
    *,
    schedules: bool = False,
    depth_most: int | None = None,
    checkpoint: SearchCheckpoint | None = None,
) -> ExplorationResult:
    """Explore every state of the model until a promise is broken or no state is left, in so many processes here or in
    shards elsewhere; with `schedules`, find the shortest one to every situation; with `depth_most`, take no step from
    states that are so deep; with `checkpoint`, go on from its last level, and keep every further one there. Raises
    LostShard, and StoreError for the checkpoint."""
    with _processes(start, processes) if isinstance(processes, int) else processes(start) as shards:
        began = perf_counter()
        before: list[_Usage] = _all(shards, "usage")
        restored, earlier = (-1, LevelFigures()) if checkpoint is None else _restored(shards, checkpoint)
        depth, states, steps = max(restored, 0), earlier.states, earlier.steps
        began -= earlier.seconds
        while True:
            reached_before = _first_reaches(shards) if checkpoint is not None else {}
            level = _end_level(shards)
            if checkpoint is not None and level.states and not level.broken and depth != restored:
                cpu_s = earlier.cpu_seconds + _cpu_seconds(before, _all(shards, "usage"))
                figures = LevelFigures(states, steps, perf_counter() - began, cpu_s)
                checkpoint.save(figures, _all(shards, "saved"), reached_before)
            states += level.states
            if level.broken or not level.states or depth == depth_most:
                break
            left = level.states
            while left:
                progress(ExplorationProgress(depth, states, steps, left, perf_counter() - began))
                rounds: list[Round] = _all(shards, "expand")
                steps += sum(it.steps for it in rounds)
                left = sum(it.left for it in rounds)
                for sender, it in enumerate(rounds):
                    others = [(shard, packed) for shard, packed in zip(shards, it.outgoing, strict=True) if packed]
                    for shard, packed in others:
                        shard.send("admit", sender, packed)
                    for shard, _ in others:
                        shard.receive()
            depth += 1
        explored = start()
        violation = _violation(explored, shards, min(level.broken)) if level.broken else None
        seconds = perf_counter() - began
        after: list[_Usage] = _all(shards, "usage")
        first = _first_reaches(shards)
        reached = _reached(explored, shards, first) if schedules else ()
    return ExplorationResult(
        states,
        steps,
        depth if level.states or level.broken else depth - 1,
        seconds,
        earlier.cpu_seconds + _cpu_seconds(before, after),
        sum(it.memory_mb for it in after),
        violation,
        None if explored.situation is None else len(first),
        reached,
    )


def _violation(explored: Explored, shards: Shards, broken: BrokenPromise) -> Violation:
    path = _path(shards, broken.fingerprint)
    return Violation(*ShortestSchedules(explored).to_broken_promise(path, by_step=broken.by_step))


def _first_reaches(shards: Shards) -> dict[str, FirstReach]:
    first: dict[str, FirstReach] = {}
    for reached in _all(shards, "reached"):
        for code, reach in reached.items():
            first[code] = min(reach, first.get(code, reach))
    return first


def _reached(explored: Explored, shards: Shards, first: dict[str, FirstReach]) -> tuple[ReachedSituation, ...]:
    schedules = ShortestSchedules(explored)
    return tuple(
        ReachedSituation(ProtocolSituation(code), schedules.along(_path(shards, reach.fingerprint)))
        for code, reach in sorted(first.items(), key=lambda item: (item[1].depth, item[0]))
    )


def _path(shards: Shards, fingerprint: Fingerprint) -> tuple[Fingerprint, ...]:
    """The fingerprints on a shortest way to this one, from the first state on."""
    path: list[Fingerprint] = []
    before: Fingerprint | None = fingerprint
    while before is not None:
        path.insert(0, before)
        shard = shards[owner(before, len(shards))]
        shard.send("parent", before)
        before = shard.receive()
    return tuple(path)


def _end_level(shards: Shards) -> Level:
    levels: list[Level] = _all(shards, "end_level")
    return Level(sum(it.states for it in levels), tuple(broken for it in levels for broken in it.broken))


def _restored(shards: Shards, checkpoint: SearchCheckpoint) -> tuple[int, LevelFigures]:
    """Have the shards go on from the last level of a checkpoint: its depth, -1 where there is none, and the figures of
    those before it. Raises StoreError."""
    saved = checkpoint.load()
    if saved is None:
        return -1, LevelFigures()
    _all(shards, "restore", saved.depth, saved.parents, saved.reached, saved.states)
    return saved.depth, saved.figures


def _cpu_seconds(before: Sequence[_Usage], after: Sequence[_Usage]) -> float:
    return sum(end.cpu_seconds - start.cpu_seconds for start, end in zip(before, after, strict=True))


def _all(shards: Shards, call: str, *arguments: Any) -> list[Any]:
    for shard in shards:
        shard.send(call, *arguments)
    return [shard.receive() for shard in shards]


@contextmanager
def _processes(start: Start, processes: int) -> Iterator[Shards]:
    if processes == 1:
        with _rare_collections():
            yield (LocalShard(StateShard(start(), 0, 1)),)
        return
    context = get_context("spawn")
    with ExitStack() as ends:
        shards = []
        for index in range(processes):
            connection, other = context.Pipe()
            process = context.Process(target=serve, args=(other, start, index, processes), daemon=True)
            process.start()
            ends.callback(process.join)
            ends.callback(process.terminate)
            ends.callback(connection.close)
            other.close()
            shards.append(RemoteShard(connection))
        for shard in shards:
            shard.receive()
        yield shards


def serve(connection: Connection, start: Start, index: int, count: int) -> None:
    """Be shard `index` of `count` at the other end of `connection`, until that is closed; say `index` at first."""
    signal(SIGINT, SIG_IGN)  # an interruption is of the process that waits for the shards, which ends them
    shard = StateShard(start(), index, count)
    connection.send(index)
    # The connection is closed once the process that waits for the shards is gone.
    with _rare_collections(), suppress(EOFError, BrokenPipeError):
        while True:
            call, arguments = connection.recv()
            connection.send(_called(shard, call, arguments))


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Few collections of garbage: nearly all that a shard makes it keeps, so a collection looks through it in vain."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _called(shard: StateShard, call: str, arguments: tuple[Any, ...]) -> Any:
    return _usage() if call == "usage" else getattr(shard, call)(*arguments)


def _usage() -> _Usage:
    return _Usage(process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
