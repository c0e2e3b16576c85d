"""Effect of the injected faults: a test that broke nothing proves nothing.

Every fault leaves evidence measured by the environment (`nemesis.ports`), and records whether it took effect. A fault
without effect (a kill of a node that was down already, a partition that stopped no message) is named; the run is
still as good as its other faults, so the verdict stays `valid` and each such fault is a finding `fault-missed`, or
`effect-unknown` where its effect could not be read back (`unknown_<name>` in its evidence); a fault whose condition
never held is `not-injected`. The verdict is `unknown` when faults were asked for and none took effect, or none was
injected at all. A fault that did not do what it is for, but broke something on the way (a power loss after which
nothing was missing ended a process, a late message that came in time was held), is named as well and is enough for
`valid`.

Figures: `injected`, `took_effect`, `missed`, `not_injected`, and `took_effect <family>` for each family.

Blind spots: whether a fault that took effect could have broken anything; false evidence.
"""

from __future__ import annotations

import json

from checkers.evidence import EvidencePart, RunEvidence
from checkers.verdict import Finding, Validity, Verdict

NAME = "faults"
_UNKNOWN = "unknown_"
_NOT_INJECTED = "not_injected"
"""In the detail of a fault whose condition never held, with the reason."""
_BROKEN = ("killed", "stopped", "missed", "held", "lost", "intercepted", "lost_bytes", "lost_names")
"""Evidence of what a fault broke, whatever for: processes that it ended, messages that waited or were lost, and what
disks lost."""
RESTS_ON = frozenset({EvidencePart.FAULTS, EvidencePart.SETTINGS})


def check(evidence: RunEvidence) -> Verdict:
    """The whole run."""
    rows = evidence.faults.sort_by("started_ns").to_pylist()
    missed = [row for row in rows if not row["bit"]]
    never = sum(_NOT_INJECTED in json.loads(row["detail"] or "{}") for row in rows)
    figures = {
        "injected": float(len(rows) - never),
        "took_effect": float(len(rows) - len(missed)),
        "missed": float(len(missed) - never),
        "not_injected": float(never),
    }
    for row in rows:
        name = f"took_effect {row['family']}"
        figures[name] = figures.get(name, 0.0) + float(row["bit"])
    findings = tuple(_missed(row) for row in missed)
    if not evidence.settings.faults_asked or len(missed) < len(rows) or any(map(_broke_something, missed)):
        return Verdict(NAME, Validity.VALID, findings, figures)
    reason = "faults were asked for, and " + (f"none of {len(rows)} took effect" if rows else "none was injected")
    return Verdict(NAME, Validity.UNKNOWN, (Finding("nothing-took-effect", (reason,)), *findings), figures)


def _broke_something(row: dict[str, object]) -> bool:
    evidence = json.loads(str(row["evidence"] or "{}"))
    return any(evidence.get(name, 0) > 0 for name in _BROKEN)


def _missed(row: dict[str, object]) -> Finding:
    nodes = row["nodes"]
    assert isinstance(nodes, list)
    started_ns = int(str(row["started_ns"]))
    reason = json.loads(str(row["detail"] or "{}")).get(_NOT_INJECTED)
    if reason is not None:
        return Finding("not-injected", (f"{row['fault']}: {reason}",), time_ns=started_ns)
    unknown = [name.removeprefix(_UNKNOWN) for name in json.loads(str(row["evidence"] or "{}")) if _UNKNOWN in name]
    if unknown:
        line = f"{row['fault']} at {started_ns / 1e9:.3f} s: {', '.join(unknown)} could not be read back"
        return Finding("effect-unknown", (line, str(row["note"])), time_ns=started_ns)
    effect = "did not do what it is for" if _broke_something(row) else "did nothing that could be measured"
    if row["ended_ns"] is None:
        effect = "had no evidence yet when the run ended"
    return Finding(
        kind="fault-missed",
        lines=(
            f"{row['fault']} at {started_ns / 1e9:.3f} s on {', '.join(nodes) or 'no node'} {effect}",
            f"evidence: {row['evidence'] or '{}'}" + (f"; {row['note']}" if row["note"] else ""),
        ),
        time_ns=started_ns,
    )
