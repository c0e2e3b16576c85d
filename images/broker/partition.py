"""One replica of one partition, as a pure decision machine.

A `Partition` is a plain value: it compares, hashes and copies cheaply. Every function below takes one, an event and
the time where a rule needs it, and gives back a `Step`: the next value and the decisions the shell must carry out, in
order. Nothing here does I/O, so every interleaving of a few records and elections can be explored.

The log itself is not in the value, only what the protocol decides upon: start, end and the epoch cache, which together
tell the leader epoch of every offset.

Terms, as in the protocol notes: LEO (log end offset) and HW (high watermark) are exclusive; LESO is the LEO at which a
leader took over. The *maximal ISR* is the committed ISR joined with everybody whom a change that may have been
committed could have added: a change is in doubt from the moment it is sent until an answer or newer metadata settles
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from kio.schema.errors import ErrorCode

from images.broker.epochs import EpochCache
from images.broker.rules import Rules

NO_LEADER = -1
NO_EPOCH = -1


class Role(StrEnum):
    """What a replica is at the moment."""

    LEADER = "leader"
    FOLLOWER = "follower"
    NONE = "none"
    """Not a replica of this partition, or nothing is known yet."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the rules are measured against; the same for the life of a topic's configuration."""

    min_insync_replicas: int
    replica_lag_time_max_ms: int
    rules: Rules


@dataclass(frozen=True, slots=True)
class Follower:
    """What a leader knows of one other replica. Position and broker epoch come from one and the same fetch."""

    id: int
    log_end: int | None = None
    """Where its last accepted fetch began; None until it has been heard in this leadership."""
    broker_epoch: int = -1
    leader_epoch: int = NO_EPOCH
    """The leader epoch in which that fetch was received."""
    caught_up_ms: int = 0
    """The last time at which it is known to have had everything the leader had."""
    fetched_ms: int = 0
    leader_end_then: int = 0
    """The leader's LEO at its last fetch."""
    heard: int = 0
    """The newest question for the latest offset that it has been heard from since (see `confirms_latest`)."""


@dataclass(frozen=True, slots=True)
class Leadership:
    """What a replica holds only while it leads."""

    start: int
    """LESO: the leader epoch start offset."""
    followers: tuple[Follower, ...]
    proposed: tuple[int, ...] | None = None
    """The ISR of the one AlterPartition in flight."""
    doubtful: tuple[int, ...] = ()
    """Members that a request given up on may yet add: they count until the partition epoch moves past it."""
    questions: int = 0
    """Questions for the latest offset asked so far."""

    def follower(self, replica: int) -> Follower | None:
        """What is known of `replica`; None for the leader itself and for strangers."""
        for follower in self.followers:
            if follower.id == replica:
                return follower
        return None


@dataclass(frozen=True, slots=True)
class Partition:
    """The state of one replica."""

    node: int
    log_start: int = 0
    log_end: int = 0
    epochs: EpochCache = field(default_factory=EpochCache)
    high_watermark: int = 0
    role: Role = Role.NONE
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    """The committed ISR, as this replica knows it."""
    leader: int = NO_LEADER
    leader_epoch: int = NO_EPOCH
    partition_epoch: int = -1
    leadership: Leadership | None = None

    @property
    def leading(self) -> Leadership:
        """The leadership; asking a replica that does not lead is an error of the caller."""
        if self.leadership is None:
            raise ValueError("this replica does not lead the partition")
        return self.leadership


# --- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class View:
    """What the controller's metadata says of a partition."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int


@dataclass(frozen=True, slots=True)
class ReplicaFetch:
    """A Fetch of a follower, as far as the protocol looks at it."""

    replica: int
    broker_epoch: int
    leader_epoch: int
    offset: int
    last_fetched_epoch: int
    heard: int = 0
    """The newest question that had been asked when the answer this fetch follows upon was sent."""


@dataclass(frozen=True, slots=True)
class IsrCommitted:
    """The controller committed an ISR change."""

    isr: tuple[int, ...]
    leader_epoch: int
    partition_epoch: int


@dataclass(frozen=True, slots=True)
class IsrRefused:
    """The controller refused an ISR change, or its answer is lost for good.

    `certain`: no earlier attempt at the same change may still be on its way. Without it even a refusal proves
    nothing: an attempt given up on can reach the controller after the refusal and be committed, once the member that
    was refused has become eligible.
    """

    error: ErrorCode
    certain: bool


# --- decisions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BecameLeader:
    """Record (leader epoch → LESO) in the log's epoch cache before serving anything."""

    leader_epoch: int
    start: int


@dataclass(frozen=True, slots=True)
class BecameFollower:
    """Fetch from `leader` in `leader_epoch` from now on (from nobody if there is no leader)."""

    leader: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class Resigned:
    """This node no longer holds a replica."""


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut the log, its epoch cache and its producer state to `to` (exclusive)."""

    to: int
    log_end_before: int
    high_watermark_before: int


@dataclass(frozen=True, slots=True)
class HighWatermarkMoved:
    """The high watermark changed; for a leader, which members' positions allowed it."""

    before: int
    after: int
    quorum: tuple[int, ...] = ()
    positions: tuple[int, ...] = ()
    """The LEO the leader held for each member of `quorum`."""


@dataclass(frozen=True, slots=True)
class ProposeIsr:
    """Send AlterPartition with these members and the broker epoch each was judged by."""

    members: tuple[int, ...]
    broker_epochs: tuple[int, ...]
    leader_epoch: int
    partition_epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class IsrSettled:
    """The ISR change in flight ended: committed, or refused and (perhaps) rolled back."""

    isr: tuple[int, ...]
    committed: bool
    rolled_back: bool = False
    error: ErrorCode = ErrorCode.none


Decision = BecameLeader | BecameFollower | Resigned | Truncate | HighWatermarkMoved | ProposeIsr | IsrSettled


@dataclass(frozen=True, slots=True)
class Step:
    """Where an event leads: the next state, and what the shell must do, in order."""

    partition: Partition
    decisions: tuple[Decision, ...] = ()


# --- metadata ---------------------------------------------------------------------------------------------------------


def apply_view(partition: Partition, view: View, now_ms: int, limits: Limits) -> Step:
    """Take over what the controller says. Metadata older than what is already known changes nothing."""
    if view.leader_epoch < partition.leader_epoch or view.partition_epoch <= partition.partition_epoch:
        return Step(partition)
    known = replace(
        partition,
        replicas=view.replicas,
        isr=view.isr,
        leader=view.leader,
        leader_epoch=view.leader_epoch,
        partition_epoch=view.partition_epoch,
    )
    if partition.node not in view.replicas:
        gone = replace(known, role=Role.NONE, leadership=None)
        return Step(gone, () if partition.role is Role.NONE else (Resigned(),))
    if view.leader != partition.node:
        followed = replace(known, role=Role.FOLLOWER, leadership=None)
        same = partition.role is Role.FOLLOWER and partition.leader_epoch == view.leader_epoch
        if same and partition.leader == view.leader:
            return Step(followed)
        return Step(followed, (BecameFollower(view.leader, view.leader_epoch),))
    if partition.leadership is not None and partition.leader_epoch == view.leader_epoch:
        kept = tuple(
            partition.leadership.follower(replica) or _unknown_follower(replica, view.isr, now_ms)
            for replica in view.replicas
            if replica != partition.node
        )
        settled = partition.leadership.proposed is not None
        leading = replace(known, leadership=replace(partition.leadership, followers=kept, proposed=None, doubtful=()))
        step = _advance_high_watermark(leading, limits)
        return Step(
            step.partition, (IsrSettled(view.isr, committed=True), *step.decisions) if settled else step.decisions
        )
    return _lead(partition, known, now_ms, limits)


def _lead(before: Partition, known: Partition, now_ms: int, limits: Limits) -> Step:
    """Begin a leadership. A leader that is elected again keeps its followers' positions (their high watermark would
    stall otherwise) but counts them as heard in the earlier epoch, which does not suffice to join the ISR."""
    followers = []
    for replica in known.replicas:
        if replica == known.node:
            continue
        follower = before.leadership.follower(replica) if before.leadership is not None else None
        if follower is None:
            follower = _unknown_follower(replica, known.isr, now_ms)
        followers.append(replace(follower, caught_up_ms=now_ms if replica in known.isr else 0, heard=0))
    questions = before.leadership.questions if before.leadership is not None else 0
    leading = replace(
        known,
        role=Role.LEADER,
        epochs=known.epochs.assign(known.leader_epoch, known.log_end),
        leadership=Leadership(start=known.log_end, followers=tuple(followers), questions=questions),
    )
    step = _advance_high_watermark(leading, limits)
    return Step(step.partition, (BecameLeader(leading.leader_epoch, leading.log_end), *step.decisions))


def _unknown_follower(replica: int, isr: tuple[int, ...], now_ms: int) -> Follower:
    return Follower(replica, caught_up_ms=now_ms if replica in isr else 0)


# --- what a leader is asked -------------------------------------------------------------------------------------------


def check_epoch(partition: Partition, requested: int, limits: Limits) -> ErrorCode:
    """Fencing (KIP-320): the error for a request made in leader epoch `requested` (−1: the sender opts out)."""
    if requested == NO_EPOCH or not limits.rules.fence_fetch_epoch or requested == partition.leader_epoch:
        return ErrorCode.none
    if requested < partition.leader_epoch:
        return ErrorCode.fenced_leader_epoch
    return ErrorCode.unknown_leader_epoch


def check_leader(partition: Partition, requested: int, limits: Limits) -> ErrorCode:
    """The error for a request that only the leader answers: first the epoch, then the leadership."""
    error = check_epoch(partition, requested, limits)
    if error is ErrorCode.none and partition.role is not Role.LEADER:
        return ErrorCode.not_leader_or_follower
    return error


def check_append(partition: Partition, acks: int, limits: Limits) -> ErrorCode:
    """The error for an append before anything is written."""
    if partition.role is not Role.LEADER:
        return ErrorCode.not_leader_or_follower
    if acks == -1 and limits.rules.min_isr_gates_append and not _isr_suffices(partition, limits):
        return ErrorCode.not_enough_replicas
    return ErrorCode.none


def appended(partition: Partition, epochs: EpochCache, log_end: int, limits: Limits) -> Step:
    """The leader's log grew to `log_end`."""
    return _advance_high_watermark(replace(partition, epochs=epochs, log_end=log_end), limits)


def readable_end(partition: Partition, limits: Limits) -> int:
    """Where a consumer's read must end."""
    if limits.rules.consumer_reads_below_high_watermark:
        return partition.high_watermark
    return partition.log_end


@dataclass(frozen=True, slots=True)
class FetchStep:
    """A leader's answer to a follower's fetch: an error, a diverging (epoch, end offset), or permission to read."""

    step: Step
    error: ErrorCode = ErrorCode.none
    diverging: tuple[int, int] | None = None


def on_replica_fetch(
    partition: Partition, fetch: ReplicaFetch, active: Mapping[int, int], now_ms: int, limits: Limits
) -> FetchStep:
    """A follower fetches. `active` holds the broker epoch of every broker that metadata says may join an ISR.

    A fetch that is refused or answered with a diverging epoch leaves no trace in the state: its offset is not a
    position in this leader's log.
    """
    error = check_leader(partition, fetch.leader_epoch, limits)
    if error is ErrorCode.none and partition.leading.follower(fetch.replica) is None:
        # The follower may know of a reassignment that this leader has not heard of yet.
        error = ErrorCode.unknown_leader_epoch
    if error is not ErrorCode.none:
        return FetchStep(Step(partition), error)
    if fetch.offset < partition.log_start:
        return FetchStep(Step(partition), ErrorCode.offset_out_of_range)
    if fetch.last_fetched_epoch != NO_EPOCH and limits.rules.truncate_on_divergence:
        epoch, end = partition.epochs.end_offset_for(fetch.last_fetched_epoch, partition.log_end)
        if epoch == NO_EPOCH:
            return FetchStep(Step(partition), ErrorCode.offset_out_of_range)
        if epoch < fetch.last_fetched_epoch or end < fetch.offset:
            return FetchStep(Step(partition), diverging=(epoch, end))
    if fetch.offset > partition.log_end:
        return FetchStep(Step(partition), ErrorCode.offset_out_of_range)
    recorded = _record_fetch(partition, fetch, now_ms)
    joined = _consider_join(recorded, fetch.replica, active, limits)
    moved = _advance_high_watermark(joined.partition, limits)
    return FetchStep(Step(moved.partition, joined.decisions + moved.decisions))


def _record_fetch(partition: Partition, fetch: ReplicaFetch, now_ms: int) -> Partition:
    leadership = partition.leading
    followers = []
    for follower in leadership.followers:
        if follower.id == fetch.replica:
            caught_up_ms = follower.caught_up_ms
            if fetch.offset >= partition.log_end:
                caught_up_ms = max(caught_up_ms, now_ms)
            elif fetch.offset >= follower.leader_end_then:
                # It holds all there was at its previous fetch: it was caught up then, however fast the log grows.
                caught_up_ms = max(caught_up_ms, follower.fetched_ms)
            follower = Follower(
                follower.id,
                fetch.offset,
                fetch.broker_epoch,
                partition.leader_epoch,
                caught_up_ms,
                now_ms,
                partition.log_end,
                max(follower.heard, fetch.heard),
            )
        followers.append(follower)
    return replace(partition, leadership=replace(leadership, followers=tuple(followers)))


def _consider_join(partition: Partition, replica: int, active: Mapping[int, int], limits: Limits) -> Step:
    """Propose a follower for the ISR if its own fetch, just recorded, shows that it holds all that is committed."""
    leadership = partition.leading
    if replica in partition.isr or leadership.proposed is not None or leadership.doubtful:
        return Step(partition)
    follower = leadership.follower(replica)
    if follower is None or follower.log_end is None or follower.log_end < partition.high_watermark:
        return Step(partition)
    rules = limits.rules
    if rules.leso_gates_isr_join and follower.log_end < leadership.start:
        return Step(partition)
    if rules.current_epoch_fetch_gates_isr_join and follower.leader_epoch != partition.leader_epoch:
        return Step(partition)
    if rules.fenced_stay_out_of_isr and active.get(replica) != follower.broker_epoch:
        return Step(partition)
    members = tuple(member for member in partition.replicas if member in partition.isr or member == replica)
    return _propose(partition, members, active, "expand")


def _propose(partition: Partition, members: tuple[int, ...], active: Mapping[int, int], reason: str) -> Step:
    leadership = partition.leading
    epochs = []
    for member in members:
        follower = leadership.follower(member)
        heard = follower is not None and follower.broker_epoch != -1
        # A member that has not fetched in this leadership is vouched for by the metadata that made it a member.
        epochs.append(follower.broker_epoch if follower is not None and heard else active.get(member, -1))
    return Step(
        replace(partition, leadership=replace(leadership, proposed=members)),
        (ProposeIsr(members, tuple(epochs), partition.leader_epoch, partition.partition_epoch, reason),),
    )


def on_tick(partition: Partition, active: Mapping[int, int], now_ms: int, limits: Limits) -> Step:
    """Time passes: drop members that have lagged too long from the ISR, settle a change left in doubt."""
    leadership = partition.leadership
    if leadership is None or leadership.proposed is not None:
        return Step(partition)
    lagging = [
        follower.id
        for follower in leadership.followers
        if follower.id in partition.isr
        and follower.log_end != partition.log_end
        and now_ms - follower.caught_up_ms > limits.replica_lag_time_max_ms
    ]
    if lagging:
        members = tuple(member for member in partition.isr if member not in lagging)
        return _propose(partition, members, active, "shrink")
    if leadership.doubtful:
        # Committing the ISR as it is moves the partition epoch past every request that is still on its way.
        return _propose(partition, partition.isr, active, "settle")
    return Step(partition)


def on_isr_committed(partition: Partition, answer: IsrCommitted, limits: Limits) -> Step:
    """The controller committed a change. An answer of another leadership, or older than metadata, is ignored."""
    leadership = partition.leadership
    if (
        leadership is None
        or answer.leader_epoch != partition.leader_epoch
        or answer.partition_epoch <= partition.partition_epoch
    ):
        return Step(partition)
    committed = replace(
        partition,
        isr=answer.isr,
        partition_epoch=answer.partition_epoch,
        leadership=replace(leadership, proposed=None, doubtful=()),
    )
    step = _advance_high_watermark(committed, limits)
    return Step(step.partition, (IsrSettled(answer.isr, committed=True), *step.decisions))


def on_isr_refused(partition: Partition, proposal: ProposeIsr, answer: IsrRefused) -> Step:
    """The controller refused. Only INELIGIBLE_REPLICA to the sole attempt proves that nothing was changed; in every
    other case the leader stays on the maximal ISR until metadata, or a later commit, settles it."""
    leadership = partition.leadership
    if (
        leadership is None
        or leadership.proposed != proposal.members
        or partition.leader_epoch != proposal.leader_epoch
        or partition.partition_epoch != proposal.partition_epoch
    ):
        return Step(partition)
    if answer.error is not ErrorCode.ineligible_replica:
        return Step(partition, (IsrSettled(partition.isr, committed=False, error=answer.error),))
    doubtful = leadership.doubtful
    if not answer.certain:
        added = (member for member in proposal.members if member not in partition.isr)
        doubtful = tuple(sorted({*doubtful, *added}))
    settled = replace(partition, leadership=replace(leadership, proposed=None, doubtful=doubtful))
    return Step(settled, (IsrSettled(partition.isr, committed=False, rolled_back=answer.certain, error=answer.error),))


# --- the high watermark -----------------------------------------------------------------------------------------------


def maximal_isr(partition: Partition, rules: Rules) -> tuple[int, ...]:
    """Everybody the controller may count among the in-sync replicas by now; the committed ISR if the rule is off."""
    leadership = partition.leading
    if not rules.maximal_isr or (leadership.proposed is None and not leadership.doubtful):
        return partition.isr
    return tuple(sorted({*partition.isr, *(leadership.proposed or ()), *leadership.doubtful}))


def _isr_suffices(partition: Partition, limits: Limits) -> bool:
    return len(partition.isr) >= min(limits.min_insync_replicas, len(partition.replicas))


def _advance_high_watermark(partition: Partition, limits: Limits) -> Step:
    if limits.rules.min_isr_gates_high_watermark and not _isr_suffices(partition, limits):
        return Step(partition)
    leadership = partition.leading
    quorum = maximal_isr(partition, limits.rules)
    positions = []
    for member in quorum:
        if member == partition.node:
            positions.append(partition.log_end)
            continue
        follower = leadership.follower(member)
        if follower is None or follower.log_end is None:
            return Step(partition)
        positions.append(follower.log_end)
    candidate = min(positions, default=partition.high_watermark)
    if candidate <= partition.high_watermark:
        return Step(partition)
    moved = HighWatermarkMoved(partition.high_watermark, candidate, quorum, tuple(positions))
    return Step(replace(partition, high_watermark=candidate), (moved,))


# --- the latest offset ------------------------------------------------------------------------------------------------


def ask_latest(partition: Partition) -> tuple[Partition, int]:
    """A client asks for the latest offset: the state that remembers, and the number of the question."""
    leadership = partition.leading
    number = leadership.questions + 1
    return replace(partition, leadership=replace(leadership, questions=number)), number


def confirms_latest(partition: Partition, question: int, limits: Limits) -> bool:
    """Whether the high watermark may be told in answer to `question`.

    Below the LESO the local HW may be stale (RC §6.4.2). And a leader that was deposed without knowing it holds an old
    one: a later leader may have acknowledged more. Such a leader was elected from the ISR or ELR, and acknowledges only
    with all of its own ISR; so once every member of the maximal ISR has fetched, in this epoch, upon an answer sent
    after the question, none of them had left this leadership when the question came, and no later leader can have
    acknowledged anything by then. With fewer than min.insync.replicas in the ISR the election may go to an ELR member
    that this leader does not know of, so nothing is told.
    """
    leadership = partition.leadership
    if leadership is None:
        return False
    if limits.rules.applied_high_watermark and partition.high_watermark < leadership.start:
        return False
    if not limits.rules.latest_confirmed_by_isr:
        return True
    if not _isr_suffices(partition, limits):
        return False
    members = maximal_isr(partition, limits.rules)
    return all(follower.heard >= question for follower in leadership.followers if follower.id in members)


# --- following --------------------------------------------------------------------------------------------------------


def still_awaited(partition: Partition, sent_offset: int, sent_epoch: int, limits: Limits) -> bool:
    """Whether the answer to a fetch sent at (`sent_offset`, `sent_epoch`) still means anything to this follower."""
    if partition.role is not Role.FOLLOWER:
        return False
    if not limits.rules.ignore_stale_fetch_answer:
        return True
    return partition.log_end == sent_offset and partition.leader_epoch == sent_epoch


def on_diverging(partition: Partition, epoch: int, end: int) -> Step:
    """The leader's log parts from this one at or before (`epoch`, `end`): cut back to the last point both may share.

    When this replica does not know `epoch` either, the cut goes to the end of its next lower epoch and the next fetch
    asks again; epochs decrease strictly, so any two logs converge.
    """
    own_epoch, own_end = partition.epochs.end_offset_for(epoch, partition.log_end)
    if own_epoch == NO_EPOCH:
        to = end
    elif own_epoch != epoch:
        to = own_end
    else:
        to = min(own_end, end)
    return truncate(partition, to)


def truncate(partition: Partition, to: int) -> Step:
    """Cut the log to `to`, or to its end if that is lower; the high watermark comes down with it."""
    to = max(min(to, partition.log_end), partition.log_start)
    cut = replace(
        partition,
        log_end=to,
        epochs=partition.epochs.truncate_end(to),
        high_watermark=min(partition.high_watermark, to),
    )
    return Step(cut, (Truncate(to, partition.log_end, partition.high_watermark),))


def replicated(partition: Partition, epochs: EpochCache, log_end: int) -> Partition:
    """The follower's log grew to `log_end`."""
    return replace(partition, epochs=epochs, log_end=log_end)


def on_leader_high_watermark(partition: Partition, leader_high_watermark: int) -> Step:
    """A follower takes over the leader's high watermark, up to its own LEO. It may go down (RC §6.4)."""
    after = min(leader_high_watermark, partition.log_end)
    if after == partition.high_watermark or after < 0:
        return Step(partition)
    moved = HighWatermarkMoved(partition.high_watermark, after)
    return Step(replace(partition, high_watermark=after), (moved,))
