"""One backing directory, changed as programs ask, with the way back to what is durable (the model: the package's page).

Paths are those below the mount point, beginning with `/`. Errors are OSError as the backing file system gives them.
Nothing here knows of injected damage, FUSE or threads: callers take turns.

Unlinked and replaced files wait as BACKING/.lossyfs/<number> until their removal is durable and nobody has them open.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from images.base.lossyfs.names import Change, Directory, File, Journal, Move, Node
from images.base.lossyfs.pieces import put_aside

LIMBO: Final = ".lossyfs"
HIDDEN_PREFIX: Final = ".fuse_hidden"
"""libfuse renames an open file to such a name where a program unlinks or replaces it, and unlinks that once it is
closed. Here it is unlinked the first time."""
JOURNAL_CHANGES_MAX: Final = 50_000
LIMBO_BYTES_MAX: Final = 1 << 30

Owner = tuple[int, int]
"""User and group of the program that creates something."""


class Handle:
    """An open file. `stale` once a power loss has come between: the program ought to be dead."""

    __slots__ = ("descriptor", "node", "stale")

    def __init__(self, descriptor: int, node: File) -> None:
        self.descriptor = descriptor
        self.node = node
        self.stale = False


class Volume:
    """The file system as programs see it, and what of it is not durable."""

    def __init__(
        self,
        backing: str | os.PathLike[str],
        *,
        strict_names: bool = False,
        journal_changes_max: int = JOURNAL_CHANGES_MAX,
        limbo_bytes_max: int = LIMBO_BYTES_MAX,
    ) -> None:
        self.backing = os.fspath(Path(backing).resolve(strict=True))
        self.strict_names = strict_names
        self.journal = Journal()
        self.dirty: dict[File, None] = {}
        """Files with contents that are not durable."""
        self.handles: dict[int, Handle] = {}
        """By descriptor."""
        self.limbo_path = f"{self.backing}/{LIMBO}"
        self._journal_changes_max = journal_changes_max
        self._limbo_bytes_max = limbo_bytes_max
        self._serial = 0
        self.restart()

    def restart(self) -> None:
        """Take the backing directory as it is for durable; what was unlinked is deleted, what was open is stale."""
        for handle in self.handles.values():
            handle.stale = True
        self._root = Directory(None, self.backing)
        self._limbo = Directory(self._root, LIMBO)
        self._limbo_sizes: dict[Node, int] = {}
        self._limbo_bytes = 0
        self._hidden: dict[str, File] = {}
        self._just_hidden: tuple[str, Change] | None = None
        self.dirty.clear()
        shutil.rmtree(self.limbo_path, ignore_errors=True)
        os.mkdir(self.limbo_path, 0o700)

    def close(self) -> None:
        """Everything written is kept."""
        shutil.rmtree(self.limbo_path, ignore_errors=True)

    # ---- what changes nothing ----------------------------------------------------------------------------------------

    def real(self, path: str) -> str:
        """Where a path lies in the backing file system."""
        self._just_hidden = None
        if path.startswith(f"/{LIMBO}") and path[len(LIMBO) + 1 : len(LIMBO) + 2] in ("", "/"):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        hidden = self._hidden.get(path) if self._hidden else None
        return self.backing + path if hidden is None else hidden.path

    def path_of(self, node: Node) -> str:
        """The path of a node below the mount point, or in the limbo."""
        return node.path[len(self.backing) :]

    def path_of_directory(self, descriptor: int) -> str | None:
        """Where an open directory is now; None when it has been removed."""
        real = os.readlink(f"/proc/self/fd/{descriptor}")
        status = _status(real)
        here = status is not None and os.path.samestat(status, os.fstat(descriptor))
        return real[len(self.backing) :] if here else None

    def visible(self, node: Node) -> bool:
        """Whether programs can find it by a name."""
        return not node.gone and node.parent is not self._limbo

    def list(self, directory_descriptor: int) -> list[tuple[str, dict[str, int]]]:
        """Names in a directory, each with its inode number and type."""
        with os.scandir(directory_descriptor) as entries:
            return [
                (entry.name, {"st_ino": entry.inode(), "st_mode": _type_of(entry)})
                for entry in entries
                if entry.name != LIMBO or not self._is_root(directory_descriptor)
            ]

    # ---- contents ----------------------------------------------------------------------------------------------------

    def create(self, path: str, flags: int, mode: int, owner: Owner | None = None) -> Handle:
        """Open a file, created when missing."""
        real = self.real(path)
        try:
            descriptor = os.open(real, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        except FileExistsError:
            if flags & os.O_EXCL:
                raise
            return self.open(path, flags)
        _own(real, owner)
        node = File(None, "")
        self._created(path, node)
        return self._opened(descriptor, node)

    def open(self, path: str, flags: int) -> Handle:
        """Open a file that is there; O_TRUNC empties it."""
        access = os.O_RDONLY if flags & os.O_ACCMODE == os.O_RDONLY else os.O_RDWR
        descriptor = os.open(self.real(path), access | os.O_CLOEXEC | os.O_NOFOLLOW)
        handle = self._opened(descriptor, self._file(path))
        if flags & os.O_TRUNC:
            self._resize(handle.node, descriptor, 0)
        return handle

    def release(self, handle: Handle) -> None:
        """Close a file."""
        del self.handles[handle.descriptor]
        os.close(handle.descriptor)
        handle.node.handles -= 1
        if not handle.stale:
            if handle.node.gone and not handle.node.handles:
                os.unlink(handle.node.path)
            self._forget_if_idle(handle.node)

    def write(self, handle: Handle, data: memoryview, offset: int) -> int:
        """Bytes written, fewer than given only where the backing file system says so."""
        node, descriptor = handle.node, handle.descriptor
        size = node.size
        if node.gone:
            written = os.pwrite(descriptor, data, offset)
        elif offset == size:
            written = os.pwrite(descriptor, data, offset)
            node.log.appended(offset, offset + written)
            self.dirty[node] = None
        else:
            saved = put_aside(descriptor, offset, min(offset + len(data), size), self.limbo_path)
            written = os.pwrite(descriptor, data, offset)
            node.log.overwrote(size, offset, offset + written, saved)
            self.dirty[node] = None
        if offset + written > size:
            node.size = offset + written
        return written

    def truncate(self, path: str, size: int) -> None:
        """Cut a file or extend it with zeros."""
        descriptor = os.open(self.real(path), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            node = self._file(path)
            node.size = os.fstat(descriptor).st_size
            self._resize(node, descriptor, size)
        finally:
            os.close(descriptor)

    def truncate_open(self, handle: Handle, size: int) -> None:
        """Cut an open file or extend it with zeros."""
        self._resize(handle.node, handle.descriptor, size)

    def allocate(self, handle: Handle, offset: int, length: int) -> None:
        """posix_fallocate: there will be room, and the file is at least so long."""
        os.posix_fallocate(handle.descriptor, offset, length)
        node = handle.node
        if offset + length > node.size and not node.gone:
            node.log.resized(node.size, offset + length, ())
            self.dirty[node] = None
        node.size = max(node.size, offset + length)

    # ---- durability --------------------------------------------------------------------------------------------------

    def sync_file(self, node: File) -> None:
        """What fsync of a file makes durable."""
        node.log.clear()
        self.dirty.pop(node, None)
        if not self.strict_names:
            self.settle(self.journal.sync_node(node))

    def sync_directory(self, directory_descriptor: int) -> None:
        """What fsync of a directory makes durable."""
        path = self.path_of_directory(directory_descriptor)
        if path is not None:
            self.settle(self.journal.sync_directory(self._directory(path)))

    def settle(self, changes: Iterable[Change]) -> None:
        """These changes, which have left the journal, are durable."""
        for change in changes:
            for move in change.moves:
                if move.target is None:
                    self._gone(move.node)
                self._forget_if_idle(move.node)

    def take_back(self, change: Change) -> None:
        """Undo the youngest change that was not undone yet."""
        for move in reversed(change.moves):
            node = move.node
            if move.source is None:
                shutil.rmtree(node.path) if isinstance(node, Directory) else os.unlink(node.path)
                continue
            directory, name = move.source
            real = f"{directory.path}/{name}"
            if move.target is None and isinstance(node, Directory):
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
        real = self.real(path)
        os.mkdir(real, mode)
        _own(real, owner)
        self._created(path, Directory(None, ""))

    def mknod(self, path: str, mode: int, device: int, owner: Owner | None = None) -> None:
        """Create an empty file, a pipe, a socket or a device."""
        real = self.real(path)
        os.mknod(real, mode, device)
        _own(real, owner)
        self._created(path, File(None, ""))

    def symlink(self, path: str, target: str, owner: Owner | None = None) -> None:
        """Create a symbolic link at `path`."""
        real = self.real(path)
        os.symlink(target, real)
        _own(real, owner)
        self._created(path, File(None, ""))

    def unlink(self, path: str) -> None:
        """Remove a name that is not a directory's."""
        if self._hidden.pop(path, None) is not None:
            return
        real = self.real(path)
        if stat.S_ISDIR(os.lstat(real).st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        node = self._file(path)
        place = self._place(path)
        waiting = self._limbo_name()
        size = os.lstat(real).st_size
        os.rename(real, f"{self.limbo_path}/{waiting}")
        self._to_limbo(node, waiting, size)
        self._record(Change((Move(node, place, None),)))

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        real = self.real(path)
        status = os.lstat(real)
        os.rmdir(real)
        self._record(Change((self._removed_directory(path, status),)))

    def rename(self, old: str, new: str, *, replace: bool = True) -> None:
        """Give something another name; what had it is replaced at once, or, without `replace`, an error."""
        just_hidden = self._just_hidden
        real_old, real_new = self.real(old), self.real(new)
        node = self._node_at(old, real_old)
        if new.rpartition("/")[2].startswith(HIDDEN_PREFIX) and isinstance(node, File):
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
        moves: tuple[Move, ...] = ()
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
        self._record(Change((*moves, Move(node, source, target))))

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _opened(self, descriptor: int, node: File) -> Handle:
        node.size = os.fstat(descriptor).st_size
        node.handles += 1
        handle = self.handles[descriptor] = Handle(descriptor, node)
        return handle

    def _resize(self, node: File, descriptor: int, size: int) -> None:
        before = node.size
        if size == before:
            return
        saved = () if node.gone else put_aside(descriptor, size, before, self.limbo_path)
        os.ftruncate(descriptor, size)
        node.size = size
        if not node.gone:
            node.log.resized(before, size, saved)
            self.dirty[node] = None

    def _place(self, path: str) -> tuple[Directory, str]:
        directory, _, name = path.rpartition("/")
        return self._directory(directory), name

    def _directory(self, path: str) -> Directory:
        directory = self._root
        for name in path.split("/"):
            if name:
                below = directory.known.get(name)
                if not isinstance(below, Directory):
                    below = Directory(directory, name)
                    directory.known[name] = below
                directory = below
        return directory

    def _file(self, path: str) -> File:
        if path in self._hidden:
            return self._hidden[path]
        directory, name = self._place(path)
        node = directory.known.get(name)
        if not isinstance(node, File):
            node = File(directory, name)
            directory.known[name] = node
        return node

    def _node_at(self, path: str, real: str) -> Node:
        return self._directory(path) if stat.S_ISDIR(os.lstat(real).st_mode) else self._file(path)

    def _created(self, path: str, node: Node) -> None:
        directory, name = self._place(path)
        directory.place(node, name)
        self._record(Change((Move(node, None, (directory, name)),)))

    def _replace_file(self, real_old: str, real_new: str, new: str, size: int) -> Move:
        """Rename over a file, which is at no moment missing in the backing directory."""
        waiting = self._limbo_name()
        kept = f"{self.limbo_path}/{waiting}"
        os.link(real_new, kept, follow_symlinks=False)
        try:
            os.rename(real_old, real_new)
        except OSError:
            os.unlink(kept)
            raise
        replaced = self._file(new)
        self._to_limbo(replaced, waiting, size)
        return Move(replaced, self._place(new), None)

    def _removed_directory(self, path: str, status: os.stat_result) -> Move:
        node = self._directory(path)
        node.attributes = (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)
        assert node.parent is not None
        node.parent.forget(node)
        return Move(node, (node.parent, node.name), None)

    def _limbo_name(self) -> str:
        self._serial += 1
        return str(self._serial)

    def _to_limbo(self, node: Node, name: str, size: int) -> None:
        if node.parent is not None:
            node.parent.forget(node)
        self._limbo.place(node, name)
        self._limbo_sizes[node] = size
        self._limbo_bytes += size

    def _gone(self, node: Node) -> None:
        node.gone = True
        self._limbo_bytes -= self._limbo_sizes.pop(node, 0)
        if isinstance(node, File):
            node.log.clear()
            self.dirty.pop(node, None)
            if not node.handles:
                os.unlink(node.path)

    def _record(self, change: Change) -> None:
        self.journal.record(change)
        changes = len(self.journal.changes)
        while changes > self._journal_changes_max or (changes and self._limbo_bytes > self._limbo_bytes_max):
            self.settle(self.journal.commit_oldest((changes + 1) // 2))
            changes = len(self.journal.changes)

    def _forget_if_idle(self, node: Node) -> None:
        idle = isinstance(node, File) and not (node.pending or node.handles or node.log)
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


def _own(real: str, owner: Owner | None) -> None:
    """Give a new entry to the program's user, and to its group unless the directory hands down its own."""
    if owner is None or owner == (0, 0) or os.geteuid() != 0:
        return
    handed_down = os.stat(os.path.dirname(real)).st_mode & stat.S_ISGID
    os.chown(real, owner[0], -1 if handed_down else owner[1], follow_symlinks=False)
