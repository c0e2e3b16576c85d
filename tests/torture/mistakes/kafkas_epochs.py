"""A log with the epoch cache of Kafka's, which does not know where the epoch ends that is not in force at its start."""

from __future__ import annotations

from images.broker.log.leader_epochs import EpochCache
from tests.torture.mistakes.mistake import Patch


def epoch_of_next_record_kept(patch: Patch) -> None:
    """A log keeps the epoch of the record at its start in place of that of the record before."""
    right = EpochCache.advance_start
    patch.setattr(EpochCache, "advance_start", lambda self, offset: right(self, offset + 1))
