"""Translation between Raft's values and Kafka's messages; nothing is decided here."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from kio.schema.begin_quorum_epoch.v1 import request as begin_schema
from kio.schema.begin_quorum_epoch.v1 import response as begin_response_schema
from kio.schema.describe_quorum.v2 import response as describe_schema
from kio.schema.end_quorum_epoch.v1 import request as end_schema
from kio.schema.end_quorum_epoch.v1 import response as end_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v16.request import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from kio.schema.vote.v2 import request as vote_schema
from kio.schema.vote.v2 import response as vote_response_schema

from images.broker.config import Voter
from images.broker.metadata.internal_topics import CLUSTER_METADATA_TOPIC, CLUSTER_METADATA_TOPIC_ID
from images.broker.raft.state import QuorumState
from images.broker.raft.values import (
    NO_NODE,
    EpochAndOffset,
    MetadataFetch,
    SendBeginQuorumEpoch,
    SendEndQuorumEpoch,
    VoteRequest,
    VoteResponse,
    VoterProgress,
)

_PARTITION = 0


def vote_request(cluster_id: str, to: int, request: VoteRequest) -> vote_schema.VoteRequest:
    partition = vote_schema.PartitionData(
        partition_index=_PARTITION,
        replica_epoch=request.epoch,
        replica_id=request.candidate,
        replica_directory_id=None,
        voter_directory_id=None,
        last_offset_epoch=request.end.epoch,
        last_offset=request.end.offset,
        pre_vote=request.pre_vote,
    )
    topic = vote_schema.TopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=(partition,))
    return vote_schema.VoteRequest(cluster_id=cluster_id, voter_id=to, topics=(topic,))


def parse_vote_request(body: vote_schema.VoteRequest) -> VoteRequest | None:
    """None if the request is not for the metadata partition."""
    partition = _metadata_partition(body)
    if partition is None:
        return None
    end = EpochAndOffset(partition.last_offset_epoch, partition.last_offset)
    return VoteRequest(partition.replica_id, partition.replica_epoch, end, partition.pre_vote)


def vote_response(answer: VoteResponse) -> vote_response_schema.VoteResponse:
    partition = vote_response_schema.PartitionData(
        partition_index=_PARTITION,
        error_code=answer.error,
        leader_id=answer.leader,
        leader_epoch=answer.epoch,
        vote_granted=answer.granted,
    )
    topic = vote_response_schema.TopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=(partition,))
    return vote_response_schema.VoteResponse(error_code=ErrorCode.none, topics=(topic,))


def vote_error(error: ErrorCode) -> vote_response_schema.VoteResponse:
    return vote_response_schema.VoteResponse(error_code=error, topics=())


def parse_vote_response(body: Any) -> VoteResponse | None:
    """None if the whole request was refused."""
    partition = _metadata_partition(body)
    if partition is None:
        return None
    return VoteResponse(partition.error_code, partition.leader_epoch, partition.leader_id, partition.vote_granted)


def begin_quorum_epoch_request(
    cluster_id: str, leader: int, message: SendBeginQuorumEpoch
) -> begin_schema.BeginQuorumEpochRequest:
    partition = begin_schema.PartitionData(
        partition_index=_PARTITION, voter_directory_id=None, leader_id=leader, leader_epoch=message.epoch
    )
    topic = begin_schema.TopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=(partition,))
    return begin_schema.BeginQuorumEpochRequest(
        cluster_id=cluster_id, voter_id=message.to, topics=(topic,), leader_endpoints=()
    )


def end_quorum_epoch_request(
    cluster_id: str, leader: int, message: SendEndQuorumEpoch
) -> end_schema.EndQuorumEpochRequest:
    partition = end_schema.PartitionData(
        partition_index=_PARTITION,
        leader_id=leader,
        leader_epoch=message.epoch,
        preferred_candidates=tuple(
            end_schema.ReplicaInfo(candidate_id=voter, candidate_directory_id=None) for voter in message.preferred
        ),
    )
    topic = end_schema.TopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=(partition,))
    return end_schema.EndQuorumEpochRequest(cluster_id=cluster_id, topics=(topic,), leader_endpoints=())


def parse_leader_notice(body: Any) -> tuple[int, int, tuple[int, ...]] | None:
    """(epoch, leader, preferred candidates) of a BeginQuorumEpoch or EndQuorumEpoch request; None if it is not for the
    metadata partition."""
    partition = _metadata_partition(body)
    if partition is None:
        return None
    preferred = tuple(info.candidate_id for info in getattr(partition, "preferred_candidates", ()))
    return partition.leader_epoch, partition.leader_id, preferred


def begin_quorum_epoch_response(
    error: ErrorCode, epoch: int, leader: int
) -> begin_response_schema.BeginQuorumEpochResponse:
    partition = begin_response_schema.PartitionData(
        partition_index=_PARTITION, error_code=error, leader_id=leader, leader_epoch=epoch
    )
    topic = begin_response_schema.TopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=(partition,))
    return begin_response_schema.BeginQuorumEpochResponse(error_code=ErrorCode.none, topics=(topic,))


def begin_quorum_epoch_error(error: ErrorCode) -> begin_response_schema.BeginQuorumEpochResponse:
    return begin_response_schema.BeginQuorumEpochResponse(error_code=error, topics=())


def end_quorum_epoch_response(error: ErrorCode, epoch: int, leader: int) -> end_response_schema.EndQuorumEpochResponse:
    partition = end_response_schema.PartitionData(
        partition_index=_PARTITION, error_code=error, leader_id=leader, leader_epoch=epoch
    )
    topic = end_response_schema.TopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=(partition,))
    return end_response_schema.EndQuorumEpochResponse(error_code=ErrorCode.none, topics=(topic,))


def end_quorum_epoch_error(error: ErrorCode) -> end_response_schema.EndQuorumEpochResponse:
    return end_response_schema.EndQuorumEpochResponse(error_code=error, topics=())


def parse_leader_and_epoch(body: Any) -> tuple[int, int]:
    """(epoch, leader) in a response to BeginQuorumEpoch or EndQuorumEpoch."""
    partition = _metadata_partition(body)
    return (partition.leader_epoch, partition.leader_id) if partition is not None else (NO_NODE, NO_NODE)


def fetch_request(fetch: MetadataFetch, max_wait_s: float, max_bytes: int) -> FetchRequest:
    partition = FetchPartition(
        partition=_PARTITION,
        current_leader_epoch=fetch.epoch,
        fetch_offset=fetch.offset,
        last_fetched_epoch=fetch.last_epoch,
        partition_max_bytes=max_bytes,
    )
    return FetchRequest(
        replica_state=ReplicaState(replica_id=fetch.replica, replica_epoch=-1),
        max_wait=timedelta(seconds=max_wait_s),
        min_bytes=1,
        max_bytes=max_bytes,
        topics=(FetchTopic(topic_id=CLUSTER_METADATA_TOPIC_ID, partitions=(partition,)),),
        forgotten_topics_data=(),
    )


def describe_quorum_response(
    state: QuorumState, end_offset: int, now_ms: int, unix_offset_ms: int, voters: Iterable[Voter]
) -> describe_schema.DescribeQuorumResponse:
    """The quorum as its leader sees it; NOT_LEADER_OR_FOLLOWER from any other controller.

    `unix_offset_ms` is what makes a time of the state, as `now_ms`, Unix time.
    """
    error = ErrorCode.none if state.active else ErrorCode.not_leader_or_follower
    progress = {**state.progress, state.node_id: VoterProgress(end_offset, now_ms, now_ms)}
    partition = describe_schema.PartitionData(
        partition_index=_PARTITION,
        error_code=error,
        error_message=None if state.active else "This controller does not lead the quorum.",
        leader_id=state.leader,
        leader_epoch=state.epoch,
        high_watermark=state.high_watermark if state.active else -1,
        current_voters=tuple(
            _replica(voter, progress[voter], voter == state.node_id, unix_offset_ms) for voter in state.voters
        )
        if state.active
        else (),
        observers=(),
    )
    topic = describe_schema.TopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=(partition,))
    nodes = tuple(
        describe_schema.Node(
            node_id=voter.id,
            listeners=(describe_schema.Listener(name="PLAINTEXT", host=voter.endpoint.host, port=voter.endpoint.port),),
        )
        for voter in voters
    )
    return describe_schema.DescribeQuorumResponse(
        error_code=ErrorCode.none, error_message=None, topics=(topic,), nodes=nodes if state.active else ()
    )


def describe_quorum_error(error: ErrorCode, message: str) -> describe_schema.DescribeQuorumResponse:
    return describe_schema.DescribeQuorumResponse(error_code=error, error_message=message, topics=(), nodes=())


def describe_quorum_unknown(body: Any) -> describe_schema.DescribeQuorumResponse:
    """UNKNOWN_TOPIC_OR_PARTITION for every partition of a request that is for another partition than the metadata's."""
    return describe_schema.DescribeQuorumResponse(
        error_code=ErrorCode.none,
        error_message=None,
        topics=tuple(
            describe_schema.TopicData(
                topic_name=topic.topic_name,
                partitions=tuple(
                    describe_schema.PartitionData(
                        partition_index=partition.partition_index,
                        error_code=ErrorCode.unknown_topic_or_partition,
                        error_message=None,
                        leader_id=NO_NODE,
                        leader_epoch=NO_NODE,
                        high_watermark=-1,
                        current_voters=(),
                        observers=(),
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in body.topics
        ),
        nodes=(),
    )


def _replica(voter: int, position: VoterProgress, is_leader: bool, unix_offset_ms: int) -> describe_schema.ReplicaState:
    return describe_schema.ReplicaState(
        replica_id=voter,
        replica_directory_id=None,
        log_end_offset=position.offset,
        last_fetch_timestamp=-1 if is_leader else _unix_ms(position.fetched_ms, unix_offset_ms),
        last_caught_up_timestamp=_unix_ms(position.caught_up_ms, unix_offset_ms),
    )


def _unix_ms(time_ms: int, unix_offset_ms: int) -> int:
    """Unix time of a time of the state; -1, not known, stays."""
    return time_ms if time_ms < 0 else time_ms + unix_offset_ms


def concerns_metadata(body: Any) -> bool:
    """Whether a request is for the metadata partition."""
    return _metadata_partition(body) is not None


def concerns_metadata_alone(body: Any) -> bool:
    """Whether a request is for the metadata partition and no other."""
    return concerns_metadata(body) and sum(len(topic.partitions) for topic in body.topics) == 1 == len(body.topics)


def _metadata_partition(body: Any) -> Any:
    """The entry of the metadata partition in a message; None if there is none."""
    for topic in body.topics:
        for partition in topic.partitions:
            index = partition.partition_index
            if topic.topic_name == CLUSTER_METADATA_TOPIC and index == _PARTITION:
                return partition
    return None
