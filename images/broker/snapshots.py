"""The snapshot files of a log: the producer table as it was before an offset.

    <20-digit offset>.snapshot

One is kept for each segment's start and one from a clean close, so that a cut deep in the log need not read it from
the beginning. Nothing here is synced: a snapshot that is torn or damaged counts as missing, and after a power loss
the log trusts none.
"""

from __future__ import annotations

from images.broker.doors import Files
from images.broker.files import read_whole
from images.broker.producers import ProducerTable, from_snapshot, to_snapshot

SUFFIX = ".snapshot"
OFFSET_DIGITS = 20


class Snapshots:
    """The snapshots in one log's directory."""

    __slots__ = ("_directory", "_files")

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory

    def write(self, offset: int, table: ProducerTable) -> None:
        """Keep `table` as the state before `offset`, instead of any other."""
        path = self._path(offset)
        self._files.delete(path)
        file = self._files.open(path)
        try:
            file.append(to_snapshot(table))
        finally:
            file.close()

    def newest(self, above: int, at_or_below: int) -> tuple[int, ProducerTable] | None:
        """The readable snapshot with the highest offset in (above, at_or_below]."""
        for offset in reversed(self.offsets()):
            if above < offset <= at_or_below:
                data = read_whole(self._files, self._path(offset))
                table = None if data is None else from_snapshot(data)
                if table is not None:
                    return offset, table
        return None

    def delete_above(self, offset: int) -> None:
        """Forget every snapshot of a higher offset: what it stands for has been cut off."""
        for found in self.offsets():
            if found > offset:
                self._files.delete(self._path(found))

    def offsets(self) -> list[int]:
        """The offsets there are snapshots of, lowest first."""
        digits = [name.removesuffix(SUFFIX) for name in self._files.list(self._directory) if name.endswith(SUFFIX)]
        return sorted(int(offset) for offset in digits if len(offset) == OFFSET_DIGITS and offset.isdecimal())

    def _path(self, offset: int) -> str:
        return f"{self._directory}/{offset:0{OFFSET_DIGITS}d}{SUFFIX}"
