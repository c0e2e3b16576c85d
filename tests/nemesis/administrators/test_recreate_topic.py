"""The topic that a fault creates, writes, deletes and creates anew, and its names in the trace."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random

import pytest

from harness.runner.observation import WholenessSource
from harness.runner.topic_names import TopicNames
from images.trace import TraceEvent
from nemesis.cluster_shape import ClusterShape
from nemesis.drawing import Draws, RunProfile
from nemesis.faults.administrators.coordinator_trouble import CoordinatorTrouble
from nemesis.faults.administrators.recreate_topic import LostAnswer, RecreateTopic
from nemesis.handle import ActiveEffects, FaultHandle
from nemesis.nemesis import Nemesis
from nemesis.ports import (
    PASSING_TOPIC,
    SIDE_GROUP,
    SIDE_TOPIC,
    UNANSWERED,
    AdminResult,
    ChannelName,
    EnvironmentCapability,
    KeepUnsynced,
    Link,
    MessageEffect,
    MessagePart,
    both_ways,
    on_channel,
    one_way,
)
from nemesis.schedule import Schedule, ScheduledFault
from nemesis.situation import Occurrence, Situation
from nemesis.wholeness import Wholeness
from tests.nemesis.administrators.carried_out import carried_out
from tests.nemesis.fake_cluster import FakeCluster
from tests.workloads.virtual_time import run

CREATED, DELETED = f"create {SIDE_TOPIC} with 3", f"delete {SIDE_TOPIC}"


def administered(cluster: FakeCluster) -> list[str]:
    return [call for call in cluster.calls if not call.startswith("append")]


def test_each_topic_is_written_before_it_is_deleted_and_none_is_left() -> None:
    cluster = FakeCluster()
    handle = carried_out(RecreateTopic(topics=3), cluster, replication_factor=3)
    assert administered(cluster) == [CREATED, DELETED] * 3 + [DELETED]
    for created in (place for place, call in enumerate(cluster.calls) if call == CREATED):
        assert cluster.calls[created + 1].startswith("append")
    assert {call.rpartition(" ")[2] for call in cluster.calls if call.startswith("append")} == {"1", "-1"}
    assert handle.evidence["created"] == 3
    assert RecreateTopic().took_effect(handle.evidence)


def test_a_broker_that_is_behind_reads_of_the_deletion_and_of_the_next_topic_at_once() -> None:
    cluster = FakeCluster()
    carried_out(RecreateTopic(topics=2, behind="b2"), cluster, replication_factor=3)
    assert administered(cluster) == [CREATED, "cut", DELETED, CREATED, "heal_links", DELETED, DELETED]
    assert cluster.pristine


def test_a_group_commits_offsets_of_each_topic_before_it_is_deleted() -> None:
    cluster = FakeCluster()
    handle = carried_out(RecreateTopic(topics=3, commits=True), cluster, replication_factor=3)
    commit = f"commit {SIDE_TOPIC}-0 for {SIDE_GROUP}"
    for deleted in [place for place, call in enumerate(cluster.calls) if call == DELETED][:-1]:
        assert cluster.calls[deleted - 1] == commit
    of_another = cluster.calls.count(f"commit t-0 for {SIDE_GROUP}")
    assert of_another == 3
    assert handle.evidence["committed"] == cluster.calls.count(commit) + of_another


def test_another_topic_comes_and_goes_while_a_group_has_offsets_and_none_is_left() -> None:
    cluster = FakeCluster()
    carried_out(RecreateTopic(topics=20, commits=True), cluster, replication_factor=3)
    came = [place for place, call in enumerate(cluster.calls) if call == f"create {PASSING_TOPIC} with 3"]
    went = f"delete {PASSING_TOPIC}"
    assert 0 < len(came) < 20
    assert all(cluster.calls[place - 1].startswith("commit") for place in came)
    assert all(cluster.calls[place + 1] == went for place in came)
    assert cluster.calls.count(went) == 2 * len(came)
    carried_out(RecreateTopic(topics=20), without := FakeCluster(), replication_factor=3)
    assert not any(PASSING_TOPIC in call for call in without.calls)


def test_topics_are_changed_while_they_are_written_and_some_are_deleted_by_their_ids() -> None:
    cluster = FakeCluster()
    handle = carried_out(RecreateTopic(topics=40, changes=True), cluster, replication_factor=3)
    grown = [call for call in cluster.calls if call.startswith("grow")]
    configured = [call.split()[2:] for call in cluster.calls if call.startswith("configure")]
    assert handle.evidence["grown"] == len(grown)
    assert handle.evidence["configured"] == len(configured)
    assert {how for how, *changed in configured if changed} == {"delete", "append", "subtract", "replace"}
    assert {call for call in cluster.calls if call.startswith("delete")} == {DELETED, f"{DELETED} by id"}
    assert any(call.startswith("append") and f"to {SIDE_TOPIC}-0" not in call for call in cluster.calls)


def test_dry_runs_go_before_the_same_changes_and_some_of_them_are_to_be_refused() -> None:
    cluster = FakeCluster()
    carried_out(RecreateTopic(topics=20, changes=True, dry_runs=True), cluster, replication_factor=3)
    tried = [place for place, call in enumerate(cluster.calls) if call.startswith("try to ")]
    assert all(cluster.calls[place + 1] == cluster.calls[place].removeprefix("try to ") for place in tried)
    changes = {" ".join(cluster.calls[place].split()[2:]) for place in tried}
    too_many = len(cluster.brokers) + 1
    for refused in (
        f"create {SIDE_TOPIC} with {too_many}",
        f"grow {SIDE_TOPIC} to 1",
        f"configure {SIDE_TOPIC} min.insync.replicas=0",
        f"configure {SIDE_TOPIC} append min.insync.replicas=1",
    ):
        assert refused in changes
    assert CREATED in changes


def test_a_victim_is_needed_in_the_isr_when_it_ends_and_the_strategy_changes_when_it_is_back() -> None:
    cluster = FakeCluster()
    carried_out(RecreateTopic(topics=2, victim="b1", changes=True), cluster, replication_factor=3)
    ended = cluster.calls.index("kill b1")
    assert "min.insync.replicas" in cluster.calls[ended - 1], cluster.calls
    assert "unclean.recovery.strategy" in cluster.calls[ended + 2]


def test_a_victim_that_ends_earlier_is_away_from_the_deletion_until_the_next_topic_is_made() -> None:
    cluster = FakeCluster()
    carried_out(RecreateTopic(topics=2, victim="b1", earlier=True), cluster, replication_factor=2)
    created, *others = administered(cluster)
    assert created in (f"create {SIDE_TOPIC} on b2 b1", f"create {SIDE_TOPIC} on b3 b1")
    assert others == ["kill b1", DELETED, created, "start b1", DELETED, DELETED]
    assert cluster.pristine


def test_the_broker_that_is_away_has_each_topic_also_where_its_target_stands_for_another_one_by_then() -> None:
    class Moving(FakeCluster):
        async def leaders(self) -> dict[tuple[str, int], str]:
            return {("topic", 0): "b2" if administered(self) else "b1"}

    cluster = Moving()
    carried_out(RecreateTopic(topics=3, victim="leader/0", earlier=True), cluster, replication_factor=2)
    assert [call for call in cluster.calls if call.startswith("kill")] == ["kill b1"] * 2
    assert all(call.endswith(" b1") for call in cluster.calls if call.startswith(f"create {SIDE_TOPIC}"))


def test_a_victim_is_away_until_the_topic_is_really_deleted_and_the_next_one_made() -> None:
    class Unanswering(FakeCluster):
        """Answers a creation or a deletion if it is asked for a second time."""

        def _answer(self) -> AdminResult:
            if self.calls[-1].startswith(("create", "delete")) and self.calls[-1] not in self.calls[-2:-1]:
                return AdminResult(UNANSWERED, in_doubt=True)
            return super()._answer()

    cluster = Unanswering()
    carried_out(RecreateTopic(topics=2, victim="b1", earlier=True), cluster, replication_factor=2)
    made = administered(cluster)[0]
    expected = [made, made, "kill b1", DELETED, DELETED, made, made, "start b1", DELETED, DELETED]
    assert administered(cluster)[: len(expected)] == expected
    others = Unanswering()
    carried_out(RecreateTopic(topics=2), others, replication_factor=3)
    assert administered(others)[:4] == [CREATED, DELETED, CREATED, DELETED]


def test_nothing_becomes_of_a_topic_before_its_victim_is_back() -> None:
    situation = Situation()

    class Starting(FakeCluster):
        async def start(self, node: str) -> None:
            await super().start(node)
            asyncio.get_running_loop().call_later(1.0, self._unfence, node)

        def _unfence(self, node: str) -> None:
            self.calls.append("unfenced")
            situation.occurred(Occurrence.UNFENCED, node)

    cluster = Starting()
    handle = FaultHandle(cluster, ActiveEffects(), Random(3), situation=situation, replication_factor=2)
    run(RecreateTopic(topics=2, victim="b1", earlier=True).inject(handle))
    assert cluster.calls[cluster.calls.index("start b1") + 1] == "unfenced"


def test_nobody_else_lacks_something_while_a_victim_is_away() -> None:
    for others in ({"behind": "b2"}, {"commits": True, "coordinator": CoordinatorTrouble.ALONE}):
        with pytest.raises(ValueError, match="earlier: true with behind or a coordinator"):
            RecreateTopic(victim="b1", earlier=True, **others)
    shape = ClusterShape(("b1", "b2", "b3"), ("c1",), partitions=1)
    profile = RunProfile(("b2",), leader_bias=0.5, held_share=0.5, keeps=tuple(KeepUnsynced))
    faults = [RecreateTopic.draw(Draws(Random(seed), shape, profile)) for seed in range(200)]
    assert any(fault is not None and fault.earlier for fault in faults)


def test_a_topic_has_the_partitions_that_were_added_and_not_those_that_were_refused() -> None:
    cluster = FakeCluster()
    cluster.answers = ["INVALID_REPLICATION_FACTOR"] * 1_000
    carried_out(RecreateTopic(topics=20, changes=True), cluster, replication_factor=3)
    assert {call.rpartition(" ")[2] for call in cluster.calls if call.startswith("grow")} == {"2", "3", "4"}
    assert all(f"to {SIDE_TOPIC}-0" in call for call in cluster.calls if call.startswith("append"))


def test_where_no_topic_is_deleted_nothing_took_effect() -> None:
    cluster = FakeCluster()
    cluster.answers = ["UNKNOWN_TOPIC_OR_PARTITION"] * 100
    handle = carried_out(RecreateTopic(topics=1), cluster, replication_factor=3)
    assert administered(cluster) == [CREATED, DELETED, DELETED]
    assert handle.evidence == {}


def test_a_creation_without_an_answer_may_come_late_so_the_topic_is_deleted_once_more_at_the_end() -> None:
    cluster = FakeCluster()
    cluster.answers = [UNANSWERED]
    schedule = Schedule((ScheduledFault(1.0, 20.0, RecreateTopic(topics=1)),))

    async def scenario() -> None:
        until_s = asyncio.get_running_loop().time() + 30
        await Nemesis(cluster, schedule, Random(1), lambda injection: None, "t").run(until_s)

    run(scenario())
    assert administered(cluster) == [CREATED, *[DELETED] * 3]


@pytest.mark.parametrize(("topic", "whole"), [("t", False), ("__consumer_offsets", False), (SIDE_TOPIC, True)])
def test_a_broker_is_whole_whatever_it_has_of_the_side_topic(topic: str, whole: bool) -> None:
    wholeness = Wholeness()
    source = WholenessSource(wholeness, {1: "b1", 2: "b2"}, "t")
    wholeness.went_down("b1")
    source.take("c1", TraceEvent("broker_registered", broker=1))
    source.take("c1", TraceEvent("partition_changed", topic, 0, members=(2,), detail={"replicas": [1, 2]}))
    assert wholeness.is_whole("b1") is whole


def test_topics_of_one_name_get_names_of_their_own_in_the_order_of_their_first_events() -> None:
    names = TopicNames(("side",))
    events = [TraceEvent("resigned", topic, 0, topic_id=id) for topic, id in [("side", "x"), ("side", "y"), ("t", "x")]]
    assert [event and event.topic for event in map(names.named, [*events, events[0]])] == [
        "side",
        "side#2",
        "t",
        "side",
    ]


def test_an_event_that_may_be_of_any_topic_of_its_name_is_of_none() -> None:
    names = TopicNames(("side",))
    assert names.named(TraceEvent("log_recovered", "side", 0)) is None
    assert names.named(TraceEvent("node_started")) == TraceEvent("node_started")


def test_the_first_answer_to_each_request_is_dropped() -> None:
    cluster = FakeCluster(controllers=3)
    handle = carried_out(RecreateTopic(topics=2, answers=LostAnswer.DROPPED), cluster, replication_factor=3)
    assert [(rule.api_key, rule.part, rule.effect, rule.count) for rule in cluster.intercepted_by] == [
        (api, MessagePart.RESPONSE, MessageEffect.DROP, 1) for api in (19, 20, 19, 20)
    ]
    assert cluster.pristine
    assert handle.evidence["deleted"] == 3


def test_the_controller_resigns_while_the_others_do_not_say_that_they_have_the_change() -> None:
    cluster = FakeCluster(controllers=3)
    carried_out(RecreateTopic(topics=1, answers=LostAnswer.DEPOSED), cluster, replication_factor=3)
    assert administered(cluster) == [CREATED, "move controller", DELETED, "move controller", DELETED]
    assert {(rule.api_key, rule.part, rule.effect) for rule in cluster.intercepted_by} == {
        (1, MessagePart.REQUEST, MessageEffect.HOLD)
    }
    assert cluster.pristine


def test_a_coordinator_is_in_trouble_only_where_channels_can_be_told_apart() -> None:
    fault = RecreateTopic(commits=True, coordinator=CoordinatorTrouble.ALONE, answers=LostAnswer.DROPPED)
    channels, messages = EnvironmentCapability.CHANNELS, EnvironmentCapability.MESSAGES
    assert fault.needs() == {channels, messages}
    assert fault.adapted((channels,), Random(1)) == replace(fault, coordinator=None)
    assert fault.adapted((channels, messages), Random(1)) is None
    assert fault.adapted((), Random(1)) == fault
    for other in (RecreateTopic(), RecreateTopic(commits=True, behind="b1")):
        with pytest.raises(ValueError, match="is of a group with commits"):
            replace(other, coordinator=CoordinatorTrouble.BEHIND)


@pytest.mark.parametrize(
    ("trouble", "cut"),
    [
        (CoordinatorTrouble.BEHIND, on_channel(both_ways(["b1"], ["c1"]), ChannelName.METADATA)),
        (CoordinatorTrouble.ALONE, on_channel(one_way(["b2", "b3"], ["b1"]), ChannelName.FETCH)),
        (
            CoordinatorTrouble.LOADING,
            (
                *on_channel(one_way(["b2", "b3"], ["b1"]), ChannelName.FETCH),
                *both_ways(["b1"], ["b2", "b3", "c1"]),
                *on_channel(one_way(["b2", "b3"], ["b2", "b3"]), ChannelName.FETCH),
            ),
        ),
    ],
)
def test_a_coordinator_lacks_something_while_the_topic_is_deleted_and_made_anew(
    trouble: CoordinatorTrouble, cut: tuple[Link, ...]
) -> None:
    cluster = FakeCluster()
    carried_out(RecreateTopic(2, commits=True, coordinator=trouble, patience_ms=10), cluster, replication_factor=3)
    assert set(cluster.ever_cut) == set(cut)
    assert not cluster.cuts


def test_answers_are_lost_only_where_messages_can_be_told_apart() -> None:
    able = ClusterShape(("b1", "b2", "b3"), ("c1", "c2", "c3"), 1)
    unable = replace(able, unsupported=frozenset({EnvironmentCapability.MESSAGES}))
    profile = RunProfile((), 0.5, 1.0, (KeepUnsynced.NOTHING,))

    def drawn(shape: ClusterShape) -> set[LostAnswer | None]:
        faults = [RecreateTopic.draw(Draws(Random(seed), shape, profile)) for seed in range(40)]
        return {fault.answers for fault in faults if fault is not None}

    assert drawn(able) == {None, *LostAnswer}
    assert drawn(unable) == {None}
    assert RecreateTopic().needs() == frozenset()
    assert RecreateTopic(answers=LostAnswer.DEPOSED).needs() == {
        EnvironmentCapability.MESSAGES,
        EnvironmentCapability.RESIGNATION,
    }
