"""The spec of a run of a suite, whatever is kept of the run: its rows, the file that waits for the tables, or the plan.

So any run comes back wherever its name is shown, also a valid one, of which only verdicts and figures are stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.spec import Spec, loads
from harness.suites.plan import Suite
from harness.yaml_document import SpecError
from results.atomic_files import read_json
from results.errors import StoreError
from results.store import finished_runs, tables


@dataclass(frozen=True, slots=True)
class StoredSpec:
    """The spec of a run, and the digest that its run ended with; empty where it has none."""

    name: str
    spec: Spec
    digest: str = ""


def stored_spec(store: Path, name: str, **overrides: Any) -> StoredSpec:
    """The spec of the run SUITE/RUN, with `overrides` as `harness.spec.parse` takes them.

    Raises StoreError when there is no such run, SpecError for an override that does not fit.
    """
    suite, _, run = name.partition("/")
    row = _row(store, suite, run)
    text = str(row.get("spec") or "") or _planned(store, suite, run)
    if not text:
        message = f"{name!r}: there is no such run in {store}; `faultline store ls` lists the stored ones"
        raise tables.no_such(store, message)
    return StoredSpec(name, loads(text, **overrides), str(row.get("digest") or ""))


def _row(store: Path, suite: str, run: str) -> dict[str, Any]:
    """The run's row in the table `runs`; empty when there is none."""
    rows = tables.read(store, "runs", suite).table.to_pylist()
    ended = finished_runs.suite_path(store, suite) / "ended"
    if run in finished_runs.finished_names(ended):
        rows += finished_runs.read_finished(ended, run)["runs"].to_pylist()
    return next((dict(row) for row in rows if row["run"] == run), {})


def _planned(store: Path, suite: str, run: str) -> str:
    """The run's spec in the plan of a suite that has not made it, or has lost it; empty when there is none."""
    try:
        plan = Suite.from_json(read_json(finished_runs.suite_path(store, suite) / "suite.json"))
    except (StoreError, AttributeError, KeyError, TypeError, ValueError, SpecError):
        return ""
    return next((plan.spec(planned).to_yaml() for planned in plan.every_run() if planned.run == run), "")
