"""Blackouts: power is cut where nothing promised can be lost, and what is lost there all the same is no excuse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from checkers.verdict import Validity
from harness.runner.run import run, run_in_simulation
from harness.spec import parse
from images.broker.log.log import Log
from nemesis.cluster_shape import ClusterShape
from nemesis.faults.administrators.admin import ControlledRestart, RollingRestart
from nemesis.faults.disk import PowerLoss
from nemesis.faults.fault import Fault
from nemesis.handle import ActiveEffects, FaultHandle
from nemesis.ports import Evidence, KeepUnsynced
from nemesis.schedule import parse_script
from nemesis.situation import Situation
from nemesis.swarm import draw, is_fair
from results.run.directory import RunDirectory
from tests.nemesis.fake_cluster import FakeCluster
from tests.workloads import virtual_time

CLUSTER = ClusterShape(("b1", "b2", "b3"), ("c1", "c2", "c3"), partitions=2)
SYNCED = replace(CLUSTER, synced_appends=True, unclean_recovery=True)
ENDING = ["power-loss", "admin", "kill"]


def blackouts(cluster: ClusterShape, *, seeds: int = 200) -> Counter[str]:
    """What became of the faults that a schedule without blackouts has, over many seeds; all others are as they were."""
    changes = Counter[str]()
    for seed in range(seeds):
        plain, dark = (draw(Random(seed), cluster, 60.0, ENDING, blackouts=share) for share in (0.0, 0.5))
        assert is_fair(dark, cluster)
        assert parse_script(dark.to_script()) == dark
        dark.check(cluster.brokers, cluster.controllers, cluster.partitions)
        for before, after in zip(plain, dark, strict=True):
            if after == before:
                continue
            assert replace(after, fault=before.fault) == before
            changes[_became(before.fault, after.fault, cluster)] += 1
    return changes


def _became(before: Fault, after: Fault, cluster: ClusterShape) -> str:
    match before, after:
        case ControlledRestart(keep=None), ControlledRestart(keep=KeepUnsynced()):
            of_controllers = before.nodes[0].startswith("c")
            alike = cluster.controllers if of_controllers else cluster.brokers
            role = "controllers" if of_controllers else "brokers"
            return f"all {role} stopped" if after.nodes == alike else f"of {role} stopped"
        case RollingRestart(keep=None), RollingRestart(keep=KeepUnsynced()):
            return "stopped one by one"
        case PowerLoss(stopping_ms=None), PowerLoss(stopping_ms=float()) if after == replace(
            before, stopping_ms=after.stopping_ms
        ):
            return "while it stops"
        case PowerLoss(), PowerLoss() if after.keep == before.keep:
            names = {cluster.controllers: "controllers", cluster.brokers: "brokers"}
            return names.get(after.nodes, "all" if after.nodes == cluster.brokers + cluster.controllers else "other")
    return f"{before} became {after}"


def test_blackouts_change_restarts_and_power_losses_and_nothing_else() -> None:
    stopped = {f"{which} {role} stopped" for which in ("of", "all") for role in ("brokers", "controllers")}
    assert {*blackouts(CLUSTER)} == {*stopped, "stopped one by one", "controllers", "while it stops"}


def test_all_brokers_lose_power_at_once_only_where_every_append_is_synced_and_a_recovery_finds_it() -> None:
    assert {"brokers", "all"} < {*blackouts(SYNCED)}
    for lacking in (replace(SYNCED, synced_appends=False), replace(SYNCED, unclean_recovery=False)):
        assert not {"brokers", "all", "other"} & {*blackouts(lacking)}
        assert not is_fair(
            parse_script([{"at": 1.0, "for": 1.0, "fault": "power-loss", "nodes": ["b1", "b2"]}]), lacking
        )


def test_a_spec_says_whether_every_append_is_synced() -> None:
    def synced(settings: dict[str, str]) -> bool:
        spec = parse({"settings": settings})
        return spec.cluster_shape(spec.broker_names, spec.controller_names).synced_appends

    assert synced({"flush.messages": "1"})
    assert synced({"log.flush.interval.messages": "1"})
    assert not synced({})
    assert not synced({"flush.messages": "10"})


class _Stops(FakeCluster):
    """A cluster whose broker `b2` does not stop by itself."""

    async def stop(self, node: str) -> Evidence:
        await super().stop(node)
        return {"stopped": float(node != "b2")}


@pytest.mark.parametrize(
    "fault",
    [ControlledRestart(("b1", "b2"), KeepUnsynced.NOTHING), RollingRestart(100.0, KeepUnsynced.NOTHING)],
    ids=lambda fault: fault.name,
)
def test_only_a_broker_that_has_stopped_cleanly_loses_its_power(fault: Fault) -> None:
    cluster = _Stops()

    async def inject() -> None:
        handle = FaultHandle(cluster, ActiveEffects(), Random(1))
        await fault.inject(handle)
        await handle.heal()
        assert handle.notes == ["b2: was not whole, or did not stop cleanly; it keeps its power"]

    virtual_time.run(inject())
    stops = [call.split()[1] for call in cluster.calls if call.startswith("stop ")]
    cuts = [call.split()[1] for call in cluster.calls if call.startswith("kill ")]
    assert cuts == [node for node in stops if node != "b2"]
    assert cluster.pristine


def test_what_a_broker_wrote_before_it_ended_over_a_full_disk_is_not_lost_with_a_clean_stop_of_its_next_life() -> None:
    """As in the varied run `groups` of seed 28004527: no controller registers that life, so it opens no log."""
    script = [
        {"at": 2, "for": 8, "fault": "disk-full", "nodes": ["b2"]},
        {"at": 3.5, "for": 4, "fault": "kill", "nodes": ["controllers"]},
        {"at": 4, "for": 0.3, "fault": "controlled-restart", "nodes": ["b2"]},
        {"at": 5, "for": 1, "fault": "controlled-restart", "nodes": ["b2"], "keep": "nothing"},
    ]
    outcome = run_in_simulation(parse({"seed": 1, "time_limit": 12, "partitions": 1, "faults": script}))
    assert outcome.validity is Validity.VALID, outcome.verdicts
    (full,) = (each for each in outcome.injections if each.fault == "disk-full")
    assert full.took_effect, "b2 ended over a refused write"


def test_a_broker_that_ended_uncleanly_loses_its_power_with_a_clean_stop_only_once_it_is_whole() -> None:
    cluster, situation = FakeCluster(), Situation()
    wholeness = situation.wholeness
    wholeness.decided(("t", 0), ("b1", "b2"), ("b1", "b2"))

    async def stop() -> list[str]:
        cluster.calls.clear()
        handle = FaultHandle(cluster, ActiveEffects(), Random(1), situation=situation)
        await ControlledRestart(("b1",), KeepUnsynced.NOTHING).inject(handle)
        await handle.heal()
        return cluster.calls

    async def scenario() -> None:
        wholeness.log_ends("b1", ("t", 0), 5)
        wholeness.went_down("b1")
        assert await stop() == ["stop b1", "start b1"]
        wholeness.registered("b1")
        assert await stop() == ["stop b1", "start b1"]
        wholeness.recovered("b1", ("t", 0), 5)
        assert await stop() == ["stop b1", "kill b1", "start b1"]

    virtual_time.run(scenario())


def verdicts(path: Path, settings: dict[str, str], *script: dict[str, Any]) -> dict[str, tuple[str, set[str]]]:
    """Checker → its verdict and what it found, of a simulated run."""
    spec = parse({"seed": 5, "time_limit": "14s", "rate": 40, "settings": settings, "faults": list(script)})
    directory = RunDirectory.create(path, "blackout", 5)
    run(spec, directory, report=False)
    return {
        verdict.checker: (str(verdict.validity), {finding.kind for finding in verdict.findings})
        for verdict in directory.verdicts()
    }


ALL_STOPPED = {
    "at": 4.0,
    "for": 3.0,
    "fault": "controlled-restart",
    "nodes": ["b1", "b2", "b3"],
    "keep": "nothing",
}


def without_sync(close: Callable[[Log, bool], OSError | None]) -> Callable[[Log, bool], OSError | None]:
    """A clean close that takes what was written for what is on the disk."""

    def closed(log: Log, clean: bool) -> OSError | None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Log, "flush", lambda log: None)
            return close(log, clean)

    return closed


def test_brokers_that_have_all_stopped_cleanly_lose_nothing_with_their_power(tmp_path: Path) -> None:
    assert {validity for validity, _ in verdicts(tmp_path, {}, ALL_STOPPED).values()} == {"valid"}


def test_what_brokers_lose_that_had_stopped_cleanly_is_excused_by_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Log, "close", without_sync(Log.close))
    found = verdicts(tmp_path, {}, ALL_STOPPED)
    assert found["loss"] == ("invalid", {"lost-append"})
    assert found["protocol"][0] == "invalid"


ALL_CUT = {"at": 6.0, "for": 2.0, "fault": "power-loss", "nodes": ["b1", "b2", "b3"], "keep": "nothing"}
RECOVERY = {"unclean.recovery.strategy": "balanced"}


def test_where_every_append_is_synced_all_brokers_lose_power_at_once_and_nothing_with_it(tmp_path: Path) -> None:
    found = verdicts(tmp_path, {"flush.messages": "1", **RECOVERY}, ALL_CUT)
    assert found["faults"] == ("valid", set()), "their end is an effect"
    assert {validity for validity, _ in found.values()} == {"valid"}
    found = verdicts(tmp_path / "unsynced", RECOVERY, ALL_CUT)
    assert found["loss"][0] == "unknown", "the loss is more than the protocol promises to survive"
