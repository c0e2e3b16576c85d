"""A client connection: whose answer is whose, and what is known when it breaks."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v4.response import InitProducerIdResponse
from kio.schema.list_offsets.v1.request import ListOffsetsRequest
from kio.schema.list_offsets.v1.response import ListOffsetsResponse

from images.wire.connection import (
    CallTimeout,
    Connection,
    ConnectionLost,
    FrameDecoder,
    decode_request,
    encode_request,
    encode_response,
)
from tests.broker.served import asking, asynchronous
from tests.wire.scripted_broker import broker


def answering(number: int) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        throttle_time=timedelta(0), error_code=ErrorCode.none, producer_id=number, producer_epoch=0
    )


async def echo(request: Any, correlation_id: int, writer: asyncio.StreamWriter) -> None:
    writer.write(encode_response(answering(request.producer_id), correlation_id))


async def silence(request: Any, correlation_id: int, writer: asyncio.StreamWriter) -> None:
    pass


async def connect(port: int) -> Connection:
    return await Connection.open("127.0.0.1", port, "test", 1.0)


# ---- frames ----------------------------------------------------------------------------------------------------------


@given(bodies=st.lists(st.binary(min_size=1, max_size=30), max_size=8), cuts=st.lists(st.integers(0, 300)))
def test_frames_come_out_whole_however_the_stream_is_cut(bodies: list[bytes], cuts: list[int]) -> None:
    frames = [len(body).to_bytes(4) + body for body in bodies]
    stream = b"".join(frames)
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    cutter = FrameDecoder()
    got: list[bytes] = []
    for start, end in pairwise(places):
        got.extend(cutter.feed(stream[start:end]))
        assert sum(map(len, got)) + cutter.partial == end
    assert got == frames
    assert cutter.broken is None


@pytest.mark.parametrize("length", [0, -1, 101, 2**31 - 1])
def test_a_length_no_frame_may_have_breaks_the_stream_after_the_frames_before_it(length: int) -> None:
    cutter = FrameDecoder(limit=100)
    good = (3).to_bytes(4) + b"abc"
    assert list(cutter.feed(good + length.to_bytes(4, signed=True) + b"rest")) == [good]
    assert f"a frame of {length} bytes" in str(cutter.broken)
    assert list(cutter.feed(good)) == []


# ---- calls -----------------------------------------------------------------------------------------------------------


@asynchronous
async def test_pipelined_calls_each_get_their_own_answer() -> None:
    async with broker(echo) as port:
        connection = await connect(port)
        answers = await asyncio.gather(*(connection.call(asking(number), 5) for number in range(50)))
        assert [answer.producer_id for answer in answers] == list(range(50))
        connection.close()


@asynchronous
async def test_an_answer_comes_in_the_version_that_was_asked() -> None:
    async def old(request: Any, correlation_id: int, writer: asyncio.StreamWriter) -> None:
        assert isinstance(request, ListOffsetsRequest)
        writer.write(encode_response(ListOffsetsResponse(topics=()), correlation_id))

    async with broker(old) as port:
        connection = await connect(port)
        answer = await connection.call(ListOffsetsRequest(replica_id=-1, topics=()), 5)
        assert answer == ListOffsetsResponse(topics=())
        connection.close()


@asynchronous
async def test_a_late_answer_is_never_delivered_to_another_call() -> None:
    late = asyncio.Event()

    async def answer_late(request: Any, correlation_id: int, writer: asyncio.StreamWriter) -> None:
        if request.producer_id == 1:
            await late.wait()
        await echo(request, correlation_id, writer)

    async with broker(answer_late) as port:
        connection = await connect(port)
        first, second = await asyncio.gather(
            connection.call(asking(1), 0.05), connection.call(asking(2), 5), return_exceptions=True
        )
        assert isinstance(first, CallTimeout)
        assert first.sent
        assert isinstance(second, ConnectionLost)
        assert not isinstance(second, CallTimeout), "the second call was not late, its connection was given up"
        assert second.sent
        late.set()
        assert connection.closed
        with pytest.raises(ConnectionLost) as refused:
            await connection.call(asking(3), 5)
        assert not refused.value.sent
        again = await connect(port)
        assert (await again.call(asking(4), 5)).producer_id == 4
        again.close()


@asynchronous
async def test_a_call_with_less_patience_than_the_one_before_it_times_out_first() -> None:
    async with broker(silence) as port:
        connection = await connect(port)
        patient = asyncio.create_task(connection.call(asking(1), 5))
        await asyncio.sleep(0)
        start = asyncio.get_running_loop().time()
        with pytest.raises(CallTimeout, match=r"no answer in 0\.02 s"):
            await connection.call(asking(2), 0.02)
        assert 0.02 <= asyncio.get_running_loop().time() - start < 1
        with pytest.raises(ConnectionLost, match="another call"):
            await patient


@asynchronous
async def test_each_of_many_calls_has_its_own_deadline() -> None:
    go = asyncio.Event()

    async def answer_the_first(request: Any, correlation_id: int, writer: asyncio.StreamWriter) -> None:
        if request.producer_id == 1:
            await echo(request, correlation_id, writer)
            go.set()

    async with broker(answer_the_first) as port:
        connection = await connect(port)
        assert (await connection.call(asking(1), 1.0)).producer_id == 1
        await go.wait()
        await asyncio.sleep(0.7)
        start = asyncio.get_running_loop().time()
        with pytest.raises(CallTimeout):
            await connection.call(asking(2), 1.0)  # the alarm of the first call rings meanwhile, and must not count
        assert asyncio.get_running_loop().time() - start >= 1.0


@asynchronous
async def test_an_answer_to_another_request_ends_the_connection() -> None:
    async def confused(request: Any, correlation_id: int, writer: asyncio.StreamWriter) -> None:
        writer.write(encode_response(answering(request.producer_id), correlation_id + 1))

    async with broker(confused) as port:
        connection = await connect(port)
        with pytest.raises(ConnectionLost, match="answer to request 1, expected 0"):
            await connection.call(asking(1), 5)
        assert connection.closed


@asynchronous
async def test_an_answer_nobody_asked_for_ends_the_connection() -> None:
    async def twice(request: Any, correlation_id: int, writer: asyncio.StreamWriter) -> None:
        await echo(request, correlation_id, writer)
        await echo(request, correlation_id, writer)

    async with broker(twice) as port:
        connection = await connect(port)
        assert (await connection.call(asking(1), 5)).producer_id == 1
        with pytest.raises(ConnectionLost, match="a response without a request"):
            await connection.call(asking(2), 5)


@asynchronous
async def test_a_cancelled_call_leaves_the_connection_in_order() -> None:
    go = asyncio.Event()

    async def wait(request: Any, correlation_id: int, writer: asyncio.StreamWriter) -> None:
        await go.wait()
        await echo(request, correlation_id, writer)

    async with broker(wait) as port:
        connection = await connect(port)
        given_up = asyncio.create_task(connection.call(asking(1), 5))
        await asyncio.sleep(0)
        given_up.cancel()
        kept = asyncio.create_task(connection.call(asking(2), 5))
        await asyncio.sleep(0)
        go.set()
        assert (await kept).producer_id == 2
        assert given_up.cancelled()
        connection.close()


@asynchronous
async def test_a_peer_that_closes_fails_every_waiting_call_as_sent() -> None:
    async def hang_up(request: Any, correlation_id: int, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with broker(hang_up) as port:
        connection = await connect(port)
        lost = await asyncio.gather(*(connection.call(asking(n), 5) for n in range(3)), return_exceptions=True)
        assert [(type(error), getattr(error, "sent", None)) for error in lost] == [(ConnectionLost, True)] * 3
        assert connection.closed


@pytest.mark.parametrize(
    "garbage", [b"\0\0\0\x05\0\0\0\0\xff", b"HTTP/1.1 400", (9).to_bytes(4) + bytes(4) + b"\0\0\0\0\0"]
)
def test_garbage_from_a_server_ends_the_connection(garbage: bytes) -> None:
    @asynchronous
    async def run() -> None:
        async def babble(request: Any, correlation_id: int, writer: asyncio.StreamWriter) -> None:
            writer.write(garbage)

        async with broker(babble) as port:
            connection = await connect(port)
            with pytest.raises(ConnectionLost):
                await connection.call(asking(1), 5)
            assert connection.closed

    run()


@pytest.mark.parametrize("host", ["\0", "a" * 100 + ".b", "é..x"])
def test_a_host_that_cannot_be_one_is_a_connection_that_failed(host: str) -> None:
    """Hosts come from other nodes' registrations: a bad one may cost a connection, and not the node that tries it."""

    async def run() -> None:
        with pytest.raises(ConnectionLost) as lost:
            await Connection.open(host, 9092, None, 5.0)
        assert not lost.value.sent

    asyncio.run(run())


@asynchronous
async def test_a_refused_connection_sent_nothing() -> None:
    async with broker(silence) as port:
        pass
    with pytest.raises(ConnectionLost) as refused:
        await connect(port)
    assert not refused.value.sent


@asynchronous
async def test_a_connection_that_is_never_accepted_times_out() -> None:
    loop = asyncio.get_running_loop()

    async def never(*args: Any, **kwargs: Any) -> Any:
        await loop.create_future()

    loop.create_connection = never  # type: ignore[method-assign]
    with pytest.raises(CallTimeout, match=r"no connection in 0\.01 s") as late:
        await Connection.open("nowhere", 9, "test", 0.01)
    assert not late.value.sent


@asynchronous
async def test_closing_fails_what_waits_but_sends_what_was_written() -> None:
    seen: list[int] = []
    arrived = asyncio.Event()

    async def note(request: Any, correlation_id: int, writer: asyncio.StreamWriter) -> None:
        seen.append(request.producer_id)
        if len(seen) == 2:
            arrived.set()

    async with broker(note) as port:
        connection = await connect(port)
        connection.send_only(asking(1))
        waiting = asyncio.create_task(connection.call(asking(2), 5))
        await asyncio.sleep(0)
        connection.close()
        with pytest.raises(ConnectionLost, match="closed by this client"):
            await waiting
        await arrived.wait()
        assert seen == [1, 2]
        with pytest.raises(ConnectionLost):
            connection.send_only(asking(3))


@asynchronous
async def test_a_request_without_answer_does_not_shift_the_answers_of_others() -> None:
    async def odd_ones_out(request: Any, correlation_id: int, writer: asyncio.StreamWriter) -> None:
        if request.producer_id % 2 == 0:
            await echo(request, correlation_id, writer)

    async with broker(odd_ones_out) as port:
        connection = await connect(port)
        connection.send_only(asking(1))
        first = asyncio.create_task(connection.call(asking(2), 5))
        await asyncio.sleep(0)
        connection.send_only(asking(3))
        second = asyncio.create_task(connection.call(asking(4), 5))
        assert [(await first).producer_id, (await second).producer_id] == [2, 4]
        connection.close()


def test_a_client_id_is_written_once_and_may_be_missing() -> None:
    for client_id in ("a", "ü" * 100, None, "a"):
        assert decode_request(encode_request(asking(1), 5, client_id))[0].client_id == client_id
