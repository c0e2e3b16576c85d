"""Crash points: ending a process at its next writes instead of between two of its callbacks.

A process is seen to die only between two of its effects on the outside: a change on its disk or bytes handed to its
kernel. A crash point counts exactly those and acts just before the last of them. Callbacks take next to no time here,
so that without crash points a fault placed at a time of its own hardly ever falls among writes that belong together.
"""

from __future__ import annotations

from collections.abc import Callable


class CrashPoint:
    """Counts the effects of one process. Before an effect: `if crash_point.armed: crash_point.reach()`."""

    __slots__ = ("_action", "_left", "armed")

    def __init__(self) -> None:
        self.armed = False
        self._left = 0
        self._action: Callable[[], object] = _nothing

    def arm(self, effects: int, action: Callable[[], object]) -> None:
        """Call `action` just before the effect number `effects` (from 1) from now."""
        self.armed = True
        self._left = effects
        self._action = action

    def disarm(self) -> None:
        """Forget the action."""
        self.armed = False
        self._action = _nothing

    def reach(self) -> None:
        """One effect is about to happen. Afterwards the process may be dead: then the effect must not happen."""
        self._left -= 1
        if self._left <= 0:
            action = self._action
            self.disarm()
            action()


def _nothing() -> None:
    return
