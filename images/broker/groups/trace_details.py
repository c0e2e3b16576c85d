"""Details of the trace events about groups and their offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from images.broker.groups.group import Decision, Group, JoinAnswer
from images.broker.groups.records import OffsetAndMetadata, OffsetRecord, Records, TopicPartition, decode


def offsets_by_name(offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[str, int]:
    """Offsets by the name of the partition."""
    return {f"{key.topic}-{key.partition}": value.offset for key, value in sorted(offsets.items())}


def offset_changes(records: Records) -> list[list[object]]:
    """Changes of committed offsets by records: [group, partition by name, offset]. Without an offset it is deleted,
    without a partition the group is."""
    changes: list[list[object]] = []
    for key, value in records:
        entry = decode(key, value)
        if isinstance(entry, OffsetRecord):
            offset = None if entry.value is None else entry.value.offset
            changes.append([entry.group, f"{entry.topic}-{entry.partition}", offset])
        elif entry.value is None:
            changes.append([entry.group, None, None])
    return changes


def waits_detail(group: Group) -> dict[str, object]:
    """The state of a group, and the answers that its members wait for."""
    waits = {member.id: "join" if member.joining else "sync" if member.syncing else "" for member in group.members}
    return {"state": str(group.state), "generation": group.generation, "storing": group.storing, "members": waits}


def record_detail(group: Group) -> dict[str, object]:
    """A group as its record has it: {member: [instance id, session timeout, rebalance timeout, assignment]}."""
    members = {
        member.id: [
            member.instance_id,
            member.session_timeout_ms,
            member.rebalance_timeout_ms,
            member.assignment.hex(),
        ]
        for member in group.members
    }
    return {"generation": group.generation, "leader": group.leader, "protocol": group.protocol, "record": members}


def generation_detail(group: Group, decisions: Iterable[Decision]) -> dict[str, object]:
    """A generation, and what the answers to the joins of its members say of it."""
    joins = [one for one in decisions if isinstance(one, JoinAnswer) and one.error is ErrorCode.none]
    told = {one.member_id: join_detail(one) for one in joins}
    members = [member.id for member in group.members]
    return {"generation": group.generation, "members": members, "told": told} if told else {}


def join_detail(answer: JoinAnswer) -> list[object]:
    """The generation, the leader and the members that the answer to a join gives."""
    return [answer.generation, answer.leader, [member_id for member_id, _, _ in answer.members]]


def leave_detail(asked: Iterable[Any], answers: Iterable[Any]) -> dict[str, object]:
    """The members that are to leave, and those that the answer has, with the error of each."""
    return {
        "asked": [[member.member_id, member.group_instance_id] for member in asked],
        "told": [[member.member_id, member.group_instance_id, member.error_code.name] for member in answers],
    }


def description_detail(description: Any) -> dict[str, object]:
    """A group as DescribeGroups describes it."""
    return {
        "member": "",
        "instance": None,
        "state": str(description.group_state),
        "told": [[member.member_id, member.group_instance_id] for member in description.members],
        "assignments": {member.member_id: member.member_assignment.hex() for member in description.members},
    }


def sender_detail(request: Any, generation: int) -> dict[str, object]:
    """The sender of a request that gives this generation."""
    return {"member": request.member_id, "said": generation, "instance": request.group_instance_id}
