"""Start one node: `python -m images.broker CONFIG`, where CONFIG is a Kafka properties file.

The node keeps its data below `log.dirs`, appends its protocol trace to `trace.jsonl` there, or to the file given with
`--trace`, and writes its log to standard error. SIGTERM and SIGINT stop it: a broker hands its leadership over first.
Exit status: 0 after a clean stop, 1 after a fatal error or if another process uses `log.dirs`, 64 for an unusable
configuration.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from random import SystemRandom

from images.broker.config import ConfigError, NodeConfig
from images.broker.metadata.image import MetadataError
from images.broker.node import run_node
from images.broker.ports import NodePorts
from images.broker.runtime.directory_lock import DirectoryLocked, locked
from images.broker.runtime.files import RealFiles
from images.broker.runtime.heap import keep_freed_memory
from images.broker.runtime.stall_watch import trace_stalls
from images.broker.runtime.trace_file import TraceFile, boot_clock
from images.wire.batch import CorruptBatch

EX_USAGE = 64
TRACE_FILE = "trace.jsonl"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a node until a signal stops it; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m images.broker", description="Start one node of the broker.")
    parser.add_argument("config", metavar="CONFIG", type=Path, help="a Kafka properties file")
    parser.add_argument(
        "--trace", metavar="FILE", type=Path, help="where the protocol trace goes (log.dirs/trace.jsonl)"
    )
    options = parser.parse_args(arguments)
    path: Path = options.config
    try:
        config = NodeConfig.parse(path.read_text())
    except (OSError, ConfigError, UnicodeDecodeError) as error:
        print(f"{path}: {error}", file=sys.stderr)
        return EX_USAGE
    keep_freed_memory()
    try:
        data = Path(config.log_directory)
        data.mkdir(parents=True, exist_ok=True)
        with locked(data), TraceFile(options.trace or data / TRACE_FILE) as trace:
            files = RealFiles(data)
            node_ports = NodePorts(files, SystemRandom(), trace.append, _log, _unix_ms, files.disk_space)
            asyncio.run(_run(config, node_ports))
    except DirectoryLocked as refusal:
        _log(f"node {config.node_id} does not start: {refusal}")
        return 1
    except Exception as fatal_error:
        first = _root_cause(fatal_error)
        if isinstance(first, (OSError, CorruptBatch, MetadataError)):
            _log(f"node {config.node_id} failed: {first}")
        else:
            traceback.print_exception(fatal_error)
        return 1
    return 0


def _root_cause(fatal_error: BaseException) -> BaseException:
    """The first exception in nested exception groups."""
    while isinstance(fatal_error, BaseExceptionGroup):
        fatal_error = fatal_error.exceptions[0]
    return fatal_error


async def _run(config: NodeConfig, node_ports: NodePorts) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    async with asyncio.TaskGroup() as tasks:
        watch = tasks.create_task(trace_stalls(node_ports.trace, boot_clock()))
        await run_node(config, node_ports, stopping)
        watch.cancel()


def _unix_ms() -> int:
    return time.time_ns() // 1_000_000


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
