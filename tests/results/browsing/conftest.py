"""A small store, and the pages that `faultline serve` shows of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from results.pages.browsing.routes import Router
from results.pages.browsing.store_browser import StoreBrowser
from results.run.directory import RunDirectory
from results.store import tables
from tests.results.conftest import INVALID, VALID, make_run


@pytest.fixture(scope="session")
def made_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that kept its promises, one that did not, and the former in a suite."""
    store = tmp_path_factory.mktemp("made")
    bad = make_run(store)
    bad.seal()
    good = bad.path.with_name("20990101T000000-append-seed8")
    shutil.copytree(bad.path, good)
    bad.write_verdict(INVALID)
    RunDirectory.open(good).write_verdict(VALID)
    tables.add_run(store, "nightly", RunDirectory.open(good))
    return store


@pytest.fixture
def store(tmp_path: Path, made_store: Path) -> Path:
    """A copy of it."""
    shutil.copytree(made_store, tmp_path / "store", symlinks=True)
    return tmp_path / "store"


@pytest.fixture
def site(store: Path, tmp_path: Path) -> Router:
    return Router(StoreBrowser(store, tmp_path / "comparisons"))
