"""The epoch checkpoint of a log: its epoch cache at a clean close, in Kafka's format (`leader_epochs.py`)."""

from __future__ import annotations

from images.broker.log.leader_epochs import EpochCache
from images.broker.ports import Files
from images.broker.runtime.files import read_whole, write_durably

EPOCH_CHECKPOINT = "leader-epoch-checkpoint"


def write_epoch_checkpoint(files: Files, directory: str, epochs: EpochCache) -> None:
    """Write the checkpoint durably. Raises OSError."""
    write_durably(files, f"{directory}/{EPOCH_CHECKPOINT}", epochs.to_checkpoint().encode())


def read_epoch_checkpoint(files: Files, directory: str, end: int) -> EpochCache | None:
    """Read the epochs below `end`; None without a checkpoint, or if it is torn. Raises OSError."""
    data = read_whole(files, f"{directory}/{EPOCH_CHECKPOINT}")
    epochs = None if data is None else EpochCache.from_checkpoint(data.decode("ascii", "replace"))
    return None if epochs is None else epochs.truncate_end(end)
