"""The APIs of consumer groups: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, OffsetCommit, OffsetFetch and three for
admins.

The coordinator of a group is the leader of the partition of `__consumer_offsets` that its name falls to. A broker that
does not lead it says NOT_COORDINATOR; one that leads it and has not loaded it yet, COORDINATOR_LOAD_IN_PROGRESS.

Strings that records of that partition cannot hold are refused here: a group id of more than 32,767 bytes with
INVALID_GROUP_ID, in JoinGroup a protocol type, protocol name or instance id of that length with INVALID_REQUEST.

Offsets are kept until their group or their topic is deleted; `__consumer_offsets` is not compacted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from datetime import timedelta
from itertools import chain
from random import Random
from typing import Any

from google_crc32c import value as crc32c
from kio.schema.delete_groups.v2.request import DeleteGroupsRequest
from kio.schema.delete_groups.v2.response import DeletableGroupResult, DeleteGroupsResponse
from kio.schema.describe_groups.v6.request import DescribeGroupsRequest
from kio.schema.describe_groups.v6.response import DescribeGroupsResponse
from kio.schema.errors import ErrorCode
from kio.schema.heartbeat.v4.request import HeartbeatRequest
from kio.schema.heartbeat.v4.response import HeartbeatResponse
from kio.schema.join_group.v9.request import JoinGroupRequest
from kio.schema.join_group.v9.response import JoinGroupResponse
from kio.schema.leave_group.v5.request import LeaveGroupRequest
from kio.schema.leave_group.v5.response import LeaveGroupResponse, MemberResponse
from kio.schema.list_groups.v5.request import ListGroupsRequest
from kio.schema.list_groups.v5.response import ListedGroup, ListGroupsResponse
from kio.schema.offset_commit.v9.request import OffsetCommitRequest
from kio.schema.offset_commit.v9.response import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from kio.schema.offset_fetch.v9.request import OffsetFetchRequest
from kio.schema.offset_fetch.v9.response import OffsetFetchResponse
from kio.schema.sync_group.v5.request import SyncGroupRequest
from kio.schema.sync_group.v5.response import SyncGroupResponse

from images.broker.config import NodeConfig
from images.broker.frozen_map import FrozenMap
from images.broker.groups.answers import described_group, join_response, offset_fetch_group, sync_response
from images.broker.groups.group import NO_GENERATION, Caller, Group, GroupLimits, JoinAnswer, JoinRequest, SyncAnswer
from images.broker.groups.membership import check_commit, heartbeat, leave
from images.broker.groups.rebalance import join, sync
from images.broker.groups.records import STRING_BYTES_MAX, OffsetAndMetadata, TopicPartition, partition_for, storable
from images.broker.groups.shard import Shard
from images.broker.groups.trace_details import description_detail, join_detail, leave_detail, sender_detail
from images.broker.metadata.image import ClusterImage, TopicImage
from images.broker.metadata.internal_topics import CONSUMER_OFFSETS_TOPIC
from images.broker.ports import NodePorts
from images.broker.replication.partition import ReplicaRole
from images.broker.replication.replica_manager import ReplicaManager
from images.broker.runtime.condition import Condition, wait_for_any
from images.broker.runtime.server import Handler, Request
from images.broker.runtime.spawn import Spawn
from images.trace import TraceEvent
from images.wire.connection import Api
from images.wire.field_values import NO_THROTTLE

_ID_REQUIRED_SINCE = 4
_NOT_FOUND_SINCE = 6
_PROTOCOL_IN_SYNC_SINCE = 5
_SKIPS_ASSIGNMENT_SINCE = 9
_CLASSIC = "classic"
_IDLE_MS = 3_600_000


class GroupCoordinator:
    """The group coordinator of one broker. `image` returns the metadata that this broker has applied."""

    def __init__(
        self,
        config: NodeConfig,
        node_ports: NodePorts,
        replica_manager: ReplicaManager,
        image: Callable[[], ClusterImage],
        clock: Callable[[], float],
        spawn: Spawn,
    ) -> None:
        self._config = config
        self._random: Random = node_ports.random
        self._log = node_ports.log
        self._record_ms = node_ports.now_ms
        self._trace = node_ports.trace
        self._replica_manager = replica_manager
        self._image = image
        self._clock = clock
        self._spawn = spawn
        self._limits = GroupLimits(
            config.number("group.min.session.timeout.ms"),
            config.number("group.max.session.timeout.ms"),
            config.number("group.initial.rebalance.delay.ms"),
            config.rules,
        )
        self._commit_timeout_s = config.seconds("offsets.commit.timeout.ms")
        self._confirmation_wait_s = config.confirmation_wait_s
        self._metadata_max = config.number("offset.metadata.max.bytes")
        self._shards: dict[int, Shard] = {}
        self._topics: FrozenMap[str, TopicImage] = FrozenMap()
        """Those of the metadata applied last."""
        self._changed = Condition()

    def handlers(self) -> dict[Api, Handler]:
        """The handler of each API."""
        return {
            Api.JOIN_GROUP: self.join_group,
            Api.SYNC_GROUP: self.sync_group,
            Api.HEARTBEAT: self.heartbeat,
            Api.LEAVE_GROUP: self.leave_group,
            Api.OFFSET_COMMIT: self.offset_commit,
            Api.OFFSET_FETCH: self.offset_fetch,
            Api.LIST_GROUPS: self.list_groups,
            Api.DESCRIBE_GROUPS: self.describe_groups,
            Api.DELETE_GROUPS: self.delete_groups,
        }

    # --- leadership and time ------------------------------------------------------------------------------------------

    def apply(self) -> None:
        """The replicas have applied new metadata: load the shards of the partitions that this broker leads now, close
        those that it no longer leads, and forget the offsets of deleted topics."""
        deleted = self._deleted_topics()
        led = {
            replica.index: replica
            for replica in self._replica_manager
            if replica.topic == CONSUMER_OFFSETS_TOPIC and replica.state.role is ReplicaRole.LEADER
        }
        for index, shard in list(self._shards.items()):
            # A topic that was created anew begins at leader epoch 0 again, so the epoch alone does not tell.
            if not shard.leads:
                self._shards.pop(index).close()
            else:
                shard.forget_topics(deleted)
        for index, replica in led.items():
            if index not in self._shards:
                shard = self._shards[index] = Shard(
                    replica,
                    self._config.rules,
                    self._commit_timeout_s,
                    self._clock,
                    self._record_ms,
                    self._spawn,
                    self._changed,
                    self._log,
                )
                self._spawn(self._load, shard, self._topics)

    def _deleted_topics(self) -> list[str]:
        """The topics that the metadata applied before has, and this one has no more, or under another id."""
        before, self._topics = self._topics, self._image().topics
        after = self._topics
        return [name for name, topic in before.items() if name not in after or after[name].id != topic.id]

    async def _load(self, shard: Shard, topics: FrozenMap[str, TopicImage]) -> None:
        """Load a shard, and forget the offsets of topics that were gone when this broker began to lead it, with
        `topics`. Earlier coordinators knew only metadata before this one's election: a topic that is created during the
        load is another one than that of their commits, and so is one of the same name with another id."""
        await shard.load()
        if shard.loaded:
            shard.forget_other_topics({name: topic.id for name, topic in topics.items()})

    async def run(self, has_failed: Callable[[], bool]) -> None:
        """Let time pass in all groups, until cancelled, or the node has failed."""
        while not has_failed():
            next_deadline_ms = int(self._clock() * 1000) + _IDLE_MS
            for shard in list(self._shards.values()):
                next_deadline_ms = min(next_deadline_ms, shard.on_tick())
            # A millisecond later than asked for, so that it has passed in whole milliseconds too.
            await wait_for_any((self._changed,), max((next_deadline_ms + 1) / 1000, self._clock() + 0.001))

    # --- finding the shard --------------------------------------------------------------------------------------------

    def _find(self, group: str, api: str) -> tuple[Shard | None, ErrorCode]:
        """The shard that coordinates a group, or the error for a request of `api` about it, which is traced if
        the group has a partition. While the group is being loaded a heartbeat gets no error, since clients take one for
        fatal."""
        if not group or not storable(group):
            return None, ErrorCode.invalid_group_id
        topic = self._image().topics.get(CONSUMER_OFFSETS_TOPIC)
        if topic is None or not topic.partitions:
            return None, ErrorCode.not_coordinator
        partition = partition_for(group, len(topic.partitions))
        shard = self._shards.get(partition)
        if shard is None or not shard.leads:
            error = ErrorCode.not_coordinator
        elif shard.loaded:
            return shard, ErrorCode.none
        else:
            error = ErrorCode.none if api == "heartbeat" else ErrorCode.coordinator_load_in_progress
        detail = {"group": group, "api": api, "error": error.name}
        self._trace(TraceEvent("group_unserved", topic.name, partition, detail=detail, topic_id=str(topic.id)))
        return None, error

    # --- members ------------------------------------------------------------------------------------------------------

    async def join_group(self, request: Request[JoinGroupRequest]) -> JoinGroupResponse:
        """Join, and wait until the group's next generation has all its members."""
        body = request.body
        shard, error = self._find(body.group_id, "join")
        if shard is None:
            return join_response(JoinAnswer(body.member_id, error))
        if not storable(body.protocol_type, body.group_instance_id, *(protocol.name for protocol in body.protocols)):
            return join_response(JoinAnswer(body.member_id, ErrorCode.invalid_request))
        prefix = body.group_instance_id if body.group_instance_id is not None else request.client_id or "consumer"
        join_request = JoinRequest(
            member_id=body.member_id,
            new_id=_new_member_id(prefix, self._random),
            protocol_type=body.protocol_type,
            protocols=tuple((protocol.name, protocol.metadata) for protocol in body.protocols),
            session_timeout_ms=_ms(body.session_timeout),
            rebalance_timeout_ms=_ms(body.rebalance_timeout),
            instance_id=body.group_instance_id,
            client_id=request.client_id or "",
            client_host=request.client_host,
            id_required=request.version >= _ID_REQUIRED_SINCE,
        )
        group = shard.groups.get(body.group_id)
        if group is None and join_request.member_id:
            _trace_join(shard, body.group_id, join_request, JoinAnswer(body.member_id, ErrorCode.unknown_member_id), "")
            return join_response(JoinAnswer(join_request.member_id, ErrorCode.unknown_member_id))
        step = join(group or Group(body.group_id), join_request, shard.now_ms(), self._limits)
        _trace_join(shard, body.group_id, join_request, step.answer, step.waiting_member_id)
        answer = await shard.join_answer(body.group_id, step)
        if answer.skip_assignment and request.version < _SKIPS_ASSIGNMENT_SINCE:
            answer = answer._replace(leader=answer.leader_before, members=())  # who does not lead assigns nothing
        return join_response(answer)

    async def sync_group(self, request: Request[SyncGroupRequest]) -> SyncGroupResponse:
        """Return a member's assignment, once the assignment of the generation is committed."""
        body = request.body
        if request.version >= _PROTOCOL_IN_SYNC_SINCE and (body.protocol_type is None or body.protocol_name is None):
            return sync_response(SyncAnswer(body.member_id, ErrorCode.inconsistent_group_protocol))
        shard, error = self._find(body.group_id, "sync")
        if shard is None:
            return sync_response(SyncAnswer(body.member_id, error))
        group, sender = shard.groups.get(body.group_id), sender_detail(body, body.generation_id)
        if group is None:
            shard.trace_request(body.group_id, "sync", ErrorCode.unknown_member_id, sender)
            return sync_response(SyncAnswer(body.member_id, ErrorCode.unknown_member_id))
        caller = Caller(body.member_id, body.generation_id, body.group_instance_id)
        assignments = {item.member_id: item.assignment for item in body.assignments}
        step = sync(group, caller, (body.protocol_type, body.protocol_name), assignments, shard.now_ms())
        assigned = {member: content.hex() for member, content in assignments.items()}
        sync_error = step.answer.error if step.answer is not None else None
        shard.trace_request(body.group_id, "sync", sync_error, {**sender, "assigned": assigned})
        return sync_response(await shard.sync_answer(body.group_id, step))

    async def heartbeat(self, request: Request[HeartbeatRequest]) -> HeartbeatResponse:
        """A member is alive."""
        body = request.body
        shard, error = self._find(body.group_id, "heartbeat")
        if shard is not None:
            group = shard.groups.get(body.group_id)
            caller = Caller(body.member_id, body.generation_id, body.group_instance_id)
            if group is None:
                error = ErrorCode.unknown_member_id
            else:
                shard.groups[body.group_id], error = heartbeat(group, caller, shard.now_ms())
            shard.trace_request(body.group_id, "heartbeat", error, sender_detail(body, body.generation_id))
        return HeartbeatResponse(throttle_time=NO_THROTTLE, error_code=error)

    async def leave_group(self, request: Request[LeaveGroupRequest]) -> LeaveGroupResponse:
        """Remove members from their group."""
        body = request.body
        shard, error = self._find(body.group_id, "leave")
        if shard is None:
            return LeaveGroupResponse(throttle_time=NO_THROTTLE, error_code=error, members=())
        answers = []
        for member in body.members:
            group, member_id, instance_id = shard.groups.get(body.group_id), member.member_id, member.group_instance_id
            step, member_error = None, ErrorCode.unknown_member_id
            if group is not None:
                step, member_error = leave(group, member_id, instance_id, shard.now_ms())
            shard.trace_request(body.group_id, "leave", member_error, {"member": member_id, "instance": instance_id})
            if step is not None:
                shard.apply(body.group_id, step)
            answers.append(MemberResponse(member_id=member_id, group_instance_id=instance_id, error_code=member_error))
        shard.trace("leave_answered", body.group_id, leave_detail(body.members, answers))
        return LeaveGroupResponse(throttle_time=NO_THROTTLE, error_code=error, members=tuple(answers))

    # --- offsets ------------------------------------------------------------------------------------------------------

    async def offset_commit(self, request: Request[OffsetCommitRequest]) -> OffsetCommitResponse:
        """Commit positions; answered when they are below the high watermark."""
        body = request.body
        shard, error = self._find(body.group_id, "commit")
        refused: dict[TopicPartition, ErrorCode] = {}
        if shard is not None:
            # As in Kafka, every negative generation is none.
            generation = max(NO_GENERATION, body.generation_id_or_member_epoch)
            caller = Caller(body.member_id, generation, body.group_instance_id)
            group, error = check_commit(shard.groups.get(body.group_id), caller, shard.now_ms(), self._limits)
            if group is not None:
                shard.groups[body.group_id] = group
            shard.trace_request(body.group_id, "commit", error, sender_detail(body, generation))
        if shard is not None and error is ErrorCode.none:
            offsets = []
            for key, part in _partitions(body.topics):
                partition = self._image().partition(key.topic, key.partition)
                if partition is None:
                    refused[key] = ErrorCode.unknown_topic_or_partition
                elif len((part.committed_metadata or "").encode()) > self._metadata_max:
                    refused[key] = ErrorCode.offset_metadata_too_large
                else:
                    value = OffsetAndMetadata(
                        part.committed_offset,
                        part.committed_leader_epoch,
                        part.committed_metadata or "",
                        shard.record_ms(),
                        partition.topic_id,
                    )
                    offsets.append((key, value))
            if offsets:
                error = await shard.commit(body.group_id, caller, offsets)
        return OffsetCommitResponse(
            throttle_time=NO_THROTTLE,
            topics=tuple(
                OffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=tuple(
                        OffsetCommitResponsePartition(
                            partition_index=part.partition_index,
                            error_code=refused.get(TopicPartition(topic.name, part.partition_index), error),
                        )
                        for part in topic.partitions
                    ),
                )
                for topic in body.topics
            ),
        )

    async def offset_fetch(self, request: Request[OffsetFetchRequest]) -> OffsetFetchResponse:
        """Committed offsets of the partitions in the request, or of all. The reads of all groups begin before any is
        waited for."""
        until = self._clock() + self._confirmation_wait_s
        groups = []
        with ExitStack() as reads:
            group_reads = []
            for requested in request.body.groups:
                shard, error = self._find(requested.group_id, "fetch")
                read = reads.enter_context(shard.offsets_read()) if shard is not None else None
                group_reads.append((requested, shard, error, read))
            for requested, shard, error, read in group_reads:
                descriptions: dict[TopicPartition, OffsetAndMetadata] = {}
                if shard is not None:
                    error, descriptions = await shard.committed_offsets(requested.group_id, read, until)
                groups.append(offset_fetch_group(requested, error, descriptions))
        return OffsetFetchResponse(throttle_time=NO_THROTTLE, groups=tuple(groups))

    # --- looking at groups, and deleting them -------------------------------------------------------------------------

    async def list_groups(self, request: Request[ListGroupsRequest]) -> ListGroupsResponse:
        """The groups this broker coordinates."""
        states = tuple(state.lower() for state in request.body.states_filter)
        types = tuple(kind.lower() for kind in request.body.types_filter)
        of_classic = not types or _CLASSIC in types
        loaded = [shard for shard in self._shards.values() if shard.loaded]
        listed = [
            [
                _listed(group)
                for group in shard.groups.values()
                if of_classic and (not states or group.state.lower() in states)
            ]
            for shard in loaded
        ]
        loading = any(not shard.loaded for shard in self._shards.values())
        error = ErrorCode.coordinator_load_in_progress if loading else ErrorCode.none
        answer = ListGroupsResponse(
            throttle_time=NO_THROTTLE, error_code=error, groups=tuple(chain.from_iterable(listed))
        )
        if of_classic:
            for shard, of_shard in zip(loaded, listed, strict=True):
                told = {group.group_id: str(group.group_state) for group in of_shard}
                detail = {"asked": list(states), "told": told, "error": answer.error_code.name}
                shard.trace("groups_listed", "", detail)
        return answer

    async def describe_groups(self, request: Request[DescribeGroupsRequest]) -> DescribeGroupsResponse:
        """Members, state and protocol of groups."""
        descriptions = []
        for name in request.body.groups:
            shard, error = self._find(name, "describe")
            group = shard.groups.get(name) if shard is not None else None
            message = None
            if shard is not None and group is None and request.version >= _NOT_FOUND_SINCE:
                error, message = ErrorCode.group_id_not_found, f"group {name} not found"
            description = described_group(name, group, error, message)
            if shard is not None:
                shard.trace_request(name, "describe", error, description_detail(description))
            descriptions.append(description)
        return DescribeGroupsResponse(throttle_time=NO_THROTTLE, groups=tuple(descriptions))

    async def delete_groups(self, request: Request[DeleteGroupsRequest]) -> DeleteGroupsResponse:
        """Delete groups that have no members, with their offsets."""
        results = []
        for name in dict.fromkeys(request.body.groups_names):
            shard, error = self._find(name, "delete")
            if shard is not None:
                error = await shard.delete(name)
            results.append(DeletableGroupResult(group_id=name, error_code=error))
        return DeleteGroupsResponse(throttle_time=NO_THROTTLE, results=tuple(results))


def _trace_join(
    shard: Shard, group: str, request: JoinRequest, answer: JoinAnswer | SyncAnswer | None, waiting: str
) -> None:
    facts: dict[str, object] = {
        "member": request.member_id,
        "instance": request.instance_id,
        "as": waiting or (answer.member_id if answer is not None else ""),
        "session_ms": request.session_timeout_ms,
        "rebalance_ms": request.rebalance_timeout_ms,
        "protocols": [protocol for protocol, _ in request.protocols],
        "subscriptions": [crc32c(subscription) for _, subscription in request.protocols],
    }
    if isinstance(answer, JoinAnswer) and answer.error is ErrorCode.none:
        facts["told"] = join_detail(answer)
    shard.trace_request(group, "join", answer.error if answer is not None else None, facts)


def _listed(group: Group) -> ListedGroup:
    return ListedGroup(
        group_id=group.id, protocol_type=group.protocol_type, group_state=group.state, group_type=_CLASSIC
    )


def _new_member_id(prefix: str, random: Random) -> str:
    """A member id that was never used before; a long prefix is cut, so that records can hold the id."""
    suffix = f"-{random.getrandbits(128):032x}"
    return prefix.encode()[: STRING_BYTES_MAX - len(suffix)].decode(errors="ignore") + suffix


def _ms(duration: timedelta) -> int:
    return round(duration.total_seconds() * 1000)


def _partitions(topics: Iterable[Any]) -> Iterable[tuple[TopicPartition, Any]]:
    return ((TopicPartition(topic.name, part.partition_index), part) for topic in topics for part in topic.partitions)
