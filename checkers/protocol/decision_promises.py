"""Promises about what the controllers make of a change, held against a reference: the leader, ISR, ELR and
LastKnownELR that follow from the state before. See `checkers.protocol.checker`.

The reference knows a partition's state before a change, the brokers that may lead after it, and why it was made. It
takes from the change itself the target of a new reassignment, the minimum, the ISR that a leader proposed and the
replica that an unclean recovery chose; all else follows:

leader        the preferred replica upon a preferred election, if it is in the ISR and may lead; else the leader before;
              else the first of the ISR; if that is empty the first of the ELR, which becomes the ISR; if that is empty,
              too, the last known leader, with that strategy; else any replica, where unclean elections are allowed,
              or upon the request of one
ELR           empty while the ISR has min.isr members, and after an election that may lose records; else whoever was in
              ISR or ELR, is a replica, is not in the ISR now, and has not just registered after an unclean shutdown
replicas      as before, but where a reassignment begins, is cancelled, or completes: once every added replica is in the
              ISR and the target has min.isr members there, one of which may lead
epochs        the partition epoch moves up by one; the leader epoch, too, where the leader is another one or a replica
              goes, and else not at all
LastKnownELR  empty where the ELR must be; else whoever has left the ELR since, or with the strategy `last-known-leader`
              the leader that left an empty ISR behind. The strategy is that of the topic at the time; where it becomes
              `last-known-leader`, whoever is in the ELR is taken for the last leader
strategy      becomes one that finds every committed record only where ISR and ELR have min.isr members: before, nobody
              may have recorded who left the ELR

Where the trace says nothing of a replica's broker, nothing is promised of the partition. A change that a successor has
found committed is compared where it is known why it was made: a broker left or came. After every change of a broker no
partition is led by, or has in its ISR, one that may not lead, and none is without a leader that may have one. A broker
that shuts down is let go by a change of its own, after that which has moved its leaderships.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from checkers.decided_metadata import (
    NO_LEADER,
    OF_BROKERS,
    OF_PARTITIONS,
    OF_TOPICS,
    DecidedChange,
    DecidedConfigurations,
    DecidedEvent,
    DecidedMetadata,
    DecidedPartition,
    decided_changes,
)
from checkers.evidence import CheckSettings
from checkers.fault_model import LAST_KNOWN_LEADER_ELECTED
from checkers.protocol.batches import UNKNOWN
from checkers.protocol.state import ClusterState, names
from checkers.unclean_elections import UNCLEAN_ELECTION, UNCLEAN_RECOVERY

_LAST_KNOWN_LEADER = "last-known-leader"
_FINDING_ALL = ("balanced", "manual")
"""Strategies under which the LastKnownELR has everybody who left the ELR."""
_OF_ISR_BEFORE = frozenset({"elected", "configured", "preferred_election", UNCLEAN_ELECTION, LAST_KNOWN_LEADER_ELECTED})
"""Reasons of changes that keep the ISR, unless they elect."""
_OF_REPLICAS = frozenset({"reassignment", "reassignment_cancelled"})
_InForce = Callable[[str, int], CheckSettings]
"""The settings that a topic has in the metadata up to an offset."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The state of a partition after a change, beside epochs and replicas."""

    leader: int
    isr: frozenset[int]
    elr: frozenset[int]
    last_known_elr: frozenset[int]


@dataclass(frozen=True, slots=True)
class _Elected:
    leader: int
    isr: frozenset[int]
    may_lose: bool = False


@dataclass(frozen=True, slots=True)
class _Situation:
    """A change of one partition: what it starts from."""

    before: DecidedPartition
    after: DecidedPartition
    last_known: frozenset[int]
    """The LastKnownELR of before, for the strategy of after."""
    reason: str
    leaving: int | None
    """The broker that is fenced, shuts down or registers in this change."""
    unclean: bool
    """Whether that has registered after an unclean shutdown."""
    eligible: Callable[[int], bool]
    settings: CheckSettings
    """Those in force."""

    def in_order(self, members: Iterable[int]) -> list[int]:
        """Those that are replicas after the change, in order of preference."""
        wanted = frozenset(members)
        return [replica for replica in self.after.replicas if replica in wanted]

    def kept(self, members: frozenset[int]) -> frozenset[int]:
        """Those of before that are still replicas."""
        return members & frozenset(self.after.replicas)


def check_decisions(
    cluster: ClusterState,
    trace: pa.Table,
    settings: CheckSettings,
    configurations: DecidedConfigurations,
    *,
    ended: bool,
) -> None:
    """After the last event: every change of a partition, in the order of the metadata log."""

    def in_force(topic: str, offset: int) -> CheckSettings:
        return settings.as_configured(configurations.at(topic, offset))

    metadata, cut = DecidedMetadata(), UNKNOWN if ended else _perhaps_cut(trace)
    changes = decided_changes(trace)
    for change in changes:
        # One that others follow is whole: a controller that was deposed traces it late, after its successor.
        if change.offset == cut and change is changes[-1]:
            continue
        _check_let_go(cluster, metadata, change)
        _check_strategies(cluster, metadata, change, in_force)
        metadata.apply_to_brokers(change)
        for each in change.events:
            before = metadata.partitions.get(each.place)
            if each.event.kind == "partition_changed":
                _check_change(cluster, metadata, change, each, before, in_force, is_whole=ended)
            metadata.apply(each)
        _check_unchanged(cluster, metadata, change, in_force)
        _check_all(cluster, metadata, change, in_force)


def _perhaps_cut(trace: pa.Table) -> int:
    """The offset of the change with which a trace ends: where the run was killed, lines of it may be missing. UNKNOWN
    for a trace that ends otherwise."""
    last_seq = pc.max(trace.column("seq")).as_py()
    if last_seq is None or last_seq < 0:
        return UNKNOWN
    last = trace.filter(pc.equal(trace.column("seq"), last_seq)).slice(0, 1).to_pylist()[0]
    return int(last["offset"]) if last["kind"] in (*OF_BROKERS, *OF_PARTITIONS, *OF_TOPICS) else UNKNOWN


def _check_let_go(cluster: ClusterState, metadata: DecidedMetadata, change: DecidedChange) -> None:
    """A broker that shuts down is let go once it leads nothing: the change before has moved its leaderships."""
    for each in change.of_brokers:
        event, reason = each.event, each.detail.get("reason")
        if event.kind != "broker_fenced" or reason != "controlled_shutdown" or each.taken_over:
            continue
        for place, decided in sorted(metadata.partitions.items()):
            partition = cluster.partitions.get(place)
            if partition is not None and decided.leader == event.broker:
                partition.report(
                    event,
                    "let-go-while-leading",
                    UNKNOWN,
                    f"{event.node} let b{event.broker} go, which shuts down, {event.at}",
                    f"{place[0]}-{place[1]} before: {_described(decided)}: it is to go once it leads nothing",
                )


def _check_change(
    cluster: ClusterState,
    metadata: DecidedMetadata,
    change: DecidedChange,
    each: DecidedEvent,
    before: DecidedPartition | None,
    in_force: _InForce,
    *,
    is_whole: bool,
) -> None:
    after, reason = DecidedPartition.of(each.event, each.detail), str(each.detail.get("reason"))
    if not after.replicas or not metadata.knows(after.replicas):
        return
    if reason == "created":
        active = [replica for replica in after.replicas if metadata.is_active(replica)]
        leader = active[0] if active else NO_LEADER
        expected = _Outcome(leader, frozenset(active), frozenset(), frozenset())
        _compare(cluster, each, None, after, expected)
        return
    if before is None or after.partition_epoch <= before.partition_epoch:
        return
    if after.partition_epoch > before.partition_epoch + 1:
        if is_whole:
            line = f"no decision on partition epoch {before.partition_epoch + 1} is in the metadata log"
            _report(cluster, each, "partition-epoch-skipped", before, after, line)
        return
    moves = after.leader != before.leader or not frozenset(before.replicas) <= frozenset(after.replicas)
    if after.leader_epoch > before.leader_epoch + moves:
        line = f"leader epoch {before.leader_epoch + moves} follows, and it is {after.leader_epoch}"
        _report(cluster, each, "leader-epoch-skipped", before, after, line)
    others = [other for other in change.of_brokers if other.event.kind != "broker_unfenced"]
    leaving = others[0].event.broker if others else None
    came = any(other.event.kind == "broker_unfenced" for other in change.of_brokers)
    if each.taken_over and reason != LAST_KNOWN_LEADER_ELECTED:
        if leaving is None and not came:
            return
        reason = "elected" if came else reason
    settings, earlier = (in_force(each.event.topic, offset) for offset in (change.offset, change.offset - 1))
    situation = _Situation(
        before,
        after,
        _last_known(before, earlier.unclean_recovery, settings.unclean_recovery),
        reason,
        leaving,
        _unclean(others, after),
        lambda replica: replica != leaving and metadata.is_active(replica),
        settings,
    )
    wrong = _wrong_replicas(situation)
    if wrong:
        _report(cluster, each, "replicas-otherwise", before, after, wrong)
        return
    _compare(cluster, each, before, after, _outcome(situation))


def _check_strategies(
    cluster: ClusterState, metadata: DecidedMetadata, change: DecidedChange, in_force: _InForce
) -> None:
    """A strategy that finds every committed record begins where enough replicas are known to hold them all."""
    for configured, earlier, settings in _configurations(change, in_force):
        before, strategy = earlier.unclean_recovery, settings.unclean_recovery
        if before in _FINDING_ALL or strategy not in _FINDING_ALL:
            continue
        minimum = int(configured.detail["config"]["min.insync.replicas"])
        for place, state in _partitions_of(metadata, configured):
            partition = cluster.partitions.get(place)
            complete, needed = state.isr | state.elr, min(minimum, len(state.replicas))
            if partition is not None and len(complete) < needed:
                partition.report(
                    configured.event,
                    "strategy-changed-early",
                    UNKNOWN,
                    f"unclean.recovery.strategy became {strategy}, and was {before}, {configured.event.at}",
                    f"{place[0]}-{place[1]}: {_described(state)}",
                    f"of replicas that hold every committed record {needed} are needed, and no others are known",
                )


def _check_unchanged(
    cluster: ClusterState, metadata: DecidedMetadata, change: DecidedChange, in_force: _InForce
) -> None:
    """Partitions that a change of the strategy leaves as they are: nothing follows from it for these."""
    changed = {each.place for each in change.events}
    for configured, earlier, settings in _configurations(change, in_force):
        if (earlier.unclean_recovery == _LAST_KNOWN_LEADER) == (settings.unclean_recovery == _LAST_KNOWN_LEADER):
            continue
        for place, state in _partitions_of(metadata, configured):
            if place in changed or not metadata.knows(state.replicas):
                continue
            last_known = _last_known(state, earlier.unclean_recovery, settings.unclean_recovery)
            situation = _Situation(state, state, last_known, "configured", None, False, metadata.is_active, settings)
            event = configured.event._replace(topic=place[0], partition=place[1], partition_epoch=state.partition_epoch)
            unchanged = DecidedEvent(event, {"reason": "configured without a change"})
            _compare(cluster, unchanged, state, state, _outcome(situation))


def _configurations(
    change: DecidedChange, in_force: _InForce
) -> Iterator[tuple[DecidedEvent, CheckSettings, CheckSettings]]:
    """Every configuration of a topic in a change, with the settings in force before it and after."""
    for configured in change.configured:
        topic = configured.detail["name"]
        yield configured, in_force(topic, change.offset - 1), in_force(topic, change.offset)


def _partitions_of(
    metadata: DecidedMetadata, configured: DecidedEvent
) -> list[tuple[tuple[str, int], DecidedPartition]]:
    topic = configured.detail["name"]
    return sorted(each for each in metadata.partitions.items() if each[0][0].partition("#")[0] == topic)


def _last_known(before: DecidedPartition, earlier: str, strategy: str) -> frozenset[int]:
    """The LastKnownELR of before, under a strategy that may have been another one earlier."""
    begins = strategy == _LAST_KNOWN_LEADER != earlier
    return before.elr if begins and before.elr else before.last_known_elr


def _wrong_replicas(situation: _Situation) -> str:
    """The error in the replicas after a change, in words; empty without one."""
    before, after, isr = situation.before, situation.after, situation.after.isr
    moving = bool(before.adding | before.removing)
    originals = [replica for replica in before.replicas if replica not in before.adding]
    target = tuple(replica for replica in before.replicas if replica not in before.removing)
    whole = (before.replicas, before.adding, before.removing)
    ended = (frozenset[int](), frozenset[int]())
    has = (after.replicas, after.adding, after.removing)
    if situation.reason == "reassignment_cancelled":
        return "" if has == (tuple(originals), *ended) else f"cancelled is a reassignment of {_listed(originals)}"
    if situation.reason == "reassignment":
        return _wrong_start(situation, frozenset(originals))
    if moving and has == (target, *ended):
        return ""
    if has != whole:
        return f"nothing but {_listed(before.replicas)} follows, or {_listed(target)} in the end"
    asked = situation.reason == "alter_partition" or isr <= before.isr  # who is elected joins the ISR after that
    if moving and asked and _completes(situation, target, before.adding):
        return f"the reassignment to {_listed(target)} is complete: all that it adds are in the ISR"
    return ""


def _completes(situation: _Situation, target: Sequence[int], adding: frozenset[int]) -> bool:
    """Whether a reassignment to `target` is complete with the ISR after the change."""
    after = situation.after
    in_sync = [replica for replica in target if replica in after.isr]
    enough = len(in_sync) >= min(after.min_isr, len(target))
    return adding <= after.isr and enough and any(map(situation.eligible, in_sync))


def _wrong_start(situation: _Situation, originals: frozenset[int]) -> str:
    after = situation.after
    if len(set(after.replicas)) < len(after.replicas):
        return "a replica stands twice"
    if not after.adding | after.removing:
        return ""  # complete at once, or another order
    leaving = frozenset(after.replicas[len(after.replicas) - len(after.removing) :])
    if frozenset(after.replicas) - after.adding != originals or leaving != after.removing or after.adding & originals:
        return (
            f"a reassignment of {names(originals)} begins: added {names(after.adding)}, to go {names(after.removing)}"
        )
    target = tuple(replica for replica in after.replicas if replica not in after.removing)
    if after.isr <= situation.before.isr and _completes(situation, target, after.adding):
        return f"the reassignment to {_listed(target)} is complete at once: it adds nobody who is not in the ISR"
    return ""


def _unclean(others: list[DecidedEvent], after: DecidedPartition) -> bool:
    registered = [other for other in others if other.event.kind == "broker_registered"]
    if not registered:
        return False
    clean = registered[0].detail.get("clean")
    return clean is False or (clean is None and registered[0].event.broker not in after.elr)


def _outcome(situation: _Situation) -> _Outcome:
    before, after = situation.before, situation.after
    gone = frozenset({situation.leaving}) if situation.leaving is not None else frozenset[int]()
    last_known = situation.last_known & frozenset(after.replicas)
    if situation.reason == UNCLEAN_RECOVERY:
        keeps = after.leader in last_known and after.min_isr > 1
        kept = last_known - {after.leader} if keeps else frozenset[int]()
        return _Outcome(after.leader, frozenset({after.leader}), frozenset(), kept)
    isr = situation.kept(before.isr) - gone if gone or situation.reason in _OF_ISR_BEFORE | _OF_REPLICAS else after.isr
    candidates = situation.kept(before.isr | before.elr)
    elr = candidates - isr - (gone if situation.unclean else frozenset[int]())
    elected = _elected(situation, isr, elr, last_known)
    if elected.may_lose or len(elected.isr) >= after.min_isr:
        return _Outcome(elected.leader, elected.isr, frozenset(), frozenset())
    elr -= elected.isr
    if situation.settings.unclean_recovery != _LAST_KNOWN_LEADER:
        return _Outcome(elected.leader, elected.isr, elr, (candidates | last_known) - elected.isr - elr)
    if elected.leader != NO_LEADER:
        last_known = frozenset()
    elif before.leader != NO_LEADER:
        last_known = frozenset({before.leader}) & frozenset(after.replicas)
    return _Outcome(elected.leader, elected.isr, elr, last_known)


def _elected(situation: _Situation, isr: frozenset[int], elr: frozenset[int], last_known: frozenset[int]) -> _Elected:
    before, after, eligible, settings = situation.before, situation.after, situation.eligible, situation.settings
    wanted = [after.replicas[0]] if situation.reason == "preferred_election" else []
    for replica in [*wanted, before.leader, *situation.in_order(isr)]:
        if replica in isr and eligible(replica):
            return _Elected(replica, isr)
    from_elr = next(filter(eligible, situation.in_order(elr)), None) if not isr else None
    if from_elr is not None:
        return _Elected(from_elr, frozenset({from_elr}))
    if settings.unclean_recovery == _LAST_KNOWN_LEADER and not isr and not elr and len(last_known) == 1:
        (last,) = last_known
        if eligible(last):
            return _Elected(last, last_known, may_lose=True)
    any_replica = next(filter(eligible, after.replicas), None)
    requested = situation.reason == UNCLEAN_ELECTION
    permitted = settings.unclean_at_once or (settings.unclean_election and after.leader != NO_LEADER)
    if any_replica is not None and (requested or permitted):
        return _Elected(any_replica, frozenset({any_replica}), may_lose=True)
    return _Elected(NO_LEADER, isr)


def _compare(
    cluster: ClusterState,
    each: DecidedEvent,
    before: DecidedPartition | None,
    after: DecidedPartition,
    expected: _Outcome,
) -> None:
    told = [
        ("leader-otherwise", _leader(after.leader), _leader(expected.leader), after.leader != expected.leader),
        ("isr-otherwise", f"ISR {names(after.isr)}", f"ISR {names(expected.isr)}", after.isr != expected.isr),
        ("elr-otherwise", f"ELR {names(after.elr)}", f"ELR {names(expected.elr)}", after.elr != expected.elr),
        (
            "last-known-elr-otherwise",
            f"LastKnownELR {names(after.last_known_elr)}",
            f"LastKnownELR {names(expected.last_known_elr)}",
            after.last_known_elr != expected.last_known_elr,
        ),
    ]
    for kind, decided, follows, differs in told:
        if differs:
            _report(cluster, each, kind, before, after, f"{decided}, and from the state before follows {follows}")
            return  # the others follow from it


def _report(
    cluster: ClusterState,
    each: DecidedEvent,
    kind: str,
    before: DecidedPartition | None,
    after: DecidedPartition,
    line: str,
) -> None:
    event, partition = each.event, cluster.partitions.get(each.place)
    if partition is not None:
        was = "there was no such partition" if before is None else f"before: {_described(before)}"
        decided = (
            f"the controllers decided on partition epoch {event.partition_epoch} {event.at} "
            f"({each.detail.get('reason')}): {_described(after)}"
        )
        partition.report(event, kind, UNKNOWN, decided, was, line)


def _check_all(cluster: ClusterState, metadata: DecidedMetadata, change: DecidedChange, in_force: _InForce) -> None:
    """The state of every partition after a change of a broker, and of each that was changed."""
    if any(True for _ in change.of_brokers):
        places = set(metadata.partitions)
    else:
        places = {each.place for each in change.events if each.place in metadata.partitions}
    event = change.events[-1].event
    for place in sorted(places):
        decided, partition = metadata.partitions[place], cluster.partitions.get(place)
        if partition is None or not decided.replicas or not metadata.knows(decided.replicas):
            continue
        state = f"{place[0]}-{place[1]} after the change that ends at {change.offset} {event.at}: {_described(decided)}"
        idle = sorted(
            member for member in decided.isr | {decided.leader} - {NO_LEADER} if not metadata.is_active(member)
        )
        if idle:
            line = f"{names(frozenset(idle))}: fenced, or shutting down"
            partition.report(event, "idle-broker-kept", UNKNOWN, state, line)
        able = _able(decided, metadata, in_force(place[0], change.offset))
        if decided.leader == NO_LEADER and able:
            line = f"{names(able)} may lead: unfenced, and not shutting down"
            partition.report(event, "left-without-leader", UNKNOWN, state, line)


def _able(decided: DecidedPartition, metadata: DecidedMetadata, settings: CheckSettings) -> frozenset[int]:
    """Replicas that can be elected without an unclean recovery or a request of an administrator."""
    candidates = decided.isr or decided.elr
    if not candidates and settings.unclean_recovery == _LAST_KNOWN_LEADER and len(decided.last_known_elr) == 1:
        candidates = decided.last_known_elr
    able = frozenset(filter(metadata.is_active, candidates))
    return able or frozenset(filter(metadata.is_active, decided.replicas if settings.unclean_at_once else ()))


def _leader(leader: int) -> str:
    return f"leader b{leader}" if leader != NO_LEADER else "no leader"


def _described(partition: DecidedPartition) -> str:
    return (
        f"{_leader(partition.leader)}, ISR {names(partition.isr)}, ELR {names(partition.elr)}, LastKnownELR "
        f"{names(partition.last_known_elr)}, replicas {_listed(partition.replicas)}, min.isr {partition.min_isr}"
    )


def _listed(replicas: Iterable[int]) -> str:
    return ", ".join(f"b{replica}" for replica in replicas)
