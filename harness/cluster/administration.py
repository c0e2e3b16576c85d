"""The nemesis's administrator: asks the brokers, over Kafka's protocol, for what `nemesis/faults/administrators` needs.

A request goes to one broker after another until one gives an answer other than that the controller did not answer it,
or that it is not the leader; the time limit is short, since some may be cut off or frozen. A broker that was asked and
did not answer may pass the request on when it thaws: then the answer of another is in doubt.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple, TypeVar

from kio.schema.alter_configs.v2 import request as replacing
from kio.schema.alter_partition_reassignments.v0 import request as reassigning
from kio.schema.create_partitions.v3 import request as growing
from kio.schema.create_topics.v7 import request as creating
from kio.schema.create_topics.v7 import response as created
from kio.schema.delete_records.v2 import request as deleting
from kio.schema.delete_records.v2 import response as deleted
from kio.schema.delete_topics.v6 import request as removing
from kio.schema.describe_quorum.v2 import request as describing_quorum
from kio.schema.describe_topic_partitions.v0 import request as describing
from kio.schema.elect_leaders.v2 import request as electing
from kio.schema.end_quorum_epoch.v1 import request as ending
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v4 import request as finding
from kio.schema.incremental_alter_configs.v1 import request as configuring
from kio.schema.list_offsets.v7 import request as listing
from kio.schema.list_offsets.v7 import response as listed
from kio.schema.list_partition_reassignments.v0 import request as asking
from kio.schema.offset_commit.v9 import request as committing
from kio.schema.offset_commit.v9 import response as committed
from kio.schema.offset_fetch.v9 import request as resuming
from kio.schema.offset_fetch.v9 import response as resumed
from kio.schema.produce.v11 import request as producing
from kio.schema.produce.v11 import response as produced

from harness.cluster.layout import Layout
from images.wire.batch import build
from images.wire.connection import Connection, ConnectionLost
from images.wire.negotiation import NegotiatedConnection, UnsupportedVersion
from nemesis.ports import (
    DONE,
    UNANSWERED,
    AdminRequest,
    AdminResult,
    ClusterView,
    ConfigOperation,
    PartitionView,
    ToldReassignments,
)
from workloads.clients.native import Client

ANSWER_LIMIT_S = 1.0
_METADATA = "__cluster_metadata"
_DESCRIBE_QUORUM: Final = describing_quorum.DescribeQuorumRequest(
    topics=(
        describing_quorum.TopicData(
            topic_name=_METADATA, partitions=(describing_quorum.PartitionData(partition_index=0),)
        ),
    )
)
_TOPIC = 2
_PREFERRED, _UNCLEAN = 0, 1
"""Election types."""
_OPERATIONS: Final = (ConfigOperation.SET, ConfigOperation.DELETE, ConfigOperation.APPEND, ConfigOperation.SUBTRACT)
"""In the order of Kafka's numbers."""
_EARLIEST, _LATEST, _CONSUMER = -2, -1, -1
_NO_GENERATION, _NO_EPOCH = -1, -1
_GROUP_KEY = 0
_TIMEOUT = timedelta(seconds=ANSWER_LIMIT_S)
_REPLICATION_TIMEOUT = timedelta(seconds=ANSWER_LIMIT_S / 2)
"""Shorter, so that a leader whose followers do not follow still answers in time that the deletion is under way, or that
the records are in its log."""
_LIST_REASSIGNMENTS: Final = asking.ListPartitionReassignmentsRequest(timeout=_TIMEOUT, topics=None)
"""Of all partitions."""
_LED_ELSEWHERE = frozenset({ErrorCode.not_leader_or_follower, ErrorCode.unknown_topic_or_partition})
"""Errors of a broker that does not lead a partition, or has not read of it."""


T = TypeVar("T")


def _loop_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1_000)


def _most_frequent(answers: Iterable[T]) -> T:
    """The one given most often, the first of several such."""
    return Counter(answers).most_common(1)[0][0]


class _Reply(NamedTuple):
    """The result of a request: the answer, or None; whether another broker may still carry it out; and whether it could
    not be asked, since the node's release does not have it."""

    answer: Any
    in_doubt: bool
    unsupported: bool = False


class Administration:
    """Implements `nemesis.ports.ClusterAdmin`; a connection a request."""

    def __init__(
        self,
        layout: Layout,
        now_ns: Callable[[], int],
        *,
        negotiate_versions: bool = False,
        unix_ms: Callable[[], int] = _loop_ms,
    ) -> None:
        """`now_ns` gives the true time since the run began. With `negotiate_versions` for brokers that may be of
        another release: connections begin with ApiVersions. `unix_ms` is the clock of records' timestamps."""
        self.requests: list[AdminRequest] = []
        """The changes of the metadata that were asked for so far."""
        self.dry_runs: list[AdminRequest] = []
        self.told_reassignments: list[ToldReassignments] = []
        """What brokers have answered to `list_reassignments` so far."""
        self._now_ns = now_ns
        self._unix_ms = unix_ms
        self._open = NegotiatedConnection.open if negotiate_versions else Connection.open
        self._addresses = {node.name: (node.host, node.port) for node in layout.brokers}
        self._controllers = {node.name: (node.host, node.port) for node in layout.controllers}
        self._ids = {node.name: node.node_id for node in layout.nodes}
        self._names = {number: name for name, number in self._ids.items()}

    async def replicas(self, topic: str, partition: int) -> tuple[str, ...]:
        """All brokers are asked at once; as in `describe` the latest leader epoch counts, and what most tell of it."""
        asked = await asyncio.gather(*(self._partitions(address, topic) for address in self._addresses.values()))
        told = [part for parts in asked for part in parts or () if part.partition_index == partition]
        latest = max((part.leader_epoch for part in told), default=0)
        placed = [self._known(part.replica_nodes) for part in told if part.leader_epoch == latest]
        return _most_frequent(placed) if placed else ()

    async def describe(self, topic: str) -> ClusterView | None:
        """Metadata and DescribeTopicPartitions of all brokers at once; of each partition the answer with the latest
        leader epoch counts, and of the cluster that of the broker which knows the latest ones.

        A broker that reads no metadata misses changes within a leader epoch: who has left the ISR, who is fenced. Of
        answers that are equal in epochs the one counts that most brokers give."""
        asked = await asyncio.gather(*(self._describe(address, topic) for address in self._addresses.values()))
        answers = sorted(
            (answer for answer in asked if answer is not None), key=lambda answer: -sum(answer[1].values())
        )
        if not answers:
            return None
        given: dict[int, list[tuple[int, PartitionView]]] = {}
        for view, epochs in answers:
            for number, partition in view.partitions.items():
                given.setdefault(number, []).append((epochs[number], partition))
        latest_sum = sum(answers[0][1].values())
        brokers = _most_frequent(view.brokers for view, epochs in answers if sum(epochs.values()) == latest_sum)
        partitions = {}
        for number, views in sorted(given.items()):
            latest = max(epoch for epoch, _ in views)
            partitions[number] = _most_frequent(view for epoch, view in views if epoch == latest)
        return ClusterView(brokers, partitions)

    async def _describe(self, address: tuple[str, int], topic: str) -> tuple[ClusterView, dict[int, int]] | None:
        """The view of one broker, and the leader epoch of each partition in it."""
        metadata = await self._call(address, Client.metadata_request([]))
        parts = await self._partitions(address, topic)
        if metadata.answer is None or parts is None:
            return None
        views = {
            part.partition_index: PartitionView(
                self._names.get(part.leader_id),
                self._known(part.isr_nodes),
                self._known(getattr(part, "eligible_leader_replicas", None) or ()),
            )
            for part in parts
        }
        brokers = self._known(broker.node_id for broker in metadata.answer.brokers)
        return ClusterView(brokers, views), {part.partition_index: part.leader_epoch for part in parts}

    async def _partitions(self, address: tuple[str, int], topic: str) -> Sequence[Any] | None:
        """The partitions of a topic as one broker knows them; None without an answer. A release before 3.8 has no
        DescribeTopicPartitions: it gives its Metadata, in which there is no ELR."""
        reply = await self._call(
            address,
            describing.DescribeTopicPartitionsRequest(
                topics=(describing.TopicRequest(name=topic),), response_partition_limit=1 << 16
            ),
        )
        if reply.unsupported:
            reply = await self._call(address, Client.metadata_request([topic]))
        return None if reply.answer is None else tuple(reply.answer.topics[0].partitions)

    def _known(self, nodes: Iterable[int]) -> tuple[str, ...]:
        return tuple(self._names[node] for node in nodes if node in self._names)

    async def reassign(self, topic: str, partition: int, replicas: Sequence[str] | None) -> AdminResult:
        """AlterPartitionReassignments; None cancels."""
        target = None if replicas is None else tuple(self._ids[replica] for replica in replicas)
        moved = reassigning.ReassignablePartition(partition_index=partition, replicas=target)
        request = reassigning.AlterPartitionReassignmentsRequest(
            timeout=_TIMEOUT, topics=(reassigning.ReassignableTopic(name=topic, partitions=(moved,)),)
        )
        asked = self._asked("cancel" if target is None else "reassign", topic, partition, target and list(target))
        return await self._change(asked, request, lambda answer: answer.responses[0].partitions[0])

    async def list_reassignments(self) -> None:
        """ListPartitionReassignments, of all brokers at once: each passes it on to the controller that it knows."""
        await asyncio.gather(*(self._list_reassignments(*broker) for broker in self._addresses.items()))

    async def _list_reassignments(self, broker: str, address: tuple[str, int]) -> None:
        began_ns = self._now_ns()
        answer = (await self._call(address, _LIST_REASSIGNMENTS)).answer
        if answer is not None and answer.error_code is ErrorCode.none:
            told = [
                [topic.name, part.partition_index, *_reassignment(part)]
                for topic in answer.topics
                for part in topic.partitions
            ]
            self.told_reassignments.append(ToldReassignments(broker, began_ns, self._now_ns(), told))

    async def elect_preferred(self, topic: str, partition: int) -> AdminResult:
        """ElectLeaders."""
        return await self._elect(_PREFERRED, self._asked("elect", topic, partition))

    async def elect_unclean(self, topic: str, partition: int) -> AdminResult:
        """ElectLeaders, of the other type."""
        return await self._elect(_UNCLEAN, self._asked("elect-unclean", topic, partition))

    async def _elect(self, election_type: int, asked: AdminRequest) -> AdminResult:
        wanted = electing.TopicPartitions(topic=asked.topic, partitions=(asked.partition,))
        request = electing.ElectLeadersRequest(
            election_type=election_type, topic_partitions=(wanted,), timeout=_TIMEOUT
        )
        return await self._change(asked, request, lambda answer: answer.replica_election_results[0].partition_result[0])

    async def configure(
        self,
        topic: str,
        name: str,
        value: str,
        operation: ConfigOperation = ConfigOperation.SET,
        *,
        dry_run: bool = False,
    ) -> AdminResult:
        """IncrementalAlterConfigs, or AlterConfigs to replace the whole."""
        asked = self._asked("configure", topic, wanted=[name, value, str(operation)], dry_run=dry_run)
        request = _replacement(topic, name, value, dry_run=dry_run)
        if operation is not ConfigOperation.REPLACE:
            given = None if operation is ConfigOperation.DELETE else value
            number = _OPERATIONS.index(operation)
            entry = configuring.AlterableConfig(name=name, config_operation=number, value=given)
            resource = configuring.AlterConfigsResource(resource_type=_TOPIC, resource_name=topic, configs=(entry,))
            request = configuring.IncrementalAlterConfigsRequest(resources=(resource,), validate_only=dry_run)
        return await self._change(asked, request, lambda answer: answer.responses[0])

    async def offsets(self, topic: str, partition: int) -> tuple[int, int] | None:
        """ListOffsets, of the start and of the latest offset."""
        ends = []
        for timestamp in (_EARLIEST, _LATEST):
            part = listing.ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
            reply = await self._ask(
                listing.ListOffsetsRequest(
                    replica_id=_CONSUMER,
                    isolation_level=0,
                    topics=(listing.ListOffsetsTopic(name=topic, partitions=(part,)),),
                )
            )
            listed_part = reply.answer and reply.answer.topics[0].partitions[0]
            if not listed_part or listed_part.error_code is not ErrorCode.none:
                return None
            ends.append(int(listed_part.offset))
        return ends[0], ends[1]

    async def delete_records(
        self, topic: str, partition: int, offset: int, waits_s: float | None = None
    ) -> AdminResult:
        """DeleteRecords, of the partition's leader."""
        part = deleting.DeleteRecordsPartition(partition_index=partition, offset=offset)
        timeout = _REPLICATION_TIMEOUT if waits_s is None else timedelta(seconds=waits_s)
        reply = await self._ask(
            deleting.DeleteRecordsRequest(
                topics=(deleting.DeleteRecordsTopic(name=topic, partitions=(part,)),), timeout=timeout
            ),
            timeout.total_seconds() + ANSWER_LIMIT_S / 2,
        )
        return _answered(reply, lambda answer: answer.topics[0].partitions[0])

    async def create_topic(self, topic: str, replicas: int | Sequence[str], *, dry_run: bool = False) -> AdminResult:
        """CreateTopics. With an assignment, partitions and replicas are not counted: both numbers are to be -1."""
        if isinstance(replicas, int):
            wanted = creating.CreatableTopic(
                name=topic, num_partitions=1, replication_factor=replicas, assignments=(), configs=()
            )
            asked = self._asked("create", topic, wanted=replicas, dry_run=dry_run)
        else:
            on = creating.CreatableReplicaAssignment(
                partition_index=0, broker_ids=tuple(self._ids[replica] for replica in replicas)
            )
            wanted = creating.CreatableTopic(
                name=topic, num_partitions=-1, replication_factor=-1, assignments=(on,), configs=()
            )
            asked = self._asked("create", topic, wanted=len(replicas), dry_run=dry_run)
        request = creating.CreateTopicsRequest(topics=(wanted,), timeout=_TIMEOUT, validate_only=dry_run)
        return await self._change(asked, request, lambda answer: answer.topics[0])

    async def create_partitions(self, topic: str, count: int, *, dry_run: bool = False) -> AdminResult:
        """CreatePartitions."""
        wanted = growing.CreatePartitionsTopic(name=topic, count=count, assignments=None)
        request = growing.CreatePartitionsRequest(topics=(wanted,), timeout=_TIMEOUT, validate_only=dry_run)
        asked = self._asked("grow", topic, wanted=count, dry_run=dry_run)
        return await self._change(asked, request, lambda answer: answer.results[0])

    async def delete_topic(self, topic: str, *, by_id: bool = False) -> AdminResult:
        """DeleteTopics."""
        known = (await self._ask(Client.metadata_request([topic]))).answer if by_id else None
        topic_id = known and known.topics[0].topic_id
        wanted = removing.DeleteTopicState(name=None if topic_id else topic, topic_id=topic_id)
        request = removing.DeleteTopicsRequest(topics=(wanted,), timeout=_TIMEOUT)
        return await self._change(self._asked("delete", topic), request, lambda answer: answer.responses[0])

    async def append(self, topic: str, partition: int, records: Sequence[bytes], acks: int) -> AdminResult:
        """Produce, of a batch without a producer id."""
        data = build(records, timestamp_ms=self._unix_ms())
        part = producing.PartitionProduceData(index=partition, records=data)
        reply = await self._ask(
            producing.ProduceRequest(
                acks=acks,
                timeout=_REPLICATION_TIMEOUT,
                topic_data=(producing.TopicProduceData(name=topic, partition_data=(part,)),),
            )
        )
        return _answered(reply, lambda answer: answer.responses[0].partition_responses[0])

    async def coordinator(self, group: str) -> str | None:
        """FindCoordinator, of the one group."""
        reply = await self._ask(finding.FindCoordinatorRequest(key_type=_GROUP_KEY, coordinator_keys=(group,)))
        found = reply.answer.coordinators[0] if reply.answer is not None else None
        return None if found is None or found.error_code is not ErrorCode.none else self._names.get(found.node_id)

    async def committed(self, group: str, topic: str, partition: int) -> int | None:
        """OffsetFetch, of the one partition, by one who looks for the coordinator first: without that there is none."""
        await self.coordinator(group)
        wanted = resuming.OffsetFetchRequestTopics(name=topic, partition_indexes=(partition,))
        asked = resuming.OffsetFetchRequestGroup(group_id=group, topics=(wanted,))
        reply = await self._ask(resuming.OffsetFetchRequest(groups=(asked,), require_stable=True))
        answer = reply.answer and reply.answer.groups[0]
        if not answer or answer.error_code is not ErrorCode.none:
            return None
        return int(answer.topics[0].partitions[0].committed_offset)

    async def commit(self, group: str, topic: str, partition: int, offset: int) -> AdminResult:
        """OffsetCommit, as of a consumer that assigns its partitions itself."""
        part = committing.OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_leader_epoch=_NO_EPOCH, committed_metadata=""
        )
        reply = await self._ask(
            committing.OffsetCommitRequest(
                group_id=group,
                generation_id_or_member_epoch=_NO_GENERATION,
                member_id="",
                group_instance_id=None,
                topics=(committing.OffsetCommitRequestTopic(name=topic, partitions=(part,)),),
            )
        )
        return _answered(reply, lambda answer: answer.topics[0].partitions[0])

    async def controller(self) -> str | None:
        """The active controller, as it answers any broker; None when no broker gets its answer."""
        quorum = _quorum_in((await self._ask(_DESCRIBE_QUORUM)).answer)
        return self._names.get(quorum.leader_id) if quorum is not None else None

    async def move_controller(self) -> AdminResult:
        """EndQuorumEpoch, sent to the leader of the quorum. The controllers are asked which it is: what a broker passes
        on to it waits for the changes that were passed on before."""
        for address in self._controllers.values():
            quorum = _quorum_in((await self._call(address, _DESCRIBE_QUORUM)).answer)
            if quorum is not None:
                break
        else:
            return AdminResult(UNANSWERED)
        partition = ending.PartitionData(
            partition_index=0, leader_id=quorum.leader_id, leader_epoch=quorum.leader_epoch, preferred_candidates=()
        )
        topic = ending.TopicData(topic_name=_METADATA, partitions=(partition,))
        request = ending.EndQuorumEpochRequest(cluster_id=None, topics=(topic,), leader_endpoints=())
        reply = await self._call(address, request)
        return _answered(reply, lambda answer: answer.topics[0].partitions[0] if answer.topics else None)

    def _asked(
        self, change: str, topic: str, partition: int = -1, wanted: Any = None, *, dry_run: bool = False
    ) -> AdminRequest:
        """A change of the metadata, or a dry run of one, about to be asked for."""
        asked = AdminRequest(change, topic, partition, wanted, self._now_ns())
        (self.dry_runs if dry_run else self.requests).append(asked)
        return asked

    async def _change(self, asked: AdminRequest, request: Any, result: Callable[[Any], Any]) -> AdminResult:
        """Ask for a change of the metadata, and note what comes of it."""
        reply = await self._ask(request)
        told = _answered(reply, result)
        asked.outcome, asked.in_doubt, asked.ended_ns = told.outcome, told.in_doubt, self._now_ns()
        if told.outcome == DONE and isinstance(reply.answer, created.CreateTopicsResponse):
            asked.created_topic = _created_topic(result(reply.answer))
        return told

    async def _ask(self, request: Any, limit_s: float = ANSWER_LIMIT_S) -> _Reply:
        """The first broker's answer that is one."""
        in_doubt = False
        for address in self._addresses.values():
            reply = await self._call(address, request, limit_s)
            passed_on = reply.answer is not None and _controller_did_not_answer(reply.answer)
            if reply.answer is not None and not passed_on and not _not_leader(reply.answer):
                return _Reply(reply.answer, in_doubt)
            in_doubt |= reply.in_doubt or passed_on
        return _Reply(None, in_doubt)

    async def _call(self, address: tuple[str, int], request: Any, limit_s: float = ANSWER_LIMIT_S) -> _Reply:
        """Ask one node. A node that cannot be reached leaves no doubt."""
        try:
            connection = await self._open(*address, "faultline-admin", ANSWER_LIMIT_S)
        except ConnectionLost:
            return _Reply(None, in_doubt=False)
        try:
            return _Reply(await connection.call(request, limit_s), in_doubt=False)
        except UnsupportedVersion:
            return _Reply(None, in_doubt=False, unsupported=True)
        except ConnectionLost:
            return _Reply(None, in_doubt=True)
        finally:
            connection.close()


def _reassignment(part: Any) -> list[list[int]]:
    return [list(part.replicas), list(part.adding_replicas), list(part.removing_replicas)]


def _created_topic(topic: created.CreatableTopicResult) -> list[Any]:
    config = {entry.name: entry.value for entry in topic.configs or ()}
    return [topic.num_partitions, topic.replication_factor, config]


def _replacement(topic: str, name: str, value: str, *, dry_run: bool) -> Any:
    """AlterConfigs, of this key alone."""
    entry = replacing.AlterableConfig(name=name, value=value)
    resource = replacing.AlterConfigsResource(resource_type=_TOPIC, resource_name=topic, configs=(entry,))
    return replacing.AlterConfigsRequest(resources=(resource,), validate_only=dry_run)


def _quorum_in(answer: Any) -> Any:
    """The metadata partition's part of an answer to DescribeQuorum, when there is a leader; else None."""
    reply = answer.topics[0].partitions[0] if answer is not None and answer.topics else None
    return reply if reply is not None and reply.error_code is ErrorCode.none else None


def _controller_did_not_answer(answer: Any) -> bool:
    """Whether the broker says that it passed the request on, to no avail."""
    listed_parts = (getattr(answer, name, ()) for name in ("responses", "topics", "results"))
    parts = (answer, *(part for each in listed_parts for part in each))
    return any(getattr(part, "error_code", ErrorCode.none) is ErrorCode.request_timed_out for part in parts)


def _not_leader(answer: Any) -> bool:
    """Whether the broker says that it does not lead the partition, or does not coordinate the group."""
    if isinstance(answer, produced.ProduceResponse):
        return any(part.error_code in _LED_ELSEWHERE for part in answer.responses[0].partition_responses)
    if isinstance(answer, resumed.OffsetFetchResponse):
        return answer.groups[0].error_code is ErrorCode.not_coordinator
    if isinstance(answer, committed.OffsetCommitResponse):
        return answer.topics[0].partitions[0].error_code is ErrorCode.not_coordinator
    if not isinstance(answer, deleted.DeleteRecordsResponse | listed.ListOffsetsResponse):
        return False
    return any(part.error_code is ErrorCode.not_leader_or_follower for part in answer.topics[0].partitions)


def _answered(reply: _Reply, result: Callable[[Any], Any]) -> AdminResult:
    """The outcome that the part of the answer picked by `result` reports."""
    part = None if reply.answer is None else result(reply.answer)
    if part is None:
        return AdminResult(UNANSWERED, reply.in_doubt)
    return AdminResult(DONE if part.error_code is ErrorCode.none else str(part.error_code.name).upper(), reply.in_doubt)
