"""The Workload protocol: clients that use the cluster, and the history of their operations.

The runner drives every workload through the same five calls, in this order:

1. `set_up()` creates what the workload needs (its topic) on a cluster that is up. Nothing is recorded.
2. `run(until_s)` drives the clients until the loop's clock reads `until_s`; faults happen meanwhile. It invokes no
   append after `until_s`; other clients go on until every append invoked before has completed, at the latest one
   delivery timeout later, when it returns.
3. `final_reads(until_s)`, after the faults were healed and the cluster has recovered, reads everything back.
4. `final_appends(until_s)`, after final reads that were done, appends to every partition with acks=all.
5. `close()` ends every task and connection; it may be called at any point, also after a failure of the others.

A workload never fails because the cluster does: errors are recorded as operations that end `fail` or `info`. An
exception is its own bug, or `set_up` finding that the cluster cannot be used (`SetUpError`).

Workloads run in simulation: asyncio only, time is the running loop's, randomness comes from the streams handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Literal, Protocol

from images.wire.batch import Compression
from workloads.clients.connections import ClientTimeouts
from workloads.clients.library import ClientLibrary
from workloads.history import Recorder
from workloads.operations import ClientOperation


class SetUpError(Exception):
    """The workload could not be set up; the message names the request and the last answer."""


class LeadersMissing(SetUpError):
    """The topic was made, and not all of its partitions got a leader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSettings:
    """The clients of one run: load, timeouts and sizes. Raises ValueError naming a field that is wrong."""

    bootstrap: tuple[tuple[str, int], ...]
    """(host, port) of brokers to begin with."""
    topic: str = "faultline"
    partitions: int = 2
    replication_factor: int = 3
    topic_config: Mapping[str, str] = field(default_factory=dict)
    """Kafka topic settings given when the topic is created, such as `min.insync.replicas`."""

    producers: int = 3
    consumers: int = 2
    end_offset_readers: int = 1
    rate: float = 20.0
    """Appends invoked per second, summed over all producers."""
    end_offset_interval_s: float = 1.0
    """Mean time between two reads of the end of one partition by one reader, and between two queries of a time reader.
    """
    time_readers: int = 0
    """Clients that ask for offsets by time."""
    record_empty_polls: bool = False
    """Record polls that returned nothing; needed only when they are checked (`recency: strict`)."""

    acks: int = -1
    """-1 (all), 1 or 0, as Kafka's producer setting. Producers are idempotent unless it is 0."""
    max_in_flight: int = 5
    """Batches in flight per partition and producer."""
    pipeline: int = 5
    """Appends a producer has open at once on one partition."""
    batch_records: int = 1
    """Records of a batch at most."""
    record_bytes: int = 1
    """Length of a record's value at least."""
    burst: int = 1
    """Appends that a producer invokes at once, on one partition; `rate` stays as it is."""
    linger_ms: int = 0
    """How long a batch waits for more records."""
    compression: Compression = Compression.NONE
    unix_ahead_ms: int = 0
    """How far Unix time, which records' timestamps are in, is ahead of the loop's clock; in simulation they are one."""
    clock_error_ms: int = 0
    """How far the clock of a producer, by which it stamps its records, is wrong at most."""
    first_sequence: int = 0
    """The sequence number with which a producer begins on each partition."""
    delivery_timeout_ms: int = 8_000
    """How long a producer tries to get a record acknowledged; then its outcome is unknown."""
    request_timeout_ms: int = 1_500
    """How long any request may take before its connection is given up."""
    connect_timeout_ms: int = 1_000
    retry_backoff_ms: int = 50
    """First pause before something is tried again; doubles, with jitter, up to `retry_backoff_ms_max`."""
    retry_backoff_ms_max: int = 500
    metadata_max_age_ms: int = 5_000
    """Age at which metadata is refreshed without another reason."""
    fetch_wait_ms_max: int = 500
    """How long a broker may hold a consumer's fetch that finds nothing."""
    fetch_bytes_max: int = 1 << 20
    consumer_rules_off: tuple[str, ...] = ()
    """Rules that consumers do not follow (workloads/clients/consumer_rules.py)."""
    auto_offset_reset: Literal["earliest", "latest", "none"] = "earliest"
    """Where a tailing consumer goes from a position that the log does not have; with none it ends."""
    read_committed: bool = False
    tell_epochs: bool = False
    """Whether consumers tell the leader epoch of what they have read with each fetch."""
    poll_pause_ms: int = 100
    """Mean rest of a consumer after a poll that returned records."""
    producer_life_ms: int = 0
    """Mean life of a producer, which is then followed by a new one; 0 for the whole run."""
    consumer_life_ms: int = 0
    """Likewise of a consumer; 0 for the whole run, or what a workload has for its own."""
    consumer_rest_ms: int = 2_000
    """Longest time until a consumer that has ended is followed by a new one."""
    session_timeout_ms: int = 3_000
    """Of a member of a group."""
    static_members: float = 0.0
    """Share of the members of a group that are static, rounded up to whole members."""
    late_commits: float = 0.0
    """Share of its rebalances in which a member of a group commits late."""
    awkward_members: float = 0.0
    """Share of the lives of a group's members that are awkward (`workloads.groups`)."""
    groups_begin: float = 0.0
    """Share of the run after which the first consumer asks for a coordinator."""
    commit_text_bytes_max: int = 4_096
    """Longest text that brokers take with a committed offset: Kafka's `offset.metadata.max.bytes`."""
    standalone_consumers: int = 0
    """Consumers that each commit in a group of its own, without being a member, and delete it now and then."""
    negotiate_versions: bool = False
    """Whether connections begin with ApiVersions, for brokers that may be of another release than the clients."""
    idle_partitions: int = 0
    """Partitions that no producer writes to: the last ones."""
    written_share: float = 1.0
    """Share of the time in which a partition is written to, in one stretch; the first one always is."""
    set_up_timeout_ms: int = 30_000

    def __post_init__(self) -> None:
        if not self.bootstrap:
            raise ValueError("bootstrap: at least one (host, port) is needed")
        if self.acks not in (-1, 0, 1):
            raise ValueError(f"acks: {self.acks} is not one of -1, 0, 1")
        for name in (
            "partitions",
            "replication_factor",
            "pipeline",
            "max_in_flight",
            "batch_records",
            "burst",
            "delivery_timeout_ms",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} is less than 1")
        if not 0 <= self.idle_partitions < self.partitions:
            raise ValueError(f"idle_partitions: {self.idle_partitions} leaves none of {self.partitions} partitions")
        for name in ("producers", "consumers", "end_offset_readers"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: {getattr(self, name)} is less than 0")
        if self.max_in_flight > 5:
            raise ValueError(f"max_in_flight: {self.max_in_flight} is more than the 5 batches a broker remembers")
        if not self.rate > 0:
            raise ValueError(f"rate: {self.rate} appends per second is not more than 0")

    @property
    def timeouts(self) -> ClientTimeouts:
        """Those of every native client."""
        return ClientTimeouts(
            request_timeout_s=self.request_timeout_ms / 1000,
            connect_timeout_s=self.connect_timeout_ms / 1000,
            backoff_s=self.retry_backoff_ms / 1000,
            backoff_s_max=self.retry_backoff_ms_max / 1000,
            metadata_age_s_max=self.metadata_max_age_ms / 1000,
        )


class Workload(Protocol):
    """One workload of one run; see the module's docstring for when each is called."""

    async def set_up(self) -> None:
        """Make the cluster ready for the clients. Raises SetUpError."""

    async def run(self, until_s: float) -> None:
        """Drive the clients until the running loop's `time()` is `until_s`, then wait for operations in flight."""

    async def final_reads(self, until_s: float) -> bool:
        """Read everything back; False when that was not done by `until_s`."""

    async def final_appends(self, until_s: float) -> tuple[str, ...]:
        """Append to every partition with acks=all, and read that back by `until_s`; a line for each that has not taken
        it."""

    async def perform(self, operation: ClientOperation) -> None:
        """Carry out one operation of a script, while `run` goes on; returns when it has ended. Raises
        OperationRefused."""

    async def close(self) -> None:
        """End every task and connection. May be called twice."""


class WorkloadFactory(Protocol):
    """Makes a workload from its settings, the recorder of its history, the seeded random stream of each purpose, and
    the library of its clients, where that is not the native one."""

    def __call__(
        self,
        settings: WorkloadSettings,
        recorder: Recorder,
        stream: Callable[[str], Random],
        library: ClientLibrary | None = None,
    ) -> Workload: ...
