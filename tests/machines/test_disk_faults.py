"""Full and slow disks of machines, by the lossy file system under the data: what programs see, and the evidence."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from harness.cluster.layout import cluster_layout
from harness.cluster.systems import SYSTEMS, configured
from harness.environments.base import Listener
from harness.environments.machines.deployment import MachineDeployment
from harness.environments.machines.machine import Machine
from harness.environments.machines.node_handle import NodeHandle
from images.system import Service
from tests.machines.lossyfs.lossy_mount import Mounted, mounted

SERVICE = Service(argv=(), files={}, data="", log="", trace=None, stop_limit_s=1.0)


class DiskOnly:
    """A machine that carries out `faultline-node disk control` on a mount, and nothing else."""

    name = address = "b1"

    def __init__(self, disk: Mounted) -> None:
        self._disk = disk

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 30.0) -> bytes:
        assert list(argv[1:3]) == ["disk", "control"]
        return json.dumps(self._disk.tell(**json.loads(argv[3]))).encode()

    async def put(self, contents: bytes, path: str, *, mode: int = 0o644) -> None:
        raise NotImplementedError

    async def fetch(self, path: str) -> bytes:
        raise NotImplementedError


async def _no_machines() -> Mapping[str, Machine]:
    return {}


def _deployment(disk: Mounted) -> MachineDeployment:
    layout = configured(SYSTEMS["broker"], cluster_layout(1), {}, ())
    listener = Listener(on_trace=lambda *_: None, on_log=lambda *_: None)
    deployment = MachineDeployment(layout, _no_machines, seed=1, listener=listener, facts={})
    deployment._handles["b1"] = NodeHandle(layout.brokers[0], DiskOnly(disk), SERVICE)
    return deployment


def test_a_full_disk_takes_its_room_refuses_the_rest_and_counts_it(tmp_path: Path) -> None:
    with mounted(tmp_path) as disk, open(disk.root / "log", "wb", buffering=0) as file:
        deployment = _deployment(disk)
        asyncio.run(deployment.fill_disk("b1", 4))
        assert file.write(b"123456") == 4
        for _ in range(2):
            with pytest.raises(OSError, match="No space") as refused:
                file.write(b"56")
            assert refused.value.errno == errno.ENOSPC
        assert asyncio.run(deployment.free_disk("b1")) == {"refused_writes": 2}
        assert file.write(b"56") == 2
        assert asyncio.run(deployment.free_disk("b1")) == {"refused_writes": 0}


def test_a_slow_disk_delays_writes_and_syncs_and_counts_the_time(tmp_path: Path) -> None:
    with mounted(tmp_path) as disk, open(disk.root / "log", "wb", buffering=0) as file:
        deployment = _deployment(disk)
        asyncio.run(deployment.slow_disk("b1", 30.0))
        file.write(b"1")
        os.fsync(file.fileno())
        evidence = asyncio.run(deployment.restore_disk_speed("b1"))
        assert evidence == {"delayed_operations": 2, "delayed_ms": pytest.approx(60.0)}
        file.write(b"2")
        assert asyncio.run(deployment.restore_disk_speed("b1")) == {"delayed_operations": 0, "delayed_ms": 0.0}
