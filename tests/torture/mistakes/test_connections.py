"""Mistakes in how a process reads from its connections, each played by a running cluster: the simulated network has
seen that it read an answer, which it waits for all the same. Nothing else tells such a connection from a lost one."""

from __future__ import annotations

import pytest

from tests.simulation.applied_mistake import replace_in
from tests.torture.mistakes.mistake import Patch, PlayedMistake

_FEED = "images.wire.connection:FrameDecoder.feed"


def _size_kept(patch: Patch) -> None:
    """A frame whose length comes in pieces is held back until it is as long as an earlier one that came in pieces."""
    replace_in(patch, _FEED, "self._need = 4\n    while have", "while have")


def _length_lost(patch: Patch) -> None:
    """The first piece of a length is lost."""
    left = "self.partial = have - start\n    if"
    replace_in(patch, _FEED, left, "self.partial = have - start if have - start >= 4 else 0\n    if")


MISTAKES = (
    PlayedMistake("answer-unheard", _size_kept, world={"seed": 7}),
    PlayedMistake("answer-unheard", _size_kept, world={"seed": 1, "workload": "groups"}),
    PlayedMistake("answer-unheard", _length_lost, world={"seed": 1}),
)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_an_answer_that_was_read_and_not_heard_is_found(mistake: PlayedMistake, monkeypatch: Patch) -> None:
    mistake.check_found(monkeypatch)
