"""The situations of a run, from its protocol trace.

The trace is replayed event by event. A situation counts once the instant is over: the events of one instant are one
step of a node, or one batch of the controllers, and nobody sees the states in between. A partition has no situation
before the controllers have decided about it.

A trace does not say everything. The positions that a leader holds for its followers are not in it, nor are requests in
flight; a process that died shows only once it has started again, or its broker is fenced. A situation says nothing of
these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from checkers.tables import TraceRow, trace_rows
from results.situations.facts import PartitionFacts, ReplicaFacts
from results.situations.situation import ProtocolSituation, Transition, code_of


@dataclass(slots=True)
class RunSituations:
    """The situations of all partitions of a run, and how often each began; the transitions between them likewise."""

    situations: Counter[ProtocolSituation] = field(default_factory=Counter)
    transitions: Counter[Transition] = field(default_factory=Counter)


class _DecidedIsr(NamedTuple):
    """The ISR as a `partition_changed` has it."""

    metadata_offset: int
    partition_epoch: int
    leader_epoch: int
    isr: frozenset[int]


@dataclass(slots=True)
class _ReplayedPartition:
    """A partition in a replay."""

    facts: PartitionFacts = field(default_factory=PartitionFacts)
    decisions: list[_DecidedIsr] = field(default_factory=list)
    known_epochs: dict[int, int] = field(default_factory=dict)
    """Broker → the partition epoch that it knows as a leader."""
    code: str = ""
    """Of its situation; empty before the first decision."""
    event: str = ""
    """The kind of the first event of this instant; empty without one."""


def situations_of(trace: pa.Table) -> RunSituations:
    """The situations of a run with this trace (schema TRACE)."""
    return _Replay().result(trace.filter(pc.field("kind").isin([*_OF_BROKERS, *_OF_PARTITIONS])))


class _Replay:
    def __init__(self) -> None:
        self._partitions: dict[tuple[str, int], _ReplayedPartition] = {}
        self._changed: list[_ReplayedPartition] = []
        """Those with an event in this instant."""
        self._fenced: set[int] = set()
        self._begins: Counter[tuple[str, str, str]] = Counter()
        """The kind of an event, and the codes before and after it → how often that was so."""

    def result(self, trace: pa.Table) -> RunSituations:
        """The situations after all events."""
        now_ns = -1
        for row in trace_rows(trace):
            if row.time_ns != now_ns:
                self._end_instant()
                now_ns = row.time_ns
            if row.kind in _OF_PARTITIONS:
                self._of_partition(row)
            else:
                _OF_BROKERS[row.kind](self, row)
        self._end_instant()
        result = RunSituations()
        for (event, before, after), count in self._begins.items():
            begun = ProtocolSituation(after)
            result.situations[begun] += count
            result.transitions[Transition(event, ProtocolSituation(before) if before else None, begun)] += count
        return result

    def _end_instant(self) -> None:
        for partition in self._changed:
            event, partition.event = partition.event, ""
            if not partition.facts.members:
                continue
            code = code_of(partition.facts, self._fenced)
            if code != partition.code:
                self._begins[event, partition.code, code] += 1
                partition.code = code
        self._changed.clear()

    def _change(self, partition: _ReplayedPartition, kind: str) -> None:
        if not partition.event:
            partition.event = kind
            self._changed.append(partition)

    def _of_partition(self, event: TraceRow) -> None:
        if event.kind == "partition_deleted":
            self._partitions.pop((event.topic, event.partition), None)
            return
        partition = self._partitions.get((event.topic, event.partition))
        if partition is None:
            partition = self._partitions[event.topic, event.partition] = _ReplayedPartition()
        self._change(partition, event.kind)
        if event.kind == "partition_changed":
            _decide(partition, event)
            return
        _OF_REPLICAS[event.kind](partition.facts.replica(event.number), event)
        if event.kind == "high_watermark":
            partition.facts.commit(partition.facts.replica(event.number))
        elif event.kind in _TELL_PARTITION_EPOCH:
            partition.known_epochs[event.number] = event.partition_epoch

    def _started(self, event: TraceRow) -> None:
        for partition in self._partitions.values():
            if event.number in partition.facts.replicas:
                replica = partition.facts.replicas[event.number]
                _without_role(replica)
                replica.high_watermark = 0  # until it has opened its log
                self._change(partition, event.kind)

    def _registered(self, event: TraceRow) -> None:
        self._fenced.add(event.broker)
        unclean = event.details().get("clean") is False
        for partition in self._partitions.values():
            if unclean:
                partition.facts.unclean.add(event.broker)
            self._change(partition, event.kind)

    def _fencing(self, event: TraceRow) -> None:
        if event.kind == "broker_fenced":
            self._fenced.add(event.broker)
        else:
            self._fenced.discard(event.broker)
        for partition in self._partitions.values():
            self._change(partition, event.kind)

    def _metadata_applied(self, event: TraceRow) -> None:
        """A leader reads of an ISR that was changed without it. Other changes have events of their own."""
        broker = event.number
        for partition in self._partitions.values():
            leader = partition.facts.replicas.get(broker)
            if leader is None or not leader.leads:
                continue
            known = next((it for it in reversed(partition.decisions) if it.metadata_offset <= event.log_end), None)
            if (
                known is not None
                and known.leader_epoch == leader.leader_epoch
                and known.partition_epoch > partition.known_epochs[broker]
            ):
                partition.known_epochs[broker] = known.partition_epoch
                leader.isr = known.isr
                leader.drop_proposal()
                self._change(partition, event.kind)


def _decide(partition: _ReplayedPartition, event: TraceRow) -> None:
    if partition.decisions and event.offset < partition.decisions[-1].metadata_offset:
        return  # a deposed controller traced it late
    facts, detail = partition.facts, event.details()
    facts.leader, facts.leader_epoch, facts.isr = event.leader, event.leader_epoch, frozenset(event.members)
    facts.elr, facts.adding = frozenset(detail.get("elr") or ()), frozenset(detail.get("adding") or ())
    facts.members = tuple(detail.get("replicas") or ())
    facts.min_isr = min(detail.get("min_isr", 1), len(facts.members) or 1)
    facts.unclean -= facts.isr
    partition.decisions.append(_DecidedIsr(event.offset, event.partition_epoch, event.leader_epoch, facts.isr))


# --- the replica of an event's node -----------------------------------------------------------------------------------


def _without_role(replica: ReplicaFacts) -> None:
    replica.leads = None
    replica.drop_proposal()


def _resigned(replica: ReplicaFacts, _: TraceRow) -> None:
    """The broker deletes its replica."""
    _without_role(replica)
    replica.log.resize(0)
    replica.log.start = replica.high_watermark = 0


def _recovered(replica: ReplicaFacts, event: TraceRow) -> None:
    _without_role(replica)
    replica.log.resize(event.log_end)
    replica.log.start = max(event.offset, 0)
    replica.high_watermark = event.high_watermark


def _became_leader(replica: ReplicaFacts, event: TraceRow) -> None:
    _became_follower(replica, event)
    replica.leads, replica.epoch_start, replica.isr = True, event.offset, frozenset(event.members)


def _became_follower(replica: ReplicaFacts, event: TraceRow) -> None:
    replica.leads, replica.leader_epoch = False, event.leader_epoch
    replica.drop_proposal()
    if event.log_end >= 0:
        replica.log.resize(event.log_end)


def _appended(replica: ReplicaFacts, event: TraceRow) -> None:
    replica.log.append(event.leader_epoch, event.offset, event.log_end)


def _truncated(replica: ReplicaFacts, event: TraceRow) -> None:
    replica.log.resize(event.offset)
    replica.high_watermark = min(replica.high_watermark, event.offset)
    start = event.details().get("log_start")
    if isinstance(start, int):  # it begins anew
        replica.log.start = replica.high_watermark = start


def _log_start(replica: ReplicaFacts, event: TraceRow) -> None:
    replica.log.start = event.offset


def _high_watermark(replica: ReplicaFacts, event: TraceRow) -> None:
    replica.high_watermark = event.high_watermark


def _proposed(replica: ReplicaFacts, event: TraceRow) -> None:
    replica.proposed = frozenset(event.members)


def _isr_committed(replica: ReplicaFacts, event: TraceRow) -> None:
    replica.isr = frozenset(event.members)
    replica.drop_proposal()


def _isr_rejected(replica: ReplicaFacts, event: TraceRow) -> None:
    """The controller found a member ineligible, and another request with the proposal may still reach it unless it is
    rolled back; any other error leaves the proposal in flight."""
    detail = event.details()
    if detail.get("error") == "ineligible_replica":
        if not detail.get("rolled_back"):
            replica.unresolved |= (replica.proposed or frozenset()) - replica.isr
        replica.proposed = None


_OF_REPLICAS: Final[Mapping[str, Callable[[ReplicaFacts, TraceRow], None]]] = {
    "log_recovered": _recovered,
    "became_leader": _became_leader,
    "became_follower": _became_follower,
    "resigned": _resigned,
    "appended": _appended,
    "truncated": _truncated,
    "log_start": _log_start,
    "high_watermark": _high_watermark,
    "follower_high_watermark": _high_watermark,
    "isr_proposed": _proposed,
    "isr_committed": _isr_committed,
    "isr_rejected": _isr_rejected,
}
_TELL_PARTITION_EPOCH: Final = frozenset({"became_leader", "isr_committed"})
_OF_PARTITIONS: Final = frozenset({*_OF_REPLICAS, "partition_changed", "partition_deleted"})
_OF_BROKERS: Final[Mapping[str, Callable[[_Replay, TraceRow], None]]] = {
    "node_started": _Replay._started,
    "broker_registered": _Replay._registered,
    "broker_fenced": _Replay._fencing,
    "broker_unfenced": _Replay._fencing,
    "metadata_applied": _Replay._metadata_applied,
}
