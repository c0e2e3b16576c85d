"""Promises about decisions of the controllers: registration, leader, ISR and ELR. See `checkers.protocol.checker`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from checkers.evidence import CheckSettings
from checkers.fault_model import LAST_KNOWN_LEADER_ELECTED
from checkers.protocol.batches import UNKNOWN
from checkers.protocol.state import ClusterState, PartitionState, ProtocolViolation, TraceRowHandler, integers, names
from checkers.tables import TraceRow
from checkers.unclean_elections import UNCLEAN_RECOVERY


def broker_changed(cluster: ClusterState, event: TraceRow) -> None:
    """A broker was fenced, unfenced or registered; one that registers is fenced until it has read the metadata."""
    if event.offset < cluster.broker_changes.get(event.broker, UNKNOWN):
        return  # a controller that was deposed traced it late
    cluster.broker_changes[event.broker] = event.offset
    if event.kind == "broker_unfenced":
        cluster.fenced.discard(event.broker)
    else:
        cluster.fenced.add(event.broker)


def check_fenced(cluster: ClusterState, partition: PartitionState, event: TraceRow) -> None:
    """A change of a partition neither elects a broker that is fenced nor lets it into the ISR."""
    if partition.decision is not None and event.offset < partition.decision.metadata_offset:
        return
    without_session = "the controllers have fenced it, or registered it and not unfenced it yet"
    if event.leader != partition.leader and event.leader in cluster.fenced:
        elected = f"b{event.leader} was elected in leader epoch {event.leader_epoch} {event.at}"
        partition.report(event, "fenced-broker-elected", UNKNOWN, elected, without_session)
    joined = frozenset(event.members) - (partition.isr or frozenset()) - {event.leader}
    for broker in sorted(joined & cluster.fenced):
        membership = f"b{broker} was put into the ISR {names(frozenset(event.members))} {event.at}"
        partition.report(event, "fenced-broker-joined-isr", UNKNOWN, membership, without_session)


def broker_registered(cluster: ClusterState, event: TraceRow) -> None:
    """A broker has registered; after an unclean shutdown it may be in no ISR or ELR until it has joined an ISR
    again."""
    node, clean = f"b{event.broker}", event.details().get("clean")
    is_first = node in cluster.awaiting_registration
    cluster.awaiting_registration.discard(node)
    if clean is True:
        cluster.clean_registrations[node, event.broker_epoch] = event.time_ns
    if is_first and clean is True:
        cluster.clean_lives[node] = event.time_ns
    elif clean is False and (is_first or cluster.clean_lives.pop(node, None) is not None):
        # The registration accepted before may have been a late request of the life before this one.
        cluster.unclean_lives[node] = cluster.life_starts[node]
    for partition in cluster.partitions.values():
        partition.candidates_to_check = True
        if clean is False:
            partition.excluded.add(event.broker)


def broker_told(cluster: ClusterState, event: TraceRow) -> None:
    """A broker has heard that it is registered: by a request of its own, or of a life before, which had not heard of
    it."""
    accepted_ns = cluster.clean_registrations.get((event.node, event.broker_epoch))
    if accepted_ns is not None and event.node in cluster.awaiting_registration:
        cluster.awaiting_registration.remove(event.node)
        cluster.clean_lives[event.node] = accepted_ns


def _partition_changed(partition: PartitionState, event: TraceRow, settings: CheckSettings) -> None:
    if partition.decision is not None and event.offset < partition.decision.metadata_offset:
        return  # a controller that was deposed traced it late
    detail = event.details()
    isr, elr = frozenset(event.members), frozenset(integers(detail, "elr"))
    replicas = integers(detail, "replicas")
    minimum = detail.get("min_isr", settings.min_insync_replicas)
    partition.min_isr = min(minimum, len(replicas) or minimum) if isinstance(minimum, int) else 1
    if partition.min_isr not in tuple(partition.min_isr_at.values())[-1:]:
        partition.min_isr_at[event.partition_epoch] = partition.min_isr
    before = partition.isr
    # A balanced recovery may elect a member of the last known ELR when ISR and ELR are empty, or any replica if that is
    # empty, too; a last known leader is the only member, and its election may be the change in which the last member of
    # the ELR leaves it, registering after an unclean shutdown.
    last_known, reason = partition.last_known_elr, detail.get("reason")
    candidates = last_known or frozenset(replicas)
    recovered = (
        settings.unclean_recovery == "balanced"
        and reason == UNCLEAN_RECOVERY
        and not before
        and not partition.elr
        and event.leader in candidates
    ) or (
        reason == LAST_KNOWN_LEADER_ELECTED and not before and len(partition.elr) <= 1 and last_known == {event.leader}
    )
    requested = partition.leader < 0 and partition.election_requests.permit(detail, event.time_ns, settings)
    permitted = settings.unclean_election or recovered or requested
    if event.leader >= 0 and event.leader_epoch != partition.leader_epoch:
        partition.elections += 1
        partition.record_leader(event, f"b{event.leader}")
        # A reassignment completes in the change that a leader requested; the leader waits for the replicas it proposed.
        proposed = isr if detail.get("reason") == "alter_partition" else frozenset[int]()
        if before is not None and event.leader not in before | partition.elr | proposed and not permitted:
            held = f"the ISR was {names(before)} and the ELR {names(partition.elr)}"
            elected = f"b{event.leader} was elected in leader epoch {event.leader_epoch} {event.at}"
            partition.report(event, "unclean-election", UNKNOWN, elected, held)
    joined = isr - (before or frozenset())
    if permitted or before is None or detail.get("reason") == "alter_partition":
        partition.excluded -= joined
    partition.shrunk -= {f"b{member}" for member in joined}
    partition.leader, partition.leader_epoch = event.leader, event.leader_epoch
    partition.isr, partition.elr = isr, elr
    partition.last_known_elr = frozenset(integers(detail, "last_known_elr"))
    partition.candidates_to_check = True


def _partition_deleted(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """Its ISR is promised no more: its replicas are deleted, and what a broker loses of them concerns nobody."""
    partition.leader, partition.isr, partition.elr, partition.last_known_elr = (
        UNKNOWN,
        frozenset(),
        frozenset(),
        frozenset(),
    )
    if partition.decision is not None:
        partition.decision = replace(partition.decision, metadata_offset=event.offset)


def check_candidates(cluster: ClusterState, now_ns: int) -> None:
    """After the last event of an instant: check the candidates of every partition that changed in it."""
    for partition in cluster.partitions.values():
        if partition.candidates_to_check:
            partition.candidates_to_check = False
            _check_candidates_of(partition, cluster.awaiting_registration, now_ns)


def _check_candidates_of(partition: PartitionState, awaiting_registration: Collection[str], now_ns: int) -> None:
    for member in sorted((partition.isr or frozenset()) | partition.elr):
        node = f"b{member}"
        if node in awaiting_registration:
            continue
        where = "ISR" if member in (partition.isr or frozenset()) else "ELR"
        membership = f"{node} is in the {where} at {now_ns / 1e9:.6f} s"
        if member in partition.excluded:
            reason = "it registered after an unclean shutdown and has not joined the ISR since"
            partition.violations.append(
                ProtocolViolation("unclean-not-excluded", UNKNOWN, now_ns, UNKNOWN, (membership, reason))
            )
            partition.excluded.discard(member)
        missing = partition.first_missing(node)
        if missing is not None:
            lines = (
                f"{membership} with a log that ends at {len(partition.log(node))}",
                partition.describe_missing(missing),
            )
            since_ns = partition.committed_ns[missing]
            partition.violations.append(ProtocolViolation("candidate-incomplete", missing, now_ns, since_ns, lines))


HANDLERS: Mapping[str, TraceRowHandler] = {
    "partition_changed": _partition_changed,
    "partition_deleted": _partition_deleted,
}
