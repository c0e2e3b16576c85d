"""The processor time and memory of a measurement, and the processor time of other processes, from /proc."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

_TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")
_LOOK_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Processors:
    """Seconds of processor time since the machine, or each process, began; of two, what was taken between them."""

    all_s: float
    idle_s: float
    ours_s: float
    nodes_s: float

    @classmethod
    def now(cls, nodes: Iterable[int]) -> Self:
        """The present values. `nodes` are the processes, of one thread each, that are measured."""
        # user nice system idle iowait irq softirq steal; what guests take is in user already
        ticks = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
        machine = [int(word) / _TICKS_A_SECOND for word in ticks]
        # In nanoseconds, of the first thread of each, which is its only one.
        nodes_s = sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in nodes) / 1e9
        return cls(sum(machine), machine[3] + machine[4], nodes_s + time.process_time(), nodes_s)

    def __sub__(self, before: Processors) -> Processors:
        return Processors(
            self.all_s - before.all_s,
            self.idle_s - before.idle_s,
            self.ours_s - before.ours_s,
            self.nodes_s - before.nodes_s,
        )

    @property
    def others_share(self) -> float:
        """The share of processor time that was neither idle nor ours; 0 when the clock is too coarse."""
        return max(0.0, self.all_s - self.idle_s - self.ours_s) / self.all_s if self.all_s else 0.0


class ResourceMonitor:
    """Wall time, CPU time and memory of this process and its descendants, while it is entered."""

    def __enter__(self) -> Self:
        self.memory_bytes = 0
        self.seconds = self.cpu_seconds = 0.0
        self._began, self._cpu = time.perf_counter(), _cpu_seconds()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.seconds, self.cpu_seconds = time.perf_counter() - self._began, _cpu_seconds() - self._cpu

    def _look(self) -> None:
        while not self._over.wait(_LOOK_S):
            self.memory_bytes = max(self.memory_bytes, sum(map(_memory_bytes, _family())))


def _family() -> list[int]:
    """This process and its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    processes, waiting = [], [os.getpid()]
    while waiting:
        processes.append(waiting.pop())
        waiting += children.get(processes[-1], [])
    return processes


def _stat(process: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; empty when the process is gone."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _cpu_seconds() -> float:
    """Of all that live, and of those that have ended and were waited for."""
    fields = [_stat(process)[11:15] for process in _family()]
    return sum(int(ticks) for four in fields for ticks in four) / _TICKS_A_SECOND


def _memory_bytes(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
