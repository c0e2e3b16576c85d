"""Promises about the controllers' decisions on one partition over time: epochs that rise, reassignments in phases,
brokers that act on what was decided. See `checkers.protocol.checker`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from checkers.evidence import CheckSettings
from checkers.fault_model import LAST_KNOWN_LEADER_ELECTED
from checkers.protocol.batches import UNKNOWN
from checkers.protocol.state import (
    ClusterRowHandler,
    ClusterState,
    PartitionDecision,
    PartitionState,
    ProtocolViolation,
    TracedRecovery,
    TraceRowHandler,
    names,
)
from checkers.tables import TraceRow, epoch_entries
from checkers.unclean_elections import UNCLEAN_RECOVERY
from workloads.columns import NEVER


@dataclass(frozen=True, slots=True)
class _Change:
    """One decision, and the one before it."""

    partition: PartitionState
    event: TraceRow
    before: PartitionDecision
    after: PartitionDecision

    @property
    def reason(self) -> str:
        """Why the controllers made it."""
        return str(self.event.details().get("reason"))

    def report(self, kind: str, line: str) -> None:
        decision = (
            f"the controllers decided on partition epoch {self.after.partition_epoch} {self.event.at} "
            f"({self.reason}): {self.after.described}"
        )
        self.partition.report(self.event, kind, UNKNOWN, decision, f"before: {self.before.described}", line)


def _decided(partition: PartitionState, event: TraceRow, settings: CheckSettings) -> None:
    if event.partition_epoch < 0:
        return
    detail = event.details()
    after = PartitionDecision.of(event, settings.unclean_recovery)
    before = partition.decision
    if detail.get("reason") == "created" and (before is None or event.offset > before.metadata_offset):
        partition.created_again = before is not None
        partition.deleted_at = None
        before = None
        partition.decisions.clear()
        partition.proposed_in.clear()
        partition.senders.clear()
    partition.decisions.setdefault(after.partition_epoch, []).append(after)
    if before is not None and event.offset <= before.metadata_offset:
        return  # an earlier decision, which a controller traced late
    for node in partition.logs:
        if detail.get("replicas") and node not in {f"b{replica}" for replica in after.replicas}:
            partition.removed.add(node)
    partition.decision = after
    if before is None:
        return
    change = _Change(partition, event, before, after)
    _check_epochs(change)
    if before.replicas and after.replicas:
        _check_reassignment(change, settings)
    if after.partition_epoch == before.partition_epoch + 1:
        _check_recovery(change)
        _check_last_known(change)
        if change.reason == "alter_partition":
            partition.changes.append((event, before))
        if settings.has_trace and not detail.get("taken_over"):  # else nothing says why it was made
            _check_minimum(change)


def _check_epochs(change: _Change) -> None:
    before, after = change.before, change.after
    if after.partition_epoch <= before.partition_epoch:
        change.report("partition-epoch-stood", "every change moves the partition epoch up")
    removed = before.replicas - after.replicas
    if after.leader_epoch < before.leader_epoch:
        change.report("leader-epoch-stood", "the leader epoch never falls")
    elif after.leader_epoch == before.leader_epoch and after.leader != before.leader:
        change.report("leader-epoch-stood", "a change of leader moves the leader epoch up")
    elif after.leader_epoch == before.leader_epoch and removed:
        change.report("leader-epoch-stood", f"the removal of {names(removed)} moves the leader epoch up")


def _check_reassignment(change: _Change, settings: CheckSettings) -> None:
    before, after = change.before, change.after
    joined = (after.isr - before.isr) & (after.replicas - before.replicas)
    if settings.unclean_election and before.leader < 0:
        joined -= {after.leader}  # any replica may be elected, also one that has just been added
    if joined:
        change.report("reassignment-joins-isr", f"{names(joined)} became replica and ISR member in one change")
    gone, minimum = before.replicas - after.replicas, after.min_isr
    caught_up = (before.adding | (after.replicas - before.replicas)) & after.replicas - after.adding
    early = caught_up - after.isr
    if early and (gone or not after.adding):  # else another target has taken the place of the one before
        change.report("reassignment-completed-early", f"{names(early)} counts as added and had not joined the ISR")
    completed = bool(gone) and (bool(caught_up) or not before.adding)
    next_one = after.partition_epoch == before.partition_epoch + 1
    relied_on = gone & before.adding & (before.isr | before.elr) if next_one else frozenset()
    least = min(minimum, len(before.replicas & after.replicas) if relied_on else len(before.isr))
    given_up = settings.unclean_election and change.reason != "reassignment"  # another target asks for no loss
    if (completed or relied_on) and len(after.isr) < least and not given_up:
        needed = f", since {names(relied_on)} may have what was committed" if relied_on else ""
        change.report("reassignment-shrinks-isr", f"min.insync.replicas asks for {least} in the ISR{needed}")
    forgotten = before.last_known_elr & gone
    # A recovery has heard of their logs, and that of its leader is no less.
    recovered = change.reason == UNCLEAN_RECOVERY and len(after.isr) >= minimum
    if forgotten and not before.isr | before.elr and not (given_up or recovered):
        line = f"ISR and ELR are empty, so {names(forgotten)} may alone have had what is committed"
        change.report("reassignment-drops-last-known", line)


def _check_minimum(change: _Change) -> None:
    """A new minimum is a change of its own, so that no leader asks for a change of the ISR without knowing it. One that
    comes with a new strategy may elect the last known leader at once."""
    before, after = change.before, change.after
    elects = change.reason == LAST_KNOWN_LEADER_ELECTED and before.strategy != after.strategy
    of_its_own = change.reason == "configured" or elects
    if before.replicas == after.replicas and before.min_isr != after.min_isr and not of_its_own:
        change.report(
            "partition-epoch-stood",
            f"min.insync.replicas went from {before.min_isr} to {after.min_isr} without a partition epoch of its own",
        )


def _check_recovery(change: _Change) -> None:
    """An unclean recovery hears of every log that may be the greatest, and forgets none that may be needed again. A
    controller that only finds it committed does not know whom the one before had heard."""
    before, after = change.before, change.after
    if change.reason != UNCLEAN_RECOVERY:
        return
    detail = change.event.details()
    told = {int(replica) for replica in detail.get("told") or ()}
    balanced = after.strategy == "balanced"
    candidates = before.last_known_elr or before.replicas if balanced else before.replicas
    needed = candidates if balanced else frozenset({after.leader})
    if needed - told and not detail.get("taken_over"):
        silent = names(needed - told)
        change.report("recovery-early", f"b{after.leader} was elected before {silent} had told of their logs")
    forgotten = (before.last_known_elr & after.replicas) - after.last_known_elr - {after.leader}
    if after.leader in before.last_known_elr and forgotten and len(after.isr) < after.min_isr:
        change.report(
            "last-known-elr-forgotten",
            f"{names(forgotten)} are not in the LastKnownELR any more, and nothing was committed without them yet",
        )
    change.partition.recoveries.append(TracedRecovery(change.event, before, candidates, needed | {after.leader}))


def _check_last_known(change: _Change) -> None:
    """A replica that leaves the ELR is in the LastKnownELR until the ISR is large enough again, or until an unclean
    election. With the strategy `last-known-leader` only the last leader is, until there is another one."""
    before, after, detail = change.before, change.after, change.event.details()
    unclean = change.reason == UNCLEAN_RECOVERY or detail.get("unclean")
    if unclean or "last-known-leader" in (before.strategy, after.strategy) or len(after.isr) >= after.min_isr:
        return
    known = (before.elr | before.last_known_elr) & after.replicas
    forgotten = known - after.isr - after.elr - after.last_known_elr
    if forgotten and "last_known_elr" in detail:
        change.report(
            "last-known-elr-forgotten",
            f"{names(forgotten)} are not in the LastKnownELR, and the ISR is smaller than min.insync.replicas, "
            f"{after.min_isr}: only they may have what is committed",
        )


def check_told(cluster: ClusterState, partition: PartitionState, event: TraceRow) -> None:
    """An unclean recovery elects by the log ends that its replicas have: nothing is appended while there is no leader.
    A replica that has started again since, and is not registered yet, may have lost some."""
    detail = event.details()
    if detail.get("reason") != UNCLEAN_RECOVERY or detail.get("taken_over"):
        return
    for replica, (last_epoch, log_end) in sorted((detail.get("told") or {}).items()):
        node = f"b{replica}"
        life, _ = (detail.get("told_in") or {}).get(replica, (UNKNOWN, UNKNOWN))
        standing = cluster.standing_at(int(replica), event.offset)
        is_current = standing is not None and standing.epoch == life and node not in cluster.awaiting_registration
        if is_current and node in partition.opened and log_end != len(partition.log(node)):
            partition.report(
                event,
                "recovery-misinformed",
                min(log_end, len(partition.log(node))),
                f"b{event.leader} was elected {event.at} by what the replicas had told of their logs",
                f"{node} had told that its log ends at {log_end}: it ends at {len(partition.log(node))}",
            )
        elif is_current and node in partition.opened and partition.log_starts.get(node, 0) < log_end:
            own = partition.log(node)[-1]
            if own not in (UNKNOWN, last_epoch):
                partition.report(
                    event,
                    "recovery-misinformed",
                    log_end - 1,
                    f"b{event.leader} was elected {event.at} by what the replicas had told of their logs",
                    f"{node} had told that its last record is of leader epoch {last_epoch}: it is of {own}",
                )


def check_recoveries(cluster: ClusterState, partition: PartitionState) -> None:
    """After the last event, since a registration may be traced late: each log end that a recovery needed was told by
    the life that was registered then, in the leader epoch in which the partition had no leader; and of the logs that
    were told so none is greater than that of the leader. Older traces say nothing of lives and leader epochs."""
    for recovery in partition.recoveries:
        _check_greatest(cluster, partition, recovery)
        event, before, needed = recovery.event, recovery.before, recovery.needed
        for replica, (broker_epoch, leader_epoch) in sorted((event.details().get("told_in") or {}).items()):
            standing = cluster.standing_at(int(replica), event.offset)
            if int(replica) not in needed or standing is None:
                continue
            if broker_epoch < standing.epoch or leader_epoch < before.leader_epoch:
                partition.report(
                    event,
                    "recovery-outdated",
                    UNKNOWN,
                    f"b{event.leader} was elected {event.at} by what {names(needed)} had told of their logs",
                    f"b{replica} had told so in broker epoch {broker_epoch} and leader epoch {leader_epoch}; it was "
                    f"registered in {standing.epoch}, and the partition without a leader in {before.leader_epoch}",
                )


def _check_greatest(cluster: ClusterState, partition: PartitionState, recovery: TracedRecovery) -> None:
    """A log is greater by the leader epoch of its last record, then by its end; but none is that ends before a log all
    of whose records retention has deleted, since these were committed."""
    event, detail = recovery.event, recovery.event.details()
    told_in = detail.get("told_in") or {}
    logs: dict[int, tuple[int, int]] = {}
    for replica, (last_epoch, end) in (detail.get("told") or {}).items():
        standing = cluster.standing_at(int(replica), event.offset)
        life = (standing.epoch, recovery.before.leader_epoch) if standing is not None and standing.active else None
        if int(replica) in recovery.candidates and tuple(told_in.get(replica, ())) == life:
            logs[int(replica)] = (last_epoch, end)
    emptied = max((end for last_epoch, end in logs.values() if last_epoch < 0), default=0)
    of_leader = logs.get(event.leader)
    if of_leader is None:
        return
    greater = {replica: log for replica, log in logs.items() if log > of_leader and log[1] >= emptied}
    if greater or of_leader[1] < emptied:
        others = "; ".join(f"b{replica} {_described(log)}" for replica, log in sorted(logs.items()))
        partition.report(
            event,
            "recovery-of-lesser-log",
            of_leader[1],
            f"b{event.leader} was elected {event.at} by what the replicas had told of their logs",
            f"its log is not the greatest of those that count: {others}",
        )


def _described(log: tuple[int, int]) -> str:
    last_epoch, end = log
    return f"ends at {end}, " + (f"of leader epoch {last_epoch}" if last_epoch >= 0 else "emptied")


def check_epochs(partition: PartitionState, replicas: pa.Table, replica_ends: pa.Table) -> None:
    """After the last event: every record of the partition on disk (`replicas`, schema REPLICAS), and every entry of an
    epoch checkpoint (`replica_ends`, schema REPLICA_ENDS), is of a leader epoch in which the controllers had decided on
    a leader. The entry stays where a leader appended nothing. Leader epochs before the first decision, which may be the
    state in a snapshot, are not known."""
    decisions = [decision for each in partition.decisions.values() for decision in each]
    led = {decision.leader_epoch for decision in decisions if decision.leader >= 0}
    known_from = min((decision.leader_epoch for decision in decisions), default=0)
    first: dict[tuple[str, int], int] = {}
    columns = (replicas.column(name).to_pylist() for name in ("node", "leader_epoch", "offset"))
    for node, epoch, offset in zip(*columns, strict=True):
        if epoch >= known_from and epoch not in led:
            first[node, epoch] = min(offset, first.get((node, epoch), offset))
    of_records = {place: (offset, f"holds a record of leader epoch {place[1]} at") for place, offset in first.items()}
    of_entries = {
        (row["node"], epoch): (start, f"has an entry of leader epoch {epoch} in its epoch checkpoint, from")
        for row in replica_ends.to_pylist()
        for epoch, start in epoch_entries(row["epoch_checkpoint"]) or ()
        if epoch >= known_from and epoch not in led
    }
    for (node, _), (offset, what) in {**of_entries, **of_records}.items():
        lines = (
            f"{node} {what} offset {offset}",
            f"the controllers decided on a leader in the leader epochs {', '.join(map(str, sorted(led))) or 'of none'}",
        )
        partition.violations.append(ProtocolViolation("epoch-undecided", offset, UNKNOWN, UNKNOWN, lines))


# ---- brokers ---------------------------------------------------------------------------------------------------------


def _acted(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    if event.kind == "isr_committed":
        _check_answer(partition, event)
    else:
        partition.role_epochs[event.node] = event.leader_epoch
    _knew(partition, event, _)
    if event.partition_epoch >= 0:
        partition.acts.append(event)


def _check_answer(partition: PartitionState, event: TraceRow) -> None:
    """A leader takes an ISR up once, and none that is older than what it knows."""
    known = partition.acted_on.get(event.node, UNKNOWN)
    if event.partition_epoch <= known and not partition.created_again:
        partition.report(
            event,
            "isr-answer-outdated",
            UNKNOWN,
            f"{event.node} took up the ISR {names(frozenset(event.members))} of partition epoch "
            f"{event.partition_epoch} {event.at}",
            f"it had acted on partition epoch {known} before: it forgets what it has read or proposed since",
        )


def _deleted(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    partition.deleted_at = event.offset


def check_exists(cluster: ClusterState, partition: PartitionState, event: TraceRow) -> None:
    """A broker that has applied the end of a topic has no replica of it any more, whatever has its name by then."""
    if end := _applied_end(cluster, partition, event.node):
        served = f"{event.node} went on with a replica of a deleted topic {event.at} ({event.kind})"
        partition.report(event, "deleted-topic-served", event.offset, served, end)


def check_deleted(cluster: ClusterState, event: TraceRow) -> None:
    """A broker that applies metadata has by then deleted the replicas of the topics whose end it had applied before."""
    node = event.node
    for partition in cluster.partitions.values():
        if partition.deleted_at is None or not (end := _applied_end(cluster, partition, node)):
            continue
        opened_ns = partition.opened.get(node, UNKNOWN)
        if opened_ns < cluster.life_starts.get(node, 0) or node in partition.removed or node in partition.deleted:
            continue
        partition.removed.add(node)
        kept = f"{node} had not deleted its replica of a deleted topic when it applied other metadata {event.at}"
        partition.report(event, "deleted-replica-kept", partition.deleted_at, kept, end)


def _applied_end(cluster: ClusterState, partition: PartitionState, node: str) -> str:
    """The line that a node had applied the deletion of a partition's topic; empty if it had not."""
    deleted_at, applied = partition.deleted_at, cluster.applied.get(node, UNKNOWN)
    if deleted_at is None or partition.created_again or applied < deleted_at:
        return ""
    return f"the topic was deleted at offset {deleted_at} of the metadata, which {node} had applied up to {applied}"


def check_taken_over(cluster: ClusterState, partition: PartitionState, event: TraceRow) -> None:
    """A broker acts in no partition epoch below that of a decision that it has applied."""
    decision, applied = partition.decision, cluster.applied.get(event.node, UNKNOWN)
    if decision is None or not 0 <= event.partition_epoch < decision.partition_epoch or partition.created_again:
        return
    if decision.metadata_offset <= applied and cluster.applied_ns.get(event.node, event.time_ns) < event.time_ns:
        partition.report(
            event,
            "decision-not-taken-over",
            UNKNOWN,
            f"{event.node} acted {event.at} ({event.kind}) in partition epoch {event.partition_epoch}, as one with "
            f"leader {event.leader} in leader epoch {event.leader_epoch}",
            f"it had applied the metadata up to {applied} before; at {decision.metadata_offset} partition epoch "
            f"{decision.partition_epoch} was decided: {decision.described}",
        )


def _knew(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    partition.acted_on[event.node] = max(event.partition_epoch, partition.acted_on.get(event.node, UNKNOWN))


def _opened(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    partition.acted_on.pop(event.node, None)


def check_acts(partition: PartitionState, *, ended: bool) -> None:
    """After the last event: every broker led, followed and counted its ISR as the controllers had decided.

    Partition epochs before the first decision, which may be the state in a snapshot, are not known; nor is the last
    one of a run that had not `ended`.
    """
    first = min(partition.decisions, default=NEVER)
    for event in partition.acts:
        decisions = partition.decisions.get(event.partition_epoch, ())
        if not decisions and ended and event.partition_epoch > first and not partition.created_again:
            partition.report(
                event,
                "acted-on-undecided",
                UNKNOWN,
                f"{event.node} acted {event.at} ({event.kind}) on partition epoch {event.partition_epoch}",
                "the controllers have decided nothing in that partition epoch",
            )
        if decisions and not any(_agrees(event, decision) for decision in decisions):
            leads = f"leader {event.leader} in leader epoch {event.leader_epoch}"
            members = f", ISR {names(frozenset(event.members))}" if event.members else ""
            partition.report(
                event,
                "acted-on-undecided",
                UNKNOWN,
                f"{event.node} acted {event.at} ({event.kind}) on partition epoch {event.partition_epoch}: "
                f"{leads}{members}",
                f"the controllers decided in that partition epoch: {decisions[0].described}",
            )


def _agrees(event: TraceRow, decision: PartitionDecision) -> bool:
    leads = (event.leader, event.leader_epoch) == (decision.leader, decision.leader_epoch)
    if event.kind == "became_leader" and event.node != f"b{decision.leader}":
        return False
    return leads and (not event.members or frozenset(event.members) == decision.isr)


HANDLERS: Mapping[str, TraceRowHandler] = {
    "partition_changed": _decided,
    "partition_deleted": _deleted,
    "became_leader": _acted,
    "became_follower": _acted,
    "isr_committed": _acted,
    "appended": _knew,
    "high_watermark": _knew,
    "acknowledged": _knew,
    "latest_told": _knew,
    "log_recovered": _opened,
}
_OF_REPLICAS = (
    "became_leader",
    "became_follower",
    "appended",
    "truncated",
    "log_start",
    "high_watermark",
    "follower_high_watermark",
    "isr_proposed",
    "fetch_accepted",
)
"""Events of replicas, which exist only while their topic does."""
EXISTENCE: Mapping[str, ClusterRowHandler] = dict.fromkeys(_OF_REPLICAS, check_exists)
TAKING_OVER: Mapping[str, ClusterRowHandler] = dict.fromkeys(
    (*_OF_REPLICAS, "isr_counted", "acknowledged", "latest_told"), check_taken_over
)
