"""Offset queries that a leader answers: ListOffsets and OffsetForLeaderEpoch.

Each is sent once, with the leader epoch known from metadata, so that no deposed leader answers (KIP-320). After an
error the client refreshes its metadata; the caller backs off and retries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from kio.schema.list_offsets.v7.request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kio.schema.offset_for_leader_epoch.v4.request import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

from images.wire.connection import ConnectionLost
from workloads.clients.connections import Client, connection_error_name, error_name
from workloads.clients.metadata_cache import UNKNOWN_EPOCH, Leader
from workloads.clients.positions import FetchPosition, Truncation, first_query, interpret_answer

EARLIEST: Final = -2
LATEST: Final = -1
_CONSUMER: Final = -1
_SOMETHING_ELSE: Final = "an answer about something else"


@dataclass(frozen=True, slots=True)
class OffsetAnswer:
    """The answer to an offset query; `offset` is None after an error, -1 when no such offset exists."""

    offset: int | None = None
    leader_epoch: int | None = None
    """Of the leader that answered; a leader in another epoch refuses the query."""
    error: str | None = None
    epoch: int = UNKNOWN_EPOCH
    """Of the record at `offset`, or of the leader at the end of the log; an argument for `seek`."""
    timestamp_ms: int = -1


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """The result of a validation: the valid position, a truncation, or an error."""

    position: FetchPosition | None = None
    truncation: Truncation | None = None
    error: str | None = None


async def list_offset(client: Client, topic: str, partition: int, timestamp: int) -> OffsetAnswer:
    """The first offset at or after `timestamp` (ms), or EARLIEST or LATEST."""
    client.track_topic(topic)
    client.refresh_if_old()
    if client.metadata.leader(topic, partition) is None:
        await client.refresh()
    leader = client.metadata.leader(topic, partition)
    if leader is None:
        return OffsetAnswer(error="no leader")
    partition_query = ListOffsetsPartition(
        partition_index=partition, current_leader_epoch=leader.epoch, timestamp=timestamp
    )
    request = ListOffsetsRequest(
        replica_id=_CONSUMER, isolation_level=0, topics=(ListOffsetsTopic(name=topic, partitions=(partition_query,)),)
    )
    try:
        connection = await client.connection(leader.broker)
        response: Any = await connection.call(request, client.timeouts.request_timeout_s)
    except ConnectionLost as lost:
        client.refresh_soon()
        return OffsetAnswer(error=connection_error_name(lost))
    answers = [answer for answered in response.topics for answer in answered.partitions]
    if len(answers) != 1 or answers[0].partition_index != partition:
        return OffsetAnswer(error=_SOMETHING_ELSE)
    answer = answers[0]
    if answer.error_code != 0:
        client.refresh_soon()
        return OffsetAnswer(error=error_name(answer.error_code))
    return OffsetAnswer(
        int(answer.offset), confirmed(leader), epoch=int(answer.leader_epoch), timestamp_ms=int(answer.timestamp)
    )


async def validate(
    client: Client, topic: str, partition: int, leader: Leader, position: FetchPosition
) -> ValidationResult:
    """Query `leader` until it is known whether `position` is in its log, and if not, where the logs diverge."""
    query = first_query(position)
    while True:
        about = OffsetForLeaderPartition(
            partition=partition, current_leader_epoch=leader.epoch, leader_epoch=query.epoch
        )
        request = OffsetForLeaderEpochRequest(
            replica_id=_CONSUMER, topics=(OffsetForLeaderTopic(topic=topic, partitions=(about,)),)
        )
        try:
            connection = await client.connection(leader.broker)
            response: Any = await connection.call(request, client.timeouts.request_timeout_s)
        except ConnectionLost as lost:
            return ValidationResult(error=connection_error_name(lost))
        answers = [answer for answered in response.topics for answer in answered.partitions]
        if len(answers) != 1 or answers[0].partition != partition:
            return ValidationResult(error=_SOMETHING_ELSE)
        answer = answers[0]
        if answer.error_code != 0:
            return ValidationResult(error=error_name(answer.error_code))
        outcome = interpret_answer(position, query, int(answer.leader_epoch), int(answer.end_offset))
        if isinstance(outcome, FetchPosition):
            return ValidationResult(position=outcome._replace(validated_in=leader.epoch))
        if isinstance(outcome, Truncation):
            return ValidationResult(truncation=outcome)
        query = outcome


def confirmed(leader: Leader) -> int | None:
    """The epoch that a leader confirms by answering a query that carries it."""
    return leader.epoch if leader.epoch != UNKNOWN_EPOCH else None
