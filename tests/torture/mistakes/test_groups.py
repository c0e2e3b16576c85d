"""Mistakes in what coordinators tell of their groups, each played by a running cluster: `protocol` finds it in the
answer, whether or not it did any harm."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from kio.schema.create_topics.v7.request import CreateTopicsRequest
from kio.schema.describe_groups.v6.response import DescribedGroup
from kio.schema.leave_group.v5.response import LeaveGroupResponse

from images.broker.apis import groups
from images.broker.controller.channel import ControllerChannel
from images.broker.groups import rebalance
from images.broker.groups.group import Caller, ClassicGroupMember, Group, GroupStep, JoinRequest
from images.broker.groups.shard import Shard
from images.broker.metadata.internal_topics import CONSUMER_OFFSETS_TOPIC
from images.broker.replication.partition import ReplicaRole
from images.broker.replication.replica_results import AppendResult
from images.wire.connection import ConnectionLost
from tests.simulation.applied_mistake import replace_in
from tests.torture.mistakes.mistake import Fault, Patch, PlayedMistake


class _AnyState(str):
    """A state that every group is in."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return True

    def lower(self) -> _AnyState:
        return self


def _states_ignored(patch: Patch) -> None:
    """ListGroups tells the groups in all states, whatever is asked for."""
    right = groups.GroupCoordinator.list_groups

    async def list_groups(self: groups.GroupCoordinator, request: Any) -> Any:
        states = tuple(map(_AnyState, request.body.states_filter))
        return await right(self, request._replace(body=replace(request.body, states_filter=states)))

    patch.setattr(groups.GroupCoordinator, "list_groups", list_groups)


def _nothing_if_any_is_refused(patch: Patch) -> None:
    """A commit of which one partition is refused stores nothing; the others are answered as committed."""
    replace_in(
        patch,
        "images.broker.apis.groups:GroupCoordinator.offset_commit",
        "if offsets:",
        by="if offsets and not refused:",
    )


def _reads_shared(patch: Patch) -> None:
    """A read of committed offsets that begins while another one is under way shares that."""
    right, under_way = Shard.offsets_read, WeakKeyDictionary[Shard, Any]()

    @contextmanager
    def offsets_read(self: Shard) -> Iterator[Any]:
        if (read := under_way.get(self)) is not None:
            yield read
            return
        with right(self) as under_way[self]:
            try:
                yield under_way[self]
            finally:
                del under_way[self]

    patch.setattr(Shard, "offsets_read", offsets_read)


def _member_left_out(patch: Patch) -> None:
    """The answer to LeaveGroup for several members is without the last one; the trace has what is answered."""
    right = groups.leave_detail

    def answer(*, members: Sequence[Any], **others: Any) -> LeaveGroupResponse:
        return LeaveGroupResponse(members=tuple(members[: max(1, len(members) - 1)]), **others)

    def leave_detail(asked: Iterable[Any], answers: Sequence[Any]) -> dict[str, object]:
        return right(asked, answers[: max(1, len(answers) - 1)])

    patch.setattr(groups, "LeaveGroupResponse", answer)
    patch.setattr(groups, "leave_detail", leave_detail)


def _assignments_exchanged(patch: Patch) -> None:
    """DescribeGroups gives each member the assignment of another one."""
    right = groups.described_group

    def described_group(*of_group: Any) -> DescribedGroup:
        description = right(*of_group)
        assignments = [member.member_assignment for member in reversed(description.members)]
        members = zip(description.members, assignments, strict=True)
        return replace(
            description, members=tuple(replace(member, member_assignment=given) for member, given in members)
        )

    patch.setattr(groups, "described_group", described_group)


def _leader_joins_in_vain(patch: Patch) -> None:
    """The leader of a stable group that joins again is answered as any other member: what it has seen since is assigned
    to nobody."""
    right = rebalance._rejoin

    def rejoin(group: Group, member: ClassicGroupMember, *request: Any) -> GroupStep:
        another = next((one.id for one in group.members if one.id != member.id), "")
        step = right(group._replace(leader=another), member, *request)
        return step._replace(group=step.group._replace(leader=group.leader))

    patch.setattr(rebalance, "_rejoin", rejoin)


def _storing_goes_on(patch: Patch) -> None:
    """A rebalance that begins while an assignment is stored takes that for the record of its generation."""
    replace_in(patch, "images.broker.groups.rebalance:prepare", "storing=False,", "")


def _names_alone_are_compared(patch: Patch) -> None:
    """A member that joins again with another subscription is answered as if it had said the same before."""
    right = rebalance._rejoin

    def rejoin(group: Group, member: ClassicGroupMember, request: JoinRequest, *rest: Any) -> GroupStep:
        if [name for name, _ in member.protocols] == [name for name, _ in request.protocols]:
            request = request._replace(protocols=member.protocols)
        return right(group, member, request, *rest)

    patch.setattr(rebalance, "_rejoin", rejoin)


def _instance_left_out(patch: Patch) -> None:
    """A commit is checked without the instance id of its sender: who was replaced is told that it is unknown."""
    right = groups.check_commit

    def check_commit(group: Group | None, caller: Caller, *rest: Any) -> Any:
        return right(group, caller._replace(instance_id=None), *rest)

    patch.setattr(groups, "check_commit", check_commit)


def _leads_unheard(patch: Patch) -> None:
    """A coordinator does not look at what its broker leads until the metadata changes once more."""
    right = groups.GroupCoordinator.apply
    led_before: WeakKeyDictionary[groups.GroupCoordinator, list[tuple[int, int]]] = WeakKeyDictionary()

    def apply(self: groups.GroupCoordinator) -> None:
        led = [
            (replica.index, replica.state.leader_epoch)
            for replica in self._replica_manager
            if replica.topic == CONSUMER_OFFSETS_TOPIC and replica.state.role is ReplicaRole.LEADER
        ]
        if led_before.get(self) == led:
            right(self)
        led_before[self] = led

    patch.setattr(groups.GroupCoordinator, "apply", apply)


def _deadlines_by_the_wall_clock(patch: Patch) -> None:
    """A coordinator ends sessions and rebalances by its wall clock."""
    patch.setattr(Shard, "now_ms", lambda self: self.record_ms())


def _any_broker_takes_heartbeats(patch: Patch) -> None:
    """A broker answers a heartbeat without an error, whether or not it coordinates the group."""
    replace_in(
        patch,
        "images.broker.apis.groups:GroupCoordinator._find",
        "error = ErrorCode.not_coordinator",
        'error = ErrorCode.none if api == "heartbeat" else ErrorCode.not_coordinator',
    )


def _deletions_remembered(patch: Patch) -> None:
    """A coordinator remembers deleted topics by name, and forgets offsets of the next ones at any later deletion."""
    forget, right = (
        "images.broker.groups.shard:Shard._forget",
        "deleted, self._deleted_topics = self._deleted_topics, set()",
    )
    replace_in(patch, forget, right, "deleted = self._deleted_topics")


def _commits_under_way_kept(patch: Patch) -> None:
    """A commit that does not count yet keeps its offset of a topic that is deleted."""
    forget = "images.broker.groups.committed_offsets:CommittedOffsets.forget"
    kept = "tuple(each for each in change.offsets if not is_gone(*each))"
    replace_in(patch, forget, f"kept = {kept}", "kept = change.offsets")


def _replaced_member_in_record(patch: Patch) -> None:
    """A generation begins though its record has a static member that was replaced meanwhile."""
    outdated = "joining = joining._replace(record_outdated=True)"
    replace_in(patch, "images.broker.groups.rebalance:_replace_static", outdated, "pass")


def _deleted_by_name(patch: Patch) -> None:
    """A topic whose name another one has when a coordinator reads of its deletion does not count as deleted."""
    deleted = "images.broker.apis.groups:GroupCoordinator._deleted_topics"
    replace_in(patch, deleted, " or after[name].id != topic.id", "")


def _deleted_while_loading(patch: Patch) -> None:
    """A coordinator that loads its log does not note which topics are deleted meanwhile."""
    right = Shard.forget_topics

    def forget_topics(self: Shard, topics: Iterable[str]) -> None:
        if self.loaded:
            right(self, topics)

    patch.setattr(Shard, "forget_topics", forget_topics)


def _tombstone_for_all(patch: Patch) -> None:
    """A coordinator that loads a tombstone of one partition forgets all offsets of the group."""
    replay = "images.broker.groups.committed_offsets:CommittedOffsets.replay"
    replace_in(patch, replay, "get(record.group, {}).pop(key, None)", by="pop(record.group, None)")


def _tombstones_last(patch: Patch) -> None:
    """Tombstones that could not be appended before come after the record at hand."""

    def append(self: Shard, records: Iterable[tuple[bytes, bytes | None]]) -> AppendResult:
        append_result = self._append_now(tuple(records))
        self._tombstones.append()
        return append_result

    patch.setattr(Shard, "_append", append)


def _static_members_left_behind(patch: Patch) -> None:
    """A rebalance removes whoever has not joined in time, static members, too."""
    replace_in(patch, "images.broker.groups.membership:on_tick", " and member.instance_id is None", "")


def _led_by_absent_member(patch: Patch) -> None:
    """The leader of the generation before leads the next one, also if it has not joined that."""
    replace_in(
        patch, "images.broker.groups.rebalance:_begin", "group.leader if group.leader in joined else", "group.leader or"
    )


def _lost_answer_awaited(patch: Patch) -> None:
    """A broker that has lost the answer to its creation of `__consumer_offsets` goes on to wait for it."""
    right = ControllerChannel.forward

    async def forward(self: ControllerChannel, request: Any) -> Any:
        try:
            return await right(self, request)
        except ConnectionLost as lost:
            if lost.sent and isinstance(request, CreateTopicsRequest):
                await asyncio.Event().wait()
            raise

    patch.setattr(ControllerChannel, "forward", forward)


AWKWARD = {"workload": "groups", "clients": {"awkward_members": 1.0}, "partitions": 3}

RESTLESS = AWKWARD | {"time_limit": "20s", "clients": {"awkward_members": 1.0, "consumers": 4}}

STATIC = {"workload": "groups", "time_limit": "20s", "clients": {"static_members": 1.0, "consumer_life": 4.0}}

LATE_STATIC = STATIC | {"clients": {"static_members": 1.0, "awkward_members": 1.0, "consumer_life": 4.0}}

KILLED: Fault = {"at": "2s", "for": "8s", "fault": "kill", "nodes": ["b1"]}

PAUSED: Fault = {"at": "2s", "for": "4s", "fault": "pause", "nodes": ["b3"]}

LATE = {"workload": "groups", "controllers": 1, "clients": {"groups_begin": 0.5}}

UNASKED: Sequence[Fault] = [
    {"at": "4.9s", "for": "3s", "fault": "pause", "nodes": ["c1"]},
    {"at": "7s", "for": "1s", "fault": "kill", "nodes": ["c1"]},
]
"""The first members of these runs look for their coordinator while the only controller is paused, and it is killed
without having read what the brokers asked of it."""

JUMP: Fault = {"at": "4s", "for": "4s", "fault": "clock", "nodes": ["brokers"], "wall_jump_ms": 60_000}

COMMITTED: Fault = {"at": 2, "for": 8, "fault": "recreate-topic", "commits": True, "topics": 4, "patience_ms": 500}

ALL_RESTART: Fault = {"at": 12, "for": 1, "fault": "kill", "nodes": ["brokers"]}

TROUBLED: Fault = {"at": 2, "for": 30, "fault": "recreate-topic", "commits": True, "topics": 4}
LONG = {"time_limit": "32s"}

SLOW: Fault = {"at": 2, "for": 17, "fault": "packets", "nodes": ["brokers"], "against": ["brokers"], "delay_ms": 150}
IMPATIENT = STATIC | {
    "clients": {"static_members": 1.0, "awkward_members": 1.0, "consumer_life": 4.0, "consumer_rest": 0.2}
}

MISTAKES = (
    PlayedMistake("offset-deleted-unasked", _deletions_remembered, [COMMITTED]),
    PlayedMistake("offsets-held-otherwise", _commits_under_way_kept, [COMMITTED], {"seed": 4}),
    PlayedMistake("generation-told-early", _replaced_member_in_record, [SLOW], IMPATIENT),
    PlayedMistake("groups-listed-otherwise", _states_ignored, world=AWKWARD),
    PlayedMistake("offsets-held-otherwise", _deleted_by_name, [TROUBLED | {"coordinator": "behind"}], LONG),
    PlayedMistake("offsets-held-otherwise", _tombstone_for_all, [COMMITTED, ALL_RESTART], {"time_limit": "16s"}),
    PlayedMistake("tombstone-missing", _deleted_while_loading, [TROUBLED | {"coordinator": "loading"}], LONG),
    PlayedMistake("tombstone-missing", _tombstones_last, [TROUBLED | {"coordinator": "alone"}], LONG),
    PlayedMistake("member-removed", _static_members_left_behind, world=LATE_STATIC | {"seed": 5}),
    PlayedMistake("joins-answered-otherwise", _led_by_absent_member, world=LATE_STATIC | {"seed": 6}),
    PlayedMistake("leave-answered-otherwise", _member_left_out, world=AWKWARD | {"seed": 5}),
    PlayedMistake("committed-offset-lost", _nothing_if_any_is_refused, world=AWKWARD),
    PlayedMistake("read-answers-twice", _reads_shared, world=AWKWARD),
    PlayedMistake("wrong-coordinator", _any_broker_takes_heartbeats, [PAUSED], {"workload": "groups"}),
    PlayedMistake("coordinator-not-loaded", _leads_unheard, [KILLED], {"workload": "groups"}),
    PlayedMistake("reads-not-finished", _lost_answer_awaited, UNASKED, LATE),
    PlayedMistake("group-time-otherwise", _deadlines_by_the_wall_clock, [JUMP], {"workload": "groups"}),
    PlayedMistake("request-misjudged", _leader_joins_in_vain, world=RESTLESS | {"seed": 5}, said="answered a join"),
    PlayedMistake("request-misjudged", _names_alone_are_compared, world=RESTLESS, said="answered a join"),
    PlayedMistake("request-misjudged", _instance_left_out, world=STATIC, said="answered a commit"),
    PlayedMistake("group-described-otherwise", _assignments_exchanged, world=AWKWARD, said="with the assignment"),
    PlayedMistake("generation-unrecorded", _storing_goes_on, [SLOW], {**LATE_STATIC, "seed": 2}),
)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_of_coordinators_is_found(mistake: PlayedMistake, monkeypatch: Patch) -> None:
    mistake.check_found(monkeypatch)
