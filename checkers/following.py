"""Follows a protocol trace: the state of every partition after every event, and each promise broken on the way.

What the promises are, and why they are judged as they are, is in `checkers.protocol`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import pyarrow as pa

from checkers.deletions import OWN_DECISIONS, Asked
from checkers.evidence import CheckSettings

UNLIMITED = -1
UNKNOWN = -1
"""The leader epoch of a record that the trace does not tell of. It is never held against anybody."""

_COLUMNS = (
    "time_ns", "node", "kind", "topic", "partition", "leader", "leader_epoch", "partition_epoch", "broker",
    "offset", "log_end", "high_watermark", "members", "detail",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Event:
    """One row of the trace."""

    time_ns: int
    node: str
    kind: str
    topic: str
    partition: int
    leader: int
    leader_epoch: int
    partition_epoch: int
    broker: int
    offset: int
    log_end: int
    high_watermark: int
    members: list[int]
    detail: str

    def details(self) -> dict[str, object]:
        """The event's further facts."""
        found: dict[str, object] = json.loads(self.detail) if self.detail else {}
        return found


@dataclass(frozen=True, slots=True)
class Breach:
    """One promise broken."""

    kind: str
    offset: int
    time_ns: int
    since_ns: int
    """When what should have been kept was committed."""
    lines: tuple[str, ...]


@dataclass(slots=True)
class Followed:
    """One partition, as far as the trace has been followed."""

    logs: dict[str, list[int]] = field(default_factory=dict)
    """Leader epoch by offset, of each node's log."""
    committed: list[int] = field(default_factory=list)
    """Leader epoch by offset, of what was ever below a leader's high watermark."""
    committed_ns: list[int] = field(default_factory=list)
    committed_in: list[int] = field(default_factory=list)
    """The leader epoch of the leader whose high watermark passed it."""
    leaders: dict[int, str] = field(default_factory=dict)
    """Who led in each leader epoch."""
    leader: int = -1
    leader_epoch: int = -1
    isr: frozenset[int] | None = None
    """As the controller last decided; None before it has."""
    elr: frozenset[int] = frozenset()
    last_known_elr: frozenset[int] = frozenset()
    min_isr: int = 1
    """As the controller last decided; a leader goes by what held at the partition epoch that it knows."""
    min_isr_at: dict[int, int] = field(default_factory=dict)
    """From which partition epoch on which minimum held, in the order of the epochs."""
    starts: dict[str, int] = field(default_factory=dict)
    """Leader epoch start offset of each node's latest leadership."""
    high_watermarks: dict[str, int] = field(default_factory=dict)
    """Of each node, in its latest leadership."""
    log_starts: dict[str, int] = field(default_factory=dict)
    """Where each node's log starts; at 0 unless it is in here."""
    moved_start: int = 0
    """The greatest log start that any node has decided on by itself, not after its leader."""
    asked: Asked | None = None
    """What administrators asked to have deleted; None where nobody may ask."""
    excluded: set[int] = field(default_factory=set)
    """Registered after an unclean shutdown, and in no ISR since."""
    shrunk: set[str] = field(default_factory=set)
    """Nodes whose log came back shorter than it was, and that have joined no ISR since."""
    unsettled: bool = False
    """Something happened in this instant that candidates are judged after."""
    breaches: list[Breach] = field(default_factory=list)
    events: int = 0
    elections: int = 0
    moves: int = 0
    gaps: int = 0

    def log(self, node: str) -> list[int]:
        """The log of `node`."""
        return self.logs.setdefault(node, [])

    def first_missing(self, node: str) -> int | None:
        """The least committed offset that the log of `node` should hold, being above its start, and does not."""
        log, count, start = self.log(node), len(self.committed), self.log_starts.get(node, 0)
        committed = self.committed[start:] if start else self.committed
        if log[start:count] == committed:
            return None
        missing = _differs(log[start:count], committed)
        return None if missing is None else start + missing


@dataclass(slots=True)
class Cluster:
    """Every partition, and what concerns all of them."""

    partitions: dict[tuple[str, int], Followed] = field(default_factory=dict)
    between_lives: set[str] = field(default_factory=set)
    """Nodes that started and have not registered since."""


def _differs(one: list[int], other: list[int]) -> int | None:
    """The first place at which two logs differ, one that is too short included."""
    for place, (ours, theirs) in enumerate(zip(one, other, strict=False)):
        if ours != theirs and UNKNOWN not in (ours, theirs):
            return place
    return min(len(one), len(other)) if len(one) < len(other) else None


def follow(trace: pa.Table, settings: CheckSettings, asked: Mapping[int, Asked] = MappingProxyType({})) -> Cluster:
    """The cluster after the last event of `trace` (schema TRACE). `asked` has, by partition number, what administrators
    asked to have deleted."""
    cluster = Cluster()
    now_ns = -1
    for event in _events(trace):
        if event.time_ns != now_ns:
            _settle(cluster, now_ns)
            now_ns = event.time_ns
        if event.kind == "node_started":
            cluster.between_lives.add(event.node)
        elif event.kind == "broker_registered":
            _registered(cluster, event)
        elif event.topic:
            partition = cluster.partitions.get((event.topic, event.partition))
            if partition is None:
                partition = cluster.partitions[event.topic, event.partition] = Followed()
                if not event.topic.startswith("__"):
                    partition.asked = asked.get(event.partition, Asked())
            partition.events += 1
            handler = _HANDLERS.get(event.kind)
            if handler is not None:
                handler(partition, event, settings)
    _settle(cluster, now_ns)
    return cluster


def _events(trace: pa.Table) -> Iterator[Event]:
    ordered = trace.sort_by("seq")
    for batch in ordered.to_batches(max_chunksize=65_536):
        for row in zip(*(batch.column(name).to_pylist() for name in _COLUMNS), strict=True):
            yield Event(*row)


def _at(event: Event) -> str:
    return f"at {event.time_ns / 1e9:.6f} s"


def _breach(partition: Followed, event: Event, kind: str, offset: int, *lines: str, time_ns: int | None = None) -> None:
    since_ns = partition.committed_ns[offset] if 0 <= offset < len(partition.committed_ns) else UNKNOWN
    partition.breaches.append(Breach(kind, offset, event.time_ns if time_ns is None else time_ns, since_ns, lines))


# ---- logs ------------------------------------------------------------------------------------------------------------


def _appended(partition: Followed, event: Event, _: CheckSettings) -> None:
    log = partition.log(event.node)
    if event.offset != len(log):
        partition.gaps += 1
        _resize(log, event.offset)
    log.extend([event.leader_epoch] * (event.log_end - event.offset))


def _truncated(partition: Followed, event: Event, _: CheckSettings) -> None:
    _resize(partition.log(event.node), event.offset)
    start = event.details().get("log_start")
    if isinstance(start, int):
        _starts_at(partition, event, start, "began anew")


def _log_start(partition: Followed, event: Event, settings: CheckSettings) -> None:
    detail = event.details()
    reason = str(detail.get("reason"))
    moved = f"{event.node} moved its log's start {detail.get('before')} → {event.offset} {_at(event)} ({reason})"
    committed = len(partition.committed)
    if event.offset > committed:
        above = f"no high watermark had passed {committed}, so what was deleted above may be acknowledged later"
        _breach(partition, event, "log-start-uncommitted", committed, moved, above)
    if reason in OWN_DECISIONS:
        bound = partition.asked.bound if partition.asked is not None else 0
        limits = {"retention_ms": settings.retention_ms, "retention_bytes": settings.retention_bytes}
        if limits.get(reason, UNLIMITED) == UNLIMITED and (reason != "delete_records" or event.offset > bound):
            wanted = f"deletion below {bound} had been asked for" if reason == "delete_records" else "nothing limits it"
            _breach(partition, event, "log-start-unasked", bound, moved, wanted)
        partition.moved_start = max(partition.moved_start, event.offset)
    _starts_at(partition, event, event.offset, f"moved its start ({reason})")


def _starts_at(partition: Followed, event: Event, start: int, how: str) -> None:
    """The log of a node starts at `start` from now on, which somebody must have decided before."""
    if start > max(partition.moved_start, partition.log_starts.get(event.node, 0)):
        _breach(
            partition,
            event,
            "log-start-unfounded",
            partition.moved_start,
            f"the log of {event.node} starts at {start} {_at(event)}: it {how}",
            f"no leader's log, and no retention, had moved a start beyond {partition.moved_start}",
        )
    partition.log_starts[event.node] = start


def _recovered(partition: Followed, event: Event, _: CheckSettings) -> None:
    _starts_at(partition, event, max(event.offset, 0), "was recovered so")
    log = partition.log(event.node)
    if event.log_end < len(log):
        partition.shrunk.add(event.node)
    _resize(log, event.log_end)
    partition.unsettled = True


def _resize(log: list[int], length: int) -> None:
    del log[max(length, 0) :]
    log.extend([UNKNOWN] * (length - len(log)))


# ---- leaders ---------------------------------------------------------------------------------------------------------


def _became_leader(partition: Followed, event: Event, _: CheckSettings) -> None:
    log = partition.log(event.node)
    if event.log_end >= 0 and event.log_end != len(log):
        partition.gaps += 1
        _resize(log, event.log_end)
    partition.starts[event.node] = event.offset
    partition.high_watermarks[event.node] = UNKNOWN
    _leads(partition, event, event.node)
    missing = partition.first_missing(event.node)
    # A node may learn late of an election that others have followed since: of those commits it need know nothing.
    if missing is not None and partition.committed_in[missing] < event.leader_epoch:
        _breach(
            partition,
            event,
            "leader-incomplete",
            missing,
            f"{event.node} became leader in leader epoch {event.leader_epoch} {_at(event)}, its log ends at {len(log)}",
            _lacks(partition, missing),
        )


def _leads(partition: Followed, event: Event, node: str) -> None:
    before = partition.leaders.setdefault(event.leader_epoch, node)
    if before != node:
        _breach(
            partition,
            event,
            "two-leaders-one-epoch",
            UNKNOWN,
            f"{node} leads in leader epoch {event.leader_epoch} {_at(event)}",
            f"{before} led in the same leader epoch before",
        )


def _lacks(partition: Followed, offset: int) -> str:
    return (
        f"it lacks offset {offset} of leader epoch {partition.committed[offset]}, "
        f"committed at {partition.committed_ns[offset] / 1e9:.6f} s"
    )


# ---- the high watermark ----------------------------------------------------------------------------------------------


def _high_watermark(partition: Followed, event: Event, _: CheckSettings) -> None:
    partition.moves += 1
    before, after, log = max(event.offset, 0), event.high_watermark, partition.log(event.node)
    quorum = frozenset(event.members) | {int(node) for node in [event.node[1:]] if node.isdigit()}
    moved = (
        f"{event.node} moved the high watermark {before} → {after} {_at(event)} in leader epoch {event.leader_epoch}"
    )
    if before < partition.high_watermarks.get(event.node, UNKNOWN) or after < before:
        was = partition.high_watermarks[event.node]
        _breach(partition, event, "high-watermark-fell", after, moved, f"it had been {was} in the same leadership")
    partition.high_watermarks[event.node] = after
    with_quorum = f"{moved} with the quorum {_names(quorum)}"
    minimum = _min_isr_known_to(partition, event)
    if len(quorum) < minimum:
        lacking = f"min.insync.replicas asks for {minimum}"
        _breach(partition, event, "quorum-too-small", before, with_quorum, lacking)
    if partition.isr is not None and event.leader_epoch == partition.leader_epoch:
        expected = partition.isr | partition.elr
        if len(partition.isr) >= partition.min_isr and not expected <= quorum:
            held = f"the controller held the ISR {_names(partition.isr)} and the ELR {_names(partition.elr)}"
            _breach(partition, event, "quorum-not-superset", before, with_quorum, held)
    for member in sorted(quorum):
        _counted_rightly(partition, event, f"b{member}", before, after, with_quorum)
    known = min(after, len(partition.committed))
    if log[before:known] != partition.committed[before:known]:
        other = _differs(log[before:known], partition.committed[before:known])
        if other is not None:
            _breach(partition, event, "committed-overwritten", before + other, moved, _lacks(partition, before + other))
    for offset in range(len(partition.committed), min(after, len(log))):
        partition.committed.append(log[offset])
        partition.committed_ns.append(event.time_ns)
        partition.committed_in.append(event.leader_epoch)


def _min_isr_known_to(partition: Followed, event: Event) -> int:
    """The minimum at the partition epoch in which the event's node acted. A change of the minimum moves that epoch, so
    that a leader which has not read of it yet is known by the one it still names."""
    known = [minimum for epoch, minimum in partition.min_isr_at.items() if epoch <= event.partition_epoch]
    return known[-1] if known else partition.min_isr


def _counted_rightly(partition: Followed, event: Event, node: str, before: int, after: int, moved: str) -> None:
    if node in partition.shrunk:
        return
    wanted, held = partition.log(event.node)[before:after], partition.log(node)[before:after]
    if len(wanted) < after - before:
        _breach(
            partition, event, "replica-counted-wrongly", before + len(wanted), moved, "beyond the end of its own log"
        )
    elif wanted != held and (place := _differs(held, wanted)) is not None:
        end = len(partition.log(node))
        lines = (moved, f"{node} did not hold the record at offset {before + place}: its log ended at {end}")
        if before + place < end:
            epoch = partition.log(node)[before + place]
            lines = (moved, f"{node} held another record at offset {before + place}, of leader epoch {epoch}")
        _breach(partition, event, "replica-counted-wrongly", before + place, *lines)


def _names(members: frozenset[int]) -> str:
    return "{" + ", ".join(f"b{member}" for member in sorted(members)) + "}"


def _latest_told(partition: Followed, event: Event, _: CheckSettings) -> None:
    start = partition.starts.get(event.node, UNKNOWN)
    if event.high_watermark < start:
        _breach(
            partition,
            event,
            "latest-below-start",
            event.high_watermark,
            f"{event.node} told {event.high_watermark} as the latest offset {_at(event)}",
            f"its leader epoch {event.leader_epoch} starts at {start}: what lies between may be committed",
        )


def _acknowledged(partition: Followed, event: Event, _: CheckSettings) -> None:
    if event.log_end > event.high_watermark and event.details().get("acks", -1) == -1:
        _breach(
            partition,
            event,
            "acknowledged-uncommitted",
            event.offset,
            f"{event.node} acknowledged offsets {event.offset} to {event.log_end - 1} with acks=all {_at(event)}",
            f"its high watermark was {event.high_watermark}",
        )


# ---- the controller --------------------------------------------------------------------------------------------------


def _registered(cluster: Cluster, event: Event) -> None:
    cluster.between_lives.discard(f"b{event.broker}")
    clean = event.details().get("clean", True)
    for partition in cluster.partitions.values():
        partition.unsettled = True
        if not clean:
            partition.excluded.add(event.broker)


def _partition_changed(partition: Followed, event: Event, settings: CheckSettings) -> None:
    detail = event.details()
    isr, elr = frozenset(event.members), frozenset(_integers(detail, "elr"))
    replicas = _integers(detail, "replicas")
    minimum = detail.get("min_isr", settings.min_insync_replicas)
    partition.min_isr = min(minimum, len(replicas) or minimum) if isinstance(minimum, int) else 1
    if partition.min_isr not in tuple(partition.min_isr_at.values())[-1:]:
        partition.min_isr_at[event.partition_epoch] = partition.min_isr
    before = partition.isr
    # What a balanced recovery may do: elect one of the last known ELR when nobody is left in ISR and ELR.
    recovered = (
        settings.unclean_recovery == "balanced"
        and detail.get("reason") == "unclean_recovery"
        and not before
        and not partition.elr
        and event.leader in partition.last_known_elr
    )
    if event.leader >= 0 and event.leader_epoch != partition.leader_epoch:
        partition.elections += 1
        _leads(partition, event, f"b{event.leader}")
        # A reassignment completes in the very change that a leader asked for: whom it proposed, it also waits for.
        proposed = isr if detail.get("reason") == "alter_partition" else frozenset[int]()
        if (
            before is not None
            and event.leader not in before | partition.elr | proposed
            and not settings.unclean_election
            and not recovered
        ):
            held = f"the ISR was {_names(before)} and the ELR {_names(partition.elr)}"
            elected = f"b{event.leader} was elected in leader epoch {event.leader_epoch} {_at(event)}"
            _breach(partition, event, "unclean-election", UNKNOWN, elected, held)
    joined = isr - (before or frozenset())
    if settings.unclean_election or recovered or before is None or detail.get("reason") == "alter_partition":
        partition.excluded -= joined
    partition.shrunk -= {f"b{member}" for member in joined}
    partition.leader, partition.leader_epoch = event.leader, event.leader_epoch
    partition.isr, partition.elr = isr, elr
    partition.last_known_elr = frozenset(_integers(detail, "last_known_elr"))
    partition.unsettled = True


def _integers(detail: Mapping[str, object], name: str) -> list[int]:
    values = detail.get(name)
    return [int(value) for value in values] if isinstance(values, list) else []


def _settle(cluster: Cluster, now_ns: int) -> None:
    """The instant is over: judge the candidates of every partition that something happened to."""
    for partition in cluster.partitions.values():
        if partition.unsettled:
            partition.unsettled = False
            _judge_candidates(partition, cluster.between_lives, now_ns)


def _judge_candidates(partition: Followed, between_lives: set[str], now_ns: int) -> None:
    for member in sorted((partition.isr or frozenset()) | partition.elr):
        node = f"b{member}"
        if node in between_lives:
            continue
        where = "ISR" if member in (partition.isr or frozenset()) else "ELR"
        found = f"{node} is in the {where} at {now_ns / 1e9:.6f} s"
        if member in partition.excluded:
            reason = "it registered after an unclean shutdown and has not joined the ISR since"
            partition.breaches.append(Breach("unclean-not-excluded", UNKNOWN, now_ns, UNKNOWN, (found, reason)))
            partition.excluded.discard(member)
        missing = partition.first_missing(node)
        if missing is not None:
            lines = (f"{found} with a log that ends at {len(partition.log(node))}", _lacks(partition, missing))
            since_ns = partition.committed_ns[missing]
            partition.breaches.append(Breach("candidate-incomplete", missing, now_ns, since_ns, lines))


_HANDLERS = {
    "appended": _appended,
    "truncated": _truncated,
    "log_recovered": _recovered,
    "log_start": _log_start,
    "became_leader": _became_leader,
    "high_watermark": _high_watermark,
    "latest_told": _latest_told,
    "acknowledged": _acknowledged,
    "partition_changed": _partition_changed,
}
