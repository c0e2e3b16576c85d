"""The evidence of a run, as the checkers receive it.

A checker is a pure function from `RunEvidence` to a `Verdict`. Evidence that a system does
not offer (a trace, replica logs) is an empty table; a checker that needs it says so in its verdict and never passes
because of it.

Evidence that was lost, is damaged or does not belong to the run is an `EvidenceGap`. Each checker declares in
`RESTS_ON` the parts of the evidence without which its verdict means nothing; `checkers.registry` turns a gap in one of
them into `unknown`, so no checker has to look for gaps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from checkers.tables import FAULTS, REPLICA_ENDS, REPLICAS, TRACE
from workloads.history import SCHEMA as HISTORY

SEQUENCE_MODULUS: Final = 1 << 31
"""Sequence numbers of producers count from 0 up to here, and begin again (KIP-98)."""
_TIMES_PER_EXPIRATION: Final = 10
"""How many times longer than a time since the run began the expiration of producer ids must be, clocks being wrong, to
be out of it."""
_METADATA_WAIT_MS: Final = 500
"""A controller holds a fetch of the metadata back for so long where it has nothing new."""
_DAY_MS: Final = 86_400_000
_RETENTION_MS: Final = 7 * _DAY_MS
"""The default of `retention.ms`."""
_ENABLED: Final = "unclean.leader.election.enable"
RECOVERY_STRATEGY: Final = "unclean.recovery.strategy"
OBEYING_STRATEGIES: Final = ("last-known-leader", "manual")
"""Strategies under which `unclean.leader.election.enable` counts."""
OLD_NAMES: Mapping[str, str] = {"trace_has_one_clock": "comparable_clocks"}
"""Setting in runs recorded by earlier versions → its name today."""


def permits_unclean_elections(
    config: Mapping[str, str], strategy: str, changes: Iterable[tuple[str, str]] = ()
) -> bool:
    """Whether a topic of this configuration and strategy of unclean recovery, or of any that `changes` of single keys
    make of it, permits the election of any live replica: by proactive recovery, or by `unclean.leader.election.enable`
    under a strategy under which that counts."""
    altered = [(_ENABLED, config.get(_ENABLED, "false")), (RECOVERY_STRATEGY, strategy), *changes]
    strategies = {value for key, value in altered if key == RECOVERY_STRATEGY}
    enabled = any(key == _ENABLED and value.lower() == "true" for key, value in altered)
    return "proactive" in strategies or (enabled and not strategies.isdisjoint(OBEYING_STRATEGIES))


def longest_silence_ms(config: Mapping[str, str]) -> int:
    """How long a broker or a controller with these settings waits for the answer of a controller at most, before it
    tries another one, or a new connection; -1 where the settings do not say."""
    try:
        of_controllers = int(config["controller.quorum.request.timeout.ms"])
        of_fetches = max(int(config["broker.session.timeout.ms"]), of_controllers)
        of_brokers = min(of_fetches, int(config["replica.socket.timeout.ms"]))
        return max(
            max(of_brokers, of_controllers) + _METADATA_WAIT_MS, int(config["socket.connection.setup.timeout.ms"])
        )
    except KeyError:
        return -1


def default_retention_ms(clock_gain_ms: float) -> int:
    """How long brokers keep records where nothing is configured; -1 in a run, of less than a day, whose clocks gain too
    little for any to become so old."""
    return _RETENTION_MS if clock_gain_ms + _DAY_MS >= _RETENTION_MS else -1


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """The settings of a run that decide which promises hold."""

    acks: int = -1
    """-1 all, 1 the leader alone, 0 none. Only `all` promises that an acknowledged record stays."""
    min_insync_replicas: int = 2
    replication_factor: int = 3
    unclean_election: bool = False
    """Whether at any time of the run any live replica may be elected (`permits_unclean_elections`): that permits losses
    once it has happened (`checkers.unclean_elections`)."""
    unclean_recovery: str = "manual"
    """`unclean.recovery.strategy`, until a topic is configured anew (`as_configured`). Balanced recovery promises as
    much durability as none at all: it must not lose records that fewer than min.insync.replicas replicas lost. The last
    known leader may lack what it lost itself."""
    unclean_at_once: bool = False
    """Whether any live replica is elected at once where no other may be, as a topic is configured: False for a run, in
    which that is not known of a topic (`as_configured`)."""
    recency: str = "default"
    """`default`: an empty poll proves nothing. `strict`: it asserts the end of the log."""
    time_limit_ns: int = 60_000_000_000
    """How long the clients were driven, healing and final reads excluded."""
    faults_asked: bool = False
    """Whether the spec asked for faults: a run in which none took effect tested less than intended."""
    has_trace: bool = True
    """Whether the system under test writes a protocol trace."""
    has_decisions: bool = False
    """Whether the trace, of a system that writes none, has the decisions of its controllers, read from their logs when
    the run had ended: in their order, at times by the controllers' own clocks."""
    has_epoch_checkpoints: bool = False
    """Whether the system keeps each replica's `leader-epoch-checkpoint` up to date: whenever its process ends, the file
    has every leader epoch of the log."""
    confirmed_ends: bool = True
    """Whether the system promises linearizable end offsets (ListOffsets of the latest): where it does not, such as in
    Apache Kafka, whose deposed leaders answer, too, `checkers.linearizability` leaves reads of the end aside."""
    comparable_clocks: bool = True
    """Whether the times and the `seq` of the trace order events of different nodes: all nodes then read one clock, that
    of the simulation or of the one kernel below all containers."""
    network_is_witness: bool = False
    """Whether the trace has what the network saw of the nodes, which the simulated one alone tells."""
    brokers: int = 3
    retention_ms: int = -1
    """`retention.ms` of the topic; -1 for no limit."""
    retention_bytes: int = -1
    """`retention.bytes` of the topic; -1 for no limit."""
    retention_check_ms: int = -1
    """`log.retention.check.interval.ms`; -1 where it is not known, or nodes may differ."""
    clock_error_ms: int = 0
    """How far the producers' clocks, by which records are stamped, may be wrong."""
    producer_id_expiration_ms: int = _DAY_MS
    """`producer.id.expiration.ms`: age of its newest batch at which brokers forget a producer."""
    expiry_check_ms: int = -1
    """`producer.id.expiration.check.interval.ms`; -1 where it is not known, or nodes may differ."""
    clock_gain_ms: int = 0
    """How far apart scripted faults bring a clock and the time that passes, at most."""
    flush_messages: int = 0
    """`flush.messages`: at so many unsynced records a log is synced; 0 where it is not set, or nodes may differ."""
    replica_lag_ms: int = -1
    """`replica.lag.time.max.ms`; -1 where it is not known, or nodes may differ."""
    controller_silence_ms: int = -1
    """How long a node waits for the answer of a controller at most (`longest_silence_ms`); -1 where it is not known, or
    nodes may differ."""
    leader_heard_ms: int = -1
    """Within what time a follower hears of a leader that it reaches (`checkers.liveness.log_starts.hears_within_ms`);
    -1 where it is not known."""
    mixed_settings: bool = False
    """Whether nodes have settings of their own, so that the defaults of one controller need not be those of another."""
    offset_reset: str = ""
    """`auto.offset.reset` of the tailing consumers; empty in runs of earlier versions."""
    planned_appends: int = 0
    """Rate × time of the spec; 0 where it is not known."""
    consumers: int = 0
    """Clients that read while appends go on; 0 in runs of earlier versions."""
    topic: str = ""
    """The topic of the workload; empty in runs of earlier versions."""
    partitions: int = 0
    """Of the topic; 0 in runs of earlier versions."""
    script_topics: tuple[str, ...] = ()
    """Topics that the script of the clients creates beside it: trace and replica logs leave them out."""
    side_topics: tuple[str, ...] = ()
    """Topics that faults create, write and delete beside it. The trace has each of that name as a topic of its own,
    `name`, `name#2` …; replica logs leave them out."""
    controllers: int = 0
    """0 in runs of earlier versions."""
    time_readers: int = 0
    """Clients that ask for offsets by time."""
    groups: bool = False
    """Whether the workload's consumers form a group, so that there is something for `checkers.groups` to check."""
    script_commits: bool = False
    """Whether the script of the clients commits offsets or resumes from them: `checkers.groups` checks that, too."""

    def __post_init__(self) -> None:
        if self.recency not in ("default", "strict"):
            raise ValueError(f"recency: {self.recency!r} is neither 'default' nor 'strict'")
        if self.acks not in (-1, 0, 1):
            raise ValueError(f"acks: {self.acks!r} is not -1 (all), 0 or 1")

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of all nodes; none in runs of earlier versions, which did not record the controllers."""
        if not self.controllers:
            return ()
        brokers = [f"b{number}" for number in range(1, self.brokers + 1)]
        return (*brokers, *(f"c{number}" for number in range(1, self.controllers + 1)))

    @property
    def producers_kept_ms(self) -> int:
        """How long brokers remember a producer at least, whatever their clocks gain."""
        return self.producer_id_expiration_ms - self.clock_gain_ms

    def is_side_topic(self, topic: str) -> bool:
        """Whether a topic of the trace is one that faults create, write and delete."""
        return topic.partition("#")[0] in self.side_topics

    @property
    def has_ordered_trace(self) -> bool:
        """Whether there is a trace, and its events of different nodes have an order."""
        return self.has_trace and self.comparable_clocks

    @property
    def retains_less(self) -> bool:
        """Whether brokers may delete records by themselves."""
        return self.retention_ms >= 0 or self.retention_bytes >= 0

    def retains_less_by(self, reason: str) -> bool:
        """Whether they may for this reason of a `log_start` event."""
        return {"retention_ms": self.retention_ms, "retention_bytes": self.retention_bytes}.get(reason, -1) >= 0

    def as_configured(self, config: Mapping[str, str]) -> CheckSettings:
        """The settings where a topic has this configuration, which may be another one than that of the run: whom it
        elects, and when. An empty one changes nothing."""
        if not config:
            return self
        recovery = config.get(RECOVERY_STRATEGY, self.unclean_recovery)
        unclean = permits_unclean_elections(config, recovery)
        at_once = unclean and recovery in OBEYING_STRATEGIES
        return replace(self, unclean_recovery=recovery, unclean_election=unclean, unclean_at_once=at_once)

    @property
    def losses_tolerated(self) -> int:
        """How many replicas of a partition may lose data at one time without an acknowledged record being lost."""
        return max(0, min(self.min_insync_replicas, self.replication_factor) - 1)

    def to_json(self) -> dict[str, Any]:
        """The settings as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> CheckSettings:
        """The inverse of `to_json`. Unknown names are dropped, so that older code can check newer runs; names that
        older runs were recorded with are read by `OLD_NAMES`."""
        known = {item.name for item in fields(cls)}
        current = {OLD_NAMES.get(name, name): value for name, value in values.items()}
        values = {name: tuple(value) if isinstance(value, list) else value for name, value in current.items()}
        return cls(**{name: value for name, value in values.items() if name in known})


class EvidencePart(StrEnum):
    """A part of the evidence that a checker may rest on."""

    HISTORY = "history"
    REPLICAS = "replica logs"
    """REPLICAS and REPLICA_ENDS."""
    TRACE = "trace"
    """The protocol trace of every node, where its events have an order (`CheckSettings.has_ordered_trace`)."""
    LOSSES = "trace of losses"
    """The events of the trace that date what replicas lost, what brokers deleted, which producers they forgot, and
    unclean elections: in a run with a fault that lost data, a deletion, a retention, producers that may expire, a topic
    that permits unclean elections, or an administrator who asks for one, a checker that rests on them rests on the
    whole trace; in any other run, on nothing."""
    FAULTS = "fault evidence"
    RECOVERY = "recovery"
    SETTINGS = "settings"


EXCUSES: Final = frozenset({EvidencePart.SETTINGS, EvidencePart.FAULTS, EvidencePart.LOSSES})
"""The parts from which `checkers.fault_model` and `checkers.deletions` derive what a run may lose."""


@dataclass(frozen=True, slots=True)
class EvidenceGap:
    """Something that a part of the evidence lacks, or that makes it unusable."""

    part: EvidencePart
    reason: str
    """One line: the file or table, what is wrong with it, and where."""


def gap_lines(gaps: Iterable[EvidenceGap]) -> list[str]:
    """The gaps in words, a line for each reason, which parts may have in common."""
    parts: dict[str, list[str]] = {}
    for gap in gaps:
        parts.setdefault(gap.reason, []).append(gap.part)
    return [f"{', '.join(names)}: {reason}" for reason, names in parts.items()]


@dataclass(frozen=True, slots=True)
class RunEvidence:
    """Everything recorded of one run."""

    history: pa.Table = field(default_factory=HISTORY.empty_table)
    replicas: pa.Table = field(default_factory=REPLICAS.empty_table)
    replica_ends: pa.Table = field(default_factory=REPLICA_ENDS.empty_table)
    trace: pa.Table = field(default_factory=TRACE.empty_table)
    faults: pa.Table = field(default_factory=FAULTS.empty_table)
    settings: CheckSettings = field(default_factory=CheckSettings)
    recovery: Mapping[str, Any] = field(default_factory=dict)
    """`recovered` bool, `seconds` from the end of healing, `limit_seconds`, `healing_seconds`, `unhealed` (list of str:
    what could not be healed), `waiting_for` list of str, `final_reads` bool, `refused_appends` (list of str: partitions
    that then took no append with acks=all, and why; where there were final appends), `left_again` (list of str: what of
    a cluster that had recovered was missing at last; not in runs of earlier versions), `crashes`, `vanished` (list of
    `node` and `time_ns`: machines that something outside the run removed), `requests` (list of
    `nemesis.ports.AdminRequest`: what the administrator asked for), `dry_runs` (likewise: what was only to be
    validated), `told_reassignments` (list of `nemesis.ports.ToldReassignments`), `final_appends_seconds` and
    `collecting_seconds` (from the start until the final appends began, and until the run began to end the nodes'
    processes; not in runs of earlier versions). Of a cluster that did not get ready before any fault, instead of
    `recovered`: `ready` False, `seconds` from the start until that was given up, and `waiting_for`. Empty when the run
    ended before recovery began."""
    gaps: tuple[EvidenceGap, ...] = ()
    """Empty for evidence that is whole, and for the part of a run up to the moment at which it was killed."""

    @property
    def whole_at_end(self) -> bool:
        """Whether the cluster had recovered, and was whole when its logs were collected."""
        return bool(self.recovery.get("recovered")) and not self.recovery.get("left_again")

    def history_within_trace(self) -> pa.Table:
        """The history as far as the trace goes: all of it, but in a run that was killed.

        An operation is written at once and trace events in blocks, so what was killed may have answered operations
        whose events were not written any more.
        """
        if self.recovery or not self.trace.num_rows:
            return self.history
        return self.history.filter(pc.field("completed_ns") < pc.max(self.trace.column("time_ns")))


def producers_may_expire(expiration_ms: int, by_ns: int) -> bool:
    """Whether brokers that forget a producer after so long (`producer.id.expiration.ms`, without what clocks gain) may
    have forgotten one by this time of the run."""
    return expiration_ms * 1_000_000 <= _TIMES_PER_EXPIRATION * by_ns
