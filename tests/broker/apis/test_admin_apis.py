"""A broker carries an administrator's requests to the controller, and the change reaches the replicas it leads."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from kio.schema.alter_configs.v2 import request as replacing
from kio.schema.alter_partition_reassignments.v0 import request as reassigning
from kio.schema.create_partitions.v3 import request as enlarging
from kio.schema.create_topics.v7 import request as creating
from kio.schema.delete_topics.v6 import request as deleting
from kio.schema.describe_configs.v4 import request as describing_configs
from kio.schema.describe_quorum.v2 import request as quorum
from kio.schema.describe_topic_partitions.v0 import request as describing
from kio.schema.elect_leaders.v2 import request as electing
from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v1 import request as configuring
from kio.schema.list_partition_reassignments.v0 import request as listing
from kio.schema.produce.v11 import request as producing

from images.broker.apis.forwarded import FORWARDED, ForwardedApis
from images.broker.config import Endpoint, Voter
from images.broker.controller.channel import ControllerChannel, ControllerLocator
from images.broker.log.log import Log
from images.broker.runtime.server import Request
from images.wire import batch as batches
from images.wire.get_replica_log_info import GetReplicaLogInfoRequest, TopicPartitions
from images.wire.messages import Api, response_class
from tests.broker.small_cluster import Cluster

SECOND = timedelta(seconds=1)


def configure(name: str, value: str, kind: int = 2, of: str = "t") -> configuring.IncrementalAlterConfigsRequest:
    entry = configuring.AlterableConfig(name=name, config_operation=0, value=value)
    resource = configuring.AlterConfigsResource(resource_type=kind, resource_name=of, configs=(entry,))
    return configuring.IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)


async def produced(cluster: Cluster, value: bytes) -> ErrorCode:
    data = producing.PartitionProduceData(index=0, records=batches.build([value], timestamp_ms=5))
    topic = producing.TopicProduceData(name="t", partition_data=(data,))
    answer = await cluster.call(producing.ProduceRequest(acks=-1, timeout=SECOND, topic_data=(topic,)))
    error: ErrorCode = answer.responses[0].partition_responses[0].error_code
    return error


async def configured(cluster: Cluster, name: str, kind: int = 2, of: str = "t") -> Any:
    resource = describing_configs.DescribeConfigsResource(
        resource_type=kind, resource_name=of, configuration_keys=(name,)
    )
    request = describing_configs.DescribeConfigsRequest(
        resources=(resource,), include_synonyms=False, include_documentation=False
    )
    (config,) = (await cluster.call(request)).results[0].configs
    return config


async def described(cluster: Cluster, name: str) -> str:
    return str((await configured(cluster, name)).value)


async def until_described(cluster: Cluster, name: str, value: str) -> None:
    while True:
        if await described(cluster, name) == value:
            return
        await asyncio.sleep(0.01)


def in_cluster(tmp_path: Path, scenario: Any) -> None:
    async def limited() -> None:
        cluster = Cluster(tmp_path)
        async with asyncio.timeout(120), cluster.controlled(), cluster.broker():
            await cluster.create_topic()
            await cluster.produce(b"one")
            await scenario(cluster)

    asyncio.run(limited())


def test_a_changed_topic_configuration_is_described_and_applied(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        assert (await cluster.call(configure("max.message.bytes", "10"))).responses[0].error_code is ErrorCode.none
        await until_described(cluster, "max.message.bytes", "10")
        assert await produced(cluster, b"two") is ErrorCode.message_too_large
        await cluster.call(configure("max.message.bytes", "1000"))
        await until_described(cluster, "max.message.bytes", "1000")
        assert await produced(cluster, b"two") is ErrorCode.none

    in_cluster(tmp_path, scenario)


def test_the_index_distance_of_a_topic_reaches_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distances: list[int] = []
    right = Log.append

    def append(self: Log, batch: bytes, *, trusted: bool = False) -> Any:
        if self.directory == "t-0":
            distances.append(self.config.index_interval_bytes)
        return right(self, batch, trusted=trusted)

    monkeypatch.setattr(Log, "append", append)

    async def scenario(cluster: Cluster) -> None:
        by_default = await configured(cluster, "index.interval.bytes")
        assert (by_default.value, by_default.config_type) == ("0", 3), "a whole number of 32 bits, as in Kafka"
        refused = await cluster.call(configure("index.interval.bytes", "-1"))
        assert refused.responses[0].error_code is ErrorCode.invalid_config
        await cluster.call(configure("index.interval.bytes", "700"))
        await until_described(cluster, "index.interval.bytes", "700")
        assert await produced(cluster, b"two") is ErrorCode.none

    in_cluster(tmp_path, scenario)
    assert distances == [0, 700]


def test_a_configuration_that_cannot_be_changed_is_refused_with_a_reason(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        wrong = (await cluster.call(configure("min.insync.replicas", "none"))).responses[0]
        assert wrong.error_code is ErrorCode.invalid_config
        assert "min.insync.replicas" in wrong.error_message
        broker = (await cluster.call(configure("num.partitions", "3", kind=4, of="1"))).responses[0]
        assert broker.error_code is ErrorCode.invalid_request

    in_cluster(tmp_path, scenario)


def test_exactly_the_configurations_that_cannot_be_changed_are_read_only(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        by_default = await configured(cluster, "retention.ms")
        assert not by_default.read_only
        await cluster.call(configure("retention.ms", "1000"))
        await until_described(cluster, "retention.ms", "1000")
        assert not (await configured(cluster, "retention.ms")).read_only
        assert (await configured(cluster, "log.retention.ms", kind=4, of="1")).read_only

    in_cluster(tmp_path, scenario)


@pytest.mark.parametrize("api", FORWARDED)
def test_a_request_that_no_controller_answers_times_out(api: Api) -> None:
    topic = creating.CreatableTopic(name="t", num_partitions=1, replication_factor=1, assignments=(), configs=())
    enlarged = enlarging.CreatePartitionsTopic(name="t", count=2, assignments=None)
    deleted = deleting.DeleteTopicState(name="t", topic_id=None)
    replaced = replacing.AlterConfigsResource(resource_type=2, resource_name="t", configs=())
    bodies = {
        Api.CREATE_TOPICS: creating.CreateTopicsRequest(timeout=SECOND, topics=(topic,)),
        Api.CREATE_PARTITIONS: enlarging.CreatePartitionsRequest(
            timeout=SECOND, topics=(enlarged,), validate_only=False
        ),
        Api.DELETE_TOPICS: deleting.DeleteTopicsRequest(timeout=SECOND, topics=(deleted,)),
        Api.ALTER_CONFIGS: replacing.AlterConfigsRequest(resources=(replaced,), validate_only=False),
        Api.INCREMENTAL_ALTER_CONFIGS: configure("retention.ms", "1"),
        Api.ALTER_PARTITION_REASSIGNMENTS: reassigning.AlterPartitionReassignmentsRequest(timeout=SECOND, topics=()),
        Api.LIST_PARTITION_REASSIGNMENTS: listing.ListPartitionReassignmentsRequest(timeout=SECOND, topics=None),
        Api.ELECT_LEADERS: electing.ElectLeadersRequest(election_type=0, topic_partitions=None, timeout=SECOND),
        Api.DESCRIBE_QUORUM: quorum.DescribeQuorumRequest(topics=()),
    }
    nobody = ControllerLocator([Voter(101, Endpoint("127.0.0.1", 1))])
    with closing(ControllerChannel(nobody, "test", 0.02, 0.01)) as channel:
        answer = asyncio.run(ForwardedApis(channel).forward(Request(api, 0, "test", 1, bodies[api], {})))
    assert isinstance(answer, response_class(api))
    results = [getattr(answer, name, ()) for name in ("topics", "responses", "results")]
    refused = [part.error_code for part in (answer, *itertools.chain(*results)) if hasattr(part, "error_code")]
    assert refused == [ErrorCode.request_timed_out]


def test_a_reassignment_is_listed_as_soon_as_it_is_accepted(tmp_path: Path) -> None:
    """By a broker, too, that has not read of it yet: whoever waits until none is listed must not be done before."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.register_silent(2)
        topic = reassigning.ReassignableTopic(
            name="t", partitions=(reassigning.ReassignablePartition(partition_index=0, replicas=(2, 1)),)
        )
        await cluster.call(reassigning.AlterPartitionReassignmentsRequest(timeout=SECOND, topics=(topic,)))
        with closing(ControllerChannel(ControllerLocator(cluster.voters), "test", 5.0, 0.01)) as channel:
            broker_without_metadata = ForwardedApis(channel)

            async def listed(*topics: listing.ListPartitionReassignmentsTopics) -> Any:
                asked = listing.ListPartitionReassignmentsRequest(timeout=SECOND, topics=topics or None)
                request = Request(Api.LIST_PARTITION_REASSIGNMENTS, 0, "test", 1, asked, {})
                return (await broker_without_metadata.forward(request)).topics

            (moving,) = await listed()
            assert [(moved.replicas, moved.adding_replicas) for moved in moving.partitions] == [((2, 1), (2,))]
            assert await listed(listing.ListPartitionReassignmentsTopics(name="t", partition_indexes=(1,))) == ()

    in_cluster(tmp_path, scenario)


def test_reassignments_and_elections_are_answered_for_each_partition(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        asked = tuple(
            reassigning.ReassignablePartition(partition_index=index, replicas=replicas)
            for index, replicas in ((0, (1, 9)), (0, None), (7, (1,)))
        )
        topic = reassigning.ReassignableTopic(name="t", partitions=asked)
        answer = await cluster.call(reassigning.AlterPartitionReassignmentsRequest(timeout=SECOND, topics=(topic,)))
        assert [result.error_code for result in answer.responses[0].partitions] == [
            ErrorCode.invalid_replica_assignment,
            ErrorCode.no_reassignment_in_progress,
            ErrorCode.unknown_topic_or_partition,
        ]
        under_way = await cluster.call(listing.ListPartitionReassignmentsRequest(timeout=SECOND, topics=None))
        assert under_way.topics == ()
        wanted = electing.TopicPartitions(topic="t", partitions=(0,))
        election = electing.ElectLeadersRequest(election_type=0, topic_partitions=(wanted,), timeout=SECOND)
        result = (await cluster.call(election)).replica_election_results[0].partition_result[0]
        assert result.error_code is ErrorCode.election_not_needed

    in_cluster(tmp_path, scenario)


def test_a_topic_is_described_with_its_eligible_leader_replicas_and_in_pages(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        names = (describing.TopicRequest(name="t"), describing.TopicRequest(name="absent"))
        answer = await cluster.call(describing.DescribeTopicPartitionsRequest(topics=names, response_partition_limit=1))
        absent, topic = answer.topics
        assert absent.error_code is ErrorCode.unknown_topic_or_partition
        (partition,) = topic.partitions
        assert (partition.leader_id, partition.isr_nodes) == (1, (1,))
        assert (partition.eligible_leader_replicas, partition.last_known_elr) == ((), ())
        assert answer.next_cursor is None

    in_cluster(tmp_path, scenario)


def test_replica_log_info_has_the_end_and_the_epochs_of_each_log(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        names = (describing.TopicRequest(name="t"),)
        described = await cluster.call(describing.DescribeTopicPartitionsRequest(topics=names))
        ours, unknown = described.topics[0].topic_id, uuid.UUID(int=9)
        asked = tuple(TopicPartitions(topic_id=topic, partitions=(0, 7)) for topic in (ours, unknown))
        answer = await cluster.call(GetReplicaLogInfoRequest(broker_id=1, topic_partitions=asked))
        assert answer.broker_epoch == cluster.told("registered")[-1].broker_epoch
        (here, elsewhere), strangers = (topic.partition_log_info for topic in answer.topic_partition_log_info_list)
        assert (here.error_code, here.log_end_offset) == (ErrorCode.none, 1)
        assert here.last_written_leader_epoch == here.current_leader_epoch == 0
        assert elsewhere.error_code is ErrorCode.replica_not_available
        assert {update.error_code for update in strangers} == {ErrorCode.unknown_topic_id}

    in_cluster(tmp_path, scenario)
