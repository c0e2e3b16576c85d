"""Promises about the controllers' metadata and the sessions of brokers, for `checkers.raft`, whose table has them.

What a node loads otherwise than record by record, from a snapshot or when it takes charge, follows from the changes in
the trace that end at that offset or before (`checkers.decided_metadata`). Topics of one name that are created one
after the other have names of their own in the trace (`name#2`), not in what is loaded. Topics of which the trace says
nothing are left out, and of producer ids only the blocks that brokers were told of are known.

*A session is longer than the trace says.* A controller counts it from the moment of a decision, and traces the decision
when it is committed. So a session is held to the time since the controller took charge, not since a heartbeat.

*A session may be unknown.* A controller that takes charge gives each unfenced broker a session, and traces for how long
a broker was silent. Where it cannot say, it knew of no session, and so of none to end, since it took charge.

*A controller that does not run fences nobody.* On a busy machine a process may stand still for longer than a session.
Nodes on machines trace such times (`node_stalled`); they count as those of a fault.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from checkers.decided_metadata import (
    OF_BROKERS,
    OF_PARTITIONS,
    DecidedMetadata,
    MetadataReplay,
    changes_of,
    differences,
)
from checkers.raft.told_metadata import TOLD, told_findings
from checkers.tables import FaultTimes, TraceRow, trace_rows
from checkers.verdict import Finding

_DECISIONS: Final = frozenset({*OF_BROKERS, *OF_PARTITIONS, "producer_ids_allocated"})
_LOADED: Final = ("metadata_loaded", "metadata_snapshot")
_REFUSALS: Final = ("broker_stays_fenced", "registration_refused", "clean_claim_refused")
_FENCINGS: Final = ("broker_registered", "broker_fenced", "broker_unfenced")
_OF_SESSIONS: Final = ("broker_registered", "broker_fenced", "session_outlived")
"""They have the facts of the session that they end or, being late, renew."""
_ASKED_BEFORE: Final = "the same process has broker epoch {}: it had asked before"
_KINDS: Final = (
    *sorted(_DECISIONS),
    *_LOADED,
    "topic_configured",
    "metadata_appended",
    "metadata_committed",
    "metadata_applied",
    "node_started",
    *TOLD,
    *_REFUSALS,
    *_OF_SESSIONS,
)
_SESSION_SHARE: Final = 0.9
"""Of a session must have passed by the clock of the trace, which rounds otherwise than that of the controller."""

_PATIENCE_MS: Final = 1_000
_CHANGES_MEANWHILE: Final = 8
"""A controller makes one change at a time, so that one may wait for a few others."""
_IDLE_MS: Final = 2_000
"""Nothing waits for longer in a controller that has no change under way."""


def cluster_metadata_findings(
    trace: pa.Table,
    *,
    whole: bool = True,
    wrong_timers: FaultTimes = FaultTimes(),
    stalls: FaultTimes = FaultTimes(),
) -> Iterator[Finding]:
    """Every broken promise in a trace (schema TRACE), which is `whole` if it tells of all topics. Sessions are as long
    on `wrong_timers` as the clocks say that faults have changed there; `stalls` as `checkers.tables` has them."""
    events = list(trace_rows(trace.filter(pc.is_in(trace.column("kind"), value_set=pa.array(_KINDS)))))
    as_named = [event._replace(topic=event.topic_name) for event in events]
    yield from _loaded_otherwise(as_named)
    yield from _applied_otherwise(events if whole else [])
    yield from told_findings(as_named)
    yield from _decided_early(events)
    yield from _sessions(events, wrong_timers, stalls)


# ---- what is loaded --------------------------------------------------------------------------------------------------


def _loaded_otherwise(events: list[TraceRow]) -> Iterator[Finding]:
    decided = [event for event in events if event.kind in OF_BROKERS + OF_PARTITIONS and event.offset >= 0]
    changes, topics = changes_of(decided), {event.topic for event in decided}
    given = [(each.offset, each) for each in events if each.kind == "producer_ids_allocated"]
    configured = sorted((each for each in events if each.kind == "topic_configured"), key=lambda each: each.offset)
    replay = MetadataReplay(changes)
    for event in sorted((each for each in events if each.kind in _LOADED), key=lambda each: each.log_end):
        replay.read_to(event.log_end)
        loaded = event.details()
        lines = [*_of_partitions(replay.metadata, loaded, topics), *_of_brokers(replay.metadata, loaded)]
        lines += _of_topics([each for each in configured if each.offset <= event.log_end], loaded)
        blocks = [block.details() for end, block in given if end <= event.log_end]
        below = max((int(block["first"]) + int(block["count"]) for block in blocks), default=0)
        if loaded.get("next_producer_id", below) < below:
            lines.append(f"the next producer id is {loaded['next_producer_id']}, and ids below {below} were given")
        if lines:
            what = "that it loaded" if event.kind == "metadata_loaded" else "in a snapshot that it wrote"
            did = f"{event.node} has metadata up to {event.log_end} {what} {event.at}"
            yield Finding("metadata-loaded-otherwise", (did, *lines[:3]), time_ns=event.time_ns)


def _of_partitions(metadata: DecidedMetadata, loaded: Mapping[str, Any], topics: set[str]) -> Iterator[str]:
    decided = {f"{topic}-{number}": state for (topic, number), state in metadata.partitions.items()}
    has = {name: state for name, state in loaded["partitions"].items() if name.rpartition("-")[0] in topics}
    for name in sorted(decided.keys() | has.keys()):
        if name not in has:
            yield f"it has no partition {name}, which exists"
        elif name not in decided:
            yield f"it has the partition {name}, which does not exist"
        else:
            yield from (f"{name}: {line}" for line in differences(decided[name].facts(), has[name]))


def _of_brokers(metadata: DecidedMetadata, loaded: Mapping[str, Any]) -> Iterator[str]:
    for broker, state in sorted(metadata.brokers.items()):
        facts: dict[str, object] = {"epoch": state.epoch, "fenced": state.fenced}
        if state.shutting_down is not None:
            facts["shutting_down"] = state.shutting_down
        has = loaded["brokers"].get(str(broker))
        if has is None:
            yield f"it has no broker b{broker}, which is registered in broker epoch {state.epoch}"
        else:
            yield from (f"b{broker}: {line}" for line in differences(facts, has))


def _of_topics(configured: Iterable[TraceRow], loaded: Mapping[str, Any]) -> Iterator[str]:
    """Ids and configurations; that a topic is there, or not any more, its partitions tell."""
    has = loaded.get("topics") or {}
    for decided in {each.details()["name"]: each.details() for each in configured}.values():
        topic = has.get(decided["name"])
        if topic is not None:
            yield from (f"{decided['name']}: {line}" for line in differences(decided, topic))


def _applied_otherwise(events: list[TraceRow]) -> Iterator[Finding]:
    """The sums of the metadata that a broker applies are those of the changes up to there, and it never goes back."""
    changes = changes_of(event for event in events if event.kind in OF_BROKERS + OF_PARTITIONS and event.offset >= 0)
    applied = sorted((each for each in events if each.kind == "metadata_applied"), key=lambda each: each.log_end)
    replay = MetadataReplay(changes)
    sums = _sums(replay.metadata)
    for event in applied:
        if replay.read_to(event.log_end):
            sums = _sums(replay.metadata)
        if event.offset > event.log_end:
            line = f"it had applied it up to {event.offset}"
            did = f"{event.node} applied the metadata up to {event.log_end} {event.at}"
            yield Finding("metadata-applied-otherwise", (did, line), time_ns=event.time_ns)
        detail = event.details()
        # Whether a broker is shutting down is not known of one that a successor found fenced; it is not active.
        lines = [
            f"{name}: {detail[name]}, and decided is {sums[name]}" for name in detail if detail[name] != sums.get(name)
        ]
        if lines:
            did = f"{event.node} applied metadata up to {event.log_end} {event.at} that was not decided so"
            yield Finding("metadata-applied-otherwise", (did, *lines), time_ns=event.time_ns)


def _sums(metadata: DecidedMetadata) -> dict[str, object]:
    partitions = metadata.partitions.values()
    return {
        "partitions": len(partitions),
        "partition_epochs": sum(partition.partition_epoch for partition in partitions),
        "leader_epochs": sum(partition.leader_epoch for partition in partitions),
        "broker_epochs": sum(broker.epoch for broker in metadata.brokers.values()),
        "active": sorted(broker for broker in metadata.brokers if metadata.is_active(broker)),
    }


# ---- what is decided -------------------------------------------------------------------------------------------------


def _decided_early(events: list[TraceRow]) -> Iterator[Finding]:
    """Nothing that a controller decides has an effect before it is committed."""
    committed: dict[str, int] = {}
    for event in events:
        if event.kind == "metadata_committed":
            committed[event.node] = event.high_watermark
        elif event.kind in _DECISIONS and event.offset > committed.get(event.node, event.offset):
            lines = (
                f"{event.node} has decided up to {event.offset} {event.at} ({event.kind})",
                f"it knew the metadata below {committed[event.node]} to be committed",
            )
            yield Finding("decision-uncommitted", lines, time_ns=event.time_ns)


def _sessions(events: list[TraceRow], wrong_timers: FaultTimes, stalls: FaultTimes) -> Iterator[Finding]:
    epochs: dict[int, _Registered] = {}
    """By broker, the last one."""
    took_charge: dict[str, int] = {}
    applied: dict[str, int] = {}
    work: dict[str, _Work] = {}
    unfenced: set[int] = set()
    fencing_offsets: dict[int, int] = {}
    """By broker, of the last change: a controller that was deposed meanwhile may trace an earlier one late."""
    for event in events:
        if event.kind in ("metadata_appended", "metadata_committed"):
            work.setdefault(event.node, _Work()).take(event)
        elif event.kind == "metadata_applied":
            applied[event.node] = max(event.log_end, applied.get(event.node, 0))
        elif event.kind == "metadata_loaded":
            took_charge[event.node] = event.time_ns
        elif event.kind in OF_BROKERS or event.kind in _REFUSALS or event.kind in _OF_SESSIONS:
            detail = event.details()
            if "session_timeout_ms" in detail and event.kind in _OF_SESSIONS and event.node in took_charge:
                detail = {"silent_ms": (event.time_ns - took_charge[event.node]) // 1_000_000, **detail}
            if not detail.get("taken_over"):
                took_charge_ns = took_charge.get(event.node, 0)
                ran_wrong = wrong_timers.between(event.node, took_charge_ns, event.time_ns)
                charged_ns = None if ran_wrong else took_charge.get(event.node)
                lines = _wrong(event, detail, epochs.get(event.broker), charged_ns, applied)
                if not lines and event.broker in unfenced and not _is_by_wrong_timers(event, detail, wrong_timers):
                    lines = _late(event, detail, work.get(event.node, _Work()), took_charge_ns, stalls)
                if lines:
                    kind, *told = lines
                    yield Finding(kind, tuple(told), time_ns=event.time_ns)
            if event.kind in _FENCINGS and event.offset >= fencing_offsets.get(event.broker, event.offset):
                fencing_offsets[event.broker] = event.offset
                if event.kind == "broker_unfenced":
                    unfenced.add(event.broker)
                elif not _as_registered(detail):
                    unfenced.discard(event.broker)
            if event.kind == "broker_registered" and event.offset >= epochs.get(event.broker, _UNREGISTERED).offset:
                epochs[event.broker] = _Registered(event.offset, event.broker_epoch, event.details().get("incarnation"))


def _is_by_wrong_timers(event: TraceRow, detail: Mapping[str, Any], wrong_timers: FaultTimes) -> bool:
    """Whether the controller may have measured the broker's silence by timers that ran wrong since it heard of it."""
    measured_ms = detail.get("silent_ms", 0) + detail.get("session_timeout_ms", 0)
    return wrong_timers.between(event.node, event.time_ns - measured_ms * 1_000_000, event.time_ns)


def _as_registered(detail: Mapping[str, Any]) -> bool:
    """Whether a broker was fenced by the registration of its next life, which is traced next and tells of the session
    that it ends."""
    return detail.get("reason") == "registered"


class _Registered(NamedTuple):
    """A registration of a broker."""

    offset: int
    broker_epoch: int
    incarnation: str | None
    """The life of the broker's process; None where a later controller found the registration."""


_UNREGISTERED: Final = _Registered(-1, -1, None)


@dataclass(slots=True)
class _Work:
    """The changes of one controller so far."""

    commits: list[int] = field(default_factory=list)
    """The times (ns) at which some were committed."""
    _busy: list[tuple[int, int]] = field(default_factory=list)
    """From when to when it had a change under way."""
    _end: int = -1
    _since_ns: int | None = None

    def take(self, event: TraceRow) -> None:
        """Take in that its log has grown, or that more of it is committed."""
        if event.kind == "metadata_appended":
            self._end = event.log_end
            self._since_ns = event.time_ns if self._since_ns is None else self._since_ns
            return
        self.commits.append(event.time_ns)
        if self._since_ns is not None and event.high_watermark >= self._end:
            self._busy.append((self._since_ns, event.time_ns))
            self._since_ns = None

    def idle_ns(self, since_ns: int, until_ns: int) -> int:
        """The longest time between these without a change under way; none where the trace has no changes of a log."""
        if self._end < 0:
            return 0
        busy = [*self._busy, (until_ns if self._since_ns is None else self._since_ns, until_ns)]
        longest, idle_since_ns = 0, since_ns
        for began_ns, ended_ns in busy:
            longest = max(longest, min(began_ns, until_ns) - idle_since_ns)
            idle_since_ns = max(idle_since_ns, ended_ns)
        return longest


def _wrong(
    event: TraceRow,
    detail: Mapping[str, Any],
    registered: _Registered | None,
    took_charge_ns: int | None,
    applied: Mapping[str, int],
) -> tuple[str, ...]:
    """The kind and the lines of a broken promise, empty if none is broken."""
    node, did = f"b{event.broker}", f"in broker epoch {event.broker_epoch} {event.at}"
    if detail.get("ahead") or detail.get("silent_ms", 0) < 0:
        return "session-ran-back", f"{event.node} last heard of {node} later than {event.at[3:]} ({event.kind})"
    if event.kind == "broker_registered" and "known" in detail:
        return _registration(event, detail, registered, f"{event.node} registered {node} {did}")
    if event.kind == "broker_unfenced" and node in applied and applied[node] <= event.broker_epoch:
        line = f"it had applied the metadata up to {applied[node]}, and so not its own registration"
        return "unfenced-behind", f"{event.node} unfenced {node} {did}", line
    if event.kind == "registration_refused":
        # A controller that was deposed meanwhile may know of an earlier life alone.
        asked = event.broker_epoch, detail["incarnation"]
        if registered is not None and asked == (registered.broker_epoch, registered.incarnation):
            refused = f"{event.node} refused to register {node} {event.at}"
            return "registered-twice", refused, _ASKED_BEFORE.format(registered.broker_epoch)
        if detail.get("over"):
            line = f"the session of its earlier life was over: it lasts {detail['session_timeout_ms']} ms"
            return "refused-after-session", f"{event.node} refused to register {node} {event.at}", line
        return ()
    if event.kind == "clean_claim_refused":
        if registered is not None and detail["previous"] == registered.broker_epoch:
            line = f"it was registered in {registered.broker_epoch}, and presents that"
            return "registration-misjudged", f"{event.node} refused to register {node} as clean {event.at}", line
        return ()
    if event.kind == "broker_stays_fenced":
        if detail.get("metadata_offset", -1) >= event.broker_epoch and not detail.get("shutting_down", True):
            line = f"its heartbeat gave the metadata offset {detail['metadata_offset']}, so it has its registration"
            return "kept-fenced", f"{event.node} kept {node} fenced {did}", line
        return ()
    timeout_ms = detail.get("session_timeout_ms")
    if event.kind == "broker_fenced" and detail.get("reason") == "session_timeout" and timeout_ms is not None:
        silent_ms = detail.get("silent_ms", timeout_ms)
        if took_charge_ns is not None:
            charged_ms = (event.time_ns - took_charge_ns) // 1_000_000
            silent_ms = charged_ms if charged_ms < _SESSION_SHARE * timeout_ms else silent_ms
        if silent_ms < timeout_ms:
            line = f"its session had run for {silent_ms} ms; it lasts {timeout_ms} ms"
            return "fenced-in-session", f"{event.node} fenced {node} {did}", line
    return ()


def _late(
    event: TraceRow,
    detail: Mapping[str, Any],
    work: _Work,
    took_charge_ns: int,
    stalls: FaultTimes,
) -> tuple[str, ...]:
    """The kind and the lines where a controller has made many changes since a session was over, or was idle, and did
    not make this one."""
    silent_ms, timeout_ms = detail.get("silent_ms"), detail.get("session_timeout_ms")
    if silent_ms is None or timeout_ms is None:
        return ()
    over_ns = event.time_ns - (silent_ms - timeout_ms - _PATIENCE_MS) * 1_000_000
    over_ns = max(over_ns, took_charge_ns + (timeout_ms + _PATIENCE_MS) * 1_000_000)
    # A controller that comes out of a pause makes all changes first that have waited for it.
    ends_ns = stalls.ends_between(event.node, over_ns, event.time_ns)
    over_ns = max([over_ns, *(ended_ns + _PATIENCE_MS * 1_000_000 for ended_ns in ends_ns)])
    made = len(work.commits) - bisect_left(work.commits, over_ns)
    idle_ms = work.idle_ns(over_ns, event.time_ns) // 1_000_000
    if made < _CHANGES_MEANWHILE and idle_ms < _IDLE_MS:
        return ()
    did = f"{event.node} had b{event.broker} unfenced until {event.time_ns / 1e9:.6f} s ({event.kind})"
    line = (
        f"no contact was known for {silent_ms} ms, a session lasts {timeout_ms} ms, {made} commits came after "
        f"that, and no change was under way for {idle_ms} ms"
    )
    return "fenced-late", did, line


def _registration(
    event: TraceRow, detail: Mapping[str, Any], registered: _Registered | None, did: str
) -> tuple[str, ...]:
    known, previous = detail["known"], detail.get("previous", -1)
    if registered is not None and registered.offset < event.offset and known != registered.broker_epoch:
        line = f"it had it for one of broker epoch {known}; that was {registered.broker_epoch}"
        return "registration-misjudged", did, line
    if registered is not None and detail.get("incarnation") in {registered.incarnation} - {None}:
        return "registered-twice", did, _ASKED_BEFORE.format(registered.broker_epoch)
    if 0 <= previous != known >= 0:
        line = f"it was registered in {known}, and presents {previous}: this is to be refused, as of an earlier life"
        return "registration-misjudged", did, line
    if known >= 0 and detail.get("clean") is not (previous == known):
        says = "clean" if detail.get("clean") else "unclean"
        line = f"it took the shutdown before for {says}: it was registered in {known}, and presents {previous}"
        return "registration-misjudged", did, line
    return ()
