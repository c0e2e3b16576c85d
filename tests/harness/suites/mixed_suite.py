"""A suite of runs that keep their promises and runs of a mutant, and what is in its store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from results.store import tables

MIXED = """
seeds: 2
base:
  partitions: 1
  time_limit: 14s
  vary: [clients.in_flight, segment.bytes]
specs:
  sound: {faults: [kill]}
  mutant:
    without: [ack_after_high_watermark]
    faults:
      - {at: 4, for: 6, fault: partition, shape: leader-only, nodes: [leader/0]}
      - {at: 5.5, for: 5, fault: power-loss, nodes: [leader/0], keep: nothing}
"""
WHEN = ("started", "facts")
"""Columns with the start and the duration of a run."""


def stored(store: Path) -> dict[str, list[dict[str, Any]]]:
    """Every row of every table, without the columns of WHEN."""
    rows_of = {}
    for name in ("runs", "verdicts", "metrics", "coverage", "history", "trace", "replicas", "faults"):
        read = tables.read(store, name)
        assert not read.damaged
        rows = read.table.drop_columns(["suite", *(WHEN if name == "runs" else ())]).to_pylist()
        rows_of[name] = sorted(rows, key=lambda row: row["run"])
    return rows_of


def only_suite(store: Path) -> Path:
    (path,) = (store / "suites").iterdir()
    return path
