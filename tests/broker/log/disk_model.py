"""Files in memory that lose unsynced writes the way disks do: the adversary of the log's tests.

The durable state and the operations since are kept apart. A power loss keeps, of each file's unsynced operations, any
prefix, each file for itself; the last append kept may be torn and a byte of what was never synced may be flipped. Of
the directory operations it keeps any prefix, in order, as a journal does. Nothing synced is ever harmed.

`fail_after` makes the n-th change from now raise PowerCut before it happens, so that a loss can strike in the middle of
anything a caller does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from errno import ENOSPC

from images.wire.batch import HEADER_BYTES, parse


class PowerCut(BaseException):
    """The machine is gone. Not an Exception: no error handling of the log may see it."""


Draw = Callable[[int, int], int]
"""A number between two bounds, both included."""


@dataclass
class Inode:
    """One file's durable bytes and the operations since its last fsync."""

    durable: bytes = b""
    content: bytearray = field(default_factory=bytearray)
    unsynced: list[bytes | int] = field(default_factory=list)
    """bytes appended, or the size the file was cut to."""


@dataclass
class DiskFile:
    """An open handle."""

    disk: DiskModel
    inode: Inode

    def append(self, data: bytes) -> None:
        self.disk.change()
        room = self.disk.capacity_bytes - self.disk.used_bytes()
        written = data[: max(0, room)]
        self.inode.content += written
        self.inode.unsynced.append(bytes(written))
        if len(written) < len(data):
            raise OSError(ENOSPC, "No space left on device")

    def read(self, offset: int, size: int) -> bytes:
        return bytes(self.inode.content[offset : offset + size])

    def size(self) -> int:
        return len(self.inode.content)

    def truncate(self, size: int) -> None:
        self.disk.change()
        if size < len(self.inode.content):
            del self.inode.content[size:]
            self.inode.unsynced.append(size)

    def fsync(self) -> None:
        self.disk.change()
        if self.disk.fsync_error is not None:
            raise self.disk.fsync_error
        self.disk.fsyncs += 1
        self.inode.durable = bytes(self.inode.content)
        self.inode.unsynced.clear()

    def close(self) -> None:
        pass


@dataclass
class DiskModel:
    """A file system; see the module's docstring."""

    names: dict[str, Inode] = field(default_factory=dict)
    durable_names: dict[str, Inode] = field(default_factory=dict)
    unsynced_names: list[tuple[str, dict[str, Inode | None]]] = field(default_factory=list)
    """(directory, names set or removed by one operation), in order."""
    capacity_bytes: int = 1 << 60
    fsync_error: OSError | None = None
    directory_error: OSError | None = None
    """Of every sync of a directory."""
    fsyncs: int = 0
    changes_left: int | None = None

    # ---- the Files port ----------------------------------------------------------------------------------------------

    def open(self, path: str) -> DiskFile:
        if path not in self.names:
            self._rename(path, {path: Inode()})
        return DiskFile(self, self.names[path])

    def exists(self, path: str) -> bool:
        return path in self.names or any(name.startswith(f"{path}/") for name in self.names)

    def list(self, directory: str) -> list[str]:
        prefix = "" if directory in ("", ".") else f"{directory}/"
        return sorted({name[len(prefix) :].split("/")[0] for name in self.names if name.startswith(prefix)})

    def rename(self, source: str, target: str) -> None:
        moved = {name: inode for name, inode in self.names.items() if name == source or name.startswith(f"{source}/")}
        if not moved:
            raise FileNotFoundError(source)
        changes: dict[str, Inode | None] = dict.fromkeys(moved)
        changes |= {target + name[len(source) :]: inode for name, inode in moved.items()}
        self._rename(source, changes)

    def delete(self, path: str) -> None:
        gone = [name for name in self.names if name == path or name.startswith(f"{path}/")]
        if gone:
            self._rename(path, dict.fromkeys(gone))

    def sync_directory(self, directory: str) -> None:
        self.change()
        if self.directory_error is not None:
            raise self.directory_error
        waiting = []
        for where, changes in self.unsynced_names:
            if where == directory:
                _apply(self.durable_names, changes)
            else:
                waiting.append((where, changes))
        self.unsynced_names = waiting

    def _rename(self, path: str, changes: dict[str, Inode | None]) -> None:
        self.change()
        _apply(self.names, changes)
        self.unsynced_names.append((path.rpartition("/")[0], changes))

    # ---- what can go wrong -------------------------------------------------------------------------------------------

    def fail_after(self, changes: int | None) -> None:
        """Let so many changes happen, then raise PowerCut at every one; None: never."""
        self.changes_left = changes

    def change(self) -> None:
        if self.changes_left is not None:
            if self.changes_left == 0:
                raise PowerCut
            self.changes_left -= 1

    def used_bytes(self) -> int:
        return sum(len(inode.content) for inode in self.names.values())

    def lose_power(
        self, draw: Draw, may_flip: Callable[[str, bytes, int], bool] = lambda path, content, at: True
    ) -> None:
        """Forget what `draw` says of everything unsynced. The last append kept may be torn, a lost byte flipped."""
        self.fail_after(None)
        kept = draw(0, len(self.unsynced_names))
        for _, changes in self.unsynced_names[:kept]:
            _apply(self.durable_names, changes)
        self.unsynced_names = []
        self.names = dict(self.durable_names)
        for path in sorted(self.names):
            self._lose_writes(path, self.names[path], draw, may_flip)

    def _lose_writes(self, path: str, inode: Inode, draw: Draw, may_flip: Callable[[str, bytes, int], bool]) -> None:
        content = bytearray(inode.durable)
        safe = len(content)
        for operation in inode.unsynced[: draw(0, len(inode.unsynced))]:
            if isinstance(operation, int):
                del content[operation:]
                safe = min(safe, operation)
            else:
                content += operation
        if len(content) > safe:
            harm = draw(0, 3)
            if harm == 1:
                del content[draw(safe, len(content) - 1) :]
            elif harm == 2:
                at = draw(safe, len(content) - 1)
                if may_flip(path, bytes(content), at):
                    content[at] ^= 1 << draw(0, 7)
        inode.durable = bytes(content)
        inode.content = content
        inode.unsynced = []


def _apply(names: dict[str, Inode], changes: dict[str, Inode | None]) -> None:
    for name, inode in changes.items():
        if inode is None:
            names.pop(name, None)
        else:
            names[name] = inode


def is_not_an_epoch_byte(path: str, content: bytes, at: int) -> bool:
    """No checksum covers a batch's leader epoch: damage there cannot be found, so none is done."""
    start = 0
    while path.endswith(".log") and start + HEADER_BYTES <= len(content) and start <= at:
        if start + 12 <= at < start + 16:
            return False
        start += parse(content, start).size
    return True
