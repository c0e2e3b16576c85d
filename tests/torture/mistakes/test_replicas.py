"""Mistakes of replicas, each played by a running cluster: `protocol` finds the promise that it breaks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from images.broker.log.log import Log
from images.broker.replication.fetch_sessions import FetchContext, FetchSessionCache
from tests.torture.mistakes.mistake import Fault, Mistake, Patch


def _synced_in_word(patch: Patch) -> None:
    """A log counts as synced what it has not synced."""
    patch.setattr(Log, "_fsync", lambda *_: None)


def _nothing_forgotten(patch: Patch) -> None:
    """A fetch session keeps what its follower asks to leave out."""
    right = FetchSessionCache.open

    def opened(self: FetchSessionCache, request: Any, **told: Any) -> FetchContext:
        return right(self, replace(request, forgotten_topics_data=()), **told)

    patch.setattr(FetchSessionCache, "open", opened)


POWER_LOSS: Fault = {"at": "4s", "for": "2s", "fault": "power-loss", "nodes": ["b1"], "keep": "nothing"}
MOVES: Fault = {"at": "2s", "for": "2s", "fault": "move-leadership"}

MISTAKES = {
    "synced-records-lost": Mistake(_synced_in_word, [POWER_LOSS], {"settings": {"flush.messages": "1"}}),
    "forgotten-partition-fetched": Mistake(_nothing_forgotten, [MOVES], {"partitions": 2, "time_limit": "4s"}),
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_a_mistake_of_replicas_is_found(kind: str, monkeypatch: Patch) -> None:
    MISTAKES[kind].check_found(kind, monkeypatch)
