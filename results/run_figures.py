"""The figures of one run: how each number is computed from the evidence of the run.

appends, acknowledged        in the main phase, whatever the settings promise about them
lost                         acknowledged records missing at the end: not read back, or, without completed final reads,
                             in none of the logs collected, if there are any; deleted records (checkers.deletions) are
                             not lost
duplicated                   additional offsets at which a value was read back
reordered                    records invoked only after a record at a higher offset had been acknowledged
unavailable_s                seconds, on the worst partition, in windows of at least 100 ms without an acknowledgement
                             although an append was in progress; waiting after the end of `main_s` does not count
unavailable_windows          the number of such windows, over all partitions
unavailable_longest_s        the longest window, cut off likewise: `checkers.clients.availability` has it uncut
main_s                       the time for which clients were driven
append_ms_p50, p99           latency of acknowledged appends
recovery_s                   from the end of the last fault to a whole cluster; absent without recovery

`lost` counts every missing record, allowed or not; the verdict decides whether the loss was allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.evidence import RunEvidence
from workloads.columns import APPEND, FOREIGN, NEVER, OK, Columns, Int64, numbers

WINDOW_LEAST_NS = 100_000_000


@dataclass(frozen=True)
class PartitionRecords:
    """The records of one partition, from which its figures are computed."""

    history: pa.Table
    """The partition's operations on records."""
    replicas: pa.Table
    """The records on disk."""
    replica_ends: pa.Table
    """The logs that were collected, empty ones too."""
    recovery: Mapping[str, object]
    deleted_below: int
    """Records at lower offsets may be deleted."""
    limit_ns: int
    """The time for which clients were to be driven."""

    @cached_property
    def columns(self) -> Columns:
        """The history as arrays."""
        return Columns.from_table(self.history)

    @cached_property
    def appends(self) -> Int64:
        """Rows of the appends of the main phase."""
        return np.flatnonzero((self.columns.kind == APPEND) & _in_main_phase(self.history))

    @cached_property
    def acknowledged(self) -> Int64:
        """Rows of the acknowledged appends."""
        return self.appends[self.columns.outcome[self.appends] == OK]

    @cached_property
    def read_back(self) -> tuple[Int64, Int64]:
        """Values and offsets returned by the final reads, each offset once."""
        mask = np.repeat(~_in_main_phase(self.history), np.diff(self.columns.starts))
        offsets, first = np.unique(self.columns.poll_offset[mask], return_index=True)
        return self.columns.poll_value[mask][first], offsets

    @cached_property
    def windows_ns(self) -> Int64:
        """The lengths of the unavailability windows."""
        columns, appends = self.columns, self.appends
        if not len(appends):
            return appends
        start = columns.invoked_ns[_in_main_phase(self.history)].min(initial=NEVER - self.limit_ns)
        limit = int(start) + self.limit_ns
        invoked = np.sort(columns.invoked_ns[appends])
        completed = columns.completed_ns[appends]
        end = max(int(invoked[-1]), int(completed[completed != NEVER].max(initial=0)))
        edges = np.concatenate([[invoked[0]], np.sort(columns.completed_ns[self.acknowledged]), [end]])
        begins, ends = edges[:-1], edges[1:]
        next_append = np.searchsorted(invoked, begins, side="left")
        in_progress = next_append < len(invoked)
        waits = np.minimum(ends[in_progress], limit) - np.maximum(
            begins[in_progress], invoked[next_append[in_progress]]
        )
        return np.asarray(waits[waits >= WINDOW_LEAST_NS], dtype=np.int64)

    @property
    def has_final_reads(self) -> bool:
        """True when the final reads were completed."""
        return bool(self.recovery.get("final_reads"))


@dataclass(frozen=True, slots=True)
class RunFigure:
    """One number of a run, stored in the table `metrics` under this name (checker `measured`).

    It is computed for each partition and merged, or for the whole run, or from the run's outcome. A figure without any
    of the three is added when runs are read.
    """

    name: str
    of_partition: Callable[[PartitionRecords], float] | None = None
    merge: Callable[[Iterable[float]], float] = sum
    """The run's figure from those of its partitions: `sum` or `max`."""
    of_run: Callable[[RunEvidence], float | None] | None = None
    """None for a run without the figure."""
    of_outcome: Callable[[str], float] | None = None
    may_be_absent: bool = False
    """True when a measured run may lack the figure; a missing figure of another kind counts as 0."""


def _lost(records: PartitionRecords) -> float:
    columns, acknowledged = records.columns, records.acknowledged
    if not records.has_final_reads and not records.replica_ends.num_rows:
        return 0.0
    present = records.read_back[0] if records.has_final_reads else _values_on_disk(records.replicas)
    not_deleted = (columns.offset[acknowledged] < 0) | (columns.offset[acknowledged] >= records.deleted_below)
    return float((not_deleted & ~np.isin(columns.value[acknowledged], present)).sum())


def _duplicated(records: PartitionRecords) -> float:
    return float((np.diff(np.sort(records.read_back[0])) == 0).sum()) if records.has_final_reads else 0.0


def _reordered(records: PartitionRecords) -> float:
    values, offsets = records.read_back
    if not records.has_final_reads or not len(values):
        return 0.0
    columns, acknowledged = records.columns, records.acknowledged
    order = np.argsort(offsets, kind="stable")
    by_value = acknowledged[np.argsort(columns.value[acknowledged], kind="stable")]
    at = np.searchsorted(columns.value[by_value], values[order])
    within = at < len(by_value)
    rows = by_value[at[within]]
    rows = rows[columns.value[rows] == values[order][within]]
    # From the end of the log: the earliest acknowledgement of any record at a higher offset.
    above = np.minimum.accumulate(columns.completed_ns[rows][::-1])[::-1]
    return float((columns.invoked_ns[rows][:-1] > above[1:]).sum())


def _latency_quantile_ms(evidence: RunEvidence, quantile: float) -> float | None:
    acknowledged = evidence.history.filter(
        (pc.field("kind") == "append") & (pc.field("phase") == "main") & (pc.field("outcome") == "ok")
    )
    latencies = numbers(acknowledged.column("completed_ns"), NEVER) - numbers(acknowledged.column("invoked_ns"), NEVER)
    return float(np.quantile(latencies, quantile)) / 1e6 if len(latencies) else None


def _recovery_s(evidence: RunEvidence) -> float | None:
    return float(str(evidence.recovery["seconds"])) if evidence.recovery.get("recovered") else None


def _in_main_phase(history: pa.Table) -> np.typing.NDArray[np.bool_]:
    return np.asarray(pc.equal(history.column("phase"), "main").to_numpy(zero_copy_only=False), dtype=bool)


def _values_on_disk(replicas: pa.Table) -> Int64:
    return numbers(pc.drop_null(replicas.column("value")), FOREIGN)


APPENDS = RunFigure("appends", lambda records: float(len(records.appends)))
ACKNOWLEDGED = RunFigure("acknowledged", lambda records: float(len(records.acknowledged)))
PLANNED = RunFigure("planned", may_be_absent=True)
"""Rate × time of a spec with producers; added when runs are read (`results.store.spec_facts`)."""
LOST = RunFigure("lost", _lost)
DUPLICATED = RunFigure("duplicated", _duplicated)
REORDERED = RunFigure("reordered", _reordered)
UNAVAILABLE_S = RunFigure("unavailable_s", lambda records: int(records.windows_ns.sum()) / 1e9, max)
UNAVAILABLE_WINDOWS = RunFigure("unavailable_windows", lambda records: float(len(records.windows_ns)))
UNAVAILABLE_LONGEST_S = RunFigure(
    "unavailable_longest_s", lambda records: int(records.windows_ns.max(initial=0)) / 1e9, max
)
MAIN_S = RunFigure("main_s", of_run=lambda evidence: evidence.settings.time_limit_ns / 1e9)
APPEND_MS_P50 = RunFigure(
    "append_ms_p50", of_run=lambda evidence: _latency_quantile_ms(evidence, 0.5), may_be_absent=True
)
APPEND_MS_P99 = RunFigure(
    "append_ms_p99", of_run=lambda evidence: _latency_quantile_ms(evidence, 0.99), may_be_absent=True
)
RECOVERY_S = RunFigure("recovery_s", of_run=_recovery_s, may_be_absent=True)
NOT_VALID = RunFigure("not_valid", of_outcome=lambda outcome: float(outcome != "valid"))
