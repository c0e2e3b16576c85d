"""The evidence of faults in containers is what a monitor inside each container saw."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from checkers.verdict import Validity
from harness.environments.docker.engine import connect
from harness.environments.machines.node_handle import NodeHandle
from harness.runner.outcome import Progress
from harness.runner.run import run
from harness.spec import parse
from images.system import Service
from results.run.directory import RunDirectory
from tests.checkers import small_evidence
from tests.machines.evidence.comparison import Sample, compare
from tests.machines.evidence.observed_runs import observed
from tests.machines.stretching import stretched
from tests.workloads import virtual_time

S = 1_000_000_000
SCRIPT = [
    {"at": 0.5, "for": 1, "fault": "partition", "shape": "isolate", "nodes": ["b1"]},
    {"at": 0.5, "for": 1, "fault": "clock", "nodes": ["c1"], "jump_ms": 900},
    {"at": 2, "for": 1, "fault": "pause", "nodes": ["b2"]},
    {"at": 3.5, "for": 1, "fault": "wipe-disk", "nodes": ["b3"]},
    {"at": 5, "for": 1, "fault": "kill", "nodes": ["c2"]},
]
SEEN_OF_SCRIPT = {"nftables table there", "process stopped", "process ended", "clock offset", "disk empty"}


@pytest.mark.docker
@pytest.mark.usefixtures("broker_images")
def test_evidence_is_what_monitors_inside_the_containers_saw(tmp_path: Path) -> None:
    values = {"environment": "docker", "seed": 1, "time_limit": 7, "recovery_limit": 300, "faults": SCRIPT}
    for number, spec in enumerate(stretched(values)):
        _, comparison = observed(parse(spec), tmp_path / str(number))
        assert comparison.disagreements == []
        if set(comparison.compared) >= SEEN_OF_SCRIPT:
            break
    assert set(comparison.compared) >= SEEN_OF_SCRIPT


@pytest.mark.docker
@pytest.mark.usefixtures("broker_images")
def test_a_container_removed_by_hand_accuses_nobody(tmp_path: Path) -> None:
    """Its trace and its disk are gone: what rests on them is unknown, and the node is named."""
    values = {
        "environment": "docker",
        "controllers": 1,
        "seed": 1,
        "time_limit": 6,
        "recovery_limit": 8,
        "faults": "none",
    }
    directory = RunDirectory.create(tmp_path, "gone", 1)
    client, gone = connect(), []

    def remove_b2(progress: Progress) -> None:
        if progress.stage == "running" and not gone:
            client.containers.get(f"{directory.status().facts['containers']}-b2").remove(force=True)
            gone.append(progress.time_s)

    try:
        outcome = run(parse(values), directory, on_progress=remove_b2, report=False)
    finally:
        client.close()
    assert outcome.failure == ""
    verdicts = {verdict.checker: verdict for verdict in outcome.verdicts}
    assert [name for name, verdict in verdicts.items() if verdict.validity is Validity.INVALID] == []
    for name in ("protocol", "liveness", "processes"):
        assert verdicts[name].validity is Validity.UNKNOWN
        assert any("b2" in line for finding in verdicts[name].findings for line in finding.lines)


STEADY = Sample(began_ns=0, ended_ns=1, table=False, state="S", bytes=500, clock_ms=0.0)


def seen(**changes: Any) -> list[Sample]:
    """Samples of ten seconds, ten a second; from second 4 to second 6 with `changes`."""
    return [
        replace(STEADY, **(changes if 4 * S <= time_ns < 6 * S else {}), began_ns=time_ns, ended_ns=time_ns + 1)
        for time_ns in range(0, 10 * S, S // 10)
    ]


def of_nodes(row: dict[str, Any], samples: list[Sample]) -> dict[str, list[Sample]]:
    """A partition needs two nodes, which show the same."""
    return dict.fromkeys(("b1", "b2") if row["fault"] == "partition" else ("b1",), samples)


def fault(name: str, evidence: dict[str, Any], **detail: Any) -> dict[str, Any]:
    times = {"injection_seconds": 0.5, "healing_seconds": 0.5}
    row = small_evidence.fault(name, ["b1"], 4.0, 6.4, {**times, **evidence})
    return row | {"detail": json.dumps({**detail, "resolved": {}})}


PARTITION = fault("partition", {}, fault="partition", shape="isolate", nodes=["b1"], against=[], flavour="held")
DISAGREEING = {
    "a table that was never there": (PARTITION, seen(), "nftables table there"),
    "a process that ran on": (fault("pause", {}), seen(), "process stopped"),
    "a kill of nothing": (fault("kill", {"nodes": {"b1": {"down_ns": 4 * S, "killed": 1}}}), seen(), "process ended"),
    "a pause that nobody asked for": (fault("kill", {}), seen(state="T"), "process ended"),
    "a clock that stood": (
        fault("clock", {"nodes": {"b1": {"offset_ms": 900.0}}}, rate=1.0),
        seen(),
        "clock offset",
    ),
    "a disk that kept everything": (
        fault("wipe-disk", {"nodes": {"b1": {"down_ns": 4 * S, "killed": 1, "lost_bytes": 500}}}),
        seen(state=""),
        "disk empty",
    ),
}
AGREEING = [
    (PARTITION, seen(table=True)),
    (fault("pause", {}), seen(state="T")),
    (fault("pause", {}), seen(state="D")),
    (fault("clock", {"nodes": {"b1": {"offset_ms": 900.0}}}, rate=1.0), seen(clock_ms=901.0)),
    (
        fault("wipe-disk", {"nodes": {"b1": {"down_ns": 4 * S, "killed": 1, "lost_bytes": 500}}}),
        seen(state="", bytes=0),
    ),
]


@pytest.mark.parametrize("name", DISAGREEING)
def test_evidence_that_a_monitor_did_not_see_is_found(name: str) -> None:
    row, samples, kind = DISAGREEING[name]
    assert {line.split(":")[0] for line in compare([row], of_nodes(row, samples)).disagreements} == {kind}


@pytest.mark.parametrize(("row", "samples"), AGREEING)
def test_evidence_that_a_monitor_saw_agrees(row: dict[str, Any], samples: list[Sample]) -> None:
    assert compare([row], of_nodes(row, samples)).disagreements == []


@pytest.mark.parametrize("changes", [{"table": True}, {"state": "T"}, {"state": ""}])
def test_what_a_monitor_saw_without_a_fault_is_found(changes: dict[str, Any]) -> None:
    assert len(compare([], {"b1": seen(**changes)}).disagreements) == 20


class FreezingMachine:
    """Freezes and thaws, and takes 200 ms to stop the process once it is thawed."""

    name, address = "b1", "127.0.0.1"

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 120.0) -> bytes:
        if argv[1] == "pause":
            await asyncio.sleep(0.2)
        return b'{"missed": 1, "frozen_seconds": 9.0}'

    async def put(self, contents: bytes, path: str, *, mode: int = 0o644) -> None:
        raise NotImplementedError

    async def fetch(self, path: str) -> bytes:
        raise NotImplementedError

    async def freeze(self) -> None:
        """At once."""

    async def thaw(self) -> int:
        return 3


def test_a_frozen_process_that_ran_for_a_command_was_not_frozen_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(monotonic=lambda: asyncio.get_running_loop().time())
    monkeypatch.setattr("harness.environments.machines.node_handle.time", clock)

    async def pause() -> dict[str, float]:
        service = Service(argv=("x",), files={}, data="d", log="l", trace=None, stop_limit_s=1.0)
        handle = NodeHandle(None, FreezingMachine(), service, alive=True)  # type: ignore[arg-type]
        await handle.pause(from_outside=True)
        await handle.ask("status")
        await asyncio.sleep(0.1)
        return dict(await handle.resume())

    expected = pytest.approx({"awake_seconds": 0.2, "frozen_seconds": 0.1, "missed": 4})
    assert virtual_time.run(pause()) == expected
