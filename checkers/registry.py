"""The registry of checkers, and running them on one run.

Each checker runs by itself: one that crashes says `unknown` with the error, and the others still run. The verdict on
the run is the worst of all (`checkers.verdict.worst`).

The checkers in PARTITIONED check each partition by itself and merge the verdicts. So they can also run on one partition
at a time (`check_partition`), wherever it is stored, and the verdicts can be merged later (`merge_partition_verdicts`):
the outcome is identical.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pyarrow as pa

from checkers import availability, faults, groups, liveness, logs, loss, processes, producers, raft, reads
from checkers.deletions import DELETE_RECORDS
from checkers.evidence import CheckSettings, RunEvidence
from checkers.fault_model import node_failures
from checkers.linearizability import checker as linearizability
from checkers.protocol import checker as protocol
from checkers.verdict import Verdict
from checkers.violations import merge_verdicts, unknown_verdict
from workloads.columns import partitions

Checker = Callable[[RunEvidence], Verdict]

CHECKERS: Mapping[str, Checker] = {
    linearizability.NAME: linearizability.check,
    loss.NAME: loss.check,
    reads.NAME: reads.check,
    producers.NAME: producers.check,
    logs.NAME: logs.check,
    protocol.NAME: protocol.check,
    raft.NAME: raft.check,
    groups.NAME: groups.check,
    liveness.NAME: liveness.check,
    faults.NAME: faults.check,
    availability.NAME: availability.check,
    processes.NAME: processes.check,
}
"""In the order in which their verdicts are shown."""

PARTITIONED = (linearizability.NAME, loss.NAME, reads.NAME, producers.NAME, logs.NAME)
CRASHED = "crashed"


def check(evidence: RunEvidence, checkers: Mapping[str, Checker] = CHECKERS) -> list[Verdict]:
    """One verdict a checker, in order, of those that apply (`applicable_checkers`)."""
    return [
        run_checker(name, checker, evidence)
        for name, checker in applicable_checkers(evidence.settings, checkers).items()
    ]


def applicable_checkers(settings: CheckSettings, checkers: Mapping[str, Checker] = CHECKERS) -> Mapping[str, Checker]:
    """The checkers that apply to a run with these settings, in order.

    `protocol` and `raft` need a trace whose events have an order across nodes, `groups` needs consumers that form a
    group. A checker without its subject is left out instead of saying `unknown`, which would keep every run of that
    system, environment or workload from being valid.
    """
    applies = {
        protocol.NAME: settings.has_ordered_trace,
        raft.NAME: settings.has_ordered_trace,
        groups.NAME: settings.groups,
    }
    return {name: checker for name, checker in checkers.items() if applies.get(name, True)}


def check_partition(evidence: RunEvidence, collected_ns: int) -> list[Verdict]:
    """The verdicts of the checkers in PARTITIONED on one partition; a checker without any evidence gives none.

    `evidence` is the run's, with history, replicas and replica ends of this partition alone. Of the trace there must be
    its events and every `log_recovered`; nothing, where `needs_trace` says so. `collected_ns` is when the last
    operation of the whole run completed.
    """
    chosen: dict[str, Checker] = {}
    if next(partitions(evidence.history), None) is not None:
        chosen |= {name: CHECKERS[name] for name in PARTITIONED if name != logs.NAME}
    if evidence.replica_ends.num_rows:
        chosen[logs.NAME] = partial(logs.check, collected_ns=collected_ns)
    return [run_checker(name, checker, evidence) for name, checker in chosen.items()]


def needs_trace(settings: CheckSettings, faults: pa.Table) -> bool:
    """Whether `check_partition` looks at the trace: for what replicas lost, and for what was deleted."""
    lossy = any(failure.lost_bytes > 0 for failure in node_failures(faults))
    return lossy or settings.retains_less or DELETE_RECORDS in faults.column("fault").to_pylist()


def merge_partition_verdicts(settings: CheckSettings, verdicts: Sequence[Verdict]) -> list[Verdict]:
    """One verdict a checker, as `check` gives them. `verdicts` are those of `check_partition`, by topic and partition,
    and of every other checker on the whole run."""
    merged = []
    for name, checker in applicable_checkers(settings).items():
        mine = [verdict for verdict in verdicts if verdict.checker == name]
        crashed = [verdict for verdict in mine if any(finding.kind == CRASHED for finding in verdict.findings)]
        if name not in PARTITIONED:
            merged += mine
        elif crashed:
            merged.append(crashed[0])
        elif mine:
            merged.append(merge_verdicts(name, mine, ""))
        else:
            merged.append(checker(RunEvidence(settings=settings)))
    return merged


def run_checker(name: str, checker: Checker, evidence: RunEvidence) -> Verdict:
    """The verdict of `checker`; `unknown` with the error when it crashes."""
    try:
        return checker(evidence)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{place.filename.rsplit('/', 1)[-1]}:{place.lineno}"
        return unknown_verdict(
            name, f"the checker crashed: {type(error).__name__}: {error}", f"at {where} in {place.name}", kind=CRASHED
        )
