"""An administrator's faults ask for one thing, tell what came of it, and put back what they changed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random

import pytest

from checkers.verdict import Validity
from harness.runner.run import run_in_simulation
from harness.spec import parse
from images.broker.raft.node import RaftNode
from images.broker.raft.values import RaftRole
from nemesis.cluster_shape import ClusterShape
from nemesis.faults.administrators.admin import (
    CancelReassignment,
    ControlledRestart,
    ElectPreferred,
    MoveController,
    RaiseMinIsr,
    Reassign,
    RollingRestart,
)
from nemesis.faults.fault import Fault
from nemesis.faults.process import Pause
from nemesis.handle import ActiveEffects, FaultHandle
from nemesis.nemesis import Nemesis
from nemesis.ports import DONE, EnvironmentCapability
from nemesis.schedule import Schedule, ScheduledFault
from nemesis.situation import Occurrence
from nemesis.swarm import draw
from tests.nemesis.administrators.carried_out import carried_out
from tests.nemesis.fake_cluster import FakeCluster
from tests.workloads.virtual_time import run


def test_where_all_brokers_hold_a_replica_one_is_taken_away_and_put_back() -> None:
    cluster = FakeCluster()
    handle = carried_out(Reassign(0), cluster)
    away, back = cluster.calls
    assert len(away.split()) == 4
    assert back == "reassign t-0 b1 b2 b3"
    assert handle.evidence == {"reassigned": 1.0}


def test_a_replica_that_is_out_of_the_isr_stays_where_another_one_leaves() -> None:
    cluster = FakeCluster()
    handle = FaultHandle(cluster, ActiveEffects(), Random(3), "t", min_isr=2)
    handle.situation.isr_changed(0, cluster.brokers)

    async def scenario() -> str:
        injecting = asyncio.create_task(Reassign(0, short=True).inject(handle))
        await asyncio.sleep(0.1)
        (follower,) = {link.target for link in cluster.cuts} - {"b1"}
        assert not cluster.calls[1:], "it is asked for when the follower has left"
        handle.situation.isr_changed(0, tuple(broker for broker in cluster.brokers if broker != follower))
        await injecting
        await handle.heal()
        return follower

    follower = run(scenario())
    _, moved, *_ = cluster.calls
    assert follower in moved.split()
    assert cluster.pristine


def test_a_partition_moves_to_a_broker_outside_when_there_is_one() -> None:
    cluster = FakeCluster(brokers=4)
    cluster.placed = ("b1", "b2", "b3")
    carried_out(Reassign(0), cluster)
    (moved,) = cluster.calls
    assert moved.endswith("b4")


def test_what_was_taken_away_is_put_back_however_often_that_is_refused() -> None:
    cluster = FakeCluster()
    cluster.answers = ["", "UNANSWERED", "REQUEST_TIMED_OUT", "INVALID_REPLICA_ASSIGNMENT"]
    carried_out(Reassign(0), cluster)
    assert cluster.calls[1:] == ["reassign t-0 b1 b2 b3"] * 4


def test_where_a_reassignment_does_not_replace_another_one_that_one_is_cancelled_first() -> None:
    """Kafka answers that the replicas of before are back, and goes on taking one away (docs/kafka.md)."""
    cluster = FakeCluster()
    cluster.unsupported = {EnvironmentCapability.REPLACED_REASSIGNMENTS: "it goes on"}
    cluster.answers = ["", "NO_REASSIGNMENT_IN_PROGRESS", "UNANSWERED"]
    carried_out(Reassign(0), cluster)
    assert cluster.calls[1:] == ["reassign t-0 cancel", "reassign t-0 b1 b2 b3"] * 2


def test_the_last_replicas_that_are_needed_are_not_taken_away() -> None:
    cluster = FakeCluster(brokers=2)
    handle = carried_out(Reassign(0), cluster)
    assert not cluster.calls
    assert not Reassign(0).took_effect(handle.evidence)


@pytest.mark.parametrize("replication_factor", [2, 4])
@pytest.mark.parametrize("fault", [Reassign(0), CancelReassignment(0)])
def test_a_partition_with_more_or_fewer_replicas_than_it_is_to_have_is_not_moved(
    fault: Fault, replication_factor: int
) -> None:
    """More of them are there while a replica moves; fewer are told by a broker that has not read of one put back, and
    what it has would be taken for the placement to restore."""
    cluster = FakeCluster(brokers=4)
    cluster.placed = ("b1", "b2", "b3")
    handle = FaultHandle(cluster, ActiveEffects(), Random(3), "t", min_isr=1, replication_factor=replication_factor)

    async def scenario() -> None:
        await fault.inject(handle)
        await handle.heal()

    run(scenario())
    assert not cluster.calls
    assert handle.notes == ["a reassignment of an earlier fault is under way"]


def test_a_partition_of_whose_replicas_nobody_tells_is_not_called_one_that_is_moving() -> None:
    cluster = FakeCluster()
    cluster.placed = ()
    handle = FaultHandle(cluster, ActiveEffects(), Random(3), "t", min_isr=1, replication_factor=3)
    run(Reassign(0).inject(handle))
    assert handle.notes == ["no broker told of its replicas"]


def test_two_faults_do_not_move_one_partition_at_a_time() -> None:
    cluster, effects = FakeCluster(), ActiveEffects()
    second = FaultHandle(cluster, effects, Random(4), "t", min_isr=2)

    async def scenario() -> None:
        first = FaultHandle(cluster, effects, Random(3), "t", min_isr=2)
        await Reassign(0).inject(first)
        await Reassign(0).inject(second)
        assert second.notes == ["another fault is moving it"]
        await second.heal()
        await first.heal()

    run(scenario())
    assert len(cluster.calls) == 2
    assert not effects.placements


@pytest.mark.parametrize(
    ("answer", "evidence"),
    [("", "cancelled"), ("NO_REASSIGNMENT_IN_PROGRESS", "completed"), ("INVALID_REPLICA_ASSIGNMENT", "refused")],
)
def test_what_came_of_cancelling_is_told(answer: str, evidence: str) -> None:
    cluster = FakeCluster()
    cluster.answers = ["", "", answer]
    handle = carried_out(CancelReassignment(0), cluster)
    assert cluster.calls[2:] == ["reassign t-0 cancel", "reassign t-0 b1 b2 b3"]
    assert handle.evidence == {"reassigned": 1.0, evidence: 1.0}


def test_a_move_that_is_not_cancelled_in_time_bites_by_itself() -> None:
    handle = FaultHandle(FakeCluster(), ActiveEffects(), Random(3), "t", min_isr=2)

    async def scenario() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(CancelReassignment(0, patience_ms=1e6).inject(handle), 1.0)

    run(scenario())
    assert handle.evidence == {"reassigned": 1.0}
    assert CancelReassignment(0).took_effect(handle.evidence)


def test_an_election_bites_only_when_leadership_moved() -> None:
    cluster = FakeCluster()
    cluster.answers = ["ELECTION_NOT_NEEDED"]
    assert not ElectPreferred(0).took_effect(carried_out(ElectPreferred(0), cluster).evidence)
    assert ElectPreferred(0).took_effect(carried_out(ElectPreferred(0), cluster).evidence)


def test_a_raised_minimum_is_lowered_to_what_the_run_has_and_never_below() -> None:
    cluster = FakeCluster()
    carried_out(RaiseMinIsr(), cluster)
    assert cluster.calls == ["configure t min.insync.replicas=3", "configure t min.insync.replicas=2"]


def test_a_rolling_restart_stops_a_broker_only_when_the_one_before_is_started() -> None:
    cluster = FakeCluster()
    handle = carried_out(RollingRestart(), cluster)
    stopped = [call.split()[1] for call in cluster.calls[::2]]
    assert sorted(stopped) == ["b1", "b2", "b3"]
    assert cluster.calls == [f"{step} {broker}" for broker in stopped for step in ("stop", "start")]
    assert handle.evidence == {"stopped": 3.0}


def test_a_broker_told_to_leave_is_down_until_the_fault_heals() -> None:
    cluster = FakeCluster()
    carried_out(ControlledRestart(("b2",)), cluster)
    assert cluster.calls == ["stop b2", "start b2"]


def test_a_broker_may_be_told_to_leave_again_before_it_hears_that_it_is_registered() -> None:
    class Registers(FakeCluster):
        async def start(self, node: str) -> None:
            await super().start(node)
            assert self.interceptions or node == "c1" or len(self.calls) > 4, (
                "no answer may come before the second stop"
            )
            handle.situation.occurred(Occurrence.REGISTERED, node)

    cluster = Registers()
    handle = FaultHandle(cluster, ActiveEffects(), Random(3))

    async def scenario() -> None:
        await ControlledRestart(("b2", "c1"), unheard=True).inject(handle)
        assert not cluster.interceptions
        assert cluster.down == {"b2", "c1"}
        await handle.heal()

    run(scenario())
    assert cluster.calls == ["stop b2", "start b2", "stop b2", "stop c1", "start c1", "start b2"]
    assert handle.notes == []
    assert cluster.pristine


def test_brokers_are_told_twice_only_where_messages_can_be_told_apart() -> None:
    def twice(unsupported: frozenset[EnvironmentCapability]) -> set[bool]:
        cluster = ClusterShape(("b1", "b2", "b3"), ("c1",), partitions=2, unsupported=unsupported)
        drawn = [each.fault for seed in range(100) for each in draw(Random(seed), cluster, 60.0, ["admin"])]
        return {fault.unheard for fault in drawn if isinstance(fault, ControlledRestart)}

    assert twice(frozenset()) == {True, False}
    assert twice(frozenset({EnvironmentCapability.MESSAGES})) == {False}


def test_a_fifth_of_the_nodes_told_to_leave_are_controllers_where_these_are_nodes_of_their_own() -> None:
    def controllers(cluster: ClusterShape) -> int:
        schedules = [draw(Random(seed), cluster, 60.0, ["admin"]) for seed in range(300)]
        restarts = [
            each.fault for schedule in schedules for each in schedule if isinstance(each.fault, ControlledRestart)
        ]
        assert len(restarts) > 200
        return round(10 * sum(fault.nodes[0].startswith("c") for fault in restarts) / len(restarts))

    cluster = ClusterShape(("b1", "b2", "b3"), ("c1", "c2", "c3"), partitions=2)
    assert controllers(cluster) == 2
    assert controllers(replace(cluster, controllers=())) == 0


@pytest.mark.parametrize("keep", [{}, {"keep": "nothing"}], ids=["with power", "without power"])
def test_an_active_controller_that_stops_leaves_the_quorum(
    keep: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    left, leave = [], RaftNode.leave

    async def spied(node: RaftNode) -> None:
        left.append(node.state.role)
        await leave(node)

    monkeypatch.setattr(RaftNode, "leave", spied)
    restart = {"at": 3, "for": 3, "fault": "controlled-restart", "nodes": ["controller"], **keep}
    outcome = run_in_simulation(parse({"seed": 1, "time_limit": 10, "faults": [restart]}))
    assert outcome.validity is Validity.VALID, outcome.verdicts
    (injection,) = outcome.injections
    assert injection.took_effect
    assert left == [RaftRole.LEADER]


def test_moving_the_controller_asks_the_active_one_once() -> None:
    cluster = FakeCluster(controllers=3)
    cluster.active = "c2"
    handle = carried_out(MoveController(), cluster)
    assert cluster.calls == ["move controller"]
    assert handle.targets.nodes == ["c2"]
    assert MoveController().took_effect(handle.evidence)


def test_a_controller_that_is_not_moved_leaves_no_evidence() -> None:
    cluster = FakeCluster(controllers=3)
    cluster.active, cluster.answers = None, ["UNANSWERED"]
    handle = carried_out(MoveController(), cluster)
    assert not MoveController().took_effect(handle.evidence)
    assert "not moved: UNANSWERED" in handle.notes


BACK = "reassign t-0 b1 b2 b3"


@pytest.mark.parametrize("frozen", [False, True], ids=["nobody answered", "somebody did, who was asked second"])
def test_what_undoes_a_request_in_doubt_is_asked_for_once_more_when_everything_is_healed(frozen: bool) -> None:
    cluster = FakeCluster()
    cluster.frozen_over_a_request, cluster.answers = frozen, [] if frozen else ["UNANSWERED"]
    schedule = Schedule((ScheduledFault(1, 2, Reassign(0)), ScheduledFault(1, 20, Pause(nodes=("b1",)))))

    async def scenario() -> None:
        running = asyncio.ensure_future(nemesis(cluster, schedule).run(asyncio.get_running_loop().time() + 60))
        await asyncio.sleep(59)
        assert cluster.calls.count(BACK) == 1
        await running

    run(scenario())
    assert cluster.calls.count(BACK) == 2
    assert cluster.calls[-1] == BACK


def test_what_is_certain_is_undone_once() -> None:
    cluster = FakeCluster()
    run_schedule(cluster, ScheduledFault(1, 2, Reassign(0)))
    assert cluster.calls[1:] == [BACK]


@pytest.mark.parametrize(("refused", "unhealed"), [(130, False), (300, True)])
def test_what_other_faults_kept_from_being_undone_is_asked_for_again_when_everything_is_healed(
    refused: int, unhealed: bool
) -> None:
    """Sixty seconds of refusals, in a run of a hundred; a cluster that refuses once it is healed is told of."""
    cluster = FakeCluster()
    cluster.answers = [DONE, *["UNANSWERED"] * refused]
    schedule = Schedule((ScheduledFault(1, 2, RaiseMinIsr()),))
    storm = nemesis(cluster, schedule)

    async def scenario() -> None:
        await storm.run(asyncio.get_running_loop().time() + 100)

    run(scenario())
    told = "lowering min.insync.replicas: NotDone: UNANSWERED"
    assert storm.unhealed == ((told,) if unhealed else ())


def test_what_is_done_at_last_while_the_cluster_recovers_is_healed() -> None:
    cluster = FakeCluster()
    cluster.answers = [DONE, *["UNANSWERED"] * 300]
    storm = nemesis(cluster, Schedule((ScheduledFault(1, 2, RaiseMinIsr()),)))

    async def scenario() -> None:
        await storm.run(asyncio.get_running_loop().time() + 100)
        assert storm.unhealed
        confirming = asyncio.ensure_future(storm.keep_confirmed())
        await asyncio.sleep(60)
        assert storm.unhealed == ()
        confirming.cancel()

    run(scenario())


def test_of_several_faults_in_doubt_the_first_knew_how_it_was() -> None:
    cluster = FakeCluster(brokers=4)
    cluster.frozen_over_a_request, cluster.placed = True, ("b1", "b2", "b3", "b4")

    async def scenario() -> None:
        running = asyncio.ensure_future(
            nemesis(cluster, Schedule((ScheduledFault(1, 2, Reassign(0)), ScheduledFault(11, 2, Reassign(0))))).run(
                asyncio.get_running_loop().time() + 60
            )
        )
        await asyncio.sleep(10)
        cluster.placed = ("b1", "b2", "b3")  # the first was carried out late, after all
        await running

    run(scenario())
    assert cluster.calls[-1] == "reassign t-0 b1 b2 b3 b4"


def nemesis(cluster: FakeCluster, schedule: Schedule) -> Nemesis:
    return Nemesis(cluster, schedule, Random(1), lambda _: None, "t", min_isr=2)


def run_schedule(cluster: FakeCluster, *scheduled: ScheduledFault) -> None:
    async def scenario() -> None:
        await nemesis(cluster, Schedule(scheduled)).run(asyncio.get_running_loop().time() + 60)

    run(scenario())
