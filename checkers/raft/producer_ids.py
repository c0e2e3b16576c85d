"""Promises about producer ids, which brokers get from the controllers in blocks, for `checkers.raft`, whose table has
them."""

from __future__ import annotations

from typing import Protocol

from checkers.tables import TraceRow


class Report(Protocol):
    """Reports a finding at an event: its kind, and its lines."""

    def __call__(self, event: TraceRow, kind: str, *lines: str) -> None: ...


class ProducerIds:
    """The producer ids that were given away so far."""

    def __init__(self, report: Report) -> None:
        self.allocated: list[tuple[int, int, int, int]] = []
        """Blocks: first, end, broker and time in ns."""
        self.assigned: dict[int, TraceRow] = {}
        """Producer id → the event in which a broker gave it to a producer."""
        self._report = report

    def allocates(self, event: TraceRow) -> None:
        first = int(event.details().get("first") or 0)
        end = first + int(event.details().get("count") or 0)
        for other_first, other_end, broker, time_ns in self.allocated:
            if first < other_end and other_first < end:
                self._report(
                    event,
                    "producer-ids-allocated-twice",
                    f"{event.node} gave broker {event.broker} the producer ids {first} to {end - 1} {event.at}",
                    f"broker {broker} had got {other_first} to {other_end - 1} at {time_ns / 1e9:.6f} s",
                )
                break
        self.allocated.append((first, end, event.broker, event.time_ns))

    def assigns(self, event: TraceRow) -> None:
        producer_id = int(event.details().get("producer_id") or 0)
        line = f"{event.node} gave a producer the id {producer_id} {event.at}"
        before = self.assigned.setdefault(producer_id, event)
        if before is not event:
            self._report(event, "producer-id-assigned-twice", line, f"{before.node} had given it away {before.at}")
        own = [(first, end) for first, end, broker, _ in self.allocated if f"b{broker}" == event.node]
        if not any(first <= producer_id < end for first, end in own):
            blocks = ", ".join(f"{first} to {end - 1}" for first, end in own) or "none"
            self._report(event, "producer-id-unallocated", line, f"the controllers had allocated to it: {blocks}")
