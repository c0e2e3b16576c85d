"""The server's port: every version of every API, and the order of its answers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.api_versions.v0.response import ApiVersionsResponse as ApiVersionsV0
from kio.schema.api_versions.v3.request import ApiVersionsRequest
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v12.request import FetchPartition, FetchRequest, FetchTopic
from kio.schema.init_producer_id.v4.response import InitProducerIdResponse
from kio.schema.produce.v11.request import ProduceRequest

from images.broker.runtime.server import Handler, Request
from images.wire.connection import (
    SUPPORTED,
    Api,
    decode_response,
    encode_request,
    request_class,
    response_class,
)
from images.wire.versions import named_topic_id
from tests.broker.served import asking, asynchronous, echo, read_frame, serving, until
from tests.wire.message_values import EVERY_VERSION, filled, leaves

# ---- every version ---------------------------------------------------------------------------------------------------


def test_every_supported_version_of_every_api_is_served() -> None:
    @asynchronous
    async def run() -> None:
        seen: list[Request] = []

        def handler(api: Api) -> Handler:
            async def answer(request: Request) -> Any:
                seen.append(request)
                filled_answer = filled(response_class(api))
                if api is Api.FETCH:
                    topic_id = request.body.topics[0].topic_id
                    answered = tuple(replace(topic, topic_id=topic_id) for topic in filled_answer.responses)
                    filled_answer = replace(filled_answer, responses=answered)
                return filled_answer

            return answer

        handlers = {api.name: handler(api) for api in Api if api is not Api.API_VERSIONS}
        async with serving(**handlers) as running:
            connection = await running.connect()
            for api, version in EVERY_VERSION:
                if api is Api.API_VERSIONS:
                    continue
                answer = await connection.call(filled(request_class(api, version)), 5)
                assert type(answer) is response_class(api, version)
                assert (seen[-1].api, seen[-1].version, type(seen[-1].body)) == (api, version, request_class(api))
                told, canonical = dict(leaves(answer)), dict(leaves(filled(response_class(api))))
                assert {
                    path: value for path, value in told.items() if path in canonical and path[-1] != "topic_id"
                } == {path: value for path, value in canonical.items() if path in told and path[-1] != "topic_id"}
            connection.close()

    run()


@pytest.mark.parametrize("version", SUPPORTED[Api.API_VERSIONS])
def test_api_versions_are_told_in_every_version(version: int) -> None:
    @asynchronous
    async def run() -> None:
        async with serving(metadata=echo, produce=echo) as running:
            connection = await running.connect()
            software = {"client_software_name": "some-client", "client_software_version": "1.0"} if version >= 3 else {}
            answer = await connection.call(request_class(Api.API_VERSIONS, version)(**software), 5)
            assert answer.error_code is ErrorCode.none
            assert {entry.api_key: (entry.min_version, entry.max_version) for entry in answer.api_keys} == {
                Api.PRODUCE: (0, 11),
                Api.METADATA: (0, 12),
                Api.API_VERSIONS: (0, 3),
                Api.INIT_PRODUCER_ID: (0, 4),
            }
            connection.close()

    run()


@asynchronous
async def test_a_handler_is_told_which_host_asks() -> None:
    hosts: list[str] = []

    async def note(request: Request) -> InitProducerIdResponse:
        hosts.append(request.client_host)
        return await echo(request)

    async with serving(init_producer_id=note) as running:
        connection = await running.connect()
        await connection.call(asking(1), 1.0)
        connection.close()
    assert hosts == ["/127.0.0.1"]


@asynchronous
async def test_api_versions_in_an_unknown_version_are_answered_in_version_0_with_unsupported_version() -> None:
    async with serving() as running:
        reader, writer = await running.streams()
        frame = bytearray(
            encode_request(ApiVersionsRequest(client_software_name="x", client_software_version="1"), 42, "x")
        )
        frame[6:8] = (99).to_bytes(2)
        writer.write(frame)
        correlation_id, answer = decode_response(ApiVersionsV0, await read_frame(reader))
        assert correlation_id == 42
        assert answer.error_code is ErrorCode.unsupported_version
        assert [(entry.api_key, entry.min_version, entry.max_version) for entry in answer.api_keys] == [(18, 0, 3)]
        writer.write(encode_request(asking(5), 43, "x"))
        assert decode_response(InitProducerIdResponse, await read_frame(reader))[1].producer_id == 5, "and goes on"
        writer.close()
        assert running.lines == []


@asynchronous
async def test_an_old_fetch_by_name_is_told_3_for_a_topic_that_does_not_exist() -> None:
    async def fetch(request: Request) -> Any:
        topics = request.body.topics
        assert topics[0].topic_id == named_topic_id("orders")
        answer = filled(response_class(Api.FETCH))
        codes = (ErrorCode.none, ErrorCode.unknown_topic_id)
        return replace(
            answer,
            responses=tuple(
                replace(told, topic_id=topic.topic_id, partitions=(replace(told.partitions[0], error_code=code),))
                for told, topic, code in zip(answer.responses, topics, codes, strict=True)
            ),
        )

    async with serving(fetch=fetch) as running:
        connection = await running.connect()
        partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=100)
        answer = await connection.call(
            FetchRequest(
                max_wait=timedelta(0),
                min_bytes=0,
                topics=tuple(FetchTopic(topic=name, partitions=(partition,)) for name in ("orders", "gone")),
                forgotten_topics_data=(),
            ),
            5,
        )
        assert [(topic.topic, topic.partitions[0].error_code) for topic in answer.responses] == [
            ("orders", ErrorCode.none),
            ("gone", ErrorCode.unknown_topic_or_partition),
        ]
        connection.close()


# ---- order -----------------------------------------------------------------------------------------------------------


@asynchronous
async def test_pipelined_requests_are_handled_one_at_a_time_and_answered_in_order() -> None:
    at_work = 0
    order: list[int] = []

    async def uneven(request: Request) -> Any:
        nonlocal at_work
        at_work += 1
        assert at_work == 1
        order.append(request.body.producer_id)
        await asyncio.sleep(0.002 * (request.body.producer_id % 3))
        at_work -= 1
        return await echo(request)

    async with serving(init_producer_id=uneven) as running:
        reader, writer = await running.streams()
        writer.write(b"".join(encode_request(asking(number), number, "x") for number in range(20)))
        for number in range(20):
            correlation_id, answer = decode_response(InitProducerIdResponse, await read_frame(reader))
            assert (correlation_id, answer.producer_id) == (number, number)
        assert order == list(range(20))
        writer.close()


@asynchronous
async def test_a_connection_whose_request_waits_does_not_hold_up_another() -> None:
    go = asyncio.Event()

    async def wait_for_the_first(request: Request) -> Any:
        if request.connection == 1:
            await go.wait()
        return await echo(request)

    async with serving(init_producer_id=wait_for_the_first) as running:
        first, second = await running.connect(), await running.connect()
        waiting = asyncio.create_task(first.call(asking(1), 5))
        await asyncio.sleep(0.01)
        assert (await second.call(asking(2), 5)).producer_id == 2
        assert not waiting.done()
        go.set()
        assert (await waiting).producer_id == 1
        first.close()
        second.close()


@asynchronous
async def test_a_handler_that_answers_nothing_sends_nothing() -> None:
    async def without_acks(request: Request) -> None:
        assert request.body.acks == 0

    async with serving(produce=without_acks) as running:
        connection = await running.connect()
        connection.send_only(ProduceRequest(acks=0, timeout=timedelta(0), topic_data=()))
        assert (await connection.call(asking(1), 5)).producer_id == 1
        connection.close()


@asynchronous
async def test_requests_that_came_whole_are_handled_although_the_client_has_gone() -> None:
    handled: list[int] = []
    done = asyncio.Event()

    async def slowly(request: Request) -> None:
        await asyncio.sleep(0.005)
        handled.append(request.body.timeout.seconds)
        if len(handled) == 3:
            done.set()

    async with serving(produce=slowly) as running:
        _, writer = await running.streams()
        for number in range(3):
            request = ProduceRequest(acks=0, timeout=timedelta(seconds=number), topic_data=())
            writer.write(encode_request(request, number, "x"))
        writer.close()
        await done.wait()
        assert handled == [0, 1, 2]
        await until(lambda: not running.server.connections)
        assert running.lines == []


@asynchronous
async def test_nothing_is_done_behind_an_answer_that_cannot_be_given() -> None:
    """The client has connected again, and may have had the same done by another request."""
    handled: list[tuple[int, int]] = []
    begun, go = asyncio.Event(), asyncio.Event()

    async def first_waits(request: Request) -> Any:
        handled.append((request.connection, request.body.producer_id))
        if len(handled) == 1:
            begun.set()
            await go.wait()
        return await echo(request)

    async with serving(init_producer_id=first_waits) as running:
        _, writer = await running.streams()
        writer.write(b"".join(encode_request(asking(number), number, "x") for number in range(3)))
        await begun.wait()
        writer.close()
        again = await running.connect()
        assert (await again.call(asking(1), 5)).producer_id == 1
        go.set()
        await until(lambda: running.server.connections == 1)
        assert handled == [(1, 0), (2, 1)]
        again.close()


@asynchronous
async def test_a_client_that_sends_faster_than_it_is_served_is_not_read_without_end() -> None:
    go = asyncio.Event()

    async def wait(request: Request) -> Any:
        await go.wait()
        return await echo(request)

    count = 20_000
    padded = "x" * 1000
    async with serving(init_producer_id=wait) as running:
        reader, writer = await running.streams()
        sending = asyncio.create_task(_send_all(writer, (encode_request(asking(n), n, padded) for n in range(count))))
        await asyncio.sleep(0.2)
        assert not sending.done(), "20 MB do not fit into what the kernel and the server hold for one connection"
        go.set()
        for number in range(count):
            assert decode_response(InitProducerIdResponse, await read_frame(reader))[0] == number
        await sending
        writer.close()


async def _send_all(writer: asyncio.StreamWriter, frames: Any) -> None:
    for frame in frames:
        writer.write(frame)
        await writer.drain()


@asynchronous
async def test_a_client_that_reads_no_answers_is_not_served_without_end() -> None:
    handled = 0

    async def produce_much(request: Request) -> Any:
        nonlocal handled
        handled += 1
        answer = filled(response_class(Api.FETCH))
        big = replace(answer.responses[0].partitions[0], records=bytes(1 << 20))
        return replace(answer, responses=(replace(answer.responses[0], partitions=(big,)),))

    async with serving(fetch=produce_much) as running:
        reader, writer = await running.streams()
        asked = filled(request_class(Api.FETCH))
        writer.write(b"".join(encode_request(asked, number, "x") for number in range(60)))
        await asyncio.sleep(0.2)
        assert handled < 40
        for number in range(60):
            assert decode_response(response_class(Api.FETCH), await read_frame(reader))[0] == number
        assert handled == 60
        writer.close()
