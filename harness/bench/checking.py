"""Rate and memory of checking one history.

For each size `measure` makes one history of one partition with the seeded generator (`workloads.synthetic_history`),
untimed, and checks it like that of a run, with polls, end offsets and unknown outcomes. The rate counts operations, not
the records that polls returned. One core, one thread.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterable
from dataclasses import dataclass

from checkers.linearizability.checker import check_partition
from checkers.verdict import Validity
from workloads.synthetic_history import history

SIZES = (1_000_000, 10_000_000, 100_000_000)


@dataclass(frozen=True, slots=True)
class Checking:
    """One measurement."""

    operations: int
    cpu_seconds: float
    history_bytes: int
    """The columns of the history."""
    working_bytes: int
    """The memory that checking takes beyond them, at most."""

    @property
    def operations_per_second(self) -> float:
        """Operations checked in a second of CPU."""
        return self.operations / self.cpu_seconds


def measure(sizes: Iterable[int] = SIZES, seed: int = 1) -> list[Checking]:
    """Check one history of each size. 100 million operations need about 8 GB, and 12 GB while they are made. Raises
    RuntimeError should a correct history not be found valid."""
    return [_measure(operations, seed) for operations in sizes]


def _measure(operations: int, seed: int) -> Checking:
    columns = history(operations, seed)
    began = time.process_time()
    verdict = check_partition(columns)
    cpu_seconds = time.process_time() - began
    if verdict.validity is not Validity.VALID:
        raise RuntimeError(f"a correct history of {operations} operations is {verdict.validity}")
    tracemalloc.start()
    check_partition(columns)
    _, working_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return Checking(operations, cpu_seconds, columns.bytes_held, working_bytes)
