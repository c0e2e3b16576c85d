"""The type of the function by which parts of a node start tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVarTuple

Arguments = TypeVarTuple("Arguments")


class Spawn(Protocol):
    """Starts a task; the node fails when the task fails."""

    def __call__(
        self, work: Callable[[*Arguments], Coroutine[Any, Any, None]], *arguments: *Arguments
    ) -> asyncio.Task[None]:
        """Start the task that does the work."""
