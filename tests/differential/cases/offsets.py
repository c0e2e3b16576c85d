"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords."""

from __future__ import annotations

from typing import Any

from tests.differential.scene import TIME_MS, Scene, case, records


async def _list(s: Scene, version: int, topic: str, *partitions: dict[str, Any], **fields: Any) -> None:
    asked = [{"partition_index": 0, "timestamp": -1, **partition} for partition in partitions]
    await s.ask(
        "list_offsets", version, **{"replica_id": -1, "topics": [{"name": topic, "partitions": asked}], **fields}
    )


async def _three(s: Scene) -> str:
    topic = await s.topic()
    for number in range(3):
        await s.produce(topic, records([b"value"], time_ms=TIME_MS + 10 * number))
    return topic.name


for _version in range(1, 11):
    for _name, _timestamp in {"latest": -1, "earliest": -2}.items():

        @case(f"ListOffsets v{_version}: {_name}", _version, _timestamp)
        async def by_version(s: Scene, version: int, timestamp: int) -> None:
            await _list(s, version, await _three(s), {"timestamp": timestamp})


for _name, _timestamp in {
    "the largest timestamp": -3,
    "the earliest local offset": -4,
    "the latest tiered offset": -5,
    "timestamp -6": -6,
    "timestamp -100": -100,
    "timestamp 0": 0,
    "a record's timestamp": TIME_MS + 10,
    "between two timestamps": TIME_MS + 11,
    "beyond the last timestamp": TIME_MS + 21,
    "the largest number": 2**63 - 1,
}.items():

    @case(f"ListOffsets: {_name}", _timestamp)
    async def by_timestamp(s: Scene, timestamp: int) -> None:
        await _list(s, 7, await _three(s), {"timestamp": timestamp})

    @case(f"ListOffsets of an empty log: {_name}", _timestamp)
    async def of_empty(s: Scene, timestamp: int) -> None:
        await _list(s, 7, (await s.topic()).name, {"timestamp": timestamp})


for _name, _partition in {
    "the current leader epoch": {"current_leader_epoch": 0},
    "a newer leader epoch": {"current_leader_epoch": 1},
    "leader epoch -2": {"current_leader_epoch": -2},
    "an unknown partition": {"partition_index": 7},
    "partition -1": {"partition_index": -1},
}.items():

    @case(f"ListOffsets: {_name}", _partition)
    async def of_partition(s: Scene, partition: dict[str, Any]) -> None:
        await _list(s, 7, await _three(s), partition)


for _name, _fields in {
    "committed records only": {"isolation_level": 1},
    "isolation level 3": {"isolation_level": 3},
    "from replica -2": {"replica_id": -2},
    "from itself": {"replica_id": 1},
    "from a broker that does not exist": {"replica_id": 5},
    "no topics": {"topics": []},
    "null topics": {"topics": None},
    "null partitions": {"topics": [{"name": "unknown", "partitions": None}]},
    "no partitions": {"topics": [{"name": "unknown", "partitions": []}]},
    "an unknown topic": {"topics": [{"name": "unknown", "partitions": [{"partition_index": 0, "timestamp": -1}]}]},
    "an invalid topic name": {"topics": [{"name": "a b", "partitions": [{"partition_index": 0, "timestamp": -1}]}]},
    "an empty topic name": {"topics": [{"name": "", "partitions": [{"partition_index": 0, "timestamp": -1}]}]},
}.items():

    @case(f"ListOffsets: {_name}", _fields)
    async def of_request(s: Scene, fields: dict[str, Any]) -> None:
        await _list(s, 7, await _three(s), {}, **fields)


@case("ListOffsets: the same partition twice", 7)
@case("ListOffsets v1: the same partition twice", 1)
async def twice(s: Scene, version: int) -> None:
    await _list(s, version, await _three(s), {"timestamp": -1}, {"timestamp": -2})


@case("ListOffsets: the same topic twice")
async def topic_twice(s: Scene) -> None:
    name = await _three(s)
    topics = [{"name": name, "partitions": [{"partition_index": 0, "timestamp": timestamp}]} for timestamp in (-1, -2)]
    await s.ask("list_offsets", 7, replica_id=-1, topics=topics)


@case("ListOffsets: two partitions")
async def two_partitions(s: Scene) -> None:
    topic = await s.topic(b"one", partitions=2)
    await _list(s, 7, topic.name, {"partition_index": 0}, {"partition_index": 1})


@case("ListOffsets: the earliest after a deletion", -2)
@case("ListOffsets: a timestamp before the log start", TIME_MS)
@case("ListOffsets: the largest timestamp after all records were deleted", -3)
async def after_deletion(s: Scene, timestamp: int) -> None:
    name = await _three(s)
    parts = [{"partition_index": 0, "offset": 3 if timestamp == -3 else 1}]
    await s.do("delete_records", 2, topics=[{"name": name, "partitions": parts}], timeout=5000)
    await _list(s, 7, name, {"timestamp": timestamp})


@case("ListOffsets: the largest timestamp is not the last")
async def out_of_order(s: Scene) -> None:
    topic = await s.topic()
    for ahead in (0, 50, 20):
        await s.produce(topic, records([b"a", b"b"], time_ms=TIME_MS + ahead))
    await _list(s, 7, topic.name, {"timestamp": -3})
    await _list(s, 7, topic.name, {"timestamp": TIME_MS + 20})


# --- OffsetForLeaderEpoch ---------------------------------------------------------------------------------------------


async def _epoch(s: Scene, version: int, topic: str, *partitions: dict[str, Any], **fields: Any) -> None:
    asked = [{"partition": 0, "leader_epoch": 0, **partition} for partition in partitions]
    replica = {} if version < 3 else {"replica_id": -1}
    await s.ask(
        "offset_for_leader_epoch", version, **{**replica, "topics": [{"topic": topic, "partitions": asked}], **fields}
    )


for _version in (2, 3, 4):

    @case(f"OffsetForLeaderEpoch v{_version}: the current epoch", _version)
    async def current_epoch(s: Scene, version: int) -> None:
        await _epoch(s, version, await _three(s), {})


for _name, _partition in {
    "a newer epoch": {"leader_epoch": 1},
    "epoch -1": {"leader_epoch": -1},
    "epoch -2": {"leader_epoch": -2},
    "in the current leader epoch": {"current_leader_epoch": 0},
    "in a newer leader epoch": {"current_leader_epoch": 1},
    "in leader epoch -2": {"current_leader_epoch": -2},
    "an unknown partition": {"partition": 7},
    "partition -1": {"partition": -1},
}.items():

    @case(f"OffsetForLeaderEpoch: {_name}", _partition)
    async def epoch_of(s: Scene, partition: dict[str, Any]) -> None:
        await _epoch(s, 4, await _three(s), partition)


for _name, _fields in {
    "from itself": {"replica_id": 1},
    "from replica -2": {"replica_id": -2},
    "from a broker that does not exist": {"replica_id": 5},
    "no topics": {"topics": []},
    "null topics": {"topics": None},
    "null partitions": {"topics": [{"topic": "unknown", "partitions": None}]},
    "an unknown topic": {"topics": [{"topic": "unknown", "partitions": [{"partition": 0, "leader_epoch": 0}]}]},
    "an empty topic name": {"topics": [{"topic": "", "partitions": [{"partition": 0, "leader_epoch": 0}]}]},
}.items():

    @case(f"OffsetForLeaderEpoch: {_name}", _fields)
    async def epoch_request(s: Scene, fields: dict[str, Any]) -> None:
        await _epoch(s, 4, await _three(s), {}, **fields)


@case("OffsetForLeaderEpoch: the same partition twice")
async def epoch_twice(s: Scene) -> None:
    await _epoch(s, 4, await _three(s), {"leader_epoch": 0}, {"leader_epoch": 1})


@case("OffsetForLeaderEpoch: an empty log")
async def epoch_of_empty(s: Scene) -> None:
    await _epoch(s, 4, (await s.topic()).name, {})


@case("OffsetForLeaderEpoch: after all records were deleted")
async def epoch_after_deletion(s: Scene) -> None:
    name = await _three(s)
    parts = [{"partition_index": 0, "offset": 3}]
    await s.do("delete_records", 2, topics=[{"name": name, "partitions": parts}], timeout=5000)
    await _epoch(s, 4, name, {})


# --- DeleteRecords ----------------------------------------------------------------------------------------------------


async def _delete(s: Scene, topic: str, *offsets: int, version: int = 2, partition: int = 0, **fields: Any) -> None:
    parts = [{"partition_index": partition, "offset": offset} for offset in offsets]
    await s.ask(
        "delete_records", version, **{"topics": [{"name": topic, "partitions": parts}], "timeout": 5000, **fields}
    )


for _version in (0, 1, 2):

    @case(f"DeleteRecords v{_version}: before offset 1", _version)
    async def delete_one(s: Scene, version: int) -> None:
        await _delete(s, await _three(s), 1, version=version)


for _name, _offset in {
    "offset 0": 0,
    "the end": 3,
    "beyond the end": 4,
    "offset -1, the high watermark": -1,
    "offset -2": -2,
    "the largest number": 2**63 - 1,
}.items():

    @case(f"DeleteRecords: {_name}", _offset)
    async def delete_to(s: Scene, offset: int) -> None:
        name = await _three(s)
        await _delete(s, name, offset)
        await _list(s, 7, name, {"timestamp": -2})


@case("DeleteRecords: a lower offset afterwards")
async def delete_lower(s: Scene) -> None:
    name = await _three(s)
    await _delete(s, name, 2)
    await _delete(s, name, 1)


@case("DeleteRecords: the middle of a batch")
async def delete_within(s: Scene) -> None:
    topic = await s.topic([b"one", b"two", b"three"])
    await _delete(s, topic.name, 1)
    await _list(s, 7, topic.name, {"timestamp": -2})


@case("DeleteRecords: an empty log, offset 0", 0)
@case("DeleteRecords: an empty log, offset -1", -1)
async def delete_empty(s: Scene, offset: int) -> None:
    await _delete(s, (await s.topic()).name, offset)


@case("DeleteRecords: an unknown partition", 7)
@case("DeleteRecords: partition -1", -1)
async def delete_partition(s: Scene, partition: int) -> None:
    await _delete(s, await _three(s), 1, partition=partition)


@case("DeleteRecords: an unknown topic", "unknown")
@case("DeleteRecords: an invalid topic name", "not a name")
@case("DeleteRecords: an empty topic name", "")
@case("DeleteRecords: the internal topic of groups", "__consumer_offsets")
async def delete_of_topic(s: Scene, name: str) -> None:
    await s.coordinator()
    await _delete(s, name, 0)


@case("DeleteRecords: the same partition twice", 1, 2)
async def delete_twice(s: Scene, *offsets: int) -> None:
    await _delete(s, await _three(s), *offsets)


@case("DeleteRecords: no topics", [])
@case("DeleteRecords: null topics", None)
@case("DeleteRecords: null partitions", [{"name": "unknown", "partitions": None}])
async def delete_no_topics(s: Scene, topics: Any) -> None:
    await _delete(s, "unknown", topics=topics)


@case("DeleteRecords: a timeout of 0")
async def delete_at_once(s: Scene) -> None:
    await _delete(s, await _three(s), 1, timeout=0)


@case("DeleteRecords: a topic that keeps the last value of a key", "compact")
@case("DeleteRecords: a topic that compacts and deletes", "compact,delete")
async def delete_compacted(s: Scene, policy: str) -> None:
    topics = [
        {
            "name": s.name,
            "num_partitions": 1,
            "replication_factor": 1,
            "configs": [{"name": "cleanup.policy", "value": policy}],
        }
    ]
    created = await s.ask("create_topics", 7, topics=topics, timeout=5000, only=["error_code"])
    if created["topics"][0]["error_code"] == 0:
        await s.known(s.name)
        await _delete(s, s.name, 0)
