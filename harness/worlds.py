"""Worlds: the dimensions in which runs differ beside their faults, and how a seed draws them.

A fixed world hides whole classes of bugs: logs that never roll, batches of one record, one fetch that catches up. A
spec with `vary` draws its world from its seed, as FoundationDB does with its knobs. Each dimension of `DIMENSIONS` is a
field of a spec, a field of its clients (`clients.batch`) or a setting (`segment.bytes`), with the values that it may
have, its default first.

- How much a world varies is drawn first: a share of the dimensions departs from the defaults, two thirds in the mean.
- A field that the spec gives stays as given. All others are drawn one after the other, each among the values that fit
  those given and drawn before (`CONSTRAINTS`): no more replicas than brokers, sessions longer than heartbeats.
- No value takes back a promise of durability, but the rare recovery `proactive` and the rare unclean elections:
  min.insync.replicas is drawn, and the schedule of faults keeps to what it allows.
- Every dimension has streams of its own, named for its number, and of its values the one with the least key is drawn,
  as in `nemesis.swarm`. So a new dimension, or a new value that is not drawn, changes no other draw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

from checkers.evidence import OBEYING_STRATEGIES
from nemesis.fields import FieldError

WorldValue = int | float | str
World = Mapping[str, Any]
"""Dimension → its value, as far as it is given or drawn; and `workload`."""
UNNAMED: Final = "unnamed"
"""Of a setting that the spec does not name, where naming its default would ask for something else."""
_RARE: Final = 0.2
_LONG_MS: Final = 60_000
"""As long as no drawn run is."""


@dataclass(frozen=True, slots=True)
class Dimension:
    """One thing in which worlds differ."""

    number: int
    """Names its streams; never given to another dimension."""
    name: str
    """A field of a spec, `clients.` and a field of the clients, or a setting (of a topic by the topic's name of it)."""
    values: tuple[WorldValue, ...]
    """The default first."""
    weights: Mapping[WorldValue, float] = field(default_factory=dict)
    """Of values that are drawn more or less often than the others, which have weight 1."""
    workload: str = ""
    """The only workload in which it means anything; empty for all."""
    broker_name: str = ""
    """The other name of a setting of a topic, by which a spec may give it, too."""
    of_cluster: bool = False
    """Whether scripts and settings of single nodes refer to it: by names of nodes and by numbers of partitions, or with
    a protocol that nodes of others must understand."""
    of_faults: bool = False
    """Whether it means anything only where faults are drawn."""

    @property
    def default(self) -> WorldValue:
        """The value of a run that does not vary."""
        return self.values[0]

    @property
    def is_setting(self) -> bool:
        """Whether it is a setting of the system under test."""
        return "." in self.name and not self.name.startswith("clients.")

    def fitting(self, world: World) -> list[WorldValue]:
        """Its values that fit the world."""
        return [value for value in self.values if _fits(self.name, {**world, self.name: value})]

    def draw(self, seed: int, share: float, world: World) -> WorldValue | None:
        """A value that fits the world; the default unless the dimension is among the `share` that departs from it. None
        when no value fits."""
        fitting = self.fitting(world)
        departs = _uniform(seed, f"{self.number}") < share
        if not departs and self.default in fitting:
            return self.default

        def key(value: WorldValue) -> float:
            return -math.log(1 - _uniform(seed, f"{self.number}/{value}")) / self.weights.get(value, 1.0)

        return min(fitting, key=key, default=None)

    def chances(self, share: float, world: World) -> dict[WorldValue, float]:
        """The values that fit the world, each with the probability by which `draw` draws it."""
        fitting = self.fitting(world)
        weights = [self.weights.get(value, 1.0) for value in fitting]
        departing = share if self.default in fitting else 1.0
        chances = {value: departing * weight / sum(weights) for value, weight in zip(fitting, weights, strict=True)}
        if departing < 1:
            chances[self.default] += 1 - departing
        return chances


DIMENSIONS: Final[tuple[Dimension, ...]] = (
    Dimension(1, "brokers", (3, 4, 5), of_cluster=True),
    # Of an even number more than half are needed, too: a half alone decides nothing, and elects nobody.
    Dimension(2, "controllers", (3, 1, 5, 2, 4), weights={2: 0.5, 4: 0.5}, of_cluster=True),
    Dimension(3, "partitions", (2, 1, 3, 5), of_cluster=True),
    Dimension(4, "replication_factor", (3, 1, 2, 4, 5), weights={1: _RARE, 5: 2.0}, of_cluster=True),
    # No more than the replicas of __consumer_offsets: all but one of so many may lose its records.
    Dimension(5, "min.insync.replicas", (2, 1, 3), weights={1: 0.5}),
    Dimension(6, "rate", (20.0, 5.0, 40.0), weights={40.0: 0.5}),
    Dimension(7, "producers", (3, 1, 2, 5)),
    Dimension(8, "consumers", (2, 1, 3, 4)),
    Dimension(9, "end_offset_readers", (1, 0, 2)),
    Dimension(10, "clients.batch", (1, 2, 5, 20, 50), weights={1: _RARE}),
    Dimension(11, "clients.burst", (1, 5, 20, 50), weights={1: _RARE}),
    Dimension(12, "clients.linger", (0.0, 0.005, 0.05, 0.3)),
    Dimension(13, "clients.compression", ("none", "gzip", "snappy", "lz4", "zstd")),
    Dimension(14, "clients.in_flight", (5, 1, 2, 3)),
    Dimension(15, "clients.pipeline", (5, 1, 20, 100)),
    Dimension(16, "clients.request_timeout", (1.5, 0.7, 3.0)),
    Dimension(17, "clients.delivery_timeout", (8.0, 3.0, 15.0)),
    Dimension(18, "clients.fetch_bytes", (1 << 20, 1, 100, 1_000, 10_000)),
    Dimension(19, "clients.poll_pause", (0.1, 0.0, 0.5)),
    Dimension(20, "clients.isolation", ("read_uncommitted", "read_committed")),
    Dimension(73, "clients.tell_epochs", (False, True)),
    Dimension(21, "clients.producer_life", (0.0, 4.0, 20.0)),
    Dimension(22, "clients.consumer_life", (0.0, 4.0, 20.0)),
    Dimension(23, "clients.consumer_rest", (2.0, 0.2, 8.0)),
    Dimension(24, "clients.session_timeout", (3.0, 1.5, 6.0), workload="groups"),
    Dimension(27, "clients.static_members", (0.0, 0.5, 1.0), workload="groups"),
    Dimension(28, "clients.standalone_consumers", (0, 1, 2), workload="groups"),
    Dimension(57, "clients.late_commits", (0.0, 0.3, 1.0), workload="groups"),
    Dimension(59, "clients.awkward_members", (0.0, 0.3, 1.0), weights={1.0: 3.0}, workload="groups"),
    Dimension(74, "clients.groups_begin", (0.0, 0.2, 0.5), workload="groups"),
    Dimension(29, "clients.time_readers", (0, 1, 2)),
    Dimension(64, "clients.clock_error", (0.0, 0.3, 5.0, 3_600.0), weights={3_600.0: _RARE}),
    # So near the last one that every partition with a few batches gets past it.
    Dimension(65, "clients.first_sequence", (0, (1 << 31) - 4, (1 << 31) - 50), weights={0: 2.0}),
    Dimension(25, "clients.idle_partitions", (0, 1, 2)),
    Dimension(26, "clients.written_share", (1.0, 0.2, 0.5)),
    Dimension(30, "segment.bytes", (1 << 30, 1_024, 4_096, 16_384), broker_name="log.segment.bytes"),
    Dimension(31, "segment.ms", (604_800_000, 1_000, 10_000), broker_name="log.roll.ms"),
    Dimension(32, "flush.messages", ((1 << 63) - 1, 1, 10), broker_name="log.flush.interval.messages"),
    # Bytes that a read walks at most to its batch; with the rare one more than are read at a time.
    Dimension(
        78,
        "index.interval.bytes",
        (0, 300, 4_096, 65_536),
        weights={65_536: _RARE},
        broker_name="log.index.interval.bytes",
    ),
    Dimension(33, "max.message.bytes", (1_048_588, 2_500, 10_000, 100_000), broker_name="message.max.bytes"),
    Dimension(
        34,
        "retention.ms",
        (604_800_000, 2_000, 10_000),
        weights={2_000: _RARE, 10_000: _RARE},
        broker_name="log.retention.ms",
    ),
    # Deletes something where segments are smaller than it.
    Dimension(
        55,
        "retention.bytes",
        (-1, 2_000, 20_000),
        weights={2_000: _RARE, 20_000: _RARE},
        broker_name="log.retention.bytes",
    ),
    # One byte stands for one batch in each fetch: the first is sent however large it is.
    Dimension(35, "replica.fetch.max.bytes", (1 << 20, 1, 300, 1_000, 10_000)),
    Dimension(36, "replica.fetch.response.max.bytes", (10 << 20, 1, 300, 3_000)),
    Dimension(37, "replica.fetch.wait.max.ms", (500, 50, 900)),
    Dimension(38, "replica.fetch.backoff.ms", (100, 20, 1_000)),
    Dimension(39, "replica.lag.time.max.ms", (2_000, 1_000, 4_000)),
    # For the answer of a leader, or of the active controller, as that was paused or its answer held.
    Dimension(77, "replica.socket.timeout.ms", (1_500, 6_000)),
    Dimension(40, "replica.high.watermark.checkpoint.interval.ms", (1_000, 100, 5_000)),
    Dimension(41, "broker.heartbeat.interval.ms", (300, 100, 600)),
    Dimension(42, "broker.session.timeout.ms", (2_000, 1_000, 4_000)),
    Dimension(43, "controller.quorum.election.timeout.ms", (500, 250, 1_000)),
    Dimension(44, "controller.quorum.fetch.timeout.ms", (1_000, 500, 2_000)),
    # With Kafka's own, the last one, an answer may be of the election before, or of the leader before.
    Dimension(75, "controller.quorum.request.timeout.ms", (500, 1_000, 2_000)),
    Dimension(76, "controller.quorum.election.backoff.max.ms", (300, 50, 1_000)),
    Dimension(45, "metadata.log.segment.bytes", (4_096, 1_024, 65_536)),
    # With the least, one snapshot follows the other, and a node that reads one in parts may be too late.
    Dimension(46, "metadata.log.max.record.bytes.between.snapshots", (8_192, 1_000, 65_536, 200)),
    Dimension(72, "controller.quorum.fetch.snapshot.max.bytes", (1 << 20, 100, 500)),
    # No state is half an hour old in any run, but the times of two batches in flight may lie so far apart. The others
    # have producers forgotten that fall idle or end (`CONSTRAINTS`).
    Dimension(
        70,
        "producer.id.expiration.ms",
        (86_400_000, 1_800_000, 10_000, 20_000),
        weights={10_000: 0.5, 20_000: 0.5},
    ),
    Dimension(79, "producer.id.expiration.check.interval.ms", (600_000, 1_000)),
    # Kafka's brokers ask for a thousand, and hardly ever a second time within a run.
    Dimension(56, "faultline.producer.id.block.size", (1_000, 1, 3)),
    Dimension(47, "max.incremental.fetch.session.cache.slots", (1_000, 0, 2)),
    # A spec that names a strategy asks for kills of any broker, also one that names the default (`Spec.schedule`).
    Dimension(
        48,
        "unclean.recovery.strategy",
        (UNNAMED, "last-known-leader", "balanced", "manual", "proactive"),
        weights={"proactive": _RARE, "manual": _RARE},
    ),
    # Counts under two strategies alone (`CONSTRAINTS`).
    Dimension(71, "unclean.leader.election.enable", ("false", "true"), weights={"true": _RARE}),
    Dimension(49, "offsets.topic.num.partitions", (3, 1, 5), workload="groups"),
    Dimension(50, "triggers", (0.0, 0.2, 0.5), of_faults=True),
    Dimension(51, "channels", (0.0, 0.2, 0.5), of_faults=True),
    Dimension(52, "blackouts", (0.0, 0.2, 0.5), of_faults=True),
    # One leaves stories and long outages undisturbed.
    Dimension(58, "schedules", (1, 2, 4, 8), of_faults=True),
    Dimension(69, "administrators", (0, 1), of_faults=True),
    # Seldom drawn but beside a recovery that elects the last leader, whatever that has lost (`CONSTRAINTS`).
    Dimension(54, "losses", ("promised", "none"), weights={"none": 0.02}, of_faults=True),
    # The older generation that is sound, too: its followers ask where epochs end before they fetch.
    Dimension(53, "faultline.protocol", ("truncate_on_fetch", "kip320"), weights={"kip320": _RARE}, of_cluster=True),
)
"""In the order in which they are drawn."""


def _holds_batch(records: int, size: int, workload: str) -> bool:
    """Whether any batch of a run has place in `size` bytes: of a producer, or of a group's coordinator, which writes
    all members with their partitions as one record."""
    return size >= max(61 + 32 * records, 4_000 if workload == "groups" else 0)


def _finds_expired(error_s: float, expiration_ms: int, check_ms: int) -> bool:
    """Whether brokers find those producers within a run that expire within it, and none that still send."""
    return check_ms <= expiration_ms and (check_ms > _LONG_MS or 1_000 * error_s < expiration_ms)


CONSTRAINTS: Final[Mapping[tuple[str, ...], Callable[..., bool]]] = {
    ("replication_factor", "brokers"): lambda replicas, brokers: replicas <= brokers,
    ("min.insync.replicas", "replication_factor"): lambda in_sync, replicas: in_sync <= replicas,
    ("clients.request_timeout", "clients.delivery_timeout"): lambda request_s, delivery_s: request_s <= delivery_s,
    ("clients.burst", "clients.pipeline"): lambda appends, at_once: appends <= at_once,
    # Else a short run may end before its first burst.
    ("clients.burst", "rate"): lambda appends, rate: appends <= 4 * rate,
    ("clients.idle_partitions", "partitions"): lambda idle, partitions: idle < partitions,
    ("clients.batch", "segment.bytes", "workload"): _holds_batch,
    ("clients.batch", "max.message.bytes", "workload"): _holds_batch,
    # With both, what is lost was never promised.
    ("unclean.recovery.strategy", "losses"): lambda strategy, losses: (
        strategy != "last-known-leader" or losses == "none"
    ),
    ("unclean.leader.election.enable", "unclean.recovery.strategy"): lambda enabled, strategy: (
        enabled == "false" or strategy in OBEYING_STRATEGIES
    ),
    # A producer that is forgotten while it may send a batch again has that appended twice, as in Kafka.
    ("clients.delivery_timeout", "clients.clock_error", "producer.id.expiration.ms"): lambda delivery_s, error_s, ms: (
        ms > _LONG_MS or 1_000 * (delivery_s + error_s) < ms
    ),
    ("clients.clock_error", "producer.id.expiration.ms", "producer.id.expiration.check.interval.ms"): _finds_expired,
    ("replica.fetch.wait.max.ms", "replica.lag.time.max.ms"): lambda wait_ms, lag_ms: wait_ms < lag_ms,
    ("broker.heartbeat.interval.ms", "broker.session.timeout.ms"): lambda beat_ms, session_ms: (
        3 * beat_ms <= session_ms
    ),
}
"""Dimensions (or `workload`) → whether their values fit each other; each dimension that is drawn keeps to all of its
own."""


def fits(world: World) -> bool:
    """Whether all values that the world has fit each other."""
    return all(_fits(name, world) for name in world)


def _fits(name: str, world: World) -> bool:
    """Whether the value of a dimension fits all others that the world has."""
    return all(
        fit(*(world[other] for other in names))
        for names, fit in CONSTRAINTS.items()
        if name in names and all(other in world for other in names)
    )


def names_of(value: object) -> tuple[str, ...]:
    """The dimensions that a spec's `vary` stands for: all, none, or those of a list. Raises FieldError."""
    names = [dimension.name for dimension in DIMENSIONS]
    if isinstance(value, bool):
        return tuple(names) if value else ()
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise FieldError(f"vary: {value!r} is not true, false or a list of dimensions")
    for name in value:
        if name not in names:
            raise FieldError(f"vary: {name!r} is not one of {', '.join(names)}")
    return tuple(name for name in names if name in value)


def undecided(names: Collection[str], given: Collection[str], *, scripted: bool) -> tuple[str, ...]:
    """Those of the dimensions `names` that a spec leaves open which gives the fields and settings `given`; a script
    that may refer to nodes and partitions keeps them as they are."""
    return tuple(
        dimension.name
        for dimension in DIMENSIONS
        if dimension.name in names
        and not {dimension.name, dimension.broker_name} & set(given)
        and not (scripted and dimension.of_cluster)
    )


def draw(seed: int, names: Collection[str], world: World) -> dict[str, WorldValue]:
    """A value for each of the dimensions `names`, in the `world` that is given; those that mean nothing there, or
    of which no value fits, are left out."""
    share = 1 - _uniform(seed, "share") ** 2
    return draw_each(names, world, lambda dimension, known: dimension.draw(seed, share, known))


def draw_each(
    names: Collection[str], world: World, draw_value: Callable[[Dimension, World], WorldValue | None]
) -> dict[str, WorldValue]:
    """As `draw`, with another way to draw the value of a dimension in the world drawn before it."""
    drawn: dict[str, WorldValue] = {}
    known = dict(world)
    for dimension in DIMENSIONS:
        if dimension.name in names and dimension.workload in ("", world["workload"]):
            value = draw_value(dimension, known)
            if value is not None:
                drawn[dimension.name] = value
            known[dimension.name] = dimension.default if value is None else value
    return drawn


def greatest(name: str, given: int, vary: Collection[str]) -> int:
    """The greatest value that a dimension of whole numbers may get: the one `given`, unless it is still to be drawn."""
    values = next(dimension.values for dimension in DIMENSIONS if dimension.name == name)
    return max(int(value) for value in values) if name in vary else given


def possible_values(names: Collection[str], workload: str) -> dict[str, list[str]]:
    """Dimension → its values, as they are recorded, of the dimensions `names` that mean anything to a workload."""
    return {
        dimension.name: [recorded(value) for value in dimension.values]
        for dimension in DIMENSIONS
        if dimension.name in names and dimension.workload in ("", workload)
    }


def departures(drawn: Mapping[str, str]) -> list[str]:
    """What was drawn other than a default, as `dimension=value`."""
    defaults = {dimension.name: recorded(dimension.default) for dimension in DIMENSIONS}
    return [f"{name}={value}" for name, value in drawn.items() if value != defaults.get(name)]


def _uniform(seed: int, name: str) -> float:
    """A number of the stream of this name, from 0 up to 1: many streams, of which one number each is drawn."""
    digest = blake2b(f"{seed}/world/{name}".encode(), digest_size=6).digest()
    return int.from_bytes(digest) / 256 ** len(digest)


def recorded(value: WorldValue) -> str:
    """The value as a spec records that it was drawn."""
    return f"{value:g}" if isinstance(value, float) else str(value)
