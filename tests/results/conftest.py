"""A made-up run with something of everything: elections, shrinking ISRs, a truncation, faults that bit and missed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from checkers.evidence import CheckSettings
from checkers.verdict import Finding, Validity, Verdict
from images.trace import TraceEvent
from images.wire import batch
from results.run.directory import RunDirectory
from results.store import tables
from results.store.spark import session
from workloads.history import Recorder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECOND = 1_000_000_000
SPEC = """\
# every field, as it was run
name: append
seed: 7
environment: sim
workload: append
brokers: 3
partitions: 2
rate: 20
time_limit: 60
faults: [partition, kill, pause]
set:
  min.insync.replicas: 2
without: []
"""
FAULTS = (
    ("Isolate", "partition", ["b1"], 5.0, 12.5, {"held": 214, "refused": 9}, True, "b1 led append-0 when it began"),
    ("Kill", "kill", ["b2"], 16.0, 22.0, {"killed": 1}, True, ""),
    ("Pause", "pause", ["b3"], 26.5, 31.0, {"frozen_seconds": 4.5, "missed": 88}, True, ""),
    ("ClockJump", "clock", ["b2"], 28.0, 36.0, {"offset_ms": 0}, False, "the clock was already back"),
    (
        "PowerLoss",
        "power-loss",
        ["b1"],
        40.0,
        44.0,
        {"killed": 1, "unsynced_bytes": 5210, "lost_bytes": 1044},
        True,
        "",
    ),
    ("Slow", "packets", ["b1", "b2", "b3"], 47.0, 60.0, {}, False, ""),
)
ELECTIONS = ((0.4, 1, (1, 2, 3)), (7.1, 2, (2, 3)), (13.4, 2, (1, 2, 3)), (18.2, 3, (1, 3)), (23.9, 3, (1, 2, 3)))


def make_run(store: Path) -> RunDirectory:
    """Record 60 seconds of it; not yet sealed, checked or reported."""
    run = RunDirectory.create(store, "append", 7)
    run.write_spec(SPEC)
    run.write_settings(CheckSettings(faults_asked=True))
    _history(run)
    _trace(run)
    for number, (fault, family, nodes, began, ended, evidence, bit, note) in enumerate(FAULTS):
        run.append_fault(
            number,
            fault=fault,
            family=family,
            nodes=nodes,
            started_ns=int(began * SECOND),
            ended_ns=int(ended * SECOND),
            evidence=evidence,
            bit=bit,
            note=note,
        )
    with run.collecting() as nodes:
        replica = nodes / "b1" / "data" / "append-0"
        replica.mkdir(parents=True)
        (replica / f"{0:020}.log").write_bytes(batch.build([b"0"], timestamp_ms=1, leader_epoch=0))
    run.write_recovery(
        {"recovered": True, "seconds": 2.75, "limit_seconds": 30, "waiting_for": [], "final_reads": True}
    )
    run.write_digest("9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08")
    run.write_status("finished", cpu_seconds=0.61, steps=184_203)
    return run


def _history(run: RunDirectory) -> None:
    random = Random(7)
    now = 0
    recorder = Recorder(run.history_path, lambda: now)
    for value in range(1200):
        at = int(value * SECOND / 20)
        now = at
        index = recorder.invoke(value % 3, "append", "append", value % 2, value=value)
        broken = any(began <= at / SECOND <= ended for _, _, _, began, ended, _, bit, _ in FAULTS if bit)
        now += int(random.lognormvariate(1.6, 0.7 if not broken else 1.6) * 1_000_000)
        outcome = random.choices(("ok", "fail", "info"), (0.75, 0.1, 0.15) if broken else (1, 0, 0))[0]
        if outcome == "ok":
            recorder.complete(index, "ok", offset=value // 2, leader_epoch=0)
        else:
            recorder.complete(index, "fail" if outcome == "fail" else "info", error="timeout")
    recorder.close()


def _trace(run: RunDirectory) -> None:
    random = Random(8)
    events: list[tuple[float, str, TraceEvent]] = []
    for partition in range(2):
        for epoch, (at, leader, members) in enumerate(ELECTIONS):
            events.append(
                (
                    at + 0.3 * partition,
                    "c1",
                    TraceEvent(
                        "partition_changed", "append", partition, leader, epoch, epoch, members=members, detail={}
                    ),
                )
            )
        for node in ("b1", "b2", "b3"):
            end = 0
            for step in range(590):
                at = 0.6 + step / 10
                if node == "b1" and 5 < at < 13:
                    continue
                if node == "b1" and step == 130:
                    events.append((at, node, TraceEvent("truncated", "append", partition, offset=end - 2, log_end=end)))
                end = step
                events.append(
                    (
                        at + random.random() / 100,
                        node,
                        TraceEvent("appended", "append", partition, leader_epoch=0, offset=end, log_end=end + 1),
                    )
                )
                if node == "b2":
                    events.append(
                        (
                            at + 0.05,
                            node,
                            TraceEvent(
                                "high_watermark",
                                "append",
                                partition,
                                offset=max(0, end - 1),
                                high_watermark=end,
                                members=(2, 3),
                            ),
                        )
                    )
    for at, node, event in sorted(events, key=lambda item: item[0]):
        run.append_trace(int(at * SECOND), node, event)


VALID = (
    Verdict("linearizability", Validity.VALID, figures={"operations": 1200, "partitions": 2}),
    Verdict("acknowledged-loss", Validity.VALID, figures={"acknowledged": 981, "lost": 0}),
    Verdict("availability", Validity.VALID, figures={"ok_share": 0.8175, "longest_gap_seconds": 2.35}),
)
INVALID = (
    *VALID[:1],
    Verdict(
        "acknowledged-loss",
        Validity.INVALID,
        (
            Finding(
                "lost-append",
                (
                    "append of 412 to append-0 by process 1 was acknowledged at offset 206 (20.601 s to 20.624 s)",
                    "no final read of append-0 returned it: offset 206 held 418 instead, first read at 61.022 s",
                ),
                "append",
                0,
                (412,),
                (206,),
                20_624_000_000,
            ),
        ),
        {"acknowledged": 981, "lost": 1},
    ),
    Verdict(
        "liveness",
        Validity.UNKNOWN,
        (Finding("cut-short", ("The run ended before recovery was waited for.",)),),
    ),
    *VALID[2:],
)


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """A session; commands that a test calls use it, too.

    Its processes carry out one task after the other, as usual: suites that tests made in this Java have left it the
    setting of a process for each task.
    """
    settings = {"spark.python.worker.reuse": "true"}
    with session("tests", master="local[2]", memory="1g", settings=settings) as spark:
        yield spark


@pytest.fixture
def made_run(tmp_path: Path) -> RunDirectory:
    """A run as its runner leaves it, not yet sealed."""
    return make_run(tmp_path / "store")


@pytest.fixture
def made_verdicts() -> Callable[[bool], tuple[Verdict, ...]]:
    """The verdicts of a run that kept its promises, or of one that did not."""
    return lambda valid: VALID if valid else INVALID


LOST = Verdict("loss", Validity.INVALID, (Finding("lost-append", ("one line",)),), {"lost": 2.0})


@pytest.fixture
def ended(tmp_path: Path) -> RunDirectory:
    """A run that has ended, with a verdict."""
    run = make_run(tmp_path / "runs")
    run.seal()
    run.write_verdict([LOST])
    return run


@pytest.fixture
def store(tmp_path: Path, ended: RunDirectory) -> Path:
    """A store that holds it, as the suite `nightly`."""
    assert tables.add_run(tmp_path / "store", "nightly", ended)
    return tmp_path / "store"
