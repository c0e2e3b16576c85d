"""A controller's connections to the other voters, one to each, opened on demand.

Opening has a timeout of its own (`socket.connection.setup.timeout.ms`) and goes on when a caller gives up: the next
caller waits for the same opening, or takes the opened connection. Otherwise, over a link on which opening a connection
and one request last longer than the request may, every try would begin anew and none succeed.

A connection stays open when the request it was opened for is of no use any more. It is opened anew once it is closed,
as a request that times out does. So requests of different kinds have connections of their own: no fetch waits behind a
vote, and no vote that times out takes a fetch with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from images.broker.config import Endpoint
from images.wire.connection import Connection, ConnectionLost


class VoterConnections:
    """At most one connection to each voter. Call `close` at the end."""

    def __init__(self, addresses: Mapping[int, Endpoint], client_id: str, setup_timeout_s: float) -> None:
        self._addresses = addresses
        self._client_id = client_id
        self._setup_timeout_s = setup_timeout_s
        self._connections: dict[int, Connection] = {}
        self._openings: dict[int, asyncio.Task[Connection | ConnectionLost]] = {}

    async def to(self, voter: int) -> Connection:
        """The connection to `voter`, once it is open. Raises ConnectionLost, `sent` False, if it cannot be opened.

        Cancelling the call does not end the opening.
        """
        connection = self._connections.get(voter)
        if connection is not None and not connection.closed:
            return connection
        opening = self._openings.get(voter)
        if opening is None:
            opening = self._openings[voter] = asyncio.get_running_loop().create_task(self._open(voter))
        await asyncio.wait((opening,))
        opened = opening.result()
        if isinstance(opened, ConnectionLost):
            raise ConnectionLost(str(opened), sent=False)
        return opened

    def close(self) -> None:
        """Close every connection and end every opening."""
        for opening in list(self._openings.values()):
            opening.cancel()
        for connection in self._connections.values():
            connection.close()

    async def _open(self, voter: int) -> Connection | ConnectionLost:
        """Open a connection. A failure is returned, since there may be nobody left to raise it to."""
        address = self._addresses[voter]
        try:
            connection = await Connection.open(address.host, address.port, self._client_id, self._setup_timeout_s)
        except ConnectionLost as lost:
            return lost
        finally:
            del self._openings[voter]
        self._connections[voter] = connection
        return connection
