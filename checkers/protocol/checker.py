"""The protocol's own promises, read off the trace (white box): where a run was lucky, this still sees the mistake.

The trace is cluster event by event (`checkers.protocol.trace_replay`), which gives at each moment the log of every
replica as leader epochs by offset, what is *committed* (all that was ever below a leader's high watermark), what the
controller last decided, and who restarted since it last registered. A record is known by its offset and leader epoch,
which Log Matching (`checkers.logs`) entitles to. Then, for every partition:

two-leaders-one-epoch     no two nodes lead, or are elected, in one leader epoch
leader-incomplete         whoever becomes leader holds everything committed in an earlier leader epoch (Leader
                          Completeness)
candidate-incomplete      after every ISR change, election, registration and recovery each member of ISR ∪ ELR holds
                          everything committed (Leader Candidate Completeness)
unclean-election          nobody is elected who was in neither the ISR nor the ELR, unless the topic allows it: anybody
                          by unclean election or proactive recovery, a member of the LastKnownELR by balanced recovery
                          when ISR and ELR are empty
unclean-not-excluded      who registers after an unclean shutdown is in no ISR and no ELR until it has joined an ISR
                          anew, or was elected by an unclean recovery (Unclean Exclusion)
quorum-too-small          the high watermark moves only with a quorum of min.insync.replicas (MinISR recovery quorum)
quorum-not-superset       the quorum that moves it holds the controller's ISR ∪ ELR while that ISR is large enough, for
                          the leader in office (Replication Quorum Superset)
replica-counted-wrongly   every member of that quorum holds the records that the high watermark passes
committed-overwritten     what becomes committed at an offset is what was committed there before
high-watermark-fell       it never falls within a leadership
latest-below-start        a leader tells the latest offset only once its high watermark has reached its epoch's start
                          (Applied-HW)
log-start-uncommitted     no log's start moves above what was ever below a leader's high watermark
log-start-unasked         nobody moves a log's start by itself further than deletion was asked for, unless the topic has
                          a retention (`checkers.deletions`)
log-start-unfounded       who begins anew, recovers or follows starts no higher than somebody had decided
acknowledged-uncommitted  an acks=all append is acknowledged when the high watermark has passed it

Judged with care, each with the run that shows why:

*A node between its restart and its registration is judged by nothing.* b2 loses its tail to a power loss and starts
again at once; the controller, which has not noticed, still counts the old b2 in the ISR, may even elect it. No promise
is broken: the new b2 may not act before it registers, and registering takes it out. A rule switched off shows when it
has registered and still is a member.

*A replica that lost data is not held to what a leader counted for it before.* b2 had fetched up to 100, and lost 95–99;
b3 catches up, and the leader moves on to 100. It could not know. Not so once b2 has joined an ISR again.

*A node may become leader long after it was elected.* b3 is elected in epoch 1 and paused before it hears; b2 leads
in epoch 4 and commits; b3 wakes, takes up epoch 1 for an instant and lacks what b2 committed. It will commit nothing.

*Events of one instant are judged together, when it is over.* Registering writes several records in one batch; between
them the cluster is in a state that nobody can see.

*What lies below a replica's log start is of no matter to what it holds.* It was deleted, and a replica may even have
something else there: its leader, which has deleted the records, can no longer tell it where they part.

*The superset is asked of the leader in office only.* One that was deposed and does not know it yet commits with its own
old quorum, which holds whoever was elected; the controller's ISR has moved on without it.

Topics with unclean elections, and losses beyond the fault model, are `checkers.violations`'s: they can excuse the four
promises about who holds what is committed. The others are about what nodes decide, and nothing excuses them.

What it cannot see: a trace that leaves things out (an offset that does not follow makes that part of a log unknown, and
matches anything; `trace_gaps` counts them); promises about metadata logs; anything when nodes have clocks of their own.
Nodes are told by name: broker N is `bN` (`nemesis.ports`).
"""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.deletions import deletion_requests
from checkers.evidence import RunEvidence
from checkers.fault_model import default_tolerance, tolerances
from checkers.protocol.state import ProtocolViolation
from checkers.protocol.trace_replay import replay_trace
from checkers.verdict import Finding, Verdict
from checkers.violations import Violations, merge_verdicts, unknown_verdict, verdict_of

NAME = "protocol"


def check(evidence: RunEvidence) -> Verdict:
    """Every partition that the trace tells of."""
    if not evidence.settings.has_trace:
        return unknown_verdict(NAME, "the system writes no protocol trace")
    if not evidence.settings.comparable_clocks:
        return unknown_verdict(NAME, "the trace's nodes have clocks of their own, so their events have no order")
    if not evidence.trace.num_rows:
        return unknown_verdict(NAME, "no protocol trace was recorded")
    special, rule = tolerances(evidence), default_tolerance(evidence)
    cluster = replay_trace(evidence.trace, evidence.settings, deletion_requests(evidence))
    verdicts, converged = [], _convergences(evidence.trace)
    for name, partition in sorted(cluster.partitions.items()):
        kinds: dict[str, list[ProtocolViolation]] = {}
        for violation in partition.violations:
            kinds.setdefault(violation.kind, []).append(violation)
        found = [_violations(name, violations) for violations in kinds.values()]
        figures = {
            "events": float(partition.events),
            "committed": float(len(partition.committed)),
            "elections": float(partition.elections),
            "log_start": float(partition.decided_log_start),
            "high_watermark_moves": float(partition.watermark_moves),
            "trace_gaps": float(partition.trace_gaps),
            "convergences": float(len(converged.get(name, ()))),
            "exchanges": float(sum(converged.get(name, ()))),
        }
        verdicts.append(verdict_of(NAME, found, special.get(name, rule), figures))
    return merge_verdicts(NAME, verdicts, "the trace tells of no partition")


def _convergences(trace: pa.Table) -> dict[tuple[str, int], list[int]]:
    """By partition: the exchanges that each follower needed to find where its log and its leader's part."""
    found: dict[tuple[str, int], list[int]] = {}
    rows = trace.filter(pc.field("kind") == "converged").select(["topic", "partition", "detail"])
    for row in rows.to_pylist():
        found.setdefault((row["topic"], row["partition"]), []).append(json.loads(row["detail"])["exchanges"])
    return found


def _violations(name: tuple[str, int], violations: list[ProtocolViolation]) -> Violations:
    def explain(number: int) -> Finding:
        violation = violations[number]
        return Finding(violation.kind, violation.lines, *name, offsets=(violation.offset,), time_ns=violation.time_ns)

    return Violations(
        violations[0].kind,
        np.array([violation.offset for violation in violations], dtype=np.int64),
        np.array([violation.time_ns for violation in violations], dtype=np.int64),
        explain,
        np.array([violation.since_ns for violation in violations], dtype=np.int64),
    )
