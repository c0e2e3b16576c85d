"""Questions about offsets that one leader answers: ListOffsets and OffsetForLeaderEpoch.

Each is asked once, in the leader epoch known from metadata, so that no deposed leader answers (KIP-320). An error makes
the client look for the leader anew; whoever asks pauses and asks again.
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
    """The answer to a question for an offset; `offset` is None when there is an error, -1 when there is none such."""

    offset: int | None = None
    leader_epoch: int | None = None
    """Of the leader that answered, confirmed by its not refusing it."""
    error: str | None = None
    epoch: int = UNKNOWN_EPOCH
    """Of the record at `offset`, or of whoever leads at the end of the log; to be given to `seek`."""
    timestamp_ms: int = -1


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """What became of a validation: the position stands, a truncation, or an error and nothing learnt."""

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
    asked = ListOffsetsPartition(partition_index=partition, current_leader_epoch=leader.epoch, timestamp=timestamp)
    request = ListOffsetsRequest(
        replica_id=_CONSUMER, isolation_level=0, topics=(ListOffsetsTopic(name=topic, partitions=(asked,)),)
    )
    try:
        connection = await client.connection(leader.broker)
        response: Any = await connection.call(request, client.timeouts.request_timeout_s)
    except ConnectionLost as lost:
        client.refresh_soon()
        return OffsetAnswer(error=connection_error_name(lost))
    answers = [answer for told in response.topics for answer in told.partitions]
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
    """Ask `leader` until it is known whether `position` stands in its log, and if not, where the logs part."""
    asked = first_query(position)
    while True:
        about = OffsetForLeaderPartition(
            partition=partition, current_leader_epoch=leader.epoch, leader_epoch=asked.epoch
        )
        request = OffsetForLeaderEpochRequest(
            replica_id=_CONSUMER, topics=(OffsetForLeaderTopic(topic=topic, partitions=(about,)),)
        )
        try:
            connection = await client.connection(leader.broker)
            response: Any = await connection.call(request, client.timeouts.request_timeout_s)
        except ConnectionLost as lost:
            return ValidationResult(error=connection_error_name(lost))
        answers = [answer for told in response.topics for answer in told.partitions]
        if len(answers) != 1 or answers[0].partition != partition:
            return ValidationResult(error=_SOMETHING_ELSE)
        answer = answers[0]
        if answer.error_code != 0:
            return ValidationResult(error=error_name(answer.error_code))
        found = interpret_answer(position, asked, int(answer.leader_epoch), int(answer.end_offset))
        if isinstance(found, FetchPosition):
            return ValidationResult(position=found._replace(validated_in=leader.epoch))
        if isinstance(found, Truncation):
            return ValidationResult(truncation=found)
        asked = found


def confirmed(leader: Leader) -> int | None:
    """The epoch that a leader confirms by answering a question that carried it."""
    return leader.epoch if leader.epoch != UNKNOWN_EPOCH else None
