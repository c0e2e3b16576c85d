"""What there is to browse: run directories, the runs and suites of the Parquet store, comparisons. Read only.

Everything is found by listing and comparing names, never by joining a name that somebody sent to a path: a name that is
not in a listing is not there. A run directory counts as a stranger's until it has been looked through: one in which a
link leads out, or which holds a pipe, a socket or a device, is told of and not opened.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from results import stored, tables
from results.comparison import Comparison, from_json
from results.layout import tables_path
from results.lines import StoreError
from results.rundir import RunDirectory
from results.store import runs as run_directories
from results.suites import SuiteResult, read_suite, series, suite_names
from results.trend import Trend, read_trend

NOT_CHECKED = "not checked"
ORDER = {"invalid": 0, "unknown": 1, NOT_CHECKED: 2, "valid": 3}


@dataclass(frozen=True, slots=True)
class Entry:
    """A run in a list."""

    suite: str
    """The first suite it is stored in; empty without one."""
    run: str
    has_directory: bool
    spec: str
    seed: str
    validity: str
    """A verdict, or NOT_CHECKED."""
    started: str
    version: str
    told: str
    """The first thing wrong with it, in a line; empty when nothing is."""

    def fits(self, words: Iterable[str]) -> bool:
        """Whether each of the words, in small letters, is somewhere in it."""
        text = " ".join(
            (self.suite, self.run, self.spec, f"seed {self.seed}", self.validity, self.version, self.told)
        ).lower()
        return all(word in text for word in words)


@dataclass(frozen=True, slots=True)
class SuiteEntry:
    """A suite in a list."""

    name: str
    validities: tuple[str, ...]
    started: str
    """When its first run was."""
    versions: tuple[str, ...]


class Catalogue:
    """One store and one directory of comparisons. What is told is what is there at that moment."""

    def __init__(self, store: Path, comparisons: Path) -> None:
        self.store = store
        self._comparisons = comparisons
        self._trends: dict[str, tuple[list[tuple[str, int]], Trend]] = {}

    # ---- lists ----------------------------------------------------------------------------------------------------

    def runs(self) -> list[Entry]:
        """Every run once, failures first, the newest first among equals; what is stored of a directory goes with it."""
        in_tables = self.stored_runs()
        suite_of = {entry.run: entry.suite for entry in reversed(in_tables)}
        paths = run_directories(self.store)
        directories = [_directory_entry(path, suite_of.get(path.name, "")) for path in paths]
        names = {path.name for path in paths}
        return by_failure([*directories, *(entry for entry in in_tables if entry.run not in names)])

    def stored_runs(self) -> list[Entry]:
        """The runs of the tables, in their order."""
        verdicts = tables.read(self.store, "verdicts").table
        findings = _first_findings(verdicts.filter(pc.not_equal(verdicts["validity"], "valid")).to_pylist())
        rows = tables.read(self.store, "runs").table.to_pylist()
        return [_stored_entry(row, findings.get((row["suite"], row["run"]), "")) for row in rows]

    def suites(self) -> list[SuiteEntry]:
        """Every suite, the newest first."""
        rows: dict[str, list[dict[str, Any]]] = {}
        for row in tables.read(self.store, "runs").table.to_pylist():
            rows.setdefault(row["suite"], []).append(row)
        found = [
            SuiteEntry(
                name,
                tuple(row["validity"] or NOT_CHECKED for row in of_suite),
                min(row["started"] for row in of_suite),
                tuple(sorted({row["version"] for row in of_suite})),
            )
            for name, of_suite in rows.items()
        ]
        return sorted(found, key=lambda suite: (suite.started, suite.name), reverse=True)

    def faults(self) -> list[tables.Fault]:
        """The files that had to be left out of what lists are made from; `faultline store verify` reads all others."""
        return [fault for name in ("runs", "verdicts") for fault in tables.read(self.store, name).faults]

    def trends(self) -> list[str]:
        """The names that suites of several nights share, in order."""
        return sorted({series(suite) for suite in suite_names(self.store)})

    def comparisons(self) -> list[str]:
        """The names of the comparisons, in order."""
        return sorted(path.stem for path in _regular(self._comparisons) if path.suffix == ".json")

    # ---- one of them ----------------------------------------------------------------------------------------------

    def directory(self, name: str) -> RunDirectory | None:
        """The run directory of this name; None without one. StoreError for one that is not safe to open."""
        for path in run_directories(self.store):
            if path.name == name:
                look_through(path)
                return RunDirectory.open(path)
        return None

    def suite_directory(self, suite: str, name: str) -> RunDirectory | None:
        """The directory of a run that its suite kept; None without one. StoreError for one not safe to open."""
        home = _directory(_directory(_directory(self.store, "suites"), suite), "runs")
        path = _directory(home, name)
        if path is None:
            return None
        look_through(path)
        return RunDirectory.open(path)

    def stored_run(self, suite: str, run: str) -> stored.StoredRun | None:
        """The stored run; None when there is none. StoreError when it cannot be read."""
        for batch in stored.batches(self.store):
            if batch.suite == suite and batch.complete and run in batch.runs:
                return stored.read_run(self.store, stored.Found(suite, run, (batch,)))
        return None

    def suite(self, name: str) -> SuiteResult | None:
        """The suite; None when none of this name is stored."""
        return read_suite(self.store, name) if name in suite_names(self.store) else None

    def trend(self, name: str) -> Trend | None:
        """All suites of this name; None when none is stored. Worked out anew only when the store has changed."""
        if name not in self.trends():
            return None
        now = [(str(path), path.stat().st_mtime_ns) for path in sorted(tables_path(self.store).glob("runs/*/*"))]
        known = self._trends.get(name)
        if known is None or known[0] != now:
            known = self._trends[name] = (now, read_trend(self.store, name))
        return known[1]

    def comparison(self, name: str) -> Comparison | None:
        """The comparison, worked out anew from its runs; None without one. StoreError when it is damaged."""
        for path in _regular(self._comparisons):
            if path.suffix == ".json" and path.stem == name:
                return _comparison(path)
        return None


def by_failure(entries: Iterable[Entry]) -> list[Entry]:
    """Failures first, the newest first among equals."""
    newest = sorted(entries, key=lambda entry: (entry.started, entry.run), reverse=True)
    return sorted(newest, key=lambda entry: ORDER[entry.validity])


def look_through(run: Path) -> None:
    """StoreError when anything in the directory leads out of it, or is not a file or a directory."""
    home = run.resolve()
    for place, directories, names in os.walk(run):
        for name in (*directories, *names):
            path = Path(place, name)
            try:
                mode = path.lstat().st_mode
                leads_out = stat.S_ISLNK(mode) and not path.resolve().is_relative_to(home)
            except (OSError, RuntimeError):
                leads_out = True
            if leads_out:
                raise StoreError(f"{path.relative_to(run)} is a link that leads out of the run; the run is not opened")
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
                raise StoreError(f"{path.relative_to(run)} is neither file nor directory; the run is not opened")


def node_logs(run: RunDirectory) -> list[str]:
    """The nodes whose log lines were collected."""
    try:
        nodes = sorted(run.nodes_path.iterdir())
    except OSError:
        return []
    return [node.name for node in nodes if (node / "node.log").is_file()]


def node_log(run: RunDirectory, node: str) -> Path | None:
    """The log of a node, of those that there are."""
    return run.nodes_path / node / "node.log" if node in node_logs(run) else None


def _directory(parent: Path | None, name: str) -> Path | None:
    """The directory in `parent` of exactly this name, found by listing; None without one. Links do not count."""
    try:
        entries = [] if parent is None else list(parent.iterdir())
    except OSError:
        return None
    return next((it for it in entries if it.name == name and it.is_dir() and not it.is_symlink()), None)


def _regular(directory: Path) -> list[Path]:
    try:
        return [path for path in sorted(directory.iterdir()) if path.is_file() and not path.is_symlink()]
    except OSError:
        return []


def _comparison(path: Path) -> Comparison:
    try:
        return from_json(path.stem, json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise StoreError.of("read", path, error) from error
    except ValueError as error:
        raise StoreError(f"{path.name} is not a comparison that can be read: {error}") from error


def _directory_entry(path: Path, suite: str) -> Entry:
    """From the small files alone, which are a stranger's and may hold anything."""
    status, verdict = _object(path / "status.json"), _object(path / "verdict.json")
    state = str(status.get("state", "unknown"))
    validity = str(verdict.get("validity", NOT_CHECKED))
    told = _first_finding(verdict.get("checks"))
    if state != "finished":
        told = f"{state}: {status.get('message') or status.get('stage') or ''}".rstrip(": ")
    return Entry(
        suite=suite,
        run=path.name,
        has_directory=True,
        spec=str(status.get("name", "")),
        seed=str(status.get("seed", "")),
        validity=validity if validity in ORDER else "unknown",
        started=str(status.get("started", "")),
        version=str(status.get("version", "")),
        told=told,
    )


def _stored_entry(row: Mapping[str, Any], told: str) -> Entry:
    return Entry(
        suite=row["suite"],
        run=row["run"],
        has_directory=False,
        spec=row["name"],
        seed=str(row["seed"]),
        validity=row["validity"] if row["validity"] in ORDER else NOT_CHECKED,
        started=row["started"],
        version=row["version"],
        told=told if row["state"] == "finished" else row["state"],
    )


def _first_findings(verdicts: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], str]:
    found: dict[tuple[str, str], str] = {}
    for row in sorted(verdicts, key=lambda row: ORDER.get(row["validity"], 1)):
        if (row["suite"], row["run"]) in found:
            continue
        try:
            findings = json.loads(row["findings"])
        except ValueError:
            findings = []
        found[row["suite"], row["run"]] = _first_finding([{**row, "findings": findings}])
    return found


def _first_finding(checks: object) -> str:
    """`loss: lost-append` of the worst check that is not valid; whatever does not look like a check is passed over."""
    known = [check for check in checks if isinstance(check, dict)] if isinstance(checks, list) else []
    wrong = [check for check in known if check.get("validity") in ("invalid", "unknown")]
    for check in sorted(wrong, key=lambda check: ORDER[check["validity"]]):
        findings = check.get("findings")
        first = findings[0] if isinstance(findings, list) and findings else {}
        kind = first.get("kind", "") if isinstance(first, dict) else ""
        return f"{check.get('checker', '')}: {kind}".rstrip(": ")
    return ""


def _object(path: Path) -> dict[str, Any]:
    """The JSON object in a plain file; an empty one when there is none to be had."""
    if path.is_symlink() or not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
