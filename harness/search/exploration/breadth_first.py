"""The exploration of a scope: every state of the cluster, until a promise is broken or no state is left."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from harness.search.exploration import schedules as words
from harness.search.exploration.cluster_model import ClusterModel, ClusterStep
from harness.search.exploration.machine_steps import WITHOUT_SCRIPT
from harness.search.exploration.scope import Scope
from harness.search.exploration.situations import StateSituations
from harness.search.state_space.breadth_first import ExplorationProgress, ExplorationResult, ShardsOf, search
from harness.search.state_space.checkpoint import SearchCheckpoint
from harness.search.state_space.explored_model import Explored, Numbers


def explore(
    scope: Scope,
    processes: int | ShardsOf,
    progress: Callable[[ExplorationProgress], None] = lambda _: None,
    *,
    schedules: bool = False,
    depth_most: int | None = None,
    checkpoint: SearchCheckpoint | None = None,
) -> ExplorationResult:
    """Explore every state of `scope`, or those that are so many steps deep at most, until a promise is broken or no
    state is left, as `search`; with `schedules`, find the shortest one to every situation."""
    return search(
        partial(_explored, scope),
        processes,
        progress,
        schedules=schedules,
        depth_most=depth_most,
        checkpoint=checkpoint,
    )


def _explored(scope: Scope) -> Explored:
    model = ClusterModel(scope)
    avoided = partial(_may_have_no_script, model) if scope.as_in_a_run else None
    return Explored(model, partial(words.line, model), StateSituations(model).code, avoided)


def _may_have_no_script(model: ClusterModel, state: Numbers, step: ClusterStep) -> bool:
    """Whether no script has a step, or but one of its kind: one of these kinds, a broker that reads an old state of the
    metadata, or the end of a session while another broker is down and counts as alive."""
    kind, broker, position = step.action
    if kind not in ("read", "session_ends", "fence"):
        return kind in WITHOUT_SCRIPT
    cluster = model.cluster(state)
    if kind == "read":
        return position < len(cluster.brokers[broker - 1].unread) - 1
    alive = {it.id for it in cluster.controller.brokers if not it.fenced and it.id != broker}
    return any(it.down and it.partition.node in alive for it in cluster.brokers)
