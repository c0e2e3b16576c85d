"""Replay: runs the spec of a run again, and compares the two runs.

A run in simulation is determined by its spec and its seed, so a second run must end in the same digest. When it does
not, the trail (a digest at every so many scheduling decisions) shows between which two points the runs diverged, and
the first row of history or trace that differs shows how. If the run was recorded with another Python, or with another
version of a library that decides which bytes are sent, that is said first: the two may rightly differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from checkers.evidence import RunEvidence
from harness.runner.outcome import Outcome, ProgressListener
from harness.runner.run import run
from harness.spec import loads
from harness.yaml_document import SpecError
from results.errors import StoreError
from results.run.directory import RunDirectory
from results.run.temporary_directory import temporary_directory

Trail = Sequence[tuple[int, int, str]]


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The comparison of a run with its replay."""

    identical: bool
    lines: tuple[str, ...]
    """The result in readable lines."""
    outcome: Outcome


def replay(path: Path, on_progress: ProgressListener | None = None) -> ReplayResult:
    """Run what is in the run directory `path` again, in a store that is deleted afterwards.

    Raises SpecError when its spec cannot be read, and StoreError when it has none or is damaged.
    """
    before = RunDirectory.open(path)
    before.check_replayable()
    spec = loads(before.read_spec_text(), str(before.spec_path))
    if spec.environment != "sim":
        raise SpecError(
            f"{path}: only runs in simulation come back identical, and this one was in {spec.environment}; "
            f"this makes another run with its faults: faultline run {before.spec_path}"
        )
    with temporary_directory("replay") as store:
        after = RunDirectory.create(store, spec.name, spec.seed)
        outcome = run(spec, after, on_progress=on_progress, report=False)
        return compare(before, after, outcome)


def compare(before: RunDirectory, after: RunDirectory, outcome: Outcome) -> ReplayResult:
    """Digest, trail, history and trace of two runs of one spec."""
    digest = before.digest()
    if outcome.failure:
        return ReplayResult(False, (f"the replay could not be carried out: {outcome.failure}",), outcome)
    if digest is not None and digest == outcome.digest:
        return ReplayResult(True, (f"identical: digest {digest}",), outcome)
    lines = _differing_versions(before.versions(), after.versions())
    if digest is None:
        lines.append("the run has no digest: it was cut short; compared as far as it goes")
    else:
        lines.append(f"different: digest {digest}, replayed {outcome.digest}")
        lines.append(_first_difference_of_trails(before.trail(), outcome.trail))
    old, new = before.load(), after.load()
    if old.gaps:
        raise StoreError(f"{before.path}: {old.gaps[0].part}: {old.gaps[0].reason}")
    differences = [line for name in ("history", "trace") if (line := _first_difference(name, old, new, digest is None))]
    if digest is None and not differences:
        lines.append("identical as far as it goes")
    return ReplayResult(digest is None and not differences, (*lines, *differences), outcome)


def _differing_versions(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """A line for each version that is not that of the recorded run; none for a run recorded without versions."""
    return [
        f"recorded with {name} {version}, replayed with {after.get(name, 'none')}: the digest depends on it"
        for name, version in before.items()
        if after.get(name) != version
    ]


def _first_difference_of_trails(before: Trail, after: Trail) -> str:
    last = (0, 0)
    for one, other in zip(before, after, strict=False):
        if one != other:
            start, end = (f"step {step} ({time_ns / 1e9:.6f} s)" for step, time_ns in (last, one[:2]))
            return f"the runs diverge between {start} and {end}"
        last = one[:2]
    return f"the runs diverge after step {last[0]} ({last[1] / 1e9:.6f} s), where the shorter trail ends"


def _first_difference(name: str, old: RunEvidence, new: RunEvidence, cut_short: bool) -> str:
    """The first row of a table that differs; rows missing from a run that was cut short are not a difference."""
    before: pa.Table = getattr(old, name)
    after: pa.Table = getattr(new, name)
    size = min(before.num_rows, after.num_rows)
    number = _first_unequal_row(before.slice(0, size), after.slice(0, size), ignore_open=cut_short)
    if number is None:
        if before.num_rows == after.num_rows or (cut_short and before.num_rows < after.num_rows):
            return ""
        return f"{name} has {before.num_rows} rows, replayed {after.num_rows}; the rows of both agree"
    one, other = before.slice(number, 1).to_pylist()[0], after.slice(number, 1).to_pylist()[0]
    columns = [column for column in one if one[column] != other[column]]
    return (
        f"{name} first differs in row {number}: "
        + ", ".join(f"{column} {one[column]!r}, replayed {other[column]!r}" for column in columns)
        + f" ({_row(one)})"
    )


def _first_unequal_row(before: pa.Table, after: pa.Table, *, ignore_open: bool) -> int | None:
    if before.equals(after):
        return None
    first, end = 0, before.num_rows
    while end - first > 1:
        middle = (first + end) // 2
        if before.slice(first, middle - first).equals(after.slice(first, middle - first)):
            first = middle
        else:
            end = middle
    if ignore_open:
        for number, (one, other) in enumerate(zip(before.to_pylist(), after.to_pylist(), strict=True)):
            if one != other and not ("completed_ns" in one and one["completed_ns"] is None):
                return number
        return None
    return first


def _row(row: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in row.items() if value not in (None, -1, "", [], "{}"))
