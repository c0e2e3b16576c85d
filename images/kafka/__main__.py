"""One node of Apache Kafka: `python3 -m images.kafka CONFIG DATA SCHEMAS [--feature NAME=LEVEL …]`.

Writes the schemas of the release's metadata records to SCHEMAS, a JSON list of their texts. Formats DATA where it has
no `meta.properties` (before the first start, and after a disk was wiped), makes that durable, and then becomes Kafka:
the process is the Java machine itself, so that a signal reaches it and its status is Kafka's. SIGTERM stops Kafka
cleanly; it then ends with 143, as Java does. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn
from zipfile import ZipFile

JARS = Path(__file__).resolve().parents[2] / "kafka" / "jars"
CLASSES = JARS.parent / "classes.jsa"
"""Where images have it, the archive of classes (`images.kafka.class_archive`)."""
CLUSTER_ID = "ZmF1bHRsaW5lLWthZmthMQ"
"""Of every cluster: a run has one, on a network of its own."""
_QUIET = ("-XX:+UseSerialGC", "-XX:-UsePerfData", "-Djava.awt.headless=true")
"""Without performance data, which a Java machine that is killed leaves in /tmp."""
_FORMATTING = ("-Xmx128m", "-XX:TieredStopAtLevel=1")
_RUNNING = ("-Xmx320m", "-XX:+ExitOnOutOfMemoryError")
_LOGGING = (
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS",
    "-Dorg.slf4j.simpleLogger.showThreadName=false",
)

_OTHER_LOGGING = "slf4j-reload4j-"
"""Releases before 4.0 come with a second library for logs, which takes the place of slf4j-simple and writes none."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Format if needed, then run Kafka in place of this process. Raises SystemExit when that cannot be."""
    parser = argparse.ArgumentParser(prog="python3 -m images.kafka")
    parser.add_argument("config")
    parser.add_argument("data", type=Path)
    parser.add_argument("schemas", type=Path)
    parser.add_argument("--feature", action="append", default=[])
    options = parser.parse_args(arguments)
    options.schemas.write_text(json.dumps(_schemas()))
    if not (options.data / "meta.properties").exists():
        status = _format(options.config, options.feature)
        if status:
            sys.exit(status)
        _sync(options.data)
    sys.stdout.flush()
    unpacked = f"-Djava.io.tmpdir={options.data.parent}"  # libraries unpack machine code, and leave it when killed
    command = java_command("kafka.Kafka", options.config, options=(*_RUNNING, unpacked))
    os.execv(command[0], command)


def java_command(main_class: str, *arguments: str, options: Sequence[str] = ()) -> list[str]:
    """The command that runs one of Kafka's programs. Raises SystemExit, in one line, without Java."""
    java = shutil.which("java")
    if java is None:
        sys.exit("java is not installed; on Debian: apt-get install openjdk-17-jre-headless")
    shared = [f"-XX:SharedArchiveFile={CLASSES}"] if CLASSES.exists() else []
    jars = [jar for jar in sorted(JARS.glob("*.jar")) if not jar.name.startswith(_OTHER_LOGGING)]
    path = ":".join(str(jar) for jar in jars)  # as the archive was written with
    return [java, *_QUIET, *_LOGGING, *shared, *options, "-cp", path, main_class, *arguments]


def _schemas() -> list[str]:
    """The schemas of metadata records, from Kafka's own archive."""
    (archive,) = JARS.glob("kafka-metadata-*.jar")
    with ZipFile(archive) as jar:
        names = [name for name in jar.namelist() if name.startswith("common/metadata/") and name.endswith(".json")]
        return [jar.read(name).decode() for name in sorted(names)]


def _format(config: str, features: Sequence[str]) -> int:
    """`kafka-storage format`; its status. A SIGTERM meanwhile ends both."""
    chosen = [word for feature in features for word in ("--feature", feature)]
    tool = ["kafka.tools.StorageTool", "format", "--cluster-id", CLUSTER_ID, "--config", config, *chosen]
    formatting = subprocess.Popen(java_command(*tool, options=_FORMATTING))

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        formatting.kill()
        formatting.wait()
        os._exit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        return formatting.wait()
    finally:
        signal.signal(signal.SIGTERM, before)


def _sync(directory: Path) -> None:
    """Make everything in `directory` durable: the tool syncs some of its files alone, and formatting is no fault's
    business."""
    for path in (*directory.iterdir(), directory):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


if __name__ == "__main__":
    main()
