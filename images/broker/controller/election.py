"""How one partition changes: its ISR, who leads it, who stays eligible to lead it, and which replicas it has.

One pure function, `change`, through which every change of a partition goes: an ISR the leader asked for, a broker
fenced, registered again or shutting down, a broker back, an election somebody asked for, a reassignment. It keeps
these in step:

*Leader*: the current one while it is in the ISR and eligible; else the first eligible ISR member in replica order;
else, the ISR being empty, the first eligible ELR member, and the ISR becomes that one; else the first eligible
replica if the topic allows unclean election, ISR and ELR starting afresh with it; else nobody, until an unclean
recovery says who (`unclean_recovery.py`).

*ELR* (KIP-966): empty while |ISR'| ≥ min.isr. Else ELR' = ((ELR ∪ ISR) ∩ replicas) − ISR' − unclean, and whoever was
a candidate but is in neither is remembered in LastKnownELR. Since the high watermark stands still below min.isr,
everybody in ISR ∪ ELR holds every committed record (Leader Candidate Completeness, RC 6.5).

*Reassignment*: completes within the change that makes it possible (`reassignment.py`).

*Epochs*: every change bumps the partition epoch; a change of leader, also to nobody, and the removal of any replica
bump the leader epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, replace

from images.broker.controller.reassignment import complete_reassignment
from images.broker.controller.unclean_recovery import Strategy, strategy_of
from images.broker.metadata.image import NO_LEADER, PartitionImage, TopicImage
from images.broker.rules import Rules


@dataclass(frozen=True, slots=True)
class PartitionChange:
    """A partition's next state, and whether its leader may lack committed records with everybody's consent."""

    partition: PartitionImage
    unclean: bool = False


def change(
    topic: TopicImage,
    partition: PartitionImage,
    *,
    isr: Iterable[int],
    eligible: Callable[[int], bool],
    rules: Rules,
    unclean: Container[int] = (),
    always: bool = False,
    onto: PartitionImage | None = None,
    preferred: int = NO_LEADER,
    recovered: int = NO_LEADER,
    allow_unclean: bool | None = None,
) -> PartitionChange | None:
    """`partition` with `isr` as its ISR; None when that leaves everything as it is, unless a bump is wanted `always`.

    `eligible` tells who may lead. `unclean` are the replicas that may have lost what they had confirmed. `onto` is the
    partition with other replicas, when a reassignment begins or is cancelled. `preferred` leads if it is in the ISR and
    eligible. `recovered` leads by an unclean recovery. `allow_unclean` stands for what the topic says of unclean
    election.
    """
    before = partition
    partition = onto or partition
    wanted = _in_order(partition, isr)
    done = complete_reassignment(topic, partition, wanted, eligible, rules)
    if done is not None:
        partition = done
        wanted = _in_order(partition, wanted)
    candidates = _in_order(partition, {*partition.isr, *partition.elr})
    fit = tuple(replica for replica in candidates if replica not in wanted and replica not in unclean)
    if allow_unclean is None:
        allow_unclean = topic.unclean_election and strategy_of(topic) is Strategy.MANUAL
    if recovered != NO_LEADER:
        election = _Election(recovered, (recovered,), unclean=True)
    elif preferred in wanted and eligible(preferred):
        election = _Election(preferred, wanted)
    else:
        election = _elect(partition, wanted, fit, eligible, rules, allow_unclean)
    if election.unclean:
        elr: tuple[int, ...] = ()
        keeps = rules.recovery_keeps_last_known_elr and recovered in partition.last_known_elr
        known = partition.last_known_elr if keeps else ()
        last_known_elr = tuple(replica for replica in known if replica != recovered)
    elif len(election.isr) >= topic.min_isr(partition):
        elr = last_known_elr = ()
    else:
        elr = tuple(replica for replica in fit if replica not in election.isr)
        known = _in_order(partition, {*candidates, *partition.last_known_elr})
        last_known_elr = tuple(replica for replica in known if replica not in election.isr and replica not in elr)
    changed = replace(partition, isr=election.isr, elr=elr, last_known_elr=last_known_elr, leader=election.leader)
    if changed == before and not always:
        return None
    removal = rules.removal_bumps_leader_epoch and not set(before.replicas) <= set(changed.replicas)
    return PartitionChange(
        replace(
            changed,
            leader_epoch=before.leader_epoch + (election.leader != before.leader or removal),
            partition_epoch=before.partition_epoch + 1,
        ),
        election.unclean,
    )


@dataclass(frozen=True, slots=True)
class _Election:
    leader: int
    isr: tuple[int, ...]
    unclean: bool = False


def _elect(
    partition: PartitionImage,
    isr: tuple[int, ...],
    elr: tuple[int, ...],
    eligible: Callable[[int], bool],
    rules: Rules,
    allow_unclean: bool,
) -> _Election:
    if partition.leader in isr and eligible(partition.leader):
        return _Election(partition.leader, isr)
    anyone = next(filter(eligible, partition.replicas), NO_LEADER)
    if not rules.elect_from_isr_or_elr and anyone != NO_LEADER:
        return _Election(anyone, isr if anyone in isr else (anyone,))
    in_sync = next(filter(eligible, isr), NO_LEADER)
    if in_sync != NO_LEADER:
        return _Election(in_sync, isr)
    complete = next(filter(eligible, elr), NO_LEADER) if not isr else NO_LEADER
    if complete != NO_LEADER:
        return _Election(complete, (complete,))
    if allow_unclean and anyone != NO_LEADER:
        return _Election(anyone, (anyone,), unclean=True)
    return _Election(NO_LEADER, isr)


def _in_order(partition: PartitionImage, members: Iterable[int]) -> tuple[int, ...]:
    """`members` in replica order, without those who are no replicas."""
    wanted = frozenset(members)
    return tuple(replica for replica in partition.replicas if replica in wanted)
