"""What the lossy file system may cost."""

from __future__ import annotations

from pathlib import Path

from harness.bench_lossyfs import bench_lossyfs
from tests.machines.lossy_mount import need_fuse


def test_64_kib_appends_take_no_more_than_three_times_as_long(tmp_path: Path) -> None:
    need_fuse()
    measured = bench_lossyfs(directory=tmp_path)
    assert measured.undisturbed_ratio <= 3, measured
