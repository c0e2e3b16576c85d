"""What ends a node: the first thing to go wrong in it that is not the network's doing, a full disk or a bug.

A node that failed answers nobody any more. It does not know whether what it was asked for is done, so its clients are
to learn that from their connections, which end with it; and whatever follows from the failure is not told once more.
"""

from __future__ import annotations

import asyncio
from typing import Any

from images.broker.runtime.server import CloseConnection, Handler, Request


class FatalError:
    """The failure of one node, while there is none and after."""

    def __init__(self) -> None:
        self._error: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def occurred(self) -> bool:
        """Whether the node has failed."""
        return self._error.done()

    def set(self, error: Exception) -> None:
        """The node fails with `error`, unless it has failed already."""
        if not self._error.done():
            self._error.set_exception(error)

    async def wait(self) -> None:
        """Never returns: raises what made the node fail, once it has. May be waited for by one, and cancelled."""
        await asyncio.shield(self._error)

    def guard(self, handler: Handler) -> Handler:
        """`handler`, whose exceptions other than `CloseConnection` are fatal for the node, not for one connection."""

        async def handle(request: Request[Any]) -> Any:
            try:
                return await handler(request)
            except CloseConnection:
                raise
            except Exception as error:
                self.set(error)
                return await asyncio.get_running_loop().create_future()

        return handle
