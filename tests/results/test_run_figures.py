"""The figures of one run, by hand-made histories."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from checkers.clients import availability
from checkers.evidence import CheckSettings, RunEvidence
from checkers.tables import REPLICA_ENDS, REPLICAS
from results.measures import MEASURES, measure
from workloads.history import SCHEMA

MS = 1_000_000


def row(index: int, kind: str, at_ms: int, took_ms: int | None, **of: Any) -> dict[str, Any]:
    empty: dict[str, Any] = {field.name: None for field in SCHEMA}
    empty |= {"index": index, "process": 0, "kind": kind, "topic": "t", "partition": 0, "phase": "main"}
    empty |= {"outcome": "info" if took_ms is None else "ok", "invoked_ns": at_ms * MS, "error": ""}
    empty["completed_ns"] = None if took_ms is None else (at_ms + took_ms) * MS
    return {name: value for name, value in {**empty, **of}.items() if name in SCHEMA.names}


def evidence(*rows: dict[str, Any], read: list[tuple[int, int]], finally_read: bool = True) -> RunEvidence:
    """A history, and what its final reads returned, as (offset, value)."""
    offsets, values = [offset for offset, _ in read], [value for _, value in read]
    final = row(len(rows), "poll", 90_000, 1, phase="final", offsets=offsets, values=values)
    return RunEvidence(
        history=pa.Table.from_pylist([*rows, final], SCHEMA),
        settings=CheckSettings(time_limit_ns=60_000 * MS),
        recovery={"final_reads": finally_read, "recovered": True, "seconds": 1.5},
    )


def append(index: int, value: int, offset: int, at_ms: int, took_ms: int | None = 2) -> dict[str, Any]:
    return row(index, "append", at_ms, took_ms, value=value, offset=offset if took_ms is not None else None)


def test_lost_duplicated_and_reordered_records_are_counted() -> None:
    rows = [append(0, 10, 0, 0), append(1, 11, 1, 10), append(2, 12, 2, 20), append(3, 13, 3, 30)]
    figures = measure(evidence(*rows, read=[(0, 10), (1, 12), (2, 11), (3, 11)]))
    assert (figures["appends"], figures["acknowledged"]) == (4, 4)
    assert figures["lost"] == 1
    assert figures["duplicated"] == 1
    assert figures["reordered"] == 1
    assert figures["recovery_s"] == 1.5


def test_without_final_reads_what_is_on_no_disk_is_lost() -> None:
    unread = evidence(append(0, 10, 0, 0), append(1, 11, 1, 10), read=[], finally_read=False)
    on_disk = {"node": "b1", "topic": "t", "partition": 0, "offset": 0, "value": 10}
    replicas = pa.Table.from_pylist([on_disk], pa.schema([REPLICAS.field(name) for name in on_disk]))
    logs = pa.Table.from_pylist([{**dict.fromkeys(REPLICA_ENDS.names), "node": "b1", "topic": "t", "partition": 0}])
    logs = logs.cast(pa.schema([field.with_nullable(True) for field in REPLICA_ENDS]))
    figures = measure(replace(unread, replicas=replicas, replica_ends=logs))
    assert (figures["lost"], figures["duplicated"]) == (1, 0)
    assert measure(replace(unread, replica_ends=logs))["lost"] == 2, "the log that was collected is empty"


def test_without_final_reads_and_without_disks_nothing_is_called_lost() -> None:
    assert measure(evidence(append(0, 10, 0, 0), read=[], finally_read=False))["lost"] == 0


def test_time_without_acknowledgements_counts_while_one_is_asked_for() -> None:
    rows = [append(0, 1, 0, 0), append(1, 2, 1, 1_000, 3_000), append(2, 3, 2, 9_000, None), append(3, 4, 3, 10_000)]
    figures = measure(evidence(*rows, read=[]))
    assert figures["unavailable_s"] == 3.0 + 1.002
    assert (figures["unavailable_windows"], figures["unavailable_longest_s"]) == (2, 3.0)


def test_what_is_waited_for_after_clients_were_driven_is_not_unavailable_time_of_theirs() -> None:
    late = [append(0, 1, 0, 0), append(1, 2, 1, 50_000, None), append(2, 3, 2, 75_000)]
    figures = measure(evidence(*late, read=[]))
    assert (figures["unavailable_s"], figures["main_s"]) == (10.0, 60.0)
    never = [append(0, 1, 0, 0, None), append(1, 2, 1, 90_000, 20_000)]
    assert measure(evidence(*never, read=[]))["unavailable_s"] == 60.0


def test_latencies_are_of_acknowledged_appends_of_the_main_phase_alone() -> None:
    rows = [append(number, number, number, 1_000 * number, number + 1) for number in range(101)]
    figures = measure(evidence(*rows, append(200, 200, 200, 5, None), read=[]))
    assert figures["append_ms_p50"] == 51
    assert figures["append_ms_p99"] == 100


def test_the_longest_time_without_an_acknowledgement_is_cut_at_the_time_limit_and_says_so() -> None:
    late = [append(0, 1, 0, 0), append(1, 2, 1, 55_000, 12_000)]
    assert measure(evidence(*late, read=[]))["unavailable_longest_s"] == 5.0
    headings = {column.name: column.heading for each in MEASURES for column in each.summary_columns}
    assert headings["longest_s"] == "longest up to the limit"
    assert availability.check(evidence(*late, read=[])).figures["unavailable_seconds_longest"] == 12.0
