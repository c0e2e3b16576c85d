"""The nemesis's administrator: asks the brokers, over Kafka's protocol, for what `nemesis/admin.py` needs.

A request goes to one broker after another until one answers something else than that the controller did not, or that
it does not lead; each is given little time, since some of them may be cut off or frozen.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from kio.schema.alter_partition_reassignments.v0 import request as reassigning
from kio.schema.delete_records.v2 import request as deleting
from kio.schema.delete_records.v2 import response as deleted
from kio.schema.describe_quorum.v2 import request as describing_quorum
from kio.schema.describe_topic_partitions.v0 import request as describing
from kio.schema.elect_leaders.v2 import request as electing
from kio.schema.end_quorum_epoch.v1 import request as ending
from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v1 import request as configuring
from kio.schema.list_offsets.v7 import request as listing
from kio.schema.list_offsets.v7 import response as listed

from harness.environments.base import Layout
from images.broker.wire import Connection, ConnectionLost

ANSWER_LIMIT_S = 1.0
UNANSWERED = "UNANSWERED"
_METADATA = "__cluster_metadata"
_TOPIC, _SET, _PREFERRED = 2, 0, 0
_EARLIEST, _LATEST, _CONSUMER = -2, -1, -1
_TIMEOUT = timedelta(seconds=ANSWER_LIMIT_S)
_DELETION_TIMEOUT = timedelta(seconds=ANSWER_LIMIT_S / 2)
"""Shorter, so that a leader whose followers do not follow still answers in time that it has begun."""


class Administration:
    """Implements `nemesis.ports.Admin`; a connection a request."""

    def __init__(self, layout: Layout) -> None:
        self._addresses = {node.name: (node.host, node.port) for node in layout.brokers}
        self._controllers = {node.name: (node.host, node.port) for node in layout.controllers}
        self._ids = {node.name: node.node_id for node in layout.nodes}
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

    async def controller(self) -> str | None:
        """The leader of the quorum, as it says itself to any broker; None when nobody tells."""
        told = await self._quorum()
        return self._names.get(told.leader_id) if told is not None else None

    async def move_controller(self) -> str:
        """EndQuorumEpoch, sent to the leader of the quorum."""
        told = await self._quorum()
        name = self._names.get(told.leader_id) if told is not None else None
        if told is None or name not in self._controllers:
            return UNANSWERED
        partition = ending.PartitionData(
            partition_index=0, leader_id=told.leader_id, leader_epoch=told.leader_epoch, preferred_candidates=()
        )
        topic = ending.TopicData(topic_name=_METADATA, partitions=(partition,))
        request = ending.EndQuorumEpochRequest(cluster_id=None, topics=(topic,), leader_endpoints=())
        answer = await _call(self._controllers[name], request)
        return _outcome(answer.topics[0].partitions[0] if answer is not None and answer.topics else None)

    async def _quorum(self) -> Any:
        """DescribeQuorum: the metadata partition's part of the answer, when there is a leader; else None."""
        partition = describing_quorum.PartitionData(partition_index=0)
        topic = describing_quorum.TopicData(topic_name=_METADATA, partitions=(partition,))
        answer = await self._ask(describing_quorum.DescribeQuorumRequest(topics=(topic,)))
        told = answer.topics[0].partitions[0] if answer is not None and answer.topics else None
        return told if told is not None and told.error_code is ErrorCode.none else None

    async def _ask(self, request: Any) -> Any:
        """The first broker's answer that is one; None when there is none."""
        for address in self._addresses.values():
            answer = await _call(address, request)
            if answer is not None and not _could_not(answer):
                return answer
        return None


async def _call(address: tuple[str, int], request: Any) -> Any:
    """The answer to one request; None without one."""
    try:
        connection = await Connection.open(*address, "faultline-admin", ANSWER_LIMIT_S)
    except ConnectionLost:
        return None
    try:
        return await connection.call(request, ANSWER_LIMIT_S)
    except ConnectionLost:
        return None
    finally:
        connection.close()


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
