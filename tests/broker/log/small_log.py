"""A log of small segments on a disk model, and its batches."""

from __future__ import annotations

from images.broker.log.log import Log
from images.broker.log.log_config import LogConfig
from images.wire.batch import build, iterate
from tests.broker.log.disk_model import DiskModel

EVERYTHING = 1 << 40
SMALL_SEGMENTS = LogConfig(segment_bytes=300)


def batch(
    offset: int,
    *,
    count: int = 1,
    epoch: int = 0,
    producer: int = -1,
    sequence: int = -1,
    timestamp: int = 0,
    value: bytes = b"value",
) -> bytes:
    return build(
        [value] * count,
        timestamp_ms=timestamp,
        producer_id=producer,
        producer_epoch=0 if producer >= 0 else -1,
        base_sequence=sequence,
        leader_epoch=epoch,
        base_offset=offset,
    )


def open_log(disk: DiskModel, config: LogConfig = SMALL_SEGMENTS, lines: list[str] | None = None) -> Log:
    return Log.open(disk, "topic-0", config, [].append if lines is None else lines.append)


def filled(disk: DiskModel, count: int, config: LogConfig = SMALL_SEGMENTS) -> Log:
    """A log of `count` single-record batches; three producers take turns, each hundred offsets are one epoch."""
    log = open_log(disk, config)
    for offset in range(count):
        log.append(batch(offset, epoch=offset // 100, producer=offset % 3, sequence=offset // 3))
    return log


def read_all(log: Log) -> list[bytes]:
    found = []
    offset = log.start
    while offset < log.end:
        part = log.read(offset, EVERYTHING, log.end)
        assert part
        for header, whole in iterate(part):
            assert header.base_offset == offset
            offset = header.next_offset
            found.append(whole)
    return found
