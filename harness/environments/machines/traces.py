"""The protocol traces of nodes on machines, laid beside each other.

Each node appends to a file of its own, with its machine's true clock (`images.broker.runtime.trace_file`). Read at the
end of a run, they are merged by time. Where all machines are containers of one kernel, that is the order in which
things happened: what was traced before a message was sent is stamped before anything that was traced because of it.
Between hosts it is right as far as their clocks were measured against this one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from heapq import merge
from operator import itemgetter

from harness.environments.machines.trace_deduplicator import TraceDeduplicator
from images.trace import TraceEvent


def merged(files: Mapping[str, bytes], began_ns: Mapping[str, int]) -> Iterator[tuple[int, str, TraceEvent]]:
    """(time since the run began, node, event) of all nodes, in order of time.

    `files`: node → its trace file; `began_ns`: node → what its machine's clock showed when the run began.
    """
    streams = [_events(node, contents.splitlines(), began_ns[node]) for node, contents in files.items()]
    deduplicator = TraceDeduplicator()
    for time_ns, node, event in merge(*(sorted(stream, key=itemgetter(0)) for stream in streams), key=itemgetter(0)):
        if deduplicator.is_new(event):
            yield time_ns, node, event


def _events(node: str, lines: Iterable[bytes], began_ns: int) -> Iterator[tuple[int, str, TraceEvent]]:
    """A line that is torn, since the node was killed over it, is left out."""
    for line in lines:
        try:
            row = json.loads(line)
            values = {name: row[name] for name in TraceEvent._fields}
            values["members"] = tuple(values["members"])
            yield row["time_ns"] - began_ns, node, TraceEvent(**values)
        except (ValueError, KeyError, TypeError):
            continue
