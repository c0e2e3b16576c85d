"""An exploration whose states are shared out over the tasks of a Spark master."""

from __future__ import annotations

import json
import subprocess
import sys
from multiprocessing import Pipe
from pathlib import Path

import pytest

from harness.exit_codes import NOT_CARRIED_OUT, VALID
from harness.search.state_space.breadth_first import LostShard, RemoteShard

SMALL = (
    "{replicas: 1, brokers: 2, records: 1, leader_epochs: 3, alter_partition: in flight, restarts: 1, reassignments: 2}"
)
ALIKE = ("states", "steps", "depth", "situations", "violation")


def explore(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    scope = directory / "small.yaml"
    scope.write_text(SMALL)
    command = [sys.executable, "-m", "harness", "explore", str(scope), "--json", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_two_executors_find_the_same_states_and_schedules_as_one_process(tmp_path: Path) -> None:
    figures, situations = [], []
    for number, options in enumerate((("--jobs", "1"), ("--master", "local-cluster[2,1,1024]"))):
        found = tmp_path / f"{number}.json"
        ended = explore(tmp_path, *options, "--situations", str(found))
        assert ended.returncode == VALID, ended.stderr
        result = json.loads(ended.stdout)
        figures.append({name: result[name] for name in ALIKE})
        situations.append(json.loads(found.read_text()))
    assert figures[0]["states"] > 1_000
    assert figures[1] == figures[0]
    assert situations[1] == situations[0]


def test_more_tasks_than_slots_are_refused_in_a_line(tmp_path: Path) -> None:
    ended = explore(tmp_path, "--master", "local[1]", "--jobs", "2")
    assert ended.returncode == NOT_CARRIED_OUT
    assert ended.stderr.splitlines()[-1] == "faultline: Spark has no 2 slots at the same time"


def test_the_end_of_a_process_is_told_in_a_line() -> None:
    ours, theirs = Pipe()
    theirs.close()
    with ours, pytest.raises(LostShard, match="has ended before its end"):
        RemoteShard(ours).receive()
