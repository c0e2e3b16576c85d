"""Temporary directories of processes that were killed, and of those that live."""

from __future__ import annotations

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


def holder(home: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process of its own that has a temporary directory in `home` until its standard input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER],
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


def test_a_directory_is_removed_after_an_error_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        with temporary_directory("test") as directory:
            (directory / "file").write_text("x")
            raise ValueError("broken")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ValueError, match="broken"):
        fail()
    assert list(tmp_path.iterdir()) == []
