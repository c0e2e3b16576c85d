"""The moment of each step of a schedule. Steps have a time of their own each, longer than what they cause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from harness.search.state_space.shortest_schedules import WalkedStep

BEGIN_S: Final = 4.0
"""The first moment of the gates: before it, the first broker is made the leader."""
_FIRST_STEP_S: Final = 5.0
_STEP_S: Final = 0.5
_ELECTION_S: Final = 1.5
"""Of an election, with the time in which the order of the replicas is changed."""
_CONNECT_S: Final = 1.1
"""Within which a client gives up a broker that it does not reach."""
_REQUESTS: Final = 2
"""Of a new producer to any broker, before it appends: for metadata and for its id."""
_TICK_S: Final = 2.0
"""Of a step in which leaders look at their followers: their clocks start some time before the clients."""
_SESSION_S: Final = 2.0
"""Of a broker, at least."""
_OF_SESSIONS: Final = ("session_ends", "fence")
_END_OF_SESSION: Final = ("fence", "register")


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The times of the steps, in seconds from the start of the clients."""

    starts: tuple[float, ...]
    end_s: float
    session_s: float
    """The session timeout that fits them."""
    tick_s: float | None = None
    """The middle of the first step in which a leader looks at its followers."""

    def end_of(self, number: int) -> float:
        """The end of the step at this place, from 0 on."""
        return self.starts[number + 1] if number + 1 < len(self.starts) else self.end_s


def step_times(steps: Sequence[WalkedStep]) -> StepTimes:
    """The times of these steps. A crash has the session of its broker end no sooner than the schedule says."""
    session_s = _SESSION_S + max((_to_its_end(steps, place) for place in range(len(steps))), default=0.0)
    starts: list[float] = []
    crashes: dict[int, float] = {}
    now_s, tick_s = _FIRST_STEP_S, None
    for step in steps:
        starts.append(round(now_s, 3))
        kind, broker = step.action.kind, step.action.broker
        if kind == "crash":
            crashes[broker] = now_s
        if kind == "tick" and tick_s is None:
            tick_s = round(now_s + _TICK_S / 2, 3)
        if kind == "fence":
            now_s = max(now_s, crashes[broker] + session_s) + 1.0
        elif kind == "session_ends":
            now_s += _ELECTION_S + session_s + 1.0
        else:
            now_s += _lasts(step)
    return StepTimes(tuple(starts), round(now_s, 3), round(session_s, 3), tick_s)


def _lasts(step: WalkedStep) -> float:
    """The time of a step that waits for no session."""
    if step.action.kind == "append":
        return append_s(len(step.before.brokers))
    if step.action.kind == "tick":
        return _TICK_S
    return _ELECTION_S if step.action.kind in ("elect", "register", "unfence") else _STEP_S


def append_s(brokers: int) -> float:
    """The time of an append at one of so many brokers, while clients reach no other."""
    return 1.0 + _REQUESTS * _CONNECT_S * (brokers - 1)


def _to_its_end(steps: Sequence[WalkedStep], crash: int) -> float:
    """The time from a crash to the step in which the session of its broker ends, or its next incarnation registers."""
    if steps[crash].action.kind != "crash":
        return 0.0
    lasts_s = 0.0
    for step in steps[crash:]:
        if step.action.kind in _END_OF_SESSION and step.action.broker == steps[crash].action.broker:
            return lasts_s
        lasts_s += _lasts(step)
    return lasts_s


def session_within_a_session(steps: Sequence[WalkedStep]) -> WalkedStep | None:
    """The first step that waits for the end of a session while another broker is down and counts as alive."""
    down: set[int] = set()
    for step in steps:
        kind, broker = step.action.kind, step.action.broker
        if kind in _OF_SESSIONS and down - {broker}:
            return step
        if kind == "crash":
            down.add(broker)
        elif kind in _END_OF_SESSION:
            down.discard(broker)
    return None
