"""A real node tells in its trace for how long its process did not run."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.runner.run import run_in_simulation
from harness.spec import parse
from images.broker.runtime import stall_watch
from images.broker.runtime.stall_watch import trace_stalls
from images.trace import TraceEvent
from results.run.directory import RunDirectory
from tests.broker.test_directory_lock import PATIENCE_S, serving

STOPPED_S = 0.4
TOLD_MS_MIN = 300
"""A signal takes its time to stop a process."""


class Ended(Exception):
    """The clock of a test has no further reading."""


@pytest.mark.parametrize(
    ("looks_ms", "told_ms"),
    [([0, 100, 200, 349], []), ([0, 100, 250], [150]), ([0, 2_800.5, 2_900, 3_100], [2_801, 200])],
)
def test_a_time_without_a_look_is_a_stall(
    looks_ms: Sequence[float], told_ms: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stall_watch, "_LOOK_S", 0)
    readings, events = iter(looks_ms), list[TraceEvent]()

    def now_ns() -> int:
        try:
            return round(next(readings) * 1_000_000)
        except StopIteration:
            raise Ended from None

    with pytest.raises(Ended):
        asyncio.run(trace_stalls(events.append, now_ns))
    assert events == [TraceEvent("node_stalled", detail={"for_ms": each}) for each in told_ms]


def test_a_process_that_was_stopped_traces_for_how_long(tmp_path: Path) -> None:
    with serving(tmp_path) as node:
        node.send_signal(signal.SIGSTOP)
        time.sleep(STOPPED_S)
        node.send_signal(signal.SIGCONT)
        until = time.monotonic() + PATIENCE_S
        while not any(each >= TOLD_MS_MIN for each in _stalls_ms(tmp_path / "data" / "trace.jsonl")):
            assert time.monotonic() < until
            time.sleep(0.02)
        node.send_signal(signal.SIGTERM)
        assert node.wait(PATIENCE_S) == 0, "the watch ends with the node"


def test_nothing_is_a_stall_in_the_simulation(tmp_path: Path) -> None:
    """Its nodes run on time but for faults, of which checkers know: a stall would excuse what is their mistake."""
    faults = [
        {"at": 2, "for": 2, "fault": "pause", "nodes": ["b1", "c1"]},
        {"at": 2, "for": 4, "fault": "slow-disk", "nodes": ["b2"], "delay_ms": 300},
        {"at": 5, "for": 1, "fault": "clock", "nodes": ["b3"], "rate": 0},
    ]
    outcome = run_in_simulation(parse({"seed": 1, "time_limit": "8s", "faults": faults}), tmp_path)
    assert outcome.directory is not None
    trace = RunDirectory.open(outcome.directory).load().trace
    kinds = set(trace.column("kind").to_pylist())
    assert "appended" in kinds
    assert "node_stalled" not in kinds


def _stalls_ms(trace: Path) -> list[int]:
    whole = trace.read_text().rpartition("\n")[0].splitlines()
    return [each["detail"]["for_ms"] for each in map(json.loads, whole) if each["kind"] == "node_stalled"]
