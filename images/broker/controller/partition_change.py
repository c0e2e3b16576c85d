"""How one partition changes: its ISR, its leader, its eligible leader replicas and its replicas.

Every change of a partition goes through `PartitionChangeBuilder`: an ISR that the leader proposes, a broker that is
fenced, registered again, shut down or unfenced, a requested election, a reassignment. The builder keeps these
consistent:

*Leader*: the current one while it is in the ISR and eligible; else the first eligible ISR member in replica order;
else, with an empty ISR, the first eligible ELR member, which becomes the ISR; else, with an empty ELR too, the last
known leader once it is eligible; else the first eligible replica if the topic allows unclean election, with a new ISR
and an empty ELR; else none, until an unclean recovery elects one (`unclean_recovery.py`).

*ELR* (KIP-966): empty while |ISR'| ≥ min.isr. Else ELR' = ((ELR ∪ ISR) ∩ replicas) − ISR' − unclean; the other former
candidates go to LastKnownELR, or, with the strategy `last-known-leader`, the last leader alone does. Since the high
watermark stands still below min.isr, every member of ISR ∪ ELR holds every committed record (Leader Candidate
Completeness, Kafka Replication Correctness §6.5).

Without the rule `eligible_leader_replicas` the ELR is always empty, and the last member stays in the ISR, without a
leader while it is away.

*Reassignment*: completes within the change that makes it possible (`reassignment.py`).

*Epochs*: every change bumps the partition epoch; a change of leader, also to none, and the removal of any replica bump
the leader epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, replace
from typing import Self

from images.broker.controller.reassignment import complete_reassignment
from images.broker.controller.unclean_recovery import Strategy, strategy_of, unclean_election_allowed
from images.broker.metadata.image import PartitionImage, TopicImage
from images.broker.rules import Rules
from images.wire.field_values import NO_LEADER


@dataclass(frozen=True, slots=True)
class PartitionChange:
    """The next state of a partition. `unclean`: its new leader may lack committed records; `last_known_leader`: it is
    elected as the last leader there was."""

    partition: PartitionImage
    unclean: bool = False
    last_known_leader: bool = False


class PartitionChangeBuilder:
    """One change of `partition`, made of the settings below. `eligible` says whether a replica may lead."""

    def __init__(
        self, topic: TopicImage, partition: PartitionImage, eligible: Callable[[int], bool], rules: Rules
    ) -> None:
        self.topic = topic
        self._before = partition
        self._partition = partition
        self._eligible = eligible
        self._rules = rules
        self._isr: Iterable[int] = partition.isr
        self._unclean_replicas: Container[int] = ()
        self._preferred_leader = NO_LEADER
        self._recovered_leader = NO_LEADER
        self._keeps_last_leader = strategy_of(topic) is Strategy.LAST_KNOWN_LEADER
        self._unclean_election = unclean_election_allowed(topic)
        self._bump_epoch = False

    def set_isr(self, isr: Iterable[int]) -> Self:
        """The next ISR, unless an election or a reassignment changes it further."""
        self._isr = isr
        return self

    def set_replicas(self, reassigned: PartitionImage) -> Self:
        """Replicas and ISR of `reassigned`, with which a reassignment starts or is cancelled."""
        self._partition = reassigned
        self._isr = reassigned.isr
        return self

    def set_unclean_replicas(self, replicas: Container[int]) -> Self:
        """Replicas that may have lost confirmed records, so that they must leave the ELR."""
        self._unclean_replicas = replicas
        return self

    def prefer_leader(self, replica: int) -> Self:
        """Elect `replica` if it is in the ISR and eligible."""
        self._preferred_leader = replica
        return self

    def recover_leader(self, replica: int) -> Self:
        """Elect `replica`, which an unclean recovery chose."""
        self._recovered_leader = replica
        return self

    def take_elr_for_last_leader(self) -> Self:
        """Begin with the strategy `last-known-leader`: nobody knows which replica led last, but a member of the ELR
        holds every committed record, as the last leader does."""
        partition = self._partition
        self._partition = replace(partition, last_known_elr=partition.elr or partition.last_known_elr)
        return self

    def allow_unclean_election(self) -> Self:
        """Allow an unclean election, whatever the topic's configuration says."""
        self._unclean_election = True
        return self

    def bump_epoch(self, always: bool = True) -> Self:
        """Bump the partition epoch even if nothing else changes."""
        self._bump_epoch = always
        return self

    def build(self) -> PartitionChange | None:
        """The change; None if nothing changes."""
        partition, isr = self._partition, _in_order(self._partition, self._isr)
        completed = complete_reassignment(self.topic, partition, isr, self._eligible, self._rules)
        if completed is not None:
            partition, isr = completed, _in_order(completed, isr)
        candidates = _in_order(partition, {*partition.isr, *partition.elr})
        elr = tuple(replica for replica in candidates if replica not in isr and replica not in self._unclean_replicas)
        if not self._rules.eligible_leader_replicas:
            isr, elr = isr or partition.isr, ()
        election = self._elect(partition, isr, elr)
        elr, last_known_elr = self._eligible_replicas(partition, candidates, elr, election)
        changed = replace(partition, isr=election.isr, elr=elr, last_known_elr=last_known_elr, leader=election.leader)
        before = self._before
        if changed == before and not self._bump_epoch:
            return None
        removal = not set(before.replicas) <= set(changed.replicas) and self._rules.removal_bumps_leader_epoch
        return PartitionChange(
            replace(
                changed,
                leader_epoch=before.leader_epoch + (election.leader != before.leader or removal),
                partition_epoch=before.partition_epoch + 1,
            ),
            election.unclean,
            election.last_known_leader,
        )

    def _elect(self, partition: PartitionImage, isr: tuple[int, ...], elr: tuple[int, ...]) -> _Election:
        eligible = self._eligible
        if self._recovered_leader != NO_LEADER:
            return _Election(self._recovered_leader, (self._recovered_leader,), unclean=True)
        if self._preferred_leader in isr and eligible(self._preferred_leader):
            return _Election(self._preferred_leader, isr)
        if partition.leader in isr and eligible(partition.leader):
            return _Election(partition.leader, isr)
        any_replica = next(filter(eligible, partition.replicas), NO_LEADER)
        # If it is in the ISR, which has the order of the replicas, it is elected in any case.
        if any_replica not in (NO_LEADER, *isr) and not self._rules.elect_from_isr_or_elr:
            return _Election(any_replica, (any_replica,))
        in_sync = next(filter(eligible, isr), NO_LEADER)
        if in_sync != NO_LEADER:
            return _Election(in_sync, isr)
        from_elr = next(filter(eligible, elr), NO_LEADER) if not isr else NO_LEADER
        if from_elr != NO_LEADER:
            return _Election(from_elr, (from_elr,))
        # A LastKnownELR of several members is of another strategy, and says not who led last (KIP-966). A fenced broker
        # is never elected (KAFKA-19522).
        last_known = partition.last_known_elr
        if self._keeps_last_leader and not isr and not elr and len(last_known) == 1 and eligible(last_known[0]):
            return _Election(last_known[0], last_known, unclean=True, last_known_leader=True)
        if self._unclean_election and any_replica != NO_LEADER:
            return _Election(any_replica, (any_replica,), unclean=True)
        return _Election(NO_LEADER, isr)

    def _eligible_replicas(
        self, partition: PartitionImage, candidates: tuple[int, ...], elr: tuple[int, ...], election: _Election
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """ELR and LastKnownELR after the election."""
        full = len(election.isr) >= self.topic.min_isr(partition) and self._rules.full_isr_clears_elr
        if full or not self._rules.eligible_leader_replicas:
            return (), ()
        if election.unclean:
            recovered = self._recovered_leader
            keeps = recovered in partition.last_known_elr and self._rules.recovery_keeps_last_known_elr
            last_known = partition.last_known_elr if keeps else ()
            return (), tuple(replica for replica in last_known if replica != recovered)
        elr = tuple(replica for replica in elr if replica not in election.isr)
        if not self._rules.last_known_elr_kept:
            return elr, ()
        if self._keeps_last_leader:
            return elr, self._last_leader(partition, election)
        last_known = _in_order(partition, {*candidates, *partition.last_known_elr})
        return elr, tuple(replica for replica in last_known if replica not in election.isr and replica not in elr)

    def _last_leader(self, partition: PartitionImage, election: _Election) -> tuple[int, ...]:
        """LastKnownELR with the strategy `last-known-leader`: the leader that leaves an empty ISR behind."""
        if election.leader != NO_LEADER:
            return ()
        left = self._before.leader
        return _in_order(partition, (left,)) if left != NO_LEADER else partition.last_known_elr


@dataclass(frozen=True, slots=True)
class _Election:
    leader: int
    isr: tuple[int, ...]
    unclean: bool = False
    last_known_leader: bool = False


def _in_order(partition: PartitionImage, members: Iterable[int]) -> tuple[int, ...]:
    """`members` in replica order, without brokers that are not replicas."""
    wanted = frozenset(members)
    return tuple(replica for replica in partition.replicas if replica in wanted)
