"""Translation between administration requests and Kafka's messages; nothing is decided here."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kio.schema.alter_configs.v2 import response as replacing
from kio.schema.alter_configs.v2.request import AlterConfigsRequest
from kio.schema.alter_partition_reassignments.v0 import response as reassigning
from kio.schema.alter_partition_reassignments.v0.request import AlterPartitionReassignmentsRequest
from kio.schema.elect_leaders.v2 import response as electing
from kio.schema.elect_leaders.v2.request import ElectLeadersRequest
from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v1 import response as configuring
from kio.schema.incremental_alter_configs.v1.request import IncrementalAlterConfigsRequest
from kio.schema.list_partition_reassignments.v0 import response as listing
from kio.schema.list_partition_reassignments.v0.request import ListPartitionReassignmentsRequest

from images.broker.controller.requests import PartitionResult, TopicResult
from images.broker.controller.topic_config import DELETE, SET, ConfigChange
from images.broker.metadata.image import ClusterImage
from images.broker.metadata.topic_names import is_legal_name
from images.wire.field_values import NO_THROTTLE

TOPIC, BROKER = 2, 4
"""Kafka's resource types."""
_BROKER_NAME = re.compile(r"[0-9]{1,10}")
PREFERRED, UNCLEAN = 0, 1
"""Kafka's election types."""


AnyAlterConfigs = IncrementalAlterConfigsRequest | AlterConfigsRequest
"""A request to change configurations: key by key, or each as a whole."""


def parse_config_changes(resource: Any) -> tuple[ConfigChange, ...]:
    """The changes of one resource; AlterConfigs has no operations, and sets every key."""
    return tuple(
        ConfigChange(entry.name, getattr(entry, "config_operation", SET), entry.value) for entry in resource.configs
    )


def count_resources(body: AnyAlterConfigs) -> Counter[tuple[int, str]]:
    """How often each resource is in a request."""
    return Counter((resource.resource_type, resource.resource_name) for resource in body.resources)


def config_request_problem(
    resource: Any, changes: Sequence[ConfigChange], counts: Mapping[tuple[int, str], int]
) -> tuple[ErrorCode, str] | None:
    """The error and message for a resource whose change is refused without a look at the configuration."""
    if counts[resource.resource_type, resource.resource_name] > 1:
        return ErrorCode.invalid_request, "Each resource must appear at most once."
    if len({change.name for change in changes}) < len(changes):
        return ErrorCode.invalid_request, "Each key must appear at most once."
    if any(change.value is None and change.operation != DELETE for change in changes):
        return ErrorCode.invalid_request, "A value is needed, or the operation to delete it."
    if resource.resource_type not in (TOPIC, BROKER):
        return ErrorCode.invalid_request, "Only topics and brokers have a configuration that can be changed."
    if resource.resource_type == BROKER and not _BROKER_NAME.fullmatch(resource.resource_name):
        return ErrorCode.invalid_request, "A broker is named by its id; brokers have no common configuration."
    if resource.resource_type == TOPIC and not resource.resource_name:
        return ErrorCode.invalid_request, "The default of all topics cannot be changed."
    if resource.resource_type == TOPIC and not is_legal_name(resource.resource_name):
        return ErrorCode.invalid_topic_exception, "No topic can have this name."
    return None


def alter_configs_response(
    body: AnyAlterConfigs, results: Sequence[TopicResult]
) -> configuring.IncrementalAlterConfigsResponse | replacing.AlterConfigsResponse:
    """The response to `body`: a result for each resource, in the same order."""
    resources: Sequence[Any] = body.resources
    response: Any = configuring.IncrementalAlterConfigsResponse
    resource_response: Any = configuring.AlterConfigsResourceResponse
    if isinstance(body, AlterConfigsRequest):
        response, resource_response = replacing.AlterConfigsResponse, replacing.AlterConfigsResourceResponse
    answer: configuring.IncrementalAlterConfigsResponse | replacing.AlterConfigsResponse = response(
        throttle_time=NO_THROTTLE,
        responses=tuple(
            resource_response(
                error_code=result.error,
                error_message=result.message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource, result in zip(resources, results, strict=True)
        ),
    )
    return answer


def parse_reassignments(body: AlterPartitionReassignmentsRequest) -> list[tuple[str, int, tuple[int, ...] | None]]:
    """(topic, partition, replicas) for each partition; replicas None cancels its reassignment."""
    return [
        (topic.name, requested.partition_index, None if requested.replicas is None else tuple(requested.replicas))
        for topic in body.topics
        for requested in topic.partitions
    ]


def reassignments_response(
    body: AlterPartitionReassignmentsRequest, results: Sequence[PartitionResult]
) -> reassigning.AlterPartitionReassignmentsResponse:
    """The response to `body`: a result for each partition, in the same order."""
    each = iter(results)
    return reassigning.AlterPartitionReassignmentsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        error_message=None,
        responses=tuple(
            reassigning.ReassignableTopicResponse(
                name=topic.name, partitions=tuple(_reassigned(next(each)) for _ in topic.partitions)
            )
            for topic in body.topics
        ),
    )


def _reassigned(result: PartitionResult) -> reassigning.ReassignablePartitionResponse:
    return reassigning.ReassignablePartitionResponse(
        partition_index=result.index, error_code=result.error, error_message=result.message
    )


def list_reassignments_response(
    body: ListPartitionReassignmentsRequest, image: ClusterImage
) -> listing.ListPartitionReassignmentsResponse:
    """Reassignments in `image`: of the partitions in `body`, or of all partitions if `body` names none."""
    requested = body.topics
    wanted = (
        None if requested is None else {(topic.name, index) for topic in requested for index in topic.partition_indexes}
    )
    topics = []
    for topic in image.topics.values():
        moving = tuple(
            listing.OngoingPartitionReassignment(
                partition_index=partition.index,
                replicas=partition.replicas,
                adding_replicas=partition.adding,
                removing_replicas=partition.removing,
            )
            for partition in topic.partitions
            if partition.reassigning and (wanted is None or (topic.name, partition.index) in wanted)
        )
        if moving:
            topics.append(listing.OngoingTopicReassignment(name=topic.name, partitions=moving))
    return listing.ListPartitionReassignmentsResponse(
        throttle_time=NO_THROTTLE, error_code=ErrorCode.none, error_message=None, topics=tuple(topics)
    )


def list_reassignments_error(error: ErrorCode, message: str) -> listing.ListPartitionReassignmentsResponse:
    return listing.ListPartitionReassignmentsResponse(
        throttle_time=NO_THROTTLE, error_code=error, error_message=message, topics=()
    )


def parse_elections(body: ElectLeadersRequest) -> list[tuple[str, int]] | None:
    """The partitions to elect leaders for; None for all partitions."""
    if body.topic_partitions is None:
        return None
    return [(requested.topic, index) for requested in body.topic_partitions for index in requested.partitions]


def elect_leaders_response(
    body: ElectLeadersRequest, results: Sequence[PartitionResult]
) -> electing.ElectLeadersResponse:
    """The response to `body`. Of a request for all partitions, every topic is listed, but no partition whose leader
    stays."""
    if body.topic_partitions is None:
        topics = [result.topic for result in results]
        results = [result for result in results if result.error is not ErrorCode.election_not_needed]
    else:
        topics = [requested.topic for requested in body.topic_partitions]
    return electing.ElectLeadersResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        replica_election_results=tuple(_by_topic(topics, results)),
    )


def elections_refused(body: ElectLeadersRequest, error: ErrorCode, message: str) -> electing.ElectLeadersResponse:
    results = [PartitionResult(topic, index, error, message) for topic, index in parse_elections(body) or ()]
    topics = [result.topic for result in results]
    return electing.ElectLeadersResponse(
        throttle_time=NO_THROTTLE, error_code=error, replica_election_results=tuple(_by_topic(topics, results))
    )


def _by_topic(topics: Iterable[str], results: Sequence[PartitionResult]) -> Iterator[electing.ReplicaElectionResult]:
    for topic in dict.fromkeys(topics):
        yield electing.ReplicaElectionResult(
            topic=topic,
            partition_result=tuple(
                electing.PartitionResult(
                    partition_id=result.index, error_code=result.error, error_message=result.message
                )
                for result in results
                if result.topic == topic
            ),
        )
