"""The clocks of a node as against the world's true time: the one of its timers, `loop.time()`, and the wall clock.

    node time = floor of (anchor + (true time - true time at the anchor) × rate), but never less than an earlier reading

A true clock has rate 1 and offset 0. Time on a node is monotonic whatever is done to it: a jump backwards makes the
clock stand still until it has caught up, and `reset` gives the true rate back while keeping the offset gathered so
far, since a monotonic clock is never stepped. Rate 0 is a frozen clock: timers of the node never fall due.

The wall clock reads the same until it is stepped, as by NTP or by hand: then it is ahead or behind, may have read later
before, and no timer knows of it. `reset` steps it back.
"""

from __future__ import annotations

from collections.abc import Callable


class NodeClock:
    """Turns true time into node time and back. All times are whole nanoseconds."""

    __slots__ = (
        "_anchor_node_ns",
        "_anchor_true_ns",
        "_floor_ns",
        "_rate",
        "_true_now_ns",
        "offset_ns",
        "steady",
        "wall_ahead_ns",
    )

    def __init__(self, true_now_ns: Callable[[], int]) -> None:
        self._true_now_ns = true_now_ns
        self._anchor_true_ns = true_now_ns()
        self._anchor_node_ns = self._anchor_true_ns
        self._floor_ns = self._anchor_node_ns
        self._rate = 1.0
        self.steady = True
        """True: node time is just true time + `offset_ns` (the hot path of `loop.time`)."""
        self.offset_ns = 0
        self.wall_ahead_ns = 0
        """How far the wall clock was stepped forward, against the clock of timers."""

    @property
    def rate(self) -> float:
        """Node seconds a true second."""
        return self._rate

    def now_ns(self) -> int:
        """The reading that the node gets."""
        raw = self._raw_ns(self._true_now_ns())
        if raw < self._floor_ns:
            return self._floor_ns
        if self._rate == 1.0 and not self.steady:
            self.steady = True
        return raw

    def wall_now_ms(self) -> int:
        """What the wall clock reads, in whole milliseconds since the run began; none reads earlier than that."""
        return max(self.now_ns() + self.wall_ahead_ns, 0) // 1_000_000

    def offset_now_ns(self) -> int:
        """Node time less true time, as it will be once a clock that stands still has caught up."""
        true_now = self._true_now_ns()
        return self._raw_ns(true_now) - true_now

    def true_time_of(self, node_ns: int) -> int | None:
        """When the clock first reads `node_ns` or later; None when it never will as things are."""
        true_now = self._true_now_ns()
        if self.steady:
            return max(true_now, node_ns - self.offset_ns)
        if node_ns <= self.now_ns():
            return true_now
        if self._rate == 1.0:
            return node_ns - self.offset_ns
        if self._rate == 0.0:
            return None
        due = self._anchor_true_ns + int((node_ns - self._anchor_node_ns) / self._rate)
        while self._raw_ns(due) < node_ns:
            due += 1
        return due if due > true_now else true_now

    def change(self, *, jump_ms: float = 0.0, rate: float = 1.0, wall_jump_ms: float = 0.0) -> None:
        """Jump at once by `jump_ms`, then run at `rate`; the wall clock is `wall_jump_ms` ahead of that. Raises
        ValueError for a negative rate."""
        if rate < 0.0:
            raise ValueError(f"clock rate {rate} is negative")
        reading_ns = self.now_ns()
        true_now = self._true_now_ns()
        self._anchor_node_ns = self._raw_ns(true_now) + round(jump_ms * 1_000_000)
        self._anchor_true_ns = true_now
        self._floor_ns = reading_ns
        self._rate = rate
        self.wall_ahead_ns = round(wall_jump_ms * 1_000_000)
        self.offset_ns = self._anchor_node_ns - true_now
        self.steady = rate == 1.0 and self._anchor_node_ns >= reading_ns

    def reset(self) -> None:
        """Run at the true rate from here on; what the clock is ahead or behind stays. The wall clock is put right."""
        self.change(rate=1.0)

    def _raw_ns(self, true_ns: int) -> int:
        if self._rate == 1.0:
            return true_ns + self.offset_ns
        return self._anchor_node_ns + int((true_ns - self._anchor_true_ns) * self._rate)
