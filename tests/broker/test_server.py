"""The server's port: what it answers, in which order, and whom it disturbs when a client makes no sense."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import wraps
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.schema.api_versions.v0.response import ApiVersionsResponse as ApiVersionsV0
from kio.schema.api_versions.v3.request import ApiVersionsRequest
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v12.request import FetchPartition, FetchRequest, FetchTopic
from kio.schema.init_producer_id.v4.request import InitProducerIdRequest
from kio.schema.init_producer_id.v4.response import InitProducerIdResponse
from kio.schema.metadata.v12.request import MetadataRequest
from kio.schema.produce.v11.request import ProduceRequest

from images.broker.runtime.server import Handler, Request, Server
from images.wire.connection import (
    SUPPORTED,
    Api,
    Connection,
    ConnectionLost,
    decode_response,
    encode_request,
    request_class,
    response_class,
)
from images.wire.versions import named_topic_id
from tests.wire.message_values import EVERY_VERSION, filled, leaves


def asynchronous(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        asyncio.run(asyncio.wait_for(test(), 120))

    return run


def asking(number: int) -> InitProducerIdRequest:
    return InitProducerIdRequest(transactional_id=None, transaction_timeout=timedelta(0), producer_id=number)


async def echo(request: Request) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        throttle_time=timedelta(0),
        error_code=ErrorCode.none,
        producer_id=request.body.producer_id,
        producer_epoch=0,
    )


async def until(condition: Callable[[], bool]) -> None:
    """Wait for an action of the server that no event announces."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


@dataclass
class Running:
    """A server at work, and the lines it logged."""

    server: Server
    lines: list[str] = field(default_factory=list)

    async def connect(self) -> Connection:
        return await Connection.open("127.0.0.1", self.server.port, "test", 60.0)

    async def streams(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.server.port)

    async def logged(self) -> list[str]:
        """The lines logged, once there is one and no other follows."""
        await until(lambda: bool(self.lines))
        await asyncio.sleep(0.005)
        return self.lines


@asynccontextmanager
async def serving(max_frame_bytes: int = 1 << 20, **handlers: Handler) -> AsyncIterator[Running]:
    """A server with a handler for each API named, and `echo` for INIT_PRODUCER_ID."""
    lines: list[str] = []
    named = {Api.INIT_PRODUCER_ID: echo, **{Api[name.upper()]: handler for name, handler in handlers.items()}}
    server = Server(named, log=lines.append, max_frame_bytes=max_frame_bytes)
    await server.start("127.0.0.1", 0)
    try:
        yield Running(server, lines)
    finally:
        await server.close()


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    size = await reader.readexactly(4)
    return size + await reader.readexactly(int.from_bytes(size))


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

    async def slowly(request: Request) -> Any:
        await asyncio.sleep(0.005)
        handled.append(request.body.producer_id)
        if len(handled) == 3:
            done.set()
        return await echo(request)

    async with serving(init_producer_id=slowly) as running:
        _, writer = await running.streams()
        writer.write(b"".join(encode_request(asking(number), number, "x") for number in range(3)))
        writer.close()
        await done.wait()
        assert handled == [0, 1, 2]
        await until(lambda: not running.server.connections)
        assert running.lines == []


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


# ---- clients that make no sense --------------------------------------------------------------------------------------

GOOD = encode_request(asking(1), 1, "x")


def patched(frame: bytes, at: int, value: bytes) -> bytes:
    return frame[:at] + value + frame[at + len(value) :]


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n", "a frame of 1195725856 bytes"),
        ((1 << 20).to_bytes(4) + b"x", "closed by the client after 5 bytes"),
        (((1 << 20) + 1).to_bytes(4), "a frame of 1048577 bytes; at most 1048576 are taken"),
        ((-1).to_bytes(4, signed=True), "a frame of -1 bytes"),
        (bytes(4), "a frame of 0 bytes"),
        (b"\0\0\0\x05hello", "shorter than its header"),
        (patched(GOOD, 4, b"\x03\xe7"), "unknown API 999"),
        (patched(GOOD, 4, b"\x00\x03"), "METADATA is not served here"),
        (patched(GOOD, 6, b"\x00\x63"), "INIT_PRODUCER_ID v99 is not supported"),
        (patched(GOOD, 6, b"\xff\xff"), "INIT_PRODUCER_ID v-1 is not supported"),
        (patched(GOOD, 12, b"\x7f\xff"), "a client id of 32767 bytes"),
        (patched(GOOD, 12, b"\xff\xfe"), "a client id of -2 bytes"),
        (patched(GOOD, 14, b"\xff"), "the client id is not UTF-8"),
        (GOOD[:-2], "closed by the client after"),
        ((len(GOOD) - 6).to_bytes(4) + GOOD[4:-2], "not a InitProducerIdRequest v4"),
        (GOOD[:2], "closed by the client after 2 bytes"),
    ],
)
def test_a_client_that_cannot_be_understood_costs_itself_its_connection_and_one_line(sent: bytes, said: str) -> None:
    @asynchronous
    async def run() -> None:
        async with serving() as running:
            other = await running.connect()
            assert (await other.call(asking(1), 5)).producer_id == 1
            reader, writer = await running.streams()
            writer.write(sent)
            if "closed by the client" in said:
                writer.close()
            else:
                assert await reader.read() == b"", "closed without an answer"
                writer.close()
            (line,) = await running.logged()
            assert said in line
            assert line.startswith("connection 2 from 127.0.0.1: ")
            assert (await other.call(asking(2), 5)).producer_id == 2, "nobody else notices"
            assert running.server.connections == 1
            other.close()

    run()


@asynchronous
async def test_a_client_that_resets_its_connection_disturbs_nobody() -> None:
    async with serving() as running:
        other = await running.connect()
        _, writer = await running.streams()
        writer.write(GOOD)
        raw = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
        await until(lambda: running.server.connections <= 1)
        assert (await other.call(asking(2), 5)).producer_id == 2
        other.close()


@asynchronous
async def test_requests_before_garbage_are_answered_first() -> None:
    async with serving() as running:
        reader, writer = await running.streams()
        writer.write(GOOD + GOOD + b"\xff\xff\xff\xff" + GOOD)
        for _ in range(2):
            assert decode_response(InitProducerIdResponse, await read_frame(reader))[1].producer_id == 1
        assert await reader.read() == b""
        assert len(await running.logged()) == 1
        writer.close()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    garbage=st.binary(min_size=1, max_size=400)
    | st.tuples(
        st.sampled_from([api for api in Api if api is not Api.API_VERSIONS]), st.integers(0, 20), st.binary(max_size=80)
    ).map(lambda made: _framed(struct.pack(">hhih", made[0], made[1], 7, -1) + made[2]))
)
def test_no_garbage_disturbs_anyone_else(garbage: bytes) -> None:
    @asynchronous
    async def run() -> None:
        async def refuse(request: Request) -> Any:
            raise ValueError("this handler refuses everything")

        handlers = {api.name: refuse for api in Api if api is not Api.INIT_PRODUCER_ID and api is not Api.API_VERSIONS}
        async with serving(**handlers) as running:
            other = await running.connect()
            reader, writer = await running.streams()
            writer.write(garbage)
            writer.write_eof()
            await reader.read()
            assert (await other.call(asking(2), 5)).producer_id == 2
            assert len(running.lines) <= 1
            other.close()
            writer.close()

    run()


def _framed(body: bytes) -> bytes:
    return len(body).to_bytes(4) + body


# ---- handlers that fail, and the end ---------------------------------------------------------------------------------


async def _crash(request: Request) -> Any:
    raise ValueError("out of\nreason")


async def _wrong_answer(request: Request) -> Any:
    return filled(response_class(Api.FETCH))


async def _unwritable(request: Request) -> Any:
    return replace(filled(response_class(Api.METADATA)), controller_id="five")


async def _cancelled(request: Request) -> Any:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (_crash, "a handler failed: ValueError: out of reason (test_server.py:"),
        (_wrong_answer, "a handler failed: TypeError: FetchResponse is no answer to METADATA v12"),
        (_unwritable, "a handler failed: error: required argument is not an integer"),
        (_cancelled, "a handler was cancelled"),
    ],
)
def test_a_handler_that_fails_costs_its_client_the_connection_and_the_log_one_line(
    handler: Callable[[Request], Awaitable[Any]], said: str
) -> None:
    @asynchronous
    async def run() -> None:
        async with serving(metadata=handler) as running:
            other, unlucky = await running.connect(), await running.connect()
            with pytest.raises(ConnectionLost):
                await unlucky.call(MetadataRequest(topics=None, include_topic_authorized_operations=False), 5)
            (line,) = await running.logged()
            assert said in line
            assert "\n" not in line
            assert (await other.call(asking(2), 5)).producer_id == 2
            other.close()

    run()


@asynchronous
async def test_closing_ends_every_connection_and_cancels_handlers_at_work() -> None:
    cancelled: list[int] = []

    async def wait(request: Request) -> Any:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(request.body.producer_id)
            raise

    async with serving(init_producer_id=wait) as running:
        busy, idle = await running.connect(), await running.connect()
        waiting = asyncio.create_task(busy.call(asking(7), 5))
        await asyncio.sleep(0.01)
        assert running.server.connections == 2
        port = running.server.port
        await running.server.close()
        assert cancelled == [7]
        assert running.server.connections == 0
        with pytest.raises(ConnectionLost):
            await waiting
        await until(lambda: idle.closed)
        with pytest.raises(ConnectionLost):
            await Connection.open("127.0.0.1", port, "late", 1.0)
        assert running.lines == []


@asynchronous
async def test_connections_are_numbered_from_one_and_numbers_are_not_used_again() -> None:
    seen: list[int] = []

    async def note(request: Request) -> Any:
        seen.append(request.connection)
        assert request.client_id == "test"
        return await echo(request)

    async with serving(init_producer_id=note) as running:
        for _ in range(3):
            connection = await running.connect()
            await connection.call(asking(1), 5)
            connection.close()
        assert seen == [1, 2, 3]
