"""Apache Kafka as a process on the loopback interface: one node, controller and broker, from Maven's artefacts."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from harness.cluster.systems import SYSTEMS
from harness.node_images.jars import jars
from images.broker.config import DEFAULT_CLUSTER_ID
from tests.differential.scene import NODE

SETTINGS: Mapping[str, str] = {
    "num.partitions": "1",
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "6000",
    "log.retention.ms": "-1",
    "offsets.commit.timeout.ms": "5000",
}
"""The configuration of both servers."""

_KAFKA_ONLY: Mapping[str, str] = {
    "auto.create.topics.enable": "false",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}
_START_LIMIT_S = 90.0
_STOP_LIMIT_S = 30.0
_HEAP = "-Xmx350m"


class KafkaError(RuntimeError):
    """Kafka could not be started; the message says where its output is."""


class Kafka:
    """A Kafka node with its data below `directory`. Use it in a `with` block: leaving it ends the process."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
            self.address: tuple[str, int] = one.getsockname()
            self._controller_port: int = two.getsockname()[1]

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """End the process: SIGTERM, then SIGKILL."""
        process = self._process
        if process is None:
            return
        process.terminate()
        try:
            process.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def restart_ended(self) -> bool:
        """No case ends Kafka. Raises KafkaError if one has."""
        if self._process is None or self._process.poll() is not None:
            raise KafkaError("Kafka ended")
        return False

    def _start(self) -> None:
        libraries = jars(SYSTEMS["kafka"].shipment.jars)
        config = self._directory / "server.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in self._properties().items()))
        log = self._directory / "kafka.log"
        java = ["java", _HEAP, "-cp", f"{libraries}/*"]
        with log.open("ab") as output:
            format_storage = ["kafka.tools.StorageTool", "format", "-t", DEFAULT_CLUSTER_ID, "-c", str(config)]
            subprocess.run([*java, *format_storage], stdout=output, stderr=output, check=True)
            self._process = subprocess.Popen([*java, "kafka.Kafka", str(config)], stdout=output, stderr=output)
        until = time.monotonic() + _START_LIMIT_S
        while not self._listens():
            if self._process.poll() is not None or time.monotonic() > until:
                raise KafkaError(f"Kafka does not listen on {self.address[1]}; see {log}")
            time.sleep(0.1)

    def _listens(self) -> bool:
        try:
            socket.create_connection(self.address, timeout=1).close()
        except OSError:
            return False
        return True

    def _properties(self) -> dict[str, str]:
        host, port = self.address
        return {
            "process.roles": "broker,controller",
            "node.id": str(NODE),
            "controller.quorum.voters": f"{NODE}@{host}:{self._controller_port}",
            "listeners": f"PLAINTEXT://{host}:{port},CONTROLLER://{host}:{self._controller_port}",
            "advertised.listeners": f"PLAINTEXT://{host}:{port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self._directory / "data"),
            **SETTINGS,
            **_KAFKA_ONLY,
        }
