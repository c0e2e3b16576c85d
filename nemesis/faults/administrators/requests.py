"""Requests of administrators that are repeated: until they are done, and again once everything is healed where it is in
doubt whether what they undo was."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from nemesis.handle import FaultHandle
from nemesis.ports import DONE, UNANSWERED, AdminResult

_RETRY_S = 0.5
_RETRIES = 120


class NotDone(Exception):
    """A request was not done for as long as it was repeated; the last answer."""


async def recorded(answers: list[AdminResult], request: Awaitable[AdminResult]) -> AdminResult:
    """The answer to `request`, which counts as in doubt from the beginning: the fault may be cancelled over it."""
    answers.append(AdminResult(UNANSWERED, in_doubt=True))
    place = len(answers) - 1
    answers[place] = await request
    return answers[place]


async def until_done(
    handle: FaultHandle, request: Callable[[], Awaitable[AdminResult]], what: str, undone: Sequence[AdminResult]
) -> None:
    """Ask until it is done. Where an answer to what is undone is in doubt, ask again when everything is healed, and
    until the cluster has recovered; so, too, where other faults have kept it from being done for long."""

    async def ask() -> str:
        answer = ""
        for _ in range(_RETRIES):
            answer = (await request()).outcome
            if answer == DONE:
                break
            await handle.sleep(_RETRY_S)
        return answer

    async def ask_at_end() -> None:
        answer = await ask()
        if answer != DONE:
            raise NotDone(answer)

    if await ask() != DONE or any(answer.in_doubt for answer in undone):
        handle.confirm_at_end(what, ask_at_end)
