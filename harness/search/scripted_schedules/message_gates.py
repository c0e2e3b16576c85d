"""Gates for the requests of a broker: each is stopped, but for those that a schedule lets through at its steps.

A gate is a chain of `message` faults. The fault that was injected first decides on a message, so the successor of each
link of the chain is injected before it ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

Fault = Mapping[str, Any]
"""A line of a script, in seconds."""
_TICK_S: Final = 0.001
"""Between the injections of faults whose order matters."""
_PASSING_MS: Final = 0.1


@dataclass(frozen=True, slots=True)
class ScriptLine:
    """A fault, and the number of the step that it is for; 0 for what holds from the beginning."""

    step: int
    fault: Fault


def fault(at_s: float, end_s: float, name: str, **fields: Any) -> Fault:
    """A fault from `at_s` to `end_s`."""
    return {"at": round(at_s, 3), "for": round(end_s - at_s, 3), "fault": name, **fields}


@dataclass(slots=True)
class Passage:
    """One request that may pass, sent at `at_s` or soon after it."""

    step: int
    at_s: float
    holds_request: bool = False
    holds_answer: bool = False
    arrives_s: float | None = None
    """The time at which the request arrives, on its way until then; None where that is after the script."""
    answered_s: float | None = None
    """The end of the hold of the answer; None for the end of the script."""


@dataclass(slots=True)
class DroppingGate:
    """A request that may not pass is lost with its connection, and sent again after a back-off: one that passes is of
    the moment at which it may."""

    node: str
    against: Sequence[str]
    api: str
    begin_s: float
    passages: list[Passage] = field(default_factory=list)

    def lines(self, end_s: float) -> Iterator[ScriptLine]:
        """The faults of the gate until `end_s`."""
        ends = [*(it.at_s for it in self.passages), end_s]
        yield ScriptLine(0, self._fault(self.begin_s, ends[0], effect="drop", count=0))
        for passage, next_s in zip(self.passages, ends[1:], strict=True):
            at_s, step = passage.at_s, passage.step
            if passage.holds_answer:
                answered_s = passage.answered_s or end_s
                held = self._fault(at_s - 3 * _TICK_S, answered_s, part="response", effect="hold", count=1)
                yield ScriptLine(step, held)
            if passage.holds_request and passage.arrives_s is None:
                request = self._fault(at_s - 2 * _TICK_S, end_s, effect="hold", count=1)
            else:
                late_ms = round(1000 * (passage.arrives_s - at_s), 1) if passage.arrives_s else _PASSING_MS
                request = self._fault(at_s - 2 * _TICK_S, next_s, effect="delay", delay_ms=late_ms, count=1)
            yield ScriptLine(step, request)
            yield ScriptLine(step, self._fault(at_s - _TICK_S, next_s, effect="drop", count=0))

    def _fault(self, at_s: float, end_s: float, **fields: Any) -> Fault:
        return fault(at_s, end_s, "message", nodes=[self.node], against=[*self.against], api=self.api, **fields)


@dataclass(slots=True)
class HoldingGate:
    """A request is held until the next release, for requests that are not to be repeated."""

    node: str
    against: Sequence[str]
    api: str
    begin_s: float
    releases: list[tuple[int, float]] = field(default_factory=list)
    """Step and time of each."""

    def lines(self, end_s: float) -> Iterator[ScriptLine]:
        """The faults of the gate until `end_s`."""
        starts = [(0, self.begin_s + _TICK_S), *self.releases]
        ends = [*(time_s for _, time_s in self.releases), end_s]
        for (step, start_s), held_until_s in zip(starts, ends, strict=True):
            held = fault(
                start_s - _TICK_S,
                held_until_s,
                "message",
                nodes=[self.node],
                against=[*self.against],
                api=self.api,
                effect="hold",
                count=0,
            )
            yield ScriptLine(step, held)


def overlapping(gate: DroppingGate) -> bool:
    """Whether two requests are to pass within a time in which their faults would come in another order."""
    return any(later.at_s - earlier.at_s < 4 * _TICK_S for earlier, later in pairwise(gate.passages))
