"""The registry of checkers, and running them on one run.

Each checker runs by itself: one that crashes says `unknown` with the error, and the others still run. The verdict on
the run is the worst of all (`checkers.verdict.worst`).

Every checker declares what its verdict rests on (RESTS_ON). A gap in one of those parts makes it `unknown`, with kind
`missing-evidence` and the gap: what is left of a damaged run can neither acquit nor accuse. The checkers that rest on
other parts are not affected.

The checkers in PARTITIONED check each partition by itself and merge the verdicts. So they can also run on one partition
at a time (`check_partition`), wherever it is stored, and the verdicts can be merged later (`merge_partition_verdicts`):
the outcome is identical.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from checkers import faults, logs, loss, processes, reads
from checkers.clients import availability, coordinator, positions, producers, time_offsets, visibility
from checkers.deletions import DELETE_RECORDS
from checkers.evidence import CheckSettings, EvidenceGap, EvidencePart, RunEvidence, gap_lines, producers_may_expire
from checkers.fault_model import node_failures, vanished_nodes
from checkers.groups import checker as groups
from checkers.linearizability import checker as linearizability
from checkers.liveness import checker as liveness
from checkers.protocol import checker as protocol
from checkers.raft import checker as raft
from checkers.unclean_elections import ELECT_UNCLEAN
from checkers.verdict import Verdict
from checkers.violations import merge_verdicts, unknown_verdict
from workloads.columns import partitions

Checker = Callable[[RunEvidence], Verdict]

_MODULES: Final = (
    linearizability,
    loss,
    reads,
    visibility,
    positions,
    time_offsets,
    producers,
    logs,
    protocol,
    raft,
    groups,
    coordinator,
    liveness,
    faults,
    availability,
    processes,
)
CHECKERS: Mapping[str, Checker] = {module.NAME: module.check for module in _MODULES}
"""In the order in which their verdicts are shown."""

RESTS_ON: Mapping[str, frozenset[EvidencePart]] = {module.NAME: module.RESTS_ON for module in _MODULES}
"""Checker → the parts of the evidence without which its verdict means nothing."""

_OF_DECISIONS: Final = (protocol.NAME, raft.NAME)
"""Checkers that check what they can on the decisions of the controllers, where there is no trace."""
PARTITIONED = tuple(module.NAME for module in (linearizability, loss, reads, positions, time_offsets, producers, logs))
CRASHED = "crashed"
MISSING_EVIDENCE = "missing-evidence"
_GAPS_SHOWN = 4


def check(evidence: RunEvidence, checkers: Mapping[str, Checker] = CHECKERS) -> list[Verdict]:
    """One verdict a checker, in order, of those that apply (`applicable_checkers`)."""
    applicable = applicable_checkers(evidence.settings, checkers, evidence.gaps)
    return [run_checker(name, checker, evidence) for name, checker in applicable.items()]


def applicable_checkers(
    settings: CheckSettings, checkers: Mapping[str, Checker] = CHECKERS, gaps: Sequence[EvidenceGap] = ()
) -> Mapping[str, Checker]:
    """The checkers that apply to a run with these settings, in order; all of them when the settings are not known.

    `protocol` and `raft` need a trace whose events have an order across nodes, or the decisions of the controllers,
    `visibility` the trace, `time_offsets` clients that ask for them, `groups` consumers that form a group or a script
    that commits, `coordinator` such consumers and the trace. A checker without its subject is left out instead of
    saying `unknown`, which would keep every run of that system, environment or workload from being valid.
    """
    if any(gap.part is EvidencePart.SETTINGS for gap in gaps):
        return checkers
    applies = {
        protocol.NAME: settings.has_ordered_trace or settings.has_decisions,
        raft.NAME: settings.has_ordered_trace or settings.has_decisions,
        visibility.NAME: settings.has_ordered_trace,
        time_offsets.NAME: settings.time_readers > 0,
        groups.NAME: settings.groups or settings.script_commits,
        coordinator.NAME: settings.groups and settings.has_ordered_trace,
    }
    return {name: checker for name, checker in checkers.items() if applies.get(name, True)}


def check_partition(evidence: RunEvidence, collected_ns: int) -> list[Verdict]:
    """The verdicts of the checkers in PARTITIONED on one partition; a checker without any evidence gives none.

    `evidence` is the run's, with history, replicas and replica ends of this partition alone. Of the trace there must be
    what `trace_of_partition` gives; nothing, where `reads_trace` says so. `collected_ns` is when the last operation of
    the whole run completed.
    """
    chosen: dict[str, Checker] = {}
    if next(partitions(evidence.history), None) is not None:
        applicable = applicable_checkers(evidence.settings)
        chosen |= {name: applicable[name] for name in PARTITIONED if name in applicable and name != logs.NAME}
    if evidence.replica_ends.num_rows:
        chosen[logs.NAME] = partial(logs.check, collected_ns=collected_ns)
    return [run_checker(name, checker, evidence) for name, checker in chosen.items()]


def reads_trace(settings: CheckSettings, faults: pa.Table, recovery: Mapping[str, Any]) -> bool:
    """Whether `check_partition` looks at the trace: where it needs it, and for what replicas a vanished node had."""
    return _needs_trace(settings, faults) or bool(vanished_nodes(recovery))


def _needs_trace(settings: CheckSettings, faults: pa.Table) -> bool:
    """Whether verdicts on partitions rest on it: for what replicas lost, for what was deleted, for unclean elections,
    and for producers that have expired."""
    lossy = any(failure.may_have_lost for failure in node_failures(faults))
    return (
        lossy
        or settings.retains_less
        or settings.unclean_election
        or producers_may_expire(settings.producers_kept_ms, settings.time_limit_ns)
        or not {DELETE_RECORDS, ELECT_UNCLEAN}.isdisjoint(faults.column("fault").to_pylist())
    )


def trace_of_partition(trace: pa.Table, topic: str, partition: int) -> pa.Table:
    """The events of one partition, every `log_recovered`, and every `node_started`: it is of no partition, and says of
    a node that has vanished that its events were received."""
    mine = pc.and_(pc.equal(trace["topic"], topic), pc.equal(trace["partition"], partition))
    return trace.filter(pc.or_(mine, pc.is_in(trace["kind"], value_set=pa.array(["log_recovered", "node_started"]))))


def merge_partition_verdicts(
    settings: CheckSettings, verdicts: Sequence[Verdict], gaps: Sequence[EvidenceGap] = ()
) -> list[Verdict]:
    """One verdict a checker, as `check` gives them. `verdicts` are those of `check_partition`, by topic and partition,
    and of every other checker on the whole run; `gaps` are those of the run."""
    merged = []
    for name, checker in applicable_checkers(settings, gaps=gaps).items():
        mine = [verdict for verdict in verdicts if verdict.checker == name]
        crashed = [verdict for verdict in mine if any(finding.kind == CRASHED for finding in verdict.findings)]
        if not mine:
            merged.append(run_checker(name, checker, RunEvidence(settings=settings, gaps=tuple(gaps))))
            continue
        rests_on = mine[0].rests_on
        missing = [gap for gap in gaps if gap.part in rests_on]
        if missing:
            merged.append(_lacking(name, missing, rests_on))
        elif name not in PARTITIONED:
            merged += mine
        else:
            merged.append(crashed[0] if crashed else replace(merge_verdicts(name, mine, ""), rests_on=rests_on))
    return merged


def run_checker(name: str, checker: Checker, evidence: RunEvidence) -> Verdict:
    """The verdict of `checker`; `unknown` when evidence that it rests on is missing, and with the error when it
    crashes."""
    parts = parts_needed(name, evidence)
    rests_on = tuple(part.value for part in EvidencePart if part in parts)
    missing = [gap for gap in (*evidence.gaps, *_gaps_of_vanished(evidence)) if gap.part in parts]
    if missing:
        return _lacking(name, missing, rests_on)
    try:
        return replace(checker(evidence), rests_on=rests_on)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{place.filename.rsplit('/', 1)[-1]}:{place.lineno}"
        lines = (f"the checker crashed: {type(error).__name__}: {error}", f"at {where} in {place.name}")
        return replace(unknown_verdict(name, *lines, kind=CRASHED), rests_on=rests_on)


def _gaps_of_vanished(evidence: RunEvidence) -> Iterator[EvidenceGap]:
    """A node whose machine vanished has left no trace, unless its events were received when they happened."""
    traced = set(evidence.trace.column("node").unique().to_pylist())
    for failure in vanished_nodes(evidence.recovery):
        if failure.node not in traced:
            when = f"its machine was gone at {failure.started_ns / 1e9:.3f} s"
            yield EvidenceGap(EvidencePart.TRACE, f"{failure.node} vanished: {when}, and nothing of its trace is left")


def parts_needed(name: str, evidence: RunEvidence) -> frozenset[EvidencePart]:
    """The evidence that checker `name` rests on in this run; everything if it is not in the registry."""
    parts = RESTS_ON.get(name, frozenset(EvidencePart))
    if EvidencePart.LOSSES in parts and _needs_trace(evidence.settings, evidence.faults):
        parts |= {EvidencePart.TRACE}
    elif not (evidence.settings.has_ordered_trace or (evidence.settings.has_decisions and name in _OF_DECISIONS)):
        parts -= {EvidencePart.TRACE}
    if name == processes.NAME and not evidence.settings.network_is_witness:
        parts -= {EvidencePart.TRACE}  # nothing in it would be a finding
    return parts - {EvidencePart.LOSSES}


def _lacking(name: str, missing: Sequence[EvidenceGap], rests_on: tuple[str, ...]) -> Verdict:
    lines = gap_lines(missing)
    if len(lines) > _GAPS_SHOWN:
        lines[_GAPS_SHOWN:] = [f"and {len(lines) - _GAPS_SHOWN} more"]
    return replace(unknown_verdict(name, *lines, kind=MISSING_EVIDENCE), rests_on=rests_on)
