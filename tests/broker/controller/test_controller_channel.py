"""A broker sends requests to the newest known leader of the quorum, and otherwise tries the controllers in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from kio.schema.allocate_producer_ids.v0.request import AllocateProducerIdsRequest
from kio.schema.errors import ErrorCode

from images.broker.config import Endpoint, Voter
from images.broker.controller import messages
from images.broker.controller.channel import ControllerChannel, ControllerLocator
from images.broker.controller.refusals import not_controller
from images.broker.controller.requests import ProducerIdsAnswer
from images.broker.runtime.server import CloseConnection, Request, Server
from images.wire.connection import Api, CallTimeout, ConnectionLost

REQUEST = AllocateProducerIdsRequest(broker_id=1, broker_epoch=1)


class Controllers:
    """Servers of which one is the active controller, or none."""

    def __init__(self, count: int) -> None:
        self.active: int | None = None
        self.hang_up = False
        self.silent = False
        self.asked: list[int] = []
        self.servers = [Server({Api.ALLOCATE_PRODUCER_IDS: self._handler(n)}, log=[].append) for n in range(count)]

    def _handler(self, number: int) -> Callable[[Request], Awaitable[Any]]:
        async def handle(request: Request) -> Any:
            self.asked.append(number)
            if number != self.active:
                return not_controller(request.api, request.body)
            if self.hang_up:
                raise CloseConnection("deposed")
            if self.silent:
                await asyncio.Event().wait()
            return messages.producer_ids_response(ProducerIdsAnswer(ErrorCode.none, 7, 1))

        return handle

    async def start(self) -> ControllerLocator:
        voters = []
        for number, server in enumerate(self.servers):
            await server.start("127.0.0.1", 0)
            voters.append(Voter(101 + number, Endpoint("127.0.0.1", server.port)))
        return ControllerLocator(voters)


def played(scenario: Callable[[Controllers, ControllerLocator, ControllerChannel], Awaitable[None]]) -> None:
    async def play() -> None:
        controllers = Controllers(3)
        active = await controllers.start()
        channel = ControllerChannel(active, "test", 2.0, 0.01)
        try:
            await scenario(controllers, active, channel)
        finally:
            channel.close()
            for server in controllers.servers:
                await server.close()

    asyncio.run(asyncio.wait_for(play(), 120))


def test_one_after_the_other_is_asked_until_one_is_active() -> None:
    async def scenario(controllers: Controllers, active: ControllerLocator, channel: ControllerChannel) -> None:
        controllers.active = 2
        assert (await channel.forward(REQUEST)).producer_id_start == 7
        assert controllers.asked == [0, 1, 2]
        await channel.forward(REQUEST)
        assert controllers.asked[3:] == [2], "it is remembered"

    played(scenario)


def test_a_request_goes_to_the_newest_known_leader_first() -> None:
    async def scenario(controllers: Controllers, active: ControllerLocator, channel: ControllerChannel) -> None:
        controllers.active = 1
        active.update(102, 5)
        active.update(103, 4)
        active.update(-1, 6)
        await channel.forward(REQUEST)
        assert controllers.asked == [1]

    played(scenario)


def test_when_nobody_is_active_the_request_was_certainly_not_carried_out() -> None:
    async def scenario(controllers: Controllers, active: ControllerLocator, channel: ControllerChannel) -> None:
        hurried = ControllerChannel(active, "test", 0.1, 0.01)
        with pytest.raises(ConnectionLost) as lost:
            await hurried.forward(REQUEST)
        assert not lost.value.sent
        assert len(controllers.asked) > 3
        hurried.close()

    played(scenario)


def test_a_request_that_may_have_been_carried_out_is_not_passed_on_again() -> None:
    async def scenario(controllers: Controllers, active: ControllerLocator, channel: ControllerChannel) -> None:
        controllers.active, controllers.hang_up = 0, True
        with pytest.raises(ConnectionLost) as lost:
            await channel.forward(REQUEST)
        assert lost.value.sent
        assert controllers.asked == [0]

    played(scenario)


def test_an_active_controller_whose_connection_is_lost_is_connected_to_once_more() -> None:
    async def scenario(controllers: Controllers, active: ControllerLocator, channel: ControllerChannel) -> None:
        controllers.active = 0
        await channel.call(REQUEST)
        controllers.hang_up = True
        for _ in range(2):
            with pytest.raises(ConnectionLost):
                await channel.call(REQUEST)
        controllers.active = None
        await channel.call(REQUEST)
        assert controllers.asked == [0, 0, 0, 1], "once only: the second connection never had an answer"

    played(scenario)


def test_a_controller_that_gives_no_answer_in_time_is_left_for_the_next() -> None:
    async def scenario(controllers: Controllers, active: ControllerLocator, channel: ControllerChannel) -> None:
        hurried = ControllerChannel(active, "test", 0.1, 0.01)
        controllers.active = 0
        await hurried.call(REQUEST)
        controllers.silent = True
        with pytest.raises(CallTimeout):
            await hurried.call(REQUEST)
        controllers.active = None
        await hurried.call(REQUEST)
        assert controllers.asked == [0, 0, 1]
        hurried.close()

    played(scenario)


def test_of_two_calls_that_reach_no_controller_each_leaves_its_own_behind() -> None:
    async def scenario(controllers: Controllers, active: ControllerLocator, channel: ControllerChannel) -> None:
        for server in controllers.servers[:2]:
            await server.close()
        failed = await asyncio.gather(channel.call(REQUEST), channel.call(REQUEST), return_exceptions=True)
        assert [type(each) for each in failed] == [ConnectionLost, ConnectionLost]
        assert active.voter_index == 2

    played(scenario)


def test_a_controller_that_cannot_be_reached_is_left_for_the_next() -> None:
    async def scenario(controllers: Controllers, active: ControllerLocator, channel: ControllerChannel) -> None:
        controllers.active = 1
        await controllers.servers[0].close()
        assert (await channel.forward(REQUEST)).producer_id_start == 7
        assert controllers.asked == [1]

    played(scenario)
