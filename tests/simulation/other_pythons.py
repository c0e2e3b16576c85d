"""The other Pythons on this machine, and digests of the same runs under each of them.

    python -m tests.simulation.other_pythons install       an environment for the newest of them; with `--all`, for each
    python -m tests.simulation.other_pythons compare 20    digests of that many seeds of both workloads, here and there

An environment has only the libraries that a run in simulation needs, in the versions of constraints.txt. It lies in
.venv/pythons, is made once for those versions, and is absent where a library cannot be installed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = ROOT / ".venv" / "pythons"
LIBRARIES = ("aiokafka", "cramjam", "google-crc32c", "kio", "numpy", "pyarrow", "pyyaml")
"""All that a run in simulation imports."""
MINOR_VERSIONS = range(11, 21)
WORKLOADS = ("append", "groups")
TIME_LIMIT_S = 60.0

_RUNS = """
import sys
from harness.runner.run import run_in_simulation
from harness.spec import Spec
for workload in sys.argv[3:]:
    for seed in range(int(sys.argv[1])):
        spec = Spec(workload=workload, seed=seed, time_limit_s=float(sys.argv[2]))
        print(workload, seed, run_in_simulation(spec).digest, flush=True)
"""


def other_pythons() -> dict[str, str]:
    """Version such as `3.13` → interpreter, on the path or of pyenv, without the version that runs this; newest
    last."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    pythons = {}
    for minor in MINOR_VERSIONS:
        name = f"python3.{minor}"
        candidates = [shutil.which(name), *map(str, sorted(pyenv.glob(f"3.{minor}.*/bin/{name}")))]
        answering = next((python for python in candidates if python and _answers(python)), None)
        if answering is not None and sys.version_info[:2] != (3, minor):
            pythons[f"3.{minor}"] = answering
    return pythons


def _answers(python: str) -> bool:
    """Whether the interpreter starts; a shim of pyenv may have nothing behind it."""
    return subprocess.run([python, "-c", "import asyncio"], capture_output=True, check=False).returncode == 0


def equipped_pythons() -> dict[str, str]:
    """Version → interpreter of an environment that has the libraries."""
    return {
        version: str(_environment(version) / "bin" / "python")
        for version in other_pythons()
        if (_environment(version) / _stamp()).exists()
    }


def install(version: str, python: str) -> None:
    """Make the environment for one Python, if it is not there. Raises CalledProcessError where that fails."""
    environment = _environment(version)
    if (environment / _stamp()).exists():
        return
    subprocess.run([python, "-m", "venv", "--clear", "--without-pip", str(environment)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python")]
    options = ["--quiet", "--disable-pip-version-check", "--no-compile", "-c", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, "install", *options, *LIBRARIES], check=True)
    (environment / _stamp()).touch()


def _environment(version: str) -> Path:
    return ENVIRONMENTS / version


def _stamp() -> str:
    return "ready-" + hashlib.sha256((ROOT / "constraints.txt").read_bytes()).hexdigest()[:16]


def output_of(python: str, code: str, *arguments: str) -> str:
    """The output of `code` under another Python, with this checkout."""
    environ = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    return subprocess.run(
        [python, "-c", code, *arguments],
        cwd=ROOT,
        env=environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    ).stdout


def digests(python: str, seeds: int, time_limit_s: float) -> list[str]:
    """`workload seed digest` of the first so many seeds of each workload."""
    return output_of(python, _RUNS, str(seeds), str(time_limit_s), *WORKLOADS).splitlines()


def _compare(seeds: int) -> Iterator[str]:
    here = digests(sys.executable, seeds, TIME_LIMIT_S)
    for version, python in equipped_pythons().items():
        there = digests(python, seeds, TIME_LIMIT_S)
        yield from (
            f"{one}: under Python {version} {other}" for one, other in zip(here, there, strict=True) if one != other
        )
        same = sum(one == other for one, other in zip(here, there, strict=True))
        yield f"Python {version}: {same} of {len(here)} digests are equal"


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["compare"]:
        lines = list(_compare(int(arguments[1])))
        print("\n".join(lines) or "no other Python has the libraries")
        return int(any(": under Python" in line for line in lines))
    pythons = other_pythons()
    chosen = list(pythons) if "--all" in arguments else list(pythons)[-1:]
    for version in chosen:
        try:
            install(version, pythons[version])
        except subprocess.CalledProcessError as error:
            print(f"Python {version} gets no libraries, so no run is compared with it: {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
