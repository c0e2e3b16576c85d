"""What every node of one partition believed, replayed from the trace event by event.

Unlike `checkers.protocol`, which decides whether a promise was broken, this keeps what an explanation needs: each
leader's own view of the ISR, its proposal under way, the positions it counted, and what last happened to a log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from checkers.protocol.state import differs
from checkers.tables import TraceRow, trace_rows
from results.explanation.event_facts import batch_of, is_unclean_election, positions_of, session_of
from results.explanation.story import Belief, brokers
from workloads.columns import NEVER

UNKNOWN: Final = -1
"""The leader epoch of a record that the trace does not have; it equals every other."""
BROKER_KINDS: Final = ("broker_registered", "broker_fenced", "broker_unfenced", "broker_shutting_down")
"""Changes of a broker that controllers decide."""
NODE_KINDS: Final = (
    "node_started", "metadata_applied", "registered", "registration_refused", "broker_stays_fenced", "fetch_session",
    "quorum_leader", *BROKER_KINDS,
)  # fmt: skip
"""Events of a whole node that matter to each of its partitions."""


def events_of(trace: pa.Table, topic: str, partition: int) -> Iterator[TraceRow]:
    """The events of one partition, and those of nodes that concern all of theirs, in order."""
    own = (pc.field("topic") == topic) & (pc.field("partition") == partition)
    return trace_rows(trace.filter(own | pc.field("kind").isin(NODE_KINDS)))


@dataclass(slots=True)
class Proposal:
    """A change of the ISR that a leader has asked for."""

    members: frozenset[int]
    partition_epoch: int
    time_ns: int
    leader_epoch: int = -1
    sent: int = 0
    """How often it has left for the controllers."""
    sent_ns: int = -1
    refused: str = ""
    """The error with which a controller refused it last."""
    answer: TraceRow | None = None
    """The error that its leader was answered, and that does not prove that it is not committed."""
    epochs: Mapping[int, int] = field(default_factory=dict)
    """Member → the broker epoch in which it is proposed."""


class BatchCopy(NamedTuple):
    """A batch in the log of a replica."""

    offset: int
    """Of its first record."""
    leader: int
    """From which it was replicated; -1 where the replica appended it as the leader itself."""
    end: int = -1
    producer_epoch: int = 0

    def __str__(self) -> str:
        return f"at {self.offset} already, " + (f"replicated from b{self.leader}" if self.leader >= 0 else "as leader")


@dataclass(slots=True)
class ReplicaView:
    """One node's own view."""

    node: str
    role: str = ""
    leader: int = -1
    leader_epoch: int = -1
    epoch_start: int = -1
    isr: frozenset[int] = frozenset()
    proposal: Proposal | None = None
    high_watermark: int = -1
    greatest_high_watermark: int = 0
    taken_over: int = -1
    """The high watermark with which it began to lead."""
    positions: Mapping[int, int] = field(default_factory=dict)
    log: list[int] = field(default_factory=list)
    """Leader epoch by offset."""
    log_start: int = 0
    settled_start: int = 0
    """The log start that was in force at a later event of the replica."""
    shortened: TraceRow | None = None
    """The last event that cut its log."""
    cut_to: int = NEVER
    """The lowest offset that it has cut its log to in this life: a power loss may undo that."""
    settled: TraceRow | None = None
    """The event that settled the last proposal of this leadership."""
    removed: bool = False
    """Whether it stopped hosting the partition since it opened its log, or was decided to: that may be deleted then."""
    greatest_end: int = 0
    """The furthest that its log ever reached."""
    following_since: TraceRow | None = None
    """The `became_follower` after which its log was not compared with its leader's yet."""
    batches: dict[tuple[int, int, int], BatchCopy] = field(default_factory=dict)
    """By producer id, sequence and checksum, the batches in its log."""
    expired: set[int] = field(default_factory=set)
    """The producers whose state has expired."""
    fetch_refused: TraceRow | None = None
    """The last refusal of a fetch that its leader has not accepted one after."""
    divergences: dict[tuple[int, ...], int] = field(default_factory=dict)
    """Leader epoch, last epoch and offset of its fetches that diverged → how often."""

    def belief(self) -> Belief:
        """Its view as a value."""
        proposed = tuple(sorted(self.proposal.members)) if self.proposal is not None else ()
        return Belief(
            self.node,
            self.role,
            self.leader,
            self.leader_epoch,
            tuple(sorted(self.isr)) if self.role == "leader" else (),
            proposed,
            self.high_watermark,
            len(self.log),
            tuple(sorted(self.positions.items())) if self.role == "leader" else (),
        )

    def resize(self, end: int) -> None:
        """The log ends at `end`; records that the trace does not have are UNKNOWN."""
        del self.log[max(end, 0) :]
        self.log.extend([UNKNOWN] * (end - len(self.log)))


@dataclass(frozen=True, slots=True)
class Decision:
    """The partition as the controllers last decided it."""

    time_ns: int
    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: frozenset[int]
    elr: frozenset[int]
    min_isr: int
    replicas: frozenset[int] = frozenset()
    adding: frozenset[int] = frozenset()
    removing: frozenset[int] = frozenset()
    offset: int = -1
    """The end of the metadata log with it."""

    @classmethod
    def of(cls, event: TraceRow) -> Decision:
        """The partition as a `partition_changed` has it."""
        detail = event.details()
        minimum, replicas = detail.get("min_isr", 1), detail.get("replicas") or ()
        return cls(
            event.time_ns,
            event.leader,
            event.leader_epoch,
            event.partition_epoch,
            frozenset(event.members),
            frozenset(detail.get("elr") or ()),
            min(minimum, len(replicas) or minimum),
            frozenset(replicas),
            frozenset(detail.get("adding") or ()),
            frozenset(detail.get("removing") or ()),
            event.offset,
        )

    def __str__(self) -> str:
        leader = f"leader b{self.leader}" if self.leader >= 0 else "no leader"
        elr = f", ELR {brokers(self.elr)}" if self.elr else ""
        return (
            f"decided: {leader}, epoch {self.leader_epoch}, partition epoch {self.partition_epoch}, "
            f"ISR {brokers(self.isr)}{elr}"
        )


@dataclass(slots=True)
class PartitionReplay:
    """One partition after the events applied so far."""

    replicas: dict[str, ReplicaView] = field(default_factory=dict)
    place: str = ""
    """The partition by name, once an event has named it."""
    decision: Decision | None = None
    """The last one; None before the first, and once its topic is deleted."""
    metadata_offset: int = -1
    committed: list[int] = field(default_factory=list)
    """Leader epoch by offset of every record that was ever below a leader's high watermark, without those that an
    unclean election, which the topic allows, gave up."""
    given_up_before: int = UNKNOWN
    """The leader epoch of the last such election: what an earlier leader still commits is given up, too."""
    proposals: list[Proposal] = field(default_factory=list)
    """Every change of the ISR that a leader has asked for."""
    leaders: dict[int, str] = field(default_factory=dict)
    """Leader epoch → the node that led in it first."""
    started_ns: dict[int, int] = field(default_factory=dict)
    """Broker → when its process started last."""
    unclean: dict[int, int] = field(default_factory=dict)
    """Broker → when it registered after an unclean shutdown, until the instant after that is seen."""
    decisions: dict[int, Decision] = field(default_factory=dict)
    """By partition epoch."""
    fenced: set[int] = field(default_factory=set)
    leaving: dict[int, int] = field(default_factory=dict)
    """Broker → when it was fenced, until the instant after that is seen."""
    unfenced_ns: dict[int, int] = field(default_factory=dict)
    """Broker → when it was unfenced last."""
    shutting_down: set[int] = field(default_factory=set)
    leave_asked: dict[int, TraceRow] = field(default_factory=dict)
    """Broker → the event with which its present process began to shut down, as far as it has one."""
    left_before: dict[int, TraceRow] = field(default_factory=dict)
    """Broker → the same of its last process that did."""
    broker_epochs: dict[int, int] = field(default_factory=dict)
    """Broker → the broker epoch that the controllers gave it last."""
    leaderless: Decision | None = None
    """The last decision without a leader that was told as a step."""
    last_change_ns: int = -1
    """When the controllers last decided something about a broker or the partition."""
    registrations: dict[int, TraceRow] = field(default_factory=dict)
    """Broker → its last one."""
    applied: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Broker's node → when it last took over metadata, and up to which offset."""
    refusals: dict[tuple[str, int, int, str], list[int]] = field(default_factory=dict)
    """Controller, broker, its broker epoch, incarnation of a refused registration → the last contacts that the
    controller gave for that epoch, each once."""
    fetches_give_epochs: bool = False
    """Whether fetches give the epoch of the record before, as they do from KIP-595 on."""
    broker_offsets: dict[int, int] = field(default_factory=dict)
    """Broker → the metadata offset of its newest change."""

    def replica(self, node: str) -> ReplicaView:
        """The view of `node`."""
        return self.replicas.setdefault(node, ReplicaView(node))

    def has_read(self, node: str, decision: Decision) -> bool:
        """Whether a broker has applied the metadata with a decision, as far as its events say."""
        return node not in self.applied or decision.offset <= self.applied[node][1]

    def decided_in(self, leader_epoch: int) -> Decision | None:
        """The last decision in a leader epoch: a leader that is deposed and has not read of it acts on that."""
        of_epoch = [decision for decision in self.decisions.values() if decision.leader_epoch == leader_epoch]
        return of_epoch[-1] if of_epoch else None

    def removed_after(self, broker: int, partition_epoch: int) -> bool:
        """Whether the controllers took the partition away from a broker after a partition epoch, with all it held."""
        later = [decision.replicas for epoch, decision in self.decisions.items() if epoch > partition_epoch]
        return any(replicas and broker not in replicas for replicas in later)

    def knows_life(self, node: str, broker: int) -> bool:
        """Whether a broker has read that another one is registered in its present life, as far as its events say."""
        registered, started_ns = self.registrations.get(broker), self.started_ns.get(broker)
        if registered is None or started_ns is None or registered.time_ns < started_ns:
            return started_ns is None
        return node not in self.applied or registered.offset <= self.applied[node][1]

    def is_active(self, broker: int) -> bool:
        """Whether a broker may lead, and be in an ISR, as far as the controllers have decided."""
        return broker in self.broker_epochs and broker not in self.fenced | self.shutting_down

    def beliefs(self) -> tuple[Belief, ...]:
        """Every node's view, by name."""
        return tuple(self.replicas[node].belief() for node in sorted(self.replicas))

    def first_missing(self, replica: ReplicaView) -> int | None:
        """The least committed offset above its log start that the replica does not hold."""
        start, count = replica.log_start, len(self.committed)
        place = differs(replica.log[start:count], self.committed[start:])
        return None if place is None else start + place

    def apply(self, event: TraceRow) -> None:
        """Change the views by one event."""
        if event.topic and not self.place:
            self.place = f"{event.topic}-{event.partition}"
        if event.kind == "node_started":
            if event.number >= 0:
                self.started_ns[event.number] = event.time_ns
        elif event.kind in BROKER_KINDS:
            self._change_broker(event)
        elif event.kind == "metadata_applied":
            self.applied[event.node] = event.time_ns, event.log_end
        elif event.kind == "quorum_leader":
            self.refusals.clear()  # every session begins anew with a controller that takes charge
        elif event.kind == "registration_refused":
            self._refuse(event)
        elif event.kind == "partition_changed":
            self._decide(event)
        elif event.kind == "partition_deleted":
            self.metadata_offset, self.decision = event.offset, None
        elif event.kind == "alter_partition_refused":
            proposal = self.replica(f"b{event.broker}").proposal
            if proposal is not None and proposal.members == frozenset(event.members):
                proposal.refused = event.details()["error"]
        elif event.kind in _APPLY and event.number >= 0:
            replica = self.replica(event.node)
            if event.kind != "log_recovered":
                replica.settled_start = replica.log_start
            _APPLY[event.kind](self, replica, event)

    def contacts(self, refused: TraceRow) -> list[int]:
        """The last contacts that a controller has given, for the session of one process, as it refused another one."""
        return self.refusals.get(session_of(refused), [])

    def _refuse(self, event: TraceRow) -> None:
        contacts, contact_ms = self.refusals.setdefault(session_of(event), []), event.details()["contact_ms"]
        if contact_ms not in contacts:
            contacts.append(contact_ms)

    def _decide(self, event: TraceRow) -> None:
        if event.offset < self.metadata_offset:
            return  # a deposed controller traced it late
        self.metadata_offset = event.offset
        self.last_change_ns = event.time_ns
        before, self.decision = self.decision, Decision.of(event)
        self.decisions[event.partition_epoch] = decision = self.decision
        if before is not None and is_unclean_election(event) and event.leader not in before.isr | before.elr:
            missing = self.first_missing(self.replica(f"b{event.leader}"))
            del self.committed[len(self.committed) if missing is None else missing :]
            self.given_up_before = event.leader_epoch
        for replica in self.replicas.values():
            replica.removed |= bool(decision.replicas) and replica.node not in {f"b{one}" for one in decision.replicas}

    def _change_broker(self, event: TraceRow) -> None:
        if event.offset < self.broker_offsets.get(event.broker, -1):
            return  # a deposed controller traced it late
        self.broker_offsets[event.broker] = event.offset
        self.last_change_ns = event.time_ns
        if event.kind == "broker_shutting_down":
            self.shutting_down.add(event.broker)
            self.leave_asked[event.broker] = self.left_before[event.broker] = event
            self.leaving[event.broker] = event.time_ns
            return
        if event.kind == "broker_unfenced":
            self.fenced.discard(event.broker)
            self.unfenced_ns[event.broker] = event.time_ns
            self.leaving.pop(event.broker, None)
            return
        self.fenced.add(event.broker)
        if event.kind == "broker_fenced":
            self.leaving[event.broker] = event.time_ns
            if event.details().get("reason") in ("controlled_shutdown", "taken_over"):
                self.leave_asked[event.broker] = self.left_before[event.broker] = event
            return
        self.shutting_down.discard(event.broker)
        self.leave_asked.pop(event.broker, None)
        self.broker_epochs[event.broker] = event.broker_epoch
        self.registrations[event.broker] = event
        if event.details().get("clean") is False:
            self.unclean[event.broker] = event.time_ns


def _role(state: PartitionReplay, replica: ReplicaView, event: TraceRow) -> None:
    leads = event.kind == "became_leader"
    changed = not replica.role or (replica.leader, replica.leader_epoch) != (event.leader, event.leader_epoch)
    replica.role, replica.leader, replica.leader_epoch = (
        ("leader" if leads else "follower"),
        event.leader,
        event.leader_epoch,
    )
    replica.proposal, replica.settled, replica.positions = None, None, {}
    if event.log_end >= 0 and event.log_end != len(replica.log):
        replica.resize(event.log_end)
    if leads:
        replica.isr, replica.epoch_start, replica.following_since = frozenset(event.members), event.offset, None
        replica.taken_over = event.details().get("high_watermark", UNKNOWN)
        state.leaders.setdefault(event.leader_epoch, event.node)
    elif changed:
        replica.following_since = event


def _resigned(state: PartitionReplay, replica: ReplicaView, event: TraceRow) -> None:
    replica.role, replica.proposal, replica.removed = "", None, True


def _appended(state: PartitionReplay, replica: ReplicaView, event: TraceRow) -> None:
    if event.offset != len(replica.log):
        replica.resize(event.offset)
    replica.log.extend([event.leader_epoch] * (event.log_end - event.offset))
    replica.greatest_end = max(replica.greatest_end, len(replica.log))
    replica.following_since = None
    if (batch := batch_of(event)) is not None:
        leader = event.leader if event.leader != event.number else -1
        producer_epoch = event.details().get("producer_epoch", 0)
        replica.batches[batch] = BatchCopy(event.offset, leader, event.log_end, producer_epoch)


def _expired(state: PartitionReplay, replica: ReplicaView, event: TraceRow) -> None:
    """The batches of a producer that has expired count no more; where its state comes back, nothing is said of them."""
    expired = event.details()["producers"]
    replica.batches = {batch: copy for batch, copy in replica.batches.items() if str(batch[0]) not in expired}
    replica.expired |= {int(producer) for producer in expired}


def _truncated(state: PartitionReplay, replica: ReplicaView, event: TraceRow) -> None:
    replica.resize(event.offset)
    replica.high_watermark = min(replica.high_watermark, event.offset)
    replica.shortened, replica.cut_to = event, min(replica.cut_to, event.offset)
    replica.batches = {batch: copy for batch, copy in replica.batches.items() if copy.offset < event.offset}
    start = event.details().get("log_start")
    if isinstance(start, int):
        replica.log_start = replica.high_watermark = start
        replica.log[:] = [UNKNOWN] * len(replica.log)
        replica.batches = {}


def _recovered(state: PartitionReplay, replica: ReplicaView, event: TraceRow) -> None:
    if event.log_end < len(replica.log):
        replica.shortened = event
    known_end = event.log_end if event.details().get("clean") else min(event.log_end, replica.cut_to)
    replica.resize(known_end)
    replica.resize(event.log_end)
    replica.batches = {batch: copy for batch, copy in replica.batches.items() if copy.offset < known_end}
    replica.cut_to = NEVER
    replica.log_start = max(event.offset, 0)
    replica.high_watermark = min(event.high_watermark, event.log_end)
    if replica.high_watermark >= 0:  # one was checkpointed
        replica.high_watermark = max(replica.high_watermark, replica.log_start)
    replica.role, replica.proposal, replica.removed = "", None, False


def _diverged(state: PartitionReplay, replica: ReplicaView, event: TraceRow) -> None:
    detail = event.details()
    fetch = (event.leader_epoch, *detail.get("fetched", ()))
    follower = state.replica(f"b{detail['replica']}")
    follower.divergences[fetch] = follower.divergences.get(fetch, 0) + 1
    state.fetches_give_epochs |= bool(detail.get("fetched"))


def _fetched(state: PartitionReplay, replica: ReplicaView, event: TraceRow) -> None:
    state.fetches_give_epochs |= event.details().get("last_epoch", UNKNOWN) >= 0
    follower = state.replicas.get(f"b{event.details().get('replica', -1)}")
    if follower is not None:
        follower.fetch_refused = event if event.kind == "request_fenced" else None


def _log_start(state: PartitionReplay, replica: ReplicaView, event: TraceRow) -> None:
    replica.log_start = max(event.offset, 0)


def _high_watermark(state: PartitionReplay, replica: ReplicaView, event: TraceRow) -> None:
    replica.high_watermark = event.high_watermark
    replica.greatest_high_watermark = max(replica.greatest_high_watermark, event.high_watermark)
    if event.kind == "high_watermark":
        replica.positions = positions_of(event)
        if event.leader_epoch >= state.given_up_before:
            state.committed += replica.log[len(state.committed) : event.high_watermark]


def _proposed(state: PartitionReplay, replica: ReplicaView, event: TraceRow) -> None:
    epochs = {int(member): epoch for member, epoch in event.details().get("epochs", {}).items()}
    members = frozenset(event.members)
    replica.proposal = Proposal(members, event.partition_epoch, event.time_ns, event.leader_epoch, epochs=epochs)
    state.proposals.append(replica.proposal)


def _proposal_sent(state: PartitionReplay, replica: ReplicaView, event: TraceRow) -> None:
    if replica.proposal is not None and replica.proposal.members == frozenset(event.members):
        replica.proposal.sent += 1
        replica.proposal.sent_ns = event.time_ns


def _isr_decided(state: PartitionReplay, replica: ReplicaView, event: TraceRow) -> None:
    """Only a rollback, or the refusal that a proposed member may not join, proves that a proposal is not committed."""
    detail = event.details()
    if event.kind == "isr_committed":
        replica.isr = frozenset(event.members)
    elif not detail.get("rolled_back", True) and detail.get("error") != "ineligible_replica":
        if replica.proposal is not None:
            replica.proposal.answer = event
        return
    replica.proposal, replica.settled = None, event


def _isr_counted(state: PartitionReplay, replica: ReplicaView, event: TraceRow) -> None:
    """Metadata may have changed it without a proposal of its leader."""
    replica.isr = frozenset(event.members)


_APPLY: Final = {
    "became_leader": _role,
    "became_follower": _role,
    "resigned": _resigned,
    "appended": _appended,
    "producers_expired": _expired,
    "truncated": _truncated,
    "log_recovered": _recovered,
    "log_start": _log_start,
    "diverging": _diverged,
    "fetch_accepted": _fetched,
    "request_fenced": _fetched,
    "high_watermark": _high_watermark,
    "follower_high_watermark": _high_watermark,
    "isr_proposed": _proposed,
    "alter_partition_sent": _proposal_sent,
    "isr_committed": _isr_decided,
    "isr_rejected": _isr_decided,
    "isr_counted": _isr_counted,
}
