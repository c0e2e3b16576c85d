"""A controller opens one connection to each voter, for whoever still waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import ClassVar, Self

import pytest

from images.broker.config import Endpoint
from images.broker.raft import voter_connections
from images.broker.raft.voter_connections import VoterConnections
from images.wire.connection import ConnectionLost
from tests.workloads.virtual_time import run

ADDRESSES = {voter: Endpoint(f"c{voter}", 9093) for voter in (1, 2)}


class SlowConnection:
    """A connection that takes a second to open."""

    opened: ClassVar[list[str]] = []
    given_up: ClassVar[list[str]] = []
    refused = False

    def __init__(self) -> None:
        self.closed = False

    @classmethod
    async def open(cls, host: str, port: int, client_id: str, connect_timeout: float) -> Self:
        cls.opened.append(host)
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            cls.given_up.append(host)
            raise
        if cls.refused:
            raise ConnectionLost("refused")
        return cls()

    def close(self) -> None:
        self.closed = True


def played(monkeypatch: pytest.MonkeyPatch, scenario: Callable[[VoterConnections], Awaitable[None]]) -> None:
    async def play() -> None:
        connections = VoterConnections(ADDRESSES, "controller-3", 10)
        unhandled: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        await scenario(connections)
        connections.close()
        await asyncio.sleep(2)
        assert not unhandled

    monkeypatch.setattr(voter_connections, "Connection", SlowConnection)
    for name, value in (("opened", []), ("given_up", []), ("refused", False)):
        monkeypatch.setattr(SlowConnection, name, value)
    run(play())


async def impatient(connections: VoterConnections, voter: int) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(connections.to(voter), 0.4)


def test_the_next_caller_takes_the_connection_that_an_impatient_one_has_begun_to_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(connections: VoterConnections) -> None:
        await impatient(connections, 1)
        await impatient(connections, 1)
        await asyncio.sleep(1)
        connection = await asyncio.wait_for(connections.to(1), 0.01)
        assert await connections.to(1) is connection
        assert SlowConnection.opened == ["c1"]

    played(monkeypatch, scenario)


def test_callers_at_a_time_share_one_connection_and_each_voter_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(connections: VoterConnections) -> None:
        one, same, other = await asyncio.gather(connections.to(1), connections.to(1), connections.to(2))
        assert one is same is not other
        assert SlowConnection.opened == ["c1", "c2"]

    played(monkeypatch, scenario)


def test_a_connection_that_has_closed_is_opened_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(connections: VoterConnections) -> None:
        first = await connections.to(1)
        first.close()
        assert await connections.to(1) is not first

    played(monkeypatch, scenario)


def test_every_caller_learns_that_opening_failed_and_the_next_one_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(connections: VoterConnections) -> None:
        monkeypatch.setattr(SlowConnection, "refused", True)
        await impatient(connections, 1)
        for outcome in await asyncio.gather(connections.to(1), connections.to(1), return_exceptions=True):
            assert isinstance(outcome, ConnectionLost)
            assert not outcome.sent
        monkeypatch.setattr(SlowConnection, "refused", False)
        await connections.to(1)
        assert SlowConnection.opened == ["c1", "c1"]

    played(monkeypatch, scenario)


def test_an_opening_that_nobody_waits_for_may_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(connections: VoterConnections) -> None:
        monkeypatch.setattr(SlowConnection, "refused", True)
        await impatient(connections, 1)
        await asyncio.sleep(1)

    played(monkeypatch, scenario)


def test_closing_ends_openings_and_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(connections: VoterConnections) -> None:
        connection = await connections.to(1)
        await impatient(connections, 2)
        connections.close()
        await asyncio.sleep(0)
        assert connection.closed
        assert SlowConnection.given_up == ["c2"]

    played(monkeypatch, scenario)
