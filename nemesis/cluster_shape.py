"""What there is to be broken: the cluster that faults are drawn for."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from nemesis.ports import EnvironmentCapability


@dataclass(frozen=True, slots=True)
class ClusterShape:
    """What there is to be broken."""

    brokers: tuple[str, ...]
    controllers: tuple[str, ...]
    partitions: int
    min_insync_replicas: int = 2
    patience_s: float = 2.0
    """How long the cluster takes to act on a silent broker: the scale of every duration drawn."""
    unsupported: Collection[EnvironmentCapability] = ()
    """What the environment cannot do; faults that need it are not drawn."""
    recovers: bool = False
    """Whether the cluster recovers by itself from unclean shutdowns of more brokers than may lose data."""

    @property
    def unclean_budget(self) -> int:
        """How many brokers may lose data in one run."""
        return max(0, min(self.min_insync_replicas - 1, len(self.brokers)))
