"""The lock of a suite is held for as long as its batches are changed, and no longer."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from results.run.directory import RunDirectory
from results.store import stored_runs
from results.store.change_lock import changing, is_changing
from results.store.schema import SCHEMAS, batch_path


def test_a_process_that_was_forked_while_the_lock_was_held_does_not_hold_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the descriptor of the directory as a duplicate has it."""
    open_file, inherited = os.open, []

    def opened_twice(*args: Any) -> int:
        descriptor = open_file(*args)
        inherited.append(os.dup(descriptor))
        return descriptor

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", opened_twice)
        with changing(tmp_path):
            pass
    assert len(inherited) == 1
    assert not is_changing(tmp_path)
    os.close(inherited[0])


def test_a_suite_that_was_removed_while_another_process_waited_for_its_lock_is_locked_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite, lock = tmp_path / "suite=nightly", fcntl.flock
    waited = []

    def removed_meanwhile(descriptor: int, operation: int) -> None:
        if operation == fcntl.LOCK_EX and not waited:
            suite.rmdir()
            waited.append(descriptor)
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", removed_meanwhile)
    with changing(suite):
        assert is_changing(suite)
    assert waited


def test_the_directories_of_a_removed_suite_go_while_its_lock_is_held(
    store: Path, ended: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else they would go while the next process writes into them."""
    remove_directory, runs = Path.rmdir, batch_path(store, "runs", "nightly", ended.name).parent
    locked = []

    def removed(directory: Path) -> None:
        locked.append(is_changing(runs))
        remove_directory(directory)

    monkeypatch.setattr(Path, "rmdir", removed)
    list(stored_runs.remove(store, stored_runs.find(store, ended.name)))
    assert locked == [True] * len(SCHEMAS)
    assert not runs.exists()
