"""A proxy between a Docker client and the engine, with which tests make the engine fail in a chosen way.

Bytes pass both ways unchanged, but for words that are exchanged for others of the same length, on the way there and
back, so that the engine itself meets what is not there and says so in its own words. A test may also be called at the
first request that holds a word, before the engine has it, and may cut everything off.
"""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from harness.environments.docker.engine import RUN_LABEL, connect

_BLOCK = 1 << 16
_RUN = re.compile(rb'"' + re.escape(RUN_LABEL.encode()) + rb'": ?"([^"]+)"')


class DockerProxy:
    """A socket that leads to the engine."""

    def __init__(self, path: Path, words: Mapping[str, str], before: Mapping[str, Callable[[], None]]) -> None:
        self.address = f"unix://{path}"
        self.runs: set[str] = set()
        """The runs that asked the engine for something of their own."""
        self._engine = _engine_socket()
        self._there = [(ours.encode(), theirs.encode()) for ours, theirs in words.items()]
        self._back = [(theirs, ours) for ours, theirs in self._there]
        self._before = {word.encode(): call for word, call in before.items()}
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_off(self) -> None:
        """From now on nobody answers here."""
        self._listening.close()
        with self._lock:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                ours, _ = self._listening.accept()
            except OSError:
                return
            theirs = socket.socket(socket.AF_UNIX)
            theirs.connect(self._engine)
            with self._lock:
                self._open += [ours, theirs]
            for way in ((ours, theirs, self._on_the_way_there), (theirs, ours, self._on_the_way_back)):
                threading.Thread(target=_pass_on, args=way, daemon=True).start()

    def _on_the_way_there(self, block: bytes) -> bytes:
        self.runs |= {run.decode() for run in _RUN.findall(block)}
        with self._lock:
            due = [self._before.pop(word) for word in list(self._before) if word in block]
        for call in due:
            call()
        return _exchanged(block, self._there)

    def _on_the_way_back(self, block: bytes) -> bytes:
        return _exchanged(block, self._back)


@contextmanager
def docker_proxy(
    directory: Path, words: Mapping[str, str] | None = None, before: Mapping[str, Callable[[], None]] | None = None
) -> Iterator[DockerProxy]:
    """A way to the engine for as long as the block lasts. `words`: ours → the engine's, of one length."""
    way = DockerProxy(directory / "engine.sock", words or {}, before or {})
    try:
        yield way
    finally:
        way.cut_off()


def _engine_socket() -> str:
    client = connect()
    try:
        base = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
        return base.removeprefix("unix://")
    finally:
        client.close()


def _exchanged(block: bytes, words: list[tuple[bytes, bytes]]) -> bytes:
    for before, after in words:
        assert len(before) == len(after)
        block = block.replace(before, after)
    return block


def _pass_on(source: socket.socket, target: socket.socket, change: Callable[[bytes], bytes]) -> None:
    with suppress(OSError):
        while block := source.recv(_BLOCK):
            target.sendall(change(block))
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
