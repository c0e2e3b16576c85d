"""Which modes of SQLite survive a power loss, for every journal_mode and synchronous; the table of docs/environments.md
states the results.

A process commits to one database of each mode, is killed between two transactions or within a large one, and the power
goes.
"""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from enum import StrEnum
from itertools import product
from pathlib import Path

import pytest

from tests.machines.lossyfs.lossy_mount import Mounted, mounted

DOCUMENT = Path(__file__).parents[3] / "docs" / "environments.md"
JOURNALS = ("DELETE", "TRUNCATE", "PERSIST", "MEMORY", "OFF", "WAL")
SYNCHRONOUS = ("OFF", "NORMAL", "FULL", "EXTRA")
COMMITS = 8
LOSSES = (("nothing", 0), ("torn", 0), ("prefix", 20), ("torn", 20), ("everything", 20))
"""The bytes that the power loss keeps, and the inserts of the open transaction."""

_WRITER = """
import os, sqlite3, sys
databases = []
commits, uncommitted = int(sys.argv[1]), int(sys.argv[2])
for path in sys.argv[3:]:
    journal, synchronous = os.path.basename(path).split("-")
    database = sqlite3.connect(path, isolation_level=None)
    database.execute(f"PRAGMA journal_mode={journal}")
    database.execute(f"PRAGMA synchronous={synchronous}")
    database.execute("PRAGMA cache_size=4")
    databases.append(database)
def insert(database, number):
    database.execute("INSERT INTO kept VALUES (?, ?)", (number, str(number) * 700))
for database in databases:
    for number in range(1, commits + 1):
        insert(database, number)
    if uncommitted:
        database.execute("BEGIN")
    for number in range(commits + 1, commits + uncommitted + 1):
        insert(database, number)
print("written", flush=True)
sys.stdin.read()
"""


class Survival(StrEnum):
    """The state of a database after a loss, from best to worst."""

    EVERYTHING = "every commit"
    ALL_BUT_THE_LAST = "all but the last commit"
    INTACT = "intact, commits lost"
    DAMAGED = "damaged"


EXPECTED = {
    "DELETE": (Survival.ALL_BUT_THE_LAST, Survival.ALL_BUT_THE_LAST, Survival.EVERYTHING),
    "TRUNCATE": (Survival.ALL_BUT_THE_LAST, Survival.EVERYTHING, Survival.EVERYTHING),
    "PERSIST": (Survival.EVERYTHING, Survival.EVERYTHING, Survival.EVERYTHING),
    "MEMORY": (Survival.DAMAGED,) * 3,
    "OFF": (Survival.DAMAGED,) * 3,
    "WAL": (Survival.INTACT, Survival.EVERYTHING, Survival.EVERYTHING),
}
"""Journal mode → what survives the worst power loss, by `SYNCHRONOUS` after OFF, which promises nothing."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Mounted]:
    with mounted(tmp_path) as made:
        yield made


def _create(database: Path) -> None:
    made = sqlite3.connect(database)
    made.executescript(
        "PRAGMA synchronous=OFF; CREATE TABLE kept (number INTEGER PRIMARY KEY, filling TEXT);"
        "CREATE INDEX filling ON kept (filling);"
    )
    made.close()


def _survival(database: Path) -> Survival:
    opened = sqlite3.connect(database)
    try:
        intact = opened.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        kept = opened.execute("SELECT number FROM kept ORDER BY number").fetchall()
    except sqlite3.DatabaseError:
        return Survival.DAMAGED
    finally:
        opened.close()
    lost = COMMITS - len(kept)
    if not intact or lost < 0 or kept != [(number,) for number in range(1, len(kept) + 1)]:
        return Survival.DAMAGED
    return {0: Survival.EVERYTHING, 1: Survival.ALL_BUT_THE_LAST}.get(lost, Survival.INTACT)


def _worst(one: Survival, other: Survival) -> Survival:
    return max(one, other, key=list(Survival).index)


def test_every_mode_of_sqlite_survives_as_far_as_it_promises(disk: Mounted) -> None:
    modes = [f"{journal}-{synchronous}" for journal, synchronous in product(JOURNALS, SYNCHRONOUS)]
    worst = dict.fromkeys(modes, Survival.EVERYTHING)
    for seed, (keep, uncommitted) in enumerate(LOSSES):
        paths = []
        for mode in modes:  # a directory each: a sync of one database must not make another's names durable
            directory = disk.root / f"{seed}-{mode}"
            directory.mkdir()
            paths.append(directory / mode)
            _create(paths[-1])
        disk.lose_power("everything")
        command = [sys.executable, "-c", _WRITER, str(COMMITS), str(uncommitted), *map(str, paths)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "written\n"
            writer.kill()
        disk.lose_power(keep, seed)
        for mode, path in zip(modes, paths, strict=True):
            worst[mode] = _worst(worst[mode], _survival(path))
    unsynced = {worst[f"{journal}-OFF"] for journal in JOURNALS}
    assert unsynced == {Survival.INTACT, Survival.DAMAGED}, "commits are lost in each mode, and some are damaged"
    synced = {journal: tuple(worst[f"{journal}-{level}"] for level in SYNCHRONOUS[1:]) for journal in JOURNALS}
    assert synced == EXPECTED


def test_the_documentation_shows_the_modes_that_survive() -> None:
    header = "| journal_mode | " + " | ".join(SYNCHRONOUS[1:]) + " |"
    text = DOCUMENT.read_text()
    assert header in text
    cells = re.findall(r"^\| `(\w+)` \| (.+) \|$", text.partition(header)[2], re.MULTILINE)
    assert {journal: tuple(row.split(" | ")) for journal, row in cells} == EXPECTED
