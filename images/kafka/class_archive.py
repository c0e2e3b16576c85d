"""Writes the archive of Kafka's classes (application class-data sharing): `python3 -m images.kafka.class_archive`.

A Java machine that starts with it takes half the processor time until Kafka serves. The classes are those that a node
loads from its start to its clean stop; the archive fits this Java and these archives alone, and is ignored elsewhere.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

from images.kafka.__main__ import CLASSES, CLUSTER_ID, java_command

_STARTED = "Kafka Server started"
_START_LIMIT_S = 1800.0
"""Of the whole life of the node, on a busy machine."""
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:{controller}
log.cleaner.dedupe.buffer.size=4194304
log.dirs={data}
"""


def main() -> None:
    """Format, start and stop one node. Raises SystemExit, with its output, when it does not start."""
    with TemporaryDirectory() as home:
        config = Path(home, "node.properties")
        with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
            ports = {"broker": one.getsockname()[1], "controller": other.getsockname()[1]}
        config.write_text(_PROPERTIES.format(**ports, data=f"{home}/data"))
        tool = ["kafka.tools.StorageTool", "format", "--cluster-id", CLUSTER_ID, "--config", str(config)]
        subprocess.run(java_command(*tool), check=True, stdout=subprocess.DEVNULL)
        command = java_command("kafka.Kafka", str(config), options=[f"-XX:ArchiveClassesAtExit={CLASSES}"])
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as kafka:
            output: list[str] = []
            silence = threading.Timer(_START_LIMIT_S, kafka.kill)
            silence.start()
            for line in kafka.stdout or ():
                output.append(line)
                if _STARTED in line:
                    kafka.terminate()
            silence.cancel()
    if not CLASSES.exists():
        sys.exit("".join(output[-20:]))


if __name__ == "__main__":
    main()
