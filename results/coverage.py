"""Coverage marks of a run, counted over many runs: a suite has not tested what no run exercised.

kind     name                                   counts
-------  -------------------------------------  ----------------------------------------------------------------------
event    a kind of protocol event               how often it was traced (images/trace.py)
case     kind/a field of its detail              the same, by reason, error or API: `partition_changed/reassigned`
rule     a safety rule (images/broker/rules.py) how often the trace shows that it decided something; see RULES
fault    a fault                                how often it was injected and bit
family   a fault family                         the same
outcome  operation/outcome                      how many ended so: `append/info`

A rule whose effect leaves no event has no mark, whether it was needed or not.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from checkers.evidence import RunEvidence

_TOLD_BY: Final[Mapping[str, str]] = {
    "request_fenced": "api",
    "isr_proposed": "reason",
    "isr_rejected": "error",
    "broker_fenced": "reason",
    "partition_changed": "reason",
    "alter_partition_refused": "error",
}
"""The field of an event's detail that tells its cases apart."""

RULES: Final[Mapping[str, tuple[str, ...]]] = {
    "fence_fetch_epoch": ("request_fenced",),
    "truncate_on_divergence": ("diverging",),
    "broker_epoch_checked_in_alter_partition": ("alter_partition_refused/ineligible_replica",),
    "partition_epoch_checked_in_alter_partition": ("alter_partition_refused/invalid_update_version",),
}
"""The marks that show a rule at work: events, or cases of them."""


def marks(evidence: RunEvidence) -> pa.Table:
    """One row a mark with `kind`, `name` and `count`, in order; nothing that did not happen."""
    found: Counter[tuple[str, str]] = Counter()
    for kind, count in _counted(evidence.trace.column("kind")):
        found["event", kind] = count
    told = evidence.trace.filter(pc.is_in(evidence.trace.column("kind"), value_set=pa.array(list(_TOLD_BY))))
    for kind, detail in zip(told.column("kind").to_pylist(), told.column("detail").to_pylist(), strict=True):
        case = json.loads(detail or "{}").get(_TOLD_BY[kind])
        if case is not None:
            found["case", f"{kind}/{case}"] += 1
    seen = {name: count for (_, name), count in found.items()}
    for rule, shown_by in RULES.items():
        found["rule", rule] = sum(seen.get(name, 0) for name in shown_by)
    bitten = evidence.faults.filter(evidence.faults.column("bit"))
    for column, kind in (("fault", "fault"), ("family", "family")):
        for name, count in _counted(bitten.column(column)):
            found[kind, name] = count
    ended = evidence.history.select(["kind", "outcome"]).group_by(["kind", "outcome"]).aggregate([([], "count_all")])
    for row in ended.to_pylist():
        found["outcome", f"{row['kind']}/{row['outcome']}"] = row["count_all"]
    rows = [{"kind": kind, "name": name, "count": count} for (kind, name), count in sorted(found.items()) if count]
    return pa.Table.from_pylist(rows, _SCHEMA)


_SCHEMA: Final = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("count", pa.int64(), nullable=False),
    ]
)


def _counted(column: Any) -> list[tuple[str, int]]:
    return [(row["values"], row["counts"]) for row in pc.value_counts(column).to_pylist()]
