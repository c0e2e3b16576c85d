"""A controller loses power before each write by which a snapshot takes effect; its disk loses what is unsynced."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

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
DIVERGING_END = 40
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


def with_diverging_records(disk: SimDisk) -> KafkaMetadataLog:
    """The log goes on beyond the end of the leader's snapshot, with records of an earlier epoch."""
    log = with_two_snapshots(disk)
    while log.end < DIVERGING_END:
        append(log)
    return log


def cut_short(situation: Situation, effects: int, keep: KeepUnsynced) -> SimDisk | None:
    """The disk after a power loss before the effect number `effects` of the step; None if it has fewer."""
    disk = SimDisk()
    situation.begin(disk)
    crash_point = CrashPoint()
    log = opened(disk, crash_point)
    crash_point.arm(effects, cut_power)
    try:
        situation.step(log)
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
    wholes = ((OWN_END, OWN_END), (DIVERGING_END, DIVERGING_END), (LEADERS_END, 777))
    assert (image.offset, image.next_producer_id) in wholes


class Situation(NamedTuple):
    """A log, the step that is cut short, and where the latest snapshot ends after it."""

    begin: Callable[[SimDisk], KafkaMetadataLog]
    step: Callable[[KafkaMetadataLog], object]
    snapshot_end: int
    begun_with: set[tuple[int, ...]]
    """The ends of the snapshots with which a log is opened that was cut short."""


SITUATIONS = {
    "a trim": Situation(with_two_snapshots, trim, OWN_END, {(5, 10), (10, OWN_END)}),
    "a snapshot of the leader beyond the log": Situation(
        with_two_snapshots, install, LEADERS_END, {(5, 10), (LEADERS_END,)}
    ),
    "a snapshot of the leader in place of other records": Situation(
        with_diverging_records, install, LEADERS_END, {(5, 10), (LEADERS_END,)}
    ),
}


@pytest.mark.parametrize("keep", KeepUnsynced)
@pytest.mark.parametrize("situation", SITUATIONS.values(), ids=SITUATIONS)
def test_a_snapshot_that_a_crash_cuts_short_loses_nothing_and_is_finished(
    situation: Situation, keep: KeepUnsynced
) -> None:
    begun_with: set[tuple[int, ...]] = set()
    effects = 0
    while (disk := cut_short(situation, effects := effects + 1, keep)) is not None:
        log = opened(disk)
        assert_consistent(disk, log)
        if log.start == LEADERS_END:
            assert log.view.epochs.entries[-1].epoch == LEADERS_EPOCH, "it tells what its own records gave way to"
        begun_with.add(tuple(snapshot.end for snapshot in log.snapshots))
        disk.lose_power(keep, Random(effects))
        again = opened(disk)
        assert_consistent(disk, again)
        assert (again.start, again.end, again.snapshots) == (log.start, log.end, log.snapshots), "as it was recovered"
        situation.step(again)
        assert again.snapshot_end == situation.snapshot_end
        append(again)
        again.snapshot_and_trim(again.end)
        assert len(again.snapshots) == 2
        assert again.start == again.snapshots[0].end
    assert effects > 10, "it was cut short before each of its writes"
    assert begun_with == situation.begun_with


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


def test_a_log_tells_which_snapshots_it_has_and_which_it_could_not_read() -> None:
    disk = SimDisk()
    with_two_snapshots(disk)
    assert opened(disk).opening_detail == {"snapshots": [5, 10]}
    damaged = SnapshotId(OWN_END, 3)
    write_durably(SimFiles(disk), f"{DIRECTORY}/{damaged.name}", b"")
    assert opened(disk).opening_detail == {"snapshots": [5, 10], "snapshots_damaged": [damaged.name]}
    assert opened(disk).opening_detail == {"snapshots": [5, 10]}


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
