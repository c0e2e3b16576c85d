"""A controller loses power before each write by which a snapshot takes effect; its disk loses what is unsynced."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from harness.simulation.crash_points import CrashPoint
from harness.simulation.storage.disk import SimDisk
from harness.simulation.storage.files import SimFiles
from images.broker.metadata.image import ClusterImage, ProducerIdsBlock
from images.broker.ports import NodePorts
from images.broker.raft.log import DIRECTORY, KafkaMetadataLog
from images.broker.raft.snapshots import encode_snapshot
from images.broker.raft.values import SnapshotId
from images.broker.rules import Rules
from images.broker.runtime.files import write_durably
from nemesis.ports import KeepUnsynced

SEGMENT_BYTES = 300
"""Three changes, so that a trim deletes segments."""
EFFECTS_MAX = 100
OWN_END, LEADERS_END, LEADERS_EPOCH = 16, 30, 5
LEADERS_IMAGE = ClusterImage(offset=LEADERS_END, next_producer_id=777)
LEADERS = SnapshotId(LEADERS_END, LEADERS_EPOCH)


class PowerCut(Exception):
    """The power is lost before a write."""


def cut_power() -> None:
    raise PowerCut


def opened(disk: SimDisk, crash_point: CrashPoint | None = None) -> KafkaMetadataLog:
    ports = NodePorts(SimFiles(disk, crash_point), Random(1), [].append, [].append)
    return KafkaMetadataLog(ports, SEGMENT_BYTES, Rules(), 1)


def append(log: KafkaMetadataLog) -> None:
    """A change by which the image tells how far it was read."""
    log.append(log.encode_batch([ProducerIdsBlock(log.end + 1)], 3, 0))


def with_two_snapshots(disk: SimDisk) -> KafkaMetadataLog:
    log = opened(disk)
    while log.end < OWN_END:
        append(log)
        if log.end in (5, 10):
            log.snapshot_and_trim(log.end)
    assert ([each.end for each in log.snapshots], log.start) == ([5, 10], 5)
    return log


def cut_short(step: Callable[[KafkaMetadataLog], object], effects: int, keep: KeepUnsynced) -> SimDisk | None:
    """The disk after a power loss before the effect number `effects` of `step`; None if it has fewer."""
    disk = SimDisk()
    with_two_snapshots(disk)
    crash_point = CrashPoint()
    log = opened(disk, crash_point)
    crash_point.arm(effects, cut_power)
    try:
        step(log)
    except PowerCut:
        disk.lose_power(keep, Random(effects))
        return disk
    return None


def trim(log: KafkaMetadataLog) -> None:
    log.snapshot_and_trim(OWN_END)


def install(log: KafkaMetadataLog) -> None:
    log.install_snapshot(LEADERS, encode_snapshot(LEADERS_IMAGE, LEADERS_EPOCH))


def assert_consistent(disk: SimDisk, log: KafkaMetadataLog) -> None:
    names = sorted(name for name in SimFiles(disk).list(DIRECTORY) if name.endswith(".checkpoint"))
    assert names == [snapshot.name for snapshot in log.snapshots]
    assert len(log.snapshots) <= 2
    assert log.start == log.snapshots[0].end, "the log goes on from the oldest one"
    assert log.start <= log.snapshot_end <= log.end
    image = log.image(log.end)
    assert (image.offset, image.next_producer_id) in ((OWN_END, OWN_END), (LEADERS_END, 777))


@pytest.mark.parametrize("keep", KeepUnsynced)
@pytest.mark.parametrize("step", [trim, install])
def test_a_snapshot_that_a_crash_cuts_short_loses_nothing_and_is_finished(
    step: Callable[[KafkaMetadataLog], object], keep: KeepUnsynced
) -> None:
    begun_with: set[tuple[int, ...]] = set()
    effects = 0
    while (disk := cut_short(step, effects := effects + 1, keep)) is not None:
        log = opened(disk)
        assert_consistent(disk, log)
        begun_with.add(tuple(snapshot.end for snapshot in log.snapshots))
        disk.lose_power(keep, Random(effects))
        again = opened(disk)
        assert_consistent(disk, again)
        assert (again.start, again.end, again.snapshots) == (log.start, log.end, log.snapshots), "as it was recovered"
        step(again)
        assert again.snapshot_end == (OWN_END if step is trim else LEADERS_END)
        append(again)
        again.snapshot_and_trim(again.end)
        assert len(again.snapshots) == 2
        assert again.start == again.snapshots[0].end
    assert effects > 10, "it was cut short before each of its writes"
    assert begun_with == ({(5, 10), (10, OWN_END)} if step is trim else {(5, 10), (LEADERS_END,)})


LEFT_BEHIND: dict[str, tuple[SnapshotId, bytes, list[int]]] = {
    "a snapshot that is not begun with": (
        SnapshotId(OWN_END, 3),
        encode_snapshot(ClusterImage(offset=OWN_END, next_producer_id=OWN_END), 3),
        [10, OWN_END],
    ),
    "a snapshot of the leader that is not begun with": (
        LEADERS,
        encode_snapshot(LEADERS_IMAGE, LEADERS_EPOCH),
        [LEADERS_END],
    ),
    "a damaged snapshot": (SnapshotId(OWN_END, 3), b"", [5, 10]),
}


@pytest.mark.parametrize("keep", KeepUnsynced)
@pytest.mark.parametrize("left_behind", LEFT_BEHIND)
def test_a_recovery_that_a_crash_cuts_short_is_finished_by_the_next(left_behind: str, keep: KeepUnsynced) -> None:
    snapshot, data, ends = LEFT_BEHIND[left_behind]
    for effects in range(1, EFFECTS_MAX):
        disk, crash_point = SimDisk(), CrashPoint()
        with_two_snapshots(disk)
        write_durably(SimFiles(disk), f"{DIRECTORY}/{snapshot.name}", data)
        crash_point.arm(effects, cut_power)
        try:
            opened(disk, crash_point)
        except PowerCut:
            disk.lose_power(keep, Random(effects))
        log = opened(disk)
        assert_consistent(disk, log)
        assert [snapshot.end for snapshot in log.snapshots] == ends
        if crash_point.armed:
            assert effects > 1, "it was cut short before each of its writes"
            return
    raise AssertionError("it never ends")
