"""The promises of which the checks of a run see that a step breaks them (`checkers.protocol`, on the trace).

An exploration looks into every broker in every state. A run writes a trace of what brokers and controllers do, so a
promise counts as broken when something is decided that contradicts it: a leader is elected, an ISR changes, replicas
are removed, a high watermark moves.
"""

from __future__ import annotations

from typing import NamedTuple

from harness.search.exploration import promises
from harness.search.exploration.cluster_values import BrokerState, ExploredCluster


class SeenViolation(NamedTuple):
    """A broken promise in words, and the finding of the check `protocol` about it."""

    finding: str
    promise: str


def seen_broken(before: ExploredCluster, after: ExploredCluster) -> SeenViolation | None:
    """The promise that the step from `before` to `after` breaks, as a run shows it."""
    if after.controller != before.controller:
        text = _incomplete_candidate(before, after)
        if text is not None:
            return SeenViolation("candidate-incomplete", text)
        removal = _no_candidate(before, after)
        if removal is not None:
            return removal
    for old, new in zip(before.brokers, after.brokers, strict=True):
        if _in_one_leadership(old, new) and (seen := _led_on(before, old, new)) is not None:
            return seen
    return None


def _in_one_leadership(old: BrokerState, new: BrokerState) -> bool:
    both_lead = old.partition.leadership is not None and new.partition.leadership is not None
    return both_lead and old.partition.leader_epoch == new.partition.leader_epoch


def _incomplete_candidate(before: ExploredCluster, after: ExploredCluster) -> str | None:
    """Leader Candidate Completeness, of what was committed before the decision."""
    known = after.controller.partition
    for broker in after.brokers:
        node = broker.partition.node
        if (node in known.isr or node in known.elr) and not promises.has_committed(broker, before.history):
            return promises.lacks_committed(broker, after.controller, before.history)
    return None


def _no_candidate(before: ExploredCluster, after: ExploredCluster) -> SeenViolation | None:
    """The removal of replicas leaves nobody in ISR and ELR, so that what is committed is lost. A run shows that the
    removal came too early: before those that were added had joined the ISR, or with too few others in it."""
    was, known = before.controller.partition, after.controller.partition
    removed = sorted(set(was.replicas) - set(known.replicas))
    if not removed or known.isr or known.elr or not before.history.committed:
        return None
    added = (set(was.adding) | (set(known.replicas) - set(was.replicas))) & set(known.replicas) - set(known.adding)
    return SeenViolation(
        "reassignment-completed-early" if added else "reassignment-shrinks-isr",
        f"brokers {removed} are removed and nobody is left in ISR and ELR; committed: "
        f"{promises.log_words(before.history.committed)}: an acknowledged record is lost",
    )


def _led_on(before: ExploredCluster, old: BrokerState, new: BrokerState) -> SeenViolation | None:
    """The high watermark of a leader falls, or passes a record where another one was committed."""
    fallen = promises.broken_by_step(old, new)
    if fallen is not None:
        return SeenViolation("high-watermark-fell", fallen)
    if new.partition.high_watermark > old.partition.high_watermark:
        committed = promises.committed_after(before.history, new)
        if isinstance(committed, str):
            return SeenViolation("committed-overwritten", committed)
    return None
