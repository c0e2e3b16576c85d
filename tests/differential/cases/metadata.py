"""Metadata, DescribeCluster, DescribeTopicPartitions, DescribeQuorum."""

from __future__ import annotations

from typing import Any

from tests.differential.scene import UNKNOWN_ID, Scene, case

for _version in range(14):

    @case(f"Metadata v{_version}: a topic of two partitions", _version)
    async def one_topic(s: Scene, version: int) -> None:
        topic = await s.topic(partitions=2)
        await s.ask("metadata", version, topics=[{"name": topic.name}])

    @case(f"Metadata v{_version}: an unknown topic", _version)
    async def unknown_topic(s: Scene, version: int) -> None:
        await s.ask("metadata", version, topics=[{"name": "unknown"}], only=["topics"])


for _version in (0, 1, 12):
    for _name, _topics in {"no topics": [], "null topics": None}.items():

        @case(f"Metadata v{_version}: {_name}", _version, _topics)
        async def all_or_none(s: Scene, version: int, topics: Any) -> None:
            await s.topic()
            await s.ask("metadata", version, topics=topics)


for _name, _topics in {
    "an empty name": [{"name": ""}],
    "an invalid name": [{"name": "not a name"}],
    "the name .": [{"name": "."}],
    "a name of 250 letters": [{"name": "x" * 250}],
    "an unknown topic twice": [{"name": "unknown"}, {"name": "unknown"}],
    "a null name": [{"name": None}],
}.items():

    @case(f"Metadata v12: {_name}", _topics)
    async def named(s: Scene, topics: Any) -> None:
        await s.ask("metadata", 12, topics=topics, only=["topics"])

    if _topics[0]["name"] is not None:

        @case(f"Metadata v4: {_name}", _topics)
        async def named_before_ids(s: Scene, topics: Any) -> None:
            await s.ask("metadata", 4, topics=topics, only=["topics"])


@case("Metadata v9: a null name")
async def null_name(s: Scene) -> None:
    await s.ask("metadata", 9, topics=[{"name": None}], only=["topics"])


@case("Metadata v12: by id")
async def by_id(s: Scene) -> None:
    topic = await s.topic()
    await s.ask("metadata", 12, topics=[{"topic_id": topic.id, "name": None}], only=["topics"])


@case("Metadata v12: by an unknown id", UNKNOWN_ID, None)
@case("Metadata v12: by an unknown id and an unknown name", UNKNOWN_ID, "unknown")
async def by_unknown_id(s: Scene, topic_id: str, name: Any) -> None:
    await s.ask("metadata", 12, topics=[{"topic_id": topic_id, "name": name}], only=["topics"])


@case("Metadata v12: by id and name")
async def by_id_and_name(s: Scene) -> None:
    topic = await s.topic()
    await s.ask("metadata", 12, topics=[{"topic_id": topic.id, "name": topic.name}], only=["topics"])


@case("Metadata v10: by id")
async def by_id_too_early(s: Scene) -> None:
    topic = await s.topic()
    await s.ask("metadata", 10, topics=[{"topic_id": topic.id, "name": topic.name}], only=["topics"])


@case("Metadata v12: one topic by id, one by name")
async def mixed(s: Scene) -> None:
    topics = [await s.topic(), await s.topic()]
    asked = [{"topic_id": topics[0].id, "name": None}, {"topic_id": None, "name": topics[1].name}]
    await s.ask("metadata", 12, topics=asked, only=["topics"])


@case("Metadata v12: the same topic twice")
async def topic_twice(s: Scene) -> None:
    topic = await s.topic()
    await s.ask("metadata", 12, topics=[{"topic_id": None, "name": topic.name}] * 2, only=["topics"])


@case("Metadata v12: an unknown topic that may be created")
async def may_be_created(s: Scene) -> None:
    await s.ask("metadata", 12, topics=[{"name": "unknown"}], allow_auto_topic_creation=True, only=["topics"])


@case("Metadata v12: with what is allowed")
async def operations(s: Scene) -> None:
    topic = await s.topic()
    await s.ask("metadata", 12, topics=[{"name": topic.name}], include_topic_authorized_operations=True)


@case("Metadata v9: with what is allowed on the cluster")
async def cluster_operations(s: Scene) -> None:
    await s.ask("metadata", 9, topics=[], include_cluster_authorized_operations=True)


@case("Metadata v12: the internal topic of groups")
async def internal(s: Scene) -> None:
    await s.coordinator()
    await s.ask("metadata", 12, topics=[{"name": "__consumer_offsets"}], only=["topics"])


# --- DescribeCluster --------------------------------------------------------------------------------------------------

for _version in range(3):

    @case(f"DescribeCluster v{_version}: brokers", _version)
    async def cluster(s: Scene, version: int) -> None:
        await s.ask("describe_cluster", version)


for _kind in (0, 2, 3, -1):

    @case(f"DescribeCluster: endpoint type {_kind}", _kind)
    async def endpoints(s: Scene, kind: int) -> None:
        await s.ask("describe_cluster", 1, endpoint_type=kind)


@case("DescribeCluster: with what is allowed")
async def allowed_on_cluster(s: Scene) -> None:
    await s.ask("describe_cluster", 1, include_cluster_authorized_operations=True)


# --- DescribeTopicPartitions ------------------------------------------------------------------------------------------


async def _partitions(s: Scene, topics: Any, *, limit: int = 2000, cursor: Any = None) -> Any:
    return await s.ask("describe_topic_partitions", 0, topics=topics, response_partition_limit=limit, cursor=cursor)


@case("DescribeTopicPartitions: two partitions", 2000)
@case("DescribeTopicPartitions: a limit of 1", 1)
@case("DescribeTopicPartitions: a limit of 0", 0)
@case("DescribeTopicPartitions: a limit of -1", -1)
async def partitions(s: Scene, limit: int) -> None:
    topic = await s.topic(partitions=2)
    await _partitions(s, [{"name": topic.name}], limit=limit)


@case("DescribeTopicPartitions: from a cursor", 1)
@case("DescribeTopicPartitions: from a cursor behind the last partition", 7)
@case("DescribeTopicPartitions: from a cursor at -1", -1)
async def from_cursor(s: Scene, index: int) -> None:
    topic = await s.topic(partitions=2)
    cursor = {"topic_name": topic.name, "partition_index": index}
    await _partitions(s, [{"name": topic.name}], cursor=cursor)


@case("DescribeTopicPartitions: a cursor at a topic that was not asked for")
async def foreign_cursor(s: Scene) -> None:
    topics = [await s.topic(), await s.topic()]
    cursor = {"topic_name": topics[1].name, "partition_index": 0}
    await _partitions(s, [{"name": topics[0].name}], cursor=cursor)


@case("DescribeTopicPartitions: a cursor at an unknown topic")
async def unknown_cursor(s: Scene) -> None:
    await _partitions(s, [{"name": "unknown"}], cursor={"topic_name": "unknown", "partition_index": 0})


for _name, _topics in {
    "null topics": None,
    "an unknown topic": [{"name": "unknown"}],
    "an unknown topic twice": [{"name": "unknown"}, {"name": "unknown"}],
    "an invalid name": [{"name": "not a name"}],
    "an empty name": [{"name": ""}],
}.items():

    @case(f"DescribeTopicPartitions: {_name}", _topics)
    async def described(s: Scene, topics: Any) -> None:
        await _partitions(s, topics)


@case("DescribeTopicPartitions: every topic")
async def every_topic(s: Scene) -> None:
    await s.topic()
    await s.ask("describe_topic_partitions", 0, topics=[], response_partition_limit=2000, only=["topics"])


# --- DescribeQuorum ---------------------------------------------------------------------------------------------------

_METADATA = "__cluster_metadata"
_VOLATILE = ("high_watermark", "leader_id", "leader_epoch", "current_voters", "observers", "nodes")

for _version in range(3):

    @case(f"DescribeQuorum v{_version}: who leads", _version)
    async def quorum(s: Scene, version: int) -> None:
        topics = [{"topic_name": _METADATA, "partitions": [{"partition_index": 0}]}]
        answer = await s.ask("describe_quorum", version, topics=topics, only=["error_code"])
        partition = answer["topics"][0]["partitions"][0]
        voters = [voter["replica_id"] for voter in partition["current_voters"]]
        times = [voter.get("last_caught_up_timestamp", 0) > 1_600_000_000_000 for voter in partition["current_voters"]]
        s.note(
            {
                "error_code": partition["error_code"],
                "leader is a voter": partition["leader_id"] in voters,
                "voters": len(voters),
                "caught up at a time since 2020": times,
                "nodes": len(answer.get("nodes", [])),
            }
        )


for _name, _topics in {
    "no topics": [],
    "null topics": None,
    "null partitions": [{"topic_name": _METADATA, "partitions": None}],
    "no partitions": [{"topic_name": _METADATA, "partitions": []}],
    "an unknown topic": [{"topic_name": "unknown", "partitions": [{"partition_index": 0}]}],
    "an unknown partition": [{"topic_name": _METADATA, "partitions": [{"partition_index": 1}]}],
    "two topics": [
        {"topic_name": _METADATA, "partitions": [{"partition_index": 0}]},
        {"topic_name": "unknown", "partitions": [{"partition_index": 0}]},
    ],
}.items():

    @case(f"DescribeQuorum: {_name}", _topics)
    async def quorum_of(s: Scene, topics: Any) -> None:
        await s.ask("describe_quorum", 2, topics=topics, without=_VOLATILE)
