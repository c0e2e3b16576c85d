"""The exploration of a scope: every state of the controllers, until a promise is broken or no state is left."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from harness.search.quorum_exploration import schedules as words
from harness.search.quorum_exploration.quorum_model import QuorumModel
from harness.search.quorum_exploration.scope import QuorumScope
from harness.search.state_space.breadth_first import ExplorationProgress, ExplorationResult, ShardsOf, search
from harness.search.state_space.checkpoint import SearchCheckpoint
from harness.search.state_space.explored_model import Explored


def explore(
    scope: QuorumScope,
    processes: int | ShardsOf,
    progress: Callable[[ExplorationProgress], None] = lambda _: None,
    *,
    depth_most: int | None = None,
    checkpoint: SearchCheckpoint | None = None,
) -> ExplorationResult:
    """Explore every state of `scope`, or those that are so many steps deep at most, until a promise is broken or no
    state is left, as `search`."""
    return search(partial(explored, scope), processes, progress, depth_most=depth_most, checkpoint=checkpoint)


def explored(scope: QuorumScope) -> Explored:
    """The model of a scope, with the words for it."""
    model = QuorumModel(scope)
    return Explored(model, partial(words.line, model))
