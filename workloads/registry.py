"""The registry of workloads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from workloads.append import AppendWorkload
from workloads.groups import GroupsWorkload
from workloads.workload import WorkloadFactory

WORKLOADS: Final[Mapping[str, WorkloadFactory]] = {"append": AppendWorkload, "groups": GroupsWorkload}
"""Every workload by the name a spec gives it."""
