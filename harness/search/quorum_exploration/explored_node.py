"""The shipped `RaftNode` of a controller without a network, a clock and files: it is put into a state, gets one event,
and is read out again.

What it sends is collected. Its time stands still: an event that waits for a timeout comes as if it were over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from random import Random
from typing import Any

from harness.search.quorum_exploration.memory_metadata_log import MemoryMetadataLog
from harness.search.quorum_exploration.quorum_values import VoterState
from harness.simulation.storage.disk import SimDisk
from harness.simulation.storage.files import SimFiles
from images.broker.config import NodeConfig
from images.broker.frozen_map import FrozenMap
from images.broker.metadata.image import ProducerIdsBlock
from images.broker.ports import NodePorts
from images.broker.raft.node import RaftNode
from images.broker.raft.values import Moment, OutgoingMessage
from images.broker.rules import Rules
from images.broker.runtime.fatal_error import FatalError

NOW_MS = 1_000_000
"""Now, where every deadline is over and every fetch of time 0 long ago."""


class ExploredNode(RaftNode):
    """The node of one controller."""

    log: MemoryMetadataLog

    def __init__(self, config: NodeConfig, log: MemoryMetadataLog) -> None:
        self.sent: list[OutgoingMessage] = []
        self._response: Any = None
        self._request: Any = None
        ports = NodePorts(SimFiles(SimDisk()), Random(0), lambda event: None, lambda line: None, now_ms=lambda: 0)
        super().__init__(config, ports, log, _RaisedError(), lambda: None)
        self._loop = _StillLoop()  # type: ignore[assignment]

    # ---- events ------------------------------------------------------------------------------------------------------

    def put_into(self, voter: VoterState, fetched_ms: dict[int, int] | None = None) -> None:
        """Put the node into a state; with `fetched_ms`, a leader's followers have last fetched at these times."""
        state = voter.quorum
        if fetched_ms is not None:
            progress = {it: known._replace(fetched_ms=fetched_ms[it]) for it, known in state.progress.items()}
            state = replace(state, progress=FrozenMap(progress))
        self.state = state
        self.log = MemoryMetadataLog(voter.records, voter.epochs, voter.stored, state.rules)
        self._election_state = voter.stored
        self._pending_appends.clear()
        self.sent = []

    def time_out(self) -> None:
        """The timeout of the state is over."""
        self._on_timer()

    def change(self, number: int) -> None:
        """The active controller appends a change, a batch with this number."""
        coroutine = self.append(self.state.epoch, [ProducerIdsBlock(0)], number, lambda: None)
        coroutine.send(None)
        self._pending_appends.clear()
        coroutine.close()

    def request_of(self, message: OutgoingMessage) -> Any:
        """The message as it is sent."""
        self._response = None
        finished(self._send(message))
        return self._request

    def answered(self, message: OutgoingMessage, response: Any) -> None:
        """The response to a message that it has sent arrives."""
        self._response = response
        finished(self._send(message))

    def fetched(self, partition: Any) -> None:
        """The response to its fetch arrives, with this partition."""
        self._on_fetch_response(partition)

    # ---- without a network, a clock and a trace ----------------------------------------------------------------------

    async def _call(self, to: int, request: Any) -> Any:
        self._request = request
        return self._response

    def _spawn(self, work: Any, *arguments: Any) -> Any:
        assert work == self._send
        self.sent += arguments

    def _follow(self) -> None:
        """The exploration sends the fetches of a follower."""

    def _set_timer(self) -> None:
        """Every time comes when the exploration says so."""

    def _now(self) -> Moment:
        return Moment(NOW_MS, 0.5)

    def _trace(self, kind: str, **fields: Any) -> None:
        """Nobody reads it."""


class _StillLoop:
    """An event loop that runs nothing."""

    def time(self) -> float:
        return NOW_MS / 1000

    def call_soon(self, callback: Any) -> None:
        """The active controller is no part of the exploration."""

    def create_future(self) -> _Pending:
        return _Pending()


class _Pending:
    """The commit of an appended change, which its caller awaits."""

    def done(self) -> bool:
        return False

    def set_result(self, result: None) -> None:
        """Nobody awaits it."""

    def set_exception(self, error: Exception) -> None:
        """Nobody awaits it."""

    def __await__(self) -> Any:
        yield


class _RaisedError(FatalError):
    """A fatal error ends the exploration."""

    def __init__(self) -> None:
        """Without a running loop to wait in."""

    def set(self, error: Exception) -> None:
        raise error


def finished(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


def started(config: NodeConfig, log: MemoryMetadataLog) -> ExploredNode:
    """The node as it starts with this log."""

    async def start() -> ExploredNode:
        return ExploredNode(config, log)

    return asyncio.run(start())


def node_config(node: int, voters: tuple[int, ...], rules: Rules) -> NodeConfig:
    """The configuration of a controller."""
    return NodeConfig.parse(
        "\n".join(
            (
                "process.roles=controller",
                f"node.id={node}",
                f"listeners=c{node}:1",
                f"controller.quorum.voters={','.join(f'{voter}@c{voter}:1' for voter in voters)}",
                f"faultline.rules.off={','.join(rules.off())}",
            )
        )
    )
