"""Connections to brokers of other releases: the newest version that both sides know, and what callers see of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from images.wire.connection import ConnectionLost, encode_response
from images.wire.messages import CANONICAL, SUPPORTED, Api, request_class, response_class
from images.wire.negotiation import NegotiatedConnection, UnsupportedVersion
from images.wire.schema import shapes
from tests.broker.served import asking, asynchronous
from tests.wire.message_values import filled, leaves
from tests.wire.scripted_broker import Answer, broker

OLDEST = {**{api: versions[0] for api, versions in SUPPORTED.items()}, Api.FETCH: 13, Api.METADATA: 10}
OLDEST |= {Api.DELETE_TOPICS: 6, Api.FIND_COORDINATOR: 4, Api.LEAVE_GROUP: 3, Api.OFFSET_FETCH: 8}
UNKNOWN = 9999
"""The key of an API of a later release."""


def announcing(versions: Mapping[int, tuple[int, int]], error: ErrorCode = ErrorCode.none) -> Any:
    message: Any = response_class(Api.API_VERSIONS)
    key: Any = next(shape.element for shape in shapes(message) if shape.name == "api_keys")
    keys = tuple(key(api_key=api, min_version=first, max_version=last) for api, (first, last) in versions.items())
    return message(error_code=error, api_keys=keys, throttle_time=timedelta(0))


def serving(versions: Mapping[int, tuple[int, int]], requests: list[Any], error: ErrorCode = ErrorCode.none) -> Answer:
    """Announces these versions, and gives a filled answer to every other request."""

    async def answer(request: Any, correlation_id: int, writer: asyncio.StreamWriter) -> None:
        if isinstance(request, request_class(Api.API_VERSIONS)):
            message = announcing(versions, error)
        else:
            requests.append(request)
            message = filled(response_class(Api(request.__api_key__), request.__version__))
        writer.write(encode_response(message, correlation_id))

    return answer


async def connect(port: int) -> NegotiatedConnection:
    return await NegotiatedConnection.open("127.0.0.1", port, "test", 5.0)


def assert_same_where_both_have_it(one: Any, other: Any) -> None:
    left, right = dict(leaves(one)), dict(leaves(other))
    common = left.keys() & right.keys()
    assert common
    assert {path: left[path] for path in common} == {path: right[path] for path in common}


@pytest.mark.parametrize("api", [api for api in Api if api is not Api.API_VERSIONS], ids=lambda api: api.name)
def test_a_broker_of_any_release_gets_and_gives_every_field_that_its_version_has(api: Api) -> None:
    @asynchronous
    async def ask_each() -> None:
        for version in range(OLDEST[api], CANONICAL[api] + 1):
            requests: list[Any] = []
            async with broker(serving({api: (0, version), UNKNOWN: (0, 3)}, requests)) as port:
                connection = await connect(port)
                question = filled(request_class(api))
                answer = await connection.call(question, 5)
                connection.close()
            assert [type(request) for request in requests] == [request_class(api, version)]
            assert type(answer) is response_class(api)
            if list(leaves(requests[0])):
                assert_same_where_both_have_it(requests[0], question)
            assert_same_where_both_have_it(answer, filled(response_class(api, version)))

    ask_each()


@pytest.mark.parametrize(
    "versions",
    [{}, {Api.INIT_PRODUCER_ID: (5, 6)}, {Api.FETCH: (4, 12)}],
    ids=["no such api", "later versions alone", "topics by name alone"],
)
def test_a_request_without_a_common_version_is_not_sent(versions: dict[int, tuple[int, int]]) -> None:
    requests: list[Any] = []

    @asynchronous
    async def ask() -> None:
        question = filled(request_class(Api.FETCH)) if Api.FETCH in versions else asking(1)
        async with broker(serving(versions, requests)) as port:
            connection = await connect(port)
            with pytest.raises(UnsupportedVersion, match="serves no version of") as refused:
                await connection.call(question, 5)
            assert not refused.value.sent
            with pytest.raises(UnsupportedVersion):
                connection.send_only(question)
            assert not connection.closed
            connection.close()

    ask()
    assert requests == []


@asynchronous
async def test_a_broker_that_does_not_tell_its_versions_is_not_connected_to() -> None:
    async with broker(serving({}, [], ErrorCode.unsupported_version)) as port:
        with pytest.raises(ConnectionLost, match="unsupported_version") as lost:
            await connect(port)
        assert not lost.value.sent


@asynchronous
async def test_a_broker_that_is_silent_about_its_versions_is_given_up_with_nothing_sent() -> None:
    async def silence(_request: Any, _correlation_id: int, _writer: asyncio.StreamWriter) -> None:
        pass

    async with broker(silence) as port:
        with pytest.raises(ConnectionLost) as lost:
            await NegotiatedConnection.open("127.0.0.1", port, "test", 0.05)
        assert not lost.value.sent


@asynchronous
async def test_a_cancelled_open_closes_the_connection_that_waits_for_the_versions() -> None:
    asked, closed = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while await reader.read(1024):
                asked.set()
        closed.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        opening = asyncio.ensure_future(connect(server.sockets[0].getsockname()[1]))
        await asked.wait()
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        async with asyncio.timeout(5):
            await closed.wait()
