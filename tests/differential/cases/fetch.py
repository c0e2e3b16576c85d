"""Fetch, without sessions."""

from __future__ import annotations

from typing import Any

from tests.differential.cases.produce import ONE
from tests.differential.scene import UNKNOWN_ID, Scene, Topic, case, records

_LAST_BY_NAME = 12
_PARTITION = frozenset(
    {
        "partition",
        "current_leader_epoch",
        "fetch_offset",
        "last_fetched_epoch",
        "log_start_offset",
        "partition_max_bytes",
    }
)


def wanted(partition: int = 0, fetch_offset: int = 0, **fields: Any) -> dict[str, Any]:
    """A partition of a Fetch request."""
    return {"partition": partition, "fetch_offset": fetch_offset, "partition_max_bytes": 1 << 20, **fields}


def of_topic(version: int, topic: Topic, *partitions: dict[str, Any]) -> dict[str, Any]:
    """A topic of a Fetch request, by name or by id as the version has it."""
    key = {"topic": topic.name} if version <= _LAST_BY_NAME else {"topic_id": topic.id}
    return {**key, "partitions": list(partitions)}


def fetch_fields(version: int, *topics: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The fields of a consumer's Fetch request."""
    common: dict[str, Any] = {"max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 22}
    if version < 15:
        common["replica_id"] = -1
    return {**common, "topics": list(topics), **fields}


async def fetch(s: Scene, version: int, topic: Topic, **fields: Any) -> Any:
    """Fetch partition 0; `fields` are of the partition or of the request."""
    part = wanted(**{name: value for name, value in fields.items() if name in _PARTITION})
    rest = {name: value for name, value in fields.items() if name not in _PARTITION}
    return await s.ask("fetch", version, **fetch_fields(version, of_topic(version, topic, part), **rest))


for _version in range(4, 19):

    @case(f"Fetch v{_version}: two batches", _version)
    async def two_batches(s: Scene, version: int) -> None:
        topic = await s.topic(b"one", [b"two", b"three"])
        await fetch(s, version, topic)


for _version in (12, 16):
    for _name, _fields in {
        "the middle of a batch": {"fetch_offset": 2},
        "the end": {"fetch_offset": 3},
        "beyond the end": {"fetch_offset": 4},
        "offset -1": {"fetch_offset": -1},
        "an unknown partition": {"partition": 7},
        "partition -1": {"partition": -1},
        "the current leader epoch": {"current_leader_epoch": 0},
        "a newer leader epoch": {"current_leader_epoch": 1},
        "leader epoch -2": {"current_leader_epoch": -2},
        "a last fetched epoch of 0": {"fetch_offset": 1, "last_fetched_epoch": 0},
        "a newer last fetched epoch": {"fetch_offset": 1, "last_fetched_epoch": 5},
        "a last fetched epoch of 0 beyond the end": {"fetch_offset": 9, "last_fetched_epoch": 0},
        "a last fetched epoch of -2": {"fetch_offset": 1, "last_fetched_epoch": -2},
        "max_bytes 0": {"max_bytes": 0},
        "max_bytes 1": {"max_bytes": 1},
        "max_bytes -1": {"max_bytes": -1},
        "partition_max_bytes 0": {"partition_max_bytes": 0},
        "partition_max_bytes 1": {"partition_max_bytes": 1},
        "partition_max_bytes -1": {"partition_max_bytes": -1},
        "both limits 0": {"partition_max_bytes": 0, "max_bytes": 0},
        "partition_max_bytes of one batch and a half": {"partition_max_bytes": 110},
        "max_bytes of one batch and a half": {"max_bytes": 110},
        "min_bytes more than there is": {"min_bytes": 100_000, "max_wait": 50},
        "min_bytes -1": {"min_bytes": -1},
        "max_wait -1": {"max_wait": -1},
        "committed records only": {"isolation_level": 1},
        "isolation level 2": {"isolation_level": 2},
        "isolation level -1": {"isolation_level": -1},
        "another cluster's id": {"cluster_id": "another"},
        "a rack": {"rack_id": "r1"},
        "at the end, min_bytes 1": {"fetch_offset": 3, "min_bytes": 1, "max_wait": 50},
    }.items():

        @case(f"Fetch v{_version}: {_name}", _version, _fields)
        async def read(s: Scene, version: int, fields: dict[str, Any]) -> None:
            topic = await s.topic(b"one", [b"two", b"three"])
            await fetch(s, version, topic, **fields)


for _name, _replica in {"itself": 1, "a broker that does not exist": 5, "replica -2": -2, "replica -3": -3}.items():

    @case(f"Fetch v12: from {_name}", _replica)
    async def from_replica(s: Scene, replica: int) -> None:
        topic = await s.topic(b"one")
        await fetch(s, 12, topic, replica_id=replica)

    @case(f"Fetch v16: from {_name}", _replica)
    async def from_replica_state(s: Scene, replica: int) -> None:
        topic = await s.topic(b"one")
        await fetch(s, 16, topic, replica_state={"replica_id": replica, "replica_epoch": -1})


for _version in (4, 12):

    @case(f"Fetch v{_version}: an unknown topic", _version)
    @case(f"Fetch v{_version}: an invalid topic name", _version, "not a name")
    @case(f"Fetch v{_version}: an empty topic name", _version, "")
    async def unknown_name(s: Scene, version: int, name: str = "unknown") -> None:
        await fetch(s, version, Topic(name, UNKNOWN_ID))


@case("Fetch v16: an unknown topic id", UNKNOWN_ID)
@case("Fetch v16: the zero topic id", None)
async def unknown_id(s: Scene, topic_id: Any) -> None:
    await fetch(s, 16, Topic("unknown", topic_id))


@case("Fetch v16: a topic that was deleted")
async def deleted(s: Scene) -> None:
    topic = await s.topic(b"one")
    await s.delete_topic(topic)
    await fetch(s, 16, topic)


@case("Fetch: no topics", [])
@case("Fetch: null topics", None)
async def no_topics(s: Scene, topics: Any) -> None:
    await s.ask("fetch", 16, **fetch_fields(16, topics=topics))


@case("Fetch: null forgotten topics")
async def null_forgotten(s: Scene) -> None:
    topic = await s.topic(b"one")
    await fetch(s, 16, topic, forgotten_topics_data=None)


@case("Fetch: a topic without partitions")
async def no_partitions(s: Scene) -> None:
    topic = await s.topic(b"one")
    await s.ask("fetch", 16, **fetch_fields(16, of_topic(16, topic)))


@case("Fetch v12: the same partition twice", 12)
@case("Fetch v16: the same partition twice", 16)
async def partition_twice(s: Scene, version: int) -> None:
    topic = await s.topic(b"one", b"two")
    asked = of_topic(version, topic, wanted(), wanted(fetch_offset=1))
    await s.ask("fetch", version, **fetch_fields(version, asked))


@case("Fetch: two partitions within max_bytes", 1 << 20)
@case("Fetch: two partitions, max_bytes for one", 80)
@case("Fetch: two partitions, max_bytes 1", 1)
@case("Fetch: two partitions, max_bytes 0", 0)
async def two_partitions(s: Scene, most: int) -> None:
    topic = await s.topic(b"one", partitions=2)
    await s.produce(topic, ONE, partition=1)
    await s.ask("fetch", 16, **fetch_fields(16, of_topic(16, topic, wanted(0), wanted(1)), max_bytes=most))


@case("Fetch: an empty partition, then one with records, max_bytes 1")
async def empty_first(s: Scene) -> None:
    topic = await s.topic(partitions=2)
    await s.produce(topic, ONE, partition=1)
    await s.ask("fetch", 16, **fetch_fields(16, of_topic(16, topic, wanted(0), wanted(1)), max_bytes=1))


@case("Fetch: a good partition and an unknown one")
async def good_and_bad(s: Scene) -> None:
    topic = await s.topic(b"one")
    await s.ask("fetch", 16, **fetch_fields(16, of_topic(16, topic, wanted(0), wanted(7))))


@case("Fetch: an error ends the wait")
async def error_ends_wait(s: Scene) -> None:
    topic = await s.topic()
    asked = of_topic(16, topic, wanted(0), wanted(7))
    await s.ask("fetch", 16, **fetch_fields(16, asked, max_wait=5000, min_bytes=1))


@case("Fetch: below the log start", 0)
@case("Fetch: at the log start", 2)
async def log_start(s: Scene, offset: int) -> None:
    topic = await s.topic(b"one", b"two", b"three")
    parts = [{"partition_index": 0, "offset": 2}]
    await s.do("delete_records", 2, topics=[{"name": topic.name, "partitions": parts}], timeout=5000)
    await fetch(s, 16, topic, fetch_offset=offset)


@case("Fetch: an empty log from 0", 0)
@case("Fetch: an empty log from 1", 1)
async def empty_log(s: Scene, offset: int) -> None:
    topic = await s.topic()
    await fetch(s, 16, topic, fetch_offset=offset)


@case("Fetch: a batch larger than every limit")
async def large_batch(s: Scene) -> None:
    topic = await s.topic()
    await s.produce(topic, records([b"x" * 5000]))
    await fetch(s, 16, topic, max_bytes=100, partition_max_bytes=100)


@case("Fetch v3 is not served", 3)
@case("Fetch v19 is not served", 19)
async def not_served(s: Scene, version: int) -> None:
    frame = (1).to_bytes(2) + version.to_bytes(2) + bytes(4) + b"\xff\xff"
    await s.ask_frame("fetch", 4, len(frame).to_bytes(4) + frame)
