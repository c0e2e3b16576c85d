"""The result of opening a log."""

from __future__ import annotations

from dataclasses import dataclass


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
