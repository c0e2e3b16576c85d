"""What is kept of a run in memory until it is known whether anybody wants to read it: history, trace, nodes' files.

A run is recorded on disk as it happens, so that one that is killed can be checked as far as it went. That is of no use
where a run that is killed is made again from the start, as in a suite, and of one that ended valid nothing is kept but
its rows in the tables of the store. Such a run holds its two large tables in memory. They are the tables that reading
the lines of a recorded run gives, value for value, and everything from there on is the same: validation, checkers,
Parquet and manifest. The replica logs are read from the same bytes as those that would be written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from checkers.tables import TRACE
from images.trace import TraceEvent
from workloads.compact_json import compact
from workloads.history import SCHEMA as HISTORY
from workloads.history import Recorder


class HeldTables:
    """The tables of one run, while they grow."""

    def __init__(self) -> None:
        self.recorder: Recorder | None = None
        """Of the history; None before the clients begin."""
        self.files: Mapping[str, bytes] = {}
        """Of the nodes, by path (`results/run/node_files.py`), once they are collected."""
        self._times: list[int] = []
        self._nodes: list[str] = []
        self._events: list[TraceEvent] = []
        self._details: list[str] = []

    def append_trace(self, time_ns: int, node: str, event: TraceEvent) -> None:
        """Add a protocol event, in the order in which the events are received. Its detail, which may hold values that
        the node changes later, is encoded at once."""
        self._times.append(time_ns)
        self._nodes.append(node)
        self._events.append(event)
        self._details.append(compact(event.detail) if event.detail else "")

    def history(self) -> pa.Table:
        """The history so far."""
        return HISTORY.empty_table() if self.recorder is None else self.recorder.to_table()

    def trace(self) -> pa.Table:
        """The trace so far."""
        if not self._events:
            return TRACE.empty_table()
        columns: dict[str, Iterable[object]] = dict(
            zip(TraceEvent._fields, zip(*self._events, strict=True), strict=True),
            time_ns=self._times,
            node=self._nodes,
            seq=range(len(self._events)),
            detail=self._details,
        )
        return pa.table({name: pa.array(columns[name], TRACE.field(name).type) for name in TRACE.names}, TRACE)
