"""A controller process: brokers, topics and ISR changes over the wire."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from kio.schema.allocate_producer_ids.v0.request import AllocateProducerIdsRequest
from kio.schema.alter_partition.v3 import request as alter
from kio.schema.delete_topics.v6.request import DeleteTopicsRequest, DeleteTopicState
from kio.schema.describe_quorum.v2 import request as describe
from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v1 import request as configuring
from kio.schema.list_partition_reassignments.v0 import request as listing

from images.broker import controller_node
from images.wire.batch import iterate
from images.wire.connection import ConnectionLost
from tests.broker.controller.running_controller import SESSION_MS, SHORT_SESSIONS, UNIX_MS, run, running


def test_a_broker_that_registers_and_heartbeats_is_unfenced_for_all_to_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as node:
            registered = await node.register(1)
            assert (registered.error_code, registered.broker_epoch) == (ErrorCode.none, 1)
            broker = (await node.image()).brokers[1]
            assert (broker.fenced, broker.host, broker.port) == (True, "b1", 9092)
            beat = await node.beat(1, 1)
            assert (beat.error_code, beat.is_caught_up, beat.is_fenced) == (ErrorCode.none, True, False)
            assert not (await node.image()).brokers[1].fenced
            again = await node.register(1, incarnation=2)
            assert again.error_code is ErrorCode.duplicate_broker_registration
            await node.register(1, incarnation=2)
            assert [event.kind for event in node.decided] == [
                "node_started", "broker_registered", "session_begun", "broker_unfenced", "registration_refused",
            ], "a refusal that is repeated is traced once"  # fmt: skip

    run(scenario)


def test_a_registration_that_says_too_little_or_for_another_cluster_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as node:
            assert (await node.register(1, cluster_id="other")).error_code is ErrorCode.inconsistent_cluster_id
            assert (await node.register(1, listeners=())).error_code is ErrorCode.invalid_request
            assert (await node.register(1, incarnation_id=None)).error_code is ErrorCode.invalid_request
            assert (await node.register(1, broker_id=-1)).error_code is ErrorCode.invalid_request

    run(scenario)


def test_a_broker_with_the_node_id_of_a_controller_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as node:
            assert (await node.register(101)).error_code is ErrorCode.invalid_registration
            assert (await node.image()).brokers == {}

    run(scenario)


def test_times_in_describe_quorum_and_in_records_are_of_the_clock_of_records(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as node:
            await node.register(1)
            topic = describe.TopicData(
                topic_name="__cluster_metadata", partitions=(describe.PartitionData(partition_index=0),)
            )
            answer = await node.call(describe.DescribeQuorumRequest(topics=(topic,)))
            (voter,) = answer.topics[0].partitions[0].current_voters
            assert voter.last_caught_up_timestamp // 1000 == UNIX_MS // 1000
            records = (await node.fetch(0)).records
            assert {header.max_timestamp for header, _ in iterate(records)} == {UNIX_MS}

    run(scenario)


def test_a_silent_broker_is_fenced_and_one_that_heartbeats_is_not(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, SHORT_SESSIONS) as node:
            await node.start_broker(1)
            epoch = await node.start_broker(2)
            await node.create_topic("orders", 1, 2)
            for _ in range(12):
                await asyncio.sleep(SESSION_MS / 1000 / 10)
                assert not (await node.beat(2, epoch)).is_fenced
            image = await node.image()
            assert (image.brokers[1].fenced, image.brokers[2].fenced) == (True, False)
            partition = image.partition("orders", 0)
            assert partition is not None
            assert (partition.leader, partition.isr) == (2, (2,))

    run(scenario)


def test_acknowledged_changes_survive_a_restart_with_fresh_sessions(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as node:
            epoch = await node.start_broker(1)
            await node.create_topic("orders", 1)
            before = await node.image()
        await asyncio.sleep(SESSION_MS / 1000)
        async with running(tmp_path, SHORT_SESSIONS) as node:
            assert await node.image() == replace(before, offset=before.offset + 1), "a new epoch begins with a record"
            assert not (await node.beat(1, epoch)).is_fenced
            assert (await node.register(2)).broker_epoch == before.offset + 1, "broker epochs go on rising"
            assert node.decided[0].kind == "node_started"
            assert [event.kind for event in node.decided if "taken_over" not in event.detail][1:] == [
                "broker_registered"
            ]

    run(scenario)


def test_a_leader_changes_its_isr_and_is_told_the_new_state(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as node:
            epochs = {broker: await node.start_broker(broker) for broker in (1, 2)}
            topic_id = (await node.create_topic("orders", 1, 2)).topic_id

            def proposal(index: int, partition_epoch: int = 0) -> alter.PartitionData:
                return alter.PartitionData(
                    partition_index=index,
                    leader_epoch=0,
                    new_isr_with_epochs=(alter.BrokerState(broker_id=1, broker_epoch=epochs[1]),),
                    partition_epoch=partition_epoch,
                )

            async def send(epoch: int) -> Any:
                topics = (
                    alter.TopicData(topic_id=uuid.UUID(int=5), partitions=(proposal(3),)),
                    alter.TopicData(topic_id=topic_id, partitions=(proposal(7), proposal(0))),
                )
                return await node.call(alter.AlterPartitionRequest(broker_id=1, broker_epoch=epoch, topics=topics))

            answer = await send(epochs[1])
            assert [(t.topic_id, [(p.partition_index, p.error_code) for p in t.partitions]) for t in answer.topics] == [
                (uuid.UUID(int=5), [(3, ErrorCode.unknown_topic_id)]),
                (topic_id, [(7, ErrorCode.unknown_topic_or_partition), (0, ErrorCode.none)]),
            ]
            granted = answer.topics[1].partitions[1]
            assert (granted.leader_id, granted.leader_epoch, granted.isr, granted.partition_epoch) == (1, 0, (1,), 1)
            stale = await send(99)
            assert (stale.error_code, stale.topics) == (ErrorCode.stale_broker_epoch, ())

    run(scenario)


def test_topics_are_created_and_deleted_over_the_wire(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as node:
            await node.start_broker(1)
            created = await node.create_topic("orders", 1, **{"min.insync.replicas": "1"})
            assert (created.error_code, created.num_partitions, created.replication_factor) == (ErrorCode.none, 1, 1)
            assert {config.name: config.value for config in created.configs} == {
                "min.insync.replicas": "1",
                "unclean.leader.election.enable": "false",
                "unclean.recovery.strategy": "last-known-leader",
            }
            again = await node.create_topic("orders", 1)
            assert (again.error_code, again.error_message) == (
                ErrorCode.topic_already_exists,
                "Topic 'orders' already exists.",
            )
            wanted = (DeleteTopicState(name="orders", topic_id=None), DeleteTopicState(topic_id=uuid.UUID(int=9)))
            deleted = await node.call(DeleteTopicsRequest(topics=wanted, timeout=timedelta(seconds=1)))
            assert [(result.name, result.error_code) for result in deleted.responses] == [
                ("orders", ErrorCode.none),
                (None, ErrorCode.unknown_topic_id),
            ]
            assert not (await node.image()).topics

    run(scenario)


def test_a_change_too_large_for_the_metadata_log_is_refused_and_the_next_one_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as node:
            await node.start_broker(1)
            await node.create_topic("orders", 1)
            before = await node.image()
            monkeypatch.setattr("images.broker.raft.log.CHANGE_BYTES_MAX", 2_000)
            text = ",".join(f"{partition}:1" for partition in range(500))
            refused = await node.create_topic("payments", 1, **{"leader.replication.throttled.replicas": text})
            assert refused.error_code is ErrorCode.policy_violation
            assert "at most 2000 fit the metadata log" in refused.error_message
            setting = configuring.AlterableConfig(
                name="leader.replication.throttled.replicas", config_operation=0, value=text
            )
            change = configuring.AlterConfigsResource(resource_type=2, resource_name="orders", configs=(setting,))
            answer = await node.call(
                configuring.IncrementalAlterConfigsRequest(resources=(change,), validate_only=False)
            )
            assert [result.error_code for result in answer.responses] == [ErrorCode.policy_violation]
            assert await node.image() == before
            assert (await node.create_topic("payments", 1)).error_code is ErrorCode.none
            assert set((await node.image()).topics) == {"orders", "payments"}

    run(scenario)


def test_an_answer_to_an_administrator_that_changes_nothing_is_committed(tmp_path: Path) -> None:
    """A deposed controller commits nothing, so it cannot answer by old metadata that all is as it is to be, that there
    is no such topic, or that nothing is being reassigned."""
    config = configuring.AlterableConfig(name="min.insync.replicas", config_operation=0, value="1")
    resource = configuring.AlterConfigsResource(resource_type=2, resource_name="t", configs=(config,))
    unknown = DeleteTopicsRequest(topics=(DeleteTopicState(name="u", topic_id=None),), timeout=timedelta(seconds=1))
    requests = [
        configuring.IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False),
        unknown,
        listing.ListPartitionReassignmentsRequest(timeout=timedelta(seconds=1), topics=None),
    ]

    async def scenario() -> None:
        async with running(tmp_path) as node:
            await node.start_broker(1)
            await node.create_topic("t", 1, **{"min.insync.replicas": "1"})
            for request in requests:
                before = await node.image()
                await node.call(request)
                assert await node.image() == replace(before, offset=before.offset + 1)

    run(scenario)


def test_producer_ids_are_not_given_twice_even_across_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        firsts = []
        for _ in range(2):
            async with running(tmp_path) as node:
                epoch = (await node.register(1)).broker_epoch
                for _ in range(2):
                    answer = await node.call(AllocateProducerIdsRequest(broker_id=1, broker_epoch=epoch))
                    assert (answer.error_code, answer.producer_id_len) == (ErrorCode.none, 1000)
                    firsts.append(answer.producer_id_start)
                stale = await node.call(AllocateProducerIdsRequest(broker_id=1, broker_epoch=epoch + 1))
                assert stale.error_code is ErrorCode.stale_broker_epoch
        assert firsts == [0, 1000, 2000, 3000]

    run(scenario)


def test_a_controller_deposed_between_two_configurations_does_not_say_that_none_was_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker that has forwarded the request would repeat it at the next controller, and undo later changes."""
    right, altered = controller_node._ActiveController._alter_config, list[object]()

    async def deposed_after_the_first(self: controller_node._ActiveController, *about: Any) -> Any:
        result = await right(self, *about)
        altered.append(result.name)
        self._raft.resign()
        return result

    def minimum(topic: str) -> configuring.AlterConfigsResource:
        config = configuring.AlterableConfig(name="min.insync.replicas", config_operation=0, value="1")
        return configuring.AlterConfigsResource(resource_type=2, resource_name=topic, configs=(config,))

    async def scenario() -> None:
        async with running(tmp_path) as node:
            for broker in (1, 2):
                await node.start_broker(broker)
            for topic in ("t1", "t2"):
                await node.create_topic(topic, 1, 2)
            monkeypatch.setattr(controller_node._ActiveController, "_alter_config", deposed_after_the_first)
            resources = (minimum("t1"), minimum("t2"))
            request = configuring.IncrementalAlterConfigsRequest(resources=resources, validate_only=False)
            with pytest.raises(ConnectionLost):
                await node.call(request)
            assert altered == ["t1"]

    run(scenario)
