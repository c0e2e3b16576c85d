"""The protocol trace of a real node: what is written is what `json` would write, and reads back as it was."""

from __future__ import annotations

import json
from pathlib import Path
from types import MappingProxyType

import pytest

from harness.environments.machines.traces import merged
from images.broker.runtime.trace_file import TraceFile
from images.trace import TraceEvent

EVENTS = (
    TraceEvent("node_started"),
    TraceEvent("isr_committed", "täglich", 3, 1, 7, 9, members=(1, 2, 3)),
    TraceEvent(
        "high_watermark", 'odd "name"\n', 0, 2, 1, 4, offset=5, high_watermark=8, detail={"positions": {"1": 8}}
    ),
    TraceEvent(
        "broker_fenced", broker=4, broker_epoch=1 << 40, detail=MappingProxyType({"reason": None, "sure": True})
    ),
)


@pytest.fixture
def written(tmp_path: Path) -> bytes:
    with TraceFile(tmp_path / "trace.jsonl") as trace:
        for event in EVENTS:
            trace.append(event)
    return (tmp_path / "trace.jsonl").read_bytes()


def test_a_line_of_the_trace_is_what_json_would_write(written: bytes) -> None:
    lines = written.splitlines()
    assert len(lines) == len(EVENTS)
    for line, event in zip(lines, EVENTS, strict=True):
        row = {"time_ns": json.loads(line)["time_ns"]} | event._asdict()
        assert line == json.dumps(row, separators=(",", ":"), default=dict).encode()


def test_a_trace_reads_back_as_it_was_written(written: bytes) -> None:
    assert [event for _, _, event in merged({"b1": written}, {"b1": 0})] == list(EVENTS)
