"""One process at a time uses a data directory."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from images.broker.runtime.directory_lock import LOCK_FILE, DirectoryLocked, locked

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _configuration(directory: Path, port: int) -> Path:
    """A properties file for a controller alone in its quorum, with its data in `directory`/data."""
    path = directory / f"node-{port}.properties"
    path.write_text(
        f"process.roles=controller\nnode.id=101\nlisteners=PLAINTEXT://127.0.0.1:{port}\n"
        f"controller.quorum.voters=101@127.0.0.1:{port}\nlog.dirs={directory / 'data'}\n"
    )
    return path


def _command(configuration: Path) -> list[str]:
    return [sys.executable, "-m", "images.broker", str(configuration)]


@contextmanager
def serving(directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A node that listens."""
    port = _free_port()
    with subprocess.Popen(_command(_configuration(directory, port)), cwd=ROOT, stderr=subprocess.PIPE) as node:
        try:
            until = time.monotonic() + PATIENCE_S
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                except ConnectionRefusedError:
                    assert node.poll() is None, node.stderr and node.stderr.read()
                    assert time.monotonic() < until
                    time.sleep(0.02)
            yield node
        finally:
            node.kill()


def test_a_second_process_on_the_same_data_is_refused_in_a_line(tmp_path: Path) -> None:
    with serving(tmp_path) as first:
        command = _command(_configuration(tmp_path, _free_port()))
        second = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert second.returncode == 1
        (line,) = second.stderr.splitlines()
        assert f"another process uses {tmp_path / 'data'}" in line
        first.send_signal(signal.SIGTERM)
        assert first.wait(PATIENCE_S) == 0, "the first is not disturbed"


def test_a_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    for _ in range(2):
        with serving(tmp_path) as node:
            node.kill()
            node.wait(PATIENCE_S)
        assert (tmp_path / "data" / LOCK_FILE).exists()


def test_a_lock_is_free_again_after_its_holder_and_others_directories_are_not_locked(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    with ExitStack() as held:
        for directory in (one, other):
            directory.mkdir()
            held.enter_context(locked(directory))
        with pytest.raises(DirectoryLocked), locked(one):
            raise AssertionError("locked twice")
    with locked(one):
        pass
