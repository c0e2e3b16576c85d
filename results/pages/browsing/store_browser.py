"""Read-only access to a store for browsing: run directories, stored runs and suites, comparisons.

Everything is found by listing and comparing names, never by joining a name from a request to a path: a name that is not
in a listing does not exist. A run directory is untrusted until it has been inspected: one with a link that leads out of
it, or with a pipe, a socket or a device, is reported and not opened.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from results.atomic_files import read_json
from results.comparison import Comparison, from_json
from results.errors import StoreError
from results.pages.browsing.listing import (
    LISTED,
    RunEntry,
    StoreListing,
    SuiteEntry,
    by_failure,
    directory_entry,
    listed,
)
from results.run.directory import RunDirectory
from results.run.paths import runs as run_directories
from results.store import stored_runs, tables
from results.store.schema import plain, tables_path
from results.suites import SuiteResult, SuiteSituations, read_suite, series, situations_of_suite, suite_names
from results.trend import Trend, read_trend

_T = TypeVar("_T")
_OF_SITUATIONS = ("runs", "coverage")
"""The tables that situations are read from."""
_OF_TRENDS = (*LISTED, "metrics", "coverage")


class StoreBrowser:
    """One store and one directory of comparisons. Every call lists the current files.

    Results computed from the tables are cached until one of their files is added, changed or removed.
    """

    def __init__(self, store: Path, comparisons: Path) -> None:
        self.store = store
        self._comparisons = comparisons
        self._cache: dict[tuple[str, str], tuple[list[tuple[str, int]], Any]] = {}

    # ---- lists ----------------------------------------------------------------------------------------------------

    def runs(self) -> list[RunEntry]:
        """Every run once, failures first, the newest first among equals; what is stored of a directory goes with it."""
        in_tables = self.table_runs()
        suite_of = {entry.run: entry.suite for entry in reversed(in_tables)}
        paths = run_directories(self.store)
        directories = [directory_entry(path, suite_of.get(path.name, "")) for path in paths]
        names = {path.name for path in paths}
        return by_failure([*directories, *(entry for entry in in_tables if entry.run not in names)])

    def table_runs(self) -> list[RunEntry]:
        """The runs of the tables, in their order."""
        return self._listed().entries

    def suites(self) -> list[SuiteEntry]:
        """Every suite, the newest first."""
        listing, by_suite = self._listed(), dict[str, list[RunEntry]]()
        for entry in listing.entries:
            by_suite.setdefault(entry.suite, []).append(entry)
        suites = [SuiteEntry.of(name, entries, listing.mutants[name]) for name, entries in by_suite.items()]
        return sorted(suites, key=lambda suite: (suite.started, suite.name), reverse=True)

    def damaged(self) -> list[tables.DamagedFile]:
        """The files that had to be left out of what lists are made from; `faultline store verify` reads all others."""
        return list(self._listed().damaged)

    def trends(self) -> list[str]:
        """The names that suites of several nights share, in order."""
        return sorted({series(suite) for suite in suite_names(self.store)})

    def comparisons(self) -> list[str]:
        """The names of the comparisons, in order."""
        return sorted(path.stem for path in _regular(self._comparisons) if path.suffix == ".json")

    def _listed(self) -> StoreListing:
        return self._cached("listed", lambda: listed(self.store))

    def _cached(self, key: str, compute: Callable[[], _T], read: Sequence[str] = LISTED, directory: str = "*") -> _T:
        """What `compute` makes of the tables `read`, of the suites in `directory`."""
        paths = [path for name in read for path in tables_path(self.store).glob(f"{name}/{directory}/*.parquet")]
        now = sorted((str(path), path.lstat().st_mtime_ns) for path in paths)
        known = self._cache.get((key, directory))
        if known is None or known[0] != now:
            known = self._cache[key, directory] = (now, compute())
        return cast(_T, known[1])

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

    def stored_run(self, suite: str, run: str) -> stored_runs.StoredRun | None:
        """The stored run; None when there is none. StoreError when it cannot be read."""
        for batch in stored_runs.batches(self.store):
            if batch.suite == suite and batch.complete and run in batch.runs:
                return stored_runs.read_run(self.store, stored_runs.StoredItem(suite, run, (batch,)))
        return None

    def suite_names(self) -> set[str]:
        """The suites that are stored."""
        return set(suite_names(self.store))

    def suite(self, name: str) -> SuiteResult | None:
        """The suite; None when none of this name is stored."""
        return read_suite(self.store, name) if name in suite_names(self.store) else None

    def trend(self, name: str) -> Trend | None:
        """All suites of this name; None when none is stored. Worked out anew only when the store has changed."""
        if name not in self.trends():
            return None
        return self._cached(f"trend {name}", lambda: read_trend(self.store, name), _OF_TRENDS)

    def situations(self, name: str) -> SuiteSituations | None:
        """The situations of the suite; None when none of this name is stored, or it has none. StoreError for a name
        that no suite has."""
        if name not in suite_names(self.store):
            return None
        place = f"suite={plain('suite', name)}"
        found = self._cached("situations", lambda: situations_of_suite(self.store, name), _OF_SITUATIONS, place)
        return found if found.thoroughness is not None else None

    def all_situations(self) -> tuple[dict[str, SuiteSituations], list[str]]:
        """Those of every suite that has some, the newest first; and what had to be left out, by name."""
        found, left_out = dict[str, SuiteSituations](), list[str]()
        for entry in self.suites():
            try:
                suite = self.situations(entry.name)
            except StoreError as error:
                left_out.append(str(error))
                continue
            if suite is not None:
                found[entry.name] = suite
                left_out += [f"{entry.name}: {file.line}" for file in suite.damaged]
        return found, left_out

    def comparison(self, name: str) -> Comparison | None:
        """The comparison, worked out anew from its runs; None without one. StoreError when it is damaged."""
        for path in _regular(self._comparisons):
            if path.suffix == ".json" and path.stem == name:
                return _comparison(path)
        return None


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


def node_log_names(run: RunDirectory) -> list[str]:
    """The nodes whose log lines were collected."""
    try:
        nodes = sorted(run.nodes_path.iterdir())
    except OSError:
        return []
    return [node.name for node in nodes if (node / "node.log").is_file()]


def node_log_path(run: RunDirectory, node: str) -> Path | None:
    """The log of a node, of those that there are."""
    return run.nodes_path / node / "node.log" if node in node_log_names(run) else None


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
        return from_json(path.stem, read_json(path))
    except ValueError as error:
        raise StoreError(f"{path.name} is not a comparison that can be read: {error}") from error
