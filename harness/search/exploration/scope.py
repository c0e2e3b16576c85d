"""The scope of an exploration: its bounds and the protocol, read from YAML (docs/exploration.md)."""

from __future__ import annotations

from dataclasses import dataclass, field

from images.broker.controller.unclean_recovery import STRATEGY, Strategy
from images.broker.frozen_map import FrozenMap
from images.broker.replication.partition import Limits
from images.broker.rules import Rules, WatchedRules
from images.broker.truncation_protocol import TruncationProtocol


@dataclass(frozen=True, slots=True)
class Scope:
    """The bounds of an exploration."""

    replicas: int = 3
    spare_brokers: int = 0
    """Brokers beside those that have a replica at first."""
    records: int = 2
    """Records that producers append, at most."""
    leader_epochs: int = 3
    """Leader epochs, the first of which is that of the new partition."""
    min_insync_replicas: int = 1
    protocol: TruncationProtocol = TruncationProtocol.TRUNCATE_ON_FETCH
    without: tuple[str, ...] = ()
    """Safety rules that are off."""
    isr_changes_in_flight: bool = False
    """Whether other steps come between a leader's AlterPartition and its answer. Otherwise it is answered at once."""
    isr_answers_in_flight: bool = False
    """Whether other steps come between the controller's decision and its answer, too, and either may be lost."""
    fetches_in_flight: bool = False
    """Whether other steps come between a request of a follower, its arrival and its answer; else they are one step."""
    fetchers_shared: bool = False
    """Whether the fetcher of a follower has other partitions of the same leader. Then a request and its answer outlive
    the leadership that they are of."""
    restarts: int = 0
    """Crashes of brokers, each of which comes back as a new incarnation, at most."""
    losses: int = 0
    """Restarts in which a broker has lost data, at most; `losses_at_a_time` says how many at a time."""
    reassignments: int = 0
    """Reassignments that an administrator starts, at most; each may be cancelled."""
    fencings: int = 0
    """Brokers that are fenced for a while though they are up, at most: other steps come between the end of a session
    and the next one."""
    unclean_recovery: Strategy = Strategy.MANUAL
    """What becomes of a partition once no member of ISR and ELR is left: nothing, or it recovers by its logs."""
    symmetry: bool = True
    """Whether states that differ only by the names of the brokers count as one."""
    as_in_a_run: bool = False
    """Whether all brokers have read of the partition at first, and only those broken promises count which the checks of
    a run see (`promises_of_runs`)."""
    rules_read: set[str] | None = field(default=None, compare=False)
    """Where it is given, the names of the safety rules that an exploration in this process reads come into it."""

    @property
    def brokers(self) -> tuple[int, ...]:
        """The ids of the brokers; the first ones have a replica at first."""
        return tuple(range(1, self.replicas + self.spare_brokers + 1))

    @property
    def losses_at_a_time(self) -> int:
        """Brokers that may have lost data and not been in the ISR since: fewer than have every committed record."""
        return min(self.min_insync_replicas, self.replicas) - 1

    @property
    def rules(self) -> Rules:
        """The safety rules of brokers and controller."""
        rules = Rules().without(self.without)
        return rules if self.rules_read is None else WatchedRules(rules, self.rules_read.add)

    @property
    def limits(self) -> Limits:
        """The settings of every replica."""
        return Limits(self.min_insync_replicas, 0, self.rules, self.protocol)

    @property
    def topic_config(self) -> FrozenMap[str, str]:
        """The configuration of the topic, with the keys that decide elections."""
        return FrozenMap(
            {
                "min.insync.replicas": str(self.min_insync_replicas),
                "unclean.leader.election.enable": "false",
                STRATEGY: self.unclean_recovery.value,
            }
        )
