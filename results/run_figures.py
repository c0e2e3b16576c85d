"""What one run comes to, in numbers that can be added up over runs and compared between settings.

appends, acknowledged        in the main phase; whatever the settings promise about them
lost                         acknowledged records that are gone in the end: not read back, or where the final reads were
                             not completed, on no replica's disk; deleted ones (checkers.deletions) are not lost
duplicated                   further places at which a value stood when it was read back
reordered                    records that were asked for only after one that stands above them had been acknowledged
unavailable_s                seconds, on the worst partition, in stretches of at least 100 ms without an acknowledgement
                             although one was asked for, as long as clients were to be driven: what is still waited
                             for after that is no part of `main_s`
unavailable_windows          how many such stretches there were, on all partitions
unavailable_longest_s        the longest of them
main_s                       how long clients were driven
append_ms_p50, p99           of acknowledged appends
recovery_s                   from the last fault's end to a whole cluster; absent if it did not come to that

`lost` counts without asking whether it was allowed: that is the verdict's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.deletions import deletable_below
from checkers.evidence import RunEvidence
from checkers.tables import of_partition
from workloads.columns import APPEND, FOREIGN, NEVER, OK, Columns, Int64, numbers, partitions

STRETCH_NS = 100_000_000


def measure(evidence: RunEvidence) -> dict[str, float]:
    """The numbers of one run."""
    deleted = deletable_below(evidence)
    parts = [
        measure_partition(
            history,
            of_partition(evidence.replicas, topic, number),
            evidence.recovery,
            deleted.get((topic, number), 0),
            evidence.settings.time_limit_ns,
        )
        for topic, number, history in partitions(evidence.history)
    ]
    return together(parts) | measure_whole(evidence)


OF_PARTITIONS = (
    *("appends", "acknowledged", "lost", "duplicated", "reordered"),
    *("unavailable_s", "unavailable_windows", "unavailable_longest_s"),
)
"""What is measured in each partition."""
_GREATEST = ("unavailable_s", "unavailable_longest_s")
"""Those of them of which the run has the greatest; of the others it has the sum."""


def together(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The numbers of a run from those of its partitions."""
    return {
        figure: (max if figure in _GREATEST else sum)([part[figure] for part in parts] or [0.0])
        for figure in OF_PARTITIONS
    }


def measure_partition(
    history: pa.Table, replicas: pa.Table, recovery: Mapping[str, object], deleted_below: int, limit_ns: int
) -> dict[str, float]:
    """The numbers OF_PARTITIONS of one partition, from its rows about records and what is on the disks. Records at
    offsets below `deleted_below` may be gone; clients were to be driven for `limit_ns`."""
    columns = Columns.from_table(history)
    appends = np.flatnonzero((columns.kind == APPEND) & _main(history))
    told = appends[columns.outcome[appends] == OK]
    values, offsets = _read_back(columns, history)
    offsets, first = np.unique(offsets, return_index=True)
    values = values[first]
    duplicated = reordered = 0
    if recovery.get("final_reads"):
        duplicated = int((np.diff(np.sort(values)) == 0).sum())
        reordered = _reordered(columns, told, values, offsets)
    else:
        values = numbers(pc.drop_null(replicas.column("value")), FOREIGN)
    kept = (columns.offset[told] < 0) | (columns.offset[told] >= deleted_below)
    until = int(columns.invoked_ns[_main(history)].min(initial=NEVER - limit_ns)) + limit_ns
    stretches = _unavailable_ns(columns, appends, told, until)
    return {
        "appends": float(len(appends)),
        "acknowledged": float(len(told)),
        "lost": float((kept & ~np.isin(columns.value[told], values)).sum()),
        "duplicated": float(duplicated),
        "reordered": float(reordered),
        "unavailable_s": int(stretches.sum()) / 1e9,
        "unavailable_windows": float(len(stretches)),
        "unavailable_longest_s": int(stretches.max(initial=0)) / 1e9,
    }


def measure_whole(evidence: RunEvidence) -> dict[str, float]:
    """The numbers of one run that are no partition's."""
    found = {"main_s": evidence.settings.time_limit_ns / 1e9}
    history = evidence.history
    told = history.filter(
        (pc.field("kind") == "append") & (pc.field("phase") == "main") & (pc.field("outcome") == "ok")
    )
    latencies = numbers(told.column("completed_ns"), NEVER) - numbers(told.column("invoked_ns"), NEVER)
    if len(latencies):
        found["append_ms_p50"], found["append_ms_p99"] = (float(it) / 1e6 for it in np.quantile(latencies, [0.5, 0.99]))
    if evidence.recovery.get("recovered"):
        found["recovery_s"] = float(str(evidence.recovery["seconds"]))
    return found


def _main(history: pa.Table) -> np.typing.NDArray[np.bool_]:
    return np.asarray(pc.equal(history.column("phase"), "main").to_numpy(zero_copy_only=False), dtype=bool)


def _read_back(columns: Columns, history: pa.Table) -> tuple[Int64, Int64]:
    """Values and offsets of all that the final reads returned; an offset as often as it was read."""
    final = ~_main(history)
    mask = np.repeat(final, np.diff(columns.starts))
    return columns.poll_value[mask], columns.poll_offset[mask]


def _unavailable_ns(columns: Columns, appends: Int64, told: Int64, until: int) -> Int64:
    """The long stretches between acknowledgements in which something was asked for, up to a moment."""
    if not len(appends):
        return appends
    invoked = np.sort(columns.invoked_ns[appends])
    completed = columns.completed_ns[appends]
    end = max(int(invoked[-1]), int(completed[completed != NEVER].max(initial=0)))
    edges = np.concatenate([[invoked[0]], np.sort(columns.completed_ns[told]), [end]])
    begins, ends = edges[:-1], edges[1:]
    asked = np.searchsorted(invoked, begins, side="left")
    wanted = asked < len(invoked)
    waited = np.minimum(ends[wanted], until) - np.maximum(begins[wanted], invoked[asked[wanted]])
    return np.asarray(waited[waited >= STRETCH_NS], dtype=np.int64)


def _reordered(columns: Columns, told: Int64, values: Int64, offsets: Int64) -> int:
    """Records read back below one whose acknowledgement came before they were asked for."""
    if not len(values):
        return 0
    order = np.argsort(offsets, kind="stable")
    by_value = told[np.argsort(columns.value[told], kind="stable")]
    at = np.searchsorted(columns.value[by_value], values[order])
    known = at < len(by_value)
    rows = by_value[at[known]]
    rows = rows[columns.value[rows] == values[order][known]]
    # Walking from the end: the earliest acknowledgement of anything that stands above.
    above = np.minimum.accumulate(columns.completed_ns[rows][::-1])[::-1]
    return int((columns.invoked_ns[rows][:-1] > above[1:]).sum())
