"""A power loss: which unsynced changes survive is drawn at random, the others are undone.

The draws (`images.base.lossyfs.survival`) are those of the simulated disk: a prefix of the name journal and a prefix of
each file's changes. They depend on the seed, the file's path and its number of unsynced changes only, so that the same
history and seed leave the same disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Final

from images.base.lossyfs.name_journal import FileEntry, NameChange
from images.base.lossyfs.survival import Survival, draw_surviving_prefix
from images.base.lossyfs.undo import RewindResult
from images.base.lossyfs.volume import Volume

FILES_NAMED_MAX: Final = 100
"""Reports list at most this many files, those with the largest loss; totals count every file."""


@dataclass(frozen=True, slots=True)
class FileAtRisk:
    """A file with unsynced contents."""

    path: str
    unsynced_bytes: int
    lost_bytes: int = 0
    torn_at: int | None = None
    """Offset at which its last surviving write was cut."""
    vanished: bool = False
    """The file was lost with its name."""


@dataclass(frozen=True, slots=True)
class Unsynced:
    """Data that a power loss could take now."""

    unsynced_bytes: int
    """Bytes written to files with a name, and not synced; a byte written twice counts twice."""
    unsynced_files: int
    unsynced_names: int
    """Name changes that are not durable."""
    open_handles: int
    files: tuple[FileAtRisk, ...]


@dataclass(frozen=True, slots=True)
class PowerLossOutcome:
    """Result of a power loss."""

    keep: Survival
    seed: int
    unsynced_bytes: int
    unsynced_files: int
    unsynced_names: int
    lost_bytes: int
    """Lost unsynced bytes, and synced bytes of files that vanished."""
    lost_files: int
    """Files that lost contents or vanished."""
    lost_names: int
    """Lost name changes."""
    torn_files: int
    open_handles: int
    """Files that programs still had open: they get EIO from these from now on."""
    files: tuple[FileAtRisk, ...]


def unsynced(volume: Volume) -> Unsynced:
    """Data that a power loss could take now."""
    files = [FileAtRisk(volume.path_of(file), file.log.written_bytes) for file in volume.dirty if volume.visible(file)]
    return Unsynced(
        sum(file.unsynced_bytes for file in files),
        len(files),
        len(volume.journal.changes),
        sum(not handle.stale for handle in volume.handles.values()),
        _largest_loss_first(files),
    )


def lose_power(volume: Volume, keep: Survival, seed: int) -> PowerLossOutcome:
    """Undo changes that are not durable, as far as `keep` says. Programs should be dead: open files become stale."""
    at_loss = unsynced(volume)
    at_risk = {file: volume.path_of(file) for file in volume.dirty if volume.visible(file)}
    unsynced_bytes = {file: file.log.written_bytes for file in at_risk}
    rewinds = {file: _rewind(volume, file, keep, seed) for file in tuple(volume.dirty)}
    surviving = draw_surviving_prefix(len(volume.journal.changes), keep, Random(f"{seed}"))
    settled, lost = volume.journal.drop_youngest(surviving)
    volume.make_durable(settled)
    vanishing_files = _vanishing_files(volume, lost)
    files = tuple(
        FileAtRisk(
            at_risk.get(file) or volume.path_of(file),
            unsynced_bytes.get(file, 0),
            (rewinds[file].lost_bytes if file in at_risk else 0) + vanishing_files.get(file, 0),
            rewinds[file].torn_at if file in at_risk else None,
            file in vanishing_files,
        )
        for file in dict.fromkeys((*at_risk, *vanishing_files))
    )
    for change in lost:
        volume.undo_change(change)
    volume.reset()
    return PowerLossOutcome(
        keep,
        seed,
        at_loss.unsynced_bytes,
        at_loss.unsynced_files,
        at_loss.unsynced_names,
        sum(file.lost_bytes for file in files),
        sum(file.lost_bytes > 0 or file.vanished for file in files),
        len(lost),
        sum(file.torn_at is not None and not file.vanished for file in files),
        at_loss.open_handles,
        _largest_loss_first(files),
    )


def _rewind(volume: Volume, file: FileEntry, keep: Survival, seed: int) -> RewindResult:
    random = Random(f"{seed}{volume.path_of(file)}")
    descriptor = os.open(file.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        surviving = draw_surviving_prefix(file.log.steps, keep, random)
        return file.log.rewind(descriptor, surviving, random if keep is Survival.TORN else None)
    finally:
        os.close(descriptor)


def _vanishing_files(volume: Volume, lost: list[NameChange]) -> dict[FileEntry, int]:
    """Files, visible now, that are lost once `lost` is undone, each with its size."""
    return {
        move.node: os.lstat(move.node.path).st_size
        for change in lost
        for move in change.moves
        if move.source is None and isinstance(move.node, FileEntry) and volume.visible(move.node)
    }


def _largest_loss_first(files: Iterable[FileAtRisk]) -> tuple[FileAtRisk, ...]:
    ordered = sorted(files, key=lambda file: (-file.lost_bytes, -file.unsynced_bytes, file.path))
    return tuple(ordered[:FILES_NAMED_MAX])
