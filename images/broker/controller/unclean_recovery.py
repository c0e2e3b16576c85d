"""Unclean recovery: electing a leader where no replica is known to hold all committed records (KIP-966, Kafka
Replication Correctness §6.8).

A partition has no leader once every member of its ISR and ELR is gone, or restarted after an unclean shutdown and may
have lost confirmed records. `unclean.recovery.strategy` decides what happens then:

last-known-leader
           the default, as in Apache Kafka 4.1: the LastKnownELR is the last leader alone, and with empty ISR and ELR
           that leader is elected once it is unfenced. It held every committed record when it led, so only records that
           it lost itself are lost; other replicas may still hold them.
manual     nothing, until a member of the ELR is back or an administrator requests an election.
balanced   only with empty ISR and ELR: wait for the log ends of every member of the LastKnownELR, and elect the
           greatest (leader epoch of the last record, log end offset). The LastKnownELR are min.insync.replicas replicas
           that held every committed record before their shutdowns: while fewer of them lost data, one that lost none
           is among them, and a log can only be greater if it, too, holds all committed records: none appends behind
           a cut that a power loss may undo (`Log.append`). A log without a record may tell no epoch at all: see
           `greatest_log`.
proactive  once no replica is left to lead, even if a member of the ELR is only away: elect the greatest log once all
           replicas have reported, or, after `unclean.recovery.timeout.ms`, among those that have.

With the first two, `unclean.leader.election.enable` elects the first active replica where nobody else may lead,
whatever its log. The last known leader is elected within an ordinary change (`partition_change.py`); the logs that the
last two compare are requested here.

Replicas report their log ends in GetReplicaLogInfo. A report counts only if it comes from the broker process that is
registered and unfenced now, and from the leader epoch in which the partition has no leader: such a replica follows no
leader, so its log does not change.

**Choice**: a leader elected out of the LastKnownELR leaves the other members in it. Until the ISR has
min.insync.replicas members again nothing is committed, so their logs still hold all committed records, and are needed
once more if the leader shuts down uncleanly in turn.

**Choice**: `balanced` and `manual` begin only where ISR and ELR have min.insync.replicas members (`change_refused`).

A model of every state of a small cluster finds the losses that would follow from forgetting them, and from beginning
earlier (tests/broker/controller/test_recovery_scope.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from images.broker.metadata.image import PartitionImage, TopicImage
from images.broker.rules import Rules
from images.wire.field_values import NO_EPOCH, NO_LEADER

STRATEGY = "unclean.recovery.strategy"
LAST_KNOWN_LEADER_ELECTED = "last_known_leader"
"""Reason, in the trace, of a change that elects the last known leader."""
UNCLEAN_RECOVERY = "unclean_recovery"
"""Reason, in the trace, of a change that elects by log ends."""
UNCLEAN_ELECTION = "unclean_election"
"""Reason, in the trace, of a change upon an administrator's request to elect any replica."""


class Strategy(StrEnum):
    """The values of `unclean.recovery.strategy`."""

    LAST_KNOWN_LEADER = "last-known-leader"
    MANUAL = "manual"
    BALANCED = "balanced"
    PROACTIVE = "proactive"


class ReplicaLogEnd(NamedTuple):
    """The log end that a replica reports in GetReplicaLogInfo."""

    broker_epoch: int
    """Broker epoch of the reporting process."""
    leader_epoch: int
    """Leader epoch of the partition, as far as that process knows."""
    last_epoch: int
    """Leader epoch of its last record, also if retention has deleted that; NO_EPOCH if it knows none."""
    end: int
    """Log end offset."""


@dataclass(frozen=True, slots=True)
class UncleanRecovery:
    """A partition to recover, and the replicas whose log ends are needed."""

    topic: str
    index: int
    leader_epoch: int
    replicas: tuple[int, ...]


def strategy_of(topic: TopicImage) -> Strategy:
    """The strategy of a topic; `manual` for a topic created before there were strategies."""
    return Strategy(topic.config.get(STRATEGY, Strategy.MANUAL))


def unclean_election_allowed(topic: TopicImage) -> bool:
    """Whether a replica may be elected from outside ISR and ELR at once: the topic's setting counts where its strategy
    leaves the election to it."""
    return topic.unclean_election and strategy_of(topic) in (Strategy.LAST_KNOWN_LEADER, Strategy.MANUAL)


def change_refused(topic: TopicImage, configured: TopicImage) -> str | None:
    """Why the strategy of `topic` may not become that of `configured` now; None if it may.

    `balanced` needs min.insync.replicas replicas that held every committed record, in ISR, ELR and LastKnownELR, and
    nobody else there. `last-known-leader` does not record who leaves the ELR, and `proactive` may have taken that over
    from it, so ISR and ELR have to suffice. No other replica can be taken for a former member of the ELR: one that has
    been away for longer may have records of a leader that never committed them, and a greater log than those that have
    what was committed since. The same holds for `manual`, since `balanced` may follow it at any time."""
    recorded = (Strategy.BALANCED, Strategy.MANUAL)
    if strategy_of(topic) in recorded or strategy_of(configured) not in recorded:
        return None
    for partition in configured.partitions:
        complete, needed = len({*partition.isr, *partition.elr}), configured.min_isr(partition)
        if complete < needed:
            return (
                f"{STRATEGY} can become {strategy_of(configured)} only once ISR and ELR of every partition have "
                f"min.insync.replicas members: those of partition {partition.index} have {complete} instead of {needed}"
            )
    return None


def recovery_needed(topic: TopicImage, partition: PartitionImage) -> UncleanRecovery | None:
    """The recovery that `partition` needs, None if none."""
    strategy = strategy_of(topic)
    if partition.leader != NO_LEADER or strategy in (Strategy.MANUAL, Strategy.LAST_KNOWN_LEADER):
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
    """The leader to elect by `log_ends`, NO_LEADER if these do not suffice.

    `broker_epoch` gives the broker epoch of a broker that is eligible now, `overdue` says whether the time to wait for
    all replicas is over.
    """
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
    greatest = greatest_log({replica: log_ends[replica] for replica in known})
    return greatest if greatest == known[0] or rules.recovery_elects_greatest_log else known[0]


def greatest_log(log_ends: Mapping[int, ReplicaLogEnd]) -> int:
    """The replica of `log_ends` with the greatest log: by the leader epoch of the last record, then by the end, then
    the first one. No log that ends before an empty one without an epoch is the greatest.

    An epoch is known from a record, be that deleted or not. An empty log that was cut below its start knows none, nor
    does one that a follower of an older truncation protocol began at its leader's log start. That says nothing against
    the log: its end is its start, and a log start never exceeds the high watermark. So all records before it were
    committed, and a log that ends before it lacks some of them.

    Example: offsets below 147 are committed in epoch 0. Replica 5 began at its leader's log start: (-1, 147).
    Replica 4 has lost offset 146 with its power: (0, 146). By the epochs alone 4 would be greater, and would give 146,
    which was acknowledged, to another record (docs/decisions/0024-an-emptied-log-is-not-the-least.md).
    """
    emptied = max((log.end for log in log_ends.values() if log.last_epoch == NO_EPOCH), default=0)
    long_enough = {replica: log for replica, log in log_ends.items() if log.end >= emptied}
    return max(long_enough, key=lambda replica: (log_ends[replica].last_epoch, log_ends[replica].end))
