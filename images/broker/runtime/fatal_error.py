"""The fatal error of a node: the first exception that is not a network error (a full disk, a bug) stops it.

A node with a fatal error sends no more responses. It does not know whether a request took effect, so clients learn only
that their connections end; later errors, which follow from the first one, are ignored.
"""

from __future__ import annotations

import asyncio
from typing import Any

from images.broker.runtime.server import CloseConnection, Handler, Request


class FatalError:
    """The fatal error of one node, if any."""

    def __init__(self) -> None:
        self._error: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def occurred(self) -> bool:
        """Whether there is a fatal error."""
        return self._error.done()

    def set(self, error: Exception) -> None:
        """Make `error` the fatal error, unless there is one."""
        if not self._error.done():
            self._error.set_exception(error)
            # A node that ends already, over an error of another part, awaits it no more: asyncio must not report it.
            self._error.exception()

    async def wait(self) -> None:
        """Raise the fatal error once there is one. May be awaited by one task, and cancelled."""
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
