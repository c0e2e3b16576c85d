"""The classic rebalance protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.differential.scene import Link, Scene, case

_SESSION = {"session_timeout": 10_000, "rebalance_timeout": 10_000}
_RANGE = [{"name": "range", "metadata": b"m"}]
UNKNOWN_MEMBER = "nobody"


async def _join(s: Scene, version: int = 9, *, link: Link | None = None, **fields: Any) -> Any:
    known = {"group_id": s.group, "member_id": "", "protocol_type": "consumer", "protocols": _RANGE, **_SESSION}
    if version < 1:
        known.pop("rebalance_timeout")
    return await s.ask("join_group", version, link=link, loading=True, **{**known, **fields})


async def quiet_join(s: Scene, **fields: Any) -> tuple[str, int]:
    """Join unrecorded, with a member id that the coordinator hands out; the member id and the generation."""
    known = {"group_id": s.group, "protocol_type": "consumer", "protocols": _RANGE, **_SESSION, **fields}
    await s.coordinator()
    answer = await s.do("join_group", 3, **{**known, "member_id": ""})
    return answer["member_id"], answer["generation_id"]


async def stable(s: Scene) -> tuple[str, int]:
    """A stable group of one member."""
    member, generation = await quiet_join(s)
    assignments = [{"member_id": member, "assignment": b"a"}]
    known = {"group_id": s.group, "generation_id": generation, "member_id": member}
    await s.do("sync_group", 3, assignments=assignments, **known)
    return member, generation


async def emptied(s: Scene) -> None:
    """A group whose only member has left, with no offsets."""
    member, _ = await stable(s)
    await s.do("leave_group", 2, group_id=s.group, member_id=member)


# --- JoinGroup --------------------------------------------------------------------------------------------------------

for _version in range(4):

    @case(f"JoinGroup v{_version}: the first member", _version)
    async def join_first(s: Scene, version: int) -> None:
        await s.coordinator()
        await _join(s, version)


for _version in range(4, 10):

    @case(f"JoinGroup v{_version}: the first member, with the id it is given", _version)
    async def join_twice(s: Scene, version: int) -> None:
        await s.coordinator()
        answer = await _join(s, version)
        await _join(s, version, member_id=answer["member_id"])


for _name, _fields in {
    "a session timeout too short": {"session_timeout": 5_999},
    "a session timeout too long": {"session_timeout": 1_800_001},
    "a rebalance timeout of -1": {"rebalance_timeout": -1},
    "an empty group id": {"group_id": ""},
    "a member id that nobody has": {"member_id": UNKNOWN_MEMBER},
    "no protocols": {"protocols": []},
    "null protocols": {"protocols": None},
    "an empty protocol type": {"protocol_type": ""},
    "a protocol twice": {"protocols": _RANGE * 2},
    "an empty protocol name": {"protocols": [{"name": "", "metadata": b"m"}]},
    "empty metadata": {"protocols": [{"name": "range", "metadata": b""}]},
    "null metadata": {"protocols": [{"name": "range", "metadata": None}]},
    "a static member": {"group_instance_id": "i"},
    "a static member with an empty instance id": {"group_instance_id": ""},
    "a static member with an id that nobody has": {"group_instance_id": "i", "member_id": UNKNOWN_MEMBER},
}.items():

    @case(f"JoinGroup: {_name}", _fields)
    async def join_fields(s: Scene, fields: dict[str, Any]) -> None:
        await s.coordinator()
        await _join(s, **fields)


for _name, _fields in {
    "another protocol": {"protocols": [{"name": "other", "metadata": b""}]},
    "another protocol type": {"protocol_type": "other"},
    "an unknown member id": {"member_id": UNKNOWN_MEMBER},
    "no member id yet": {},
}.items():

    @case(f"JoinGroup with a stable group: {_name}", _fields)
    async def joinstable(s: Scene, fields: dict[str, Any]) -> None:
        await stable(s)
        await _join(s, **fields)


@case("JoinGroup with a stable group: its leader again")
async def leader_again(s: Scene) -> None:
    member, _ = await stable(s)
    await _join(s, member_id=member)


@case("JoinGroup: two members, then both synchronise")
async def two_members(s: Scene) -> None:
    first, _ = await stable(s)
    known = {"group_id": s.group, "protocol_type": "consumer", "protocols": _RANGE, **_SESSION}
    link = await s.link()
    joining = asyncio.create_task(_join(s, 3, link=link, **known))
    state = ""
    while state != "PreparingRebalance":
        state = (await s.do("describe_groups", 5, groups=[s.group]))["groups"][0]["group_state"]
    await s.ask("heartbeat", 4, group_id=s.group, generation_id=1, member_id=first)
    leading = await s.do("join_group", 3, **known, member_id=first)
    following = await joining
    s.note({"members": len(leading["members"]), "leads": leading["leader"] == first})
    sync = {"group_id": s.group, "generation_id": leading["generation_id"]}
    members = (first, following["member_id"])
    assignments = [{"member_id": member, "assignment": bytes((65 + n,))} for n, member in enumerate(members)]
    await s.ask("sync_group", 3, member_id=first, assignments=assignments, **sync)
    await s.ask("sync_group", 3, link=link, member_id=following["member_id"], assignments=[], **sync)


@case("JoinGroup: a static member comes back with a new member id")
async def static_again(s: Scene) -> None:
    await s.coordinator()
    first = await _join(s, group_instance_id="i")
    sync = {"group_id": s.group, "generation_id": first["generation_id"], "group_instance_id": "i"}
    assignments = [{"member_id": first["member_id"], "assignment": b"a"}]
    await s.ask("sync_group", 4, member_id=first["member_id"], assignments=assignments, **sync)
    await _join(s, group_instance_id="i")
    await s.ask("heartbeat", 4, member_id=first["member_id"], **sync)


@case("JoinGroup: a static member does not join again in time")
async def static_absent(s: Scene) -> None:
    await s.coordinator()
    known = {"rebalance_timeout": 1_000}
    first = await _join(s, group_instance_id="i", **known)
    sync = {"group_id": s.group, "generation_id": first["generation_id"], "group_instance_id": "i"}
    assignments = [{"member_id": first["member_id"], "assignment": b"a"}]
    await s.ask("sync_group", 4, member_id=first["member_id"], assignments=assignments, **sync)
    link = await s.link()
    second = await _join(s, 3, link=link, **known)
    s.note({"members": len(second["members"]), "leads": second["leader"] == second["member_id"]})
    await s.ask("heartbeat", 4, member_id=first["member_id"], **sync)
    again = {"group_id": s.group, "generation_id": second["generation_id"]}
    assignments = [{"member_id": first["member_id"], "assignment": b"b"}]
    await s.ask("sync_group", 3, link=link, member_id=second["member_id"], assignments=assignments, **again)
    back = await _join(s, group_instance_id="i", **known)
    await s.ask(
        "sync_group",
        4,
        group_id=s.group,
        member_id=back["member_id"],
        generation_id=back["generation_id"],
        group_instance_id="i",
        assignments=[],
    )


# --- SyncGroup, Heartbeat, LeaveGroup ---------------------------------------------------------------------------------


for _version in range(6):

    @case(f"SyncGroup v{_version}: the leader", _version)
    async def sync_version(s: Scene, version: int) -> None:
        member, generation = await quiet_join(s)
        fields = {"group_id": s.group, "generation_id": generation, "member_id": member}
        types = {"protocol_type": "consumer", "protocol_name": "range"} if version == 5 else {}
        assignments = [{"member_id": member, "assignment": b"a"}]
        await s.ask("sync_group", version, assignments=assignments, **fields, **types)


for _name, _change in {
    "without an assignment for itself": {"assignments": []},
    "null assignments": {"assignments": None},
    "an assignment for an unknown member": {"assignments": [{"member_id": UNKNOWN_MEMBER, "assignment": b"a"}]},
    "an older generation": {"generation_id": 0},
    "a newer generation": {"generation_id": 2},
    "an unknown member": {"member_id": UNKNOWN_MEMBER},
    "an unknown group": {"group_id": "unknown"},
    "an empty group id": {"group_id": ""},
    "another protocol type": {"protocol_type": "other"},
    "another protocol": {"protocol_name": "other"},
    "no protocol type": {"protocol_type": None, "protocol_name": None},
    "an instance id it does not have": {"group_instance_id": "i"},
}.items():

    @case(f"SyncGroup: {_name}", _change)
    async def sync_fields(s: Scene, change: dict[str, Any]) -> None:
        member, generation = await quiet_join(s)
        known = {
            "group_id": s.group,
            "generation_id": generation,
            "member_id": member,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [{"member_id": member, "assignment": b"a"}],
        }
        await s.ask("sync_group", 5, **{**known, **change})


@case("SyncGroup: in a stable group, again")
async def sync_again(s: Scene) -> None:
    member, generation = await stable(s)
    await s.ask("sync_group", 3, group_id=s.group, generation_id=generation, member_id=member, assignments=[])


for _version in range(5):

    @case(f"Heartbeat v{_version}: of a member", _version)
    async def beat_version(s: Scene, version: int) -> None:
        member, generation = await stable(s)
        await s.ask("heartbeat", version, group_id=s.group, generation_id=generation, member_id=member)


for _name, _change in {
    "an older generation": {"generation_id": 0},
    "a newer generation": {"generation_id": 2},
    "an unknown member": {"member_id": UNKNOWN_MEMBER},
    "no member": {"member_id": ""},
    "an unknown group": {"group_id": "unknown"},
    "an empty group id": {"group_id": ""},
    "an instance id it does not have": {"group_instance_id": "i"},
}.items():

    @case(f"Heartbeat: {_name}", _change)
    async def beat_fields(s: Scene, change: dict[str, Any]) -> None:
        member, generation = await stable(s)
        known = {"group_id": s.group, "generation_id": generation, "member_id": member}
        await s.ask("heartbeat", 4, **{**known, **change})


@case("Heartbeat: while the group waits for the leader's assignment")
async def beat_early(s: Scene) -> None:
    member, generation = await quiet_join(s)
    await s.ask("heartbeat", 4, group_id=s.group, generation_id=generation, member_id=member)


@case("Heartbeat: after leaving")
async def beat_late(s: Scene) -> None:
    member, generation = await stable(s)
    await s.do("leave_group", 2, group_id=s.group, member_id=member)
    await s.ask("heartbeat", 4, group_id=s.group, generation_id=generation, member_id=member)


for _version in range(6):

    @case(f"LeaveGroup v{_version}: a member, twice", _version)
    async def leave_version(s: Scene, version: int) -> None:
        member, _ = await stable(s)
        leaving: dict[str, Any] = {"member_id": member} if version < 3 else {"members": [{"member_id": member}]}
        await s.ask("leave_group", version, group_id=s.group, **leaving)
        await s.ask("leave_group", version, group_id=s.group, **leaving)


for _name, _change in {
    "an unknown member": {"members": [{"member_id": UNKNOWN_MEMBER}]},
    "no members": {"members": []},
    "null members": {"members": None},
    "an unknown instance": {"members": [{"member_id": "", "group_instance_id": "i"}]},
    "neither member nor instance": {"members": [{"member_id": ""}]},
    "an unknown group": {"group_id": "unknown", "members": [{"member_id": UNKNOWN_MEMBER}]},
    "an empty group id": {"group_id": "", "members": [{"member_id": UNKNOWN_MEMBER}]},
}.items():

    @case(f"LeaveGroup: {_name}", _change)
    async def leave_fields(s: Scene, change: dict[str, Any]) -> None:
        await stable(s)
        await s.ask("leave_group", 5, **{"group_id": s.group, **change})


@case("LeaveGroup: a static member by its instance id")
async def leave_static(s: Scene) -> None:
    await s.coordinator()
    await _join(s, group_instance_id="i")
    await s.ask("leave_group", 5, group_id=s.group, members=[{"member_id": "", "group_instance_id": "i"}])


@case("LeaveGroup: a static member with another's member id")
async def leave_fenced(s: Scene) -> None:
    await s.coordinator()
    await _join(s, group_instance_id="i")
    members = [{"member_id": UNKNOWN_MEMBER, "group_instance_id": "i"}]
    await s.ask("leave_group", 5, group_id=s.group, members=members)
