"""Which workloads there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from workloads.append import Append
from workloads.groups import Groups
from workloads.workload import Factory

WORKLOADS: Final[Mapping[str, Factory]] = {"append": Append, "groups": Groups}
"""Every workload by the name a spec gives it."""
