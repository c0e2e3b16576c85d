"""Promises about dry runs, for `checkers.raft`, whose table has them.

A request with `validate_only` changes nothing, and is answered as the request itself would be at that moment. The
administrator of the faults makes some requests twice, as a dry run first, and records both (`dry_runs` and `requests`
of the run's recovery). Then the answers are the same: done, or the same error; and of a topic that is to be created,
as many partitions and replicas and the same configuration.

That is so only where nothing changes in between on which the answer rests. An administrator's answer waits until the
metadata that it rests on has turned out to be the newest, so both were decided between the beginning of the dry run and
the answer to the request, and what changed between them was traced within that time. The pair counts where the trace
has no change of the topic within it, and where replicas are to be placed none of a broker; the ISR and its leader count
only for a strategy of unclean recovery, which may have to wait for them. The change that the request itself brings
about is the one exception: it is of the kind that was asked for, comes after the request has begun, and has one offset.
A configuration that changes nothing brings none about, so another change then is not its own.

A dry run that takes effect brings about a change that no request accounts for: `checkers.raft.administration` and
`checkers.raft.configurations` find it, and name it as such.

Example: a topic has two partitions, and an administrator asks for two. The dry run is answered as done, the request
with INVALID_PARTITIONS, and nobody has changed the topic: the dry run has not looked.

Blind spots: a dry run that the request does not follow, or that it follows after an answer was lost; one that is wrong
in the same way as the request; one of a configuration that is too large for the metadata log, which the request finds
when it is appended; the text of an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from checkers.decided_metadata import OF_BROKERS
from checkers.evidence import RECOVERY_STRATEGY
from checkers.tables import TraceRow
from checkers.verdict import Finding
from workloads.columns import NEVER

DRY_RUN_OTHERWISE: Final = "dry-run-otherwise"
_DONE: Final = ""
_UNDECIDED: Final = ("UNANSWERED", "REQUEST_TIMED_OUT", "NOT_CONTROLLER")
"""Outcomes that no controller has decided."""
_PLACING: Final = ("create", "grow")
"""Changes for which brokers are chosen."""
_OF_THE_ISR: Final = ("alter_partition", "elected")
"""Reasons of changes on which no answer to an administrator rests but that about a strategy of unclean recovery."""

AdminRecord = Mapping[str, Any]
"""A `nemesis.ports.AdminRequest`, as a run records it."""


def dry_run_findings(
    events: Sequence[TraceRow],
    dry_runs: Iterable[AdminRecord],
    requests: Sequence[AdminRecord],
    *,
    mixed_settings: bool = False,
) -> Iterator[Finding]:
    """Every dry run that was answered otherwise than the same request after it, in a trace with these events. Where
    nodes have settings of their own, defaults are those of the controller that answers, and are not compared."""
    for dry_run in dry_runs:
        request = _same_request_after(dry_run, requests)
        if request is None or not (_is_decided(dry_run) and _is_decided(request)) or request["in_doubt"]:
            continue
        is_same = dry_run["outcome"] == request["outcome"]
        if is_same and (mixed_settings or dry_run.get("created_topic") == request.get("created_topic")):
            continue
        if not _changes_between(dry_run, request, events):
            lines = (f"dry run: {_described(dry_run)}", f"request: {_described(request)}")
            yield Finding(DRY_RUN_OTHERWISE, (*lines, "nothing had changed between them"), time_ns=dry_run["ended_ns"])


def last_dry_run(candidates: Iterable[AdminRecord], time_ns: int) -> str:
    """The last of these dry runs, all for a change that was made at this time, that may have been under way then, as a
    finding tells of it. Empty if there is none."""
    may_be = [
        _described(dry_run)
        for dry_run in candidates
        if dry_run["began_ns"] <= time_ns <= (NEVER if dry_run["in_doubt"] else dry_run["ended_ns"])
    ]
    return f"a dry run was to change nothing: {may_be[-1]}" if may_be else ""


def _same_request_after(dry_run: AdminRecord, requests: Iterable[AdminRecord]) -> AdminRecord | None:
    """The first request for the same that began after the answer to the dry run."""
    if dry_run["ended_ns"] is None:
        return None
    same = (each for each in requests if all(each[name] == dry_run[name] for name in ("change", "topic", "wanted")))
    return next((each for each in same if each["began_ns"] >= dry_run["ended_ns"]), None)


def _is_decided(asked: AdminRecord) -> bool:
    return asked["ended_ns"] is not None and asked["outcome"] not in _UNDECIDED


def _changes_between(dry_run: AdminRecord, request: AdminRecord, events: Iterable[TraceRow]) -> bool:
    """Whether the answers may rest on different metadata."""
    between = [
        event
        for event in events
        if dry_run["began_ns"] <= event.time_ns <= request["ended_ns"] and _matters(event, request)
    ]
    own = (
        request["outcome"] == _DONE
        and len({event.offset for event in between}) == 1
        and all(event.time_ns >= request["began_ns"] for event in between)
        and _is_of_kind(between, request["change"])
    )
    return bool(between) and not own


def _is_of_kind(events: Sequence[TraceRow], change: str) -> bool:
    """Whether all of these events, of one offset, are what such a change brings about."""
    created = [event.partition for event in events if event.details().get("reason") == "created"]
    configured = [event for event in events if event.kind == "topic_configured"]
    if len(created) + len(configured) < len(events):
        return False
    if change == "configure":
        return not created
    return 0 in created if change == "create" else not configured and 0 not in created


def _matters(event: TraceRow, request: AdminRecord) -> bool:
    if event.kind in OF_BROKERS:
        return request["change"] in _PLACING
    if event.kind == "topic_configured":
        return bool(event.details()["name"] == request["topic"])
    of_the_isr = event.details().get("reason") in _OF_THE_ISR
    return event.topic_name == request["topic"] and (_concerns_strategy(request) or not of_the_isr)


def _concerns_strategy(request: AdminRecord) -> bool:
    """Whether the strategy of unclean recovery may become another one: also where the whole configuration is replaced,
    by which that has its default again."""
    if request["change"] != "configure":
        return False
    key, _, operation = request["wanted"]
    return key == RECOVERY_STRATEGY or operation == "replace"


def _described(asked: AdminRecord) -> str:
    answer = asked["outcome"] or "done"
    created = f", {asked['created_topic']}" if asked.get("created_topic") is not None else ""
    ended = f"{asked['ended_ns'] / 1e9:.6f} s" if asked["ended_ns"] is not None else "never"
    return (
        f"{asked['change']} {asked['topic']} ({asked['wanted']}), asked for at {asked['began_ns'] / 1e9:.6f} s, "
        f"answered at {ended}: {answer}{created}"
    )
