"""A log whose start moves: what goes, what stays known, and what survives. Crashes in between are in
test_log_recovery.py, whose lives move the start too."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.broker.log.leader_epochs import EpochCache
from images.broker.log.log import Log, OffsetOutOfRange
from images.broker.log.log_config import LogConfig
from images.broker.log.log_start_checkpoint import LOG_START_CHECKPOINT
from images.broker.log.producer_state import Accept, Duplicate, check_sequence
from images.broker.log.retention import Expiry, LogStartReason, Retention, expiry
from images.broker.rules import Rules
from images.broker.runtime.files import read_whole, write_durably
from images.wire.batch import parse
from tests.broker.log.disk_model import DiskModel
from tests.broker.log.small_log import EVERYTHING, batch, filled, open_log, read_all

FOUR_A_SEGMENT = LogConfig(segment_bytes=4 * len(batch(0)))


def segments(disk: DiskModel) -> list[int]:
    return [int(name[:20]) for name in disk.list("topic-0") if name.endswith(".log")]


def lose_all_unsynced(disk: DiskModel) -> None:
    disk.lose_power(lambda low, high: low)


def lose_nothing(disk: DiskModel) -> None:
    disk.lose_power(lambda low, high: 0 if high == 3 else high)


# ---- what goes -------------------------------------------------------------------------------------------------------


def test_only_whole_segments_below_the_start_are_removed() -> None:
    disk = DiskModel()
    log = filled(disk, 12, FOUR_A_SEGMENT)
    assert segments(disk) == [0, 4, 8]
    log.advance_start(3)
    assert (log.start, segments(disk)) == (3, [0, 4, 8])
    log.advance_start(4)
    assert segments(disk) == [4, 8]
    log.advance_start(11)
    assert (log.start, log.end, segments(disk)) == (11, 12, [8])
    assert [parse(found).base_offset for found in read_all(log)] == [11]


def test_the_start_does_not_go_back_nor_beyond_the_end() -> None:
    log = filled(DiskModel(), 6)
    log.advance_start(4)
    log.advance_start(2)
    assert log.start == 4
    with pytest.raises(OffsetOutOfRange, match="it ends at 6"):
        log.advance_start(7)
    log.advance_start(6)
    assert (log.start, log.end) == (6, 6)
    log.append(batch(6))
    assert len(read_all(log)) == 1


def test_records_below_the_start_are_neither_read_nor_found_by_time() -> None:
    log = open_log(DiskModel(), LogConfig())
    for offset, timestamp in enumerate((10, 90, 30, 40)):
        log.append(batch(offset, timestamp=timestamp))
    log.advance_start(2)
    with pytest.raises(OffsetOutOfRange, match="outside 2 … 4"):
        log.read(1, EVERYTHING, 4)
    assert log.offset_for_time(0) == (2, 30)
    assert log.offset_of_max_timestamp() == (3, 40)


def test_a_start_inside_a_batch_keeps_the_batch_and_hides_its_head() -> None:
    disk = DiskModel()
    log = open_log(disk)
    log.append(batch(0, count=5, timestamp=7))
    log.append(batch(5, count=5, timestamp=3))
    log.advance_start(2)
    assert log.read(2, EVERYTHING, 5) == batch(0, count=5, timestamp=7)
    assert log.offset_for_time(0) == (2, 7)
    assert log.offset_of_max_timestamp() == (2, 7)
    log = open_log(disk)
    assert (log.start, log.end) == (2, 10)
    assert log.truncate(4) == 0, "the batch goes whole, and takes the start with it"
    assert (log.start, log.end) == (0, 0)


# ---- what stays known ------------------------------------------------------------------------------------------------


def test_the_first_epoch_is_that_of_the_last_deleted_record() -> None:
    disk = DiskModel()
    log = open_log(disk)
    for offset, epoch in enumerate((1, 1, 3, 3, 3, 6)):
        log.append(batch(offset, epoch=epoch))
    log.advance_start(1)
    assert log.epochs == EpochCache.of((1, 0), (3, 2), (6, 5))
    log.advance_start(5)
    assert log.epochs == EpochCache.of((3, 4), (6, 5))
    assert open_log(disk).epochs == log.epochs, "made anew from the batches"
    log.close(clean=True)
    assert open_log(disk).epochs == EpochCache.of((3, 4), (6, 5))
    log = open_log(disk)
    log.advance_start(6)
    assert log.epochs == EpochCache.of((6, 5))
    log.assign_epoch(8, 6)
    assert log.epochs == EpochCache.of((6, 5), (8, 6))


@pytest.mark.parametrize("end", ["killed", "power lost", "closed"])
def test_the_epoch_of_the_last_deleted_record_is_still_known(end: str) -> None:
    disk = DiskModel()
    log = open_log(disk, FOUR_A_SEGMENT)
    for offset in range(5):
        log.append(batch(offset, epoch=3 if offset < 4 else 6))
    log.flush()
    log.advance_start(4)
    assert segments(disk) == [4]
    if end == "power lost":
        lose_all_unsynced(disk)
    elif end == "closed":
        log.close(clean=True)
    assert open_log(disk, FOUR_A_SEGMENT).epochs == EpochCache.of((3, 3), (6, 4))


@pytest.mark.parametrize("end", ["killed", "power lost", "closed"])
def test_a_producer_whose_batches_were_deleted_is_still_known(end: str) -> None:
    disk = DiskModel()
    log = open_log(disk, FOUR_A_SEGMENT)
    for sequence in range(4):
        log.append(batch(sequence, producer=7, sequence=sequence))
    for offset in range(4, 12):
        log.append(batch(offset))
    log.flush()
    log.advance_start(9)
    assert segments(disk) == [8]
    retry = parse(batch(0, producer=7, sequence=3))
    assert check_sequence(log.producers, retry, Rules()) == Duplicate(3, 3)
    if end == "power lost":
        lose_all_unsynced(disk)
    elif end == "closed":
        log.close(clean=True)
    log = open_log(disk, FOUR_A_SEGMENT)
    assert check_sequence(log.producers, retry, Rules()) == Duplicate(3, 3)
    log.truncate(10)
    assert check_sequence(log.producers, retry, Rules()) == Duplicate(3, 3)


@pytest.mark.parametrize("lose", [lose_all_unsynced, lose_nothing])
def test_an_emptied_log_knows_its_producers_after_a_clean_close_and_a_power_loss(lose: object) -> None:
    disk = DiskModel()
    log = filled(disk, 6)
    log.roll()
    log.advance_start(6)
    known = log.producers
    log.close(clean=True)
    assert callable(lose)
    lose(disk)
    log = open_log(disk)
    assert (log.start, log.end, log.producers) == (6, 6, known)
    assert len(known) == 3


def test_a_full_truncation_forgets_producers_and_an_older_start() -> None:
    disk = DiskModel()
    log = filled(disk, 30)
    log.advance_start(20)
    log.truncate_fully_and_start_at(10)
    log.append(batch(10, producer=9, sequence=0))
    log = open_log(disk)
    assert (log.start, log.end, list(log.producers)) == (10, 11, [9])
    assert check_sequence(log.producers, parse(batch(0, producer=1, sequence=0)), Rules()) == Accept()


# ---- what survives ---------------------------------------------------------------------------------------------------


def test_a_start_survives_a_power_loss_at_once() -> None:
    disk = DiskModel()
    log = filled(disk, 20)
    log.flush()
    log.advance_start(7)
    lose_all_unsynced(disk)
    log = open_log(disk)
    assert (log.start, log.end) == (7, 20)


def test_a_log_that_lost_its_end_below_its_start_goes_on_empty_at_its_start() -> None:
    disk = DiskModel()
    log = filled(disk, 3)
    log.flush()
    for offset in range(3, 9):
        log.append(batch(offset))
    log.advance_start(7)
    lose_all_unsynced(disk)
    lines: list[str] = []
    log = open_log(disk, lines=lines)
    assert (log.start, log.end, log.epochs, len(log.producers)) == (7, 7, EpochCache.behind(0, 7), 0)
    assert "before its start" in lines[-1]
    log.append(batch(7))
    assert open_log(disk).end == 8


def test_a_damaged_start_is_an_error_and_not_a_guess() -> None:
    disk = DiskModel()
    log = filled(disk, 9)
    log.advance_start(5)
    log.close(clean=True)
    path = f"topic-0/{LOG_START_CHECKPOINT}"
    content = read_whole(disk, path)
    assert content is not None
    disk.delete(path)
    disk.open(path).append(content[:-2])
    with pytest.raises(OSError, match="the log start is unknown"):
        open_log(disk)


@pytest.mark.parametrize(("end", "epochs"), [(9, EpochCache.of((0, 4))), (5, EpochCache())])
def test_a_start_that_an_earlier_release_wrote_is_read_without_the_epoch_before_it(
    end: int, epochs: EpochCache
) -> None:
    disk = DiskModel()
    log = filled(disk, 5)
    if end > log.end:
        for offset in range(log.end, end):
            log.append(batch(offset))
    else:
        log.roll()
    log.advance_start(5)
    log.close(clean=False)
    path = f"topic-0/{LOG_START_CHECKPOINT}"
    content = (read_whole(disk, path) or b"").decode()
    assert content.startswith("1\n5 ")
    assert content.endswith(" 0\n")
    write_durably(disk, path, f"0{content[1:-3]}\n".encode())
    log = open_log(disk)
    assert (log.start, log.end, log.epochs) == (5, end, epochs), (
        "the records before it tell its epoch, where there are some"
    )


# ---- rolling by time -------------------------------------------------------------------------------------------------


def test_a_segment_is_closed_by_the_age_of_its_first_batch() -> None:
    disk = DiskModel()
    log = open_log(disk, LogConfig(segment_ms=100))
    for offset, timestamp in enumerate((1000, 1100, 1101, 1150, 1202)):
        log.append(batch(offset, timestamp=timestamp))
    assert segments(disk) == [0, 2, 4]
    log = open_log(disk, LogConfig(segment_ms=100))
    log.append(batch(5, timestamp=1303))
    assert segments(disk) == [0, 2, 4, 5], "a segment found on disk tells its age too"
    log.append(batch(6, timestamp=-1))
    log.append(batch(7, timestamp=1304))
    assert segments(disk) == [0, 2, 4, 5]


def test_an_empty_segment_is_not_rolled() -> None:
    disk = DiskModel()
    log = filled(disk, 2)
    log.roll()
    log.roll()
    assert segments(disk) == [0, 2]


# ---- how much may go -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Summary:
    """A segment that may be removed."""

    base_offset: int
    end: int
    size: int
    timestamp: int

    def max_timestamp(self) -> int:
        return self.timestamp


THREE = [Summary(0, 4, 100, 1000), Summary(4, 8, 100, 2000), Summary(8, 9, 50, 3000)]


def test_segments_older_than_retention_ms_go_oldest_first() -> None:
    def at(now_ms: int) -> Expiry | None:
        return expiry(THREE, Retention(ms=500), now_ms=now_ms, below=9)

    assert at(1500) is None
    assert at(1501) == Expiry(4, LogStartReason.RETENTION_MS)
    assert at(2501) == Expiry(8, LogStartReason.RETENTION_MS)
    assert at(3501) == Expiry(9, LogStartReason.RETENTION_MS)


def test_a_young_segment_keeps_the_old_ones_behind_it() -> None:
    mixed = [Summary(0, 4, 100, 5000), Summary(4, 8, 100, 10)]
    assert expiry(mixed, Retention(ms=500), now_ms=4000, below=8) is None


def test_a_segment_without_timestamps_is_kept() -> None:
    assert expiry([Summary(0, 4, 100, -1)], Retention(ms=0), now_ms=9999, below=4) is None


def test_retention_bytes_are_kept_at_least() -> None:
    def of(kept: int) -> Expiry | None:
        return expiry(THREE, Retention(bytes=kept), now_ms=0, below=9)

    assert of(151) is None
    assert of(150) == Expiry(4, LogStartReason.RETENTION_BYTES)
    assert of(50) == Expiry(8, LogStartReason.RETENTION_BYTES)
    assert of(0) == Expiry(9, LogStartReason.RETENTION_BYTES)


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 100), st.integers(-1, 50)), max_size=6),
    st.integers(-1, 40),
    st.integers(-1, 300),
    st.integers(0, 80),
    st.integers(0, 25),
)
def test_nothing_at_or_above_the_bound_ever_goes(
    shapes: list[tuple[int, int, int]], ms: int, size: int, now_ms: int, below: int
) -> None:
    found, end = [], 0
    for count, size_bytes, timestamp in shapes:
        found.append(Summary(end, end + count, size_bytes, timestamp))
        end += count
    gone = expiry(found, Retention(ms, size), now_ms=now_ms, below=below)
    if gone is not None:
        assert gone.offset <= below
        assert gone.offset in [segment.end for segment in found]


def test_a_log_has_the_segment_properties_that_retention_needs() -> None:
    disk = DiskModel()
    log: Log = open_log(disk, FOUR_A_SEGMENT)
    for offset in range(6):
        log.append(batch(offset, timestamp=offset * 10))
    size = len(batch(0))
    properties = [(segment.end, segment.size, segment.max_timestamp()) for segment in log.segments]
    assert properties == [(4, 4 * size, 30), (6, 2 * size, 50)]
