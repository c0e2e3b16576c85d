"""FindCoordinator, OffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

from typing import Any

from tests.differential.cases.groups import UNKNOWN_MEMBER, emptied, quiet_join, stable
from tests.differential.scene import Scene, case

# --- FindCoordinator --------------------------------------------------------------------------------------------------

for _version in range(7):

    @case(f"FindCoordinator v{_version}: of a group", _version)
    async def find(s: Scene, version: int) -> None:
        await s.coordinator()
        key: dict[str, Any] = {"key": s.group} if version < 4 else {"coordinator_keys": [s.group]}
        await s.ask("find_coordinator", version, **key)


for _name, _fields in {
    "an empty key": {"coordinator_keys": [""]},
    "no keys": {"coordinator_keys": []},
    "null keys": {"coordinator_keys": None},
    "a key twice": {"coordinator_keys": ["x", "x"]},
    "two keys": {"coordinator_keys": ["x", "y"]},
    "key type 2": {"coordinator_keys": ["x"], "key_type": 2},
    "key type 9": {"coordinator_keys": ["x"], "key_type": 9},
    "key type -1": {"coordinator_keys": ["x"], "key_type": -1},
    "an empty transactional id": {"coordinator_keys": [""], "key_type": 1},
}.items():

    @case(f"FindCoordinator: {_name}", _fields)
    async def find_fields(s: Scene, fields: dict[str, Any]) -> None:
        await s.coordinator()
        await s.ask("find_coordinator", 4, **fields)


@case("FindCoordinator v3: key type 9", 9)
@case("FindCoordinator v3: of a transaction", 1)
async def find_old(s: Scene, kind: int) -> None:
    await s.coordinator()
    await s.ask("find_coordinator", 3, loading=True, key="x", key_type=kind)


# --- OffsetCommit -----------------------------------------------------------------------------------------------------


async def _commit(
    s: Scene, topic: str, offset: int = 5, *, version: int = 8, parts: Any = None, topics: Any = ..., **fields: Any
) -> None:
    one = {"partition_index": 0, "committed_offset": offset, "committed_metadata": "note"}
    named = [{"name": topic, "partitions": parts or [one]}] if topics is ... else topics
    known = {"group_id": s.group, "generation_id_or_member_epoch": -1, "member_id": "", "topics": named}
    await s.ask("offset_commit", version, loading=True, **{**known, **fields})


async def committed(s: Scene, topic: str, version: int = 7) -> None:
    asked = [{"name": topic, "partition_indexes": [0]}]
    await s.ask("offset_fetch", version, group_id=s.group, topics=asked)


for _version in range(2, 10):

    @case(f"OffsetCommit v{_version}: without a group", _version)
    async def commit_version(s: Scene, version: int) -> None:
        topic = await s.topic()
        await s.coordinator()
        await _commit(s, topic.name, version=version)
        await committed(s, topic.name)


for _name, _fields in {
    "generation 0 without a group": {"generation_id_or_member_epoch": 0},
    "generation 0 and a member without a group": {"generation_id_or_member_epoch": 0, "member_id": UNKNOWN_MEMBER},
    "a member but no generation": {"member_id": UNKNOWN_MEMBER},
    "generation -2": {"generation_id_or_member_epoch": -2},
    "an instance id without a group": {"group_instance_id": "i"},
    "an empty group id": {"group_id": ""},
    "no topics": {"topics": []},
    "null topics": {"topics": None},
    "null partitions": {"topics": [{"name": "unknown", "partitions": None}]},
    "no partitions": {"topics": [{"name": "unknown", "partitions": []}]},
    "an unknown topic": {"topic": "unknown"},
    "an invalid topic name": {"topic": "not a name"},
    "an empty topic name": {"topic": ""},
    "offset -1": {"offset": -1},
    "offset -2": {"offset": -2},
    "an offset beyond the end": {"offset": 1 << 40},
    "an unknown partition": {"parts": [{"partition_index": 7, "committed_offset": 1, "committed_metadata": ""}]},
    "partition -1": {"parts": [{"partition_index": -1, "committed_offset": 1, "committed_metadata": ""}]},
    "null metadata": {"parts": [{"partition_index": 0, "committed_offset": 1, "committed_metadata": None}]},
    "empty metadata": {"parts": [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}]},
    "metadata of 4097 bytes": {
        "parts": [{"partition_index": 0, "committed_offset": 1, "committed_metadata": "x" * 4097}]
    },
    "a leader epoch": {
        "parts": [{"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": 3, "committed_metadata": ""}]
    },
    "the same partition twice": {
        "parts": [{"partition_index": 0, "committed_offset": offset, "committed_metadata": ""} for offset in (1, 2)]
    },
    "the internal topic of groups": {"topic": "__consumer_offsets"},
}.items():

    @case(f"OffsetCommit: {_name}", _fields)
    async def commit_fields(s: Scene, fields: dict[str, Any]) -> None:
        topic = await s.topic()
        await s.coordinator()
        await _commit(s, **{"topic": topic.name, **fields})
        await committed(s, topic.name)


for _name, _change in {
    "by a member": {},
    "in an older generation": {"generation": -1},
    "in a newer generation": {"generation": 1},
    "by an unknown member": {"member_id": UNKNOWN_MEMBER},
    "without a member while there is one": {"member_id": "", "generation_id_or_member_epoch": -1},
    "by a member without a generation": {"generation_id_or_member_epoch": -1},
    "by a member with an instance id it does not have": {"group_instance_id": "i"},
}.items():

    @case(f"OffsetCommit in a group: {_name}", _change)
    async def commit_in_group(s: Scene, change: dict[str, Any]) -> None:
        topic = await s.topic()
        member, generation = await stable(s)
        fields = dict(change)
        known = {"member_id": member, "generation_id_or_member_epoch": generation + fields.pop("generation", 0)}
        await _commit(s, topic.name, **{**known, **fields})


@case("OffsetCommit in a group: while it rebalances")
async def commit_while_rebalancing(s: Scene) -> None:
    topic = await s.topic()
    member, generation = await quiet_join(s)
    await _commit(s, topic.name, member_id=member, generation_id_or_member_epoch=generation)


@case("OffsetCommit in a group: after its only member has left")
async def commit_after_leaving(s: Scene) -> None:
    topic = await s.topic()
    await emptied(s)
    await _commit(s, topic.name)


# --- OffsetFetch ------------------------------------------------------------------------------------------------------


async def with_offset(s: Scene) -> str:
    topic = await s.topic(partitions=2)
    await s.coordinator()
    parts = [{"partition_index": 0, "committed_offset": 5, "committed_metadata": "note"}]
    known = {"group_id": s.group, "generation_id_or_member_epoch": -1, "member_id": ""}
    await s.do("offset_commit", 8, topics=[{"name": topic.name, "partitions": parts}], **known)
    return topic.name


for _version in range(1, 10):

    @case(f"OffsetFetch v{_version}: one committed, one not", _version)
    async def fetch_version(s: Scene, version: int) -> None:
        topics = [{"name": await with_offset(s), "partition_indexes": [0, 1]}]
        if version < 8:
            await s.ask("offset_fetch", version, group_id=s.group, topics=topics)
        else:
            await s.ask("offset_fetch", version, groups=[{"group_id": s.group, "topics": topics}])


for _version in (2, 7):
    for _name, _topics in {"every topic": None, "no topics": []}.items():

        @case(f"OffsetFetch v{_version}: {_name}", _version, _topics)
        async def fetch_topics(s: Scene, version: int, topics: Any) -> None:
            await with_offset(s)
            await s.ask("offset_fetch", version, group_id=s.group, topics=topics)


@case("OffsetFetch v1: null topics")
async def fetch_null(s: Scene) -> None:
    await s.coordinator()
    await s.ask("offset_fetch", 1, group_id=s.group, topics=None)


for _name, _group in {
    "every topic": {"topics": None},
    "no topics": {"topics": []},
    "an unknown partition": {"topics": [{"name": ..., "partition_indexes": [7]}]},
    "the same partition twice": {"topics": [{"name": ..., "partition_indexes": [0, 0]}]},
    "no partitions": {"topics": [{"name": ..., "partition_indexes": []}]},
    "null partitions": {"topics": [{"name": ..., "partition_indexes": None}]},
    "an unknown topic": {"topics": [{"name": "unknown", "partition_indexes": [0]}]},
    "an unknown group": {"group_id": "unknown", "topics": [{"name": ..., "partition_indexes": [0]}]},
    "every topic of an unknown group": {"group_id": "unknown", "topics": None},
    "an empty group id": {"group_id": "", "topics": None},
    "a member that is none": {"topics": None, "member_id": UNKNOWN_MEMBER, "member_epoch": 3},
    "a member epoch without a member": {"topics": None, "member_epoch": 3},
}.items():

    @case(f"OffsetFetch: {_name}", _group)
    async def fetch_group(s: Scene, group: dict[str, Any]) -> None:
        name = await with_offset(s)
        topics = group["topics"] and [
            {**topic, "name": name} if topic["name"] is ... else topic for topic in group["topics"]
        ]
        await s.ask("offset_fetch", 9, groups=[{"group_id": s.group, "member_epoch": -1, **group, "topics": topics}])


@case("OffsetFetch: no groups", [])
@case("OffsetFetch: null groups", None)
async def fetch_no_groups(s: Scene, groups: Any) -> None:
    await s.ask("offset_fetch", 9, groups=groups)


@case("OffsetFetch: the same group twice")
async def fetch_group_twice(s: Scene) -> None:
    await with_offset(s)
    await s.ask("offset_fetch", 9, groups=[{"group_id": s.group, "member_epoch": -1, "topics": None}] * 2)


@case("OffsetFetch: stable offsets only")
async def fetchstable(s: Scene) -> None:
    await with_offset(s)
    groups = [{"group_id": s.group, "member_epoch": -1, "topics": None}]
    await s.ask("offset_fetch", 9, groups=groups, require_stable=True)


for _name, _parts, _group in (
    ("a committed partition", [0], None),
    ("a partition without an offset", [1], None),
    ("an unknown group", [0], "unknown"),
):

    @case(f"OffsetDelete: {_name}", _parts, _group)
    async def offset_delete(s: Scene, parts: list[int], group: str | None) -> None:
        asked = [{"partition_index": part} for part in parts]
        topics = [{"name": await with_offset(s), "partitions": asked}]
        await s.ask("offset_delete", 0, group_id=group or s.group, topics=topics)
