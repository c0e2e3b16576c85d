"""The scope of an exploration of the controllers' quorum (docs/exploration.md)."""

from __future__ import annotations

from dataclasses import dataclass

from harness.search.quorum_exploration.quorum_values import RequestKind
from images.broker.rules import Rules


@dataclass(frozen=True, slots=True)
class QuorumScope:
    """The bounds of an exploration."""

    controllers: int = 3
    epochs: int = 2
    """Elections, at most: no controller asks for pre-votes in the last epoch."""
    records: int = 1
    """Records that leaders append, at most, on top of the first one of each leader."""
    in_flight: tuple[RequestKind, ...] = (RequestKind.VOTE,)
    """Requests between whose sending, arrival and answer other steps come. All others arrive, and are answered, in the
    step that sends them, unless they are lost."""
    messages: int = 2
    """Requests and answers in flight at a time, at most; further ones are lost."""
    restarts: int = 0
    """Restarts of controllers, at most."""
    losses: int = 0
    """Restarts after a power loss, which may take all that was not synced, at most."""
    without: tuple[str, ...] = ()
    """Safety rules that are off."""
    symmetry: bool = True
    """Whether states that differ only by the names of the controllers count as one."""

    @property
    def voters(self) -> tuple[int, ...]:
        """The ids of the controllers."""
        return tuple(range(1, self.controllers + 1))

    @property
    def majority(self) -> int:
        """Size of a majority."""
        return self.controllers // 2 + 1

    @property
    def rules(self) -> Rules:
        """The safety rules of all controllers."""
        return Rules().without(self.without)
