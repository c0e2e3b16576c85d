"""Messages that arrive late, in a running cluster: a rule refuses each, and without it the message takes effect.

A late request was right when it was sent: the test sends it once more to the node that would receive it. Random faults
do not delay requests over a restart or an election of their sender.

A late answer comes by a slow link after leadership has gone to another broker and come back. The follower keeps its
connection to the first leader, which leads a second partition all the time.

The content of an answer that came too late, and was discarded, must come again.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from kio.schema.alter_partition.v3 import request as altering
from kio.schema.broker_heartbeat.v1.request import BrokerHeartbeatRequest
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v16 import request as fetching
from kio.schema.init_producer_id.v4.request import InitProducerIdRequest
from kio.schema.produce.v11 import request as producing

from images.broker.metadata.internal_topics import CLUSTER_METADATA_TOPIC_ID
from images.broker.truncation_protocol import TruncationProtocol
from images.trace import TraceEvent
from images.wire.batch import build
from nemesis.ports import DONE, Link, LinkQuality
from tests.scenarios.one_partition import RECORDS, TOPIC, Scene, played

SECOND = "u"
SLOW = LinkQuality(delay_ms=8000)
SETTINGS = {"replica.lag.time.max.ms": "60000", "replica.socket.timeout.ms": "60000"}


async def proposal(
    scene: Scene, state: TraceEvent, sender: str, epoch: int, *members: str
) -> altering.AlterPartitionRequest:
    """The request of `sender` in this state of the partition, with this broker epoch of its own."""
    ids = [(scene.deployment.layout.node(name).node_id, scene.broker_epoch(name)) for name in members]
    part = altering.PartitionData(
        partition_index=0,
        leader_epoch=state.leader_epoch,
        new_isr_with_epochs=tuple(altering.BrokerState(broker_id=number, broker_epoch=of) for number, of in ids),
        partition_epoch=state.partition_epoch,
    )
    topic = altering.TopicData(topic_id=await scene.topic_id(), partitions=(part,))
    (broker_id,) = scene.ids(sender)
    return altering.AlterPartitionRequest(broker_id=broker_id, broker_epoch=epoch, topics=(topic,))


async def return_to_lead(scene: Scene, leader: str, since: int) -> None:
    """The others take over from a leader that has gone since then; it comes back, and leads again."""
    others = scene.ids(*scene.replicas) - scene.ids(leader)
    await scene.until("partition_changed", isr=others, since=since)
    await scene.deployment.start(leader)
    await scene.until("partition_changed", member=leader, since=len(scene.trace))
    assert (await scene.deployment.admin.elect_preferred(TOPIC, 0)).outcome == DONE
    assert scene.changes()[-1].leader in scene.ids(leader)


async def error_of(scene: Scene, request: altering.AlterPartitionRequest) -> ErrorCode:
    answer = await scene.ask_controller(request)
    return answer.error_code if answer.error_code is not ErrorCode.none else answer.topics[0].partitions[0].error_code


def test_a_broker_that_does_not_lead_cannot_change_the_isr() -> None:
    """No broker sends such a request: that it is refused is no rule (docs/decisions/0002)."""

    async def scenario(scene: Scene) -> ErrorCode:
        leader, sender, _ = scene.replicas
        forged = await proposal(scene, scene.changes()[-1], sender, scene.broker_epoch(sender), leader, sender)
        return await error_of(scene, forged)

    assert played(scenario) is ErrorCode.invalid_request


@pytest.mark.parametrize(
    ("off", "error"),
    [((), ErrorCode.stale_broker_epoch), (("sender_epoch_checked_in_alter_partition",), ErrorCode.none)],
)
def test_an_earlier_incarnation_of_the_leader_changes_the_isr_exactly_without_the_rule(
    off: tuple[str, ...], error: ErrorCode
) -> None:

    async def scenario(scene: Scene) -> ErrorCode:
        leader, other, _ = scene.replicas
        epoch = scene.broker_epoch(leader)
        await scene.kill(leader)
        await return_to_lead(scene, leader, len(scene.trace))
        return await error_of(scene, await proposal(scene, scene.changes()[-1], leader, epoch, leader, other))

    assert played(scenario, *off) == error


@pytest.mark.parametrize(
    ("off", "error"),
    [((), ErrorCode.fenced_leader_epoch), (("leader_epoch_checked_in_alter_partition",), ErrorCode.none)],
)
def test_an_earlier_leadership_changes_the_isr_exactly_without_both_checks_of_epochs(
    off: tuple[str, ...], error: ErrorCode
) -> None:
    """An older leader epoch comes with an older partition epoch, so that check is off in any case."""

    async def scenario(scene: Scene) -> ErrorCode:
        leader, other, _ = scene.replicas
        before = scene.changes()[-1]
        since = len(scene.trace)
        await scene.deployment.stop(leader)
        await return_to_lead(scene, leader, since)
        epoch = scene.broker_epoch(leader)
        return await error_of(scene, await proposal(scene, before, leader, epoch, leader, other))

    assert played(scenario, "partition_epoch_checked_in_alter_partition", *off) == error


@pytest.mark.parametrize(
    ("off", "error"),
    [((), ErrorCode.invalid_update_version), (("min_isr_change_moves_partition_epoch",), ErrorCode.none)],
)
def test_a_leader_that_does_not_know_the_new_minimum_shrinks_the_isr_exactly_without_the_rule(
    off: tuple[str, ...], error: ErrorCode
) -> None:
    """At minimum 1 it would be right to go on alone. At minimum 2 the controllers count on an ELR for which the leader
    does not wait."""

    async def scenario(scene: Scene) -> tuple[ErrorCode, bool]:
        leader, *others = scene.replicas
        assert (await scene.deployment.admin.configure(TOPIC, "min.insync.replicas", "1")).outcome == DONE
        late = await proposal(scene, scene.changes()[-1], leader, scene.broker_epoch(leader), leader)
        assert (await scene.deployment.admin.configure(TOPIC, "min.insync.replicas", "2")).outcome == DONE
        answer = await error_of(scene, late)
        elr = scene.changes()[-1].detail["elr"]
        assert isinstance(elr, list | tuple)
        return answer, set(elr) == scene.ids(*others)

    assert played(scenario, *off) == (error, bool(off))


@pytest.mark.parametrize("off", [(), ("stale_heartbeat_refused",)])
def test_a_heartbeat_of_an_earlier_incarnation_unfences_a_broker_exactly_without_the_rule(off: tuple[str, ...]) -> None:
    """The new incarnation stalls as soon as it is registered, and has not read its registration."""

    async def scenario(scene: Scene) -> bool:
        _, _, follower = scene.replicas
        (number,) = scene.ids(follower)
        late = BrokerHeartbeatRequest(
            broker_id=number,
            broker_epoch=scene.broker_epoch(follower),
            current_metadata_offset=1 << 30,
            want_fence=False,
            want_shut_down=False,
        )
        await scene.kill(follower)
        since = len(scene.trace)
        await scene.deployment.start(follower)
        await scene.happens("broker_registered", broker=follower, since=since)
        await scene.deployment.pause(follower)
        answer = await scene.ask_controller(late)
        assert answer.error_code is (ErrorCode.none if off else ErrorCode.stale_broker_epoch)
        events = [event for _, event in scene.trace[since:]]
        await scene.deployment.resume(follower)
        return any((event.kind, event.broker) == ("broker_unfenced", number) for event in events)

    assert played(scenario, *off) == bool(off)


@pytest.mark.parametrize(
    ("off", "error"),
    [((), ErrorCode.out_of_order_sequence_number), (("producer_sequence_checked",), ErrorCode.none)],
)
def test_a_batch_behind_a_gap_in_the_sequence_is_appended_exactly_without_the_rule(
    off: tuple[str, ...], error: ErrorCode
) -> None:
    """The batches in between are still on their way."""

    async def scenario(scene: Scene) -> list[ErrorCode]:
        leader, errors = scene.replicas[0], []
        asked = InitProducerIdRequest(transactional_id=None, transaction_timeout=timedelta(0))
        producer = await scene.ask(leader, asked)
        for sequence in (0, 5):
            batch = build(
                [b"v"], timestamp_ms=1, producer_id=producer.producer_id, producer_epoch=0, base_sequence=sequence
            )
            data = producing.PartitionProduceData(index=0, records=batch)
            request = producing.ProduceRequest(
                transactional_id=None,
                acks=-1,
                timeout=timedelta(seconds=5),
                topic_data=(producing.TopicProduceData(name=TOPIC, partition_data=(data,)),),
            )
            errors.append((await scene.ask(leader, request)).responses[0].partition_responses[0].error_code)
        return errors

    assert played(scenario, *off) == [ErrorCode.none, error]


@pytest.mark.parametrize(
    ("off", "error"), [((), ErrorCode.fenced_leader_epoch), (("metadata_fetch_fenced",), ErrorCode.none)]
)
def test_a_metadata_fetch_of_an_earlier_epoch_is_answered_exactly_without_the_rule(
    off: tuple[str, ...], error: ErrorCode
) -> None:
    """The active controller is elected again, in a later epoch than that of the fetch."""

    async def scenario(scene: Scene) -> ErrorCode:
        since = len(scene.trace)
        assert (await scene.deployment.admin.move_controller()).outcome == DONE
        event = await scene.happens("quorum_leader", since=since)
        active = await scene.deployment.controller()
        assert active is not None
        other = next(name for name in scene.deployment.controllers if name != active)
        (replica,) = scene.ids(other)
        part = fetching.FetchPartition(
            partition=0,
            current_leader_epoch=event.leader_epoch - 1,
            fetch_offset=0,
            last_fetched_epoch=0,
            log_start_offset=0,
            partition_max_bytes=1000,
        )
        late = fetching.FetchRequest(
            replica_state=fetching.ReplicaState(replica_id=replica),
            max_wait=timedelta(0),
            min_bytes=0,
            topics=(fetching.FetchTopic(topic_id=CLUSTER_METADATA_TOPIC_ID, partitions=(part,)),),
            forgotten_topics_data=(),
        )
        return (await scene.ask(active, late)).responses[0].partitions[0].error_code

    assert played(scenario, *off) == error


# --- late answers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("off", [(), ("ignore_stale_fetch_answer",)])
def test_records_fetched_in_an_earlier_leadership_do_not_fit_the_log_exactly_without_the_rule(
    off: tuple[str, ...],
) -> None:
    async def scenario(scene: Scene) -> bool:
        leader, other, follower = scene.replicas
        await scene.create_topic(SECOND, 3)
        await scene.lead(SECOND, leader)
        await scene.deployment.degrade([Link(leader, follower)], SLOW)
        since = len(scene.trace)
        appended = asyncio.ensure_future(scene.append())
        await scene.happens("appended", node=other, since=since)
        await scene.lead(TOPIC, other)
        await scene.happens("appended", node=follower, since=since)
        await scene.lead(TOPIC, leader)
        await asyncio.sleep(20)
        misplaced = any("does not follow" in line for line in scene.log_lines)
        await asyncio.gather(appended)
        return misplaced

    assert played(scenario, *off, settings=SETTINGS) == bool(off)


@pytest.mark.parametrize("off", [(), ("ignore_stale_epoch_answer",)])
def test_an_end_of_an_epoch_from_an_earlier_leadership_cuts_committed_records_exactly_without_the_rule(
    off: tuple[str, ...],
) -> None:
    async def scenario(scene: Scene) -> list[int]:
        other, leader, follower = scene.replicas
        await scene.create_topic(SECOND, 3)
        await scene.lead(SECOND, leader)
        await scene.deployment.degrade([Link(leader, follower)], SLOW)
        await scene.lead(TOPIC, leader)
        await asyncio.sleep(9)  # the fetch before the query has its answer, and the query has none yet
        since = len(scene.trace)
        appended = [asyncio.ensure_future(scene.append())]
        await scene.happens("appended", node=other, since=since)
        await scene.lead(TOPIC, other)
        await scene.happens("appended", node=follower, since=since)
        appended.append(asyncio.ensure_future(scene.append()))
        await asyncio.sleep(1)
        await scene.lead(TOPIC, leader)
        await asyncio.sleep(20)
        events = scene.events(follower, "truncated", since)
        await asyncio.gather(*appended)
        return [event.offset for event in events if event.topic == TOPIC and event.offset < event.log_end]

    settings = {**SETTINGS, "faultline.protocol": "kip320"}
    assert played(scenario, *off, settings=settings) == ([RECORDS] if off else [])


@pytest.mark.parametrize("protocol", [TruncationProtocol.TRUNCATE_ON_FETCH, TruncationProtocol.KIP279])
def test_a_follower_that_discards_the_answer_with_a_log_start_reads_of_it_again_and_can_join(
    protocol: TruncationProtocol,
) -> None:
    """A third replica is taken off while the answer is on its way, which raises the leader epoch and leaves the leader.
    Below the leader's log start no follower may join the ISR, which this one leaves when it loses the controllers."""

    async def scenario(scene: Scene) -> tuple[list[tuple[str, int]], str]:
        cluster = scene.deployment
        leader, follower, _ = scene.replicas
        await asyncio.sleep(1)
        await cluster.degrade([Link(leader, follower)], LinkQuality(delay_ms=700))
        await asyncio.sleep(3)
        since = len(scene.trace)
        deletion = asyncio.ensure_future(cluster.admin.delete_records(TOPIC, 0, 6))
        await scene.until("log_start", node=leader, since=since)
        await asyncio.sleep(0.85)  # the answer with the log start has been sent, and is on the slow link
        assert (await cluster.admin.reassign(TOPIC, 0, [leader, follower])).outcome == DONE
        await asyncio.sleep(0.5)
        await cluster.clear_degradation([Link(leader, follower)])
        await deletion
        await scene.until("log_start", node=follower, since=since)
        starts = [(node, event.offset) for node, event in scene.trace[since:] if event.kind == "log_start"]
        cut = [Link(follower, node) for node in cluster.controllers]
        since = len(scene.trace)
        await cluster.cut(cut)
        await scene.until("partition_changed", isr=scene.ids(leader), since=since)
        await cluster.heal_links(cut)
        await scene.until("partition_changed", isr=scene.ids(leader, follower), since=len(scene.trace))
        return [start for start in starts if start[0] in (leader, follower)], await scene.append()

    starts, outcome = played(scenario, settings={"faultline.protocol": protocol})
    assert [offset for _, offset in starts] == [6, 6]
    assert outcome == "ok"
