"""What a simulated disk says of an event by which a node says that something is on it."""

from __future__ import annotations

from typing import Any

import pytest

from harness.environments.disk_witness import witnessed
from harness.simulation.storage.disk import SimDisk
from harness.simulation.storage.files import SimFiles
from images.trace import TraceEvent

LOG = "t-0/00000000000000000000.log"
METADATA = "__cluster_metadata-0"


def of_replica(kind: str, **detail: Any) -> TraceEvent:
    return TraceEvent(kind, "t", 0, detail=detail)


CLAIMS = {
    "a batch is synced": (of_replica("appended", synced=True), LOG),
    "a log is closed": (of_replica("log_closed", synced=True), LOG),
    "a segment is opened": (of_replica("log_recovered", synced_segments=[LOG.removeprefix("t-0/")]), LOG),
    "a log start is written": (of_replica("log_start_written"), "t-0/log-start-checkpoint"),
    "a metadata record is appended": (TraceEvent("metadata_appended"), f"{METADATA}/00000000000000000000.log"),
    "a snapshot is written": (TraceEvent("metadata_snapshot"), f"{METADATA}/0-1.checkpoint"),
    "a controller has voted": (TraceEvent("quorum_voted"), f"{METADATA}/quorum-state"),
}


def written(path: str) -> tuple[SimDisk, SimFiles]:
    files = SimFiles(disk := SimDisk())
    files.open(path).append(b"x")
    return disk, files


@pytest.mark.parametrize(("event", "path"), CLAIMS.values(), ids=CLAIMS)
def test_what_is_said_to_be_on_the_disk_and_is_not_is_told(event: TraceEvent, path: str) -> None:
    disk, files = written(path)
    files.open(f"{path}.tmp").append(b"x")
    assert witnessed(event, disk).detail == {**event.detail, "at_risk": [path]}
    files.open(path).fsync()
    files.sync_directory(path.rpartition("/")[0])
    assert witnessed(event, disk) is event


@pytest.mark.parametrize("kind", ["appended", "log_closed"])
def test_nothing_is_told_of_what_is_not_said_to_be_on_the_disk(kind: str) -> None:
    disk, _ = written(LOG)
    others = (of_replica("truncated", synced=True), of_replica("log_recovered", synced_segments=[]))
    for event in (of_replica(kind, synced=False), of_replica(kind), *others):
        assert witnessed(event, disk) is event


def test_a_disk_that_has_lied_is_no_witness() -> None:
    disk, files = written(LOG)
    disk.lying = True
    files.open(LOG).fsync()
    event = of_replica("appended", synced=True)
    assert witnessed(event, disk) is event


def test_a_deletion_that_a_loss_of_power_undoes_is_told() -> None:
    disk, files = written(LOG)
    files.sync_directory("t-0")
    files.delete("t-0")
    event = of_replica("replica_deleted")
    assert witnessed(event, disk).detail == {"at_risk": ["t-0"]}
    files.sync_directory("")
    assert witnessed(event, disk) is event
