"""A volume: one backing directory, with undo logs for everything that is not durable (the package's docstring has the
model).

Paths are those below the mount point, beginning with `/`. Errors are the OSError of the backing file system. This
module knows no damage, FUSE or threads: callers take turns.

Unlinked and replaced files are kept as BACKING/.lossyfs/<number>, as orphans, until their removal is durable and no
program has them open.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from images.base.lossyfs.name_journal import DirectoryEntry, FileEntry, NameChange, NameJournal, NameMove, TreeEntry
from images.base.lossyfs.saved_extents import save_extents

ORPHANS: Final = ".lossyfs"
HIDDEN_PREFIX: Final = ".fuse_hidden"
"""libfuse renames an open file to such a name when a program unlinks or replaces it, and unlinks it after close. The
volume unlinks it at once."""
JOURNAL_CHANGES_MAX: Final = 50_000
ORPHAN_BYTES_MAX: Final = 1 << 30

Owner = tuple[int, int]
"""User and group of the creating program."""


class FileHandle:
    """An open file. `stale` after a power loss: the program should be dead."""

    __slots__ = ("descriptor", "node", "stale")

    def __init__(self, descriptor: int, node: FileEntry) -> None:
        self.descriptor = descriptor
        self.node = node
        self.stale = False


class Volume:
    """The file system as programs see it, and its changes that are not durable."""

    def __init__(
        self,
        backing: str | os.PathLike[str],
        *,
        strict_names: bool = False,
        journal_changes_max: int = JOURNAL_CHANGES_MAX,
        orphan_bytes_max: int = ORPHAN_BYTES_MAX,
    ) -> None:
        self.backing = os.fspath(Path(backing).resolve(strict=True))
        self.strict_names = strict_names
        self.journal = NameJournal()
        self.dirty: dict[FileEntry, None] = {}
        """Files with contents that are not durable."""
        self.handles: dict[int, FileHandle] = {}
        """By descriptor."""
        self.orphans_path = f"{self.backing}/{ORPHANS}"
        self._journal_changes_max = journal_changes_max
        self._orphan_bytes_max = orphan_bytes_max
        self._serial = 0
        self.reset()

    def reset(self) -> None:
        """Treat the backing directory as durable; delete orphans, mark open files as stale."""
        for handle in self.handles.values():
            handle.stale = True
        self._root = DirectoryEntry(None, self.backing)
        self._orphans = DirectoryEntry(self._root, ORPHANS)
        self._orphan_sizes: dict[TreeEntry, int] = {}
        self._orphan_bytes = 0
        self._hidden: dict[str, FileEntry] = {}
        self._just_hidden: tuple[str, NameChange] | None = None
        self.dirty.clear()
        shutil.rmtree(self.orphans_path, ignore_errors=True)
        os.mkdir(self.orphans_path, 0o700)

    def close(self) -> None:
        """Delete orphans; everything written is kept."""
        shutil.rmtree(self.orphans_path, ignore_errors=True)

    # ---- what changes nothing ----------------------------------------------------------------------------------------

    def backing_path(self, path: str) -> str:
        """The path in the backing file system."""
        self._just_hidden = None
        if path.startswith(f"/{ORPHANS}") and path[len(ORPHANS) + 1 : len(ORPHANS) + 2] in ("", "/"):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        hidden = self._hidden.get(path) if self._hidden else None
        return self.backing + path if hidden is None else hidden.path

    def path_of(self, node: TreeEntry) -> str:
        """The path of an entry below the mount point, or among the orphans."""
        return node.path[len(self.backing) :]

    def path_of_directory(self, descriptor: int) -> str | None:
        """The current path of an open directory; None if it was removed."""
        real = os.readlink(f"/proc/self/fd/{descriptor}")
        status = _status(real)
        here = status is not None and os.path.samestat(status, os.fstat(descriptor))
        return real[len(self.backing) :] if here else None

    def visible(self, node: TreeEntry) -> bool:
        """Whether the entry has a name that programs see."""
        return not node.removed and node.parent is not self._orphans

    def list(self, directory_descriptor: int) -> list[tuple[str, dict[str, int]]]:
        """Names in a directory, each with its inode number and type."""
        with os.scandir(directory_descriptor) as entries:
            return [
                (entry.name, {"st_ino": entry.inode(), "st_mode": _type_of(entry)})
                for entry in entries
                if entry.name != ORPHANS or not self._is_root(directory_descriptor)
            ]

    # ---- contents ----------------------------------------------------------------------------------------------------

    def create(self, path: str, flags: int, mode: int, owner: Owner | None = None) -> FileHandle:
        """Open a file, creating it if missing."""
        real = self.backing_path(path)
        try:
            descriptor = os.open(real, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        except FileExistsError:
            if flags & os.O_EXCL:
                raise
            return self.open(path, flags)
        _set_owner(real, owner)
        node = FileEntry(None, "")
        self._record_creation(path, node)
        return self._open_handle(descriptor, node)

    def open(self, path: str, flags: int) -> FileHandle:
        """Open an existing file; O_TRUNC empties it."""
        access = os.O_RDONLY if flags & os.O_ACCMODE == os.O_RDONLY else os.O_RDWR
        descriptor = os.open(self.backing_path(path), access | os.O_CLOEXEC | os.O_NOFOLLOW)
        handle = self._open_handle(descriptor, self._file(path))
        if flags & os.O_TRUNC:
            self._resize(handle.node, descriptor, 0)
        return handle

    def release(self, handle: FileHandle) -> None:
        """Close a file."""
        del self.handles[handle.descriptor]
        os.close(handle.descriptor)
        handle.node.handles -= 1
        if not handle.stale:
            if handle.node.removed and not handle.node.handles:
                os.unlink(handle.node.path)
            self._drop_if_idle(handle.node)

    def write(self, handle: FileHandle, data: memoryview, offset: int) -> int:
        """Write; returns the bytes written, fewer than given only if the backing file system says so."""
        node, descriptor = handle.node, handle.descriptor
        size = node.size
        if node.removed:
            written = os.pwrite(descriptor, data, offset)
        elif offset == size:
            written = os.pwrite(descriptor, data, offset)
            node.log.record_append(offset, offset + written)
            self.dirty[node] = None
        else:
            saved = save_extents(descriptor, offset, min(offset + len(data), size), self.orphans_path)
            written = os.pwrite(descriptor, data, offset)
            node.log.record_overwrite(size, offset, offset + written, saved)
            self.dirty[node] = None
        if offset + written > size:
            node.size = offset + written
        return written

    def truncate(self, path: str, size: int) -> None:
        """Truncate a file or extend it with zeros."""
        descriptor = os.open(self.backing_path(path), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            node = self._file(path)
            node.size = os.fstat(descriptor).st_size
            self._resize(node, descriptor, size)
        finally:
            os.close(descriptor)

    def truncate_open(self, handle: FileHandle, size: int) -> None:
        """Truncate an open file or extend it with zeros."""
        self._resize(handle.node, handle.descriptor, size)

    def allocate(self, handle: FileHandle, offset: int, length: int) -> None:
        """posix_fallocate: reserves room, and extends the file if needed."""
        os.posix_fallocate(handle.descriptor, offset, length)
        node = handle.node
        if offset + length > node.size and not node.removed:
            node.log.record_resize(node.size, offset + length, ())
            self.dirty[node] = None
        node.size = max(node.size, offset + length)

    # ---- durability --------------------------------------------------------------------------------------------------

    def sync_file(self, node: FileEntry) -> None:
        """Make durable what fsync of a file makes durable."""
        node.log.clear()
        self.dirty.pop(node, None)
        if not self.strict_names:
            self.make_durable(self.journal.sync_node(node))

    def sync_directory(self, directory_descriptor: int) -> None:
        """Make durable what fsync of a directory makes durable."""
        path = self.path_of_directory(directory_descriptor)
        if path is not None:
            self.make_durable(self.journal.sync_directory(self._directory(path)))

    def make_durable(self, changes: Iterable[NameChange]) -> None:
        """Make changes durable that have left the journal."""
        for change in changes:
            for move in change.moves:
                if move.target is None:
                    self._removal_durable(move.node)
                self._drop_if_idle(move.node)

    def undo_change(self, change: NameChange) -> None:
        """Undo the youngest change that is not undone yet."""
        for move in reversed(change.moves):
            node = move.node
            if move.source is None:
                shutil.rmtree(node.path) if isinstance(node, DirectoryEntry) else os.unlink(node.path)
                continue
            directory, name = move.source
            real = f"{directory.path}/{name}"
            if move.target is None and isinstance(node, DirectoryEntry):
                mode, user, group = node.attributes
                os.mkdir(real, mode)
                os.chmod(real, mode)
                os.chown(real, user, group)
            else:
                os.rename(node.path, real)
            if node.parent is not None:
                node.parent.forget(node)
            directory.place(node, name)

    # ---- names -------------------------------------------------------------------------------------------------------

    def mkdir(self, path: str, mode: int, owner: Owner | None = None) -> None:
        """Create a directory."""
        real = self.backing_path(path)
        os.mkdir(real, mode)
        _set_owner(real, owner)
        self._record_creation(path, DirectoryEntry(None, ""))

    def mknod(self, path: str, mode: int, device: int, owner: Owner | None = None) -> None:
        """Create an empty file, a pipe, a socket or a device."""
        real = self.backing_path(path)
        os.mknod(real, mode, device)
        _set_owner(real, owner)
        self._record_creation(path, FileEntry(None, ""))

    def symlink(self, path: str, target: str, owner: Owner | None = None) -> None:
        """Create a symbolic link at `path`."""
        real = self.backing_path(path)
        os.symlink(target, real)
        _set_owner(real, owner)
        self._record_creation(path, FileEntry(None, ""))

    def unlink(self, path: str) -> None:
        """Unlink a file."""
        if self._hidden.pop(path, None) is not None:
            return
        real = self.backing_path(path)
        if stat.S_ISDIR(os.lstat(real).st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        node = self._file(path)
        place = self._place(path)
        orphan_name = self._next_orphan_name()
        size = os.lstat(real).st_size
        os.rename(real, f"{self.orphans_path}/{orphan_name}")
        self._move_to_orphans(node, orphan_name, size)
        self._record(NameChange((NameMove(node, place, None),)))

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        real = self.backing_path(path)
        status = os.lstat(real)
        os.rmdir(real)
        self._record(NameChange((self._removed_directory(path, status),)))

    def rename(self, old: str, new: str, *, replace: bool = True) -> None:
        """Rename; an existing file is replaced, or, without `replace`, an error."""
        just_hidden = self._just_hidden
        real_old, real_new = self.backing_path(old), self.backing_path(new)
        node = self._node_at(old, real_old)
        if new.rpartition("/")[2].startswith(HIDDEN_PREFIX) and isinstance(node, FileEntry):
            self.unlink(old)
            self._hidden[new] = node
            if self.journal.changes:
                self._just_hidden = old, self.journal.changes[-1]
            return
        replaced = _status(real_new)
        if replaced is not None and not replace:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
        if old == new:
            return
        moves: tuple[NameMove, ...] = ()
        if replaced is not None and not stat.S_ISDIR(replaced.st_mode):
            moves = (self._replace_file(real_old, real_new, new, replaced.st_size),)
        else:
            os.rename(real_old, real_new)
            if replaced is not None:
                moves = (self._removed_directory(new, replaced),)
            elif just_hidden is not None and just_hidden[0] == new:
                # libfuse hid the open file that this very rename replaces: it is one change, not two
                moves = self.journal.withdraw(just_hidden[1])
        source, target = self._place(old), self._place(new)
        source[0].forget(node)
        target[0].place(node, target[1])
        self._record(NameChange((*moves, NameMove(node, source, target))))

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _open_handle(self, descriptor: int, node: FileEntry) -> FileHandle:
        node.size = os.fstat(descriptor).st_size
        node.handles += 1
        handle = self.handles[descriptor] = FileHandle(descriptor, node)
        return handle

    def _resize(self, node: FileEntry, descriptor: int, size: int) -> None:
        before = node.size
        if size == before:
            return
        saved = () if node.removed else save_extents(descriptor, size, before, self.orphans_path)
        os.ftruncate(descriptor, size)
        node.size = size
        if not node.removed:
            node.log.record_resize(before, size, saved)
            self.dirty[node] = None

    def _place(self, path: str) -> tuple[DirectoryEntry, str]:
        directory, _, name = path.rpartition("/")
        return self._directory(directory), name

    def _directory(self, path: str) -> DirectoryEntry:
        directory = self._root
        for name in path.split("/"):
            if name:
                child = directory.known.get(name)
                if not isinstance(child, DirectoryEntry):
                    child = DirectoryEntry(directory, name)
                    directory.known[name] = child
                directory = child
        return directory

    def _file(self, path: str) -> FileEntry:
        if path in self._hidden:
            return self._hidden[path]
        directory, name = self._place(path)
        node = directory.known.get(name)
        if not isinstance(node, FileEntry):
            node = FileEntry(directory, name)
            directory.known[name] = node
        return node

    def _node_at(self, path: str, real: str) -> TreeEntry:
        return self._directory(path) if stat.S_ISDIR(os.lstat(real).st_mode) else self._file(path)

    def _record_creation(self, path: str, node: TreeEntry) -> None:
        directory, name = self._place(path)
        directory.place(node, name)
        self._record(NameChange((NameMove(node, None, (directory, name)),)))

    def _replace_file(self, real_old: str, real_new: str, new: str, size: int) -> NameMove:
        """Rename over a file, without a moment at which it is missing in the backing directory."""
        orphan_name = self._next_orphan_name()
        orphan_path = f"{self.orphans_path}/{orphan_name}"
        os.link(real_new, orphan_path, follow_symlinks=False)
        try:
            os.rename(real_old, real_new)
        except OSError:
            os.unlink(orphan_path)
            raise
        replaced = self._file(new)
        self._move_to_orphans(replaced, orphan_name, size)
        return NameMove(replaced, self._place(new), None)

    def _removed_directory(self, path: str, status: os.stat_result) -> NameMove:
        node = self._directory(path)
        node.attributes = (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)
        assert node.parent is not None
        node.parent.forget(node)
        return NameMove(node, (node.parent, node.name), None)

    def _next_orphan_name(self) -> str:
        self._serial += 1
        return str(self._serial)

    def _move_to_orphans(self, node: TreeEntry, name: str, size: int) -> None:
        if node.parent is not None:
            node.parent.forget(node)
        self._orphans.place(node, name)
        self._orphan_sizes[node] = size
        self._orphan_bytes += size

    def _removal_durable(self, node: TreeEntry) -> None:
        node.removed = True
        self._orphan_bytes -= self._orphan_sizes.pop(node, 0)
        if isinstance(node, FileEntry):
            node.log.clear()
            self.dirty.pop(node, None)
            if not node.handles:
                os.unlink(node.path)

    def _record(self, change: NameChange) -> None:
        self.journal.record(change)
        changes = len(self.journal.changes)
        while changes > self._journal_changes_max or (changes and self._orphan_bytes > self._orphan_bytes_max):
            self.make_durable(self.journal.commit_oldest((changes + 1) // 2))
            changes = len(self.journal.changes)

    def _drop_if_idle(self, node: TreeEntry) -> None:
        idle = isinstance(node, FileEntry) and not (node.pending or node.handles or node.log)
        if idle and node.parent is not None:
            node.parent.forget(node)

    def _is_root(self, descriptor: int) -> bool:
        return os.path.samestat(os.fstat(descriptor), os.stat(self.backing))


def _status(real: str) -> os.stat_result | None:
    try:
        return os.lstat(real)
    except FileNotFoundError:
        return None


def _type_of(entry: os.DirEntry[str]) -> int:
    if entry.is_symlink():
        return stat.S_IFLNK
    if entry.is_dir(follow_symlinks=False):
        return stat.S_IFDIR
    if entry.is_file(follow_symlinks=False):
        return stat.S_IFREG
    return stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode)


def _set_owner(real: str, owner: Owner | None) -> None:
    """Set user and group of a new entry, unless the directory passes on its own group."""
    if owner is None or owner == (0, 0) or os.geteuid() != 0:
        return
    handed_down = os.stat(os.path.dirname(real)).st_mode & stat.S_ISGID
    os.chown(real, owner[0], -1 if handed_down else owner[1], follow_symlinks=False)
