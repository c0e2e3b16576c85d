"""The lossy file system mounted for real: against the model, and as programs use it."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from images.base.lossyfs.__main__ import main
from images.base.lossyfs.control import ControlError, call
from images.base.lossyfs.mounting import MountError, MountOptions, mounts, serve, unmount
from tests.machines.lossyfs.lossy_machine import LossyMachine, tree_below
from tests.machines.lossyfs.lossy_model import Tree
from tests.machines.lossyfs.lossy_mount import Mounted, mounted, need_fuse


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Mounted]:
    with mounted(tmp_path) as made:
        yield made


class MountedDisk:
    """A mount, used with system calls alone."""

    strict_names = False

    def __init__(self, mount: Mounted, append_flags: int) -> None:
        self.mount = mount
        self.root = str(mount.root)
        self.append_flags = append_flags

    def open(self, path: str, create: bool) -> int:
        return os.open(f"{self.root}/{path}", os.O_RDWR | (os.O_CREAT if create else 0), 0o644)

    def close(self, file: int) -> None:
        os.close(file)

    def write(self, file: int, offset: int, data: bytes) -> None:
        assert os.pwrite(file, data, offset) == len(data)

    def append(self, path: str, data: bytes) -> None:
        file = os.open(f"{self.root}/{path}", os.O_CREAT | os.O_APPEND | self.append_flags, 0o644)
        try:
            assert os.write(file, data) == len(data)
        finally:
            os.close(file)

    def truncate(self, path: str, size: int) -> None:
        os.truncate(f"{self.root}/{path}", size)

    def truncate_open(self, file: int, size: int) -> None:
        os.ftruncate(file, size)

    def size(self, file: int) -> int:
        return os.fstat(file).st_size

    def sync(self, file: int, data_only: bool) -> None:
        os.fdatasync(file) if data_only else os.fsync(file)

    def sync_directory(self, path: str) -> None:
        directory = os.open(f"{self.root}/{path}", os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)

    def mkdir(self, path: str) -> None:
        os.mkdir(f"{self.root}/{path}")

    def unlink(self, path: str) -> None:
        os.unlink(f"{self.root}/{path}")

    def rmdir(self, path: str) -> None:
        os.rmdir(f"{self.root}/{path}")

    def rename(self, old: str, new: str) -> None:
        os.rename(f"{self.root}/{old}", f"{self.root}/{new}")

    def tree(self) -> Tree:
        return tree_below(self.root)

    def lose_power(self, keep: str, seed: int) -> None:
        self.mount.lose_power(keep, seed)

    def lie(self, on: bool) -> None:
        self.mount.tell("lie", on=on)

    def unsynced(self) -> tuple[int, int]:
        report = self.mount.tell("report")
        return report["unsynced_bytes"], report["unsynced_names"]

    def end(self) -> None:
        self.lie(on=False)
        for entry in os.scandir(self.root):
            shutil.rmtree(entry.path) if entry.is_dir() else os.unlink(entry.path)
        self.lose_power("everything", 0)


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR], ids=["write-only", "read-write"])
def test_the_mount_does_what_the_model_says(disk: Mounted, flags: int) -> None:
    class MountAgainstModel(LossyMachine):
        make = staticmethod(lambda: MountedDisk(disk, flags))

    run_state_machine_as_test(MountAgainstModel, settings=settings(max_examples=60, stateful_step_count=30))
    assert set(os.listdir(disk.root)) == set()


# ---- programs --------------------------------------------------------------------------------------------------------


def test_shared_mappings_are_seen_and_what_was_msynced_survives(disk: Mounted) -> None:
    path = disk.root / "index"
    with open(path, "w+b") as file:
        file.truncate(3 * mmap.PAGESIZE)
        os.fsync(file.fileno())
        with mmap.mmap(file.fileno(), 0) as mapping, open(path, "rb") as reader:
            mapping[10:15] = b"synce"
            assert os.pread(reader.fileno(), 5, 10) == b"synce"
            mapping.flush()
            mapping[mmap.PAGESIZE : mmap.PAGESIZE + 4] = b"lost"
            mapping[10:12] = b"XX"
            os.pwrite(file.fileno(), b"written", 2 * mmap.PAGESIZE)
            assert mapping[2 * mmap.PAGESIZE :][:7] == b"written"
    loss = disk.lose_power()
    assert loss["unsynced_bytes"] >= mmap.PAGESIZE
    content = path.read_bytes()
    assert content == b"\0" * 10 + b"synce" + b"\0" * (3 * mmap.PAGESIZE - 15)


def test_the_mapping_of_a_killed_program_is_unsynced(disk: Mounted) -> None:
    program = (
        "import mmap, os, signal, sys\n"
        "file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\n"
        "os.ftruncate(file, 4096); os.fsync(file)\n"
        "mapping = mmap.mmap(file, 4096); mapping[:4] = b'late'\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(disk.root / "index")], check=False)
    assert (disk.root / "index").read_bytes() == b"late" + bytes(4092)
    assert disk.lose_power("everything")["lost_bytes"] == 0
    assert (disk.root / "index").read_bytes() == b"late" + bytes(4092)
    subprocess.run([sys.executable, "-c", program, str(disk.root / "other")], check=False)
    disk.lose_power()
    assert (disk.root / "other").read_bytes() == bytes(4096)


def test_a_file_can_be_mapped_while_another_descriptor_appends_to_it(disk: Mounted) -> None:
    path = disk.root / "log"
    path.write_bytes(b"0123456789")
    with open(path, "ab", buffering=0) as appender, open(path, "rb") as reader:
        with mmap.mmap(reader.fileno(), 0, prot=mmap.PROT_READ) as mapping:
            assert mapping[:] == b"0123456789"
        appender.write(b"more")
        assert os.pread(reader.fileno(), 20, 0) == b"0123456789more"
        with mmap.mmap(reader.fileno(), 0, prot=mmap.PROT_READ) as mapping:
            assert mapping[:] == b"0123456789more"


def test_cached_mounts_map_any_descriptor(tmp_path: Path) -> None:
    with mounted(tmp_path, cached=True) as disk, open(disk.root / "file", "a+b", buffering=0) as file:
        file.write(b"0123")
        with mmap.mmap(file.fileno(), 4) as mapping:
            mapping[0:1] = b"x"
        assert (disk.root / "file").read_bytes() == b"x123"


def test_temporary_files_locks_links_and_times_work(disk: Mounted) -> None:
    with TemporaryFile(dir=disk.root) as file:
        file.write(b"scratch")
        file.flush()
        assert os.fstat(file.fileno()).st_size == 7
        file.seek(0)
        assert file.read() == b"scratch"
        assert os.listdir(disk.root) == []
    path = disk.root / "file"
    path.write_text("x")
    os.symlink("file", disk.root / "link")
    assert (disk.root / "link").read_text() == "x"
    with pytest.raises(PermissionError):
        os.link(path, disk.root / "hard")
    os.utime(path, ns=(5, 7))
    assert os.stat(path).st_mtime_ns == 7
    os.utime(path)
    assert os.stat(path).st_mtime_ns > 7
    path.chmod(0o600)
    assert path.stat().st_mode & 0o777 == 0o600
    with open(path) as one, open(path) as other:
        fcntl.flock(one, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert path.stat().st_ino == (disk.backing / "file").stat().st_ino


def test_programs_of_other_users_own_what_they_create(disk: Mounted) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root's mounts are open to other users")
    for above in disk.root.parents:
        if str(above).startswith(("/tmp/", "/var/tmp/")) and above.stat().st_uid == 0:
            above.chmod(above.stat().st_mode | 0o011)
    disk.root.chmod(0o777)
    script = 'mkdir "$0/d" && echo hi > "$0/d/f" && cat "$0/d/f" && ! cat "$0/secret" 2> /dev/null'
    (disk.root / "secret").write_text("x")
    (disk.root / "secret").chmod(0o600)
    ran = subprocess.run(
        ["sh", "-c", script, str(disk.root)], user=65534, group=65534, extra_groups=[], capture_output=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert (disk.root / "d/f").stat().st_uid == 65534


def test_replacing_an_open_file_is_one_change(disk: Mounted) -> None:
    path, fresh = disk.root / "checkpoint", disk.root / "checkpoint.tmp"
    path.write_bytes(b"old")
    disk.lose_power("everything")
    with open(path, "rb") as reader:
        fresh.write_bytes(b"new")
        subprocess.run(["sync", str(fresh)], check=True)
        before = disk.tell("report")["unsynced_names"]
        os.rename(fresh, path)
        assert disk.tell("report")["unsynced_names"] == before + 1
        assert reader.read() == b"old"
        assert os.fstat(reader.fileno()).st_size == 3
    assert path.read_bytes() == b"new"
    disk.lose_power()
    assert (path.read_bytes(), fresh.read_bytes()) == (b"old", b"new")


@pytest.mark.parametrize("synchronous", [os.O_SYNC, os.O_DSYNC], ids=["O_SYNC", "O_DSYNC"])
@pytest.mark.parametrize("append", [0, os.O_APPEND], ids=["overwrite", "append"])
@pytest.mark.parametrize("access", [os.O_WRONLY, os.O_RDWR], ids=["write-only", "read-write"])
def test_a_write_through_a_synchronous_handle_is_durable_when_it_returns(
    disk: Mounted, access: int, append: int, synchronous: int
) -> None:
    plain = os.open(disk.root / "plain", access | append | os.O_CREAT)
    created = os.open(disk.root / "created", access | append | synchronous | os.O_CREAT)
    (disk.root / "existing").write_bytes(b"old, ")
    existing = os.open(disk.root / "existing", access | append | synchronous)
    for file, data in ((plain, b"lost"), (created, b"kept"), (existing, b"kept")):
        assert os.write(file, data) == 4
    disk.tell("lie", on=True)
    os.write(created, b" lie")
    assert disk.tell("lie", on=False)["lies"] == 1
    disk.lose_power()
    for file in (plain, created, existing):
        os.close(file)
    survived = {path.name: path.read_bytes() for path in disk.root.iterdir()}
    # a sync makes the earlier names in its directory durable, and the contents of no other file
    assert survived == {"plain": b"", "created": b"kept", "existing": b"old, kept" if append else b"kept "}


def test_syncfs_makes_nothing_durable_because_the_kernel_does_not_pass_it_on(disk: Mounted) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    with open(disk.root / "file", "wb", buffering=0) as file:
        file.write(b"unsynced")
        assert libc.syncfs(file.fileno()) == 0
        assert disk.tell("report")["unsynced_bytes"] == len(b"unsynced")


# ---- damage ----------------------------------------------------------------------------------------------------------


def test_a_full_disk_takes_what_fits_and_then_refuses(disk: Mounted) -> None:
    disk.tell("fail", error="ENOSPC", after=10, path="*.log")
    with open(disk.root / "a.log", "wb", buffering=0) as file:
        assert file.write(b"123456") == 6
        assert file.write(b"123456") == 4
        with pytest.raises(OSError, match="No space") as raised:
            file.write(b"x")
        assert raised.value.errno == errno.ENOSPC
        os.fsync(file.fileno())
    (disk.root / "elsewhere").write_bytes(bytes(100))
    assert disk.tell("report")["failed_enospc"] == 1
    with pytest.raises(OSError, match="No space"):
        (disk.root / "b.log").touch()
    with open(disk.root / "a.log", "r+b", buffering=0) as file:
        file.write(b"over")
    disk.tell("fail", error=None)
    (disk.root / "b.log").write_bytes(b"fits")
    assert (disk.root / "a.log").read_bytes() == b"over561234"


def test_eio_can_be_had_on_syncs_alone(disk: Mounted) -> None:
    disk.tell("fail", error="EIO", on=["sync"])
    with open(disk.root / "file", "wb", buffering=0) as file:
        file.write(b"x")
        with pytest.raises(OSError, match="Input/output"):
            os.fsync(file.fileno())
        disk.tell("fail", error=None)
    assert disk.lose_power()["lost_bytes"] == 1


def test_a_full_disk_can_be_had_on_syncs_alone(disk: Mounted) -> None:
    disk.tell("fail", error="ENOSPC", on=["sync"])
    with open(disk.root / "file", "wb", buffering=0) as file:
        assert file.write(b"x") == 1
        with pytest.raises(OSError, match="No space"):
            os.fsync(file.fileno())
        assert disk.tell("report")["failed_enospc"] == 1
        disk.tell("fail", error="ENOSPC", on=["write"])
        os.fsync(file.fileno())
        with pytest.raises(OSError, match="No space"):
            file.write(b"x")


def test_slow_delays_what_it_is_asked_to_and_control_is_answered_meanwhile(disk: Mounted) -> None:
    disk.tell("slow", ms=3_000, on=["sync"])
    with open(disk.root / "file", "wb", buffering=0) as file:
        file.write(b"x")
        syncing = subprocess.Popen(["sync", str(disk.root / "file")])
        reports = []
        while syncing.poll() is None:
            reports.append(disk.tell("report")["slowed"])
        assert syncing.returncode == 0
    assert reports[:1] == [0], "no report was answered while the sync was slowed, or the write was slowed, too"
    assert disk.tell("heal")["slow_ms"] == 0
    assert disk.tell("report")["slowed"] == 1


def test_damage_off_makes_everything_harmless_and_on_brings_it_back(disk: Mounted) -> None:
    disk.tell("lie", on=True)
    disk.tell("fail", error="EIO")
    disk.tell("damage", on=False)
    path = disk.root / "file"
    path.write_bytes(b"kept")
    loss = disk.lose_power()
    assert (loss["keep"], loss["lost_bytes"]) == ("everything", 0)
    assert path.read_bytes() == b"kept"
    report = disk.tell("damage", on=True)
    assert (report["lying"], report["lies"], report["failed_eio"]) == (True, 0, 0)
    with pytest.raises(OSError, match="Input/output"):
        path.read_bytes()


def test_lies_are_counted_and_only_a_later_sync_makes_good_for_them(disk: Mounted) -> None:
    with open(disk.root / "file", "wb", buffering=0) as file:
        file.write(b"first")
        disk.tell("lie", on=True)
        os.fsync(file.fileno())
        report = disk.tell("lie", on=False)
        assert (report["lies"], report["unsynced_bytes"]) == (1, 5)
        os.fsync(file.fileno())
        disk.tell("lie", on=True)
        file.write(b" second")
        os.fsync(file.fileno())
    assert disk.lose_power()["lost_bytes"] == 7
    assert (disk.root / "file").read_bytes() == b"first"


def test_files_open_during_a_power_loss_get_eio_and_files_opened_later_do_not(disk: Mounted) -> None:
    path = disk.root / "file"
    with open(path, "w+b", buffering=0) as survivor:
        survivor.write(b"x")
        os.fsync(survivor.fileno())
        survivor.write(b"y")
        assert disk.lose_power()["open_handles"] == 1
        for act in (lambda: survivor.write(b"z"), lambda: os.fsync(survivor.fileno())):
            with pytest.raises(OSError, match="Input/output"):
                act()
        path.write_bytes(path.read_bytes() + b"!")
    assert path.read_bytes() == b"x!"
    assert disk.tell("report")["last_power_loss"]["lost_bytes"] == 1


# ---- mounting and the command ----------------------------------------------------------------------------------------


def test_a_killed_daemon_leaves_everything_written_and_a_mount_that_is_named_and_cleared(
    disk: Mounted, capsys: pytest.CaptureFixture[str]
) -> None:
    (disk.root / "file").write_bytes(b"unsynced")
    os.kill(disk.pid, 9)
    os.waitpid(disk.pid, 0)
    with pytest.raises(OSError, match="not connected"):
        os.listdir(disk.root)
    assert [mount.alive for mount in mounts() if mount.mountpoint == str(disk.root)] == [False]
    assert main(["report", "--control", disk.control]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"{disk.root} is the mount of a dead daemon: fusermount3 -u {disk.root}" in said
    with pytest.raises(MountError, match="dead daemon"):
        serve(MountOptions(str(disk.backing), str(disk.root), disk.control))
    subprocess.run(["fusermount3", "-u", str(disk.root)], check=True)
    assert all(mount.mountpoint != str(disk.root) for mount in mounts())
    assert (disk.backing / "file").read_bytes() == b"unsynced"
    with mounted(disk.root.parent) as again:
        assert (again.root / "file").read_bytes() == b"unsynced"
        assert again.tell("report")["unsynced_bytes"] == 0


def test_unmounting_keeps_everything_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with mounted(tmp_path) as disk:
        (disk.root / "file").write_bytes(b"unsynced")
        (disk.root / "gone").touch()
        (disk.root / "gone").unlink()
        unmount(str(disk.root))
        assert os.listdir(disk.backing) == ["file"]
        os.waitpid(disk.pid, 0)
        assert not os.path.exists(disk.control)
    with pytest.raises(MountError, match="no lossy file system"):
        unmount(str(disk.root))


def test_the_command_mounts_damages_and_unmounts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    need_fuse()
    backing, root, control = (tmp_path / name for name in ("backing", "mount", "control"))
    backing.mkdir()
    root.mkdir()

    def run(*arguments: str) -> str:
        assert main([*arguments, "--control", str(control)]) == 0
        return capsys.readouterr().out

    assert '"pid"' in run("mount", str(backing), str(root))
    try:
        (root / "x").write_text("1")
        assert '"unsynced_bytes": 1' in run("report")
        assert '"lying": true' in run("lie", "on")
        assert '"slow_ms": 1.5' in run("slow", "1.5", "--on", "write", "sync")
        assert '"after_bytes": 7' in run("fail", "ENOSPC", "--after", "7", "--path", "*.log")
        assert '"armed": false' in run("damage", "off")
        assert '"failures": []' in run("heal")
        run("damage", "on")
        assert '"lost_bytes": 1' in run("power-loss", "--keep", "nothing", "--seed", "3")
        assert f'"mountpoint": "{root}"' in run("mounts")
        assert main(["mount", str(backing), str(root), "--control", str(control)]) == 1
        assert capsys.readouterr().err == f"lossyfs: {root} is mounted already\n"
    finally:
        run("unmount", str(root))
    with pytest.raises(SystemExit) as ended:
        main(["power-loss", "--keep", "half"])
    assert ended.value.code == 64


def test_wrong_commands_are_answered_in_one_line(disk: Mounted) -> None:
    for request, answer in {
        ("melt",): "command: 'melt' is not one of power-loss, lie, slow",
        ("power-loss", ("keep", "half")): "keep: 'half' is not one of nothing, prefix, torn, everything",
        ("power-loss",): "keep is missing",
        ("slow", ("ms", -1)): "ms: -1 is not between",
        ("fail", ("error", "EPERM")): "error: 'EPERM' is not one of EIO, ENOSPC, null",
        ("fail", ("error", "ENOSPC"), ("on", ("read",))): "on: a read needs no room",
        ("fail", ("error", "EIO"), ("on", ("sync",)), ("after", 1)): "after: on sync: only reads and writes have bytes",
        ("lie", ("on", "yes")): "on: 'yes' is not true or false",
    }.items():
        with pytest.raises(ControlError, match=answer):
            disk.tell(request[0], **dict(request[1:]))


def test_a_mount_error_names_the_missing_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ControlError, match="no file system answers at"):
        call(str(tmp_path / "nobody"), "report")
    monkeypatch.setattr("images.base.lossyfs.mounting.DEVICE", tmp_path / "fuse")
    with pytest.raises(MountError, match="fuse is missing: modprobe fuse, or give the container --device"):
        serve(MountOptions(str(tmp_path), str(tmp_path), str(tmp_path / "control")))
    monkeypatch.setattr("images.base.lossyfs.mounting.DEVICE", tmp_path)
    with pytest.raises(MountError, match=r"BACKING .* is not a directory"):
        serve(MountOptions(str(tmp_path / "nothing"), str(tmp_path), str(tmp_path / "control")))
    (tmp_path / "below").mkdir()
    with pytest.raises(MountError, match="must not contain each other"):
        serve(MountOptions(str(tmp_path), str(tmp_path / "below"), str(tmp_path / "control")))
