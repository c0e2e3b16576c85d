"""Liveness: the cluster gets ready, and after the last fault is healed recovers within its time limit, and everything
can be read.

The limit counts from the end of healing, however long that took (`healing_seconds`).

*Recovered* is the condition that the runner waits for: every broker answers and is unfenced, every partition has a
leader, its replicas and no others, and all of them in the ISR. Then the final reads must reach the end of every
partition, every partition must take an append, the cluster must be whole again, which a silent follower may have left
meanwhile, and at the end no leader has an ISR change in flight.

not-ready          before any fault something was missing when the ready limit had passed without progress, or a process
                   had ended by itself; recorded where nothing but the system can be the cause, in the simulation
not-recovered      something was still missing when the limit had passed, or as long after the final appends; where
                   there is a trace, with the reason why a replica is out of the ISR (`checkers.liveness.out_of_sync`)
reads-not-finished the cluster had recovered, and yet the final reads did not reach the end offsets
appends-not-accepted
                   the cluster had recovered and was read to the end, and yet a partition, maybe one that nobody had
                   written to, took no append with acks=all within the limit; where neither settings nor a script may
                   be the cause
change-unsettled   a leader proposed an ISR change (AlterPartition) more than 3 s before the last event of the trace,
                   and neither an answer nor metadata nor the end of its leadership or its process settled it; this
                   needs a trace with comparable clocks
log-start-unheard  a replica in the ISR has a log that starts below its leader's, which had moved, as the last fault had
                   ended, more than 3 s before the final appends: what is deleted comes back if that replica leads.
                   Final appends would tell it; without them the last event of the trace counts. Longer than 3 s where
                   fetches wait longer, by the settings. Needs such a trace
metadata-unheard   a broker or a controller lacks metadata that was committed more than 3 s before the last event of the
                   trace, where the last fault ended, and the node started, as long before: it has stopped following.
                   Longer than 3 s where a node waits longer for a controller that has fallen silent, by the settings,
                   which must be those of all nodes; needs such a trace

The last three count from the last time for which a process did not run, as nodes on machines trace it (`node_stalled`),
to the moment at which the run begins to end the processes (`checkers.liveness.run_end`).

A partition may also have to stay without a leader: after unclean shutdowns of as many of its replicas as
`min.insync.replicas` no replica is left that is known to hold every committed record, and the protocol waits for an
operator (`unclean.recovery.strategy=manual`, as the topic has it in the end) rather than risk a loss. The verdict is
then `unknown`, with that cause. It takes both: that many brokers killed or switched off, shown by the faults' evidence,
and, where there is a trace with comparable clocks, partitions that the controllers left without a leader, with ISR and
ELR empty. A member of either is elected once it is unfenced. One broker is enough where an administrator had asked for
an unclean election of each of these partitions, and its ISR has not had `min.insync.replicas` members since: its leader
alone has all there is. Only what is missing of these partitions is excused: whatever else is, is `not-recovered`.
What the controllers take for unclean is no evidence: a broker that stopped cleanly each time is to stay a candidate.

The verdict is `unknown` when the run ended before recovery began, when a fault could not be healed (`unhealed`), and
when a node's machine vanished and the cluster did not come back without it: it was never given back what it needs.

Blind spots: progress during faults (`checkers.clients.availability` gives figures). A cluster that recovers a second
after the limit is as wrong as one that never does; the limit is part of the spec.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from checkers.decided_metadata import DecidedConfigurations, decisions_of_partitions
from checkers.evidence import CheckSettings, EvidencePart, RunEvidence
from checkers.fault_model import node_failures
from checkers.liveness import log_starts, metadata_ends, out_of_sync
from checkers.liveness.run_end import run_end
from checkers.unclean_elections import UNCLEAN_ELECTION, election_requests
from checkers.verdict import Finding, Validity, Verdict
from checkers.violations import unknown_verdict
from workloads.columns import NEVER

NAME = "liveness"
RESTS_ON = frozenset({EvidencePart.RECOVERY, EvidencePart.FAULTS, EvidencePart.TRACE, EvidencePart.SETTINGS})

_SETTLED_AFTER_NS = 3_000_000_000
_OF_ISR_CHANGES = (
    "isr_proposed", "isr_committed", "isr_rejected", "became_leader", "became_follower", "resigned", "node_started",
)  # fmt: skip


def check(evidence: RunEvidence) -> Verdict:
    """The whole run."""
    recovery = evidence.recovery
    if recovery.get("ready") is False:
        return _not_ready(evidence)
    if "recovered" not in recovery:
        return unknown_verdict(NAME, "the run ended before recovery began", kind="unfinished")
    limit_seconds, seconds = recovery.get("limit_seconds", 0), recovery.get("seconds", 0)
    figures = {
        "recovery_seconds": float(seconds),
        "limit_seconds": float(limit_seconds),
        "healing_seconds": float(recovery.get("healing_seconds", 0)),
    }
    waiting = [str(line) for line in recovery.get("waiting_for") or ()]
    vanished = [
        f"{item['node']} vanished: its machine was gone at {item['time_ns'] / 1e9:.3f} s"
        for item in recovery.get("vanished") or ()
    ]
    refused = [str(line) for line in recovery.get("refused_appends") or ()]
    left_again = [str(line) for line in recovery.get("left_again") or ()]
    if vanished and (refused or left_again or not recovery["recovered"]):
        missing = [*waiting, *(f"an append to {line}" for line in refused), *left_again]
        lines = (*vanished, "so nothing is promised; still missing:", *missing[:4], *_more(missing, 4))
        return Verdict(NAME, Validity.UNKNOWN, (Finding("node-vanished", lines),), figures)
    unhealed = [str(line) for line in recovery.get("unhealed") or ()]
    if unhealed:
        lines = ("a fault could not be healed, so nothing is promised:", *unhealed[:4], *_more(unhealed, 4))
        return Verdict(NAME, Validity.UNKNOWN, (Finding("not-healed", (*lines, *waiting[:4])),), figures)
    if not recovery["recovered"]:
        lines = _still_missing(evidence, f"not whole {limit_seconds:g} s after the last fault was healed", waiting)
        excuse = _leaderless_by_design(evidence, waiting)
        if excuse:
            return Verdict(NAME, Validity.UNKNOWN, (Finding("leaderless-by-design", (*excuse, *lines)),), figures)
        return Verdict(NAME, Validity.INVALID, (Finding("not-recovered", lines),), figures)
    if "final_reads" not in recovery:
        return Verdict(
            NAME, Validity.UNKNOWN, (Finding("unfinished", ("the run ended before its final reads",)),), figures
        )
    if not recovery["final_reads"]:
        lines = (
            f"the cluster was whole after {seconds:g} s",
            f"but reading everything back did not reach the ends within {limit_seconds:g} s",
        )
        return Verdict(NAME, Validity.INVALID, (Finding("reads-not-finished", lines),), figures)
    if refused:
        lines = (
            f"the cluster was whole after {seconds:g} s, and everything was read back",
            f"but within {limit_seconds:g} s these partitions took no append with acks=all:",
            *refused[:4],
            *_more(refused, 4),
        )
        return Verdict(NAME, Validity.INVALID, (Finding("appends-not-accepted", lines),), figures)
    if left_again:
        whole = (
            f"not whole {limit_seconds:g} s after the final appends, as it had been {seconds:g} s after the last fault"
        )
        return Verdict(
            NAME, Validity.INVALID, (Finding("not-recovered", _still_missing(evidence, whole, left_again)),), figures
        )
    unsettled = _unsettled(evidence)
    if unsettled:
        lines = (*unsettled[:4], *_more(unsettled, 4))
        return Verdict(NAME, Validity.INVALID, (Finding("change-unsettled", lines),), figures)
    unheard = _log_starts_unheard(evidence)
    if unheard:
        lines = (*unheard[:4], *_more(unheard, 4))
        return Verdict(NAME, Validity.INVALID, (Finding("log-start-unheard", lines),), figures)
    behind = _metadata_unheard(evidence)
    if behind:
        lines = (*behind[:4], *_more(behind, 4))
        return Verdict(NAME, Validity.INVALID, (Finding("metadata-unheard", lines),), figures)
    return Verdict(NAME, Validity.VALID, figures=figures)


def _not_ready(evidence: RunEvidence) -> Verdict:
    recovery = evidence.recovery
    waiting = [str(line) for line in recovery.get("waiting_for") or ()]
    crashed = [f"{crash['node']} ended by itself" for crash in recovery.get("crashes") or ()]
    limit = f"no nearer to it for {recovery.get('limit_seconds', 0):g} s"
    head = f"the cluster has not become ready, and {' and '.join(crashed[:2]) or limit}: nothing had been broken yet"
    return Verdict(NAME, Validity.INVALID, (Finding("not-ready", _still_missing(evidence, head, waiting)),))


def _still_missing(evidence: RunEvidence, head: str, waiting: list[str]) -> tuple[str, ...]:
    """The conditions a cluster waits for, below a first line, and the causes as far as the trace has them."""
    causes = out_of_sync.reasons(evidence.trace) if evidence.settings.has_ordered_trace else []
    missing = [f"still missing: {line}" for line in waiting[:1]] + waiting[1:]
    return (head, *causes[:4], *_more(causes, 4), *missing[:4], *_more(missing, 4))


def _unsettled(evidence: RunEvidence) -> list[str]:
    """ISR changes that were still under way when the cluster had long been whole, a line each."""
    if not evidence.settings.has_ordered_trace:
        return []
    trace = evidence.trace.filter(pc.is_in(evidence.trace.column("kind"), value_set=pa.array(_OF_ISR_CHANGES)))
    end = run_end(evidence)
    proposed: dict[tuple[str, str, int], tuple[int, str]] = {}
    for row in trace.sort_by("seq").to_pylist():
        key = (row["node"], row["topic"], row["partition"])
        if row["kind"] == "isr_proposed":
            proposed[key] = row["time_ns"], ", ".join(f"b{member}" for member in row["members"])
        elif row["kind"] == "node_started":
            proposed = {key: proposal for key, proposal in proposed.items() if key[0] != row["node"]}
        elif row["kind"] != "isr_rejected" or _rolled_back(row):
            proposed.pop(key, None)
    return [
        f"{node} proposed the ISR {{{members}}} of {topic}-{partition} at {time_ns / 1e9:.3f} s, and it is not settled"
        for (node, topic, partition), (time_ns, members) in proposed.items()
        if end.is_long_after(time_ns, _SETTLED_AFTER_NS)
    ]


def _rolled_back(row: Mapping[str, Any]) -> bool:
    """Whether a refusal ended a change; any other leaves the leader on the maximal ISR until metadata settles it."""
    detail = json.loads(row["detail"] or "{}")
    return bool(detail.get("rolled_back")) or detail.get("error") == "ineligible_replica"


def _log_starts_unheard(evidence: RunEvidence) -> list[str]:
    settings = evidence.settings
    if not settings.has_ordered_trace:
        return []
    end = run_end(evidence, before_final_appends=True)
    return [*log_starts.unheard(evidence.trace, end, evidence.faults, settings.leader_heard_ms)]


def _metadata_unheard(evidence: RunEvidence) -> list[str]:
    silence_ms = evidence.settings.controller_silence_ms
    if not evidence.settings.has_ordered_trace or silence_ms < 0:
        return []
    gone = [item["node"] for item in evidence.recovery.get("vanished") or ()]
    trace = evidence.trace.filter(~pc.field("node").isin(gone)) if gone else evidence.trace
    return [*metadata_ends.unheard(trace, run_end(evidence), evidence.faults, silence_ms)]


def _more(lines: list[str], shown: int) -> tuple[str, ...]:
    return (f"and {len(lines) - shown} more",) if len(lines) > shown else ()


def _leaderless_by_design(evidence: RunEvidence, waiting: list[str]) -> tuple[str, ...]:
    """Why the protocol itself may have left partitions without a leader, and nothing else is missing; empty when it may
    not, or something else is."""
    settings, leaderless = evidence.settings, _leaderless(evidence)
    if leaderless is None and not _waits_for_operator(settings):
        return ()
    failures = node_failures(evidence.faults)
    stopped = {failure.node for failure in failures if failure.killed > 0 or failure.may_have_lost}
    brokers = sorted(node for node in stopped if node.startswith("b"))
    survived = 0 if leaderless and all(leaderless.values()) else settings.losses_tolerated
    if len(brokers) <= survived:
        return ()
    if leaderless is not None and not (waiting and all(_concerns(line, leaderless) for line in waiting)):
        return ()
    which = f": {', '.join(leaderless)}" if leaderless else ""
    return (
        f"{len(brokers)} brokers ended uncleanly ({', '.join(brokers)}), and the protocol survives "
        f"{survived}: it may leave a partition without a leader rather than lose data{which}",
    )


def _concerns(line: str, names: Iterable[str]) -> bool:
    """Whether a line of what is missing names one of these partitions."""
    return any(re.search(rf"(?<![\w.-]){re.escape(name)}(?!\w)", line) for name in names)


def _waits_for_operator(settings: CheckSettings) -> bool:
    return settings.unclean_recovery == "manual" and not settings.unclean_election


def _leaderless(evidence: RunEvidence) -> dict[str, bool] | None:
    """Partitions that the controllers left without a leader or a replica to elect, as their topics are configured in
    the end, each with whether one broker was enough (`_rests_on_one`); None where it is not known what they decided."""
    if not evidence.settings.has_ordered_trace:
        return None
    decided = decisions_of_partitions(evidence.trace)
    if not decided:
        return None
    configurations, requests = DecidedConfigurations(evidence.trace), election_requests(evidence)
    return {
        f"{topic}-{partition}": (topic, partition) in requests and _rests_on_one(rows)
        for (topic, partition), rows in sorted(decided.items())
        if _is_abandoned(rows[-1])
        and _waits_for_operator(evidence.settings.as_configured(configurations.at(topic, NEVER)))
    }


def _rests_on_one(decisions: Sequence[Mapping[str, Any]]) -> bool:
    """Whether an administrator had an unclean election made, and the ISR has been smaller than its minimum since."""
    rests = False
    for decision in decisions:
        minimum = min(decision.get("min_isr", 1), len(decision.get("replicas") or ()))
        if len(decision["members"] or ()) >= minimum:
            rests = False
        elif decision.get("reason") == UNCLEAN_ELECTION:
            rests = True
    return rests


def _is_abandoned(decision: Mapping[str, Any]) -> bool:
    """Whether a partition that exists has no leader and no replica that is known to hold every committed record."""
    is_deleted = decision["kind"] == "partition_deleted"
    return bool(not is_deleted and decision["leader"] < 0 and not decision["members"] and not decision.get("elr"))
