"""The result of opening a log, and the dropping of a log that has lost its beginning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from images.broker.log.segment import segment_name
from images.broker.ports import Files


@dataclass(frozen=True, slots=True)
class LogRecovery:
    """Whether a log was closed cleanly, and what had to be repaired."""

    clean: bool
    """Whether it was closed cleanly, so that no batch had to be checked."""
    cut_bytes: int = 0
    """Bytes truncated at the end: torn or damaged batches, and all behind them."""
    cut_reason: str = ""
    epochs_rebuilt: bool = False
    """Whether the epoch cache had to be rebuilt from the batches."""
    producers_rebuilt: bool = False
    """Whether the producer table had to be rebuilt, at least in part, from the batches."""


def drop_segments(files: Files, directory: str, bases: Sequence[int], first: int) -> LogRecovery:
    """Delete all segments of a log that has lost its first one: the records are no prefix of any state it had."""
    dropped_bytes = 0
    for base in bases:
        path = f"{directory}/{segment_name(base)}"
        file = files.open(path)
        dropped_bytes += file.size()
        file.close()
        files.delete(path)
    reason = f"{segment_name(first)}, the first segment, is missing"
    return LogRecovery(False, dropped_bytes, reason, epochs_rebuilt=True, producers_rebuilt=True)
