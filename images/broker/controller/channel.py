"""A broker's requests to the active controller.

A broker learns the active controller from responses to its metadata fetches, which carry leader and epoch of the
quorum, or by trying the controllers in turn: after no response in time, or NOT_CONTROLLER, the next one is tried. A
connection on which the active controller has answered and that is then lost says little about that controller: it is
connected to once more, before others that may be silent cost the broker its session. All channels of a broker share one
`ControllerLocator`.

A channel is one connection, opened on demand and closed on any failure. `call` sends a request once and reports the
outcome; its caller decides on retries. Requests on one connection are answered in order, so a request that waits long
(the metadata fetch) has a channel of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from images.broker.config import Voter
from images.broker.controller.refusals import says_not_controller
from images.wire.connection import CallTimeout, Connection, ConnectionLost

_NOT_YET = -1


class ControllerLocator:
    """The active controller, as far as one broker knows."""

    def __init__(self, voters: Sequence[Voter]) -> None:
        self.voters = tuple(voters)
        self.voter_index = 0
        """Index of the voter to send requests to."""
        self._epoch = _NOT_YET

    def update(self, leader: int, epoch: int) -> None:
        """Record that `leader` (-1: unknown) leads controller epoch `epoch`; an older epoch has no effect."""
        for index, voter in enumerate(self.voters):
            if voter.id == leader and epoch > self._epoch:
                self.voter_index, self._epoch = index, epoch

    def try_next(self, voter_index: int) -> None:
        """The voter at `voter_index` gave no useful response: use the next one."""
        if voter_index == self.voter_index:
            self.voter_index = (voter_index + 1) % len(self.voters)


class ControllerChannel:
    """Requests from this broker to the controller, on one connection."""

    def __init__(self, active: ControllerLocator, client_id: str, timeout_s: float, retry_s: float) -> None:
        self._active = active
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._voter_index = 0
        """Index of the voter at the other end of the connection, or to which the last one could not be opened."""
        self._connection: Connection | None = None
        self._answered: Connection | None = None
        """The newest connection on which an active controller has answered."""
        self._connecting = asyncio.Lock()

    async def call(self, request: Any, extra_timeout_s: float = 0.0) -> Any:
        """Send `request` and return the response.

        Raises ConnectionLost; its `sent` says whether the controller may have received the request. After that, and
        after NOT_CONTROLLER, the next call goes to the next controller; to the same one if a connection was lost, not
        only silent, on which it had answered as the active controller.
        """
        connection = None
        try:
            connection = await self._connected()
            voter_index = self._voter_index
            answer = await connection.call(request, self._timeout_s + extra_timeout_s)
        except ConnectionLost as lost:
            if connection is None or connection is not self._answered or isinstance(lost, CallTimeout):
                self._active.try_next(self._voter_index if connection is None else voter_index)
            raise
        if says_not_controller(answer):
            self._active.try_next(voter_index)
        else:
            self._answered = connection
        return answer

    async def forward(self, request: Any) -> Any:
        """As `call`, but try the controllers in turn until one is active or the timeout expires.

        Raises ConnectionLost, also if no controller is active.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + self._timeout_s
        while True:
            try:
                answer = await self.call(request)
                if not says_not_controller(answer):
                    return answer
                reason = "no controller is active"
            except ConnectionLost as lost:
                if lost.sent:
                    raise
                reason = str(lost)
            if loop.time() + self._retry_s >= until:
                raise ConnectionLost(reason, sent=False)
            await asyncio.sleep(self._retry_s)

    async def _connected(self) -> Connection:
        async with self._connecting:
            if self._connection is not None and self._voter_index != self._active.voter_index:
                self.close()
            if self._connection is None or self._connection.closed:
                self._voter_index = self._active.voter_index
                voter = self._active.voters[self._voter_index].endpoint
                try:
                    self._connection = await Connection.open(voter.host, voter.port, self._client_id, self._timeout_s)
                except ConnectionLost as lost:
                    raise ConnectionLost(str(lost), sent=False) from None
            return self._connection

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
