"""The snapshot files of a log: the producer table before an offset.

    <20-digit offset>.snapshot

There is one for each segment's base offset and one from a clean close, so that a truncation deep in the log need not
read it from the beginning. These are not synced: a torn or damaged snapshot counts as missing, and after a power loss
the log trusts none of them. The snapshot of the first segment, once the log start has advanced, replaces deleted
batches: it is synced, and trusted.
"""

from __future__ import annotations

from images.broker.log.producer_state import ProducerTable, from_snapshot, to_snapshot
from images.broker.ports import Files
from images.broker.runtime.files import read_whole, write_durably

SUFFIX = ".snapshot"
OFFSET_DIGITS = 20


class ProducerSnapshots:
    """The snapshots in one log's directory."""

    __slots__ = ("_directory", "_files")

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory

    def write(self, offset: int, table: ProducerTable) -> None:
        """Write `table` as the snapshot of `offset`, in place of an earlier one."""
        path = self._path(offset)
        self._files.delete(path)
        file = self._files.open(path)
        try:
            file.append(to_snapshot(table))
        finally:
            file.close()

    def write_durably(self, offset: int, table: ProducerTable) -> None:
        """As `write`, and on return it survives a power loss."""
        write_durably(self._files, self._path(offset), to_snapshot(table))

    def newest(self, above: int, at_or_below: int) -> tuple[int, ProducerTable] | None:
        """The readable snapshot with the highest offset in (above, at_or_below]."""
        for offset in reversed(self.offsets()):
            if above < offset <= at_or_below:
                data = read_whole(self._files, self._path(offset))
                table = None if data is None else from_snapshot(data)
                if table is not None:
                    return offset, table
        return None

    def delete_above(self, offset: int, but: int = -1) -> None:
        """Delete the snapshots of higher offsets, whose batches are truncated, except that of `but`."""
        for snapshot in self.offsets():
            if snapshot > offset and snapshot != but:
                self._files.delete(self._path(snapshot))

    def delete_below(self, offset: int) -> None:
        """Delete the snapshots of lower offsets: no truncation reaches them any more."""
        for snapshot in self.offsets():
            if snapshot < offset:
                self._files.delete(self._path(snapshot))

    def offsets(self) -> list[int]:
        """The offsets of all snapshots, lowest first."""
        digits = [name.removesuffix(SUFFIX) for name in self._files.list(self._directory) if name.endswith(SUFFIX)]
        return sorted(int(offset) for offset in digits if len(offset) == OFFSET_DIGITS and offset.isdecimal())

    def _path(self, offset: int) -> str:
        return f"{self._directory}/{offset:0{OFFSET_DIGITS}d}{SUFFIX}"
