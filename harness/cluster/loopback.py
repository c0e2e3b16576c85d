"""A cluster of real processes on this machine's loopback interface, for benchmarks and for tests with real clients.

Not an environment: no fault but a signal acts here, and there is no run directory. Each node is a process of its
system (`images.system.Service`) with its data in a directory of its own.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from harness.cluster.layout import ClusterNode, Layout, cluster_layout
from harness.cluster.readiness import Expected, ReadinessProbe
from harness.cluster.systems import SYSTEMS, configured
from images.system import System

_READY_LIMIT_S = 240.0
"""The longest time without progress."""


class LoopbackError(RuntimeError):
    """The cluster could not be started; the message names the node and where its log is."""


class LoopbackCluster:
    """Controllers and brokers. Use it in a `with` block: leaving it ends every process it started."""

    def __init__(
        self,
        directory: Path,
        *,
        system: System = SYSTEMS["broker"],
        brokers: int = 3,
        controllers: int = 3,
        settings: Mapping[str, str] | None = None,
        rules_off: Sequence[str] = (),
    ) -> None:
        self.directory = directory
        self.layout = configured(system, loopback_layout(brokers, controllers), settings or {}, rules_off)
        self._services = {
            node.name: system.service(self.layout.properties[node.name], str(directory / node.name))
            for node in self.layout.nodes
        }
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def bootstrap(self) -> str:
        """`bootstrap.servers` for a client."""
        return ",".join(f"{node.host}:{node.port}" for node in self.layout.brokers)

    @property
    def pids(self) -> dict[str, int]:
        """The process of every node started, by the node's name."""
        return {name: process.pid for name, process in self._processes.items()}

    @property
    def ended(self) -> list[str]:
        """The nodes whose process has ended."""
        return [name for name, process in self._processes.items() if process.poll() is not None]

    def __enter__(self) -> Self:
        try:
            for node in self.layout.nodes:
                self.start(node.name)
            self.wait_until_ready()
        except BaseException:
            self._end_all()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end_all()

    def start(self, name: str) -> None:
        """Start the process of a node that is down."""
        service = self._services[name]
        (self.directory / name).mkdir(parents=True, exist_ok=True)
        for path, text in service.files.items():
            Path(path).write_text(text)
        argv = [sys.executable if word == "python3" else word for word in service.argv]
        with Path(service.log).open("ab") as log:
            self._processes[name] = subprocess.Popen(argv, stderr=log, stdout=log, stdin=subprocess.DEVNULL)

    def kill(self, name: str) -> None:
        """SIGKILL."""
        self._processes[name].kill()
        self._processes[name].wait()

    def stop(self, name: str) -> int:
        """SIGTERM, then wait; the exit status."""
        self._processes[name].send_signal(signal.SIGTERM)
        return self._processes[name].wait(self._services[name].stop_limit_s)

    def log_of(self, name: str) -> str:
        """The node's log so far."""
        return Path(self._services[name].log).read_text()

    def wait_until_ready(self, expected: Expected | None = None) -> None:
        """Wait until every broker sees all brokers, and `expected`'s partitions led and fully in sync."""

        async def wait() -> list[str]:
            probe = ReadinessProbe(
                {node.name: (node.host, node.port) for node in self.layout.brokers}, expected or Expected()
            )
            try:
                return await probe.until_ready_or_stuck(_READY_LIMIT_S, lambda: bool(self._failed))
            finally:
                probe.close()

        missing = asyncio.run(wait())
        for name, status in self._failed.items():
            if missing:
                raise LoopbackError(f"{name} ended with status {status}; see {self.directory / name}/node.log")
        if missing:
            raise LoopbackError(
                f"not ready, and no nearer to it for {_READY_LIMIT_S:.0f} s: {'; '.join(missing)} ({self.directory})"
            )

    @property
    def _failed(self) -> dict[str, int]:
        """Exit status of every process that has ended without a signal from here."""
        statuses = {name: process.poll() for name, process in self._processes.items()}
        return {name: status for name, status in statuses.items() if status not in (None, -signal.SIGKILL)}

    def _end_all(self) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()


def loopback_layout(brokers: int, controllers: int) -> Layout:
    """A layout with every node on 127.0.0.1, each on a port that is free now."""
    with ExitStack() as held:

        def free_port(_: ClusterNode) -> tuple[str, int]:
            listener = held.enter_context(socket.create_server(("127.0.0.1", 0)))
            return "127.0.0.1", int(listener.getsockname()[1])

        return cluster_layout(brokers, controllers, free_port)
