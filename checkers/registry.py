"""Every checker on one run.

Each is called by itself: one that crashes says `unknown` with the error, and the others are not disturbed. The verdict
on the run is the worst of all (`checkers.verdict.worst`).

The checkers in PARTITIONED judge each partition by itself and put the verdicts together. So they may as well be asked
of one partition at a time (`check_partition`), wherever it is stored, and their verdicts put together later (`whole`):
the outcome is the same to the letter.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pyarrow as pa

from checkers import availability, faults, groups, liveness, logs, loss, processes, reads
from checkers import raft as quorum
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
    logs.NAME: logs.check,
    protocol.NAME: protocol.check,
    quorum.NAME: quorum.check,
    groups.NAME: groups.check,
    liveness.NAME: liveness.check,
    faults.NAME: faults.check,
    availability.NAME: availability.check,
    processes.NAME: processes.check,
}
"""In the order in which their verdicts are shown."""

PARTITIONED = (linearizability.NAME, loss.NAME, reads.NAME, logs.NAME)
CRASHED = "crashed"


def check(evidence: RunEvidence, checkers: Mapping[str, Checker] = CHECKERS) -> list[Verdict]:
    """One verdict a checker, in order. `protocol` and `quorum` are left out where the system offers no trace with one
    clock, and `groups` where no consumers form one: what is not offered is not looked at, and should not keep every run
    of that system or workload from being valid."""
    return [
        run_checker(name, checker, evidence)
        for name, checker in applicable_checkers(evidence.settings, checkers).items()
    ]


def applicable_checkers(settings: CheckSettings, checkers: Mapping[str, Checker] = CHECKERS) -> Mapping[str, Checker]:
    """The checkers that there is something to look at for, in order."""
    looked_at = {
        protocol.NAME: settings.trace_has_one_clock,
        quorum.NAME: settings.trace_has_one_clock,
        groups.NAME: settings.groups,
    }
    return {name: checker for name, checker in checkers.items() if looked_at.get(name, True)}


def check_partition(evidence: RunEvidence, collected_ns: int) -> list[Verdict]:
    """What the checkers in PARTITIONED say of one partition; those that have nothing to look at say nothing.

    `evidence` is the run's, with history, replicas and replica ends of this partition alone. Of the trace there must be
    its events and every `log_recovered`; nothing, where `needs_trace` says so. `collected_ns` is when the last
    operation of the whole run completed.
    """
    told: dict[str, Checker] = {}
    if next(partitions(evidence.history), None) is not None:
        told |= {name: CHECKERS[name] for name in PARTITIONED if name != logs.NAME}
    if evidence.replica_ends.num_rows:
        told[logs.NAME] = partial(logs.check, collected_ns=collected_ns)
    return [run_checker(name, checker, evidence) for name, checker in told.items()]


def needs_trace(settings: CheckSettings, faults: pa.Table) -> bool:
    """Whether `check_partition` looks at the trace: for what replicas lost, and for what was deleted."""
    lossy = any(failure.lost_bytes > 0 for failure in node_failures(faults))
    return lossy or settings.retains_less or DELETE_RECORDS in faults.column("fault").to_pylist()


def merge_partition_verdicts(settings: CheckSettings, verdicts: Sequence[Verdict]) -> list[Verdict]:
    """One verdict a checker, as `check` gives them. `verdicts` are those of `check_partition`, by topic and partition,
    and of every other checker on the whole run."""
    told = []
    for name, checker in applicable_checkers(settings).items():
        mine = [verdict for verdict in verdicts if verdict.checker == name]
        crashed = [verdict for verdict in mine if any(finding.kind == CRASHED for finding in verdict.findings)]
        if name not in PARTITIONED:
            told += mine
        elif crashed:
            told.append(crashed[0])
        elif mine:
            told.append(merge_verdicts(name, mine, ""))
        else:
            told.append(checker(RunEvidence(settings=settings)))
    return told


def run_checker(name: str, checker: Checker, evidence: RunEvidence) -> Verdict:
    """What `checker` says, or `unknown` and why it could not."""
    try:
        return checker(evidence)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{place.filename.rsplit('/', 1)[-1]}:{place.lineno}"
        return unknown_verdict(
            name, f"the checker crashed: {type(error).__name__}: {error}", f"at {where} in {place.name}", kind=CRASHED
        )
