"""The promises of docs/protocol.md (§8) that every state and every step of an exploration must keep.

Each function returns the broken promise in words, None if it is kept.
"""

from __future__ import annotations

from harness.search.exploration.cluster_values import BrokerState, ClusterHistory, ControllerState, LogRecord
from images.broker.replication.leader import knows_committed, maximal_isr, readable_end
from images.broker.replication.partition import Limits, ReplicaRole


def broken_by_step(before: BrokerState, after: BrokerState) -> str | None:
    """A high watermark never falls within a leadership."""
    old, new = before.partition, after.partition
    same = old.leadership and new.leadership and old.leader_epoch == new.leader_epoch
    if same and new.high_watermark < old.high_watermark:
        return f"the high watermark of leader {new.node} falls from {old.high_watermark} to {new.high_watermark}"
    return None


def committed_after(history: ClusterHistory, leader: BrokerState) -> ClusterHistory | str:
    """The history once `leader` has its high watermark. No two records are ever committed at one offset."""
    below = leader.records[: leader.partition.high_watermark]
    if below == history.committed[: len(below)]:
        return history
    if below[: len(history.committed)] == history.committed:
        return history._replace(committed=below)
    offset = next(at for at, (one, other) in enumerate(zip(below, history.committed, strict=False)) if one != other)
    return (
        f"leader {leader.partition.node} commits {_record(below[offset])} at offset {offset}, "
        f"where {_record(history.committed[offset])} was committed"
    )


def broken_by_broker(
    broker: BrokerState, controller: ControllerState, history: ClusterHistory, limits: Limits
) -> str | None:
    """The promises about one broker, the controller and the committed records."""
    state, known, committed = broker.partition, controller.partition, history.committed
    candidate = state.node in known.isr or state.node in known.elr
    if candidate and not has_committed(broker, history):
        return lacks_committed(broker, controller, history)
    if broker.records[: state.high_watermark] != committed[: state.high_watermark]:
        return (
            f"broker {state.node} has {log_words(broker.records)} and high watermark {state.high_watermark}; "
            f"committed: {log_words(committed)} (Log Matching below the high watermark)"
        )
    if state.role is ReplicaRole.LEADER:
        return _broken_by_leader(broker, controller, history, limits)
    return None


def lacks_committed(broker: BrokerState, controller: ControllerState, history: ClusterHistory) -> str:
    """A member of the ISR or of the ELR lacks a committed record."""
    place = "ISR" if broker.partition.node in controller.partition.isr else "ELR"
    return (
        f"broker {broker.partition.node}, in the {place}, lacks a committed record: it has "
        f"{log_words(broker.records)}; committed: {log_words(history.committed)} (Leader Candidate Completeness)"
    )


def _broken_by_leader(
    leader: BrokerState, controller: ControllerState, history: ClusterHistory, limits: Limits
) -> str | None:
    state, known, committed = leader.partition, controller.partition, history.committed
    readable = leader.records[: readable_end(state, limits)]
    if readable != committed[: len(readable)]:
        return f"consumers read {log_words(readable)} from leader {state.node}; committed: {log_words(committed)}"
    if state.leader_epoch != known.leader_epoch:
        return None
    if knows_committed(state, limits) and state.high_watermark < len(committed):
        return (
            f"leader {state.node} gives {state.high_watermark} for the latest offset, where {len(committed)} records "
            "are committed (applied high watermark)"
        )
    candidates, minimum = {*known.isr, *known.elr}, min(limits.min_insync_replicas, len(known.replicas))
    if len(known.isr) >= minimum and not candidates <= {*maximal_isr(state, limits.rules)}:
        return (
            f"leader {state.node} counts on {list(maximal_isr(state, limits.rules))}, where {sorted(candidates)} are "
            "in the ISR and ELR (Replication Quorum Superset)"
        )
    return None


def has_committed(broker: BrokerState, history: ClusterHistory) -> bool:
    """Whether the broker has all committed records. While fewer than min.insync.replicas brokers lose data at a time,
    one of them does: no acknowledged record is ever lost."""
    return broker.records[: len(history.committed)] == history.committed


def lost(history: ClusterHistory) -> str:
    """No broker has all committed records."""
    return f"no broker has all committed records ({log_words(history.committed)}): an acknowledged record is lost"


def broken_by_pair(one: BrokerState, other: BrokerState) -> str | None:
    """One leader per leader epoch, and Log Matching: logs that share a record share all records before it."""
    first, second = one.partition, other.partition
    if first.leadership and second.leadership and first.leader_epoch == second.leader_epoch:
        return f"brokers {first.node} and {second.node} both lead in leader epoch {first.leader_epoch}"
    shared = [at for at, (a, b) in enumerate(zip(one.records, other.records, strict=False)) if a.epoch == b.epoch]
    end = shared[-1] + 1 if shared else 0
    if one.records[:end] != other.records[:end]:
        return (
            f"the logs of brokers {first.node} and {second.node} share the epoch at offset {end - 1}, but differ up to "
            f"there: {log_words(one.records)} and {log_words(other.records)} (Log Matching)"
        )
    return None


def _record(record: LogRecord) -> str:
    return f"a record of epoch {record.epoch}" + (f" (number {record.number})" if record.number else "")


def log_words(records: tuple[LogRecord, ...]) -> str:
    """A log by the leader epochs of its records; a number tells records of one epoch and offset apart."""
    epochs = " ".join(f"{it.epoch}" + (f"#{it.number}" if it.number else "") for it in records)
    return f"records of leader epochs [{epochs}]" if records else "no record"
