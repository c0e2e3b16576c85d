"""State of every partition according to a protocol trace, and the record of each broken promise.

`checkers.protocol.trace_replay` changes these values from event to event.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from checkers.deletions import DeletionRequest
from checkers.evidence import CheckSettings
from checkers.protocol.batches import UNKNOWN, AppendedBatch, KeptProducer, ReplicaBatches
from checkers.protocol.group_state import GroupsState
from checkers.protocol.segments import Overdue, RetainedLog
from checkers.tables import FaultTimes, TraceRow, WrongClocks
from checkers.unclean_elections import ElectionRequests
from workloads.columns import NEVER

_OFFSETS_MAX: Final = 1000
"""Of one violation that its finding names."""


@dataclass(frozen=True, slots=True)
class PartitionDecision:
    """A partition as the controllers decided it."""

    metadata_offset: int
    partition_epoch: int
    leader: int
    leader_epoch: int
    isr: frozenset[int]
    elr: frozenset[int]
    replicas: frozenset[int]
    adding: frozenset[int]
    min_isr: int
    last_known_elr: frozenset[int]
    strategy: str
    """`unclean.recovery.strategy`, by which it was decided."""

    @classmethod
    def of(cls, event: TraceRow, strategy: str) -> PartitionDecision:
        """The decision of a `partition_changed` event."""
        detail = event.details()
        replicas = frozenset(integers(detail, "replicas"))
        minimum = detail.get("min_isr")
        return cls(
            event.offset,
            event.partition_epoch,
            event.leader,
            event.leader_epoch,
            frozenset(event.members),
            frozenset(integers(detail, "elr")),
            replicas,
            frozenset(integers(detail, "adding")),
            min(minimum, len(replicas)) if isinstance(minimum, int) else 1,
            frozenset(integers(detail, "last_known_elr")),
            strategy,
        )

    @property
    def described(self) -> str:
        """The decision in words."""
        adding = f", adding {names(self.adding)}" if self.adding else ""
        return (
            f"leader {self.leader} in leader epoch {self.leader_epoch}, ISR {names(self.isr)}, ELR {names(self.elr)}, "
            f"replicas {names(self.replicas)}{adding}"
        )


@dataclass(frozen=True, slots=True)
class ProtocolViolation:
    """One broken promise."""

    kind: str
    offset: int
    time_ns: int
    since_ns: int
    """Time at which the record concerned was committed."""
    lines: tuple[str, ...]
    end: int = UNKNOWN
    """Where the records concerned end, exclusive, of a promise about more than the one at `offset`."""

    @property
    def offsets(self) -> tuple[int, ...]:
        """Those of the records concerned, the first of them where they are many."""
        return tuple(range(self.offset, min(max(self.end, self.offset + 1), self.offset + _OFFSETS_MAX)))


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    """The answer of a leader to a read that its ISR has to confirm."""

    event: TraceRow
    confirmed: frozenset[int]
    """The followers that had fetched since the read began."""
    proposed: frozenset[int]
    """The members of every ISR change whose outcome the leader did not know."""
    elsewhere: frozenset[int]
    """The brokers that were in a later leader epoch when the read began."""


@dataclass(frozen=True, slots=True)
class TracedProposal:
    """The ISR that a leader proposed."""

    leader: str
    members: frozenset[int]
    epochs: Mapping[int, int]
    """Member → the broker epoch that is proposed."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """A leader takes a fetch of a replica for its position, or refuses it, or proposes the replica for the ISR."""

    event: TraceRow
    replica: int
    life: int
    """The broker epoch in which the replica had fetched."""
    metadata_end: int
    """As far as the leader had applied the metadata."""


@dataclass(frozen=True, slots=True)
class BrokerStanding:
    """A broker as the controllers had it from an offset of the metadata log on."""

    offset: int
    epoch: int
    """The broker epoch in which it is registered."""
    active: bool
    """Whether it may lead and join an ISR: unfenced, and not shutting down."""


class TracedRecovery(NamedTuple):
    """A leader that was elected by the log ends of replicas, since none was left that is known to hold what is
    committed."""

    event: TraceRow
    before: PartitionDecision
    candidates: frozenset[int]
    """The replicas among which it is elected."""
    needed: frozenset[int]
    """Those of them that must have told of their logs."""


@dataclass(slots=True)
class LeaderWait:
    """A leader, and for how long its high watermark has waited for its ISR."""

    isr: frozenset[int]
    high_watermark: int
    seen_ns: int
    """Time of its last event."""
    appended_ns: int
    """Time since which its log ends where it does, in this leadership."""
    caught_up_ns: dict[int, int]
    """Follower → the last time at which it certainly had the whole log, or began to be followed."""
    in_flight: bool = False
    """Whether an ISR change is in flight, so that no other one is proposed."""
    unsettled_at: int | None = None
    """`worked_ns` since when it counts members of a refused change that may still be made, and proposes none."""
    waited_ns: int = 0
    """Since the high watermark, or what it counts, has changed, as far as events show the leader at work."""
    worked_ns: int = 0
    """Since it leads, as far as events show it at work, by timers that ran right."""
    counted_at: int = 0
    """`worked_ns` when what it counts has changed."""
    ends: list[tuple[int, int]] = field(default_factory=list)
    """Where its log ended after each batch that it has appended, and `worked_ns` then."""
    told_ends: dict[int, int] = field(default_factory=dict)
    """Follower → the end of the leader's log when the follower's was opened or cut last: up to there the leader may
    have seen it before."""

    def works(self, time_ns: int, longest_gap_ns: int) -> int:
        """It has an event. Returns for how long it has been at work since the last one."""
        gap_ns = min(time_ns - self.seen_ns, longest_gap_ns)
        self.seen_ns = time_ns
        self.worked_ns += gap_ns
        return gap_ns

    def passed_at(self, offset: int) -> int | None:
        """`worked_ns` when its log first ended above `offset`; None if it does not yet."""
        place = bisect_right(self.ends, offset, key=lambda each: each[0])
        return self.ends[place][1] if place < len(self.ends) else None


@dataclass(slots=True)
class PartitionState:
    """The state of one partition after the events replayed so far."""

    logs: dict[str, list[int]] = field(default_factory=dict)
    """Leader epoch by offset, of each node's log."""
    committed: list[int] = field(default_factory=list)
    """Leader epoch by offset, of every record that was ever below a leader's high watermark."""
    committed_ns: list[int] = field(default_factory=list)
    committed_in: list[int] = field(default_factory=list)
    """The leader epoch of the leader whose high watermark passed it."""
    leaders: dict[int, str] = field(default_factory=dict)
    """The leader of each leader epoch."""
    leader: int = -1
    leader_epoch: int = -1
    isr: frozenset[int] | None = None
    """As the controller last decided; None before it has."""
    elr: frozenset[int] = frozenset()
    last_known_elr: frozenset[int] = frozenset()
    min_isr: int = 1
    """As the controller last decided; a leader goes by the value at the partition epoch that it knows."""
    min_isr_at: dict[int, int] = field(default_factory=dict)
    """Partition epoch → the minimum from then on, in the order of the epochs."""
    epoch_starts: dict[str, int] = field(default_factory=dict)
    """Leader epoch start offset of each node's latest leadership."""
    high_watermarks: dict[str, int] = field(default_factory=dict)
    """Of each node, in its latest leadership."""
    log_starts: dict[str, int] = field(default_factory=dict)
    """Where each node's log starts; at 0 unless it is in here."""
    election_requests: ElectionRequests = field(default_factory=ElectionRequests)
    """The unclean elections that administrators asked for."""
    settled_log_starts: dict[str, int] = field(default_factory=dict)
    """The same as of the node's next event: a move is traced before it is written down."""
    decided_log_start: int = 0
    """The greatest log start that any node has decided on, not following its leader."""
    expirations: list[TraceRow] = field(default_factory=list)
    """Every move of a log's start by `retention.ms`."""
    forgotten: list[TraceRow] = field(default_factory=list)
    """Every expiry of producers."""
    renewed: dict[str, dict[int, int]] = field(default_factory=dict)
    """Node → producer id → the time in ns of the newest batch in its state, or a later one."""
    kept_producers: list[KeptProducer] = field(default_factory=list)
    """Producers whose state was kept for longer than it expires."""
    retained: dict[str, RetainedLog] = field(default_factory=dict)
    """By node, where the topic has a retention."""
    overdue: list[Overdue] = field(default_factory=list)
    """Segments that leaders had not deleted although they had to for a while."""
    deletions: list[TraceRow] = field(default_factory=list)
    """Every move of a log's start by DeleteRecords."""
    confirmed_deletions: list[TraceRow] = field(default_factory=list)
    """Every answer that the records below an offset are deleted."""
    unclean_epoch: int = UNKNOWN
    """The greatest leader epoch that began with an unclean election."""
    deletion_request: DeletionRequest | None = None
    """The deletion that administrators requested; None where none is permitted."""
    excluded: set[int] = field(default_factory=set)
    """Registered after an unclean shutdown, and in no ISR since."""
    shrunk: set[str] = field(default_factory=set)
    """Nodes whose log was recovered shorter than before, and that have joined no ISR since."""
    batches: dict[tuple[int, int], AppendedBatch] = field(default_factory=dict)
    """(base offset, leader epoch) → the batch as the first replica appended it."""
    replica_batches: dict[str, ReplicaBatches] = field(default_factory=dict)
    """By node."""
    greatest_log_starts: dict[str, int] = field(default_factory=dict)
    """The highest start that each node's log ever had."""
    opened: dict[str, int] = field(default_factory=dict)
    """Node → time in ns at which it opened its log last. The end of a log that was never opened is not known."""
    removed: set[str] = field(default_factory=set)
    """Nodes that may have deleted their log since they opened it."""
    cut_to: dict[str, int] = field(default_factory=dict)
    """Node → the lowest offset to which it has cut its log since what it has on disk was known last."""
    synced_to: dict[str, int] = field(default_factory=dict)
    """Node → below it, all records of its log are on its disk, as it knows."""
    deleted: dict[str, int] = field(default_factory=dict)
    """Node → time in ns at which it had deleted its log, which it has not opened anew since."""
    recoveries: list[TracedRecovery] = field(default_factory=list)
    unsynced: dict[str, TraceRow] = field(default_factory=dict)
    """Node → the close of its log in a clean stop, if not every record was known to be on disk then; until its process
    starts again."""
    log_events: dict[str, TraceRow] = field(default_factory=dict)
    """The last event that moved the end of each node's log, or after which it may be truncated."""
    decision: PartitionDecision | None = None
    """The latest in the metadata log."""
    decisions: dict[int, list[PartitionDecision]] = field(default_factory=dict)
    """By partition epoch."""
    proposed_in: dict[tuple[int, int], list[TracedProposal]] = field(default_factory=dict)
    """(leader epoch, partition epoch) → the ISRs that were proposed in that state."""
    senders: dict[tuple[int, int], set[tuple[str, int]]] = field(default_factory=dict)
    """(leader epoch, partition epoch) → those who sent proposals made in that state: node and broker epoch."""
    created_again: bool = False
    """A topic of this name was deleted and created anew: brokers that have not read of it still act on the old one."""
    accepted_in: dict[tuple[str, int], int] = field(default_factory=dict)
    """(leader, replica) → the leader epoch in which the leader last took a fetch of the replica for a position."""
    gave_epoch: dict[tuple[str, int, int, int], bool] = field(default_factory=dict)
    """(leader, replica, its broker epoch, leader epoch) → whether its first fetch taken for a position gave its leader
    epoch."""
    meetings: list[Meeting] = field(default_factory=list)
    changes: list[tuple[TraceRow, PartitionDecision]] = field(default_factory=list)
    """Changes of the ISR at a leader's request, each with the decision before it."""
    leads_since: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Node → the first and the last of its latest leader epochs that follow each other."""
    leading: dict[str, int] = field(default_factory=dict)
    """Node → the leader epoch in which it leads."""
    role_epochs: dict[str, int] = field(default_factory=dict)
    """Node → the leader epoch in which it last began to lead or to follow."""
    appended_in: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """(leader, offset) → the partition epoch and the leader epoch in which it appended the batch there; the former is
    UNKNOWN if the answer to an earlier one may be due, too."""
    acts: list[TraceRow] = field(default_factory=list)
    """Events of brokers that rest on a decision."""
    acted_on: dict[str, int] = field(default_factory=dict)
    """Node → the greatest partition epoch that it has acted on since it opened its log."""
    proposals: dict[str, tuple[tuple[int, int], tuple[frozenset[int], ...]]] = field(default_factory=dict)
    """Leader → (leader epoch, partition epoch) and the ISR changes that it proposed there and does not know the outcome
    of."""
    elsewhere: dict[tuple[str, int, object], frozenset[int]] = field(default_factory=dict)
    """(Leader, leader epoch, number of a read of the latest offset) → `ReadAnswer.elsewhere`."""
    reads: list[ReadAnswer] = field(default_factory=list)
    quorums: dict[tuple[object, ...], tuple[TraceRow, frozenset[int]]] = field(default_factory=dict)
    """The moves of high watermarks, one for each quorum, leader, epochs and ISR changes in flight, with the members of
    these."""
    waits: dict[str, LeaderWait] = field(default_factory=dict)
    """By leader."""
    ended_proposals: dict[str, TraceRow] = field(default_factory=dict)
    """Leader → the answer after which its last proposal is not to be sent again."""
    to_send_again: dict[str, tuple[TraceRow, int]] = field(default_factory=dict)
    """Leader → the answer, or the loss, after which it is to send its last proposal again, and how long it had been at
    work then (`LeaderWait.worked_ns`)."""
    granted: list[tuple[TraceRow, int]] = field(default_factory=list)
    """Every answer by which a leader's ISR change is made, and its partition epoch."""
    lost_requests: dict[str, TraceRow] = field(default_factory=dict)
    """Leader → a request with its last proposal that may have arrived and has no answer."""
    told_reads: dict[tuple[str, str], dict[object, TraceRow]] = field(default_factory=dict)
    """(Leader, kind of answer) → number of a read in this leadership → the answer that it was for."""
    reads_begun: dict[str, object] = field(default_factory=dict)
    """Leader → the number of the read of the latest offset that began last."""
    answered_reads: dict[tuple[str, object, object], tuple[int, object]] = field(default_factory=dict)
    """(Leader, follower, connection) → leader epoch of the last answer sent there, and the read that had begun last."""
    confirmed_reads: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """(Leader, follower) → leader epoch, and number of the last read that its fetches have confirmed in it."""
    deleted_at: int | None = None
    """The offset of the metadata at which the topic was deleted."""
    snapshots: dict[str, Mapping[str, int]] = field(default_factory=dict)
    """Node → the producers, and the last sequence number of each, in the snapshot in place of what its log deleted."""
    group_records: dict[tuple[str, str], TraceRow] = field(default_factory=dict)
    """(Coordinator, group) → the last record of the group itself that it appended."""
    group_changes: dict[tuple[str, str], list[TraceRow]] = field(default_factory=dict)
    """(Coordinator, group) → the changes of its state since the coordinator has loaded it."""
    assigned: set[tuple[str, object]] = field(default_factory=set)
    """(Group, generation) of each assignment that the leader of a generation gave."""
    assigning: dict[tuple[str, str], TraceRow] = field(default_factory=dict)
    """(Coordinator, group) → the members with their partitions in the record that it appends next."""
    member_records: dict[tuple[str, object, str], TraceRow] = field(default_factory=dict)
    """(Group, generation, member) → the first record with its partitions; a refused one if none was appended."""
    groups: GroupsState = field(default_factory=GroupsState)
    candidates_to_check: bool = False
    """Something happened in this instant, so that the candidates are to be checked at its end."""
    violations: list[ProtocolViolation] = field(default_factory=list)
    events: int = 0
    elections: int = 0
    watermark_moves: int = 0
    trace_gaps: int = 0

    def log(self, node: str) -> list[int]:
        """The log of `node`."""
        return self.logs.setdefault(node, [])

    def has_log(self, node: str) -> bool:
        """Whether `node` has opened its log, and not deleted it since."""
        return node in self.opened and node not in self.deleted

    def batches_of(self, node: str) -> ReplicaBatches:
        """The batches in the log of `node`."""
        return self.replica_batches.setdefault(node, ReplicaBatches())

    def first_missing(self, node: str) -> int | None:
        """The least committed offset that the log of `node` should hold, being above its start, and does not."""
        log, count, start = self.log(node), len(self.committed), self.log_starts.get(node, 0)
        committed = self.committed[start:] if start else self.committed
        if log[start:count] == committed:
            return None
        missing = differs(log[start:count], committed)
        return None if missing is None else start + missing

    def describe_missing(self, offset: int) -> str:
        """A line for a finding: the record committed at `offset` is missing."""
        return (
            f"it lacks offset {offset} of leader epoch {self.committed[offset]}, "
            f"committed at {self.committed_ns[offset] / 1e9:.6f} s"
        )

    def record_leader(self, event: TraceRow, node: str) -> None:
        """Note that `node` leads in the event's leader epoch, according to itself or the controller."""
        before = self.leaders.setdefault(event.leader_epoch, node)
        if before != node:
            self.report(
                event,
                "two-leaders-one-epoch",
                UNKNOWN,
                f"{node} leads in leader epoch {event.leader_epoch} {event.at}",
                f"{before} led in the same leader epoch before",
            )

    def report(self, event: TraceRow, kind: str, offset: int, *lines: str, end: int = UNKNOWN) -> None:
        """Note that the event broke a promise, about the record at `offset` if one was committed there, and all up to
        `end`."""
        since_ns = self.committed_ns[offset] if 0 <= offset < len(self.committed_ns) else UNKNOWN
        self.violations.append(ProtocolViolation(kind, offset, event.time_ns, since_ns, lines, end))


@dataclass(slots=True)
class ClusterState:
    """The state of the cluster: every partition, and what concerns all of them."""

    partitions: dict[tuple[str, int], PartitionState] = field(default_factory=dict)
    life_starts: dict[str, int] = field(default_factory=dict)
    """Node → start in ns of its latest life."""
    awaiting_registration: set[str] = field(default_factory=set)
    """Nodes whose latest life has not registered."""
    unclean_lives: dict[str, int] = field(default_factory=dict)
    """Node → start in ns of its latest life that registered after an unclean shutdown."""
    clean_registrations: dict[tuple[str, int], int] = field(default_factory=dict)
    """Node, broker epoch → time in ns at which the controllers granted it to the successor of a clean shutdown."""
    clean_lives: dict[str, int] = field(default_factory=dict)
    """Node → time in ns at which the controllers accepted that its latest life follows a clean shutdown."""
    fenced: set[int] = field(default_factory=set)
    """Brokers that the controllers have fenced, or registered and not unfenced yet."""
    broker_changes: dict[int, int] = field(default_factory=dict)
    """Broker → metadata offset of the last change of it."""
    lossy_faults: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=dict)
    """Node → (begin, end) in ns of every fault that lost data on it."""
    lied_since: Mapping[str, int] = field(default_factory=dict)
    """Node → time in ns since which its disk may have lied about fsync."""
    wiped_since: Mapping[str, int] = field(default_factory=dict)
    """Node → time in ns since which it may have lost more than what it had not synced."""
    wrong_timers: FaultTimes = field(default_factory=FaultTimes)
    clocks: WrongClocks = field(default_factory=WrongClocks)
    stalls: FaultTimes = field(default_factory=FaultTimes)
    """When processes did not run, as nodes on machines have traced it."""
    cuts_by_answers: set[str] = field(default_factory=set)
    """Nodes whose fetches have told the leader epoch of the record before: they cut their logs upon the answers."""
    lag_max_ms: int = UNKNOWN
    """`replica.lag.time.max.ms`; UNKNOWN where it is not known."""
    standings: dict[int, list[BrokerStanding]] = field(default_factory=dict)
    """Broker → its changes, in the order of the metadata log."""
    applied: dict[str, int] = field(default_factory=dict)
    """Node → the end of the metadata that takes effect in its life."""
    applied_ns: dict[str, int] = field(default_factory=dict)
    """Node → time in ns since which it does."""
    election_requests: Mapping[tuple[str, int], ElectionRequests] = field(default_factory=dict)
    """Partition → the unclean elections of it that administrators asked for."""
    topic_ends: dict[str, list[int]] = field(default_factory=dict)
    """Name → metadata offsets at which a topic of that name was deleted."""

    def stands(self, broker: int, standing: BrokerStanding) -> None:
        """Note a change of a broker, which may be traced late."""
        insort(self.standings.setdefault(broker, []), standing, key=lambda each: each.offset)

    def standing_at(self, broker: int, offset: int) -> BrokerStanding | None:
        """A broker according to the metadata below `offset`; None where that has no change of it."""
        changes = self.standings.get(broker, [])
        place = bisect_right(changes, offset, key=lambda each: each.offset)
        return changes[place - 1] if place else None

    def topic_ended(self, name: str, after: int, until: int) -> bool:
        """Whether a topic of that name was deleted between two offsets of the metadata, also where there is a new
        one."""
        return any(after < end <= until for end in self.topic_ends.get(name, ()))

    def clean_stop_covers(self, node: str, opened_ns: int) -> bool:
        """Whether the clean shutdown before this life of `node` was that of a log opened at `opened_ns`; an unclean
        start since then has given up what the log held."""
        return node in self.clean_lives and opened_ns >= self.unclean_lives.get(node, 0)

    def lied(self, node: str, time_ns: int) -> bool:
        """Whether the disk of `node` may have lied about fsync by then."""
        return self.lied_since.get(node, NEVER) <= time_ns

    def wiped(self, node: str, time_ns: int) -> bool:
        """Whether `node` may have lost by then more than what it had not synced."""
        return self.wiped_since.get(node, NEVER) <= time_ns

    def lost_data(self, node: str, first_ns: int, last_ns: int) -> bool:
        """Whether a fault lost data on `node` between these times."""
        return any(begin <= last_ns and end >= first_ns for begin, end in self.lossy_faults.get(node, ()))


def differs(one: list[int], other: list[int]) -> int | None:
    """The first place at which two logs differ, one that is too short included."""
    for place, (ours, theirs) in enumerate(zip(one, other, strict=False)):
        if ours != theirs and UNKNOWN not in (ours, theirs):
            return place
    return min(len(one), len(other)) if len(one) < len(other) else None


def integers(detail: Mapping[str, object], name: str) -> list[int]:
    """A list of integers among the facts of an event; empty if it is not there."""
    values = detail.get(name)
    return [int(value) for value in values] if isinstance(values, list) else []


def names(members: frozenset[int]) -> str:
    """The names of the brokers with these ids."""
    return "{" + ", ".join(f"b{member}" for member in sorted(members)) + "}"


TraceRowHandler = Callable[[PartitionState, TraceRow, CheckSettings], None]
"""Changes the state of a partition by an event of one kind."""
ClusterRowHandler = Callable[[ClusterState, PartitionState, TraceRow], None]
"""As a `TraceRowHandler`, with what is known of the whole cluster."""
