"""Drops the trace events of a metadata change that a later controller repeats.

The controller that commits a change traces it. Its successor may not know that, and traces it again (`taken_over`).
The receiver of all traces keeps the first: the offset of a change identifies it. A controller that is killed may have
traced the first events of a change alone; its successor's other ones are kept.
"""

from __future__ import annotations

from images.trace import TraceEvent


class TraceDeduplicator:
    """Remembers the latest change of the metadata log that was traced."""

    def __init__(self) -> None:
        self._end = -1
        self._traced: set[tuple[object, ...]] = set()
        """The events of the change that ends there."""

    def is_new(self, event: TraceEvent) -> bool:
        """Whether `event` was not traced before. Call it for every event, in order."""
        if event.offset < 0 or not event.kind.startswith(("broker_", "partition_", "topic_")):
            return True
        if event.offset > self._end:
            self._end = event.offset
            self._traced.clear()
        identity = _identity(event)
        is_new = "taken_over" not in event.detail or (event.offset == self._end and identity not in self._traced)
        if event.offset == self._end:
            self._traced.add(identity)
        return is_new


def _identity(event: TraceEvent) -> tuple[object, ...]:
    """What tells the events of one change apart."""
    return (
        event.kind,
        event.topic or event.detail.get("name"),
        event.partition,
        event.partition_epoch,
        event.broker,
        event.broker_epoch,
    )
