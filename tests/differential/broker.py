"""This broker as the differential table sees it: one controller and one broker on the loopback interface."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from harness.cluster.loopback import LoopbackCluster
from tests.differential.kafka import SETTINGS

AT_ONCE = 16
"""Cases played at a time: each has topics and groups of its own, and mostly waits."""
_SETTINGS = {**SETTINGS, "broker.session.timeout.ms": "120000"}
"""On a busy machine the broker is not fenced, which would begin a new leader epoch."""


class _Cluster(LoopbackCluster):
    @property
    def ended(self) -> bool:
        """Whether a process has ended by itself."""
        return any(process.poll() is not None for process in self._processes.values())


class Broker:
    """A cluster of one broker with its data below `directory`. Use it in a `with` block."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._clusters = 0
        self._cluster = self._new()

    @property
    def address(self) -> tuple[str, int]:
        """Where the broker listens."""
        (node,) = self._cluster.layout.brokers
        return node.host, node.port

    def __enter__(self) -> Self:
        self._cluster.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._cluster.__exit__(kind, error, at)

    def restart_ended(self) -> bool:
        """Start a new, empty cluster if a process has ended; whether one had."""
        if not self._cluster.ended:
            return False
        self._cluster.__exit__(None, None, None)
        self._cluster = self._new()
        self._cluster.__enter__()
        return True

    def _new(self) -> _Cluster:
        self._clusters += 1
        return _Cluster(self._directory / str(self._clusters), brokers=1, controllers=1, settings=_SETTINGS)
