"""Drops the trace events of a metadata change that a later controller repeats.

The controller that commits a change traces it. Its successor may not know that, and traces it again (`taken_over`).
The receiver of all traces keeps the first: the offset of a change identifies it.
"""

from __future__ import annotations

from images.trace import TraceEvent


class TraceDeduplicator:
    """Remembers the latest offset of the metadata log that was traced."""

    def __init__(self) -> None:
        self._end = -1
        self._taking_over: tuple[str, int] | None = None
        """(node, offset) of the change traced last as taken over: a change may have several events."""

    def is_new(self, node: str, event: TraceEvent) -> bool:
        """Whether `event` was not traced before. Call it for every event, in order."""
        if event.kind == "quorum_leader" and self._taking_over is not None and node == self._taking_over[0]:
            self._taking_over = None  # the same controller, or its next process, takes over once more
        if event.offset < 0 or not event.kind.startswith(("broker_", "partition_", "topic_")):
            return True
        if "taken_over" not in event.detail:
            self._end, self._taking_over = max(self._end, event.offset), None
            return True
        if event.offset > self._end:
            self._end, self._taking_over = event.offset, (node, event.offset)
        return self._taking_over == (node, event.offset)
