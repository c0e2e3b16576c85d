"""The parent of the processes in which a local Spark carries out the tasks of a suite.

Each task has a process of its own, forked from this one. What is imported here is there already; the broker with the
classes of all Kafka messages alone takes most of a second. NumPy and Arrow are not imported here: both start threads,
and a process that forks must have none.

Errors of tasks arrive as exceptions, so nothing is printed: where a task has failed and Java no longer listens, the
daemon and its processes would print the traceback of that.
"""

from __future__ import annotations

import os
import sys

from pyspark.daemon import manager

import harness.environments.sim  # noqa: F401  (for the processes to come)

if __name__ == "__main__":
    sys.stderr = open(os.devnull, "w", encoding="utf-8")
    manager()
