"""What controllers say to each other, as Kafka's messages, and back. Translation only: nothing is decided here."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from kio.schema.begin_quorum_epoch.v1 import request as begin_request
from kio.schema.begin_quorum_epoch.v1 import response as begin_response
from kio.schema.describe_quorum.v2 import response as describe_response
from kio.schema.end_quorum_epoch.v1 import request as end_request
from kio.schema.end_quorum_epoch.v1 import response as end_response
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v16.request import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from kio.schema.vote.v2 import request as vote_request
from kio.schema.vote.v2 import response as vote_response

from images.broker.config import Voter
from images.broker.metadata.internal_topics import CLUSTER_METADATA_TOPIC, CLUSTER_METADATA_TOPIC_ID
from images.broker.raft.state import Quorum
from images.broker.raft.values import NOBODY, Begin, End, Fetched, LogEnd, Position, VoteAnswer, VoteAsked

_PARTITION = 0


def ask_vote(cluster_id: str, to: int, asked: VoteAsked) -> vote_request.VoteRequest:
    partition = vote_request.PartitionData(
        partition_index=_PARTITION,
        replica_epoch=asked.epoch,
        replica_id=asked.candidate,
        replica_directory_id=None,
        voter_directory_id=None,
        last_offset_epoch=asked.end.epoch,
        last_offset=asked.end.offset,
        pre_vote=asked.pre_vote,
    )
    topic = vote_request.TopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=(partition,))
    return vote_request.VoteRequest(cluster_id=cluster_id, voter_id=to, topics=(topic,))


def vote_asked(body: Any) -> VoteAsked | None:
    """None when it is not about the metadata partition."""
    partition = _the_partition(body)
    if partition is None:
        return None
    end = LogEnd(partition.last_offset_epoch, partition.last_offset)
    return VoteAsked(partition.replica_id, partition.replica_epoch, end, partition.pre_vote)


def voted(answer: VoteAnswer) -> vote_response.VoteResponse:
    partition = vote_response.PartitionData(
        partition_index=_PARTITION,
        error_code=answer.error,
        leader_id=answer.leader,
        leader_epoch=answer.epoch,
        vote_granted=answer.granted,
    )
    topic = vote_response.TopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=(partition,))
    return vote_response.VoteResponse(error_code=ErrorCode.none, topics=(topic,))


def vote_refused(error: ErrorCode) -> vote_response.VoteResponse:
    return vote_response.VoteResponse(error_code=error, topics=())


def vote_answer(body: Any) -> VoteAnswer | None:
    """None when the whole request was refused."""
    partition = _the_partition(body)
    if partition is None:
        return None
    return VoteAnswer(partition.error_code, partition.leader_epoch, partition.leader_id, partition.vote_granted)


def begin(cluster_id: str, leader: int, message: Begin) -> begin_request.BeginQuorumEpochRequest:
    partition = begin_request.PartitionData(
        partition_index=_PARTITION, voter_directory_id=None, leader_id=leader, leader_epoch=message.epoch
    )
    topic = begin_request.TopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=(partition,))
    return begin_request.BeginQuorumEpochRequest(
        cluster_id=cluster_id, voter_id=message.to, topics=(topic,), leader_endpoints=()
    )


def end(cluster_id: str, leader: int, message: End) -> end_request.EndQuorumEpochRequest:
    partition = end_request.PartitionData(
        partition_index=_PARTITION,
        leader_id=leader,
        leader_epoch=message.epoch,
        preferred_candidates=tuple(
            end_request.ReplicaInfo(candidate_id=voter, candidate_directory_id=None) for voter in message.preferred
        ),
    )
    topic = end_request.TopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=(partition,))
    return end_request.EndQuorumEpochRequest(cluster_id=cluster_id, topics=(topic,), leader_endpoints=())


def told_of_leader(body: Any) -> tuple[int, int, tuple[int, ...]] | None:
    """(epoch, leader, preferred candidates) of a BeginQuorumEpoch or EndQuorumEpoch request; None as `vote_asked`."""
    partition = _the_partition(body)
    if partition is None:
        return None
    preferred = tuple(info.candidate_id for info in getattr(partition, "preferred_candidates", ()))
    return partition.leader_epoch, partition.leader_id, preferred


def begun(error: ErrorCode, epoch: int, leader: int) -> begin_response.BeginQuorumEpochResponse:
    partition = begin_response.PartitionData(
        partition_index=_PARTITION, error_code=error, leader_id=leader, leader_epoch=epoch
    )
    topic = begin_response.TopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=(partition,))
    return begin_response.BeginQuorumEpochResponse(error_code=ErrorCode.none, topics=(topic,))


def begin_refused(error: ErrorCode) -> begin_response.BeginQuorumEpochResponse:
    return begin_response.BeginQuorumEpochResponse(error_code=error, topics=())


def ended(error: ErrorCode, epoch: int, leader: int) -> end_response.EndQuorumEpochResponse:
    partition = end_response.PartitionData(
        partition_index=_PARTITION, error_code=error, leader_id=leader, leader_epoch=epoch
    )
    topic = end_response.TopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=(partition,))
    return end_response.EndQuorumEpochResponse(error_code=ErrorCode.none, topics=(topic,))


def end_refused(error: ErrorCode) -> end_response.EndQuorumEpochResponse:
    return end_response.EndQuorumEpochResponse(error_code=error, topics=())


def knows(body: Any) -> tuple[int, int]:
    """(epoch, leader) as whoever answered a BeginQuorumEpoch or EndQuorumEpoch knows them."""
    partition = _the_partition(body)
    return (partition.leader_epoch, partition.leader_id) if partition is not None else (NOBODY, NOBODY)


def fetch(fetched: Fetched, max_wait_s: float, max_bytes: int) -> FetchRequest:
    partition = FetchPartition(
        partition=_PARTITION,
        current_leader_epoch=fetched.epoch,
        fetch_offset=fetched.offset,
        last_fetched_epoch=fetched.last_epoch,
        partition_max_bytes=max_bytes,
    )
    return FetchRequest(
        replica_state=ReplicaState(replica_id=fetched.replica, replica_epoch=-1),
        max_wait=timedelta(seconds=max_wait_s),
        min_bytes=1,
        max_bytes=max_bytes,
        topics=(FetchTopic(topic_id=CLUSTER_METADATA_TOPIC_ID, partitions=(partition,)),),
        forgotten_topics_data=(),
    )


def described(
    state: Quorum, end: int, now_ms: int, voters: Iterable[Voter]
) -> describe_response.DescribeQuorumResponse:
    """The quorum as its leader sees it; NOT_LEADER_OR_FOLLOWER from anybody else."""
    error = ErrorCode.none if state.active else ErrorCode.not_leader_or_follower
    positions = {**state.positions, state.me: Position(end, now_ms, now_ms)}
    partition = describe_response.PartitionData(
        partition_index=_PARTITION,
        error_code=error,
        error_message=None if state.active else "This controller does not lead the quorum.",
        leader_id=state.leader,
        leader_epoch=state.epoch,
        high_watermark=state.high_watermark if state.active else -1,
        current_voters=tuple(_replica(voter, positions[voter], voter == state.me) for voter in state.voters)
        if state.active
        else (),
        observers=(),
    )
    topic = describe_response.TopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=(partition,))
    nodes = tuple(
        describe_response.Node(
            node_id=voter.id,
            listeners=(
                describe_response.Listener(name="PLAINTEXT", host=voter.endpoint.host, port=voter.endpoint.port),
            ),
        )
        for voter in voters
    )
    return describe_response.DescribeQuorumResponse(
        error_code=ErrorCode.none, error_message=None, topics=(topic,), nodes=nodes if state.active else ()
    )


def quorum_refused(error: ErrorCode, message: str) -> describe_response.DescribeQuorumResponse:
    return describe_response.DescribeQuorumResponse(error_code=error, error_message=message, topics=(), nodes=())


def _replica(voter: int, position: Position, leads: bool) -> describe_response.ReplicaState:
    return describe_response.ReplicaState(
        replica_id=voter,
        replica_directory_id=None,
        log_end_offset=position.offset,
        last_fetch_timestamp=-1 if leads else position.fetched_ms,
        last_caught_up_timestamp=position.caught_up_ms,
    )


def is_metadata(body: Any) -> bool:
    """Whether a request of one partition is about the metadata partition."""
    return _the_partition(body) is not None


def _the_partition(body: Any) -> Any:
    """The metadata partition's part of a message that has one; None otherwise."""
    for topic in body.topics:
        for partition in topic.partitions:
            index = partition.partition_index
            if topic.topic_name == CLUSTER_METADATA_TOPIC and index == _PARTITION:
                return partition
    return None
