"""Who may lead a partition that nobody is known to be able to lead (KIP-966, Kafka Replication Correctness §6.8).

A partition has no leader once every member of its ISR and ELR is gone, or came back from an unclean shutdown and may
have lost what it had confirmed. `unclean.recovery.strategy` says what is then done:

manual     nothing, until a member of the ELR is back or somebody has a replica elected. The one strategy under which
           `unclean.leader.election.enable` counts: it has the first replica that lives elected, whatever its log.
balanced   only when ISR and ELR are empty: wait until every member of the LastKnownELR has told the end of its log,
           and elect the greatest (leader epoch of its last record, log end offset). The LastKnownELR are
           min.insync.replicas replicas that held every committed record before their shutdowns: while fewer of them
           lost data, one that lost none is among them, and none of the others' logs is greater unless it, too, holds
           all that is committed.
proactive  as soon as nobody is left to lead, even if somebody in the ELR is merely away: elect the greatest log once
           all replicas have told, or, when `unclean.recovery.timeout.ms` is over, among those that have.

A log is told over GetReplicaLogInfo. What was told counts only if it was told by the process that is registered and
unfenced now, and in the leader epoch in which the partition has no leader: such a replica follows nobody, so that its
log stands still.

**Choice**: whoever is elected out of the LastKnownELR leaves the others in it. Until the ISR has min.insync.replicas
members again nothing is committed, so what they held is still all there is to hold, and if the leader in turn shuts
down uncleanly their logs are needed once more. A model of every state of a small cluster finds the loss that would come
of forgetting them (tests/broker/controller/test_recovery_scope.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from images.broker.metadata.image import NO_LEADER, PartitionImage, TopicImage
from images.broker.rules import Rules

STRATEGY = "unclean.recovery.strategy"


class Strategy(StrEnum):
    """The values of `unclean.recovery.strategy`."""

    MANUAL = "manual"
    BALANCED = "balanced"
    PROACTIVE = "proactive"


class ReplicaLogEnd(NamedTuple):
    """What a replica told of its log."""

    broker_epoch: int
    """Of the process that told."""
    leader_epoch: int
    """The partition's leader epoch, as far as that process knew."""
    last_epoch: int
    """The leader epoch of its last record, -1 without one."""
    end: int
    """Its log end offset."""


@dataclass(frozen=True, slots=True)
class UncleanRecovery:
    """A partition to be recovered: whose logs are to be told of."""

    topic: str
    index: int
    leader_epoch: int
    replicas: tuple[int, ...]


def strategy_of(topic: TopicImage) -> Strategy:
    """The strategy of a topic; `manual` for one from before there were strategies."""
    return Strategy(topic.config.get(STRATEGY, Strategy.MANUAL))


def recovery_needed(topic: TopicImage, partition: PartitionImage) -> UncleanRecovery | None:
    """The recovery that `partition` is in need of, None when it is not, or not to be recovered."""
    strategy = strategy_of(topic)
    if partition.leader != NO_LEADER or strategy is Strategy.MANUAL:
        return None
    replicas = partition.replicas
    if strategy is Strategy.BALANCED:
        if partition.isr or partition.elr:
            return None
        replicas = partition.last_known_elr or replicas
    return UncleanRecovery(topic.name, partition.index, partition.leader_epoch, replicas)


def elect_leader(
    topic: TopicImage,
    partition: PartitionImage,
    log_ends: Mapping[int, ReplicaLogEnd],
    broker_epoch: Callable[[int], int | None],
    rules: Rules,
    *,
    overdue: bool,
) -> int:
    """Who leads by what was `log_ends` of the logs, NO_LEADER if that does not suffice. `broker_epoch` gives that of a
    broker that may lead now, and `overdue` whether the time to wait for everybody is over."""
    recovery = recovery_needed(topic, partition)
    if recovery is None:
        return NO_LEADER

    def counts(replica: int) -> bool:
        if replica not in log_ends or broker_epoch(replica) is None:
            return False
        log = log_ends[replica]
        current = (log.broker_epoch, log.leader_epoch) == (broker_epoch(replica), partition.leader_epoch)
        return current or not rules.recovery_counts_current_lives_only

    known = [replica for replica in recovery.replicas if counts(replica)]
    all_known = len(known) == len(recovery.replicas)
    if strategy_of(topic) is Strategy.BALANCED:
        enough = all_known or not rules.recovery_waits_for_last_known_elr
    else:
        enough = all_known or overdue
    if not known or not enough:
        return NO_LEADER
    if not rules.recovery_elects_greatest_log:
        return known[0]
    return max(known, key=lambda replica: (log_ends[replica].last_epoch, log_ends[replica].end))
