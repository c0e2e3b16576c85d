"""Rights and limits of a node's container.

The capabilities are the node agent's: NET_ADMIN for rules on packets, SYS_ADMIN for mounting the lossy file system, and
SETPCAP to take both from the system under test, which runs with none (`images/base/agent/privileges.py`). The limits
keep a node that leaks memory or processes from taking the machine with it: it ends alone, as a crash of that node.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from harness.errors import EnvironmentUnavailable

_GIB: Final = 1 << 30
MEMORY_BYTES_MAX: Final = 2 * _GIB
PROCESSES_MAX: Final = 1024
"""Threads count as processes."""
LIMITS: Final = f"{MEMORY_BYTES_MAX // _GIB} GiB of memory and {PROCESSES_MAX:,} processes"

RIGHTS: Final[Mapping[str, Any]] = {
    "cap_drop": ["ALL"],
    "cap_add": ["NET_ADMIN", "SYS_ADMIN", "SETPCAP"],
    "devices": ["/dev/fuse:/dev/fuse:rwm"],
    "security_opt": ["apparmor=unconfined", "no-new-privileges"],
    "mem_limit": MEMORY_BYTES_MAX,
    "pids_limit": PROCESSES_MAX,
}
"""As the Docker SDK takes them."""

_LIMITED_BY_ENGINE: Final = {"MemoryLimit": "memory", "PidsLimit": "processes"}
_CGROUP_FILES: Final = ("memory.limit_in_bytes", "memory.memsw", "memory.max", "pids.max")


class LimitsRefused(EnvironmentUnavailable):
    """The engine does not give a container its limits."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the engine refuses a container's limits ({LIMITS}): {reason}")


def require_limits(engine: Mapping[str, Any]) -> None:
    """Raises LimitsRefused if the engine, by its own description, starts containers without the limits."""
    absent = [name for key, name in _LIMITED_BY_ENGINE.items() if engine.get(key) is False]
    if absent:
        remedy = "on its machine, enable the cgroup controllers memory and pids (kernel option cgroup_enable=memory)"
        raise LimitsRefused(f"its machine does not limit {' and '.join(absent)}; {remedy}")


def refused_limit(reason: str) -> bool:
    """Whether the engine's error is about one of the limits."""
    return any(file in reason for file in _CGROUP_FILES) or "memory limit" in reason.lower()
