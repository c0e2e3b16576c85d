"""The lossy file system's volume without a mount: against the model, and the limits that keep its state small."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import ClassVar

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from images.base.lossyfs import saved_extents, undo
from images.base.lossyfs.power_loss import lose_power, unsynced
from images.base.lossyfs.saved_extents import SavedExtent, earliest_extents, save_extents
from images.base.lossyfs.survival import Survival
from images.base.lossyfs.undo import UndoLog
from images.base.lossyfs.volume import ORPHANS, Volume
from tests.machines.lossyfs.lossy_machine import LossyMachine, tree_below
from tests.machines.lossyfs.lossy_model import Tree


class VolumeDisk:
    """A volume, used as the FUSE layer does."""

    def __init__(self, strict_names: bool) -> None:
        self.strict_names = strict_names
        self.root = mkdtemp(prefix="lossy-volume-")
        self.volume = Volume(self.root, strict_names=strict_names)
        self.lying = False

    def open(self, path: str, create: bool) -> int:
        if create:
            return self.volume.create(f"/{path}", os.O_RDWR, 0o644).descriptor
        return self.volume.open(f"/{path}", os.O_RDWR).descriptor

    def close(self, file: int) -> None:
        self.volume.release(self.volume.handles[file])

    def write(self, file: int, offset: int, data: bytes) -> None:
        handle = self.volume.handles[file]
        if handle.stale:
            raise OSError(5, "stale")
        assert self.volume.write(handle, memoryview(data), offset) == len(data)

    def append(self, path: str, data: bytes) -> None:
        handle = self.volume.create(f"/{path}", os.O_WRONLY, 0o644)
        self.volume.write(handle, memoryview(data), handle.node.size)
        self.volume.release(handle)

    def truncate(self, path: str, size: int) -> None:
        self.volume.truncate(f"/{path}", size)

    def truncate_open(self, file: int, size: int) -> None:
        self.volume.truncate_open(self.volume.handles[file], size)

    def size(self, file: int) -> int:
        return self.volume.handles[file].node.size

    def sync(self, file: int, data_only: bool) -> None:
        if not self.lying:
            self.volume.sync_file(self.volume.handles[file].node)

    def sync_directory(self, path: str) -> None:
        if not self.lying:
            descriptor = os.open(f"{self.root}/{path}", os.O_RDONLY)
            self.volume.sync_directory(descriptor)
            os.close(descriptor)

    def mkdir(self, path: str) -> None:
        self.volume.mkdir(f"/{path}", 0o755)

    def unlink(self, path: str) -> None:
        self.volume.unlink(f"/{path}")

    def rmdir(self, path: str) -> None:
        self.volume.rmdir(f"/{path}")

    def rename(self, old: str, new: str) -> None:
        self.volume.rename(f"/{old}", f"/{new}")

    def tree(self) -> Tree:
        return tree_below(self.root, frozenset({ORPHANS}))

    def lose_power(self, keep: str, seed: int) -> None:
        lose_power(self.volume, Survival(keep), seed)
        assert os.listdir(self.volume.orphans_path) == []

    def lie(self, on: bool) -> None:
        self.lying = on

    def unsynced(self) -> tuple[int, int]:
        found = unsynced(self.volume)
        return found.unsynced_bytes, found.unsynced_names

    def end(self) -> None:
        assert not self.volume.handles
        shutil.rmtree(self.root)


class VolumeAgainstModel(LossyMachine):
    make = staticmethod(lambda: VolumeDisk(strict_names=False))


class StrictVolumeAgainstModel(LossyMachine):
    make = staticmethod(lambda: VolumeDisk(strict_names=True))


TestVolumeAgainstModel = VolumeAgainstModel.TestCase
TestVolumeAgainstModel.settings = settings(max_examples=150, stateful_step_count=40)
TestStrictVolumeAgainstModel = StrictVolumeAgainstModel.TestCase
TestStrictVolumeAgainstModel.settings = settings(max_examples=75, stateful_step_count=40)


# ---- names: what a sync makes durable, case by case ------------------------------------------------------------------


@pytest.fixture
def disk() -> Iterator[VolumeDisk]:
    made = VolumeDisk(strict_names=False)
    yield made
    for file in tuple(made.volume.handles):
        made.close(file)
    made.end()


def _write(disk: VolumeDisk, path: str, data: bytes, *, sync: bool) -> None:
    disk.append(path, data)
    if sync:
        _sync(disk, path)


def _sync(disk: VolumeDisk, path: str) -> None:
    file = disk.open(path, create=False)
    disk.sync(file, data_only=False)
    disk.close(file)


def _left(disk: VolumeDisk, keep: str = "nothing") -> Tree:
    disk.lose_power(keep, 1)
    return disk.tree()


def test_a_file_synced_under_directories_renamed_since_is_found_under_their_new_names(disk: VolumeDisk) -> None:
    disk.mkdir("a")
    disk.append("a/x", b"1")
    disk.rename("a", "b")
    _sync(disk, "b/x")
    assert _left(disk) == {"b": None, "b/x": b"1"}


def test_a_directory_synced_under_directories_renamed_since_is_found_under_their_new_names(disk: VolumeDisk) -> None:
    disk.mkdir("a")
    disk.mkdir("a/b")
    disk.rename("a", "c")
    disk.sync_directory("c/b")
    assert _left(disk) == {"c": None, "c/b": None}


def test_a_rename_over_an_empty_directory_is_undone_whole(disk: VolumeDisk) -> None:
    disk.mkdir("a")
    disk.mkdir("b")
    disk.sync_directory("")
    disk.append("a/x", b"1")
    disk.rename("a", "b")
    assert _left(disk) == {"a": None, "b": None}


def test_a_rename_over_a_file_is_undone_whole_and_gives_back_what_it_replaced(disk: VolumeDisk) -> None:
    _write(disk, "x", b"old", sync=True)
    _write(disk, "x.tmp", b"new", sync=True)
    disk.rename("x.tmp", "x")
    assert _left(disk) == {"x": b"old", "x.tmp": b"new"}


def test_a_removed_directory_takes_the_changes_in_it_along(disk: VolumeDisk) -> None:
    disk.mkdir("a")
    disk.sync_directory("")
    disk.append("a/x", b"1")
    disk.unlink("a/x")
    disk.rmdir("a")
    disk.sync_directory("")
    assert disk.unsynced() == (0, 0)
    assert _left(disk) == {}


def test_a_removed_directory_comes_back_with_its_mode(disk: VolumeDisk) -> None:
    disk.mkdir("a")
    os.chmod(f"{disk.root}/a", 0o2750)
    disk.sync_directory("")
    disk.rmdir("a")
    assert _left(disk) == {"a": None}
    assert os.stat(f"{disk.root}/a").st_mode & 0o7777 == 0o2750


def test_a_file_that_moved_to_a_synced_directory_stays_and_what_is_elsewhere_is_lost(disk: VolumeDisk) -> None:
    disk.mkdir("a")
    disk.mkdir("b")
    disk.sync_directory("")
    _write(disk, "a/x", b"1", sync=True)
    disk.rename("a/x", "b/x")
    disk.append("a/late", b"2")
    disk.sync_directory("b")
    assert _left(disk) == {"a": None, "b": None, "b/x": b"1"}


def test_a_durable_name_does_not_make_contents_durable(disk: VolumeDisk) -> None:
    disk.append("x", b"1")
    disk.sync_directory("")
    assert _left(disk) == {"x": b""}


def test_with_strict_names_fsync_of_a_file_does_not_save_its_name() -> None:
    disk = VolumeDisk(strict_names=True)
    _write(disk, "x", b"1", sync=True)
    assert _left(disk) == {}
    disk.end()


def test_an_open_file_can_be_used_after_its_removal_is_durable(disk: VolumeDisk) -> None:
    file = disk.open("x", create=True)
    disk.unlink("x")
    disk.sync_directory("")
    disk.write(file, 0, b"scratch")
    assert disk.size(file) == 7
    assert disk.unsynced() == (0, 0)
    disk.close(file)
    assert os.listdir(disk.volume.orphans_path) == []


# ---- reports ---------------------------------------------------------------------------------------------------------


def test_a_loss_tells_bytes_files_and_names(disk: VolumeDisk) -> None:
    _write(disk, "durable", b"12345", sync=True)
    disk.append("durable", b"678")
    disk.append("fresh", b"ab")
    loss = lose_power(disk.volume, Survival.NOTHING, seed=1)
    assert (loss.unsynced_bytes, loss.unsynced_files, loss.unsynced_names) == (5, 2, 1)
    assert (loss.lost_bytes, loss.lost_files, loss.lost_names, loss.torn_files) == (5, 2, 1, 0)
    assert [(file.path, file.lost_bytes, file.vanished) for file in loss.files] == [
        ("/durable", 3, False),
        ("/fresh", 2, True),
    ]


def test_synced_bytes_of_a_file_that_vanished_are_lost() -> None:
    disk = VolumeDisk(strict_names=True)
    _write(disk, "x", b"12345", sync=True)
    loss = lose_power(disk.volume, Survival.NOTHING, seed=1)
    assert (loss.unsynced_bytes, loss.lost_bytes, loss.lost_files) == (0, 5, 1)
    disk.end()


def test_the_same_seed_leaves_the_same_disk() -> None:
    def left(seed: int) -> Tree:
        disk = VolumeDisk(strict_names=False)
        for number in range(40):
            disk.append(f"f{number % 4}", bytes([number]) * 9)
        disk.lose_power("torn", seed)
        tree = disk.tree()
        disk.end()
        return tree

    assert left(3) == left(3)
    assert len({repr(left(seed)) for seed in range(8)}) > 1


def test_a_full_journal_makes_its_oldest_half_durable() -> None:
    root = Path(mkdtemp(prefix="lossy-volume-"))
    volume = Volume(root, journal_changes_max=10, orphan_bytes_max=100)
    for number in range(11):
        volume.mkdir(f"/d{number:02}", 0o755)
    assert len(volume.journal.changes) == 5
    for number in range(8):
        handle = volume.create(f"/f{number}", os.O_RDWR, 0o644)
        volume.write(handle, memoryview(bytes(30)), 0)
        volume.release(handle)
        volume.unlink(f"/f{number}")
    assert sum(file.stat().st_size for file in (root / ORPHANS).iterdir()) <= 100
    lose_power(volume, Survival.NOTHING, seed=1)
    assert {f"d{number:02}" for number in range(6)} <= set(os.listdir(root))
    shutil.rmtree(root)


# ---- the undo log ----------------------------------------------------------------------------------------------------

PAGE = 4096
_offsets = st.one_of(st.integers(0, 40), st.integers(0, 3 * PAGE))
_changes = st.lists(
    st.one_of(
        st.tuples(st.just("write"), _offsets, st.integers(1, 2 * PAGE)),
        st.tuples(st.just("append"), st.integers(1, 50), st.just(0)),
        st.tuples(st.just("resize"), _offsets, st.just(0)),
    ),
    max_size=25,
)


class _Logged:
    """A file changed under an undo log, with every content it had."""

    def __init__(self, directory: Path, durable: int) -> None:
        self.directory = directory
        self.descriptor = os.open(directory / "file", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.pwrite(self.descriptor, os.urandom(durable), 0)
        self.log = UndoLog()
        self.states = [self.content()]
        self.last: tuple[int, bytes] | None = None

    def content(self) -> bytes:
        return os.pread(self.descriptor, 1 << 20, 0)

    def change(self, kind: str, offset: int, length: int) -> None:
        size = os.fstat(self.descriptor).st_size
        self.last = None
        if kind == "resize":
            saved = save_extents(self.descriptor, offset, size, str(self.directory))
            os.ftruncate(self.descriptor, offset)
            self.log.record_resize(size, offset, saved)
        elif kind == "append":
            os.pwrite(self.descriptor, os.urandom(offset), size)
            self.log.record_append(size, size + offset)
        else:
            saved = save_extents(self.descriptor, offset, min(offset + length, size), str(self.directory))
            os.pwrite(self.descriptor, data := os.urandom(length), offset)
            self.log.record_overwrite(size, offset, offset + length, saved)
            self.last = (offset, data)
        self.states.append(self.content())


class _SmallLimits:
    """Limits small enough to be met; `always` says nothing about them."""

    LIMITS: ClassVar = {
        (saved_extents, "SPILLED_ABOVE_BYTES"): PAGE,
        (undo, "OVERWRITES_MAX"): 6,
        (undo, "APPENDS_MAX"): 4,
    }

    def __enter__(self) -> None:
        self.before = {key: getattr(*key) for key in self.LIMITS}
        for (module, name), value in self.LIMITS.items():
            setattr(module, name, value)

    def __exit__(self, *_: object) -> None:
        for (module, name), value in self.before.items():
            setattr(module, name, value)


@given(durable=st.integers(0, 2 * PAGE), changes=_changes)
def test_rewinding_to_the_start_is_exact_beyond_every_limit(
    tmp_path_factory: pytest.TempPathFactory, durable: int, changes: list[tuple[str, int, int]]
) -> None:
    file = _Logged(tmp_path_factory.getbasetemp(), durable)
    with _SmallLimits():
        for change in changes:
            file.change(*change)
    assert file.log.rewind(file.descriptor, 0).lost_bytes == sum(
        {"write": length, "append": offset}.get(kind, 0) for kind, offset, length in changes
    )
    assert file.content() == file.states[0]
    assert not file.log
    os.close(file.descriptor)


@given(durable=st.integers(0, 2 * PAGE), changes=_changes, share=st.floats(0, 1), limits=st.booleans())
def test_rewinding_part_of_the_way_stops_between_two_changes(
    tmp_path_factory: pytest.TempPathFactory,
    durable: int,
    changes: list[tuple[str, int, int]],
    share: float,
    limits: bool,
) -> None:
    file = _Logged(tmp_path_factory.getbasetemp(), durable)
    if limits:
        with _SmallLimits():
            for change in changes:
                file.change(*change)
    else:
        for change in changes:
            file.change(*change)
        assert file.log.steps == len(changes)
    keep = round(share * file.log.steps)
    file.log.rewind(file.descriptor, keep)
    assert file.content() in file.states
    if not limits:
        assert file.content() == file.states[keep]
    os.close(file.descriptor)


@given(durable=st.integers(0, 60), offset=st.integers(0, 80), length=st.integers(2, 60), seed=st.integers(0, 99))
def test_a_torn_write_is_there_up_to_where_it_was_cut(
    tmp_path_factory: pytest.TempPathFactory, durable: int, offset: int, length: int, seed: int
) -> None:
    file = _Logged(tmp_path_factory.getbasetemp(), durable)
    file.change("write", offset, length)
    rewound = file.log.rewind(file.descriptor, 1, Random(seed))
    assert file.last is not None
    _, data = file.last
    assert rewound.torn_at is not None
    assert offset < rewound.torn_at < offset + length
    assert rewound.lost_bytes == offset + length - rewound.torn_at
    before = file.states[0]
    written = data[: rewound.torn_at - offset]
    cut = before[:offset].ljust(offset, b"\0") + written + before[rewound.torn_at :]
    assert file.content() in (cut, cut.ljust(offset + length, b"\0"))
    os.close(file.descriptor)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 10)), max_size=12), st.integers(0, 40))
def test_of_overlapping_pieces_the_first_wins_for_each_byte(spans: list[tuple[int, int]], size: int) -> None:
    given_pieces = [
        SavedExtent(start, length, bytes([number]) * length) for number, (start, length) in enumerate(spans)
    ]
    expected: dict[int, int] = {}
    for number, (start, length) in enumerate(spans):
        for at in range(start, min(start + length, size)):
            expected.setdefault(at, number)
    chosen = earliest_extents(given_pieces, size)
    found = {piece.offset + i: byte for piece in chosen for i, byte in enumerate(piece.source or b"")}  # type: ignore[arg-type]
    assert found == expected
    assert sum(piece.length for piece in chosen) == len(expected)


def test_large_pieces_leave_memory_and_holes_take_none(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.pwrite(descriptor, data := os.urandom(3 << 20), 64 << 20)
    aside = save_extents(descriptor, 0, 67 << 20, str(tmp_path))
    assert sum(piece.memory_bytes for piece in aside) == 0
    os.ftruncate(descriptor, 0)
    os.ftruncate(descriptor, 67 << 20)
    for piece in aside:
        piece.write_back(descriptor, 0)
    assert os.pread(descriptor, 3 << 20, 64 << 20) == data
    assert os.fstat(descriptor).st_blocks * 512 < 8 << 20
    assert os.listdir(tmp_path) == ["file"]
    os.close(descriptor)


def test_an_overwritten_hole_is_a_hole_again_and_what_follows_it_stays(tmp_path: Path) -> None:
    with _SmallLimits():
        file = _Logged(tmp_path, 0)
        file.change("resize", 8 * PAGE, 0)
        file.change("append", 100, 0)
        file.log.clear()
        file.change("write", PAGE, 4 * PAGE)
        file.log.rewind(file.descriptor, 0)
    assert file.content() == file.states[2]
    os.close(file.descriptor)


def test_many_small_appends_are_remembered_coarsely_and_the_last_one_exactly(tmp_path: Path) -> None:
    with _SmallLimits():
        file = _Logged(tmp_path, 10)
        for _ in range(50):
            file.change("append", 3, 0)
            assert file.log.steps <= undo.APPENDS_MAX
            assert file.log.written_bytes == len(file.content()) - 10
        rewound = file.log.rewind(file.descriptor, 1)
        assert file.content() in file.states[1:]
        assert rewound.lost_bytes == 160 - len(file.content())
    os.close(file.descriptor)
