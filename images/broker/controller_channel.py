"""A broker's way to the active controller.

One connection, opened when it is needed and dropped when anything goes wrong with it. `call` asks once and says
honestly what became of it; whoever calls knows best whether and when to ask again. Requests of one connection are
answered one after another, so whatever waits long (the metadata fetch) has a channel of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from images.broker.config import Voter
from images.broker.wire import Connection, ConnectionLost


class ControllerChannel:
    """Requests from this broker to the controller."""

    def __init__(self, voters: Sequence[Voter], client_id: str, timeout_s: float) -> None:
        self._voters = tuple(voters)
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._turn = 0
        self._connection: Connection | None = None
        self._opening = asyncio.Lock()

    async def call(self, request: Any, extra_timeout_s: float = 0.0) -> Any:
        """Send `request` and give the answer. Raises ConnectionLost; its `sent` tells whether the controller may have
        received the request."""
        connection = await self._connected()
        return await connection.call(request, self._timeout_s + extra_timeout_s)

    async def _connected(self) -> Connection:
        async with self._opening:
            if self._connection is None or self._connection.closed:
                voter = self._voters[self._turn % len(self._voters)].endpoint
                try:
                    self._connection = await Connection.open(voter.host, voter.port, self._client_id, self._timeout_s)
                except ConnectionLost as lost:
                    self._turn += 1
                    raise ConnectionLost(str(lost), sent=False) from None
            return self._connection

    def try_next(self) -> None:
        """The voter asked is not the active controller: turn to the next one."""
        self.close()
        self._turn += 1

    def close(self) -> None:
        """Drop the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
