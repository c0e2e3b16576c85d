"""The controllers' quorum, played exactly: who is active, what a zombie can do, how those come back who were away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from harness.cluster.systems import SYSTEMS, configured
from harness.environments.base import Deployment, Listener
from harness.environments.sim import Simulation
from images.trace import TraceEvent
from nemesis.ports import DONE, UNANSWERED, AdminResult, KeepUnsynced, Link, LinkQuality, both_ways
from workloads.clients.native import AdminClient, Client

TOPIC = "t"
_TRIED, _PAUSE_S = 100, 0.1


@dataclass
class Cluster:
    """Three controllers, three brokers and a topic, in simulation."""

    deployment: Deployment
    trace: list[tuple[str, TraceEvent]]
    changed: int = 0
    names: list[str] = field(default_factory=lambda: ["c1", "c2", "c3"])

    async def decide(self) -> AdminResult:
        """Ask the cluster, once, for a change that disturbs nobody."""
        self.changed += 1
        return await self.deployment.admin.configure(TOPIC, "max.message.bytes", str(1_000_000 + self.changed))

    async def until_decided(self) -> None:
        for _ in range(_TRIED):
            if (await self.decide()).outcome == DONE:
                return
            await asyncio.sleep(_PAUSE_S)
        raise AssertionError("nobody decides")

    async def active(self) -> str:
        """The active controller, as it tells itself through a broker."""
        for _ in range(_TRIED):
            name = await self.deployment.admin.controller()
            if name is not None:
                return name
            await asyncio.sleep(_PAUSE_S)
        raise AssertionError("nobody is active")

    def others(self, name: str) -> list[str]:
        return [other for other in self.names if other != name]

    def told(self, kind: str, node: str | None = None) -> list[TraceEvent]:
        return [event for teller, event in self.trace if event.kind == kind and node in (None, teller)]


def play(scenario: Callable[[Cluster], Awaitable[None]], seed: int = 1, controllers: int = 3, **settings: str) -> None:
    trace: list[tuple[str, TraceEvent]] = []
    simulation = Simulation()
    layout = configured(
        SYSTEMS["broker"],
        simulation.layout(3, controllers),
        {name.replace("_", "."): value for name, value in settings.items()},
        (),
    )

    async def run(deployment: Deployment) -> None:
        await deployment.deploy()
        client = Client(deployment.bootstrap(), "test", deployment.stream("test"))
        await AdminClient(client).create_topic(TOPIC, 1, 3, {}, 30)
        await scenario(Cluster(deployment, trace))
        assert not deployment.crashes
        await client.close()

    listener = Listener(lambda _, node, event: trace.append((node, event)), lambda node, line: None)
    simulation.execute(layout, run, seed=seed, listener=listener)


def test_brokers_find_the_successor_of_a_controller_that_died() -> None:
    async def scenario(cluster: Cluster) -> None:
        former = await cluster.active()
        await cluster.deployment.kill(former)
        await cluster.until_decided()
        assert await cluster.active() != former

    for seed in range(5):
        play(scenario, seed)


def test_a_zombie_controller_commits_nothing_and_drops_what_it_appended() -> None:
    async def scenario(cluster: Cluster) -> None:
        zombie = await cluster.active()
        cut = both_ways([zombie], cluster.others(zombie))
        await cluster.deployment.cut(cut)
        committed = len(cluster.told("metadata_committed", zombie))
        appended = len(cluster.told("metadata_appended", zombie))
        await cluster.until_decided()
        assert len(cluster.told("metadata_appended", zombie)) > appended, "the zombie did append it"
        successor = await cluster.active()
        assert successor != zombie
        assert len(cluster.told("metadata_committed", zombie)) == committed
        await cluster.deployment.heal_links(cut)
        await cluster.until_decided()
        await asyncio.sleep(3)
        assert cluster.told("metadata_truncated", zombie)
        end = max(event.log_end for event in cluster.told("metadata_appended"))
        assert cluster.told("metadata_appended", zombie)[-1].log_end == end, "it holds what the others hold"

    play(scenario)


def test_one_controller_of_three_decides_nothing() -> None:
    async def scenario(cluster: Cluster) -> None:
        survivor = await cluster.active()
        for other in cluster.others(survivor):
            await cluster.deployment.kill(other)
        await asyncio.sleep(2)
        committed = len(cluster.told("metadata_committed"))
        for _ in range(3):
            assert (await cluster.decide()).outcome == UNANSWERED
        assert len(cluster.told("metadata_committed")) == committed
        assert await cluster.deployment.admin.controller() is None
        await cluster.deployment.start(cluster.others(survivor)[0])
        await cluster.until_decided()

    play(scenario)


def test_votes_and_metadata_survive_a_power_loss_of_all_controllers() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.until_decided()
        epoch = max(event.leader_epoch for event in cluster.told("quorum_leader"))
        held = {name: cluster.told("metadata_appended", name)[-1].log_end for name in cluster.names}
        committed = cluster.told("metadata_committed")[-1].high_watermark
        for name in cluster.names:
            await cluster.deployment.power_off(name, KeepUnsynced.NOTHING)
        for name in cluster.names:
            await cluster.deployment.start(name)
        await cluster.until_decided()
        for name in cluster.names:
            back = cluster.told("quorum_recovered", name)[-1]
            assert (back.leader_epoch, back.log_end) >= (epoch, min(committed, held[name]))
        assert max(event.leader_epoch for event in cluster.told("quorum_leader")) > epoch

    play(scenario)


def test_a_controller_that_resigns_is_succeeded_at_once() -> None:
    async def scenario(cluster: Cluster) -> None:
        former, elections = await cluster.active(), len(cluster.told("quorum_leader"))
        assert (await cluster.deployment.admin.move_controller()).outcome == DONE
        await asyncio.sleep(0.3)
        assert len(cluster.told("quorum_leader")) == elections + 1
        assert await cluster.active() != former
        await cluster.until_decided()

    play(scenario)


def test_brokers_read_on_in_the_metadata_at_once_when_a_controller_has_resigned() -> None:
    """However long followers of partitions pause: brokers that read of no change for a second take a topic for unknown
    that there is, and a leader for another one."""

    async def scenario(cluster: Cluster) -> None:
        epoch = cluster.told("quorum_leader")[-1].leader_epoch
        assert (await cluster.deployment.admin.move_controller()).outcome == DONE
        await cluster.until_decided()
        await asyncio.sleep(0.3)
        for broker in ("b1", "b2", "b3"):
            assert cluster.told("metadata_applied", broker)[-1].leader_epoch > epoch

    play(scenario, replica_fetch_backoff_ms="5000")


def test_a_leader_that_was_kept_from_looking_for_its_quorum_tells_how_long() -> None:
    async def scenario(cluster: Cluster) -> None:
        former = await cluster.active()
        await cluster.deployment.pause(former)
        await cluster.until_decided()
        await cluster.deployment.resume(former)
        await asyncio.sleep(1)
        kinds = ("quorum_resigned", "quorum_follower", "quorum_unattached")
        ends = [event for kind in kinds for event in cluster.told(kind, former) if "check_overdue_ms" in event.detail]
        assert [event.detail["check_overdue_ms"] >= 200 for event in ends] == [True]

    play(scenario)


def test_a_leader_that_looks_for_its_quorum_in_time_tells_nothing_of_it() -> None:
    async def scenario(cluster: Cluster) -> None:
        former = await cluster.active()
        cut = both_ways([former], cluster.others(former))
        await cluster.deployment.cut(cut)
        await cluster.until_decided()
        await asyncio.sleep(5)
        assert ["check_overdue_ms" in event.detail for event in cluster.told("quorum_resigned", former)] == [False]
        await cluster.deployment.heal_links(cut)

    play(scenario)


def test_who_was_away_while_the_log_was_trimmed_begins_with_a_snapshot() -> None:
    """Controllers and brokers alike: their logs are gone, and the others' logs no longer begin at the beginning."""

    async def scenario(cluster: Cluster) -> None:
        away = cluster.others(await cluster.active())[0]
        await cluster.deployment.kill(away)
        await cluster.deployment.kill("b1")
        for _ in range(12):
            await cluster.until_decided()
        assert max(event.offset for event in cluster.told("metadata_trimmed")) > 10
        await cluster.deployment.start(away)
        await cluster.deployment.start("b1")
        await cluster.until_decided()
        await asyncio.sleep(5)
        assert cluster.told("metadata_restored", away)
        assert cluster.told("broker_unfenced")[-1].broker == 1, "it has read its own registration"
        for other in cluster.others(away):
            await cluster.deployment.kill(other)
            await cluster.until_decided()
            await cluster.deployment.start(other)
            await asyncio.sleep(1)

    play(scenario, **{"metadata.log.max.record.bytes.between.snapshots": "500"})


@pytest.mark.parametrize("alone", [False, True])
def test_a_snapshot_that_takes_longer_than_the_fetch_timeout_is_read_to_its_end(alone: bool) -> None:
    """Else the controller asks for votes in the midst of it, and begins it anew, for as long as its link is slow; or,
    with the third controller down, the leader resigns, and nobody decides."""

    async def scenario(cluster: Cluster) -> None:
        active = await cluster.active()
        away, third = cluster.others(active)
        await cluster.deployment.kill(away)
        for _ in range(12):
            await cluster.until_decided()
        if alone:
            await cluster.deployment.kill(third)
        await cluster.deployment.degrade(both_ways([away], cluster.others(away)), LinkQuality(delay_ms=200))
        before = len(cluster.told("quorum_resigned"))
        await cluster.deployment.start(away)
        started = asyncio.get_running_loop().time()
        while not cluster.told("metadata_restored", away):
            assert asyncio.get_running_loop().time() < started + 30, "it is read anew, again and again"
            await asyncio.sleep(0.1)
        assert asyncio.get_running_loop().time() > started + 4, "longer than the leader's patience of three seconds"
        assert len(cluster.told("quorum_resigned")) == before

    settings = {
        "metadata.log.max.record.bytes.between.snapshots": "500",
        "controller.quorum.fetch.snapshot.max.bytes": "100",
    }
    play(scenario, **settings)


@pytest.mark.parametrize("reader", ["controller", "broker"])
def test_a_snapshot_is_read_to_its_end_though_the_next_is_written_meanwhile(reader: str) -> None:
    """Else it is refused in the middle and read anew, for ever if the next one comes as soon again."""

    async def scenario(cluster: Cluster) -> None:
        active = await cluster.active()
        away = cluster.others(active)[0] if reader == "controller" else "b1"
        await cluster.deployment.kill(away)
        while len(cluster.told("metadata_trimmed", active)) < 2:
            await cluster.until_decided()
        await cluster.deployment.degrade(both_ways([away], cluster.names), LinkQuality(delay_ms=200))
        begun_with = cluster.told("metadata_snapshot", active)[-1].log_end
        await cluster.deployment.start(away)
        await asyncio.sleep(3)
        read = {"controller": "metadata_restored", "broker": "metadata_loaded"}[reader]
        loaded, written = len(cluster.told(read, away)), len(cluster.told("metadata_snapshot", active))
        while len(cluster.told("metadata_snapshot", active)) == written:
            assert cluster.told("metadata_snapshot", active)[-1].log_end == begun_with
            await cluster.until_decided()
        assert len(cluster.told(read, away)) == loaded, "it was still reading"
        latest = cluster.told("metadata_snapshot", active)[-1].log_end
        await asyncio.sleep(10)
        (event,) = cluster.told(read, away)[loaded:]
        assert max(event.offset, event.log_end) == begun_with
        goes_on = {"controller": "metadata_appended", "broker": "metadata_applied"}[reader]
        assert cluster.told(goes_on, away)[-1].log_end >= latest, "it has read the rest from the log"
        assert [told.offset for told in cluster.told("metadata_trimmed", active)][-1] == begun_with

    settings = {
        "metadata.log.max.record.bytes.between.snapshots": "1000",
        "controller.quorum.fetch.snapshot.max.bytes": "100",
    }
    play(scenario, **settings)


def test_a_controller_that_lags_a_little_reads_what_it_lacks_from_the_log() -> None:
    """Though its leader has written a snapshot meanwhile."""

    async def scenario(cluster: Cluster) -> None:
        active = await cluster.active()
        away = cluster.others(active)[0]
        while not cluster.told("metadata_trimmed", active):
            await cluster.until_decided()
        await cluster.deployment.kill(away)
        written = len(cluster.told("metadata_snapshot", active))
        while len(cluster.told("metadata_snapshot", active)) == written:
            await cluster.until_decided()
        latest = cluster.told("metadata_snapshot", active)[-1].log_end
        assert cluster.told("metadata_appended", away)[-1].log_end < latest
        await cluster.deployment.start(away)
        await asyncio.sleep(5)
        assert cluster.told("metadata_appended", away)[-1].log_end >= latest
        assert not cluster.told("metadata_restored", away)

    play(scenario, **{"metadata.log.max.record.bytes.between.snapshots": "1000"})


@pytest.mark.parametrize("delay_ms", [500, 700])
def test_controllers_follow_over_links_on_which_connecting_and_a_fetch_last_longer_than_the_fetch_timeout(
    delay_ms: int,
) -> None:
    """A fetch alone does not. Each try finds the connection that an earlier one has begun to open."""

    async def scenario(cluster: Cluster) -> None:
        former = await cluster.active()
        between = [link for name in cluster.names for link in both_ways([name], cluster.others(name))]
        await cluster.deployment.degrade(list(dict.fromkeys(between)), LinkQuality(delay_ms=delay_ms))
        await cluster.deployment.kill(former)
        await cluster.deployment.start(former)
        elections = len(cluster.told("quorum_leader"))
        await asyncio.sleep(30)
        assert len(cluster.told("quorum_leader")) == elections + 1
        leader, _ = next(told for told in reversed(cluster.trace) if told[1].kind == "quorum_leader")
        elected, following = len(cluster.told("quorum_candidate")), len(cluster.told("quorum_follower"))
        committed = cluster.told("metadata_committed", leader)[-1].high_watermark
        await cluster.decide()
        await asyncio.sleep(30)
        assert cluster.told("metadata_committed", leader)[-1].high_watermark > committed
        assert (elected, following) == (len(cluster.told("quorum_candidate")), len(cluster.told("quorum_follower")))
        end = cluster.told("metadata_appended", leader)[-1].log_end
        assert [cluster.told("metadata_appended", name)[-1].log_end for name in cluster.names] == [end] * 3

    kafkas = {"election.timeout": "1000", "fetch.timeout": "2000", "request.timeout": "2000"}
    for seed in range(3):
        play(scenario, seed, **{f"controller.quorum.{name}.ms": value for name, value in kafkas.items()})


def test_a_follower_that_comes_back_to_its_leader_awaits_the_fetch_that_is_on_its_way() -> None:
    """A second fetch would wait behind it at the leader, until the follower's patience is over again."""

    async def scenario(cluster: Cluster) -> None:
        leader = await cluster.active()
        follower = cluster.others(leader)[0]
        returns = []
        for silence_s in (1.0, 1.1, 1.2, 1.3):
            before = len(cluster.told("quorum_follower", follower))
            await cluster.deployment.cut([Link(follower, leader)])
            await asyncio.sleep(silence_s)
            await cluster.deployment.heal_links([Link(follower, leader)])
            await asyncio.sleep(7)
            returns.append(len(cluster.told("quorum_follower", follower)) - before)
        assert sum(returns), "it has lost its patience"
        assert max(returns) == 1

    for seed in range(4):
        play(scenario, seed, **{"controller.quorum.request.timeout.ms": "2000"})


@pytest.mark.parametrize("isolated", [False, True], ids=["paused", "isolated"])
def test_brokers_follow_the_successor_of_a_silent_controller_before_their_sessions_end(isolated: bool) -> None:
    """With Kafka's own timeouts, of which that of a request is longer than a session (KAFKA-14392)."""

    async def scenario(cluster: Cluster) -> None:
        silent = await cluster.active()
        if isolated:
            await cluster.deployment.cut(both_ways([silent], [*cluster.others(silent), "b1", "b2", "b3"]))
        else:
            await cluster.deployment.pause(silent)
        await asyncio.sleep(15)
        elected = [name for name in cluster.others(silent) if cluster.told("quorum_leader", name)]
        assert elected
        end = max(event.high_watermark for name in elected for event in cluster.told("metadata_committed", name))
        assert [cluster.told("metadata_applied", name)[-1].log_end for name in ("b1", "b2", "b3")] == [end] * 3
        await asyncio.sleep(25)
        assert [event.broker for name in elected for event in cluster.told("broker_fenced", name)] == []
        if not isolated:
            await cluster.deployment.resume(silent)

    kafkas = {"heartbeat.interval": "2000", "session.timeout": "9000"}
    settings = {f"broker.{name}.ms": value for name, value in kafkas.items()}
    for seed in range(3):
        play(scenario, seed, **settings, **{"replica.socket.timeout.ms": "30000"})


def test_one_controller_alone_decides_and_starts_again_where_it_was() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.until_decided()
        await cluster.deployment.power_off("c1", KeepUnsynced.NOTHING)
        await cluster.deployment.start("c1")
        await cluster.until_decided()

    play(scenario, controllers=1)


@pytest.mark.parametrize("controllers", [2, 4])
def test_a_half_of_an_even_number_of_controllers_decides_nothing(controllers: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.names[:] = [f"c{number}" for number in range(1, controllers + 1)]
        await cluster.until_decided()
        active = await cluster.active()
        *spared, last = cluster.others(active)[: controllers // 2]
        for controller in spared:
            await cluster.deployment.kill(controller)
        await cluster.until_decided()
        await cluster.deployment.kill(last)
        assert (await cluster.decide()).outcome != DONE
        await asyncio.sleep(5)
        assert cluster.told("quorum_resigned", active), "it has found out that no majority follows"
        assert (await cluster.decide()).outcome != DONE
        elected = len(cluster.told("quorum_leader"))
        await asyncio.sleep(5)
        assert len(cluster.told("quorum_leader")) == elected
        await cluster.deployment.start(last)
        await cluster.until_decided()

    play(scenario, controllers=controllers)


def test_what_a_deposed_controller_could_not_commit_is_told_by_its_successor_though_that_trims_its_log_at_once() -> (
    None
):
    """The change reaches the others' logs, their next fetches do not come back: nobody knows that it is committed."""

    async def scenario(cluster: Cluster) -> None:
        former = await cluster.active()
        await cluster.deployment.cut([Link(other, former) for other in cluster.others(former)])
        await cluster.deployment.admin.configure(TOPIC, "min.insync.replicas", "3")
        await cluster.until_decided()
        successor = await cluster.active()
        assert successor != former
        assert not [event for event in cluster.told("partition_changed", former) if event.detail["min_isr"] == 3]
        raised = [event for event in cluster.told("partition_changed", successor) if event.detail["min_isr"] == 3]
        assert [event.detail.get("taken_over") for event in raised] == [True]
        assert cluster.told("metadata_trimmed", successor)

    play(scenario, **{"metadata.log.max.record.bytes.between.snapshots": "1"})
