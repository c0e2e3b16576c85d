"""Offset queries that a leader answers: ListOffsets and OffsetForLeaderEpoch.

Each is sent once, with the leader epoch known from metadata, so that no deposed leader answers (KIP-320). After an
error the client refreshes its metadata; the caller backs off and retries.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from kio.schema.list_offsets.v7.request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kio.schema.offset_for_leader_epoch.v4.request import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

from images.wire.connection import ConnectionLost
from workloads.clients.connections import Client, connection_error_name, error_name
from workloads.clients.consumer_rules import ConsumerRules
from workloads.clients.metadata_cache import UNKNOWN_EPOCH, Leader
from workloads.clients.positions import UNKNOWN_OFFSET, FetchPosition, Truncation, first_query, interpret_answer

EARLIEST: Final = -2
LATEST: Final = -1
MAX_TIMESTAMP: Final = -3
_CONSUMER: Final = -1
_NO_LEADER: Final = "no leader"
_SOMETHING_ELSE: Final = "an answer about something else"


@dataclass(frozen=True, slots=True)
class OffsetAnswer:
    """The answer to an offset query; `offset` is None after an error, -1 when no such offset exists."""

    offset: int | None = None
    leader_epoch: int | None = None
    """Of the leader that answered; a leader in another epoch refuses the query."""
    error: str | None = None
    epoch: int = UNKNOWN_EPOCH
    """An argument for `seek`: of the record at `offset`, or at the end of the log of the one before it, which only
    `end_position` finds out."""
    timestamp_ms: int = -1


@dataclass(frozen=True, slots=True)
class LeaderEpochEnd:
    """A leader's answer to a query for the end of a leader epoch, as in docs/protocol.md §1, or an error."""

    epoch: int = UNKNOWN_EPOCH
    end: int = UNKNOWN_OFFSET
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """The result of a validation: the valid position, a truncation, or an error."""

    position: FetchPosition | None = None
    truncation: Truncation | None = None
    error: str | None = None


async def list_offset(client: Client, topic: str, partition: int, timestamp: int) -> OffsetAnswer:
    """The first offset at or after `timestamp` (ms), or EARLIEST, LATEST, or with MAX_TIMESTAMP that of the newest
    record."""
    leader = await _find_leader(client, topic, partition)
    return (
        OffsetAnswer(error=_NO_LEADER) if leader is None else await _list(client, topic, partition, leader, timestamp)
    )


async def end_position(client: Client, topic: str, partition: int) -> OffsetAnswer:
    """The latest offset, with the epoch of the record before it, so that a `seek` to it can be validated.

    ListOffsets does not return that epoch: as in Apache Kafka, the latest offset comes with the epoch of its leader, in
    which no record may have been written. The next leader then has no trace of that epoch, and a validation by it would
    find a truncation that never happened. So the same leader is asked where the epoch before its own ended, which is
    where its own began. The epoch stays unknown when no record stands before the offset.
    """
    leader = await _find_leader(client, topic, partition)
    if leader is None:
        return OffsetAnswer(error=_NO_LEADER)
    latest = await _list(client, topic, partition, leader, LATEST)
    if latest.offset is None or latest.leader_epoch is None:
        return latest
    before = LeaderEpochEnd(UNKNOWN_EPOCH, 0)  # no epoch is before 0, with which every partition begins
    if leader.epoch > 0:
        before = await _epoch_end(client, topic, partition, leader, leader.epoch - 1)
        if before.error is not None:
            client.refresh_soon()
            return OffsetAnswer(error=before.error)
    epoch = UNKNOWN_EPOCH
    if UNKNOWN_OFFSET < before.end < latest.offset:
        epoch = leader.epoch
    elif before.end == latest.offset:
        epoch = before.epoch
        if epoch == leader.epoch - 1:  # also the answer if the log begins here, without a record of any epoch
            earliest = await _list(client, topic, partition, leader, EARLIEST)
            if earliest.offset is None:
                return earliest
            epoch = epoch if earliest.offset < latest.offset else UNKNOWN_EPOCH
    return replace(latest, epoch=epoch)


async def _find_leader(client: Client, topic: str, partition: int) -> Leader | None:
    client.track_topic(topic)
    client.refresh_if_old()
    if client.metadata.leader(topic, partition) is None:
        await client.refresh()
    return client.metadata.leader(topic, partition)


async def _list(client: Client, topic: str, partition: int, leader: Leader, timestamp: int) -> OffsetAnswer:
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
        int(answer.offset),
        confirmed(leader),
        epoch=UNKNOWN_EPOCH if timestamp == LATEST else int(answer.leader_epoch),
        timestamp_ms=int(answer.timestamp),
    )


async def validate(
    client: Client, topic: str, partition: int, leader: Leader, position: FetchPosition, rules: ConsumerRules
) -> ValidationResult:
    """Query `leader` until it is known whether `position` is in its log, and if not, where the logs diverge."""
    query = first_query(position)
    while True:
        answer = await _epoch_end(client, topic, partition, leader, query.epoch)
        if answer.error is not None:
            return ValidationResult(error=answer.error)
        if answer.epoch > query.epoch:
            return ValidationResult(error=_SOMETHING_ELSE)
        outcome = interpret_answer(position, query, answer.epoch, answer.end, rules)
        if isinstance(outcome, FetchPosition):
            return ValidationResult(position=outcome._replace(validated_in=leader.epoch))
        if isinstance(outcome, Truncation):
            return ValidationResult(truncation=outcome)
        query = outcome


async def _epoch_end(client: Client, topic: str, partition: int, leader: Leader, epoch: int) -> LeaderEpochEnd:
    about = OffsetForLeaderPartition(partition=partition, current_leader_epoch=leader.epoch, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(
        replica_id=_CONSUMER, topics=(OffsetForLeaderTopic(topic=topic, partitions=(about,)),)
    )
    try:
        connection = await client.connection(leader.broker)
        response: Any = await connection.call(request, client.timeouts.request_timeout_s)
    except ConnectionLost as lost:
        return LeaderEpochEnd(error=connection_error_name(lost))
    answers = [answer for answered in response.topics for answer in answered.partitions]
    if len(answers) != 1 or answers[0].partition != partition:
        return LeaderEpochEnd(error=_SOMETHING_ELSE)
    if answers[0].error_code != 0:
        return LeaderEpochEnd(error=error_name(answers[0].error_code))
    return LeaderEpochEnd(int(answers[0].leader_epoch), int(answers[0].end_offset))


def confirmed(leader: Leader) -> int | None:
    """The epoch that a leader confirms by answering a query that carries it."""
    return leader.epoch if leader.epoch != UNKNOWN_EPOCH else None
