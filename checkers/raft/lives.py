"""Promises about the lives of a broker's process, one after the other, for `checkers.raft`, whose table has them.

Each registration gets a broker epoch above all earlier ones. A clean shutdown is claimed by the next life alone: it
deletes the mark durably before anything else, so that no life after it counts as the successor of that shutdown,
whatever it has lost. A life that stops cleanly before it hears that it is registered has written nothing: the one after
it may claim the same shutdown, and is the successor of a clean one to the controllers, too, though they have registered
the one before. And a broker that leaves stays out: whatever its last heartbeats say when they arrive, only the next
registration lets it come back. What it is told of that is committed. A heartbeat counts for the life that sent it, and
is not refused while that is the one registered. Once a broker reads that it is registered anew, by whichever process,
it begins a life of its own: the controllers take no heartbeat of the present one any more. A life that shuts down stays
until a controller has handed its leaderships over and lets it go, unless the time for that is up.

Blind spots: a broker whose disk has lied about fsync; a registration before that only a later controller has traced;
runs of versions that did not trace `clean_shutdown`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from checkers.decided_metadata import DecidedMetadata, decided_changes
from checkers.tables import TraceRow, trace_rows
from checkers.verdict import Finding
from workloads.columns import NEVER

_OF_CLAIMS: Final = ("clean_shutdown", "node_started")
_OF_REGISTRATIONS: Final = ("broker_registered", "registered")
_OF_HEARTBEATS: Final = ("session_begun", "broker_unfenced", "broker_stays_fenced", "broker_shutting_down")
_OF_REFUSALS: Final = ("broker_registered", "quorum_leader", "heartbeat_refused")
_HANDED_OVER: Final = ("let_go", "timed_out")
_OF_SUCCESSORS: Final = ("broker_registered", "registered", "node_started", "metadata_applied")
_OF_CLEAN_ENDS: Final = (*_OF_REGISTRATIONS, "clean_claim_refused")


def life_findings(trace: pa.Table, lied_since: Mapping[str, int]) -> Iterator[Finding]:
    """Every broken promise in a trace (schema TRACE). The disks of the nodes in `lied_since` may have kept less than
    they said from that time in ns on."""
    yield from _claims(trace, lied_since)
    yield from _forgotten(trace, lied_since)
    yield from _heartbeats(trace)
    yield from _refused_heartbeats(trace)
    yield from _comebacks(trace)
    yield from _undecided(trace)
    yield from _superseded(trace)
    yield from _not_handed_over(trace)


def broker_epoch_findings(trace: pa.Table) -> Iterator[Finding]:
    """Broker epochs that do not rise from one registration to the next. A controller that was deposed may trace one
    late, that its successor has traced, too."""
    highest, end = -1, -1
    known: set[tuple[int, int, int]] = set()
    for event in trace_rows(trace.filter(pc.equal(trace.column("kind"), "broker_registered"))):
        registration = (event.offset, event.broker, event.broker_epoch)
        if event.offset >= 0 and (event.offset < end or registration in known):
            continue
        if event.broker_epoch <= highest:
            lines = (
                f"{event.node} gave broker {event.broker} the broker epoch {event.broker_epoch} {event.at}",
                f"broker epoch {highest} had been given before",
            )
            yield Finding("broker-epoch-fell", lines, time_ns=event.time_ns)
        highest, end = max(highest, event.broker_epoch), event.offset
        known.add(registration)


def _claims(trace: pa.Table, lied_since: Mapping[str, int]) -> Iterator[Finding]:
    left: dict[str, int] = {}
    claimed: dict[str, TraceRow] = {}
    for event in trace_rows(trace.filter(pc.is_in(trace.column("kind"), value_set=pa.array(_OF_CLAIMS)))):
        if event.kind == "clean_shutdown":
            left[event.node] = event.broker_epoch
            continue
        before, epoch = claimed.get(event.node), event.broker_epoch
        if left.pop(event.node, -1) == epoch and epoch >= 0:
            claimed[event.node] = event
        elif before is not None and before.broker_epoch == epoch and event.time_ns < lied_since.get(event.node, NEVER):
            lines = (
                f"{event.node} started {event.at} as the successor of a clean shutdown in broker epoch {epoch}",
                f"a life that started {before.at} was that, and has not shut down cleanly",
            )
            yield Finding("clean-claim-repeated", lines, time_ns=event.time_ns)


def _forgotten(trace: pa.Table, lied_since: Mapping[str, int]) -> Iterator[Finding]:
    registrations: dict[tuple[str, int], Mapping[str, Any]] = {}
    heard: set[tuple[str, int]] = set()
    for event in trace_rows(trace.filter(pc.is_in(trace.column("kind"), value_set=pa.array(_OF_CLEAN_ENDS)))):
        if event.kind == "registered":
            heard.add((event.node, event.broker_epoch))
            continue
        node, detail, is_refused = f"b{event.broker}", event.details(), event.kind == "clean_claim_refused"
        previous, known = (
            detail.get("previous", -1),
            (node, event.broker_epoch if is_refused else detail.get("known", -1)),
        )
        before = registrations.get(known, {})
        if not is_refused:
            registrations.setdefault((node, event.broker_epoch), detail)
        if not (is_refused or detail.get("clean") is False) or previous < 0 or known in heard:
            continue
        if lied_since.get(node, NEVER) <= event.time_ns:
            continue
        # A request of an earlier process that arrives late, for its part, presents another end.
        if before.get("previous") == previous and before.get("incarnation") != detail.get("incarnation"):
            lines = (
                f"{event.node} took {node} for not cleanly shut down {event.at}: it presents broker epoch {previous}, "
                f"and is known in {known[1]}",
                f"a process that had presented {previous}, too, was registered so, and never heard of it: it wrote "
                "nothing, and the clean shutdown still counted",
            )
            yield Finding("clean-shutdown-forgotten", lines, time_ns=event.time_ns)


def _heartbeats(trace: pa.Table) -> Iterator[Finding]:
    for event in trace_rows(trace.filter(pc.is_in(trace.column("kind"), value_set=pa.array(_OF_HEARTBEATS)))):
        given = event.details().get("heartbeat_epoch", event.broker_epoch)
        if given != event.broker_epoch:
            lines = (
                f"{event.node} took a heartbeat of broker {event.broker} in broker epoch {given} {event.at} "
                f"({event.kind})",
                f"the broker was registered in broker epoch {event.broker_epoch}",
            )
            yield Finding("heartbeat-of-an-earlier-life", lines, time_ns=event.time_ns)


def _refused_heartbeats(trace: pa.Table) -> Iterator[Finding]:
    """A controller that was deposed may have a broker in an earlier life; the latest one has it in the last one."""
    registered: dict[int, int] = {}
    leads: dict[str, int] = {}
    for event in trace_rows(trace.filter(pc.is_in(trace.column("kind"), value_set=pa.array(_OF_REFUSALS)))):
        if event.kind == "broker_registered":
            registered[event.broker] = max(event.broker_epoch, registered.get(event.broker, -1))
            continue
        if event.kind == "quorum_leader":
            leads[event.node] = event.leader_epoch
            continue
        given, known = event.broker_epoch, event.details()["known"]
        is_latest = event.node in leads and leads[event.node] == max(leads.values())
        if given == known or (is_latest and given == registered.get(event.broker)):
            lines = (
                f"{event.node} refused a heartbeat of broker {event.broker} in broker epoch {given} {event.at}",
                f"it had it in {known}, and the last registration is of {registered.get(event.broker, known)}",
            )
            yield Finding("current-heartbeat-refused", lines, time_ns=event.time_ns)


def _comebacks(trace: pa.Table) -> Iterator[Finding]:
    metadata = DecidedMetadata()
    for change in decided_changes(trace):
        for each in change.of_brokers:
            event, known = each.event, metadata.brokers.get(each.event.broker)
            if event.kind != "broker_unfenced" or known is None or known.epoch != event.broker_epoch:
                continue
            if known.shutting_down:
                lines = (
                    f"{event.node} unfenced b{event.broker} in broker epoch {event.broker_epoch} {event.at}",
                    "it was shutting down in this broker epoch, so that its process ends",
                )
                yield Finding("unfenced-shutting-down", lines, time_ns=event.time_ns)
        metadata.apply_to_brokers(change)


def _undecided(trace: pa.Table) -> Iterator[Finding]:
    """A broker gets the broker epoch of a registration that is committed."""
    decided: set[tuple[str, int]] = set()
    granted: list[TraceRow] = []
    for event in trace_rows(trace.filter(pc.is_in(trace.column("kind"), value_set=pa.array(_OF_REGISTRATIONS)))):
        if event.kind == "registered":
            granted.append(event)
        else:
            decided.add((f"b{event.broker}", event.broker_epoch))
    for event in granted:
        if decided and (event.node, event.broker_epoch) not in decided:
            lines = (
                f"{event.node} was told {event.at} that it is registered, in broker epoch {event.broker_epoch}",
                "no controller has decided that: the answer was given before the commit",
            )
            yield Finding("registered-undecided", lines, time_ns=event.time_ns)


def _superseded(trace: pa.Table) -> Iterator[Finding]:
    """A life does not take part with metadata in which the next one is registered."""
    registrations: dict[str, list[TraceRow]] = {}
    lives: dict[str, int] = {}
    for event in trace_rows(trace.filter(pc.is_in(trace.column("kind"), value_set=pa.array(_OF_SUCCESSORS)))):
        if event.kind == "broker_registered":
            registrations.setdefault(f"b{event.broker}", []).append(event)
        elif event.kind == "registered":
            lives[event.node] = event.broker_epoch
        elif event.kind == "node_started":
            lives.pop(event.node, None)
        elif event.node in lives:
            known = (each for each in registrations.get(event.node, ()) if 0 <= each.offset <= event.log_end)
            later = max(known, key=lambda each: each.broker_epoch, default=None)
            if later is not None and later.broker_epoch > lives[event.node]:
                lines = (
                    f"{event.node} took part {event.at} in broker epoch {lives.pop(event.node)}, with the metadata up "
                    f"to offset {event.log_end}",
                    f"it was registered in broker epoch {later.broker_epoch}, up to offset {later.offset}: nobody "
                    "takes heartbeats of the epoch before any more",
                )
                yield Finding("superseded-went-on", lines, time_ns=event.time_ns)


def _not_handed_over(trace: pa.Table) -> Iterator[Finding]:
    for event in trace_rows(trace.filter(pc.equal(trace.column("kind"), "clean_shutdown"))):
        handover = event.details().get("handover", "let_go")
        if handover not in _HANDED_OVER:
            did = f"{event.node} shut down in broker epoch {event.broker_epoch} {event.at}"
            asked = "had not asked for that" if handover == "unasked" else "did not wait for it as long as it is to"
            line = f"no controller had handed its leaderships over and let it go, and it {asked}"
            yield Finding("left-without-handover", (did, line), time_ns=event.time_ns)
