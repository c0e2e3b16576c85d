"""Shape of a cluster: the facts that random faults are drawn from, and those of them that its settings decide."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from nemesis.ports import EnvironmentCapability

RECOVERY_STRATEGY: Final = "unclean.recovery.strategy"
_ENABLED: Final = "unclean.leader.election.enable"
_FLUSHES: Final = ("log.flush.interval.messages", "flush.messages")
_SEGMENT_SIZES: Final = ("log.segment.bytes", "segment.bytes")
_SEGMENT_TIMES: Final = ("log.roll.ms", "segment.ms")
_SMALL_BYTES, _SHORT_MS = 1 << 16, 10_000
"""A segment of such a size, or such an age, is full within a run."""
_FETCH_SIZES: Final = ("replica.fetch.max.bytes", "replica.fetch.response.max.bytes")
_SMALL_FETCH_BYTES: Final = 1_000
_VOTE_TIMEOUT: Final = "controller.quorum.request.timeout.ms"
_ELECTION_TIMEOUT: Final = "controller.quorum.election.timeout.ms"
_SNAPSHOT_PART: Final = "controller.quorum.fetch.snapshot.max.bytes"
_WITH_EPOCH_QUERIES: Final = frozenset({"kip101", "kip279", "kip320_first_try", "kip320"})
"""Truncation protocols (`faultline.protocol`)."""


@dataclass(frozen=True, slots=True)
class ClusterShape:
    """Nodes, partitions, time scale and limits of the cluster that faults are drawn for."""

    brokers: tuple[str, ...]
    controllers: tuple[str, ...]
    partitions: int
    min_insync_replicas: int = 2
    replication_factor: int = 3
    patience_s: float = 2.0
    """Time after which the cluster acts on a silent broker: the scale of every duration drawn."""
    lag_s: float = 0.0
    """Time after which a leader takes a follower out of the ISR that does not keep up, as far as it is known."""
    request_timeout_s: float = 1.5
    """Time after which a client gives up a request, and sends it again."""
    unsupported: Collection[EnvironmentCapability] = ()
    """Capabilities the environment lacks; faults that need one are replaced."""
    injection_s: float = 0.0
    """The time that the environment takes to inject a fault; nothing shorter is drawn."""
    unclean_recovery: bool = False
    """Whether the spec names a recovery from unclean shutdowns of more brokers than may lose data."""

    synced_appends: bool = False
    """Whether brokers sync every append before they answer."""
    waits_for_operator: bool = False
    """Whether the spec names the strategy by which nothing but an administrator's request elects a leader where nobody
    is left who is known to have everything."""
    recovery_compares_logs: bool = False
    """Whether such a recovery asks replicas for their log ends."""
    logs_roll: bool = True
    """Whether logs come to have several segments within a run."""
    queries_epochs: bool = False
    """Whether followers ask their leader where an epoch ends before they fetch."""
    fetches_are_small: bool = False
    """Whether a follower that is a few seconds behind needs several fetches to catch up."""
    votes_outlast_elections: bool = False
    """Whether a controller waits longer for a vote than for an election to come to an end."""
    snapshots_have_parts: bool = False
    """Whether a snapshot of the metadata is fetched in several parts."""
    always_written: bool = True
    """Whether clients write to every partition all the time."""
    has_groups: bool = False
    """Whether clients are members of groups."""
    keeps_data: bool = False
    """Whether no broker may lose data, however many of them the replicas would allow."""

    @property
    def isr_patience_s(self) -> float:
        """The scale of waits for a follower to leave the ISR: it may be fenced, or lag."""
        return max(self.patience_s, self.lag_s)

    @property
    def loss_budget(self) -> int:
        """Largest number of brokers that may lose data in one run."""
        return 0 if self.keeps_data else max(0, min(self.min_insync_replicas - 1, len(self.brokers)))

    @property
    def every_broker_has_replicas(self) -> bool:
        """Whether the topic has enough replicas for all brokers; those of a partition are on brokers in a row, which
        begins one broker later for each."""
        return self.partitions + self.replication_factor - 1 >= len(self.brokers)

    @property
    def replica_can_be_spared(self) -> bool:
        """Whether a partition may have one replica less for a while."""
        return min(self.replication_factor, len(self.brokers)) > max(1, self.min_insync_replicas)

    @property
    def replica_can_be_moved(self) -> bool:
        """Whether one may go to another broker, or be spared."""
        return 1 < self.replication_factor < len(self.brokers) or self.replica_can_be_spared

    def writes_on(self, nodes: Collection[str]) -> bool:
        """Whether one of the nodes writes at any time while nothing goes wrong: a controller may not, nor a broker
        without a replica or with an idle one."""
        on_brokers = not all(node.startswith("c") for node in nodes)
        return on_brokers and self.every_broker_has_replicas and self.always_written

    def has_loss_budget(self) -> bool:
        """Whether any broker may lose data."""
        return self.loss_budget > 0

    def unclean_restart_possible(self) -> bool:
        """Whether any node may restart uncleanly; controllers may, since they sync before they answer."""
        return bool(self.loss_budget or self.controllers)

    @property
    def controller_targets(self) -> frozenset[str]:
        """The targets of faults that stand for controllers alone."""
        return frozenset({"controller", "controllers", *self.controllers})


def facts_of(settings: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a `ClusterShape` that these settings decide."""
    strategy = settings.get(RECOVERY_STRATEGY, "manual")
    return {
        "lag_s": int(settings.get("replica.lag.time.max.ms", 0)) / 1000,
        # A spec that names a strategy wants it tested; one that names none keeps to the loss budget.
        "unclean_recovery": strategy != "manual",
        "waits_for_operator": settings.get(RECOVERY_STRATEGY) == "manual" and settings.get(_ENABLED) != "true",
        "recovery_compares_logs": strategy in ("balanced", "proactive"),
        "synced_appends": next((settings[name] for name in _FLUSHES if name in settings), "") == "1",
        "logs_roll": logs_roll(settings),
        "queries_epochs": queries_epochs(settings),
        "fetches_are_small": fetches_are_small(settings),
        "votes_outlast_elections": int(settings.get(_VOTE_TIMEOUT, 0)) > int(settings.get(_ELECTION_TIMEOUT, 0)),
        "snapshots_have_parts": int(settings.get(_SNAPSHOT_PART, 1 << 20)) <= _SMALL_FETCH_BYTES,
    }


def logs_roll(settings: Mapping[str, str]) -> bool:
    """Whether logs come to have several segments within a run of a system with these settings."""
    sizes = [int(settings[name]) for name in _SEGMENT_SIZES if name in settings]
    times_ms = [int(settings[name]) for name in _SEGMENT_TIMES if name in settings]
    return any(size <= _SMALL_BYTES for size in sizes) or any(time_ms <= _SHORT_MS for time_ms in times_ms)


def fetches_are_small(settings: Mapping[str, str]) -> bool:
    """Whether a follower that is a few seconds behind needs several fetches to catch up."""
    return any(int(settings[name]) <= _SMALL_FETCH_BYTES for name in _FETCH_SIZES if name in settings)


def queries_epochs(settings: Mapping[str, str]) -> bool:
    """Whether followers ask their leader where an epoch ends before they fetch."""
    return settings.get("faultline.protocol") in _WITH_EPOCH_QUERIES
