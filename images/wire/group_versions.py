"""Group requests that changed from one item to a list: FindCoordinator, LeaveGroup, OffsetFetch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kio.schema.errors import ErrorCode
from kio.schema.leave_group.v5.request import MemberIdentity
from kio.schema.offset_fetch.v9.request import OffsetFetchRequestGroup

from images.wire.messages import Api
from images.wire.schema import Entity, convert, shapes

LAST_SINGLE_VERSION: Mapping[Api, int] = {Api.FIND_COORDINATOR: 3, Api.LEAVE_GROUP: 2, Api.OFFSET_FETCH: 7}
"""The last version of each API with a single item."""


def to_list_form(api: Api, body: Entity, canonical: Entity) -> Entity:
    """`canonical`, converted from `body` by name, with the single item of `body` in its list."""
    if api is Api.FIND_COORDINATOR:
        return replace(canonical, coordinator_keys=(body.key,))
    if api is Api.LEAVE_GROUP:
        return replace(canonical, members=(MemberIdentity(member_id=body.member_id, group_instance_id=None),))
    group = convert(body, OffsetFetchRequestGroup)
    return replace(canonical, groups=(group,))


def to_single_form(api: Api, answer: Entity, target: type) -> Entity:
    """The response for the single item, as an instance of `target`."""
    converted = convert(answer, target)
    if api is Api.LEAVE_GROUP:
        member = next((member.error_code for member in answer.members), ErrorCode.none)
        error = member if answer.error_code is ErrorCode.none else answer.error_code
        return replace(converted, **_existing_fields(target, {"error_code": error}))
    listed = answer.coordinators[0] if api is Api.FIND_COORDINATOR else answer.groups[0]
    one = convert(listed, target)
    return replace(one, **_existing_fields(target, {"throttle_time": answer.throttle_time}))


def _existing_fields(target: type, values: Mapping[str, object]) -> dict[str, object]:
    names = {shape.name for shape in shapes(target)}
    return {name: value for name, value in values.items() if name in names}
