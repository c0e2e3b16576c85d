"""What a host must have before programs are put there: Python, glibc, memory for a node, and Java where nodes need it.

One command asks the host for all of it. Programs that only faults need are looked for later, by the node agent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from harness.environments.machines.machine import CommandFailed, Machine, MachineError
from harness.node_images.wheels import Target
from images.system import System

PYTHON_LEAST: Final = (3, 11)

_MIB: Final = 1 << 20
_JAVA_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
"""As `java -version` prints it; releases up to 8 call themselves 1.8."""
_DESCRIBE: Final = r"""
import json, platform, re, shutil, subprocess, sys
libc, version = platform.libc_ver()
with open("/proc/meminfo") as file:
    memory = int(re.search(r"MemAvailable: *(\d+) kB", file.read()).group(1)) * 1024
for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
    try:
        memory = min(memory, int(open(limit).read()))
    except (OSError, ValueError):
        pass
java = None
if "java" in sys.argv and shutil.which("java"):
    command = subprocess.Popen(["java", "-version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    java = command.communicate()[0].decode(errors="replace")
print(json.dumps({"python": sys.version_info[:2], "machine": platform.machine(), "libc": libc, "version": version,
                  "memory": memory, "java": java}))
"""
"""Runs in a Python of any release 3. A host that is a container has no more memory than its control group."""


async def require(machine: Machine, system: System) -> Target:
    """What wheels have to fit there. Raises MachineError, in one line, where no node of `system` can run."""
    programs = ["java"] if system.shipment.java_least else []
    try:
        found: Mapping[str, Any] = json.loads(await machine.run(["python3", "-c", _DESCRIBE, *programs]))
    except CommandFailed as error:
        raise MachineError(f"{machine.name}: no Python there; on Debian: apt-get install python3 ({error})") from None
    lacking = _lacking(found, system)
    if lacking:
        raise MachineError(f"{machine.name}: {lacking}")
    return Target(tuple(found["python"]), found["machine"], int(found["version"].split(".")[1]))


def _lacking(found: Mapping[str, Any], system: System) -> str:
    """The first requirement that is not met; empty when all are."""
    if tuple(found["python"]) < PYTHON_LEAST:
        has, needed = (".".join(map(str, version)) for version in (found["python"], PYTHON_LEAST))
        return f"Python {has} is too old; nodes need {needed} or later"
    if found["libc"] != "glibc":
        return "its C library is not glibc, which the packages of a node are built for"
    if found["memory"] < system.memory_bytes:
        needed = f"a node of {system.name} takes about {system.memory_bytes // _MIB} MiB"
        return f"{found['memory'] // _MIB} MiB of memory are available there; {needed}"
    if system.shipment.java_least:
        return _lacking_of_java(found["java"], system)
    return ""


def _lacking_of_java(said: str | None, system: System) -> str:
    """`said`: the output of `java -version`; None without a Java."""
    remedy = f"on Debian: apt-get install {' '.join(system.shipment.packages)}"
    if said is None:
        return f"no Java there; {remedy}"
    version = _JAVA_VERSION.search(said)
    if version is None:
        return f"its Java does not start ({' '.join(said.split())}); {remedy}"
    if int(version[1]) < system.shipment.java_least:
        needed = f"{system.name} {system.version} needs {system.shipment.java_least} or later"
        return f"Java {version[1]} is too old; {needed}; {remedy}"
    return ""
