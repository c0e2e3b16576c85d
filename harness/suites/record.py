"""The record of a suite in a store: begun, resumed, and locked by one process at a time.

Its plan and a digest of the sources stand in `suite.json` of its directory. It is resumed only with the same sources:
otherwise half of the runs would be those of another program. It has ended once `summary.json` is there.
"""

from __future__ import annotations

import fcntl
import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from harness.suites.plan import Suite
from harness.yaml_document import SpecError
from results.atomic_files import put_text, read_json
from results.errors import StoreError
from results.run.paths import new_directory
from results.store import finished_runs
from results.version import version

_SOURCES: Final = Path(__file__).resolve().parents[2]


class CannotResume(Exception):
    """No suite to resume, or one that cannot be resumed; the message is one line for the user."""


@dataclass(frozen=True, slots=True)
class SuiteRecord:
    """A suite in a store."""

    name: str
    """With the time it began: `nightly-20261121T001500`."""
    store: Path
    plan: Suite
    facts: Mapping[str, Any] = field(default_factory=dict)
    """`started`, `version`, `commit`, `sources`."""

    @property
    def path(self) -> Path:
        """The directory of its files outside of the tables."""
        return finished_runs.suite_path(self.store, self.name)


def begin(store: Path, plan: Suite) -> SuiteRecord:
    """Record a new suite in the store. StoreError when it cannot be written."""
    from results.store.spark import fingerprint

    now = datetime.now(UTC)
    facts = {
        "started": now.isoformat(timespec="seconds"),
        "version": version(),
        "commit": _commit(),
        "sources": fingerprint(),
    }
    path = new_directory(store / "suites", f"{plan.name}-{now:%Y%m%dT%H%M%S}")
    put_text(path / "suite.json", json.dumps({**facts, **plan.to_json()}, indent=2) + "\n")
    return SuiteRecord(path.name, store, plan, facts)


def resume(store: Path, named: str) -> SuiteRecord:
    """The suite of this name, or the latest interrupted one of the suites called so. Raises CannotResume."""
    from results.store.spark import fingerprint

    candidates = sorted(
        path.parent
        for path in (store / "suites").glob("*/suite.json")
        if path.parent.name == named or re.fullmatch(re.escape(named) + r"-\d{8}T\d{6}(-\d+)?", path.parent.name)
    )
    unfinished = [path for path in candidates if path.name == named or not (path / "summary.json").exists()]
    if not unfinished:
        raise CannotResume(f"{named}: no suite of this name in {store} was interrupted")
    path = unfinished[-1]
    try:
        values = read_json(path / "suite.json")
        if "goes_on" in values:
            raise CannotResume(f"{path.name} is one night of a search; go on with: {values['goes_on']}")
        plan = Suite.from_json(values)
        facts = {name: values[name] for name in ("started", "version", "commit", "sources")}
    except (StoreError, AttributeError, KeyError, TypeError, ValueError, SpecError) as error:
        raise CannotResume(f"{path / 'suite.json'}: cannot be read: {error}") from None
    if facts["sources"] != fingerprint():
        raise CannotResume(
            f"{path.name} was begun with other sources of Faultline (commit {facts['commit'] or 'unknown'}); "
            "begin a new one"
        )
    return SuiteRecord(path.name, store, plan, facts)


@contextmanager
def locked(suite: SuiteRecord) -> Iterator[None]:
    """Lock the suite for this process. Raises CannotResume when another process runs it, and StoreError."""
    path = suite.path / ".lock"
    try:
        lock = path.open("w")
    except OSError as error:
        raise StoreError.of("write", path, error) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CannotResume(f"{suite.name} is being run by another process") from None
        yield


def _commit() -> str:
    """The commit of the sources, with `-dirty` when they differ from it; empty where they are no git checkout.

    An installation inside the checkout of something else, as in a virtual environment, has no commit.
    """
    if _git("rev-parse", "--show-toplevel") != str(_SOURCES):
        return ""
    return _git("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")


def _git(*arguments: str) -> str:
    """The output of git about the sources; empty when it fails."""
    try:
        ended = subprocess.run(
            ["git", *arguments], cwd=_SOURCES, capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ended.stdout.strip() if ended.returncode == 0 else ""
