"""Responses that refuse a request to the active controller as a whole.

NOT_CONTROLLER (41) is the response of a controller that is not active: the request had no effect, and its sender tries
another controller.
"""

from __future__ import annotations

from typing import Any

from kio.schema.alter_partition_reassignments.v0.response import AlterPartitionReassignmentsResponse
from kio.schema.elect_leaders.v2.response import ElectLeadersResponse
from kio.schema.errors import ErrorCode

from images.broker.controller import admin_messages, messages
from images.broker.controller.alter_partition import AlterPartitionAnswer
from images.broker.controller.requests import HeartbeatAnswer, ProducerIdsAnswer, RegistrationAnswer, TopicResult
from images.broker.raft.messages import describe_quorum_error
from images.wire.connection import Api
from images.wire.field_values import NO_THROTTLE


def not_controller(api: Api, body: Any) -> Any:
    """The NOT_CONTROLLER response to a request `body` of `api`."""
    return refusal(api, body, ErrorCode.not_controller, "This is not the active controller.")


def refusal(api: Api, body: Any, error: ErrorCode, message: str) -> Any:
    """The response to a request `body` of `api` with this error."""
    if api is Api.BROKER_REGISTRATION:
        return messages.registration_response(RegistrationAnswer(error))
    if api is Api.BROKER_HEARTBEAT:
        return messages.heartbeat_response(HeartbeatAnswer(error))
    if api is Api.ALTER_PARTITION:
        return messages.alter_partition_response(body, AlterPartitionAnswer(error))
    if api is Api.ALLOCATE_PRODUCER_IDS:
        return messages.producer_ids_response(ProducerIdsAnswer(error))
    if api is Api.DESCRIBE_QUORUM:
        return describe_quorum_error(error, message)
    if api is Api.CREATE_TOPICS:
        refused = tuple(TopicResult(topic.name, error, message) for topic in body.topics)
        return messages.create_topics_response(refused, validate_only=body.validate_only)
    if api is Api.DELETE_TOPICS:
        return messages.delete_topics_response(
            tuple(TopicResult(topic.name, error, message, topic_id=topic.topic_id) for topic in body.topics)
        )
    if api is Api.CREATE_PARTITIONS:
        return messages.create_partitions_response(
            tuple(TopicResult(topic.name, error, message) for topic in body.topics)
        )
    if api in (Api.ALTER_CONFIGS, Api.INCREMENTAL_ALTER_CONFIGS):
        refused = tuple(TopicResult(resource.resource_name, error, message) for resource in body.resources)
        return admin_messages.alter_configs_response(body, refused)
    if api is Api.LIST_PARTITION_REASSIGNMENTS:
        return admin_messages.list_reassignments_error(error, message)
    if api is Api.ALTER_PARTITION_REASSIGNMENTS:
        return AlterPartitionReassignmentsResponse(
            throttle_time=NO_THROTTLE, error_code=error, error_message=message, responses=()
        )
    return ElectLeadersResponse(throttle_time=NO_THROTTLE, error_code=error, replica_election_results=())


def says_not_controller(answer: Any) -> bool:
    """Whether `answer` is a NOT_CONTROLLER response, or DescribeQuorum's NOT_LEADER_OR_FOLLOWER."""
    refusals = (ErrorCode.not_controller, ErrorCode.not_leader_or_follower)
    if getattr(answer, "error_code", None) in refusals:
        return True
    parts: Any = next(filter(None, (getattr(answer, name, None) for name in ("topics", "responses", "results"))), ())
    if parts and hasattr(parts[0], "partitions") and not hasattr(parts[0], "error_code"):
        parts = parts[0].partitions
    return bool(parts) and getattr(parts[0], "error_code", None) in refusals
