"""Responses of the group coordinator as Kafka's messages."""

from __future__ import annotations

from typing import Any

from kio.schema.describe_groups.v6.response import DescribedGroup, DescribedGroupMember
from kio.schema.errors import ErrorCode
from kio.schema.join_group.v9.response import JoinGroupResponse, JoinGroupResponseMember
from kio.schema.offset_fetch.v9.response import (
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from kio.schema.sync_group.v5.response import SyncGroupResponse

from images.broker.groups.group import Group, GroupState, JoinAnswer, SyncAnswer
from images.broker.groups.records import OffsetAndMetadata, TopicPartition
from images.wire.field_values import NO_THROTTLE

_NOT_NOW = {
    ErrorCode.not_enough_replicas: ErrorCode.coordinator_not_available,
    ErrorCode.request_timed_out: ErrorCode.coordinator_not_available,
    ErrorCode.not_leader_or_follower: ErrorCode.not_coordinator,
}
_TOO_LARGE = (ErrorCode.message_too_large, ErrorCode.record_list_too_large)
COMMIT_ERRORS = _NOT_NOW | dict.fromkeys(_TOO_LARGE, ErrorCode.invalid_commit_offset_size)
"""Errors for OffsetCommit when the coordinator could not append."""
GROUP_ERRORS = _NOT_NOW | dict.fromkeys(_TOO_LARGE, ErrorCode.unknown_server_error)
"""Errors for other requests about a group, as in Kafka: its members, or its deletion, could not be appended."""


def join_response(answer: JoinAnswer) -> JoinGroupResponse:
    """The response to JoinGroup."""
    return JoinGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=answer.error,
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol,
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id if answer.id_known else "",
        members=tuple(
            JoinGroupResponseMember(member_id=member_id, group_instance_id=instance, metadata=metadata)
            for member_id, instance, metadata in answer.members
        ),
    )


def sync_response(answer: SyncAnswer) -> SyncGroupResponse:
    """The response to SyncGroup."""
    return SyncGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=answer.error,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol,
        assignment=answer.assignment,
    )


def offset_fetch_group(
    requested: Any, error: ErrorCode, committed: dict[TopicPartition, OffsetAndMetadata]
) -> OffsetFetchResponseGroup:
    """The committed offsets of one group in an OffsetFetch response: the requested ones or all.

    An error of the group is repeated for each partition: v1 has no field for it.
    """
    wanted: dict[str, list[int]] = {}
    if requested.topics is None:
        for key in committed:
            wanted.setdefault(key.topic, []).append(key.partition)
    else:
        for topic in requested.topics:
            wanted[topic.name] = list(topic.partition_indexes)
    nothing = OffsetAndMetadata(-1)
    topics = []
    for name, indexes in wanted.items():
        offsets = [(index, committed.get(TopicPartition(name, index), nothing)) for index in indexes]
        topics.append(
            OffsetFetchResponseTopics(
                name=name,
                partitions=tuple(
                    OffsetFetchResponsePartitions(
                        partition_index=index,
                        committed_offset=offset.offset,
                        committed_leader_epoch=offset.leader_epoch,
                        metadata=offset.metadata,
                        error_code=error,
                    )
                    for index, offset in offsets
                ),
            )
        )
    return OffsetFetchResponseGroup(group_id=requested.group_id, topics=tuple(topics), error_code=error)


def described_group(name: str, group: Group | None, error: ErrorCode, message: str | None) -> DescribedGroup:
    """One group in a DescribeGroups response; a group that does not exist is Dead. As in Kafka, a group that is not
    stable shows neither its protocol nor what its members said of it."""
    members = group.members if group is not None else ()
    protocol = group.protocol if group is not None and group.state is GroupState.STABLE else None
    return DescribedGroup(
        error_code=error,
        error_message=message,
        group_id=name,
        group_state=group.state if group is not None else GroupState.DEAD,
        protocol_type=group.protocol_type if group is not None else "",
        protocol_data=protocol or "",
        members=tuple(
            DescribedGroupMember(
                member_id=member.id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata_for(protocol),
                member_assignment=member.assignment,
            )
            for member in members
        ),
    )
