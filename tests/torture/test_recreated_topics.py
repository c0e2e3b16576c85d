"""The fault `recreate-topic` finds brokers that take a new topic for a deleted one of its name, and no other ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from checkers.verdict import Validity
from harness.runner.outcome import Outcome
from harness.runner.run import run_in_simulation
from harness.spec import SpecError, parse
from images.broker.config import ConfigKey
from images.broker.controller import controller, messages, topic_config
from images.broker.controller.channel import ControllerChannel
from images.broker.controller.controller import Controller
from images.broker.controller.placement import NewPartitions
from images.broker.controller.refusals import says_not_controller
from images.broker.controller.topic_config import ConfigChange
from images.broker.groups.group import Group
from images.broker.groups.records import OffsetRecord
from images.broker.groups.shard import Shard
from images.broker.groups.tombstones import Tombstones
from images.broker.metadata.image import ClusterImage, PartitionImage
from images.wire.connection import ConnectionLost
from nemesis.cluster_shape import ClusterShape
from nemesis.drawing import Draws, RunProfile
from nemesis.faults.administrators.recreate_topic import LostAnswer, RecreateTopic
from nemesis.ports import SIDE_TOPICS, KeepUnsynced
from tests.broker.controller.early_strategies import begin_early

RECREATED: dict[str, Any] = {"at": 1, "for": 16, "fault": "recreate-topic"}
ENDED = [RECREATED | {"topics": 4, "victim": "b1"}]
"""Each new topic finds b1 killed."""
UNREAD = [
    RECREATED | {"topics": 2},
    {"at": 1.3, "for": 7, "fault": "partition", "nodes": ["b1", "b2", "b3"], "channel": "metadata"},
    {"at": 1.5, "for": 5, "fault": "kill", "nodes": ["b1"]},
]
"""The topic is deleted while no broker reads of it, and its leader proposes b1 for the ISR."""


def _without_tombstones(shard: Shard, record: OffsetRecord) -> None:
    if record.value is not None:
        shard.groups.setdefault(record.group, Group(record.group))
        shard._offsets.replay(record)


def outcome_of(seed: int, faults: list[dict[str, Any]], *mistakes: str) -> Outcome:
    world = {"seed": seed, "time_limit": "18s", "partitions": 1}
    return run_in_simulation(parse({**world, "faults": faults, "mistakes": list(mistakes)}))


@pytest.mark.parametrize(
    ("seed", "faults", "mistake", "finding"),
    [
        (4, ENDED, "deleted_high_watermark_counts", "high-watermark-unfounded"),
        (2, UNREAD, "unknown_topic_ends_isr_change", "isr-change-given-up"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_broker_that_takes_the_new_topic_for_the_old_one_is_found(
    seed: int, faults: list[dict[str, Any]], mistake: str, finding: str
) -> None:
    kept, broken = outcome_of(seed, faults), outcome_of(seed, faults, mistake)
    assert kept.validity is Validity.VALID, kept.verdicts
    assert all(injection.took_effect for injection in kept.injections)
    assert finding in {each.kind for verdict in broken.verdicts for each in verdict.findings}


@pytest.mark.parametrize(
    ("name", "changed", "faults"),
    [
        ("_replay_offset", _without_tombstones, [{"at": 6, "for": 3, "fault": "kill", "nodes": ["leader/0"]}]),
        ("forget_topics", lambda shard, topics: None, []),
    ],
    ids=["tombstones are not loaded", "topics are not forgotten"],
)
def test_a_coordinator_that_keeps_the_offsets_of_a_deleted_topic_is_found(
    name: str, changed: Any, faults: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = {"seed": 1, "time_limit": "18s", "partitions": 1, "workload": "groups"}
    spec = parse(world | {"faults": [RECREATED | {"commits": True}, *faults]})
    kept = run_in_simulation(spec)
    assert kept.validity is Validity.VALID, kept.verdicts
    monkeypatch.setattr(Shard, name, changed)
    broken = run_in_simulation(spec)
    assert "offsets-held-otherwise" in {each.kind for verdict in broken.verdicts for each in verdict.findings}


def test_a_coordinator_that_tells_offsets_as_deleted_before_their_tombstones_are_committed_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its successor could tell them again: a consumer of the new topic would begin at the offset of the old one.

    Now and then no follower fetches from b2, which leads `__consumer_offsets`, until its ISR is too small for
    tombstones; topics are deleted meanwhile."""
    cut = {"for": 2, "fault": "partition", "shape": "one-way", "against": ["b2"], "channel": "fetch"}
    faults = [RECREATED | {"topics": 8, "commits": True, "patience_ms": 1500}] * 3
    faults += [cut | {"at": at, "nodes": [node]} for at in (3, 7, 11) for node in ("b1", "b3")]
    settings = {"offsets.topic.num.partitions": 1, "replica.lag.time.max.ms": 1000}
    world = {"seed": 27, "time_limit": "18s", "partitions": 1, "workload": "groups"}
    spec = parse(world | {"settings": settings, "faults": faults})
    kept = run_in_simulation(spec)
    assert kept.validity is Validity.VALID, kept.verdicts
    monkeypatch.setattr(Tombstones, "committed", lambda tombstones, high_watermark: True)
    broken = run_in_simulation(spec)
    assert "deletion-told-early" in {each.kind for verdict in broken.verdicts for each in verdict.findings}


@pytest.mark.parametrize("answers", LostAnswer)
def test_a_broker_that_asks_once_more_after_a_lost_answer_is_found(
    answers: LostAnswer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask_again(channel: ControllerChannel, request: Any) -> Any:
        while True:
            with suppress(ConnectionLost):
                answer = await channel.call(request)
                if not says_not_controller(answer):
                    return answer
            await asyncio.sleep(0.01)

    faults = [RECREATED | {"answers": str(answers)}]
    kept = outcome_of(3, faults)
    monkeypatch.setattr(ControllerChannel, "forward", ask_again)
    broken = outcome_of(3, faults)
    assert kept.validity is Validity.VALID, kept.verdicts
    assert {request["change"] for request in kept.recovery["requests"]} == {"create", "delete"}
    assert "change-unasked" in {each.kind for verdict in broken.verdicts for each in verdict.findings}


def test_of_several_such_faults_each_leaves_no_topic_behind() -> None:
    faults = [RECREATED | {"at": at, "topics": 3} for at in (1, 2)]
    outcome = outcome_of(3, faults)
    assert outcome.validity is Validity.VALID, outcome.verdicts
    assert [injection.took_effect for injection in outcome.injections] == [True, True]
    assert outcome.recovery["unhealed"] == []


def _one_replica(patch: pytest.MonkeyPatch) -> None:
    """Partitions that are added have one replica each."""
    right = controller.plan_partitions

    def planned(image: ClusterImage, requested: NewPartitions) -> tuple[PartitionImage, ...]:
        return tuple(
            replace(each, replicas=each.replicas[:1], isr=each.replicas[:1]) for each in right(image, requested)
        )

    patch.setattr(controller, "plan_partitions", planned)


def _one_too_many(patch: pytest.MonkeyPatch) -> None:
    right = messages.parse_create_partitions
    patch.setattr(
        messages,
        "parse_create_partitions",
        lambda body, random: [replace(each, count=each.count + 1) for each in right(body, random)],
    )


def _nothing_subtracted(patch: pytest.MonkeyPatch) -> None:
    """A list keeps what is to be subtracted."""
    right = topic_config._changed_value

    def changed(change: ConfigChange, key: ConfigKey, before: str) -> str:
        return before if change.operation == topic_config.SUBTRACT else right(change, key, before)

    patch.setattr(topic_config, "_changed_value", changed)


def _other_keys_kept(patch: pytest.MonkeyPatch) -> None:
    """AlterConfigs sets its key, and leaves the others as they are."""
    patch.setattr(controller, "whole", lambda config, changes: tuple(changes))


@pytest.mark.parametrize(
    ("mistake", "finding"),
    [
        (_one_replica, "partitions-added-otherwise"),
        (_one_too_many, "answered-undone"),
        (_nothing_subtracted, "answered-undone"),
        (_other_keys_kept, "configured-otherwise"),
    ],
)
def test_a_controller_that_changes_a_topic_otherwise_is_found(
    mistake: Callable[[pytest.MonkeyPatch], None], finding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = [RECREATED | {"changes": True, "topics": 6}] * 2
    kept = outcome_of(3, faults)
    assert kept.validity is Validity.VALID, kept.verdicts
    mistake(monkeypatch)
    broken = outcome_of(3, faults)
    assert finding in {each.kind for verdict in broken.verdicts for each in verdict.findings}


def _dry_runs_take_effect(patch: pytest.MonkeyPatch) -> None:
    """Of created topics and of added partitions."""
    right = Controller._create
    patch.setattr(
        Controller,
        "_create",
        lambda self, requests, count, plan, validate_only: right(self, requests, count, plan, False),
    )


def _dry_runs_configure(patch: pytest.MonkeyPatch) -> None:
    right = Controller.alter_config

    def altered(self: Controller, *given: Any, replaces: bool, validate_only: bool) -> Any:
        return right(self, *given, replaces=replaces)

    patch.setattr(Controller, "alter_config", altered)


def _dry_runs_unvalidated(patch: pytest.MonkeyPatch) -> None:
    """They are answered as done without a look."""
    right = Controller._create

    def created(self: Controller, requests: Any, count: Any, plan: Any, validate_only: bool) -> Any:
        result = right(self, requests, count, plan, validate_only)
        done = tuple(replace(each, error=ErrorCode.none, message=None) for each in result.answer)
        return replace(result, answer=done) if validate_only else result

    patch.setattr(Controller, "_create", created)


def _dry_runs_refused(patch: pytest.MonkeyPatch) -> None:
    """As if the configuration were not valid."""
    right = Controller.alter_config

    def altered(self: Controller, *given: Any, replaces: bool, validate_only: bool) -> Any:
        result = right(self, *given, replaces=replaces, validate_only=validate_only)
        refused = replace(result.answer, error=ErrorCode.invalid_config)
        return replace(result, answer=refused) if validate_only else result

    patch.setattr(Controller, "alter_config", altered)


def _dry_runs_without_config(patch: pytest.MonkeyPatch) -> None:
    """They tell no configuration of the topic that is to be created."""
    right = messages._created
    patch.setattr(
        messages,
        "_created",
        lambda result, validate_only: replace(
            right(result, validate_only), **({"configs": ()} if validate_only else {})
        ),
    )


@pytest.mark.parametrize(
    "mistake",
    [
        _dry_runs_take_effect,
        _dry_runs_configure,
        _dry_runs_unvalidated,
        _dry_runs_refused,
        _dry_runs_without_config,
    ],
)
def test_a_controller_whose_dry_runs_are_not_dry_or_not_answered_as_the_request_is_found(
    mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = [RECREATED | {"topics": 4, "changes": True, "dry_runs": True}]
    mistake(monkeypatch)
    broken = outcome_of(3, faults)
    assert {each.kind for verdict in broken.verdicts for each in verdict.findings} == {"dry-run-otherwise"}


def test_dry_runs_of_two_administrators_have_the_answers_of_their_requests() -> None:
    faults = [RECREATED | {"topics": 6, "changes": True, "dry_runs": True}] * 2
    kept = outcome_of(3, faults)
    assert kept.validity is Validity.VALID, kept.verdicts
    outcomes = {(each["change"], each["outcome"]) for each in kept.recovery["dry_runs"]}
    assert {("create", ""), ("grow", ""), ("configure", "")} < outcomes
    refused = {("create", "TOPIC_ALREADY_EXISTS"), ("grow", "INVALID_PARTITIONS"), ("configure", "INVALID_CONFIG")}
    assert refused < outcomes


@pytest.mark.parametrize("early", [False, True])
def test_a_controller_that_changes_the_strategy_before_enough_replicas_are_known_is_found(
    early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recovery would then not ask the victim, which has left the ELR, and what it alone has would be lost."""
    if early:
        begin_early(monkeypatch)
    outcome = outcome_of(11, [RECREATED | {"topics": 4, "victim": "b1", "changes": True}])
    assert outcome.validity is (Validity.INVALID if early else Validity.VALID), outcome.verdicts
    kinds = {each.kind for verdict in outcome.verdicts for each in verdict.findings}
    assert kinds == ({"strategy-changed-early"} if early else set())


def test_a_broker_ends_only_where_the_run_has_a_victim() -> None:
    def drawn(*victims: str) -> set[tuple[str, ...]]:
        cluster = ClusterShape(("b1", "b2", "b3"), ("c1",), partitions=1)
        profile = RunProfile(victims, leader_bias=0.5, held_share=0.5, keeps=tuple(KeepUnsynced))
        faults = [RecreateTopic.draw(Draws(Random(seed), cluster, profile)) for seed in range(20)]
        return {fault.at_risk(cluster) for fault in faults if fault is not None}

    assert drawn() == {()}
    assert drawn("b2") == {(), ("b2",)}


@pytest.mark.parametrize("topic", SIDE_TOPICS)
def test_scripts_leave_the_topics_of_the_fault_alone(topic: str) -> None:
    with pytest.raises(SpecError, match=f"{topic} is a topic that faults create and delete; name another one"):
        parse({"clients": {"operations": [f"create topic {topic}"]}})
    with pytest.raises(SpecError, match="keep: torn without a victim that loses power"):
        parse({"faults": [RECREATED | {"keep": "torn"}]})
