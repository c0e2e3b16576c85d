"""SQLite in WAL mode with synchronous=FULL, in a process of its own, on a disk that loses power.

It syncs every commit: a power loss must take none, whatever it keeps of the rest. Where fsync lies it must take some,
or the disk would be keeping more than it was asked to.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.machines.lossyfs.lossy_mount import Mounted, mounted

_WRITER = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("PRAGMA journal_mode=WAL")
database.execute("PRAGMA synchronous=FULL")
database.execute("PRAGMA wal_autocheckpoint=12")
database.execute("CREATE TABLE IF NOT EXISTS kept (number INTEGER PRIMARY KEY, filling TEXT)")
number = database.execute("SELECT coalesce(max(number), 0) FROM kept").fetchone()[0]
while True:
    number += 1
    database.execute("BEGIN")
    database.execute("INSERT INTO kept VALUES (?, ?)", (number, "x" * (number * 97 % 3000)))
    database.execute("COMMIT")
    print(number, flush=True)
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Mounted]:
    with mounted(tmp_path) as made:
        yield made


def _committed(database: Path, commits: int) -> int:
    """Let a process commit so often, kill it, and return the last commit it acknowledged."""
    writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(database)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    told = [writer.stdout.readline() for _ in range(commits)]
    writer.kill()
    told += writer.stdout.readlines()
    writer.wait()
    writer.stdout.close()
    return int(told[-1])


def _found(database: Path) -> list[int]:
    """Every commit that is there, after SQLite has recovered; raises AssertionError when the database is damaged."""
    opened = sqlite3.connect(database)
    try:
        assert opened.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return [number for (number,) in opened.execute("SELECT number FROM kept ORDER BY number")]
    finally:
        opened.close()


@pytest.mark.parametrize("keep", ["nothing", "prefix", "torn"])
def test_no_commit_is_lost_to_power_losses(disk: Mounted, keep: str) -> None:
    database = disk.root / "database"
    for seed in range(6):
        committed = _committed(database, 25 + 7 * seed)
        disk.lose_power(keep, seed)
        found = _found(database)
        assert found[:committed] == list(range(1, committed + 1))
        assert len(found) - committed in (0, 1)  # one may have been durable before it was told


def test_where_fsync_lies_commits_are_lost(disk: Mounted) -> None:
    database = disk.root / "database"
    honest = _committed(database, 10)
    disk.tell("lie", on=True)
    committed = _committed(database, 30)
    assert disk.tell("lie", on=False)["lies"] >= 30
    loss = disk.lose_power("nothing")
    assert loss["lost_bytes"] > 0
    found = _found(database)
    assert honest <= len(found) <= honest + 1
    assert committed >= honest + 30
