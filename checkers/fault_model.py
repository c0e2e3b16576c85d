"""The fault model: which replicas lost which records to a power loss, and whether too many lost them at one time.

The protocol promises that an acknowledged record survives while fewer than `min.insync.replicas` replicas lose data
(the replication factor, where that is less). It promises nothing beyond, so a checker that called a loss beyond it a
bug would be unfair. Excusing a bug because something was lost *somewhere* would be just as wrong. The fault model is
therefore applied record by record.

A minimum that is lowered counts until the ISR has as many members as it says: with it the controllers forget who
else holds what is committed (KIP-966 empties the ELR), and a higher one does not make them remember.

A replica *lost* the offsets [a, b) when a fault measured `lost_bytes` > 0 on its node, and the log it then recovered
ends at a, while before it ended at b (`appended`, `truncated`, `became_*` and `log_recovered` in the trace). It lacks
offset o from the time of that measurement until its log has passed o again. A replica that was removed has deleted its
log (`replica_deleted`): it lost nothing of it, and nothing rests on it any more. The fault model is *exceeded* from the
least offset on that as many replicas as `min.insync.replicas` lacked at one time.

A fault whose effect on a node could not be read back (`unknown_lost_bytes`) may have lost anything: the trace decides,
and a replica without one counts as one that lost. A node whose machine vanished has lost everything.

The strategy `unclean.recovery.strategy=last-known-leader` (Apache Kafka's default) is weaker. Where no replica is left
that is known to hold every committed record, it elects the last leader and asks no other replica. Records that this
replica lacked at that time, after a fault with `lost_bytes`, may be gone, even if no other replica lost them. Records
that it did not lose must still be there.

Consequences:
- A log that comes back shorter without a lossy fault is a bug, and excuses nothing.
- So is one of a broker that had stopped cleanly when its power was cut: what counts must have been on its disk. One
  that was in the middle of that stop, or has run again since, has lost what any power loss takes.
- Two replicas that lose data one after the other, the first having caught up in between, exceed nothing.
- A replica that loses a tail which no other replica lost exceeds nothing, at whatever offset others lost theirs.

Where no recovery of the node's log was traced after the fault (the system has no trace, its nodes have no comparable
clocks, or the run ended first) it is unknown what the replica lost: it counts as lacking every offset from the
beginning of the fault to the end of the run. This is lenient; the verdict is then `unknown`. A broker that no decision
of the controllers made a replica of a partition has lost nothing of it, where all these decisions are known.

Blind spots: which of the lost records had been acknowledged; data lost by a fault that reports no `lost_bytes`.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from checkers.deletions import deletions, forgetful_appends
from checkers.evidence import RunEvidence
from checkers.tables import held_since, of_partition
from checkers.unclean_elections import first_unclean_elections
from checkers.verdict import Verdict
from checkers.violations import FaultModelExceeded, RepeatedBatch, Tolerance, merge_verdicts
from workloads.columns import NEVER, named_partitions, partitions
from workloads.history import TopicPartition

LAST_KNOWN_LEADER_ELECTED = "last_known_leader"
"""Reason of a `partition_changed` that elects the last known leader."""

OFFSETS_TOPIC = "__consumer_offsets"
"""The topic that keeps the offsets which groups commit."""
VANISHED = "vanished"
"""Fate of a node whose machine was removed during the run by something outside it."""
_UNKNOWN_LOSS = "unknown_lost_bytes"
_OF_POWER_LOSS = frozenset({"unsynced_bytes", _UNKNOWN_LOSS})
"""Evidence that a fault which cuts the power measures, of that node alone, or could not measure."""
_LOG_KINDS = ("appended", "truncated", "became_leader", "became_follower", "log_recovered", "replica_deleted")

_DECISION_NS_MAX = 100_000_000
"""Inaccuracy of the times of decisions that were read from a metadata log: they are in milliseconds, by a clock that
its host may adjust during the run."""


@dataclass(frozen=True, slots=True)
class NodeFailure:
    """One node damaged by one fault, according to the evidence."""

    node: str
    fault: str
    started_ns: int
    last_loss_ns: int
    """Time at which it last lost something, if it did; the end of the fault where that is not known."""
    killed: float
    lost_bytes: float
    is_unknown: bool = False
    """Whether it may have lost data, and nobody measured how much."""
    interrupted: bool = False
    """Whether it was stopping cleanly when it lost its power."""

    @property
    def may_have_lost(self) -> bool:
        """Whether data was lost, or nobody knows that none was."""
        return self.lost_bytes > 0 or self.is_unknown


@dataclass(frozen=True, slots=True)
class ReplicaLoss:
    """A range of offsets that one replica lacked for a while."""

    node: str
    first: int
    end: int
    """Exclusive; NEVER when the loss is not known."""
    since_ns: int
    regained: tuple[tuple[int, int], ...] = ()
    """(time in ns, offset) in order: from then on it lacked only offsets from there on."""
    unmeasured: str = ""
    """Why it is not known whether or what it lost; empty where that was measured."""

    def lacked_from(self, time_ns: int) -> int | None:
        """The least offset that this replica lacked at `time_ns`, with all up to `end`; None if it lacked nothing."""
        if time_ns < self.since_ns:
            return None
        least = self.first
        for then_ns, offset in self.regained:
            if then_ns <= time_ns:
                least = offset
        return least if least < self.end else None


def node_failures(faults: pa.Table) -> list[NodeFailure]:
    """Every (fault, node) with what was measured on that node, from the time when its process first ended.

    A node of which nothing was measured lost nothing. The sum over nodes says nothing of any of them: where a run of an
    earlier version recorded no more than that, and a fault with several targets lost data, it is unknown on each.
    """
    failures, lies_ns = [], lied_since(faults)
    for row in faults.to_pylist():
        ended_ns = row["ended_ns"] if row["ended_ns"] is not None else NEVER
        for node, numbers in _measured(row).items():
            lied = node in lies_ns and lies_ns[node] <= ended_ns
            synced = not lied and _had_stopped(numbers)
            is_unknown = not synced and bool(numbers.get(_UNKNOWN_LOSS, 0))
            failures.append(
                NodeFailure(
                    node=node,
                    fault=row["fault"],
                    started_ns=int(numbers.get("down_ns", row["started_ns"])),
                    last_loss_ns=ended_ns if is_unknown else int(numbers.get("loss_ns", ended_ns)),
                    killed=float(numbers.get("killed", 0) or numbers.get("unknown_killed", 0)),
                    lost_bytes=0.0 if synced else float(numbers.get("lost_bytes", 0)),
                    is_unknown=is_unknown,
                    interrupted=bool(numbers.get("interrupted", 0)),
                )
            )
    return failures


def _measured(row: Mapping[str, Any]) -> Mapping[str, Mapping[str, float]]:
    """Node → what the fault of this row measured there."""
    evidence: dict[str, Any] = json.loads(row["evidence"] or "{}")
    by_node: Mapping[str, Mapping[str, float]] | None = evidence.get("nodes")
    if by_node is not None:
        return by_node
    if len(row["nodes"]) == 1:
        return {row["nodes"][0]: evidence}
    lossy = {"killed": evidence.get("killed", 0), _UNKNOWN_LOSS: evidence.get("lost_bytes", 0)}
    return dict.fromkeys(row["nodes"], lossy)


def rewound(faults: pa.Table) -> frozenset[str]:
    """The nodes whose power was cut, or may have been, and those whose disk lied: files may be as they were synced
    last. A truncation or a rename that is undone then counts among no lost bytes."""
    nodes = lied_to(faults)
    for row in faults.to_pylist():
        cut = (node for node, numbers in _measured(row).items() if not numbers.keys().isdisjoint(_OF_POWER_LOSS))
        nodes = nodes.union(cut)
    return nodes


def _had_stopped(numbers: Mapping[str, float]) -> bool:
    """Whether a fault took only the power of a node that had stopped cleanly, as a whole, and not run again since."""
    otherwise = any(numbers.get(name) for name in ("killed", "unknown_killed", "started_again", "stopped_in_part"))
    return bool(numbers.get("stopped")) and not otherwise


def vanished_nodes(recovery: Mapping[str, Any]) -> list[NodeFailure]:
    """The nodes whose machine vanished during the run: with it everything on its disk, by nobody's measurement."""
    return [
        NodeFailure(item["node"], VANISHED, item["time_ns"], NEVER, killed=1.0, lost_bytes=0.0, is_unknown=True)
        for item in recovery.get("vanished") or ()
    ]


def replica_losses(evidence: RunEvidence) -> dict[TopicPartition, list[ReplicaLoss]]:
    """The losses of every replica, for each partition named in the history or the trace."""
    # Controllers hold no replica of a partition.
    lossy = [
        failure for failure in node_failures(evidence.faults) if failure.may_have_lost and failure.node.startswith("b")
    ]
    lossy += vanished_nodes(evidence.recovery)
    if not lossy:
        return {}
    names = {name for table in (evidence.history, evidence.trace) for name in named_partitions(table)}
    if evidence.settings.groups or evidence.settings.script_commits:
        names.add((OFFSETS_TOPIC, 0))
    lost: dict[TopicPartition, list[ReplicaLoss]] = {name: [] for name in sorted(names) if name[0]}
    # Without comparable clocks no event of a node can be placed before or after a fault.
    trace = evidence.trace if evidence.settings.has_ordered_trace else evidence.trace.slice(0, 0)
    recovered = trace.filter(pc.equal(trace.column("kind"), "log_recovered"))
    last_recovery_ns: dict[str, int] = {}
    for node, time_ns in zip(
        recovered.column("node").to_pylist(), recovered.column("time_ns").to_pylist(), strict=True
    ):
        last_recovery_ns[node] = max(time_ns, last_recovery_ns.get(node, -1))
    for name, events in _log_events(trace, {failure.node for failure in lossy}).items():
        for node, rows in events.items():
            lost.setdefault(name, []).extend(_lost_by(node, rows, [b for b in lossy if b.node == node]))
    assigned = _assigned(evidence)
    for failure in lossy:
        if last_recovery_ns.get(failure.node, -1) < failure.started_ns:
            for name in lost:
                if failure.node not in assigned.get(name, {failure.node}):
                    continue
                unmeasured = f"it {failure.fault}" if failure.fault == VANISHED else _unmeasured([failure])
                lost[name].append(ReplicaLoss(failure.node, 0, NEVER, failure.started_ns, unmeasured=unmeasured))
    return lost


def _assigned(evidence: RunEvidence) -> dict[TopicPartition, set[str]]:
    """The brokers that were ever to be replicas of a partition; absent where not all decisions about it are known."""
    assigned: dict[TopicPartition, set[str]] = {}
    settings = evidence.settings
    if not evidence.recovery or not (settings.has_trace or settings.has_decisions):
        return assigned
    changes = evidence.trace.filter(pc.equal(evidence.trace.column("kind"), "partition_changed"))
    columns = changes.sort_by([("offset", "ascending"), ("seq", "ascending")]).select(["topic", "partition", "detail"])
    for row in columns.to_pylist():
        name, detail = (row["topic"], row["partition"]), json.loads(row["detail"] or "{}")
        replicas = {f"b{replica}" for replica in detail.get("replicas") or ()}
        if name in assigned or (replicas and detail.get("reason") == "created"):
            assigned.setdefault(name, set()).update(replicas)
    return assigned


_Event = tuple[int, str, int, int]
"""time_ns, kind, offset, log_end."""


def _log_events(trace: pa.Table, nodes: Iterable[str]) -> dict[TopicPartition, dict[str, list[_Event]]]:
    """Events that move the end of a log on `nodes`, in order, by partition and node."""
    wanted = pc.and_(
        pc.is_in(trace.column("kind"), value_set=pa.array(_LOG_KINDS)),
        pc.is_in(trace.column("node"), value_set=pa.array(sorted(nodes), pa.string())),
    )
    rows = trace.filter(wanted).sort_by("seq")
    names = ("topic", "partition", "node", "time_ns", "kind", "offset", "log_end")
    by_partition: dict[TopicPartition, dict[str, list[_Event]]] = {}
    for topic, partition, node, time_ns, kind, offset, log_end in zip(
        *(rows.column(name).to_pylist() for name in names), strict=True
    ):
        by_partition.setdefault((topic, partition), {}).setdefault(node, []).append((time_ns, kind, offset, log_end))
    return by_partition


def _lost_by(node: str, events: list[_Event], failures: list[NodeFailure]) -> list[ReplicaLoss]:
    losses, end, previous_ns = [], 0, -1
    for number, (time_ns, kind, offset, log_end) in enumerate(events):
        if kind == "log_recovered":
            # A fault with several steps may cut the power more than once, or of a life that began after its first step,
            # and one that has taken its last does not charge the lives after that, although it goes on.
            causes = [
                failure for failure in failures if failure.started_ns <= time_ns and previous_ns < failure.last_loss_ns
            ]
            if causes and 0 <= log_end < end:
                since_ns = max(min(cause.started_ns for cause in causes), previous_ns)
                loss = _loss(node, log_end, end, since_ns, events[number + 1 :])
                losses.append(replace(loss, unmeasured=_unmeasured(causes)))
            previous_ns = time_ns
        if kind == "replica_deleted":
            end = 0
        else:
            end = offset if kind == "truncated" else log_end if log_end >= 0 else end
    return losses


def _unmeasured(causes: Iterable[NodeFailure]) -> str:
    """Why it is not known what `causes` took from a node; empty where any of them was measured."""
    causes = list(causes)
    if any(cause.lost_bytes > 0 for cause in causes):
        return ""
    return f"the effect of {', '.join(sorted({cause.fault for cause in causes}))} on it is unknown"


def _loss(node: str, first: int, end: int, since_ns: int, later: list[_Event]) -> ReplicaLoss:
    regained, reached = [], first
    for time_ns, kind, offset, log_end in later:
        before = reached
        if kind == "appended":
            reached = max(reached, log_end)
        elif kind == "log_recovered":
            reached = max(first, min(reached, log_end))
        elif kind == "truncated":
            # A log that starts again further up lacks nothing any more: the records below have been deleted.
            reached = max(first, offset)
        elif kind == "replica_deleted":
            reached = end
        if reached != before:
            regained.append((time_ns, reached))
        if reached >= end:
            break
    return ReplicaLoss(node, first, end, since_ns, tuple(regained))


def fault_model_excesses(
    lost: list[ReplicaLoss], tolerated: int, lowered: Sequence[tuple[int, int]] = ()
) -> tuple[FaultModelExceeded, ...]:
    """Each time at which more replicas first lacked one offset than the protocol survives, with the least such offset:
    more than `tolerated`, or than a lowered minimum (`_lowered_minimums`) has had it survive since a time."""
    excesses: list[FaultModelExceeded] = []
    for time_ns in sorted({loss.since_ns for loss in lost}):
        in_force = bisect_right(lowered, time_ns, key=lambda since: since[0])
        replicas_allowed = min(tolerated, lowered[in_force - 1][1] if in_force else tolerated)
        lacking = [(loss, least) for loss in lost if (least := loss.lacked_from(time_ns)) is not None]
        for offset in sorted({least for _, least in lacking}):
            without = {loss.node: loss for loss, least in lacking if least <= offset < loss.end}
            if len(without) > replicas_allowed:
                excesses.append(FaultModelExceeded(offset, time_ns, _words(offset, time_ns, without, replicas_allowed)))
                break
    return tuple(excesses)


def _words(offset: int, time_ns: int, without: Mapping[str, ReplicaLoss], replicas_allowed: int) -> tuple[str, ...]:
    nodes = ", ".join(
        f"{node} from {loss.first} on at {loss.since_ns / 1e9:.3f} s"
        + (f" ({loss.unmeasured})" if loss.unmeasured else "")
        for node, loss in sorted(without.items())
    )
    return (
        f"the fault model was exceeded: at {time_ns / 1e9:.3f} s {len(without)} replicas lacked offset {offset} "
        f"after faults that take data, and the protocol survives {replicas_allowed}",
        f"lost: {nodes}",
    )


def _lowered_minimums(evidence: RunEvidence) -> dict[TopicPartition, list[tuple[int, int]]]:
    """(time in ns, losses that the protocol survives from then on): one less than `min.insync.replicas`, or than the
    lowest one since the ISR last had that many members. Where no decision tells the minimum, nothing is; where the
    times of decisions cannot be compared with those of faults, the lowest of the run counts in all of it."""
    lowered: dict[TopicPartition, list[tuple[int, int]]] = {}
    last: dict[TopicPartition, tuple[int, int]] = {}
    changes = evidence.trace.filter(pc.equal(evidence.trace.column("kind"), "partition_changed"))
    decisions = changes.sort_by([(name, "ascending") for name in ("offset", "partition_epoch", "time_ns")])
    columns = ["topic", "partition", "offset", "partition_epoch", "time_ns", "members", "detail"]
    for row in decisions.select(columns).to_pylist():
        name, minimum = (row["topic"], row["partition"]), json.loads(row["detail"] or "{}").get("min_isr")
        decision = row["offset"], row["partition_epoch"]
        if minimum is None or last.get(name) == decision:
            continue  # of a decision that another controller has traced before
        last[name] = decision
        since = lowered.setdefault(name, [])
        before_ns, before = since[-1] if since else (0, minimum - 1)
        suffices = len(row["members"] or ()) >= minimum
        since.append((max(row["time_ns"], before_ns), minimum - 1 if suffices else min(minimum - 1, before)))
    if not evidence.settings.has_ordered_trace:
        return {name: [(0, min(survived for _, survived in since))] for name, since in lowered.items()}
    return lowered


@dataclass(frozen=True, slots=True)
class _LastKnownLeaderElection:
    """An election of a last known leader."""

    node: str
    earliest_ns: int
    """-1 where its time is not known."""
    latest_ns: int
    """NEVER where its time is not known."""


def _last_known_leaders(evidence: RunEvidence) -> dict[TopicPartition, list[_LastKnownLeaderElection]]:
    """Each election of a last known leader. Its time is not known where it cannot be compared with those of the faults;
    a decision that was read from a metadata log has the time of the controller that made it, which counts unless a
    fault changed that clock."""
    settings = evidence.settings
    dated_by_controllers = settings.has_decisions and not settings.has_trace
    wrong_clocks = nodes_of_family(evidence.faults, "clock") if dated_by_controllers else frozenset()
    inexact_ns = _DECISION_NS_MAX if dated_by_controllers else 0
    changes = evidence.trace.filter(pc.equal(evidence.trace.column("kind"), "partition_changed"))
    names = ("topic", "partition", "node", "time_ns", "leader", "detail")
    elections: dict[TopicPartition, list[_LastKnownLeaderElection]] = {}
    for topic, partition, node, time_ns, leader, detail in zip(
        *(changes.column(name).to_pylist() for name in names), strict=True
    ):
        if json.loads(detail or "{}").get("reason") == LAST_KNOWN_LEADER_ELECTED:
            comparable = settings.comparable_clocks and node not in wrong_clocks
            times_ns = (time_ns - inexact_ns, time_ns + inexact_ns) if comparable else (-1, NEVER)
            elections.setdefault((topic, partition), []).append(_LastKnownLeaderElection(f"b{leader}", *times_ns))
    return elections


def _lost_by_last_known_leaders(
    lost: list[ReplicaLoss], elections: Iterable[_LastKnownLeaderElection]
) -> Iterator[FaultModelExceeded]:
    """Each election of a replica that lacked records at that time, with the least offset that it lacked. Nobody appends
    shortly before it, since the partition has no leader."""
    for election in elections:
        node, time_ns = election.node, election.latest_ns
        lacking = [loss for loss in lost if loss.node == node and loss.lacked_from(time_ns) is not None]
        if not lacking:
            continue
        least = min(offset for loss in lacking if (offset := loss.lacked_from(time_ns)) is not None)
        since_ns = min(loss.since_ns for loss in lacking)
        when = "" if time_ns == NEVER else f" at {time_ns / 1e9:.3f} s"
        line = (
            f"a possible loss that unclean.recovery.strategy=last-known-leader accepts: {node}, the last known leader, "
            f"was elected{when} and lacked offset {least} since the power loss at {since_ns / 1e9:.3f} s"
        )
        yield FaultModelExceeded(least, max(since_ns, election.earliest_ns), (line,))


class Tolerances(dict[TopicPartition, Tolerance]):
    """The tolerance of every partition. The dict has those that lost or deleted records, those for which an unclean
    election was asked, and, where the topic permits unclean elections, those of which it is known when they had one;
    the others have `default`."""

    def __init__(self, default: Tolerance) -> None:
        self.default = default

    def __missing__(self, partition: TopicPartition) -> Tolerance:
        return self.default

    def of_committed_offsets(self) -> Tolerance:
        """A loss in `__consumer_offsets` excuses every violation about committed offsets from then on, since these are
        offsets of records and not of the log that keeps the commits."""
        of_offsets = [self[name] for name in sorted(self) if name[0] == OFFSETS_TOPIC] or [self.default]
        either = Tolerance.of_any(of_offsets)
        return replace(either, exceeded=tuple(replace(excess, offset=0) for excess in either.exceeded))


def tolerances(evidence: RunEvidence) -> Tolerances:
    """The tolerances of a run."""
    special = Tolerances(Tolerance(evidence.settings.unclean_election))
    for name, first_ns in first_unclean_elections(evidence).items():
        special[name] = Tolerance(first_ns < NEVER, first_ns)
    losses = replica_losses(evidence)
    last_known_leaders, lowered = (_last_known_leaders(evidence), _lowered_minimums(evidence)) if losses else ({}, {})
    for name, lost in losses.items():
        too_much = (
            *fault_model_excesses(lost, evidence.settings.losses_tolerated, lowered.get(name, ())),
            *_lost_by_last_known_leaders(lost, last_known_leaders.get(name, ())),
        )
        if too_much:
            special[name] = replace(special[name], exceeded=too_much)
    for name, deleted in deletions(evidence).items():
        special[name] = replace(special[name], deletions=deleted)
    for name, appends in forgetful_appends(evidence).items():
        repeated = [RepeatedBatch(copy, each.offsets, each.time_ns) for each in appends for copy in each.copies]
        special[name] = replace(special[name], repeated=tuple(repeated))
    return special


def check_partitions(checker: str, evidence: RunEvidence, check: Callable[..., Verdict], *tables: pa.Table) -> Verdict:
    """The verdict of `checker` on every partition of the history. `check` gets the rows of one in the history and in
    each of `tables`, and by name its topic, partition and tolerance."""
    tolerance = tolerances(evidence)
    verdicts = [
        check(
            rows,
            *(of_partition(table, topic, number) for table in tables),
            topic=topic,
            partition=number,
            tolerance=tolerance[topic, number],
        )
        for topic, number, rows in partitions(evidence.history)
    ]
    return merge_verdicts(checker, verdicts, "no operation was recorded")


def lied_to(faults: pa.Table) -> frozenset[str]:
    """The nodes whose disk lied about fsync at some time."""
    return frozenset(lied_since(faults))


def lied_since(faults: pa.Table) -> dict[str, int]:
    """Node → time in ns since which its disk may have lied about fsync."""
    return held_since(faults, "fsync-lies")


def wiped_since(faults: pa.Table) -> dict[str, int]:
    """Node → time in ns since which it may have lost more than what it had not synced: its disk was emptied, or nobody
    could measure what it lost."""
    since = held_since(faults, "wipe")
    for failure in node_failures(faults):
        if failure.is_unknown:
            since[failure.node] = min(failure.started_ns, since.get(failure.node, NEVER))
    return since


def nodes_of_family(faults: pa.Table, family: str) -> frozenset[str]:
    """The nodes that any fault of this family struck."""
    of_family = faults.filter(pc.equal(faults["family"], family))
    return frozenset(pc.list_flatten(of_family.column("nodes")).to_pylist())
