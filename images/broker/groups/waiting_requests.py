"""The requests of members, joins or syncs, that wait for their response."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from kio.schema.errors import ErrorCode

from images.broker.groups.group import JoinAnswer, SyncAnswer

Answer = TypeVar("Answer", JoinAnswer, SyncAnswer)


class WaitingRequests(Generic[Answer]):
    """Those of one kind, at most one of each member of a group. `refusal` makes the answer to a member with an
    error."""

    def __init__(self, refusal: Callable[[str, ErrorCode], Answer]) -> None:
        self._refusal: Callable[[str, ErrorCode], Answer] = refusal
        self._waiting: dict[tuple[str, str], asyncio.Future[Answer]] = {}

    def add(self, group: str, member_id: str) -> asyncio.Future[Answer]:
        """The future of a response. An earlier waiting request of the same member is answered with
        REBALANCE_IN_PROGRESS, since its sender has given it up."""
        self.respond(group, member_id, self._refusal(member_id, ErrorCode.rebalance_in_progress))
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[group, member_id] = future
        return future

    def respond(self, group: str, member_id: str, answer: Answer) -> None:
        """Answer the request of a member, if one waits."""
        _resolve(self._waiting.pop((group, member_id), None), answer)

    def members(self, group: str) -> list[str]:
        """The members of a group whose request waits."""
        return [member_id for name, member_id in self._waiting if name == group]

    def refuse_all(self, error: ErrorCode) -> None:
        """Answer all with this error."""
        for (_, member_id), future in self._waiting.items():
            _resolve(future, self._refusal(member_id, error))
        self._waiting.clear()


def _resolve(future: asyncio.Future[Answer] | None, answer: Answer) -> None:
    if future is not None and not future.done():
        future.set_result(answer)
