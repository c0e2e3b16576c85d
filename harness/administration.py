"""The nemesis's administrator: asks the brokers, over Kafka's protocol, for what `nemesis/admin.py` needs.

A request goes to one broker after another until one answers something else than that the controller did not, or that
it does not lead; each is given little time, since some of them may be cut off or frozen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from kio.schema.alter_partition_reassignments.v0 import request as reassigning
from kio.schema.delete_records.v2 import request as deleting
from kio.schema.delete_records.v2 import response as deleted
from kio.schema.describe_topic_partitions.v0 import request as describing
from kio.schema.elect_leaders.v2 import request as electing
from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v1 import request as configuring
from kio.schema.list_offsets.v7 import request as listing
from kio.schema.list_offsets.v7 import response as listed

from images.broker.wire import Connection, ConnectionLost

ANSWER_LIMIT_S = 1.0
UNANSWERED = "UNANSWERED"
_TOPIC, _SET, _PREFERRED = 2, 0, 0
_EARLIEST, _LATEST, _CONSUMER = -2, -1, -1
_TIMEOUT = timedelta(seconds=ANSWER_LIMIT_S)
_DELETION_TIMEOUT = timedelta(seconds=ANSWER_LIMIT_S / 2)
"""Shorter, so that a leader whose followers do not follow still answers in time that it has begun."""


class Administration:
    """Implements `nemesis.ports.Admin`; a connection a request."""

    def __init__(self, addresses: Mapping[str, tuple[str, int]], ids: Mapping[str, int]) -> None:
        """`addresses`: node name → (host, port) of every broker; `ids`: node name → Kafka's node.id."""
        self._addresses = dict(addresses)
        self._ids = dict(ids)
        self._names = {number: name for name, number in self._ids.items()}

    async def replicas(self, topic: str, partition: int) -> tuple[str, ...]:
        """As the first broker that answers tells; empty when none does."""
        asked = describing.DescribeTopicPartitionsRequest(
            topics=(describing.TopicRequest(name=topic),), response_partition_limit=1 << 16
        )
        answer = await self._ask(asked)
        for found in answer.topics[0].partitions if answer is not None else ():
            if found.partition_index == partition:
                return tuple(self._names[replica] for replica in found.replica_nodes if replica in self._names)
        return ()

    async def reassign(self, topic: str, partition: int, replicas: Sequence[str] | None) -> str:
        """AlterPartitionReassignments; None cancels."""
        target = None if replicas is None else tuple(self._ids[replica] for replica in replicas)
        moved = reassigning.ReassignablePartition(partition_index=partition, replicas=target)
        answer = await self._ask(
            reassigning.AlterPartitionReassignmentsRequest(
                timeout=_TIMEOUT, topics=(reassigning.ReassignableTopic(name=topic, partitions=(moved,)),)
            )
        )
        return _outcome(answer and answer.responses[0].partitions[0])

    async def elect_preferred(self, topic: str, partition: int) -> str:
        """ElectLeaders."""
        wanted = electing.TopicPartitions(topic=topic, partitions=(partition,))
        answer = await self._ask(
            electing.ElectLeadersRequest(election_type=_PREFERRED, topic_partitions=(wanted,), timeout=_TIMEOUT)
        )
        return _outcome(answer and answer.replica_election_results[0].partition_result[0])

    async def configure(self, topic: str, name: str, value: str) -> str:
        """IncrementalAlterConfigs."""
        entry = configuring.AlterableConfig(name=name, config_operation=_SET, value=value)
        resource = configuring.AlterConfigsResource(resource_type=_TOPIC, resource_name=topic, configs=(entry,))
        answer = await self._ask(configuring.IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False))
        return _outcome(answer and answer.responses[0])

    async def offsets(self, topic: str, partition: int) -> tuple[int, int] | None:
        """ListOffsets, of the start and of the latest offset."""
        found = []
        for timestamp in (_EARLIEST, _LATEST):
            part = listing.ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
            answer = await self._ask(
                listing.ListOffsetsRequest(
                    replica_id=_CONSUMER,
                    isolation_level=0,
                    topics=(listing.ListOffsetsTopic(name=topic, partitions=(part,)),),
                )
            )
            told = answer and answer.topics[0].partitions[0]
            if not told or told.error_code is not ErrorCode.none:
                return None
            found.append(int(told.offset))
        return found[0], found[1]

    async def delete_records(self, topic: str, partition: int, offset: int) -> str:
        """DeleteRecords, of the partition's leader."""
        part = deleting.DeleteRecordsPartition(partition_index=partition, offset=offset)
        answer = await self._ask(
            deleting.DeleteRecordsRequest(
                topics=(deleting.DeleteRecordsTopic(name=topic, partitions=(part,)),), timeout=_DELETION_TIMEOUT
            )
        )
        return _outcome(answer and answer.topics[0].partitions[0])

    async def _ask(self, request: Any) -> Any:
        """The first answer that is one; None when there is none."""
        for host, port in self._addresses.values():
            try:
                connection = await Connection.open(host, port, "faultline-admin", ANSWER_LIMIT_S)
            except ConnectionLost:
                continue
            try:
                answer = await connection.call(request, ANSWER_LIMIT_S)
            except ConnectionLost:
                continue
            finally:
                connection.close()
            if not _could_not(answer):
                return answer
        return None


def _could_not(answer: Any) -> bool:
    """Whether the broker could not reach the controller, or does not lead the partition."""
    if getattr(answer, "error_code", ErrorCode.none) is ErrorCode.request_timed_out:
        return True
    responses = getattr(answer, "responses", ())
    if any(getattr(part, "error_code", ErrorCode.none) is ErrorCode.request_timed_out for part in responses):
        return True
    if not isinstance(answer, deleted.DeleteRecordsResponse | listed.ListOffsetsResponse):
        return False
    return any(part.error_code is ErrorCode.not_leader_or_follower for part in answer.topics[0].partitions)


def _outcome(result: Any) -> str:
    """Empty when it was carried out, else the name of Kafka's error."""
    if result is None:
        return UNANSWERED
    return "" if result.error_code is ErrorCode.none else str(result.error_code.name).upper()
