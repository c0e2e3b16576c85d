"""What controllers decided, told once.

A change of the metadata is traced by the controller that commits it. Its successor may not know that, and tells of it
again (`taken_over`). Whoever receives the traces of all nodes sees both, and keeps the first: the offset of a change
says which is which.
"""

from __future__ import annotations

from images.trace import TraceEvent


class Decisions:
    """Remembers how far controllers have told of the metadata log."""

    def __init__(self) -> None:
        self._end = -1
        self._telling: tuple[str, int] | None = None
        """Who tells of which change as one that it took over: a change may be told of in several events."""

    def is_new(self, node: str, event: TraceEvent) -> bool:
        """Whether `event` is not one that was told before. To be asked of every event, in their order."""
        if event.offset < 0 or not event.kind.startswith(("broker_", "partition_changed")):
            return True
        if "taken_over" not in event.detail:
            self._end, self._telling = max(self._end, event.offset), None
            return True
        if event.offset > self._end:
            self._end, self._telling = event.offset, (node, event.offset)
        return self._telling == (node, event.offset)
