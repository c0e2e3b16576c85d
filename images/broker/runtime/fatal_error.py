"""The fatal error of a node: the first exception that is not a network error (a full disk, a bug) stops it.

A node with a fatal error handles no more requests and sends no more responses. It does not know whether a request took
effect, so clients learn only that their connections end; later errors, which follow from the first one, are ignored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from images.broker.runtime.server import CloseConnection, Handler, Request
from images.broker.runtime.spawn import Arguments


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

    @contextmanager
    def catch(self) -> Iterator[None]:
        """An exception of the block is fatal for the node, and goes no further: for work that nobody awaits."""
        try:
            yield
        except Exception as error:
            self.set(error)

    async def watch(self, work: Callable[[*Arguments], Coroutine[Any, Any, None]], *arguments: *Arguments) -> None:
        """Do the work of a task: its exceptions are fatal for the node at once, not only when the task is reaped."""
        try:
            await work(*arguments)
        except Exception as error:
            self.set(error)
            raise

    def guard(self, handler: Handler) -> Handler:
        """`handler`, whose exceptions other than `CloseConnection` are fatal for the node, not for one connection."""

        async def handle(request: Request[Any]) -> Any:
            if not self.occurred:
                try:
                    answer = await handler(request)
                except CloseConnection:
                    raise
                except Exception as error:
                    self.set(error)
                else:
                    if not self.occurred:
                        return answer
            return await asyncio.get_running_loop().create_future()

        return handle
