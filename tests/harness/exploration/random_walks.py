"""Random walks through the states of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from harness.search.state_space.canonical import CanonicalStates
from harness.search.state_space.explored_model import ExploredModel, ModelStep

Choose = Callable[[Random, Sequence[Any]], ModelStep]


def of_any_kind(random: Random, steps: Sequence[Any]) -> ModelStep:
    """A step of a kind that is drawn first, so that rare kinds come as often as common ones."""
    kind = random.choice(sorted({step.action.kind for step in steps}))
    step: ModelStep = random.choice([step for step in steps if step.action.kind == kind])
    return step


def kinds_of_canonical_walks(model: ExploredModel, walks: int, depth: int, choose: Choose = of_any_kind) -> set[str]:
    """The kinds of steps on so many walks. Every state of them has one canonical form under all names of its machines,
    and so have the states that its steps lead to."""
    canonical = CanonicalStates(model)
    kinds: set[str] = set()
    for seed in range(walks):
        random, state = Random(seed), model.initial()
        for _ in range(depth):
            fingerprint, renamed = canonical.of(state)
            assert canonical.of(renamed) == (fingerprint, renamed)
            steps = list(model.steps(state))
            after = {canonical.of(step.state)[0] for step in steps}
            assert after == {canonical.of(step.state)[0] for step in model.steps(renamed)}
            if not steps:
                break
            step = choose(random, steps)
            kinds.add(step.action.kind)
            state = step.state
    return kinds
