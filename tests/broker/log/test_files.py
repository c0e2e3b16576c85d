"""The operating system's files keep the promises of the Files port, and the tests' disk model behaves as they do."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from images.broker.ports import Files
from images.broker.runtime.files import RealFiles, read_whole, write_durably
from tests.broker.log.disk_model import DiskModel, PowerCut


def test_appends_go_to_the_end_and_every_handle_sees_them(tmp_path: Path) -> None:
    files = RealFiles(tmp_path)
    one, other = files.open("topic-0/a.log"), files.open("topic-0/a.log")
    one.append(b"abc")
    other.append(b"def")
    assert one.read(0, 100) == b"abcdef"
    assert one.read(2, 2) == b"cd"
    assert one.read(6, 1) == b""
    assert one.size() == other.size() == 6


def test_a_file_opened_again_is_appended_to(tmp_path: Path) -> None:
    files = RealFiles(tmp_path)
    files.open("a").append(b"abc")
    files.open("a").append(b"d")
    assert files.open("a").read(0, 10) == b"abcd"


def test_truncate_cuts_and_never_extends(tmp_path: Path) -> None:
    file = RealFiles(tmp_path).open("a")
    file.append(b"abcdef")
    file.truncate(10)
    assert file.size() == 6
    file.truncate(2)
    file.append(b"X")
    assert file.read(0, 10) == b"abX"


def test_a_short_write_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RealFiles(tmp_path).open("a")
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, bytes(data)[:3]))
    file.append(b"0123456789")
    assert file.read(0, 100) == b"0123456789"


def test_a_short_read_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RealFiles(tmp_path).open("a")
    file.append(b"0123456789")
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda descriptor, size, offset: pread(descriptor, min(size, 4), offset))
    assert file.read(1, 8) == b"12345678"
    assert file.read(1, 100) == b"123456789"


def test_names_are_listed_in_order_and_a_missing_directory_is_empty(tmp_path: Path) -> None:
    files = RealFiles(tmp_path)
    for name in ("b", "a", "c/d"):
        files.open(name)
    assert files.list("") == ["a", "b", "c"]
    assert files.list("c") == ["d"]
    assert files.list("nowhere") == []


def test_deleting_takes_a_directory_with_all_below_it_and_forgives_a_missing_name(tmp_path: Path) -> None:
    files = RealFiles(tmp_path)
    files.open("t-0/x/y")
    files.open("t-1/x")
    files.delete("t-0")
    files.delete("t-0")
    files.delete("t-1/x")
    assert not files.exists("t-0")
    assert files.exists("t-1")
    assert files.list("t-1") == []


def test_rename_replaces_a_file_and_moves_a_directory(tmp_path: Path) -> None:
    files = RealFiles(tmp_path)
    files.open("a").append(b"new")
    files.open("b").append(b"old")
    files.rename("a", "b")
    assert not files.exists("a")
    assert read_whole(files, "b") == b"new"
    files.open("t-0/x").append(b"1")
    files.rename("t-0", "t-0-delete")
    assert read_whole(files, "t-0-delete/x") == b"1"


def test_an_error_names_the_path(tmp_path: Path) -> None:
    files = RealFiles(tmp_path)
    files.open("a")
    with pytest.raises(OSError, match="a/b"):
        files.open("a/b")
    with pytest.raises(FileNotFoundError, match="missing"):
        files.rename("missing", "b")
    with pytest.raises(FileNotFoundError, match="missing"):
        files.sync_directory("missing")


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x"])
def test_no_path_leads_out_of_the_root(tmp_path: Path, path: str) -> None:
    with pytest.raises(ValueError, match="below the root"):
        RealFiles(tmp_path / "root").open(path)


def test_syncing_reaches_the_file_itself_and_the_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(Path(f"/proc/self/fd/{descriptor}").readlink()))
    root = tmp_path / "deep" / "root"
    files = RealFiles(root)
    file = files.open("t-0/a")
    file.append(b"abc")
    file.fsync()
    files.sync_directory("t-0")
    files.sync_directory("")
    assert synced == [root / "t-0" / "a", root / "t-0", root]


def test_a_file_may_be_closed_twice(tmp_path: Path) -> None:
    file = RealFiles(tmp_path).open("a")
    file.close()
    file.close()
    assert RealFiles(tmp_path).open("a").size() == 0


# ---- small files written whole ---------------------------------------------------------------------------------------


def test_a_file_written_durably_replaces_the_old_one(tmp_path: Path) -> None:
    files = RealFiles(tmp_path)
    write_durably(files, "checkpoint", b"one, and longer")
    write_durably(files, "checkpoint", b"two")
    assert read_whole(files, "checkpoint") == b"two"
    assert files.list("") == ["checkpoint"]
    assert read_whole(files, "another") is None


@given(st.data(), st.integers(0, 8))
def test_a_file_written_durably_is_whole_after_a_power_loss_at_any_moment(data: st.DataObject, changes: int) -> None:
    disk = DiskModel()
    write_durably(disk, "d/checkpoint", b"old")
    disk.fail_after(changes)
    finished = True
    try:
        write_durably(disk, "d/checkpoint", b"new and longer")
    except PowerCut:
        finished = False
    disk.lose_power(lambda low, high: data.draw(st.integers(low, high)))
    contents = read_whole(disk, "d/checkpoint")
    assert contents in ((b"new and longer",) if finished else (b"old", b"new and longer"))


# ---- the model and the operating system agree ------------------------------------------------------------------------

PATHS = st.sampled_from(["a", "b", "d/a", "d/b", "d/e/a"])
STEPS = st.one_of(
    st.tuples(st.just("append"), PATHS, st.binary(max_size=6)),
    st.tuples(st.just("truncate"), PATHS, st.integers(0, 8)),
    st.tuples(st.just("rename"), PATHS, PATHS),
    st.tuples(st.just("delete"), st.sampled_from(["a", "b", "d/a", "d/e", "d"]), st.none()),
)


def run_step(files: Files, kind: str, path: str, argument: object) -> str:
    try:
        if kind == "append":
            assert isinstance(argument, bytes)
            files.open(path).append(argument)
        elif kind == "truncate":
            assert isinstance(argument, int)
            file = files.open(path)
            file.truncate(argument)
            file.fsync()
        elif kind == "rename":
            assert isinstance(argument, str)
            files.rename(path, argument)
        else:
            files.delete(path)
    except FileNotFoundError:
        return "missing"
    return "done"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(st.lists(STEPS, max_size=15))
def test_the_disk_model_behaves_as_the_operating_system(steps: list[tuple[str, str, object]]) -> None:
    root = tempfile.mkdtemp()
    try:
        real, model = RealFiles(root), DiskModel()
        for kind, path, argument in steps:
            if kind == "rename" and not (isinstance(argument, str) and _parent_has_files(model, argument)):
                continue  # an empty directory is one the model does not know
            assert run_step(real, kind, path, argument) == run_step(model, kind, path, argument)
        for path in ("a", "b", "d/a", "d/b", "d/e/a"):
            assert real.exists(path) == model.exists(path)
            if model.exists(path):
                assert read_whole(real, path) == read_whole(model, path)
                assert real.open(path).read(2, 3) == model.open(path).read(2, 3)
    finally:
        shutil.rmtree(root)


def _parent_has_files(model: DiskModel, path: str) -> bool:
    parent = path.rpartition("/")[0]
    return not parent or model.exists(parent)
