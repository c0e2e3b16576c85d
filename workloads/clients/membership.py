"""A member of a consumer group: joining, staying in, committing (KIP-320: offsets with leader epochs).

`join` returns once the group has given this member its partitions; from then on heartbeats go out until `rebalancing`
says that another `join` is due. The caller decides what to read in between, and commits.

The outcome of a commit claims no more than is known: `ok` (it is in the coordinator's log for good), `fail` (it
certainly is not), or `info` (it may be, or may yet come to be: a commit that is still on its way can overtake a later
one).

A *static* member (KIP-345) has an instance id, `group.instance.id`, and as Kafka's consumer does, it ends without a
LeaveGroup: the next member with this instance id takes its place, and with it its partitions, without a rebalance if
that comes within the session. It joins under a member id of its own, and FENCED_INSTANCE_ID ends the one before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal

from kio.schema.delete_groups.v2.request import DeleteGroupsRequest
from kio.schema.describe_groups.v6.request import DescribeGroupsRequest
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v4.request import FindCoordinatorRequest
from kio.schema.heartbeat.v4.request import HeartbeatRequest
from kio.schema.join_group.v9.request import JoinGroupRequest, JoinGroupRequestProtocol
from kio.schema.leave_group.v5.request import LeaveGroupRequest, MemberIdentity
from kio.schema.list_groups.v5.request import ListGroupsRequest
from kio.schema.offset_commit.v9.request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kio.schema.offset_fetch.v9.request import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from kio.schema.sync_group.v5.request import SyncGroupRequest, SyncGroupRequestAssignment

from images.wire.connection import ConnectionLost
from workloads.clients.assignments import (
    RANGE,
    by_range,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from workloads.clients.connections import Backoff, Client, cancel_all, connection_error_name, error_name
from workloads.clients.positions import CommittedPosition
from workloads.history import TopicPartition

_CONSUMER: Final = "consumer"
_COORDINATOR, _HEARTBEAT = "coordinator", "heartbeat"
_FIND_AGAIN: Final = frozenset((ErrorCode.not_coordinator, ErrorCode.coordinator_not_available))
_NOT_COMMITTED: Final = frozenset(
    (
        ErrorCode.illegal_generation,
        ErrorCode.unknown_member_id,
        ErrorCode.rebalance_in_progress,
        ErrorCode.fenced_instance_id,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.offset_metadata_too_large,
    )
)
"""Errors of a commit that certainly was not written."""
_OF_ITS_GENERATION: Final = frozenset(
    (ErrorCode.illegal_generation, ErrorCode.unknown_member_id, ErrorCode.rebalance_in_progress)
)
"""Errors that a late commit gets for what it says of its member, which may have joined again since."""
_NOT_DELETED: Final = frozenset(
    (ErrorCode.group_id_not_found, ErrorCode.non_empty_group, ErrorCode.coordinator_load_in_progress)
)
"""Errors of a deletion that certainly was not carried out."""

MemberIds = tuple[str, str | None]
"""The member id and the instance id of a member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """How a member behaves; Kafka's names and defaults, in seconds."""

    session_timeout_s: float = 45.0
    rebalance_timeout_s: float = 300.0
    heartbeat_interval_s: float = 3.0


@dataclass(frozen=True, slots=True)
class Assignment:
    """The partitions of a member in one generation of its group."""

    generation: int
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class ChangeResult:
    """The outcome of a commit, or of a deletion."""

    outcome: Literal["ok", "fail", "info"]
    error: str | None = None


class FencedInstanceId(Exception):
    """Another member has taken the instance id of this one, whose life is over."""


class GroupMember:
    """One member of `group`, which wants to read `topics`; a static one with an instance id. Whatever the group chooses
    of `protocols`, which are in the order of preference, its leader assigns by range."""

    def __init__(
        self,
        client: Client,
        group: str,
        topics: tuple[str, ...],
        settings: GroupSettings = GroupSettings(),
        instance_id: str | None = None,
        protocols: Sequence[str] = (RANGE,),
    ) -> None:
        self.client = client
        self.rebalancing = asyncio.Event()
        """Set when the group wants this member to join again, does not know it any more, or has fenced it."""
        self.silent = False
        """Sends no heartbeats while this is set: as a process that is stalled."""
        self.fenced = False
        """Whether another member has its instance id: it neither joins nor commits any more."""
        self.group = group
        self.instance_id = instance_id
        self._topics = topics
        self._protocols = tuple(protocols)
        self._settings = settings
        self._user_data: bytes | None = None
        self._id = ""
        self._generation = -1
        self._coordinator: tuple[str, int] | None = None
        self._heartbeats: asyncio.Task[None] | None = None
        self._backoff = Backoff(client.timeouts, client.random)
        for topic in topics:
            client.track_topic(topic)

    async def join(self, on_joined: Callable[[int], Awaitable[None]] | None = None) -> Assignment:
        """Join, or join again, trying until the group has assigned partitions to this member. Between JoinGroup and
        SyncGroup `on_joined` is awaited with the number of the generation. Raises FencedInstanceId."""
        await self._stop_heartbeats()
        self.rebalancing.clear()
        while not self.fenced:
            assignment = await self._try_to_join(on_joined)
            if assignment is not None:
                self._backoff.reset()
                self._heartbeats = asyncio.create_task(self._heartbeat())
                return assignment
            await asyncio.sleep(self._backoff.next_s())
        raise FencedInstanceId(self.instance_id)

    async def committed(
        self, partitions: tuple[TopicPartition, ...], *, all_of_group: bool = False, beside: Collection[str] = ()
    ) -> dict[TopicPartition, CommittedPosition | None]:
        """The committed offsets of the group, None where there is none; retried until they are answered, all without an
        error. An answer that leaves the group or a partition out says that nothing is committed there. Best given up on
        `rebalancing`. With `all_of_group` the request names no partitions, which asks for all. The first one asks for
        the groups `beside`, too, in the other way, for all or for the first partition; nothing is learnt from that."""
        own = OffsetFetchRequestGroup(group_id=self.group, topics=None if all_of_group else _by_topic(partitions))
        others = _by_topic(partitions[:1]) if all_of_group else None
        groups = [own, *(OffsetFetchRequestGroup(group_id=name, topics=others) for name in beside)]
        groups.sort(key=lambda group: group.group_id)
        while True:
            response = await self._ask(_COORDINATOR, OffsetFetchRequest(groups=tuple(groups), require_stable=True))
            groups = [own]
            answers = [] if response is None else [one for one in response.groups if one.group_id == self.group]
            found = {
                (topic.name, part.partition_index): part
                for one in answers
                for topic in one.topics
                for part in topic.partitions
            }
            told = {key: found.get(key) for key in partitions}
            errors = [one.error_code for one in (*answers, *told.values()) if one is not None]
            if response is not None and all(self._accepted(error) for error in errors):
                return {key: _committed(answer) for key, answer in told.items()}
            await asyncio.sleep(self._backoff.next_s())

    async def commit(
        self,
        offsets: Mapping[TopicPartition, CommittedPosition],
        late_generation: int | None = None,
        beside: Collection[str] = (),
    ) -> ChangeResult:
        """Commit positions, asked once. Without having joined, as a consumer that assigns its partitions itself; a
        member that the group has forgotten would pass for one, and asks nobody, as in Kafka; nor does a fenced one.
        A commit of `late_generation` comes late: the member does not join again because it is refused. The request
        names a partition of each topic `beside`, too; nothing is learnt of these. With a partition that the answer
        leaves out the outcome is unknown."""
        if self.fenced:
            return ChangeResult("fail", error_name(ErrorCode.fenced_instance_id))
        if self._generation < 0 and self.rebalancing.is_set():
            return ChangeResult("fail", error_name(ErrorCode.unknown_member_id))
        by_topic: dict[str, list[OffsetCommitRequestPartition]] = {}
        for (topic, partition), position in offsets.items():
            by_topic.setdefault(topic, []).append(
                OffsetCommitRequestPartition(
                    partition_index=partition,
                    committed_offset=position.offset,
                    committed_leader_epoch=position.epoch,
                    committed_metadata=position.metadata,
                )
            )
        own = tuple(OffsetCommitRequestTopic(name=name, partitions=tuple(parts)) for name, parts in by_topic.items())
        first = OffsetCommitRequestPartition(partition_index=0, committed_offset=0, committed_metadata="")
        others = tuple(OffsetCommitRequestTopic(name=name, partitions=(first,)) for name in beside)
        request = OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=self._generation if late_generation is None else late_generation,
            member_id=self._id,
            group_instance_id=self.instance_id,
            topics=(*others, *own),
        )
        try:
            response = await self._call(_COORDINATOR, request, self.client.timeouts.request_timeout_s)
        except ConnectionLost as lost:
            return self._unanswered(lost)
        parts = {(topic.name, part.partition_index): part for topic in response.topics for part in topic.partitions}
        errors = [parts[key].error_code for key in offsets if key in parts]
        result = self._changed(errors, _NOT_COMMITTED, _OF_ITS_GENERATION if late_generation is not None else ())
        return result if len(errors) == len(offsets) else ChangeResult("info", result.error or "unanswered")

    async def delete_group(self, beside: Sequence[str] = ()) -> ChangeResult:
        """Delete the group, with its offsets, asked once. It must have no members. The request names the groups
        `beside` before it; nothing is learnt of these."""
        request = DeleteGroupsRequest(groups_names=(*beside, self.group))
        try:
            response = await self._call(_COORDINATOR, request, self.client.timeouts.request_timeout_s)
        except ConnectionLost as lost:
            return self._unanswered(lost)
        own = [result.error_code for result in response.results if result.group_id == self.group]
        return self._changed(own, _NOT_DELETED)

    async def leave(self, *, removed: bool = False) -> None:
        """Tell the group, once, that this member is gone. A static member may come back, and does not say so, unless it
        is `removed`: an administrator names its instance."""
        await self._stop_heartbeats()
        if self._id and (removed or self.instance_id is None):
            await self._leave(("" if removed else self._id, self.instance_id))
            self._id = ""

    async def abandon(self, *, leave: bool) -> None:
        """Ask for a member id, once, as a process that ends before it joins with that; with `leave` it says so. A
        static member gets none, nor one that has joined."""
        if self._id or self.instance_id is not None:
            return
        answer = await self._ask(_COORDINATOR, self._join_request())
        if answer is not None and answer.error_code is ErrorCode.member_id_required and leave:
            for _ in range(2):  # as one whose first answer was lost
                await self._leave((answer.member_id, None))

    async def ask_late(self, generation: int) -> None:
        """Send what was on its way when the group began another generation: a Heartbeat and a SyncGroup. Nothing is
        learnt from the answers."""
        await self._ask(_COORDINATOR, self._heartbeat_request(generation))
        late = SyncGroupRequest(
            group_id=self.group,
            generation_id=generation,
            member_id=self._id,
            group_instance_id=self.instance_id,
            protocol_type=_CONSUMER,
            protocol_name=self._protocols[0],
            assignments=(),
        )
        await self._ask(_COORDINATOR, late)

    async def dawdle(self, duration_s: float) -> None:
        """Send heartbeats and nothing else, as a member that is slow to join or to send SyncGroup."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + duration_s
        while loop.time() < until_s:
            await asyncio.sleep(self._settings.heartbeat_interval_s)
            await self._ask(_HEARTBEAT, self._heartbeat_request(self._generation))

    def change_preference(self) -> None:
        """Prefer the protocol from the next join on that came last until now."""
        self._protocols = self._protocols[::-1]

    def change_subscription(self) -> None:
        """Tell the leader something else from the next join on, as members do that say what they own."""
        self._user_data = (self._user_data or b"") + b"+"

    async def describe(self, beside: Sequence[str] = ()) -> list[MemberIds]:
        """The members of the group, as an administrator sees them who looks at it, and at the groups `beside`; none
        when that was not answered."""
        names = sorted((self.group, *beside))
        request = DescribeGroupsRequest(groups=tuple(names), include_authorized_operations=False)
        answer = await self._ask(_COORDINATOR, request)
        groups = [] if answer is None else [group for group in answer.groups if group.group_id == self.group]
        return [(member.member_id, member.group_instance_id) for group in groups for member in group.members]

    async def list_groups(self, states: tuple[str, ...]) -> list[str]:
        """The names of all groups of the coordinator in these states, in any without one; none when that was not
        answered."""
        answer = await self._ask(_COORDINATOR, ListGroupsRequest(states_filter=states, types_filter=()))
        return [] if answer is None else [group.group_id for group in answer.groups]

    async def remove(self, members: Iterable[MemberIds]) -> None:
        """Remove members of the group, as an administrator, in one request: static ones by their instance."""
        await self._leave(
            *(("" if instance_id is not None else member_id, instance_id) for member_id, instance_id in members)
        )

    async def _leave(self, *members: MemberIds) -> None:
        identities = tuple(
            MemberIdentity(member_id=member_id, group_instance_id=instance_id, reason=None)
            for member_id, instance_id in members
        )
        await self._ask(_COORDINATOR, LeaveGroupRequest(group_id=self.group, members=identities))

    async def close(self) -> None:
        """Stop without a word. May be called twice."""
        await self._stop_heartbeats()

    # --- joining ------------------------------------------------------------------------------------------------------

    async def _try_to_join(self, on_joined: Callable[[int], Awaitable[None]] | None) -> Assignment | None:
        settings = self._settings
        request = self._join_request()
        joined = await self._ask(_COORDINATOR, request, settings.session_timeout_s + settings.rebalance_timeout_s)
        if joined is None:
            return None
        if joined.error_code is ErrorCode.member_id_required:
            self._id = joined.member_id
            return await self._try_to_join(on_joined)
        if not self._accepted(joined.error_code):
            return None
        self._id, self._generation = joined.member_id, joined.generation_id
        if on_joined is not None:
            await on_joined(joined.generation_id)
        assignments: tuple[SyncGroupRequestAssignment, ...] = ()
        if joined.leader == joined.member_id and not joined.skip_assignment:
            assigned = await self._assign({member.member_id: member.metadata for member in joined.members})
            if assigned is None:
                return None
            assignments = assigned
        sync = SyncGroupRequest(
            group_id=self.group,
            generation_id=self._generation,
            member_id=self._id,
            group_instance_id=self.instance_id,
            protocol_type=_CONSUMER,
            protocol_name=joined.protocol_name,
            assignments=assignments,
        )
        synced = await self._ask(_COORDINATOR, sync, settings.rebalance_timeout_s)
        if synced is None or not self._accepted(synced.error_code):
            return None
        self.rebalancing.clear()
        return Assignment(self._generation, decode_assignment(synced.assignment))

    def _join_request(self) -> JoinGroupRequest:
        subscription = encode_subscription(self._topics, self._user_data)
        return JoinGroupRequest(
            group_id=self.group,
            session_timeout=timedelta(seconds=self._settings.session_timeout_s),
            rebalance_timeout=timedelta(seconds=self._settings.rebalance_timeout_s),
            member_id=self._id,
            group_instance_id=self.instance_id,
            protocol_type=_CONSUMER,
            protocols=tuple(JoinGroupRequestProtocol(name=name, metadata=subscription) for name in self._protocols),
            reason=None,
        )

    async def _assign(self, members: Mapping[str, bytes]) -> tuple[SyncGroupRequestAssignment, ...] | None:
        """The assignment of every member, made by the leader; None while metadata lacks the number of partitions."""
        subscriptions = {member: decode_subscription(content) for member, content in members.items()}
        topics = sorted({topic for wanted in subscriptions.values() for topic in wanted})
        for topic in topics:
            self.client.track_topic(topic)
        if not await self.client.refresh():
            return None
        counts = {topic: len(self.client.metadata.leaders(topic)) for topic in topics}
        return tuple(
            SyncGroupRequestAssignment(member_id=member, assignment=encode_assignment(owned))
            for member, owned in by_range(subscriptions, counts).items()
        )

    # --- staying in ---------------------------------------------------------------------------------------------------

    async def _heartbeat(self) -> None:
        request = self._heartbeat_request(self._generation)
        while not self.rebalancing.is_set():
            await asyncio.sleep(self._settings.heartbeat_interval_s)
            if not self.silent:
                response = await self._ask(_HEARTBEAT, request)
                if response is not None:
                    self._accepted(response.error_code)

    def _heartbeat_request(self, generation: int) -> HeartbeatRequest:
        return HeartbeatRequest(
            group_id=self.group, generation_id=generation, member_id=self._id, group_instance_id=self.instance_id
        )

    async def _stop_heartbeats(self) -> None:
        if self._heartbeats is not None:
            await cancel_all([self._heartbeats])
            self._heartbeats = None

    # --- the coordinator ----------------------------------------------------------------------------------------------

    def _accepted(self, error: ErrorCode) -> bool:
        """Whether an answer holds what was asked for; learns from the error if not."""
        if error in _FIND_AGAIN:
            self._coordinator = None
        elif error is ErrorCode.unknown_member_id:
            self._id, self._generation = "", -1
            self.rebalancing.set()
        elif error is ErrorCode.fenced_instance_id:
            self.fenced = True
            self.rebalancing.set()
        elif error in (ErrorCode.illegal_generation, ErrorCode.rebalance_in_progress):
            self.rebalancing.set()
        return error is ErrorCode.none

    def _changed(
        self, errors: Sequence[ErrorCode], refusals: Container[ErrorCode], ignored: Container[ErrorCode] = ()
    ) -> ChangeResult:
        """The outcome of a change that was answered; `refusals` are the errors by which nothing changed, and from
        `ignored` ones nothing is learnt. An answer that leaves the change out says nothing of it."""
        if not errors:
            return ChangeResult("info", "unanswered")
        error = next((code for code in errors if code is not ErrorCode.none), ErrorCode.none)
        if error not in ignored and self._accepted(error):
            return ChangeResult("ok")
        certain = all(code in refusals for code in errors)
        return ChangeResult("fail" if certain else "info", error_name(error))

    def _unanswered(self, lost: ConnectionLost) -> ChangeResult:
        """The outcome of a change that was not answered; the coordinator is searched again."""
        self._coordinator = None
        return ChangeResult("info" if lost.sent else "fail", connection_error_name(lost))

    async def _ask(self, purpose: str, request: Any, extra_s: float = 0.0) -> Any:
        """The coordinator's answer; None when there is none, and then the coordinator is searched again."""
        try:
            return await self._call(purpose, request, self.client.timeouts.request_timeout_s + extra_s)
        except ConnectionLost:
            self._coordinator = None
            return None

    async def _call(self, purpose: str, request: Any, timeout_s: float) -> Any:
        if self._coordinator is None:
            self._coordinator = await self._find_coordinator()
        connection = await self.client.connection_to(purpose, *self._coordinator)
        return await connection.call(request, timeout_s)

    async def _find_coordinator(self) -> tuple[str, int]:
        """Raises ConnectionLost, nothing sent to a coordinator, when no broker names one."""
        try:
            response = await self.client.ask_any(FindCoordinatorRequest(key_type=0, coordinator_keys=(self.group,)))
        except ConnectionLost as lost:
            raise ConnectionLost(str(lost), sent=False) from lost
        coordinator = response.coordinators[0]
        if coordinator.error_code is not ErrorCode.none:
            raise ConnectionLost(f"no coordinator of {self.group}: {error_name(coordinator.error_code)}", sent=False)
        return str(coordinator.host), int(coordinator.port)


def _by_topic(partitions: Iterable[TopicPartition]) -> tuple[OffsetFetchRequestTopics, ...]:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    return tuple(
        OffsetFetchRequestTopics(name=name, partition_indexes=tuple(numbers)) for name, numbers in by_topic.items()
    )


def _committed(answer: Any) -> CommittedPosition | None:
    if answer is None or answer.committed_offset < 0:
        return None
    return CommittedPosition(int(answer.committed_offset), int(answer.committed_leader_epoch), answer.metadata or "")
