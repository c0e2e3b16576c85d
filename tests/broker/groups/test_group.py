"""A group's machine: rebalances, generations, silence, fencing; each claim on plain values."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from images.broker.groups import membership, rebalance
from images.broker.groups.answers import join_response
from images.broker.groups.group import (
    Caller,
    Group,
    GroupLimits,
    GroupState,
    GroupStep,
    JoinAnswer,
    JoinRequest,
    StoreGeneration,
    StoreGroup,
    StoreReplacement,
    SyncAnswer,
)
from images.broker.groups.membership import check_commit, heartbeat, next_deadline_ms
from images.broker.groups.rebalance import generation_stored, replacement_stored, stored, sync
from images.broker.rules import Rules

LIMITS = GroupLimits(1_000, 60_000, 0, Rules())
RANGE = (("range", b"topics"),)


def begun(step: GroupStep, now_ms: int) -> GroupStep:
    """The step, with the record that a generation begins committed at once."""
    for decision in step.decisions:
        if isinstance(decision, StoreGeneration):
            after = generation_stored(step.group, decision.generation, ErrorCode.none, now_ms)
            others = tuple(other for other in step.decisions if other is not decision)
            return step._replace(group=after.group, decisions=others + after.decisions)
    return step


def join(group: Group, request: JoinRequest, now_ms: int, limits: GroupLimits) -> GroupStep:
    return begun(rebalance.join(group, request, now_ms, limits), now_ms)


def leave(group: Group, member: str, instance: str | None, now_ms: int) -> tuple[GroupStep, ErrorCode]:
    step, error = membership.leave(group, member, instance, now_ms)
    return begun(step, now_ms), error


def on_tick(group: Group, now_ms: int) -> GroupStep:
    return begun(membership.on_tick(group, now_ms), now_ms)


def ask(member: str = "", new: str = "m1", **changes: object) -> JoinRequest:
    return JoinRequest(member, new, "consumer", RANGE, 10_000, 20_000)._replace(**changes)  # type: ignore[arg-type]


def joined(*members: str) -> Group:
    """A group whose members have joined generation 1; the first one is its leader."""
    group = Group("g")
    for number, member in enumerate(members):
        limits = replace(LIMITS, initial_rebalance_delay_ms=1_000)
        group = join(group, ask(new=member), number, limits).group
    return on_tick(group, 5_000).group


def stable(*members: str) -> Group:
    group = joined(*members)
    for member in reversed(members):
        assignments = {name: name.encode() for name in members} if member == group.leader else {}
        group = sync(group, Caller(member, 1), (None, None), assignments, 5_000).group
    return stored(group, 1, ErrorCode.none, 5_000).group


def answers(step: GroupStep) -> dict[str, ErrorCode]:
    return {item.member_id: item.error for item in step.decisions if isinstance(item, JoinAnswer | SyncAnswer)}


# --- joining ----------------------------------------------------------------------------------------------------------


def test_the_first_member_leads_generation_one_and_is_told_all_members() -> None:
    step = join(Group("g"), ask(), 0, LIMITS)
    assert step.group.state is GroupState.COMPLETING
    (answer,) = step.decisions
    assert isinstance(answer, JoinAnswer)
    assert (answer.generation, answer.leader, answer.members) == (1, "m1", (("m1", None, b"topics"),))


def test_an_empty_group_waits_for_more_members_before_its_first_generation() -> None:
    limits = replace(LIMITS, initial_rebalance_delay_ms=1_000)
    first = join(Group("g"), ask(new="m1"), 0, limits)
    assert first.decisions == ()
    assert next_deadline_ms(first.group) == 1_000
    second = join(first.group, ask(new="m2"), 600, limits)
    assert second.decisions == ()
    assert next_deadline_ms(second.group) == 1_600
    assert answers(on_tick(second.group, 1_600)) == {"m1": ErrorCode.none, "m2": ErrorCode.none}


def test_a_client_that_can_is_given_an_id_and_joins_with_it() -> None:
    first = join(Group("g"), ask(new="m1", id_required=True), 0, LIMITS)
    assert first.answer == JoinAnswer("m1", ErrorCode.member_id_required)
    assert first.group.members == ()
    again = join(first.group, ask("m1", new="m2", id_required=True), 10, LIMITS)
    assert [member.id for member in again.group.members] == ["m1"]


def test_a_client_that_never_comes_back_with_its_id_holds_nobody_up_for_long() -> None:
    group = join(Group("g"), ask(new="m1", id_required=True), 0, LIMITS).group
    step = join(group, ask(new="m2"), 0, LIMITS)
    assert step.decisions == ()
    assert answers(on_tick(step.group, 10_000)) == {"m2": ErrorCode.none}


def test_a_member_nobody_knows_is_told_so() -> None:
    assert join(stable("m1"), ask("m9"), 0, LIMITS).answer == JoinAnswer("m9", ErrorCode.unknown_member_id)


@pytest.mark.parametrize("session_ms", [999, 60_001])
def test_a_session_timeout_outside_the_limits_is_refused(session_ms: int) -> None:
    step = join(Group("g"), ask(session_timeout_ms=session_ms), 0, LIMITS)
    assert step.answer == JoinAnswer("", ErrorCode.invalid_session_timeout)


def test_a_member_without_a_protocol_in_common_is_refused() -> None:
    step = join(stable("m1"), ask(new="m2", protocols=(("sticky", b""),)), 0, LIMITS)
    assert step.answer == JoinAnswer("", ErrorCode.inconsistent_group_protocol)


def test_the_protocol_most_members_like_best_is_chosen_among_those_all_know() -> None:
    both = (("sticky", b""), ("range", b""))
    group = join(Group("g"), ask(new="m1", protocols=both), 0, replace(LIMITS, initial_rebalance_delay_ms=9)).group
    group = join(group, ask(new="m2", protocols=(*reversed(both), ("cooperative", b""))), 0, LIMITS).group
    group = join(group, ask(new="m3", protocols=(("cooperative", b""), *reversed(both))), 0, LIMITS).group
    assert on_tick(group, 9).group.protocol == "range"


def test_a_newcomer_makes_everybody_join_anew() -> None:
    step = join(stable("m1", "m2"), ask(new="m3"), 6_000, LIMITS)
    assert step.group.state is GroupState.PREPARING
    assert heartbeat(step.group, Caller("m1", 1), 6_000)[1] is ErrorCode.rebalance_in_progress
    group = join(step.group, ask("m1"), 6_100, LIMITS).group
    last = join(group, ask("m2"), 6_200, LIMITS)
    assert last.group.generation == 2
    assert answers(last) == dict.fromkeys(("m1", "m2", "m3"), ErrorCode.none)


def test_a_member_that_does_not_join_in_time_is_left_behind() -> None:
    group = join(stable("m1", "m2"), ask(new="m3"), 6_000, LIMITS).group
    group = join(group, ask("m2"), 6_100, LIMITS).group
    step = on_tick(group._replace(members=tuple(m._replace(session_timeout_ms=50_000) for m in group.members)), 26_000)
    assert [member.id for member in step.group.members] == ["m2", "m3"]
    assert step.group.generation == 2
    assert step.group.leader == "m2"


def test_a_member_whose_join_answer_was_lost_is_told_it_again() -> None:
    group = joined("m1", "m2")
    assert join(group, ask("m2"), 5_100, LIMITS).answer == JoinAnswer(
        "m2", ErrorCode.none, 1, "consumer", "range", "m1"
    )


def test_nobody_gets_the_number_of_a_generation_before_it_is_in_the_log() -> None:
    step = rebalance.join(Group("g"), ask(new="m1"), 0, LIMITS)
    assert step.decisions == (StoreGeneration(1),)
    assert (step.group.state, step.group.generation) == (GroupState.PREPARING, 0)
    more = rebalance.join(step.group, ask(new="m2"), 1, LIMITS)  # in time: the record holds no members
    assert more.decisions == ()
    after = generation_stored(more.group, 1, ErrorCode.none, 2)
    assert (after.group.state, after.group.generation) == (GroupState.COMPLETING, 1)
    assert answers(after) == {"m1": ErrorCode.none, "m2": ErrorCode.none}


def test_a_number_that_could_not_be_written_is_never_given_out() -> None:
    step = rebalance.join(Group("g"), ask(new="m1"), 0, LIMITS)
    failed = generation_stored(step.group, 1, ErrorCode.coordinator_not_available, 2)
    assert answers(failed) == {"m1": ErrorCode.coordinator_not_available}
    again = rebalance.join(failed.group, ask("m1"), 3, LIMITS)
    assert again.decisions == (StoreGeneration(2),)
    assert generation_stored(again.group, 1, ErrorCode.none, 4).group == again.group, "too late"


# --- assignments ------------------------------------------------------------------------------------------------------


def test_nobody_is_told_an_assignment_before_it_is_in_the_log() -> None:
    group = joined("m1", "m2")
    follower = sync(group, Caller("m2", 1), (None, None), {}, 5_000)
    assert (follower.answer, follower.decisions) == (None, ())
    leader = sync(follower.group, Caller("m1", 1), (None, None), {"m1": b"a", "m2": b"b"}, 5_000)
    assert (leader.answer, leader.decisions) == (None, (StoreGroup(1),))
    told = stored(leader.group, 1, ErrorCode.none, 5_000).decisions
    assert {item.member_id: item.assignment for item in told if isinstance(item, SyncAnswer)} == {
        "m1": b"a",
        "m2": b"b",
    }


def test_an_assignment_that_could_not_be_written_costs_the_generation() -> None:
    group = sync(joined("m1"), Caller("m1", 1), (None, None), {"m1": b"a"}, 5_000).group
    step = stored(group, 1, ErrorCode.rebalance_in_progress, 6_000)
    assert step.group.state is GroupState.PREPARING
    assert answers(step) == {"m1": ErrorCode.rebalance_in_progress}
    assert stored(step.group, 1, ErrorCode.none, 6_100).group == step.group, "it may be written after all: too late"


def test_a_member_of_a_stable_group_can_ask_for_its_assignment_again() -> None:
    answer = sync(stable("m1", "m2"), Caller("m2", 1), (None, None), {}, 6_000).answer
    assert answer == SyncAnswer("m2", ErrorCode.none, "consumer", "range", b"m2")


@pytest.mark.parametrize(
    ("caller", "protocol", "error"),
    [
        (Caller("m1", 7), (None, None), ErrorCode.illegal_generation),
        (Caller("m9", 1), (None, None), ErrorCode.unknown_member_id),
        (Caller("m1", 1), ("connect", None), ErrorCode.inconsistent_group_protocol),
        (Caller("m1", 1), (None, "sticky"), ErrorCode.inconsistent_group_protocol),
    ],
)
def test_a_sync_that_does_not_belong_to_the_generation_is_refused(
    caller: Caller, protocol: tuple[str | None, str | None], error: ErrorCode
) -> None:
    assert sync(stable("m1"), caller, protocol, {}, 6_000).answer == SyncAnswer(caller.member_id, error)


def test_a_member_that_never_syncs_is_removed() -> None:
    group = joined("m1", "m2")
    group = sync(group, Caller("m1", 1), (None, None), {}, 5_000).group
    assert stored(group, 1, ErrorCode.none, 5_000).group.state is GroupState.STABLE
    waiting = joined("m1", "m2")
    waiting = sync(waiting, Caller("m2", 1), (None, None), {}, 5_000).group
    step = on_tick(heartbeat(waiting, Caller("m1", 1), 24_000)[0], 25_000)
    assert [member.id for member in step.group.members] == ["m2"]
    assert answers(step) == {"m2": ErrorCode.rebalance_in_progress}


# --- membership -------------------------------------------------------------------------------------------------------


def test_a_silent_member_is_removed_when_its_session_is_over() -> None:
    group = heartbeat(stable("m1", "m2"), Caller("m1", 1), 10_000)[0]
    assert next_deadline_ms(group) == 15_000
    step = on_tick(group, 15_000)
    assert [member.id for member in step.group.members] == ["m1"]
    assert step.group.state is GroupState.PREPARING


def test_the_last_member_leaves_an_empty_group_of_a_new_generation_behind() -> None:
    step, error = leave(stable("m1"), "m1", None, 6_000)
    assert error is ErrorCode.none
    assert (step.group.state, step.group.generation, step.decisions) == (GroupState.EMPTY, 2, (StoreGroup(2),))


def test_a_member_that_leaves_while_it_waits_is_told_that_it_is_none() -> None:
    group = join(stable("m1"), ask(new="m2"), 6_000, LIMITS).group
    step, _ = leave(group, "m2", None, 6_000)
    assert answers(step) == {"m2": ErrorCode.unknown_member_id}


def with_static(instance: str = "i2") -> Group:
    """Member m2 of a stable group is static."""
    group = stable("m1", "m2")
    return group.with_member(group.members[1]._replace(instance_id=instance))


@pytest.mark.parametrize(
    ("member", "instance", "error"),
    [
        ("m2", "i2", ErrorCode.none),
        ("", "i2", ErrorCode.none),
        ("m1", "i2", ErrorCode.fenced_instance_id),
        ("m1", "i3", ErrorCode.unknown_member_id),
        ("m2", "i3", ErrorCode.unknown_member_id),
    ],
)
def test_who_leaves_has_the_instance_id_that_it_names(member: str, instance: str, error: ErrorCode) -> None:
    assert leave(with_static(), member, instance, 6_000)[1] is error


def test_a_static_member_comes_back_without_a_rebalance_and_its_old_self_is_fenced() -> None:
    step = join(with_static(), ask(new="m3", instance_id="i2"), 6_000, LIMITS)
    assert (step.answer, step.waiting_member_id, step.decisions) == (None, "m3", (StoreReplacement(1, "m3"),))
    step = replacement_stored(step.group, "m3", ErrorCode.none, 6_000)
    (answer,) = step.decisions
    assert isinstance(answer, JoinAnswer)
    assert (answer.error, answer.generation, answer.skip_assignment) == (ErrorCode.none, 1, False)
    assert step.group.state is GroupState.STABLE
    assert not step.group.members[1].joining
    assert heartbeat(step.group, Caller("m2", 1, "i2"), 6_000)[1] is ErrorCode.fenced_instance_id
    assert check_commit(step.group, Caller("m2", 1, "i2"), 6_000, LIMITS)[1] is ErrorCode.fenced_instance_id
    assert heartbeat(step.group, Caller("m3", 1, "i2"), 6_000)[1] is ErrorCode.none
    assert sync(step.group, Caller("m3", 1, "i2"), (None, None), {}, 6_000).answer == SyncAnswer(
        "m3", ErrorCode.none, "consumer", "range", b"m2"
    )


@pytest.mark.parametrize(
    ("protocols", "state"),
    [
        ((("range", b"another subscription"),), GroupState.STABLE),
        ((("range", b""), ("roundrobin", b"")), GroupState.STABLE),
        ((("roundrobin", b""), ("range", b"")), GroupState.COMPLETING),
    ],
)
def test_a_static_member_that_returns_begins_a_rebalance_only_if_another_protocol_is_elected(
    protocols: tuple[tuple[str, bytes], ...], state: GroupState
) -> None:
    group = stable("m1").with_member(stable("m1").members[0]._replace(instance_id="i1"))
    assert join(group, ask(new="m3", instance_id="i1", protocols=protocols), 6_000, LIMITS).group.state is state


def test_a_static_member_whose_return_could_not_be_written_has_its_old_id_again() -> None:
    group = with_static()
    step = join(group, ask(new="m3", instance_id="i2", session_timeout_ms=9_000), 6_000, LIMITS)
    step = replacement_stored(step.group, "m3", ErrorCode.coordinator_not_available, 7_000)
    assert step.decisions == (JoinAnswer("m3", ErrorCode.coordinator_not_available, id_known=False),)
    assert step.group == group.with_member(group.members[1]._replace(last_contact_ms=7_000))
    assert join_response(step.decisions[0]).member_id == "", "it would be fenced under an id that the group forgot"


def test_a_leader_whose_return_could_not_be_written_leads_again() -> None:
    group = stable("m1", "m2")
    group = group.with_member(group.members[0]._replace(instance_id="i1"))
    step = join(group, ask(new="m3", instance_id="i1"), 6_000, LIMITS)
    assert step.group.leader == "m3"
    assert replacement_stored(step.group, "m3", ErrorCode.not_coordinator, 6_000).group.leader == "m1"
    (answer,) = replacement_stored(step.group, "m3", ErrorCode.none, 6_000).decisions
    assert isinstance(answer, JoinAnswer)
    assert answer.skip_assignment, "the generation has its assignment: it must not make another one"
    assert answer.leader_before == "m1"


def test_a_static_member_that_comes_back_twice_before_it_is_written_replaces_the_first_one() -> None:
    group = with_static()
    once = join(group, ask(new="m3", instance_id="i2"), 6_000, LIMITS)
    twice = join(once.group, ask(new="m4", instance_id="i2"), 6_000, LIMITS)
    assert answers(twice) == {"m3": ErrorCode.fenced_instance_id}
    assert replacement_stored(twice.group, "m3", ErrorCode.none, 6_000) == GroupStep(twice.group)
    failed = replacement_stored(twice.group, "m4", ErrorCode.coordinator_not_available, 6_000).group
    assert [member.id for member in failed.members] == ["m1", "m2"]


def test_a_static_member_whose_return_is_not_written_yet_takes_part_in_a_rebalance() -> None:
    step = join(with_static(), ask(new="m3", instance_id="i2"), 6_000, LIMITS)
    group = join(step.group, ask(new="m5"), 6_000, LIMITS).group
    assert group.state is GroupState.PREPARING
    assert replacement_stored(group, "m3", ErrorCode.coordinator_not_available, 6_000) == GroupStep(group)
    step = join(group, ask("m1"), 6_000, LIMITS)
    assert answers(step) == dict.fromkeys(("m1", "m3", "m5"), ErrorCode.none)
    assert step.group.generation == 2


def waits_for_static(group: Group) -> Group:
    """Its member m1 has 50 s of session and has joined a rebalance with m3; static m2 has not."""
    group = group._replace(members=tuple(member._replace(session_timeout_ms=50_000) for member in group.members))
    return join(join(group, ask(new="m3"), 6_000, LIMITS).group, ask("m1"), 6_100, LIMITS).group


def test_a_static_member_that_does_not_join_in_time_stays_until_its_session_ends() -> None:
    step = on_tick(waits_for_static(with_static()), 26_000)
    assert answers(step) == {"m1": ErrorCode.none, "m3": ErrorCode.none}
    told = next(item for item in step.decisions if isinstance(item, JoinAnswer) and item.member_id == "m1")
    assert [member for member, _, _ in told.members] == ["m1", "m2", "m3"], "its partitions are kept for it"
    assert check_commit(step.group, Caller("m2", 1, "i2"), 27_000, LIMITS)[1] is ErrorCode.illegal_generation
    group = sync(step.group, Caller("m3", 2), (None, None), {}, 27_000).group
    group = sync(group, Caller("m1", 2), (None, None), {"m2": b"kept"}, 27_000).group
    group = stored(group, 2, ErrorCode.none, 27_000).group
    for name in ("m1", "m3"):
        group = heartbeat(group, Caller(name, 2), 70_000)[0]
    assert next_deadline_ms(group) == 76_000, "its session began anew with the generation"
    back = join(group, ask(new="m4", instance_id="i2"), 70_000, LIMITS)
    assert replacement_stored(back.group, "m4", ErrorCode.none, 70_000).group.members[1].assignment == b"kept"
    assert [member.id for member in on_tick(group, 76_000).group.members] == ["m1", "m3"]


def test_the_leader_of_a_generation_has_joined_it() -> None:
    group = stable("m1", "m2")
    group = group.with_member(group.members[0]._replace(instance_id="i1", session_timeout_ms=50_000))
    group = join(join(group, ask(new="m3"), 6_000, LIMITS).group, ask("m2"), 6_100, LIMITS).group
    assert on_tick(group, 26_000).group.leader == "m2"


def test_a_leader_that_joins_again_leads_on_though_a_member_before_it_joins_too() -> None:
    group = stable("m1", "m2")
    group = group.with_member(group.members[0]._replace(instance_id="i1", session_timeout_ms=50_000))
    group = join(join(group, ask(new="m3"), 6_000, LIMITS).group, ask("m2"), 6_100, LIMITS).group
    group = join(on_tick(group, 26_000).group, ask(new="m4"), 27_000, LIMITS).group
    for request in (ask("m1", instance_id="i1"), ask("m3"), ask("m2")):
        group = join(group, request, 27_100, LIMITS).group
    assert (group.state, group.generation) == (GroupState.COMPLETING, 3)
    assert ([member.id for member in group.members], group.leader) == (["m1", "m2", "m3", "m4"], "m2")


@pytest.mark.parametrize(("timeout_ms", "again_ms"), [(20_000, 46_000), (0, 26_100)])
def test_a_rebalance_that_nobody_has_joined_goes_on(timeout_ms: int, again_ms: int) -> None:
    group = stable("m1")
    silent = group.members[0]._replace(instance_id="i", session_timeout_ms=60_000, rebalance_timeout_ms=timeout_ms)
    group = leave(join(group.with_member(silent), ask(new="m2"), 6_000, LIMITS).group, "m2", None, 6_500)[0].group
    step = on_tick(group._replace(deadline_ms=26_000), 26_000)
    assert (step.group.state, step.group.generation, step.decisions) == (GroupState.PREPARING, 1, ())
    assert next_deadline_ms(step.group) == again_ms
    assert on_tick(step.group, 65_000).group.state is GroupState.EMPTY


def test_a_number_that_all_who_joined_did_not_wait_for_is_not_used() -> None:
    step = membership.on_tick(waits_for_static(with_static()), 26_000)
    for name in ("m1", "m3"):
        step = membership.leave(step.group, name, None, 26_100)[0]
    step = generation_stored(step.group, 2, ErrorCode.none, 26_200)
    assert (step.group.state, step.group.generation, step.group.storing) == (GroupState.PREPARING, 2, False)
    assert step.group.deadline_ms == 46_200


# --- any order of events ----------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["m1", "m2", "m3"])
EVENT = st.one_of(
    st.tuples(st.just("join"), NAMES),
    st.tuples(st.just("rejoin"), NAMES),
    st.tuples(st.just("sync"), NAMES),
    st.tuples(st.just("stored"), st.sampled_from([ErrorCode.none, ErrorCode.rebalance_in_progress])),
    st.tuples(st.just("begun"), st.sampled_from([ErrorCode.none, ErrorCode.coordinator_not_available])),
    st.tuples(st.just("joinstatic"), st.sampled_from(["i1", "i2"])),
    st.tuples(st.just("replaced"), st.sampled_from([ErrorCode.none, ErrorCode.coordinator_not_available])),
    st.tuples(st.just("leave"), NAMES),
    st.tuples(st.just("time"), st.integers(1, 12_000)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(EVENT, max_size=40))
@example([("join", "m2"), ("join", "m1"), ("rejoin", "m2"), ("sync", "m1"), ("time", 10_000)])
def test_whatever_happens_generations_grow_and_everybody_who_waits_is_answered(
    events: list[tuple[str, object]],
) -> None:
    group, now_ms = Group("g"), 0
    waiting: dict[tuple[type, str], None] = {}
    for number, (kind, value) in enumerate(events):
        before, step = group, GroupStep(group)
        name = str(value)
        if kind == "join" and group.member(name) is None:
            step = rebalance.join(group, ask(new=name), now_ms, LIMITS)
        elif kind == "rejoin" and group.member(name) is not None:
            step = rebalance.join(group, ask(name), now_ms, LIMITS)
        elif kind == "joinstatic":
            step = rebalance.join(group, ask(new=f"{name}-{number}", instance_id=name), now_ms, LIMITS)
        elif kind == "replaced":
            assert isinstance(value, ErrorCode)
            new = next((member.id for member in group.members if member.replaces is not None), "")
            step = replacement_stored(group, new, value, now_ms)
        elif kind == "sync":
            name = group.leader if name == "m1" and group.leader else name
            step = sync(group, Caller(name, group.generation), (None, None), {name: b"all"}, now_ms)
        elif kind == "stored":
            assert isinstance(value, ErrorCode)
            step = stored(group, group.generation, value, now_ms)
        elif kind == "begun":
            assert isinstance(value, ErrorCode)
            step = generation_stored(group, group.generation + 1, value, now_ms)
        elif kind == "leave":
            step = membership.leave(group, name, None, now_ms)[0]
        elif kind == "time":
            assert isinstance(value, int)
            now_ms += value
            step = membership.on_tick(group, now_ms)
            assert next_deadline_ms(step.group) > now_ms
        group = step.group
        if step.waiting_member_id:
            waiting[JoinAnswer if "join" in kind else SyncAnswer, step.waiting_member_id] = None
        for answer in step.decisions:
            if isinstance(answer, JoinAnswer | SyncAnswer):
                waiting.pop((type(answer), answer.member_id), None)
        assert group.generation >= before.generation
        numbers = {answer.generation for answer in step.decisions if isinstance(answer, JoinAnswer)} - {-1}
        if kind not in ("begun", "replaced"):
            assert not numbers, "nobody gets a number that is not stored"
        expected: set[tuple[type, str]] = {(JoinAnswer, member.id) for member in group.members if member.joining}
        expected |= {(SyncAnswer, member.id) for member in group.members if member.syncing}
        assert set(waiting) == expected
        replacing: set[tuple[type, str]] = {
            (JoinAnswer, member.id) for member in group.members if member.replaces is not None
        }
        if group.state is GroupState.STABLE:
            assert set(waiting) == replacing
        else:
            assert not replacing
    for _ in range(100):
        now_ms = max(now_ms, min(next_deadline_ms(group), now_ms + 30_000))
        group = generation_stored(group, group.generation + 1, ErrorCode.none, now_ms).group
        group = stored(on_tick(group, now_ms).group, group.generation, ErrorCode.none, now_ms).group
        for member in group.members:
            group = replacement_stored(group, member.id, ErrorCode.coordinator_not_available, now_ms).group
    assert group.state is GroupState.EMPTY, "a group whose members all fell silent is empty in the end"
