"""The native member of a group, static and dynamic, with the coordinator of a simulated cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from kio.schema.delete_groups.v2.request import DeleteGroupsRequest
from kio.schema.delete_groups.v2.response import DeleteGroupsResponse
from kio.schema.errors import ErrorCode
from kio.schema.offset_commit.v9.request import OffsetCommitRequest
from kio.schema.offset_commit.v9.response import OffsetCommitResponse
from kio.schema.offset_fetch.v9.request import OffsetFetchRequest
from kio.schema.offset_fetch.v9.response import OffsetFetchResponse

from images.broker.apis.groups import GroupCoordinator
from images.broker.runtime.server import Request
from tests.scenarios.one_partition import TOPIC, Scene, played
from workloads.clients.membership import ChangeResult, FencedInstanceId, GroupMember, GroupSettings
from workloads.clients.native import Client, CommittedPosition

SESSION = GroupSettings(session_timeout_s=3.0, rebalance_timeout_s=3.0, heartbeat_interval_s=0.5)
P0 = (TOPIC, 0)
NO_TOPIC = "topic-of-nobody"
FENCED = ChangeResult("fail", "FENCED_INSTANCE_ID")
STALE = "ILLEGAL_GENERATION"

NewMember = Callable[[str, str | None], GroupMember]


def with_members(scenario: Callable[[NewMember], Awaitable[None]]) -> None:
    """Play a scenario with members of one group, each made by the name of its client and its instance id."""

    async def whole(scene: Scene) -> None:
        members: list[GroupMember] = []

        def member(name: str, instance_id: str | None) -> GroupMember:
            client = Client(scene.deployment.bootstrap(), name, scene.deployment.stream(name))
            members.append(GroupMember(client, "g", (TOPIC,), SESSION, instance_id))
            return members[-1]

        await scenario(member)
        for each in members:
            await each.close()
            await each.client.close()

    played(whole)


async def commit(member: GroupMember, offset: int) -> ChangeResult:
    return await member.commit({P0: CommittedPosition(offset, 0)})


def test_the_offsets_of_a_group_are_told_in_every_way_of_asking() -> None:
    async def scenario(member: NewMember) -> None:
        one = member("one", None)
        assert (await one.join()).partitions == (P0,)
        assert await commit(one, 3) == ChangeResult("ok")
        for beside in ((), ("a", "z")):
            for all_of_group in (False, True):
                told = await one.committed((P0,), all_of_group=all_of_group, beside=beside)
                assert told == {P0: CommittedPosition(3, 0)}

    with_members(scenario)


def test_an_administrator_sees_members_and_removes_several_at_once() -> None:
    async def scenario(member: NewMember) -> None:
        dynamic, static, administrator = member("dynamic", None), member("static", "i"), member("administrator", None)
        await asyncio.gather(dynamic.join(), static.join())
        members = await administrator.describe(beside=("a", "z"))
        assert sorted(instance or "" for _, instance in members) == ["", "i"]
        assert await administrator.list_groups(("Stable",)) == await administrator.list_groups(()) == ["g"]
        assert await administrator.list_groups(("Empty",)) == []
        await administrator.remove([("nobody", None), *members])
        assert await administrator.describe() == []
        assert (await commit(dynamic, 1)).error == (await commit(static, 1)).error == "UNKNOWN_MEMBER_ID"
        assert await administrator.delete_group(beside=("nobody",)) == ChangeResult("ok")

    with_members(scenario)


def test_a_commit_with_too_long_a_text_is_certainly_not_written() -> None:
    async def scenario(member: NewMember) -> None:
        alone = member("alone", None)
        assert await alone.committed((P0,)) == {P0: None}
        refused = await alone.commit({P0: CommittedPosition(3, 0, "x" * 4_097)})
        assert refused == ChangeResult("fail", "OFFSET_METADATA_TOO_LARGE")
        assert await alone.committed((P0,)) == {P0: None}

    with_members(scenario)


def test_whether_a_group_is_deleted_that_the_answer_leaves_out_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    async def without_the_last(self: GroupCoordinator, request: Request[DeleteGroupsRequest]) -> DeleteGroupsResponse:
        answer = await delete_groups(self, request)
        return replace(answer, results=answer.results[:-1])

    async def scenario(member: NewMember) -> None:
        alone = member("alone", None)
        assert await alone.committed((P0,)) == {P0: None}
        assert await commit(alone, 3) == ChangeResult("ok")
        assert (await alone.delete_group(beside=("nobody",))).outcome == "info"

    delete_groups = GroupCoordinator.delete_groups
    monkeypatch.setattr(GroupCoordinator, "delete_groups", without_the_last)
    with_members(scenario)


@pytest.mark.parametrize("told", [TOPIC, NO_TOPIC])
def test_a_commit_of_several_partitions_of_which_the_answer_leaves_one_out_may_be_written(
    told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if what it has is a refusal: the partition that it leaves out may have been taken."""

    async def of_one_topic(self: GroupCoordinator, request: Request[OffsetCommitRequest]) -> OffsetCommitResponse:
        answer = await offset_commit(self, request)
        return replace(answer, topics=tuple(topic for topic in answer.topics if topic.name == told))

    async def scenario(member: NewMember) -> None:
        alone = member("alone", None)
        assert await alone.committed((P0,)) == {P0: None}
        positions = {P0: CommittedPosition(3, 0), (NO_TOPIC, 0): CommittedPosition(3, 0)}
        assert (await alone.commit(positions)).outcome == "info"
        assert await alone.committed((P0,)) == {P0: CommittedPosition(3, 0)}

    offset_commit = GroupCoordinator.offset_commit
    monkeypatch.setattr(GroupCoordinator, "offset_commit", of_one_topic)
    with_members(scenario)


def test_committed_offsets_are_asked_for_again_while_a_partition_has_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Kafka answers while a transaction has not decided an offset: the group has no error then, and no offset is
    told."""
    unstable = [ErrorCode.unstable_offset_commit] * 2

    async def unstable_at_first(self: GroupCoordinator, request: Request[OffsetFetchRequest]) -> OffsetFetchResponse:
        answer = await offset_fetch(self, request)
        if not unstable:
            return answer
        (group,) = answer.groups
        (topic,) = group.topics
        (part,) = topic.partitions
        part = replace(part, committed_offset=-1, error_code=unstable.pop())
        return replace(answer, groups=(replace(group, topics=(replace(topic, partitions=(part,)),)),))

    async def scenario(member: NewMember) -> None:
        one = member("one", None)
        await one.join()
        assert await commit(one, 3) == ChangeResult("ok")
        assert await one.committed((P0,)) == {P0: CommittedPosition(3, 0)}
        assert not unstable

    offset_fetch = GroupCoordinator.offset_fetch
    monkeypatch.setattr(GroupCoordinator, "offset_fetch", unstable_at_first)
    with_members(scenario)


def test_a_static_member_takes_the_place_of_the_one_before_it_and_fences_it() -> None:
    async def scenario(member: NewMember) -> None:
        first, second = member("first", "i"), member("second", "i")
        assigned = await first.join()
        assert assigned.partitions == (P0,)
        assert await commit(first, 3) == ChangeResult("ok")
        first.silent = True
        assert await second.join() == assigned, "the generation and the partitions are those of the first"
        assert await second.committed((P0,)) == {P0: CommittedPosition(3, 0)}
        assert await commit(first, 5) == FENCED
        assert await commit(second, 4) == ChangeResult("ok")
        assert (first.fenced, second.fenced) == (True, False)
        with pytest.raises(FencedInstanceId):
            await first.join()
        assert await commit(first, 6) == FENCED
        assert await second.committed((P0,)) == {P0: CommittedPosition(4, 0)}

    with_members(scenario)


def test_a_member_hears_by_its_heartbeats_that_it_is_fenced() -> None:
    async def scenario(member: NewMember) -> None:
        first, second = member("first", "i"), member("second", "i")
        await first.join()
        await second.join()
        await asyncio.wait_for(first.rebalancing.wait(), 2 * SESSION.heartbeat_interval_s)
        assert first.fenced

    with_members(scenario)


@pytest.mark.parametrize(("instance_id", "generations"), [("i", 1), (None, 3)])
def test_a_static_member_leaves_without_a_word(instance_id: str | None, generations: int) -> None:
    """A dynamic member leaves the group Empty, which is a generation of its own."""

    async def scenario(member: NewMember) -> None:
        first, second = member("first", instance_id), member("second", instance_id)
        await first.join()
        await first.leave()
        assert (await second.join()).generation == generations

    with_members(scenario)


def test_a_late_commit_is_refused_before_and_after_the_sync_and_its_member_stays() -> None:
    async def scenario(member: NewMember) -> None:
        alone, other = member("alone", None), member("other", None)
        before = await alone.join()
        offsets = {P0: CommittedPosition(3, 0)}
        refused: list[ChangeResult] = []

        async def commit_late(generation: int) -> None:
            refused.extend([await alone.commit(offsets, before.generation), await alone.commit(offsets, generation)])

        joining = asyncio.ensure_future(other.join())
        await alone.rebalancing.wait()
        again = await alone.join(commit_late)
        refused.append(await alone.commit(offsets, before.generation))
        assert [result.error for result in refused] == [STALE, "REBALANCE_IN_PROGRESS", STALE]
        assert {result.outcome for result in refused} == {"fail"}
        assert not alone.rebalancing.is_set()
        assert (await joining).generation == again.generation

    with_members(scenario)


def test_a_static_member_that_stays_away_is_removed_after_its_session() -> None:
    async def scenario(member: NewMember) -> None:
        first, other, second = member("first", "i"), member("other", None), member("second", "i")
        assigned = await first.join()
        await first.leave()
        loop = asyncio.get_running_loop()
        since_s = loop.time()
        alone = await other.join()
        assert loop.time() - since_s >= SESSION.session_timeout_s / 2
        assert alone.partitions == (P0,)
        assert alone.generation > assigned.generation
        assert (await commit(first, 5)).outcome == "fail"
        assert not first.fenced, "nobody has its instance id"
        assert other.rebalancing.is_set() is False
        joining = asyncio.ensure_future(second.join())
        await other.rebalancing.wait()
        again = await other.join()
        assert {again.generation, (await joining).generation} == {alone.generation + 1}

    with_members(scenario)


def test_a_group_without_members_is_deleted_with_its_offsets() -> None:
    async def scenario(member: NewMember) -> None:
        alone = member("alone", None)
        assert await alone.committed((P0,)) == {P0: None}
        assert await alone.delete_group() == ChangeResult("fail", "GROUP_ID_NOT_FOUND")
        assert await commit(alone, 3) == ChangeResult("ok")
        assert await alone.committed((P0,)) == {P0: CommittedPosition(3, 0)}
        assert await alone.delete_group() == ChangeResult("ok")
        assert await alone.committed((P0,)) == {P0: None}

    with_members(scenario)


def test_a_group_with_members_is_not_deleted() -> None:
    async def scenario(member: NewMember) -> None:
        joined, other = member("joined", None), member("other", None)
        await joined.join()
        assert await other.committed((P0,)) == {P0: None}
        assert await other.delete_group() == ChangeResult("fail", "NON_EMPTY_GROUP")
        assert await commit(joined, 3) == ChangeResult("ok")

    with_members(scenario)
