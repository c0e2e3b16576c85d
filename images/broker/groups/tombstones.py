"""The tombstones of deleted topics' offsets that a coordinator has yet to append.

A topic is deleted whether or not the ISR of `__consumer_offsets` suffices for an append. Tombstones that find it too
small are tried again, and before everything else that the coordinator appends: a commit for a new topic of the same
name must not stand before them. Until all are committed no offsets are told: the next coordinator could tell again what
this one tells as deleted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from kio.schema.errors import ErrorCode

from images.broker.groups.records import Records
from images.broker.replication.replica_results import AppendResult
from images.broker.runtime.spawn import Spawn

_RETRY_S = 1.0


class Tombstones:
    """Those of one shard. `append` appends records as the leader; as none it returns NOT_LEADER_OR_FOLLOWER."""

    def __init__(self, append: Callable[[Records], AppendResult], spawn: Spawn) -> None:
        self._append = append
        self._spawn = spawn
        self._left: deque[tuple[bytes, bytes | None]] = deque()
        self._end = 0
        """Of the last one that is in the log."""

    def add(self, tombstones: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Append these, now or later."""
        retried = bool(self._left)
        self._left.extend(tombstones)
        if not self.append() and not retried:
            self._spawn(self._append_later)

    def append(self) -> bool:
        """Append those that are left, each as a batch of its own, which is never too large. False if the ISR is too
        small."""
        while self._left:
            append_result = self._append((self._left[0],))
            if append_result.error is ErrorCode.not_enough_replicas:
                return False
            self._left.popleft()
            self._end = max(self._end, append_result.end)
        return True

    def committed(self, high_watermark: int) -> bool:
        """Append those that are left; whether all are below the high watermark now."""
        return self.append() and self._end <= high_watermark

    async def _append_later(self) -> None:
        while not self.append():  # noqa: ASYNC110
            await asyncio.sleep(_RETRY_S)
