"""Temporary directories of processes that were killed, and of those that live."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from results.run.temporary_directory import temporary_directory

HOLDER = """\
import sys
from results.run.temporary_directory import temporary_directory
with temporary_directory("test") as directory:
    (directory / "run").mkdir()
    (directory / "run" / "history.jsonl").write_text("x")
    print(directory, flush=True)
    sys.stdin.read()
"""


FORKING = """\
import os, time
from results.run.temporary_directory import temporary_directory
with temporary_directory("test") as directory:
    print(directory, flush=True)
    child = os.fork()
    if child:
        print(child, flush=True)
    time.sleep(60)
"""


def holder(home: Path, program: str = HOLDER) -> tuple[subprocess.Popen[str], Path]:
    """A process of its own that has a temporary directory in `home` until its standard input ends, or as `program` has
    it."""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env={"TMPDIR": str(home), "PYTHONPATH": str(Path(__file__).parents[3])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_the_directory_of_a_killed_process_is_removed_by_the_next_and_that_of_a_living_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, elsewhere = tmp_path / "tmp", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    (home / "faultline-spark-81q3trou").mkdir()  # of a version that locked none
    (home / "faultline-test-1-linked").symlink_to(elsewhere)
    (home / "faultline-test-1-file").write_text("x")
    foreign = sorted(home.iterdir())
    killed, left = holder(home)
    living, in_use = holder(home)
    try:
        killed.kill()
        killed.communicate()
        assert (left / "run" / "history.jsonl").exists()
        monkeypatch.setattr("tempfile.tempdir", str(home))
        with temporary_directory("test") as mine:
            assert sorted(home.iterdir()) == sorted([*foreign, in_use, mine])
            assert (in_use / "run" / "history.jsonl").exists()
        assert elsewhere.exists()
    finally:
        living.communicate()
    assert sorted(home.iterdir()) == foreign


def test_one_that_cannot_be_locked_is_not_taken_for_one_of_a_killed_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_lock: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with monkeypatch.context() as unlockable:
        unlockable.setattr("fcntl.flock", fail)
        with temporary_directory("test") as mine:
            process, _ = holder(tmp_path)
            process.communicate()
            assert mine.is_dir()
    assert list(tmp_path.iterdir()) == []


def test_the_directory_of_another_user_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed, left = holder(tmp_path)
    killed.kill()
    killed.communicate()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    other = os.geteuid() + 1
    monkeypatch.setattr("os.geteuid", lambda: other)
    with temporary_directory("test"):
        assert left.is_dir()


def test_a_forked_process_keeps_the_directory_that_it_may_use(tmp_path: Path) -> None:
    process, directory = holder(tmp_path, FORKING)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.kill()
    process.wait()
    try:
        other, _ = holder(tmp_path)
        other.communicate()
        assert directory.is_dir()
    finally:
        os.kill(child, signal.SIGKILL)
    process.communicate()  # until the child has ended, too
    other, _ = holder(tmp_path)
    other.communicate()
    assert not directory.exists()


def test_a_directory_is_removed_after_an_error_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        with temporary_directory("test") as directory:
            (directory / "file").write_text("x")
            raise ValueError("broken")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ValueError, match="broken"):
        fail()
    assert list(tmp_path.iterdir()) == []
