"""What the brokers of Kafka print tells when they opened and cut the logs of their replicas."""

from __future__ import annotations

from pathlib import Path

from harness.cluster.systems import SYSTEMS
from images.kafka.node_log import replica_log_events
from images.trace import TraceEvent

LINES = """\
2026-11-23T06:42:38.333 INFO kafka.log.UnifiedLog$ - [LogLoader partition=orders-0, dir=/d/data] Loading producer state till offset 0
2026-11-23T06:42:38.350 INFO kafka.log.LogManager - Created log for partition orders-0 in /d/data/orders-0 with properties {}
2026-11-23T06:42:39.033 INFO kafka.log.UnifiedLog - [UnifiedLog partition=orders-0, dir=/d/data] Truncating to 0 has no effect as the largest offset in the log is -1
2026-11-23T06:42:45.288 INFO org.apache.kafka.storage.internals.log.UnifiedLog - [UnifiedLog partition=orders-0, dir=/d/data] Truncating to offset 20
2026-11-23T06:42:45.342 INFO kafka.log.UnifiedLog$ - [UnifiedLog partition=orders-0, dir=/d/data] Loading producer state till offset 20
2026-11-23T06:42:46.000 INFO kafka.log.UnifiedLog - [UnifiedLog partition=__cluster_metadata-0, dir=/d/data] Truncating to offset 79
2026-11-23T06:42:57.909 INFO kafka.log.UnifiedLog$ - [LogLoader partition=orders-0, dir=/d/data] Loading producer state till offset 0 with message format version 2
2026-11-23T06:42:57.908 INFO kafka.log.LogLoader - [LogLoader partition=orders-0, dir=/d/data] Recovering unflushed segment 0. 0/1 recovered for orders-0.
2026-11-23T06:42:57.987 INFO kafka.log.LogManager - Completed load of Log(dir=/d/data/orders-0, topicId=g6Ux4AXwTGuJ20FYsDKUlw, topic=orders, partition=0, highWatermark=9, lastStableOffset=9, logStartOffset=3, logEndOffset=115) with 1 segments in 113ms (1/2 completed in /d/data)
2026-11-23T06:42:58.024 INFO kafka.log.LogManager - Completed load of Log(dir=/d/data/a-b-7, topicId=g6Ux4AXwTGuJ20FYsDKUlw, topic=a-b, partition=7, highWatermark=0, lastStableOffset=0, logStartOffset=0, logEndOffset=104) with 1 segments, local-log-start-offset 0 and log-end-offset 104 in 37ms (2/2 completed in /d/data)
2026-11-23T06:42:58.030 INFO kafka.log.LogManager - Completed load of Log(dir=/d/data/orders-0.3fab-delete, topicId=x, topic=orders, partition=0, highWatermark=0, lastStableOffset=0, logStartOffset=0, logEndOffset=5) with 1 segments in 3ms (2/2 completed in /d/data)
2026-11-23T06:42:59.000 INFO kafka.log.UnifiedLog - [UnifiedLog partition=orders-0, dir=/d/data] Truncate and start at offset 200, logStartOffset: 200
    at java.base/java.lang.Thread.run(Thread.java:840)
2026-11-23T06:42:40.000 INFO kafka.log.UnifiedLog - [UnifiedLog partition=orders-0, dir=/d/data] Truncating to offset 150
"""  # noqa: E501
CLEAN, RECOVERED = {"clean": True}, {"clean": False}
TOLD = [
    TraceEvent("log_recovered", "orders", 0, offset=0, log_end=0, detail=CLEAN),
    TraceEvent("truncated", "orders", 0, offset=20),
    TraceEvent("log_recovered", "orders", 0, offset=3, log_end=115, high_watermark=9, detail=RECOVERED),
    TraceEvent("log_recovered", "a-b", 7, offset=0, log_end=104, high_watermark=0, detail=CLEAN),
    TraceEvent("truncated", "orders", 0, offset=200),
    TraceEvent("truncated", "orders", 0, offset=150),
]


def test_a_broker_tells_when_it_created_opened_and_cut_logs() -> None:
    items = list(replica_log_events(2, LINES.splitlines(keepends=True)))
    assert [item.event for item in items] == TOLD
    assert {item.node_id for item in items} == {2}
    assert items[0].time_ms == 1_795_416_158_350
    assert items[-1].time_ms == items[-2].time_ms, "a clock that was set back"


def test_what_is_no_text_is_passed_over_and_a_log_may_be_absent(tmp_path: Path) -> None:
    (tmp_path / "b1").mkdir()
    (tmp_path / "b1" / "node.log").write_bytes(b"\xff\xfe\x00 garbage\n" + LINES.encode())
    brokers = {1: tmp_path / "b1", 2: tmp_path / "b2"}
    assert [(item.node_id, item.event) for item in SYSTEMS["kafka"].log_changes(brokers)] == [(1, it) for it in TOLD]
