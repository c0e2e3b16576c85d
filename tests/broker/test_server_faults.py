"""The server's port when clients make no sense and handlers fail: nobody else is disturbed."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.schema.init_producer_id.v4.response import InitProducerIdResponse
from kio.schema.metadata.v12.request import MetadataRequest

from images.broker.runtime.server import Request
from images.wire.connection import (
    Api,
    Connection,
    ConnectionLost,
    decode_response,
    encode_request,
    response_class,
)
from tests.broker.served import asking, asynchronous, echo, read_frame, serving, until
from tests.wire.message_values import filled

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
        (_crash, "a handler failed: ValueError: out of reason (test_server_faults.py:"),
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
