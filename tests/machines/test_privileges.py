"""Rights of a node: the agent has those that faults need, and the system that it starts has none."""

from __future__ import annotations

import asyncio
import json
import secrets
from pathlib import Path

import pytest

from harness.environments.docker.container import as_machine_errors
from harness.environments.docker.engine import connect
from harness.environments.docker.environment import Containers, Docker
from harness.environments.docker.rights import MEMORY_BYTES_MAX, PROCESSES_MAX, LimitsRefused, require_limits
from harness.node_images.building import build

PROBE = Path(__file__).with_name("privilege_probe.py")
_CAP_NET_ADMIN, _CAP_SYS_ADMIN = 12, 21


@pytest.mark.docker
def test_the_system_under_test_can_neither_mount_nor_reach_the_kernels_helpers() -> None:
    client = connect()
    run, docker = f"privileges-{secrets.token_hex(4)}", Docker()
    containers = Containers(client, run, build(client, ())[-1], docker.subnet)

    async def probed() -> tuple[dict[str, object], dict[str, object]]:
        (machine,) = (await containers.make(docker.layout(brokers=1, controllers=0))).values()
        await machine.put(PROBE.read_bytes(), "/probe.py")
        request = {"argv": ["python3", "/probe.py"], "log": "/probe.log"}
        await machine.run(["faultline-node", "start"], stdin=json.dumps(request).encode())
        await machine.run(["faultline-node", "wait", "1"])
        by_system = json.loads(await machine.run(["cat", "/probe.log"]))
        return by_system, json.loads(await machine.run(["python3", "/probe.py", "mount tmpfs", "packet rule"]))

    try:
        by_system, by_agent = asyncio.run(probed())
        (container,) = client.containers.list(filters={"name": run})
        limits = container.attrs["HostConfig"]
    finally:
        containers.remove()
        client.close()

    assert by_system.pop("bounding set") == 0
    assert by_system.pop("open core_pattern") in ("EROFS", "EACCES")
    assert by_system.pop("open release_agent") in ("EROFS", "EACCES", "ENOENT")
    assert by_system == {
        "mount tmpfs": "EPERM",
        "mount cgroup": "EPERM",
        "remount /proc/sys": "EPERM",
        "unmount /proc/sys": "EPERM",
        "packet rule": "EPERM",
        "user namespace": "EPERM",
    }
    agents = by_agent.pop("bounding set")
    assert isinstance(agents, int)
    assert agents >> _CAP_NET_ADMIN & agents >> _CAP_SYS_ADMIN & 1
    assert by_agent == {"mount tmpfs": "done", "packet rule": "done"}
    assert (limits["Memory"], limits["PidsLimit"]) == (MEMORY_BYTES_MAX, PROCESSES_MAX)


def test_an_engine_that_cannot_limit_containers_is_named() -> None:
    require_limits({"MemoryLimit": True, "PidsLimit": True})
    with pytest.raises(LimitsRefused, match=r"2 GiB of memory and 1,024 processes.* does not limit memory; on its"):
        require_limits({"MemoryLimit": False, "PidsLimit": True})


@pytest.mark.parametrize(
    "said",
    [
        "Minimum memory limit allowed is 6MB",
        "runc create failed: error setting cgroup config: failed to write to memory.limit_in_bytes: invalid argument",
        "runc create failed: open /sys/fs/cgroup/pids/docker/1/pids.max: permission denied",
    ],
)
def test_an_engines_refusal_of_a_limit_is_named(said: str) -> None:
    with (
        pytest.raises(LimitsRefused, match=r"^the engine refuses a container's limits .*: b1: "),
        as_machine_errors("b1"),
    ):
        raise RuntimeError(said)


def test_other_errors_of_the_engine_are_no_refusal_of_limits() -> None:
    with pytest.raises(Exception, match=r"^b1: no space left") as caught, as_machine_errors("b1"):
        raise RuntimeError("no space left on device")
    assert not isinstance(caught.value, LimitsRefused)
