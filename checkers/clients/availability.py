"""The cost of the promises: how often, and for how long, appends were not possible. Figures only, always valid.

appends, ok, fail, info       appends invoked in the main phase, and their outcomes
acks_share                    ok / appends
read                          records of acknowledged appends that some poll of the main phase returned
unavailable_seconds_longest   the longest time, on any partition, in which no append was acknowledged although one was
                              open: from an acknowledgement (or the first invocation) to the next one (or the end of
                              the main phase). It begins no earlier than the first invocation after that
                              acknowledgement, so that an idle client counts for nothing
append_ms_p50 … p99, max      from invocation to acknowledgement, of acknowledged appends
poll_ms_…, end_offset_ms_…    likewise, of reads that were answered

Blind spots: a client that never invoked anything; time lost inside the client. The times of the history are trusted to
be of one clock.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from checkers.evidence import EvidencePart, RunEvidence
from checkers.verdict import Validity, Verdict
from checkers.violations import unknown_verdict
from workloads.columns import APPEND, KINDS, NEVER, NOTHING, OK, OUTCOMES, Int64, numbers

NAME = "availability"
RESTS_ON = frozenset({EvidencePart.HISTORY})

_QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}


def check(evidence: RunEvidence) -> Verdict:
    """The whole run. Of the history it looks at kind, phase, outcome, the times, topic, partition and offsets."""
    main = _MainPhase(evidence.history)
    if not len(main.kind):
        return unknown_verdict(NAME, "no operation was recorded")
    figures: dict[str, float] = {}
    appends = main.kind == APPEND
    figures["appends"] = float(appends.sum())
    for code, name in enumerate(OUTCOMES):
        figures[name] = float((appends & (main.outcome == code)).sum())
    if figures["appends"]:
        figures["acks_share"] = figures["ok"] / figures["appends"]
        acknowledged = appends & (main.outcome == OK)
        figures["read"] = float(sum(_read(main, acknowledged, place) for place in np.unique(main.place)))
    figures["unavailable_seconds_longest"] = max(
        (_longest(main, np.flatnonzero(appends & (main.place == place))) for place in np.unique(main.place)),
        default=0.0,
    )
    for code, kind in enumerate(KINDS):
        answered = (main.kind == code) & (main.outcome == OK) & (main.completed_ns != NEVER)
        latency_ms = (main.completed_ns[answered] - main.invoked_ns[answered]) / 1e6
        if len(latency_ms):
            values = np.quantile(latency_ms, list(_QUANTILES.values()))
            for name, value in zip(_QUANTILES, values, strict=True):
                figures[f"{kind}_ms_{name}"] = round(float(value), 6)
    return Verdict(NAME, Validity.VALID, figures=figures)


class _MainPhase:
    """The operations on records in the main phase, one entry each in every array."""

    def __init__(self, history: pa.Table) -> None:
        phase, kind = (history.column(name) for name in ("phase", "kind"))
        kinds = pc.fill_null(pc.index_in(kind, value_set=pa.array(KINDS)), -1).to_numpy()
        wanted = pc.equal(phase, "main").to_numpy() & (kinds >= 0)
        outcomes = pc.fill_null(pc.index_in(history.column("outcome"), value_set=pa.array(OUTCOMES)), -1).to_numpy()
        topics = history.column("topic")
        topic = pc.index_in(topics, value_set=pc.unique(topics)).to_numpy().astype(np.int64)
        self.kind, self.outcome = kinds[wanted], outcomes[wanted]
        self.invoked_ns = numbers(history.column("invoked_ns"), NEVER)[wanted]
        self.completed_ns = numbers(history.column("completed_ns"), NEVER)[wanted]
        self.offset = numbers(history.column("offset"), NOTHING)[wanted]
        offsets = history.column("offsets").filter(pa.array(wanted))
        self.returned = numbers(pc.list_flatten(offsets), NOTHING)
        """The offsets that polls returned."""
        self.place = ((topic << 32) + numbers(history.column("partition"), -1))[wanted]
        """A number for each partition of each topic."""
        self.returned_place = np.repeat(self.place, numbers(pc.list_value_length(offsets), 0))


def _read(main: _MainPhase, acknowledged: npt.NDArray[np.bool_], place: int) -> int:
    """How many of the acknowledged appends to one partition have an offset that some poll returned."""
    appended = main.offset[acknowledged & (main.place == place)]
    return int(np.isin(appended, main.returned[main.returned_place == place]).sum())


def _longest(main: _MainPhase, appends: Int64) -> float:
    """Seconds; see the module's docstring."""
    if not len(appends):
        return 0.0
    invoked = np.sort(main.invoked_ns[appends])
    acknowledged = appends[(main.outcome[appends] == OK) & (main.completed_ns[appends] != NEVER)]
    answered = np.sort(main.completed_ns[acknowledged])
    completed = main.completed_ns[appends]
    end = max(int(invoked[-1]), int(completed[completed != NEVER].max(initial=0)))
    begins = np.concatenate([[invoked[0]], answered])
    ends = np.concatenate([answered, [end]])
    first_invocation = np.searchsorted(invoked, begins, side="left")
    has_invocation = first_invocation < len(invoked)
    waited = ends[has_invocation] - np.maximum(begins[has_invocation], invoked[first_invocation[has_invocation]])
    return float(max(0, waited.max(initial=0))) / 1e9
