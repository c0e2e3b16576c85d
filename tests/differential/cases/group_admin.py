"""DescribeGroups, ListGroups, DeleteGroups, and what the newer groups are asked."""

from __future__ import annotations

from typing import Any

from tests.differential.cases.group_offsets import committed, with_offset
from tests.differential.cases.groups import emptied, quiet_join, stable
from tests.differential.scene import Scene, case

# --- DescribeGroups, ListGroups, DeleteGroups -------------------------------------------------------------------------

for _version in range(7):

    @case(f"DescribeGroups v{_version}: a stable group and an unknown one", _version)
    async def describe_version(s: Scene, version: int) -> None:
        await stable(s)
        await s.ask("describe_groups", version, groups=[s.group, "unknown"])


for _name, _groups in {
    "no groups": [],
    "null groups": None,
    "an empty group id": [""],
    "an unknown group twice": ["u", "u"],
}.items():

    @case(f"DescribeGroups: {_name}", _groups)
    async def describe_groups(s: Scene, groups: Any) -> None:
        await s.coordinator()
        await s.ask("describe_groups", 6, groups=groups)


@case("DescribeGroups: with what is allowed")
async def describe_operations(s: Scene) -> None:
    await stable(s)
    await s.ask("describe_groups", 6, groups=[s.group], include_authorized_operations=True)


@case("DescribeGroups: a group that waits for the leader's assignment")
async def describe_waiting(s: Scene) -> None:
    await quiet_join(s)
    topic = await s.topic()
    topics = [{"name": topic.name, "partitions": [{"partition_index": 0, "committed_offset": 5}]}]
    known = {"group_id": f"{s.group}-other", "generation_id_or_member_epoch": -1, "member_id": ""}
    # Kafka describes a group once anything that came after it is stored.
    await s.do("offset_commit", 8, topics=topics, **known)
    await s.ask("describe_groups", 5, groups=[s.group])


@case("DescribeGroups: a group without members")
async def describe_empty(s: Scene) -> None:
    await emptied(s)
    await s.ask("describe_groups", 5, groups=[s.group])


@case("DescribeGroups: a group of offsets alone")
async def describe_offsets(s: Scene) -> None:
    await with_offset(s)
    await s.ask("describe_groups", 5, groups=[s.group])


for _version in range(6):

    @case(f"ListGroups v{_version}: a stable group", _version)
    async def list_version(s: Scene, version: int) -> None:
        await stable(s)
        await s.ask("list_groups", version)


for _name, _filters in {
    "stable groups": {"states_filter": ["Stable"]},
    "stable groups, in lower case": {"states_filter": ["stable"]},
    "empty groups": {"states_filter": ["Empty"]},
    "groups of an unknown state": {"states_filter": ["Nonsense"]},
    "classic groups": {"types_filter": ["classic"]},
    "Classic groups, with a capital": {"types_filter": ["Classic"]},
    "consumer groups": {"types_filter": ["consumer"]},
    "groups of an unknown type": {"types_filter": ["Nonsense"]},
    "stable classic groups": {"states_filter": ["Stable"], "types_filter": ["classic"]},
    "null filters": {"states_filter": None},
}.items():

    @case(f"ListGroups: {_name}", _filters)
    async def list_filtered(s: Scene, filters: dict[str, Any]) -> None:
        await stable(s)
        await s.ask("list_groups", 5, **filters)


@case("ListGroups: a group of offsets alone")
async def list_offsets_alone(s: Scene) -> None:
    await with_offset(s)
    await s.ask("list_groups", 5)


for _version in range(3):

    @case(f"DeleteGroups v{_version}: a group without members", _version)
    async def delete_version(s: Scene, version: int) -> None:
        await emptied(s)
        await s.ask("delete_groups", version, groups_names=[s.group])
        await s.ask("describe_groups", 5, groups=[s.group])


for _name, _groups in {
    "no groups": [],
    "null groups": None,
    "an unknown group": ["unknown"],
    "an empty group id": [""],
    "an unknown group twice": ["u", "u"],
}.items():

    @case(f"DeleteGroups: {_name}", _groups)
    async def delete_groups(s: Scene, groups: Any) -> None:
        await s.coordinator()
        await s.ask("delete_groups", 2, groups_names=groups)


@case("DeleteGroups: a group with a member")
async def deletestable(s: Scene) -> None:
    await stable(s)
    await s.ask("delete_groups", 2, groups_names=[s.group])


@case("DeleteGroups: the offsets go with the group")
async def delete_offsets(s: Scene) -> None:
    name = await with_offset(s)
    await s.ask("delete_groups", 2, groups_names=[s.group])
    await committed(s, name)


@case("ConsumerGroupDescribe: an unknown group")
async def consumer_describe(s: Scene) -> None:
    await s.coordinator()
    await s.ask("consumer_group_describe", 0, group_ids=["unknown"])


@case("ConsumerGroupHeartbeat: the first member")
async def consumer_heartbeat(s: Scene) -> None:
    topic = await s.topic()
    await s.coordinator()
    known = {"group_id": s.group, "member_id": "m", "member_epoch": 0, "rebalance_timeout": 10_000}
    subscription = {"subscribed_topic_names": [topic.name], "topic_partitions": []}
    await s.ask("consumer_group_heartbeat", 0, only=["error_code", "member_epoch"], **known, **subscription)
