"""CreateTopics, DeleteTopics, CreatePartitions, elections and reassignments."""

from __future__ import annotations

from typing import Any

from tests.differential.scene import NODE, UNKNOWN_ID, Scene, case

_NAME = ...
"""Stands for the name of the case's topic."""


def _created(s: Scene, topic: dict[str, Any]) -> dict[str, Any]:
    known = {"name": s.name, "num_partitions": 1, "replication_factor": 1, **topic}
    return {key: s.name if value is _NAME else value for key, value in known.items()}


def _assigned(*replicas: list[int]) -> dict[str, Any]:
    assignments = [{"partition_index": index, "broker_ids": ids} for index, ids in enumerate(replicas)]
    return {"num_partitions": -1, "replication_factor": -1, "assignments": assignments}


def _config(*settings: tuple[str, str | None]) -> dict[str, Any]:
    return {"configs": [{"name": name, "value": value} for name, value in settings]}


for _version in range(2, 8):

    @case(f"CreateTopics v{_version}: two partitions", _version)
    async def create_version(s: Scene, version: int) -> None:
        asked = [_created(s, {"num_partitions": 2})]
        await s.ask("create_topics", version, topics=asked, timeout=5000, without=["configs"])


for _name, _topic in {
    "the default number of partitions": {"num_partitions": -1},
    "the default replication factor": {"replication_factor": -1},
    "0 partitions": {"num_partitions": 0},
    "-2 partitions": {"num_partitions": -2},
    "replication factor 0": {"replication_factor": 0},
    "replication factor -2": {"replication_factor": -2},
    "replication factor 2": {"replication_factor": 2},
    "an empty name": {"name": ""},
    "an invalid name": {"name": "not a name"},
    "a name of one dot": {"name": "."},
    "a name of two dots": {"name": ".."},
    "a name of 250 letters": {"name": "x" * 250},
    "the internal topic of groups": {"name": "__consumer_offsets"},
    "an assignment": _assigned([NODE], [NODE]),
    "an assignment with a partition count": {**_assigned([NODE]), "num_partitions": 1},
    "an assignment with a replication factor": {**_assigned([NODE]), "replication_factor": 1},
    "an assignment to a broker that does not exist": _assigned([9]),
    "an assignment to the same broker twice": _assigned([NODE, NODE]),
    "an assignment to nobody": _assigned([]),
    "assignments of unequal length": _assigned([NODE], [NODE, 9]),
    "an assignment with a gap": {
        **_assigned(),
        "assignments": [{"partition_index": 1, "broker_ids": [NODE]}],
    },
    "an assignment with a partition twice": {
        **_assigned(),
        "assignments": [{"partition_index": 0, "broker_ids": [NODE]}] * 2,
    },
    "an assignment from partition -1": {
        **_assigned(),
        "assignments": [{"partition_index": -1, "broker_ids": [NODE]}],
    },
    "null assignments": {"assignments": None},
    "null configs": {"configs": None},
    "a config": _config(("retention.ms", "1000")),
    "an unknown config": _config(("nonsense", "1")),
    "a config with a bad value": _config(("retention.ms", "x")),
    "a config with a null value": _config(("retention.ms", None)),
    "a config with an empty name": _config(("", "1")),
    "a config out of range": _config(("min.insync.replicas", "0")),
    "a config twice": _config(("retention.ms", "1000"), ("retention.ms", "2000")),
    "min.insync.replicas above the replication factor": _config(("min.insync.replicas", "3")),
    "cleanup.policy compact": _config(("cleanup.policy", "compact")),
    "compression.type zstd": _config(("compression.type", "zstd")),
    "message.timestamp.type LogAppendTime": _config(("message.timestamp.type", "LogAppendTime")),
}.items():

    @case(f"CreateTopics: {_name}", _topic)
    async def create_topic(s: Scene, topic: dict[str, Any]) -> None:
        await s.coordinator()
        only = ["topics"]
        await s.ask("create_topics", 4, topics=[_created(s, topic)], timeout=5000, only=only)

    @case(f"CreateTopics, validated only: {_name}", _topic)
    async def validate_topic(s: Scene, topic: dict[str, Any]) -> None:
        await s.coordinator()
        await s.ask("create_topics", 4, topics=[_created(s, topic)], timeout=5000, validate_only=True)


@case("CreateTopics: a topic that exists")
async def create_existing(s: Scene) -> None:
    await s.topic()
    await s.ask("create_topics", 7, topics=[_created(s, {})], timeout=5000)


@case("CreateTopics, validated only: a topic that exists")
async def validate_existing(s: Scene) -> None:
    await s.topic()
    await s.ask("create_topics", 7, topics=[_created(s, {})], timeout=5000, validate_only=True)


@case("CreateTopics, validated only: nothing is created")
async def validate_leaves_nothing(s: Scene) -> None:
    await s.ask("create_topics", 4, topics=[_created(s, {})], timeout=5000, validate_only=True)
    await s.do("create_topics", 4, topics=[_created(s, {"name": f"{s.name}-9"})], timeout=5000)
    await s.known(f"{s.name}-9")
    await s.ask("metadata", 12, topics=[{"topic_id": None, "name": s.name}], only=["topics"])


@case("CreateTopics: the same topic twice")
async def create_twice(s: Scene) -> None:
    await s.ask("create_topics", 5, topics=[_created(s, {})] * 2, timeout=5000)


@case("CreateTopics: names that differ in . and _ alone")
async def create_colliding(s: Scene) -> None:
    topics = [_created(s, {"name": f"{s.name}{mark}x"}) for mark in "._"]
    for topic in topics:
        await s.ask("create_topics", 4, topics=[topic], timeout=5000)


@case("CreateTopics: a good topic and a bad one")
async def create_good_and_bad(s: Scene) -> None:
    await s.ask("create_topics", 4, topics=[_created(s, {}), _created(s, {"name": "a b"})], timeout=5000)


@case("CreateTopics: no topics", [])
@case("CreateTopics: null topics", None)
async def create_nothing(s: Scene, topics: Any) -> None:
    await s.ask("create_topics", 7, topics=topics, timeout=5000)


@case("CreateTopics: a timeout of 0", 0)
@case("CreateTopics: a timeout of -1", -1)
async def create_at_once(s: Scene, timeout: int) -> None:
    await s.ask("create_topics", 4, topics=[_created(s, {})], timeout=timeout)


# --- DeleteTopics -----------------------------------------------------------------------------------------------------

for _version in range(1, 7):

    @case(f"DeleteTopics v{_version}: by name", _version)
    async def delete_version(s: Scene, version: int) -> None:
        topic = await s.topic()
        asked: dict[str, Any] = {"topic_names": [topic.name]}
        if version == 6:
            asked = {"topics": [{"name": topic.name, "topic_id": None}]}
        await s.ask("delete_topics", version, timeout=5000, **asked)


for _name, _names in {
    "no topics": [],
    "null topics": None,
    "an unknown topic": ["unknown"],
    "an unknown topic twice": ["unknown", "unknown"],
    "an invalid name": ["not a name"],
    "an empty name": [""],
}.items():

    @case(f"DeleteTopics v5: {_name}", _names)
    async def delete_names(s: Scene, names: Any) -> None:
        await s.ask("delete_topics", 5, topic_names=names, timeout=5000)

    @case(f"DeleteTopics v6: {_name}", _names)
    async def delete_topics(s: Scene, names: Any) -> None:
        topics = names and [{"name": name, "topic_id": None} for name in names]
        await s.ask("delete_topics", 6, topics=topics, timeout=5000)


@case("DeleteTopics: by id")
async def delete_by_id(s: Scene) -> None:
    topic = await s.topic()
    await s.ask("delete_topics", 6, topics=[{"name": None, "topic_id": topic.id}], timeout=5000)


@case("DeleteTopics: by an unknown id", None, UNKNOWN_ID)
@case("DeleteTopics: by neither name nor id", None, None)
@case("DeleteTopics: by an unknown name and an unknown id", "unknown", UNKNOWN_ID)
async def delete_unknown(s: Scene, name: Any, topic_id: Any) -> None:
    await s.ask("delete_topics", 6, topics=[{"name": name, "topic_id": topic_id}], timeout=5000)


@case("DeleteTopics: by name and id")
async def delete_by_both(s: Scene) -> None:
    topic = await s.topic()
    await s.ask("delete_topics", 6, topics=[{"name": topic.name, "topic_id": topic.id}], timeout=5000)


@case("DeleteTopics: by name and by id at once")
async def delete_by_each(s: Scene) -> None:
    topic = await s.topic()
    topics = [{"name": topic.name, "topic_id": None}, {"name": None, "topic_id": topic.id}]
    await s.ask("delete_topics", 6, topics=topics, timeout=5000)


@case("DeleteTopics: the same topic twice")
async def delete_twice(s: Scene) -> None:
    topic = await s.topic()
    await s.ask("delete_topics", 5, topic_names=[topic.name] * 2, timeout=5000)


# --- CreatePartitions -------------------------------------------------------------------------------------------------

for _version in range(4):

    @case(f"CreatePartitions v{_version}: to three", _version)
    async def partitions_version(s: Scene, version: int) -> None:
        topic = await s.topic()
        asked = [{"name": topic.name, "count": 3, "assignments": None}]
        await s.ask("create_partitions", version, topics=asked, timeout=5000, validate_only=False)


for _name, _topic in {
    "as many as there are": {"count": 1},
    "fewer than there are": {"count": 0},
    "-1": {"count": -1},
    "an unknown topic": {"name": "unknown"},
    "an invalid name": {"name": "not a name"},
    "an assignment": {"assignments": [{"broker_ids": [NODE]}]},
    "too many assignments": {"assignments": [{"broker_ids": [NODE]}] * 2},
    "no assignments": {"assignments": []},
    "an assignment to a broker that does not exist": {"assignments": [{"broker_ids": [9]}]},
    "an assignment to nobody": {"assignments": [{"broker_ids": []}]},
    "an assignment to the same broker twice": {"assignments": [{"broker_ids": [NODE, NODE]}]},
}.items():

    @case(f"CreatePartitions: {_name}", _topic)
    async def partitions_topic(s: Scene, topic: dict[str, Any]) -> None:
        created = await s.topic()
        asked = [{"name": created.name, "count": 2, "assignments": None, **topic}]
        await s.ask("create_partitions", 3, topics=asked, timeout=5000)


@case("CreatePartitions: validated only")
async def partitions_validated(s: Scene) -> None:
    topic = await s.topic()
    asked = [{"name": topic.name, "count": 3, "assignments": None}]
    await s.ask("create_partitions", 3, topics=asked, timeout=5000, validate_only=True)
    await s.settle()
    await s.ask("metadata", 12, topics=[{"topic_id": None, "name": topic.name}], only=["topics"])


@case("CreatePartitions: the partitions that a topic then has")
async def partitions_described(s: Scene) -> None:
    topic = await s.topic(partitions=2)
    asked = [{"name": topic.name, "count": 4, "assignments": [{"broker_ids": [NODE]}] * 2}]
    await s.ask("create_partitions", 3, topics=asked, timeout=5000)
    await s.settle()
    await s.ask("metadata", 12, topics=[{"topic_id": None, "name": topic.name}], only=["topics"])


@case("CreatePartitions, validated only: 20,000")
async def partitions_many(s: Scene) -> None:
    topic = await s.topic()
    asked = [{"name": topic.name, "count": 20_000, "assignments": None}]
    await s.ask("create_partitions", 3, topics=asked, timeout=5000, validate_only=True)


@case("CreatePartitions, validated only: an internal topic")
async def partitions_of_groups(s: Scene) -> None:
    await s.ask("find_coordinator", 4, loading=True, key_type=0, coordinator_keys=[s.name], only=["throttle_time"])
    asked = [{"name": "__consumer_offsets", "count": 2, "assignments": None}]
    await s.ask("create_partitions", 3, topics=asked, timeout=5000, validate_only=True)


@case("CreatePartitions: an unknown topic and a good one")
async def partitions_some(s: Scene) -> None:
    topic = await s.topic()
    asked = [{"name": name, "count": 2, "assignments": None} for name in ("unknown", topic.name)]
    answer = await s.ask("create_partitions", 3, topics=asked, timeout=5000, only=["throttle_time"])
    s.note(sorted([result["error_code"], result["name"] == topic.name] for result in answer["results"]))


@case("CreatePartitions: no topics", [])
@case("CreatePartitions: null topics", None)
async def partitions_nothing(s: Scene, topics: Any) -> None:
    await s.ask("create_partitions", 3, topics=topics, timeout=5000)


@case("CreatePartitions: the same topic twice")
async def partitions_twice(s: Scene) -> None:
    topic = await s.topic()
    asked = [{"name": topic.name, "count": 2, "assignments": None}] * 2
    await s.ask("create_partitions", 3, topics=asked, timeout=5000)


# --- ElectLeaders -----------------------------------------------------------------------------------------------------

for _version in range(3):

    @case(f"ElectLeaders v{_version}: the preferred leader leads", _version)
    async def elect_version(s: Scene, version: int) -> None:
        topic = await s.topic()
        asked = [{"topic": topic.name, "partitions": [0]}]
        await s.ask("elect_leaders", version, topic_partitions=asked, timeout=5000)


for _name, _kind, _topics in (
    ("unclean, with a leader", 1, [{"topic": _NAME, "partitions": [0]}]),
    ("type 5", 5, [{"topic": _NAME, "partitions": [0]}]),
    ("type -1", -1, [{"topic": _NAME, "partitions": [0]}]),
    ("an unknown partition", 0, [{"topic": _NAME, "partitions": [7]}]),
    ("an unknown topic", 0, [{"topic": "unknown", "partitions": [0]}]),
    ("an invalid topic name", 0, [{"topic": "not a name", "partitions": [0]}]),
    ("the same partition twice", 0, [{"topic": _NAME, "partitions": [0, 0]}]),
    ("no partitions", 0, [{"topic": _NAME, "partitions": []}]),
    ("null partitions", 0, [{"topic": _NAME, "partitions": None}]),
    ("no topics", 0, []),
    ("every partition", 0, None),
    ("every partition, unclean", 1, None),
):

    @case(f"ElectLeaders: {_name}", _kind, _topics)
    async def elect(s: Scene, kind: int, topics: Any) -> None:
        topic = await s.topic()
        asked = topics and [
            {**item, "topic": topic.name if item["topic"] is _NAME else item["topic"]} for item in topics
        ]
        await s.ask("elect_leaders", 2, election_type=kind, topic_partitions=asked, timeout=5000)


# --- reassignments ----------------------------------------------------------------------------------------------------

for _name, _partition in {
    "to where it is": {"replicas": [NODE]},
    "to a broker that does not exist": {"replicas": [9]},
    "to nobody": {"replicas": []},
    "to the same broker twice": {"replicas": [NODE, NODE]},
    "to broker -1": {"replicas": [-1]},
    "cancelled, though there is none": {"replicas": None},
    "of an unknown partition": {"partition_index": 7, "replicas": [NODE]},
    "cancelled, of an unknown partition": {"partition_index": 7, "replicas": None},
}.items():

    @case(f"AlterPartitionReassignments: {_name}", _partition)
    async def reassign(s: Scene, partition: dict[str, Any]) -> None:
        topic = await s.topic()
        asked = [{"name": topic.name, "partitions": [{"partition_index": 0, **partition}]}]
        await s.ask("alter_partition_reassignments", 0, topics=asked, timeout=5000)


for _name, _topics in {
    "no topics": [],
    "null topics": None,
    "no partitions": [{"name": "unknown", "partitions": []}],
    "null partitions": [{"name": "unknown", "partitions": None}],
    "an unknown topic": [{"name": "unknown", "partitions": [{"partition_index": 0, "replicas": [NODE]}]}],
    "an invalid topic name": [{"name": "a b", "partitions": [{"partition_index": 0, "replicas": [NODE]}]}],
}.items():

    @case(f"AlterPartitionReassignments: {_name}", _topics)
    async def reassign_topics(s: Scene, topics: Any) -> None:
        await s.ask("alter_partition_reassignments", 0, topics=topics, timeout=5000)


@case("AlterPartitionReassignments: the same partition twice")
async def reassign_twice(s: Scene) -> None:
    topic = await s.topic()
    asked = [{"name": topic.name, "partitions": [{"partition_index": 0, "replicas": [NODE]}] * 2}]
    await s.ask("alter_partition_reassignments", 0, topics=asked, timeout=5000)


@case("AlterPartitionReassignments v1: without a change of the replication factor")
async def reassign_v1(s: Scene) -> None:
    topic = await s.topic()
    asked = [{"name": topic.name, "partitions": [{"partition_index": 0, "replicas": [NODE]}]}]
    await s.ask("alter_partition_reassignments", 1, topics=asked, timeout=5000, allow_replication_factor_change=False)


for _name, _topics in {
    "every topic": None,
    "no topics": [],
    "an unknown topic": [{"name": "unknown", "partition_indexes": [0]}],
    "an invalid topic name": [{"name": "a b", "partition_indexes": [0]}],
    "null partitions": [{"name": "unknown", "partition_indexes": None}],
    "a partition that is not reassigned": [{"name": _NAME, "partition_indexes": [0]}],
}.items():

    @case(f"ListPartitionReassignments: {_name}", _topics)
    async def reassignments(s: Scene, topics: Any) -> None:
        topic = await s.topic()
        asked = topics and [{**item, "name": topic.name if item["name"] is _NAME else item["name"]} for item in topics]
        await s.ask("list_partition_reassignments", 0, topics=asked, timeout=5000)
