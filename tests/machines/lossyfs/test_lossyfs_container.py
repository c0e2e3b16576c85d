"""The lossy file system of the base image, in a container that has CAP_SYS_ADMIN and /dev/fuse and nothing else."""

from __future__ import annotations

import json
import secrets
from typing import Any

import pytest

from harness.environments.docker.engine import connect, run_labels
from harness.node_images.building import build

pytestmark = pytest.mark.docker

_SCRIPT = """
set -e
lossyfs() { python3 -m images.base.lossyfs "$@"; }
mkdir /backing /data
lossyfs mount /backing /data > /dev/null
printf durable > /data/log
sync /data/log
printf ' lost' >> /data/log
python3 -c '
import mmap
file = open("/data/index", "w+b")
file.truncate(4096)
mapping = mmap.mmap(file.fileno(), 0)
mapping[:4] = b"kept"
mapping.flush()
'
mkdir /data/gone
lossyfs power-loss --keep nothing
cat /data/log; echo
head -c 4 /data/index; echo
ls /data
lossyfs unmount /data
! grep lossyfs /proc/mounts
"""


def _run(script: str, **rights: Any) -> tuple[int, list[str]]:
    """Exit status and lines of a script in a container of the base image."""
    client = connect()
    base = build(client, ())[-1]
    run = f"lossyfs-{secrets.token_hex(4)}"
    container = client.containers.run(
        base.tag, ["sh", "-c", script], name=run, labels=run_labels(run), network_mode="none", detach=True, **rights
    )
    try:
        status = container.wait()["StatusCode"]
        return status, container.logs().decode().splitlines()
    finally:
        container.remove(force=True)


def test_a_container_needs_no_more_than_sys_admin_and_the_device() -> None:
    status, lines = _run(_SCRIPT, cap_add=["SYS_ADMIN"], devices=["/dev/fuse"], security_opt=["apparmor=unconfined"])
    assert status == 0, lines
    assert json.loads(lines[0])["lost_names"] == 1
    assert lines[1:] == ["durable", "kept", "index", "log"]


def test_a_container_without_them_is_told_what_is_missing() -> None:
    mount = "mkdir /backing /data; python3 -m images.base.lossyfs mount /backing /data"
    assert _run(mount) == (
        1,
        ["lossyfs: /dev/fuse is missing: modprobe fuse, or give the container --device /dev/fuse"],
    )
    status, lines = _run(mount, devices=["/dev/fuse"])
    assert (status, lines) == (1, ["lossyfs: /data cannot be mounted: that needs CAP_SYS_ADMIN and /dev/fuse"])
