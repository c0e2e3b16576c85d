"""What the log that a broker of Kafka prints tells of its replicas' logs, as the events of `images.trace`.

A broker that starts says of each log, once it is open, where it begins and ends, and before that whether it had to be
recovered; one that creates a log says so; and one that cuts a log, before it does. Of a cut that has no effect nothing
is told. Times are by the broker's own clock, in UTC, and never go back here: events of one node stay in the order of
its lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Final

from images.system import RecordedEvent
from images.trace import TraceEvent

_METADATA: Final = "__cluster_metadata"
_LINE: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}) [A-Z]+ \S+ - (.*)")
_RECOVERING: Final = re.compile(r"\[LogLoader partition=(\S+)-(\d+)[],].*\] Recovering unflushed segment ")
_OPENED: Final = re.compile(
    r"Completed load of Log\(dir=[^,]*/([^,/]+)-(\d+), .*"
    r"highWatermark=(\d+), .*logStartOffset=(\d+), logEndOffset=(\d+)\)"
)
_CREATED: Final = re.compile(r"Created log for partition (\S+)-(\d+) in ")
_CUT: Final = re.compile(
    r"\[UnifiedLog partition=(\S+)-(\d+)[],].*\] (?:Truncating to offset (\d+)\s*$|Truncate and start at offset (\d+))"
)


def replica_log_events(node_id: int, lines: Iterable[str]) -> Iterator[RecordedEvent]:
    """The events of a broker's lines, but for the log of the metadata."""
    latest_ms = 0
    recovering: set[tuple[str, int]] = set()
    for line in lines:
        if (printed := _LINE.match(line)) is None:
            continue
        text = printed[2]
        event = None
        if found := _RECOVERING.match(text):
            recovering.add((found[1], int(found[2])))
        elif found := _OPENED.match(text):
            place = found[1], int(found[2])
            high_watermark, start, end = map(int, found.groups()[2:])
            clean = {"clean": place not in recovering}
            recovering.discard(place)
            event = TraceEvent(
                "log_recovered", *place, offset=start, log_end=end, high_watermark=high_watermark, detail=clean
            )
        elif found := _CREATED.match(text):
            event = TraceEvent("log_recovered", found[1], int(found[2]), offset=0, log_end=0, detail={"clean": True})
        elif (found := _CUT.match(text)) and found[1] != _METADATA:
            event = TraceEvent("truncated", found[1], int(found[2]), offset=int(found[3] or found[4]))
        if event is not None:
            at = datetime.fromisoformat(printed[1]).replace(tzinfo=UTC)
            latest_ms = max(latest_ms, round(at.timestamp() * 1000))
            yield RecordedEvent(latest_ms, node_id, event)
