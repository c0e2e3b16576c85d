"""The shortest way to a state, in words.

The search keeps fingerprints of canonical states. Here the way is walked again without renaming any machine, so that a
machine has one name from the first step to the last.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from harness.search.state_space.canonical import CanonicalStates, Fingerprint
from harness.search.state_space.explored_model import Explored, ModelStep, Numbers


class WalkedStep(NamedTuple):
    """A step of a schedule, the model's values before and after it, and the step in words."""

    action: Any
    before: Any
    after: Any
    line: str


class ShortestSchedules:
    """The schedules of a model along paths of fingerprints, each from that of the first state on."""

    def __init__(self, explored: Explored) -> None:
        self._model, self._line = explored.model, explored.line
        self._avoided = explored.avoided or (lambda *_: False)
        self._canonical = CanonicalStates(self._model)
        self._ends: dict[tuple[Fingerprint, ...], tuple[Numbers, tuple[WalkedStep, ...]]] = {}
        """The state at the end of a path, and its steps."""

    def along(self, path: tuple[Fingerprint, ...]) -> tuple[str, ...]:
        """The steps along `path`, in words."""
        return tuple(step.line for step in self._end(path)[1])

    def to_broken_promise(self, path: tuple[Fingerprint, ...], *, by_step: bool) -> tuple[str, tuple[WalkedStep, ...]]:
        """The broken promise, and the steps along `path`. `by_step`: a step after it breaks the promise."""
        state, steps = self._end(path)
        if not by_step:
            return str(self._model.broken(state)), steps
        breaking = (it for it in self._model.steps(state) if it.broken is not None)
        step = min(breaking, key=lambda it: (self._avoided(state, it), str(it.broken)))
        return str(step.broken), (*steps, self._walked(state, step))

    def _end(self, path: tuple[Fingerprint, ...]) -> tuple[Numbers, tuple[WalkedStep, ...]]:
        if len(path) == 1:
            return self._model.initial(), ()
        end = self._ends.get(path)
        if end is None:
            state, steps = self._end(path[:-1])
            leading = (it for it in self._model.steps(state) if self._canonical.of(it.state)[0] == path[-1])
            step = min(leading, key=lambda it: self._avoided(state, it))
            end = self._ends[path] = step.state, (*steps, self._walked(state, step))
        return end

    def _walked(self, before: Numbers, step: ModelStep) -> WalkedStep:
        cluster = self._model.cluster
        return WalkedStep(step.action, cluster(before), cluster(step.state), self._line(before, step))
