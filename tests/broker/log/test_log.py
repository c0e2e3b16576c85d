"""The log of one partition: what it stores, reads, cuts and syncs."""

from __future__ import annotations

from errno import EIO, ENOSPC

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.broker.log import segment as segment_module
from images.broker.log.clean_shutdown import CLEAN_SHUTDOWN
from images.broker.log.leader_epochs import EpochCache
from images.broker.log.log import OffsetOutOfRange, OutOfPlace
from images.broker.log.log_config import LogConfig
from images.broker.log.log_start_checkpoint import LOG_START_CHECKPOINT
from images.broker.log.producer_state import Duplicate, check_sequence
from images.broker.rules import Rules
from images.wire.batch import CorruptBatch, iterate, parse
from tests.broker.log.disk_model import DiskModel
from tests.broker.log.small_log import EVERYTHING, SMALL_SEGMENTS, batch, filled, open_log, read_all

# ---- appending and reading -------------------------------------------------------------------------------------------


def test_appended_batches_are_read_back_across_segments() -> None:
    disk = DiskModel()
    log = filled(disk, 20)
    assert (log.start, log.end) == (0, 20)
    assert [parse(found).base_offset for found in read_all(log)] == list(range(20))
    segments = [name for name in disk.list("topic-0") if name.endswith(".log")]
    assert segments[0] == "00000000000000000000.log"
    assert len(segments) > 3
    assert log.size == sum(disk.open(f"topic-0/{name}").size() for name in segments)


def test_a_batch_out_of_place_is_not_stored() -> None:
    log = open_log(DiskModel())
    log.append(batch(0, count=3))
    for offset in (0, 2, 4):
        with pytest.raises(OutOfPlace, match="ends at 3"):
            log.append(batch(offset))
    assert log.end == 3


def test_a_corrupt_batch_is_not_stored() -> None:
    log = open_log(DiskModel())
    damaged = bytearray(batch(0))
    damaged[-1] ^= 1
    with pytest.raises(CorruptBatch):
        log.append(bytes(damaged))
    assert (log.end, log.size) == (0, 0)


def test_an_append_returns_the_header() -> None:
    log = open_log(DiskModel())
    header = log.append(batch(0, count=4, epoch=2))
    assert (header.base_offset, header.next_offset, header.leader_epoch) == (0, 4, 2)
    assert log.last_batch_epoch == log.epochs.latest == 2


def test_a_read_begins_with_the_batch_that_holds_the_offset() -> None:
    log = open_log(DiskModel())
    log.append(batch(0, count=3))
    log.append(batch(3, count=3))
    assert log.read(4, EVERYTHING, 6) == batch(3, count=3)
    assert log.read(2, EVERYTHING, 6) == batch(0, count=3) + batch(3, count=3)


def test_no_read_reaches_beyond_its_bound() -> None:
    log = open_log(DiskModel())
    for offset in (0, 3, 6):
        log.append(batch(offset, count=3))
    assert log.read(0, EVERYTHING, 6) == batch(0, count=3) + batch(3, count=3)
    assert log.read(0, EVERYTHING, 5) == batch(0, count=3)
    assert log.read(3, EVERYTHING, 5) == b""
    assert log.read(3, EVERYTHING, 3) == b""
    assert log.read(3, EVERYTHING, 0) == b""


def test_a_read_gives_one_batch_over_its_size_only_when_asked_to() -> None:
    log = open_log(DiskModel())
    one, two = batch(0), batch(1)
    log.append(one)
    log.append(two)
    assert log.read(0, len(one) + len(two), 2) == one + two
    assert log.read(0, len(one) + len(two) - 1, 2) == one
    assert log.read(0, 1, 2) == one
    assert log.read(0, 1, 2, at_least_one=False) == b""
    assert log.read(0, len(one), 2, at_least_one=False) == one


def test_a_read_at_the_end_is_empty_and_outside_the_log_an_error() -> None:
    log = open_log(DiskModel())
    log.truncate_fully_and_start_at(5)
    log.append(batch(5))
    assert log.read(6, EVERYTHING, 6) == b""
    for offset in (4, 7):
        with pytest.raises(OffsetOutOfRange):
            log.read(offset, EVERYTHING, 6)


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=30),
    st.sampled_from([0, 150, 100_000]),
    st.sampled_from([4, 1 << 16]),
    st.sampled_from([200, 100_000]),
    st.booleans(),
    st.data(),
)
def test_every_read_equals_a_walk_over_all_batches(
    counts: list[int], interval: int, entries_max: int, segment_bytes: int, reopened: bool, data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_module, "INDEX_ENTRIES_MAX", entries_max)
        patch.setattr(segment_module, "HEADER_WALK_BYTES", data.draw(st.sampled_from([61, 100, 1 << 14])))
        disk = DiskModel()
        config = LogConfig(segment_bytes=segment_bytes, index_interval_bytes=interval)
        log = open_log(disk, config)
        for count in counts:
            log.append(batch(log.end, count=count, value=b"x" * count))
        if reopened:
            log.close(clean=True)
            log = open_log(disk, config)
        whole = read_all(log)
        for _ in range(10):
            offset = data.draw(st.integers(0, log.end))
            before = data.draw(st.integers(0, log.end + 1))
            max_bytes = data.draw(st.integers(0, 600))
            at_least_one = data.draw(st.booleans())
            contents = log.read(offset, max_bytes, before, at_least_one)
            candidates = [one for one in whole if parse(one).next_offset > offset and parse(one).next_offset <= before]
            assert candidates or not contents
            wanted = list(iterate(contents))
            assert [one for _, one in wanted] == candidates[: len(wanted)] or offset >= before
            assert len(contents) <= max_bytes or (at_least_one and len(wanted) == 1)
            if candidates and offset < before and len(wanted) < len(candidates):
                more = len(contents) + len(candidates[len(wanted)])
                next_base = parse(candidates[len(wanted)]).base_offset
                next_segment = disk.exists(f"topic-0/{next_base:020d}.log")
                assert more > max_bytes or (next_segment and wanted), "it stopped short without a reason"


def test_the_index_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_module, "INDEX_ENTRIES_MAX", 16)
    log = filled(DiskModel(), 500, LogConfig())
    assert len(log._segments[0]._offsets) <= 16
    assert [parse(log.read(offset, 1, 500)).base_offset for offset in range(500)] == list(range(500))


def test_a_changed_index_distance_counts_for_segments_that_begin_later() -> None:
    log = filled(DiskModel(), 10, LogConfig())
    log.config = LogConfig(index_interval_bytes=1 << 20)
    for _ in range(2):
        for _ in range(10):
            log.append(batch(log.end))
        log.roll()
    assert [len(segment._offsets) for segment in log.segments] == [20, 1, 0]
    assert [parse(log.read(offset, 1, 30)).base_offset for offset in range(30)] == list(range(30))


# ---- epochs ----------------------------------------------------------------------------------------------------------


def test_epochs_follow_the_batches() -> None:
    log = open_log(DiskModel())
    for offset, epoch in enumerate((0, 0, 3, 3, 4)):
        log.append(batch(offset, epoch=epoch))
    assert log.epochs == EpochCache.of((0, 0), (3, 2), (4, 4))


def test_an_epoch_entered_without_batches_is_not_the_last_batchs() -> None:
    log = open_log(DiskModel())
    assert log.last_batch_epoch == -1
    log.assign_epoch(3, 0)
    assert (log.epochs.latest, log.last_batch_epoch) == (3, -1)
    log.append(batch(0, epoch=3))
    log.assign_epoch(5, 1)
    assert (log.epochs.latest, log.last_batch_epoch) == (5, 3)


def test_an_epoch_that_wrote_nothing_gives_way_to_an_older_one_that_goes_on() -> None:
    log = open_log(DiskModel())
    log.append(batch(0, epoch=1))
    log.assign_epoch(5, 1)
    log.append(batch(1, epoch=1))
    assert log.epochs == EpochCache.of((1, 0))


# ---- cutting ---------------------------------------------------------------------------------------------------------


def test_cutting_takes_batches_epochs_and_producer_state() -> None:
    disk = DiskModel()
    log = open_log(disk)
    for offset in range(12):
        log.append(batch(offset, epoch=offset // 4, producer=7, sequence=offset))
    assert log.truncate(6) == 6
    assert log.end == 6
    assert log.epochs == EpochCache.of((0, 0), (1, 4))
    assert len(read_all(log)) == 6
    assert check_sequence(log.producers, parse(batch(0, producer=7, sequence=5)), Rules()) == Duplicate(5, 5)
    assert check_sequence(log.producers, parse(batch(0, producer=7, sequence=1)), Rules()) == Duplicate(1, 1)
    log.append(batch(6, epoch=9, producer=7, sequence=6))
    assert log.epochs == EpochCache.of((0, 0), (1, 4), (9, 6))


@pytest.mark.parametrize("to", [0, 1, 37, 64, 65, 128, 299, 300])
@pytest.mark.parametrize("config", [SMALL_SEGMENTS, LogConfig()])
def test_after_a_cut_anywhere_epochs_and_producers_are_those_of_the_log_that_is_left(
    to: int, config: LogConfig
) -> None:
    log = filled(DiskModel(), 300, config)
    expected = filled(DiskModel(), to, config)
    log.truncate(to)
    assert (log.end, log.epochs, log.producers) == (to, expected.epochs, expected.producers)
    assert read_all(log) == read_all(expected)


def test_cutting_above_the_end_forgets_only_an_epoch_without_batches() -> None:
    log = open_log(DiskModel())
    log.append(batch(0, epoch=1))
    log.assign_epoch(4, 1)
    assert log.truncate(1) == 1
    assert log.epochs == EpochCache.of((1, 0))
    assert log.truncate(9) == 1
    assert log.epochs == EpochCache.of((1, 0))


def test_cutting_inside_a_batch_takes_the_whole_batch() -> None:
    log = open_log(DiskModel())
    log.append(batch(0, count=3))
    log.append(batch(3, count=3))
    assert log.truncate(4) == 3
    assert log.end == 3


def test_cutting_below_the_start_starts_the_log_there() -> None:
    log = open_log(DiskModel())
    log.truncate_fully_and_start_at(50)
    log.append(batch(50))
    assert log.truncate(20) == 20
    assert (log.start, log.end) == (20, 20)


def test_full_truncation_forgets_everything() -> None:
    disk = DiskModel()
    log = filled(disk, 30)
    log.truncate_fully_and_start_at(100)
    assert (log.start, log.end, log.epochs, len(log.producers)) == (100, 100, EpochCache(), 0)
    assert [name for name in disk.list("topic-0") if not name.endswith(CLEAN_SHUTDOWN)] == [
        f"{100:020d}.log",
        LOG_START_CHECKPOINT,
    ]
    log.append(batch(100, epoch=2))
    log.close(clean=False)
    log = open_log(disk)
    assert (log.start, log.end) == (100, 101)


# ---- times -----------------------------------------------------------------------------------------------------------


def test_the_first_record_not_older_than_a_time_is_found() -> None:
    log = open_log(DiskModel())
    for offset, timestamp in enumerate((10, 30, 20, 40, 40, 35)):
        log.append(batch(offset, timestamp=timestamp))
    assert log.offset_for_time(0) == (0, 10)
    assert log.offset_for_time(11) == (1, 30)
    assert log.offset_for_time(31) == (3, 40)
    assert log.offset_for_time(41) is None
    assert log.offset_of_max_timestamp() == (3, 40)
    log.truncate(3)
    assert log.offset_of_max_timestamp() == (1, 30)
    log.truncate(0)
    assert log.offset_of_max_timestamp() is None
    assert log.offset_for_time(0) is None


# ---- syncing ---------------------------------------------------------------------------------------------------------


def test_appending_never_syncs_by_default() -> None:
    disk = DiskModel()
    log = open_log(disk)
    before = disk.fsyncs
    for offset in range(100):
        log.append(batch(offset))
    assert disk.fsyncs == before
    assert log.recovery_point == 0
    log.flush()
    assert log.recovery_point == 100


def test_a_flush_interval_counts_records() -> None:
    disk = DiskModel()
    log = open_log(disk, LogConfig(flush_interval_messages=5))
    log.append(batch(0, count=4))
    assert log.recovery_point == 0
    log.append(batch(4))
    assert log.recovery_point == 5
    log.append(batch(5))
    assert log.recovery_point == 5


@pytest.mark.parametrize(("interval", "synced"), [(7, 0), (6, 6), (1, 6)])
def test_what_a_killed_process_left_unsynced_is_synced_by_its_next_one(interval: int, synced: int) -> None:
    """It counts as held from then on, and no append may follow that would sync it."""
    disk = DiskModel()
    open_log(disk).append(batch(0, count=6))
    log = open_log(disk, LogConfig(flush_interval_messages=interval))
    assert (log.end, log.recovery_point) == (6, synced)


@pytest.mark.parametrize("failing", ["fsync_error", "directory_error"])
@pytest.mark.parametrize("number", [EIO, ENOSPC])
def test_after_a_failed_sync_nothing_more_is_taken(failing: str, number: int) -> None:
    disk = DiskModel()
    log = open_log(disk)
    log.append(batch(0))
    log.roll()
    setattr(disk, failing, OSError(number, "out of order"))
    with pytest.raises(OSError, match="out of order"):
        log.flush()
    setattr(disk, failing, None)
    assert log.recovery_point == 0
    for change in (log.flush, lambda: log.append(batch(1)), lambda: log.truncate(0)):
        with pytest.raises(OSError, match="the log failed before") as refusal:
            change()
        assert refusal.value.errno == number, "a full disk is told from a broken one"
    assert log.read(0, EVERYTHING, 1) == batch(0)
    lines: list[str] = []
    log._log_line = lines.append
    failure = log.close(clean=True)
    assert failure is not None
    assert failure.errno == number
    assert "not closed cleanly" in lines[0]
    assert not open_log(disk).recovery.clean


def test_a_full_disk_leaves_the_log_as_it_was() -> None:
    disk = DiskModel()
    log = open_log(disk)
    log.append(batch(0, producer=1, sequence=0))
    producers = log.producers
    disk.capacity_bytes = disk.used_bytes() + 10
    with pytest.raises(OSError, match="No space left"):
        log.append(batch(1, producer=1, sequence=1))
    assert (log.end, log.producers) == (1, producers)
    disk.capacity_bytes = 1 << 60
    log.append(batch(1, producer=1, sequence=1))
    assert read_all(log) == [batch(0, producer=1, sequence=0), batch(1, producer=1, sequence=1)]
    log.close(clean=False)
    assert open_log(disk).end == 2
