"""The paths of runs: one directory per run, below one store.

The store is the value of `--store`, else the environment variable FAULTLINE_STORE, else `results/runs` below the
current directory. A run is named after its start time (UTC), its spec and its seed: `20261121T001500-append-seed7`. Two
runs of the same second get different names. `latest` in the store is a link to the newest run; it is a convenience and
nothing depends on it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from results.errors import StoreError

DEFAULT_STORE = Path("results/runs")
LATEST = "latest"


def store_path(option: str | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    """The store: the option, the environment or the default, in this order; an empty one counts as not given.

    StoreError when it lies in a home directory that is unknown, or when its path is not UTF-8, which Arrow and Spark
    need."""
    path = Path(option or environ.get("FAULTLINE_STORE") or DEFAULT_STORE)
    try:
        path = path.expanduser()
        str(path.absolute()).encode()
    except RuntimeError:
        raise StoreError(f"{path}: the home directory of this user is unknown") from None
    except UnicodeEncodeError:
        raise StoreError(
            f"{path.absolute()}: the path of a store is UTF-8, in a locale that has it, as C.UTF-8"
        ) from None
    return path


def run_name(began: datetime, spec_name: str, seed: int) -> str:
    """The name of a run that began at `began`."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", spec_name).strip("-.") or "run"
    return f"{began.astimezone(UTC):%Y%m%dT%H%M%S}-{plain}-seed{seed}"


def new_run(store: Path, spec_name: str, seed: int, began: datetime | None = None) -> Path:
    """A new empty directory in the store, which is made when missing. Never one that was there before."""
    path = new_directory(store, run_name(began or datetime.now(UTC), spec_name, seed))
    _point_latest_at(path)
    return path


def remove_run(path: Path) -> None:
    """Remove a run, as if it had never been made: `latest` is the newest of the others. StoreError."""
    try:
        shutil.rmtree(path)
    except OSError as error:
        raise StoreError.of("remove", path, error) from error
    link = path.parent / LATEST
    if link.is_symlink() and not link.exists():
        others = runs(path.parent)
        if others:
            _point_latest_at(others[-1])
        else:
            link.unlink(missing_ok=True)


def new_directory(parent: Path, name: str) -> Path:
    """A new empty directory in `parent`, which is made when missing: `name`, else `name-2`, `name-3` … StoreError."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for attempt in count(1):
            path = parent / (name if attempt == 1 else f"{name}-{attempt}")
            try:
                path.mkdir()
                return path
            except FileExistsError:
                continue
    except OSError as error:
        raise StoreError.of("make a directory in", parent, error) from error
    raise AssertionError(name)


def runs(store: Path) -> list[Path]:
    """The run directories of a store, oldest first; none when there is no store."""
    try:
        entries = sorted(store.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError.of("list", store, error) from error
    return [
        entry for entry in entries if entry.is_dir() and not entry.is_symlink() and (entry / "status.json").exists()
    ]


def _point_latest_at(run: Path) -> None:
    """Swing the link over at once. A file system without links goes without."""
    link = run.parent / LATEST
    part = run.parent / f".{LATEST}.{run.name}"
    try:
        part.symlink_to(run.name)
        os.replace(part, link)
    except OSError:
        part.unlink(missing_ok=True)
