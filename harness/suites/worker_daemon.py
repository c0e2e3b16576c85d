"""The parent of the processes in which a local Spark carries out the tasks of a suite.

Each task has a process of its own, forked from this one. What is imported here is there already: the broker with the
classes of all Kafka messages, Arrow, the checkers and the report take two seconds of processor time, as much as a run,
and the code that reads and writes these messages is generated.
A process that forks must have no other threads, so the libraries that start some when they are imported are told not
to: NumPy's linear algebra, and the allocator that comes with Arrow.

Errors of tasks arrive as exceptions, so nothing is printed: where a task has failed and Java no longer listens, the
daemon and its processes would print the traceback of that.
"""

from __future__ import annotations

import os
import sys

os.environ.update(OPENBLAS_NUM_THREADS="1", JE_ARROW_MALLOC_CONF="background_thread:false")

import pandas  # noqa: F401  (Arrow imports it when it makes its first array)
from pyspark.daemon import manager

import harness.environments.sim
import harness.runner.run
import harness.suites.spark_task  # noqa: F401
import results.pages.report
import results.store.finished_runs
import results.store.tables  # noqa: F401  (for the processes to come)
from images.wire.messages import prepare

if __name__ == "__main__":
    prepare()
    sys.stderr = open(os.devnull, "w", encoding="utf-8")
    manager()
