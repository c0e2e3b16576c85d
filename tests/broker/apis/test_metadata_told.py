"""Metadata answers in the trace: those that the metadata in effect contradicts only if they are wrong."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any, cast

from kio.schema.describe_topic_partitions.v0.request import DescribeTopicPartitionsRequest, TopicRequest
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic

from images.broker.apis.cluster import ClusterApis
from images.broker.apis.topics import TopicApis
from images.wire.messages import Api
from tests.broker.apis.data_path import CONFIG, TOPIC, Broker, run


def asked(*topics: MetadataRequestTopic) -> MetadataRequest:
    return MetadataRequest(topics=topics, allow_auto_topic_creation=False, include_topic_authorized_operations=False)


def named(name: str) -> MetadataRequestTopic:
    return MetadataRequestTopic(topic_id=None, name=name)


def serving() -> Broker:
    broker = Broker()
    broker.handlers |= ClusterApis(CONFIG, lambda: broker.image, broker.trace.append).handlers()
    broker.handlers |= TopicApis(lambda: broker.image, broker.trace.append).handlers()
    broker.trace.clear()
    return broker


def test_an_answer_about_topics_by_name_is_traced() -> None:
    async def scenario() -> None:
        broker = serving()
        await broker.ask(Api.METADATA, asked(named("t"), named("u")))
        (event,) = broker.trace
        assert (event.log_end, event.detail["asked"], event.detail["brokers"]) == (
            broker.image.offset,
            ["t", "u"],
            [1, 2, 3],
        )
        (topic, error, topic_id, partitions), unknown = cast(list[Any], event.detail["topics"])
        assert (topic, error, topic_id, len(partitions)) == ("t", "none", str(TOPIC), 2)
        assert unknown == ["u", "unknown_topic_or_partition", "None", []]

    run(scenario)


def test_an_answer_to_a_request_that_names_a_topic_by_its_id_is_not_since_its_names_are_ignored() -> None:
    async def scenario() -> None:
        broker = serving()
        unknown = MetadataRequestTopic(topic_id=uuid.UUID(int=9), name="t")
        await broker.ask(Api.METADATA, asked(unknown))
        await broker.ask(Api.METADATA, asked(named("t"), unknown))
        assert broker.trace == []

    run(scenario)


def test_an_answer_about_more_than_a_thousand_topics_is_not_traced() -> None:
    async def scenario() -> None:
        broker = serving()
        for count in (1_000, 1_001):
            names = [f"u{number}" for number in range(count)]
            await broker.ask(Api.METADATA, asked(*map(named, names)))
            topics = tuple(TopicRequest(name=name) for name in names)
            described = DescribeTopicPartitionsRequest(topics=topics, response_partition_limit=1, cursor=None)
            await broker.ask(Api.DESCRIBE_TOPIC_PARTITIONS, described)
            assert [len(cast(list[Any], event.detail["topics"])) for event in broker.trace] == [1_000, 1_000]

    run(scenario)


def test_an_answer_that_newer_metadata_has_overtaken_is_not_traced() -> None:
    async def scenario() -> None:
        broker = serving()
        answering = asyncio.create_task(broker.ask(Api.METADATA, asked(*(named(f"u{each}") for each in range(1_000)))))
        await asyncio.sleep(0)
        broker.elect(2, 1, isr=(2,))
        broker.trace.clear()
        await answering
        assert broker.trace == []

    run(scenario)
