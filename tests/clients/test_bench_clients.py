"""The report of the clients' benchmark, from a history."""

from __future__ import annotations

from harness.bench.clients import acknowledged_a_second
from workloads.history import Recorder


def test_appends_that_end_after_the_time_are_not_counted() -> None:
    now_ns = 10**9
    recorder = Recorder(None, lambda: now_ns)
    appends = [recorder.invoke(0, "append", "t", 0, value=value) for value in range(9)]
    read = recorder.invoke(1, "end_offset", "t", 0)
    for after_s, index, outcome in ((0, 0, "ok"), (2, 1, "ok"), (2, 2, "info"), (2, read, "ok"), (3, 3, "ok")):
        now_ns = (1 + after_s) * 10**9
        recorder.complete(index, outcome)
    assert appends[:4] == [0, 1, 2, 3]
    assert acknowledged_a_second(recorder.to_table(), 2.0) == 1.0
