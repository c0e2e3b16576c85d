"""Kafka's own command line tools against real broker processes on loopback."""

from __future__ import annotations

import shutil
from pathlib import Path

from harness.cluster.loopback import LoopbackCluster
from harness.cluster.systems import SYSTEMS
from harness.node_images.jars import JarsError, jars
from tests.clients.kafka_tools import TOOLS, JavaTools, Session
from tests.clients.requirements import missing


def test_every_tool_of_kafka_does_what_it_should(tmp_path: Path) -> None:
    """One test, since the tools share a Java process and a cluster, which take longer than they do."""
    for command in ("java", "javac"):
        if shutil.which(command) is None:
            missing(f"{command} is not installed")
    try:
        libraries = jars(SYSTEMS["kafka"].shipment.jars)
    except JarsError as error:
        missing(str(error))
    with LoopbackCluster(tmp_path, controllers=1) as cluster, JavaTools(libraries, tmp_path / "java.log") as java:
        for tool in TOOLS:
            tool.play(Session(java, cluster, tmp_path, tool))


def test_twenty_tools_are_played() -> None:
    assert len({tool.script for tool in TOOLS}) >= 20
