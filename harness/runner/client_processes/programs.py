"""The programs of client processes, and what this machine needs for them.

librdkafka comes with the Python package confluent-kafka. Kafka's Java library comes by Maven, in the release of the
system under test; its program is one source file, compiled once for each release by the `javac` of a JDK, and run by
the `java` beside it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

from harness.cluster.systems import SYSTEMS
from harness.errors import EnvironmentUnavailable
from harness.node_images.cache import keep, place_of
from harness.node_images.jars import CHECKSUMS, JarsError, jars
from images.system import System

_HERE: Final = Path(__file__).parent
_SOURCE: Final = _HERE / "KafkaClients.java"
_JACKSON: Final = "com.fasterxml.jackson.core:jackson-databind:2.16.2"
_SLF4J: Final = "org.slf4j:slf4j-simple:1.7.36"
_JVM: Final = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xmx256m",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=off",
)
_COMPILE_LIMIT_S: Final = 300

MISSING_LIBRDKAFKA: Final = "the Python package confluent-kafka is not installed"
INSTALL_LIBRDKAFKA: Final = "pip install confluent-kafka"
MISSING_JDK: Final = "no JDK is installed: javac is missing"
INSTALL_JDK: Final = "install one (on Debian: apt-get install openjdk-17-jdk-headless) or point JAVA_HOME at one"


def command(library: str, system: System) -> tuple[str, ...]:
    """The command of a process for the clients of `library` against `system`. Raises EnvironmentUnavailable."""
    try:
        return _librdkafka() if library == "librdkafka" else _java(system)
    except (JarsError, OSError, subprocess.SubprocessError) as error:
        raise EnvironmentUnavailable(f"clients of {library}: {error}") from None


def has_librdkafka() -> bool:
    """Whether confluent-kafka is installed."""
    return find_spec("confluent_kafka") is not None


def jdk() -> Path | None:
    """The directory with `javac` and `java`: of JAVA_HOME, else of the path; None without one."""
    home = os.environ.get("JAVA_HOME")
    places = [Path(home) / "bin" / "javac"] if home else []
    found = shutil.which("javac")
    if found is not None:
        places.append(Path(found).resolve())
    return next((place.parent for place in places if place.exists() and (place.parent / "java").exists()), None)


def java_archives(system: System) -> tuple[str, ...]:
    """Kafka's Java clients in the release of `system`; in the default one where it is not Kafka."""
    release = system if system.name == "kafka" else SYSTEMS["kafka"]
    return (f"org.apache.kafka:kafka-clients:{release.version}", _JACKSON, _SLF4J)


def _librdkafka() -> tuple[str, ...]:
    if not has_librdkafka():
        raise EnvironmentUnavailable(f"clients of librdkafka: {MISSING_LIBRDKAFKA}; {INSTALL_LIBRDKAFKA}")
    return (sys.executable, "-P", str(_HERE / "librdkafka_clients.py"))


def _java(system: System) -> tuple[str, ...]:
    tools = jdk()
    if tools is None:
        raise EnvironmentUnavailable(f"clients of java: {MISSING_JDK}; {INSTALL_JDK}")
    archives = jars(java_archives(system))
    classes = _compiled(tools, archives)
    return (str(tools / "java"), *_JVM, "-cp", f"{classes}:{archives}/*", _SOURCE.stem)


def _compiled(tools: Path, archives: Path) -> Path:
    """The directory of the program's classes, for these archives and this JDK."""
    made_of: Sequence[str] = (_SOURCE.read_text(), (archives / CHECKSUMS).read_text(), str(tools))
    kept = place_of("java-clients", made_of)
    if kept.is_dir():
        return kept
    kept.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(mkdtemp(prefix="java-clients-", dir=kept.parent))
    try:
        done = subprocess.run(
            [str(tools / "javac"), "-d", str(partial), "-cp", f"{archives}/*", str(_SOURCE)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_COMPILE_LIMIT_S,
            check=False,
        )
        if done.returncode:
            raise EnvironmentUnavailable(f"clients of java: {_SOURCE.name} does not compile: {done.stdout.strip()}")
        keep(partial, kept)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return kept
