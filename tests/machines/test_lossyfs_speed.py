"""What the lossy file system may cost."""

from __future__ import annotations

from pathlib import Path

from harness.bench_lossyfs import bench_lossyfs
from tests.machines.lossy_mount import need_fuse


def test_64_kib_appends_take_no_more_than_three_times_as_long(tmp_path: Path) -> None:
    need_fuse()
    measured = bench_lossyfs(rounds=12, directory=tmp_path)
    assert len(measured.direct_us) == len(measured.lossy_us) == 12
    assert measured.best_ratio <= 3, measured
