"""Produce."""

from __future__ import annotations

import time
from typing import Any

from images.wire import batch
from tests.differential.scene import TIME_MS, Scene, case, produce_fields, records, reforged

HOUR_MS = 3_600_000
ONE = records([b"one"])
THREE = records([b"one", b"two", b"three"])
_ATTRIBUTES, _LAST_DELTA, _MAX_TIME, _PRODUCER, _SEQUENCE, _COUNT = 21, 23, 35, 43, 53, 57


def attributes(bits: int) -> tuple[int, bytes]:
    """A change of a batch: other attributes."""
    return _ATTRIBUTES, bits.to_bytes(2)


def _number(place: int, value: int, size: int = 4) -> tuple[int, bytes]:
    return place, value.to_bytes(size, signed=True)


def _magic(magic: int) -> bytes:
    return ONE[:16] + bytes((magic,)) + ONE[17:]


def _legacy(magic: int) -> bytes:
    """A whole message of the formats before record batches, with a valid CRC."""
    import zlib

    stamp = TIME_MS.to_bytes(8) if magic == 1 else b""
    content = bytes((magic, 0)) + stamp + (-1).to_bytes(4, signed=True) + (3).to_bytes(4) + b"one"
    message = zlib.crc32(content).to_bytes(4) + content
    return (0).to_bytes(8) + len(message).to_bytes(4) + message


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


for _version in (3, 5, 7, 8, 9, 10, 11, 12):

    @case(f"Produce v{_version}: one record", _version)
    async def one_record(s: Scene, version: int) -> None:
        topic = await s.topic(b"zero")
        await s.ask("produce", version, **produce_fields(topic.name, ONE))


@case("Produce v13: one record, by topic id")
async def by_id(s: Scene) -> None:
    topic = await s.topic()
    data = [{"topic_id": topic.id, "partition_data": [{"index": 0, "records": ONE}]}]
    await s.ask("produce", 13, transactional_id=None, acks=-1, timeout=5000, topic_data=data)


for _name, _content in {
    "three records": THREE,
    "gzip": batch.build([b"one"], timestamp_ms=TIME_MS, compression=batch.Compression.GZIP),
    "null records": None,
    "empty records": b"",
    "ten bytes": ONE[:10],
    "a batch without its last byte": ONE[:-1],
    "a batch without its last record": THREE[:-8],
    "a header alone": ONE[:61],
    "a byte after the batch": ONE + b"\0",
    "a torn second batch": ONE + ONE[:-3],
    "two batches": ONE + ONE,
    "a wrong CRC": ONE[:17] + bytes(4) + ONE[21:],
    "a flipped bit in a record": ONE[:-2] + bytes((ONE[-2] ^ 1,)) + ONE[-1:],
    "magic 0 in a batch": _magic(0),
    "magic 1 in a batch": _magic(1),
    "magic 3": _magic(3),
    "magic -1": _magic(255),
    "a message of magic 0": _legacy(0),
    "a message of magic 1": _legacy(1),
    "a count one too high": reforged(ONE, _number(_COUNT, 2)),
    "a count and an offset delta one too high": reforged(ONE, _number(_COUNT, 2), _number(_LAST_DELTA, 1)),
    "a count one too low": reforged(THREE, _number(_COUNT, 2)),
    "a count and an offset delta one too low": reforged(THREE, _number(_COUNT, 2), _number(_LAST_DELTA, 1)),
    "a count of 0": reforged(ONE, _number(_COUNT, 0)),
    "a count of -1": reforged(ONE, _number(_COUNT, -1)),
    "an offset delta one too high": reforged(ONE, _number(_LAST_DELTA, 1)),
    "an offset delta of -1": reforged(ONE, _number(_LAST_DELTA, -1)),
    "codec 5": reforged(ONE, attributes(5)),
    "codec 7": reforged(ONE, attributes(7)),
    "gzip that is none": reforged(ONE, attributes(1)),
    "snappy that is none": reforged(ONE, attributes(2)),
    "lz4 that is none": reforged(ONE, attributes(3)),
    "zstd that is none": reforged(ONE, attributes(4)),
    "the log append time bit": reforged(ONE, attributes(8)),
    "the transactional bit without an id": reforged(ONE, attributes(16)),
    "the control bit": reforged(ONE, attributes(32)),
    "the delete horizon bit": reforged(ONE, attributes(64)),
    "an unused attribute": reforged(ONE, attributes(256)),
    "a base offset of 7": batch.assign(ONE, 7, -1),
    "a leader epoch of 7": batch.assign(ONE, 0, 7),
    "a record that is garbage": reforged(ONE, (61, b"\xff" * (len(ONE) - 61))),
    "a record length too high": reforged(ONE, (61, b"\x7e")),
    "a length field of 0": ONE[:8] + bytes(4) + ONE[12:],
    "a length field of -1": ONE[:8] + b"\xff" * 4 + ONE[12:],
    "a length field one too high": ONE[:8] + (len(ONE) - 11).to_bytes(4) + ONE[12:],
    "a length field one too low": ONE[:8] + (len(ONE) - 13).to_bytes(4) + ONE[12:],
    "timestamp 0": records([b"one"], time_ms=0),
    "timestamp -1": records([b"one"], time_ms=-1),
    "timestamp -2": records([b"one"], time_ms=-2),
    "a maximum timestamp that lies": reforged(ONE, _number(_MAX_TIME, TIME_MS + 1, 8)),
    "a base sequence without a producer id": reforged(ONE, _number(_SEQUENCE, 0)),
    "a producer id without an epoch": reforged(ONE, _number(_PRODUCER, 999_000, 8)),
    "a producer id and an epoch without a sequence": records([b"one"], producer_id=999_001, producer_epoch=0),
}.items():

    @case(f"Produce: {_name}", _content)
    async def content_of(s: Scene, content: bytes | None) -> None:
        topic = await s.topic(b"zero")
        await s.ask("produce", 9, **produce_fields(topic.name, content))
        asked = [{"partition_index": 0, "timestamp": -1}]
        await s.ask("list_offsets", 4, replica_id=-1, topics=[{"name": topic.name, "partitions": asked}])


for _name, _ahead in {
    "a timestamp half an hour ahead": HOUR_MS // 2,
    "a timestamp two hours ahead": 2 * HOUR_MS,
}.items():

    @case(f"Produce: {_name}", _ahead)
    async def timestamp_ahead(s: Scene, ahead: int) -> None:
        topic = await s.topic()
        await s.ask("produce", 9, **produce_fields(topic.name, records([b"one"], time_ms=_now_ms() + ahead)))


for _acks in (1, 2, -2):

    @case(f"Produce: acks {_acks}", _acks)
    async def acks_of(s: Scene, acks: int) -> None:
        topic = await s.topic()
        await s.ask("produce", 9, **produce_fields(topic.name, ONE, acks=acks))


for _name, _fields in {
    "acks 0": {},
    "acks 0 and an unknown topic": {"topic": "unknown"},
    "acks 0 and an unknown partition": {"partition": 7},
    "acks 0 and a wrong CRC": {"content": ONE[:17] + bytes(4) + ONE[21:]},
    "acks 0 and null records": {"content": None},
}.items():

    @case(f"Produce: {_name}", _fields)
    async def unacknowledged(s: Scene, fields: dict[str, Any]) -> None:
        topic = await s.topic()
        await s.send_only("produce", 9, **produce_fields(**{"topic": topic.name, "content": ONE, "acks": 0, **fields}))


for _name, _fields in {
    "an unknown topic": {"topic": "unknown"},
    "an unknown partition": {"partition": 7},
    "partition -1": {"partition": -1},
    "an invalid topic name": {"topic": "not a name"},
    "an empty topic name": {"topic": ""},
    "the internal topic of groups": {"topic": "__consumer_offsets"},
    "a transactional id and a plain batch": {"transactional_id": "tx"},
    "an empty transactional id": {"transactional_id": ""},
}.items():

    @case(f"Produce: {_name}", _fields)
    async def addressed(s: Scene, fields: dict[str, Any]) -> None:
        topic = await s.topic()
        await s.coordinator()
        await s.ask("produce", 9, **produce_fields(**{"topic": topic.name, "content": ONE, **fields}))


@case("Produce: a transactional batch with a transactional id")
async def transactional(s: Scene) -> None:
    topic = await s.topic()
    producer, epoch = await s.producer()
    content = records([b"one"], producer_id=producer, producer_epoch=epoch, base_sequence=0)
    fields = produce_fields(topic.name, reforged(content, attributes(16)), transactional_id="tx")
    await s.ask("produce", 9, **fields)


@case("Produce: the transactional bit with a producer id but no transactional id")
async def transactional_without_id(s: Scene) -> None:
    topic = await s.topic()
    producer, epoch = await s.producer()
    content = records([b"one"], producer_id=producer, producer_epoch=epoch, base_sequence=0)
    await s.ask("produce", 9, **produce_fields(topic.name, reforged(content, attributes(16))))


@case("Produce: no topics", [])
@case("Produce: a topic without partitions", [{"name": "unknown", "partition_data": []}])
@case("Produce: null topics", None)
@case("Produce: null partitions", [{"name": "unknown", "partition_data": None}])
async def no_data(s: Scene, data: Any) -> None:
    await s.ask("produce", 9, transactional_id=None, acks=-1, timeout=5000, topic_data=data)


@case("Produce: the same partition twice")
async def partition_twice(s: Scene) -> None:
    topic = await s.topic()
    parts = [{"index": 0, "records": ONE}, {"index": 0, "records": THREE}]
    data = [{"name": topic.name, "partition_data": parts}]
    await s.ask("produce", 9, transactional_id=None, acks=-1, timeout=5000, topic_data=data)


@case("Produce: the same topic twice")
async def topic_twice(s: Scene) -> None:
    topic = await s.topic(partitions=2)
    data = [{"name": topic.name, "partition_data": [{"index": index, "records": ONE}]} for index in (0, 1)]
    await s.ask("produce", 9, transactional_id=None, acks=-1, timeout=5000, topic_data=data)


@case("Produce: a good partition and a bad one")
async def good_and_bad(s: Scene) -> None:
    topic = await s.topic()
    parts = [{"index": 0, "records": ONE}, {"index": 1, "records": ONE}]
    data = [{"name": topic.name, "partition_data": parts}]
    await s.ask("produce", 9, transactional_id=None, acks=-1, timeout=5000, topic_data=data)


@case("Produce: a timeout of 0", 0)
@case("Produce: a timeout of -1", -1)
async def timeouts(s: Scene, timeout: int) -> None:
    topic = await s.topic()
    await s.ask("produce", 9, **{**produce_fields(topic.name, ONE), "timeout": timeout})


@case("Produce: a batch larger than max.message.bytes")
async def too_large(s: Scene) -> None:
    topic = await s.topic(configs={"max.message.bytes": "200"})
    await s.ask("produce", 9, **produce_fields(topic.name, records([b"x" * 300])))


@case("Produce: a batch larger than segment.bytes")
async def larger_than_segment(s: Scene) -> None:
    topic = await s.topic(configs={"segment.bytes": "1048576", "max.message.bytes": "3000000"})
    await s.ask("produce", 9, **produce_fields(topic.name, records([b"x" * 2_000_000])))


@case("Produce: fewer in-sync replicas than min.insync.replicas, acks -1", -1)
@case("Produce: fewer in-sync replicas than min.insync.replicas, acks 1", 1)
async def below_min_isr(s: Scene, acks: int) -> None:
    topic = await s.topic(configs={"min.insync.replicas": "2"})
    await s.ask("produce", 9, **produce_fields(topic.name, ONE, acks=acks))


# --- idempotence ------------------------------------------------------------------------------------------------------

for _name, _steps in {
    "sequence 0, then 1": [(0, 0), (0, 1)],
    "a first sequence of 5": [(0, 5)],
    "a gap": [(0, 0), (0, 2)],
    "a duplicate": [(0, 0), (0, 0)],
    "the duplicate of the last but one": [(0, 0), (0, 1), (0, 0)],
    "the duplicate of the last but five": [*((0, n) for n in range(7)), (0, 0)],
    "a newer epoch from 0": [(0, 0), (1, 0)],
    "a newer epoch from 1": [(0, 0), (1, 1)],
    "an older epoch": [(1, 0), (0, 0)],
    "an older epoch, the next sequence": [(1, 0), (0, 1)],
    "a first epoch of 3": [(3, 0)],
    "the last sequence there is, then 0": [(0, 2**31 - 1), (0, 0)],
    "sequence -1 after 0": [(0, 0), (0, -1)],
}.items():

    @case(f"Produce, idempotent: {_name}", _steps)
    async def idempotent(s: Scene, steps: list[tuple[int, int]]) -> None:
        topic = await s.topic()
        producer, _ = await s.producer()
        for epoch, sequence in steps:
            content = records([b"one"], producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
            await s.ask("produce", 9, **produce_fields(topic.name, content))


@case("Produce, idempotent: a producer id that was never handed out")
async def foreign_producer(s: Scene) -> None:
    topic = await s.topic()
    content = records([b"one"], producer_id=777_777_777, producer_epoch=0, base_sequence=0)
    await s.ask("produce", 9, **produce_fields(topic.name, content))


@case("Produce, idempotent: a duplicate with another count")
async def other_count(s: Scene) -> None:
    topic = await s.topic()
    producer, epoch = await s.producer()
    for values in ([b"one", b"two"], [b"one"]):
        content = records(values, producer_id=producer, producer_epoch=epoch, base_sequence=0)
        await s.ask("produce", 9, **produce_fields(topic.name, content))


@case("Produce, idempotent: each partition counts for itself")
async def partitions_apart(s: Scene) -> None:
    topic = await s.topic(partitions=2)
    producer, epoch = await s.producer()
    content = records([b"one"], producer_id=producer, producer_epoch=epoch, base_sequence=0)
    for partition in (0, 1):
        await s.ask("produce", 9, **produce_fields(topic.name, content, partition=partition))


@case("Produce, idempotent: after the records were deleted")
async def after_deletion(s: Scene) -> None:
    topic = await s.topic()
    producer, epoch = await s.producer()
    for sequence in (0, 1):
        content = records([b"one"], producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
        await s.ask("produce", 9, **produce_fields(topic.name, content))
        parts = [{"partition_index": 0, "offset": -1}]
        await s.do("delete_records", 2, topics=[{"name": topic.name, "partitions": parts}], timeout=5000)
