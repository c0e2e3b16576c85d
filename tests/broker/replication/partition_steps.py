"""The partition machine under test: a leader, fetches of its followers, and the proposals it makes."""

from __future__ import annotations

from dataclasses import replace

from kio.schema.errors import ErrorCode

from images.broker.log.leader_epochs import EpochCache
from images.broker.replication.become_leader_or_follower import apply_registration
from images.broker.replication.leader import (
    FetchStep,
    appended,
    on_replica_fetch,
)
from images.broker.replication.partition import (
    Limits,
    Partition,
    PartitionRegistration,
    PartitionStep,
    ProposeIsr,
    ReplicaFetch,
)
from images.broker.rules import Rules

ALL = Rules()
LIMITS = Limits(min_insync_replicas=2, replica_lag_time_max_ms=1_000, rules=ALL)
ACTIVE = {1: 11, 2: 12, 3: 13}


def without(*rules: str, limits: Limits = LIMITS) -> Limits:
    return replace(limits, rules=ALL.without(rules))


def log(*runs: tuple[int, int]) -> tuple[EpochCache, int]:
    """The epoch cache and end of a log given as (epoch, count) runs: `log((1, 4))` is `1×4`."""
    cache, end = EpochCache(), 0
    for epoch, count in runs:
        cache, end = cache.assign(epoch, end), end + count
    return cache, end


def leader(
    *,
    isr: tuple[int, ...] = (1, 2, 3),
    runs: tuple[tuple[int, int], ...] = (),
    epoch: int = 5,
    high_watermark: int = 0,
    limits: Limits = LIMITS,
    now_ms: int = 0,
) -> Partition:
    epochs, end = log(*runs)
    fresh = Partition(node=1, log_end=end, epochs=epochs, high_watermark=high_watermark)
    return apply_registration(fresh, PartitionRegistration((1, 2, 3), isr, 1, epoch, 7), now_ms, limits).partition


def fetch(
    state: Partition,
    replica: int,
    offset: int,
    *,
    last_epoch: int | None = None,
    epoch: int = 5,
    broker_epoch: int | None = None,
    read_index: int = 0,
    log_start: int = -1,
    now_ms: int = 10,
    limits: Limits = LIMITS,
) -> FetchStep:
    if last_epoch is None:
        last_epoch = state.epochs.epoch_at(offset - 1) if offset else -1
    request = ReplicaFetch(replica, broker_epoch or ACTIVE[replica], epoch, offset, last_epoch, read_index, log_start)
    return on_replica_fetch(state, request, ACTIVE, now_ms, limits)


def fetched(state: Partition, replica: int, offset: int, limits: Limits = LIMITS, **more: int) -> Partition:
    answer = fetch(state, replica, offset, limits=limits, **more)
    assert answer.error is ErrorCode.none
    assert answer.diverging is None
    return answer.step.partition


def grown(state: Partition, to: int, limits: Limits = LIMITS) -> Partition:
    return appended(state, state.epochs.assign(state.leader_epoch, state.log_end), to, limits).partition


def proposal_in(step: PartitionStep) -> ProposeIsr:
    (found,) = [decision for decision in step.decisions if isinstance(decision, ProposeIsr)]
    return found
