"""Throughput of the broker, and latency of its acknowledgements.

Three brokers and their controllers, real processes on loopback, each with a data directory of its own; replication
factor 3, min.insync.replicas 2, Kafka's own timeouts. The producer is confluent-kafka's: acks=all, idempotent, linger
5 ms, in one thread of this process; so client and brokers share the machine.

- *Throughput*: so many records as fast as the client takes them; the clock stops at the last acknowledgement. Once with
  the client's own batch size, a million bytes, and once with that of Kafka's Java client, 16 KiB. As with Kafka a
  connection has one request served at a time, so small batches measure how soon one is committed.
- *Latency at the rate aimed for*: paced evenly, at half of what Kafka did.
- *One at a time*: a record is handed over when the one before has been acknowledged, with linger and without it (the
  client holds a record back for linger's 5 ms, whatever the broker does).

A latency is librdkafka's own: from `produce` to the acknowledgement. Every round goes through all settings, so that a
disturbance meets all alike; what is reported are medians over rounds. How disturbed the machine was is measured, too:
the share of its processors that others took while throughput was measured. The processor time that the nodes take for
a record depends least on what else runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

from harness.bench.resources import Processors
from harness.cluster.loopback import LoopbackCluster
from harness.cluster.readiness import Expected
from harness.cluster.systems import SYSTEMS
from results.run.temporary_directory import temporary_directory

RECORDS: Final = {100: 600_000, 1_000: 120_000}
"""Record size in bytes → how many of them a round produces: some seconds' worth."""
KAFKA: Final = {100: (80_000, 150_000), 1_000: (24_000, 24_000)}
"""Record size in bytes → records per second of Apache Kafka 4.1.1, least and most: three combined nodes on loopback,
1 GiB of heap each, on a machine of this kind."""
KAFKA_ALONE_MS: Final = (3, 8)
"""Its median latency one record at a time."""
PARTITIONS: Final = (3, 12)
ROUNDS: Final = 3
JAVA_BATCH_BYTES: Final = 16_384
_SMALL_BATCHES_PART: Final = 10
"""So many times fewer records are produced in small batches."""
_PACED_S: Final = 1.0
_PACE_STEP_S: Final = 0.001
_ALONE: Final = 100
_LIMIT_S: Final = 120.0
_QUEUED: Final = 1_000_000
"""More records than are ever on their way: the client is never refused one."""
_QUIET: Final = {"log_level": 2}
"""librdkafka reports brokers that go away, which they all do at the end."""
_CLIENT: Final = {"acks": "all", "enable.idempotence": True, "linger.ms": 5, **_QUIET}


@dataclass(frozen=True, slots=True)
class ProduceCase:
    """The size of the records, and the number of partitions."""

    record_bytes: int
    partitions: int

    @property
    def topic(self) -> str:
        """A topic of its own."""
        return f"bench-{self.record_bytes}-{self.partitions}"

    @property
    def kafka(self) -> str:
        """Kafka's records per second, for people."""
        low, high = KAFKA[self.record_bytes]
        return f"{low:,}" if low == high else f"{low:,}–{high:,}"

    @property
    def rate_aimed_for(self) -> float:
        """Records per second: half of the least that Kafka did."""
        return KAFKA[self.record_bytes][0] / 2


CASES: Final = tuple(ProduceCase(size, partitions) for size, partitions in product(RECORDS, PARTITIONS))


@dataclass(frozen=True, slots=True)
class LatencyPercentiles:
    """Milliseconds from handing a record over to its acknowledgement."""

    p50_ms: float
    p99_ms: float

    @classmethod
    def of(cls, seconds: list[float]) -> LatencyPercentiles:
        """The percentiles of one round."""
        cuts = quantiles(seconds, n=100)
        return cls(cuts[49] * 1e3, cuts[98] * 1e3)


@dataclass(slots=True)
class Produced:
    """The measurements of one case, one value for each round."""

    setting: ProduceCase
    rates: list[float] = field(default_factory=list)
    """Records per second."""
    rates_small_batches: list[float] = field(default_factory=list)
    broker_us: list[float] = field(default_factory=list)
    """Microseconds of processor time that all nodes together took for a record."""
    others_share: list[float] = field(default_factory=list)
    """The part of the machine's processors that was neither idle nor ours."""
    paced: list[LatencyPercentiles] = field(default_factory=list)
    """At the rate aimed for."""
    alone: list[LatencyPercentiles] = field(default_factory=list)
    """One record at a time."""
    alone_no_linger: list[LatencyPercentiles] = field(default_factory=list)
    """One record at a time, linger 0."""


STEPS: Final = ROUNDS * len(CASES)


def measure(on_step: Callable[[int, str], None]) -> list[Produced]:
    """Measure every setting in every round; before each step `on_step` gets how many of `STEPS` are done, and what is
    next. Raises RuntimeError when a record is not acknowledged or the cluster does not come up, OSError, and
    ImportError without confluent-kafka."""
    with temporary_directory("bench") as directory, bench_cluster(directory) as cluster:
        measured = [Produced(setting) for setting in CASES]
        for done, (number, one) in enumerate(product(range(ROUNDS), measured)):
            on_step(done, f"round {number + 1}: {one.setting.record_bytes} bytes, {one.setting.partitions} partitions")
            _measure(cluster, one)
        return measured


@contextmanager
def bench_cluster(directory: Path) -> Iterator[LoopbackCluster]:
    """The measured cluster, with a topic for each case."""
    with LoopbackCluster(directory, settings=_kafkas_timeouts()) as cluster:
        for setting in CASES:
            _create_topic(cluster, setting)
        yield cluster


def _kafkas_timeouts() -> Mapping[str, str]:
    """Kafka's own timeouts: with the shorter ones of runs a busy machine would look like a fault."""
    names = ("broker.heartbeat.interval.ms", "broker.session.timeout.ms")
    return {
        name: value
        for name, value in SYSTEMS["broker"].settings.items()
        if name in names or (name.startswith("replica.") and name.endswith(".ms"))
    }


def _measure(cluster: LoopbackCluster, one: Produced) -> None:
    setting = one.setting
    count = RECORDS[setting.record_bytes]
    with _Sending(cluster.bootstrap, setting) as sending:
        before = Processors.now(cluster.pids.values())
        one.rates.append(sending.flood(count))
        taken = Processors.now(cluster.pids.values()) - before
        one.broker_us.append(taken.nodes_s / count * 1e6)
        one.others_share.append(taken.others_share)
        one.paced.append(LatencyPercentiles.of(sending.paced(setting.rate_aimed_for)))
        one.alone.append(LatencyPercentiles.of(sending.one_at_a_time(_ALONE)))
    with _Sending(cluster.bootstrap, setting, {"batch.size": JAVA_BATCH_BYTES}) as sending:
        one.rates_small_batches.append(sending.flood(count // _SMALL_BATCHES_PART))
    with _Sending(cluster.bootstrap, setting, {"linger.ms": 0}) as sending:
        one.alone_no_linger.append(LatencyPercentiles.of(sending.one_at_a_time(_ALONE)))


class _Sending:
    """A producer for one case, and the latencies of its records."""

    def __init__(self, bootstrap: str, setting: ProduceCase, changes: Mapping[str, Any] | None = None) -> None:
        from confluent_kafka import Producer

        self._topic = setting.topic
        self._value = b"x" * setting.record_bytes
        self._seconds: list[float] = []
        self._failures: list[str] = []
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "queue.buffering.max.messages": _QUEUED,
                "queue.buffering.max.kbytes": 1 << 20,
                **_CLIENT,
                **(changes or {}),
            }
        )
        self._producer.list_topics(self._topic, timeout=_LIMIT_S)
        self.one_at_a_time(1)  # connections, and the producer's id

    def __enter__(self) -> _Sending:
        return self

    def __exit__(self, *_: object) -> None:
        self._producer.purge()
        self._producer.flush(1)

    def flood(self, count: int) -> float:
        """As fast as possible; records per second, up to the last acknowledgement."""
        began = time.perf_counter()
        for number in range(count):
            self._produce()
            if number % 1000 == 0:
                self._producer.poll(0)
        self._acknowledged(count)
        return count / (time.perf_counter() - began)

    def paced(self, rate: float) -> list[float]:
        """Latencies at `rate` records a second, evenly in steps of a millisecond."""
        count, began = 0, time.perf_counter()
        while (now := time.perf_counter()) - began < _PACED_S:
            due = int((now - began) * rate)
            while count < due:
                self._produce()
                count += 1
            self._producer.poll(_PACE_STEP_S)
        return self._acknowledged(count)

    def one_at_a_time(self, count: int) -> list[float]:
        """Latencies of records of which each waits for the acknowledgement of the one before."""
        for number in range(1, count + 1):
            self._produce()
            until = time.perf_counter() + _LIMIT_S
            while len(self._seconds) + len(self._failures) < number and time.perf_counter() < until:
                self._producer.poll(1)
        return self._acknowledged(count)

    def _produce(self) -> None:
        self._producer.produce(self._topic, self._value, on_delivery=self._delivered)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self._seconds.append(message.latency())
        else:
            self._failures.append(str(error))

    def _acknowledged(self, count: int) -> list[float]:
        """Wait for what is still on its way; the latencies of all. Raises RuntimeError."""
        left = self._producer.flush(_LIMIT_S)
        seconds, self._seconds = self._seconds, []
        if self._failures or left or len(seconds) != count:
            raise RuntimeError(
                f"{self._topic}: {len(self._failures)} of {count} records failed and {left} were not acknowledged: "
                f"{self._failures[:1]}"
            )
        return seconds


def _create_topic(cluster: LoopbackCluster, setting: ProduceCase) -> None:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **_QUIET})
    topic = NewTopic(setting.topic, setting.partitions, 3, config={"min.insync.replicas": "2"})
    try:
        admin.create_topics([topic])[setting.topic].result(_LIMIT_S)
    except KafkaException as error:
        raise RuntimeError(str(error)) from None
    cluster.wait_until_ready(Expected(setting.topic, setting.partitions, replication_factor=3))


def medians(latencies: list[LatencyPercentiles]) -> LatencyPercentiles:
    """The median over rounds of either percentile."""
    return LatencyPercentiles(median(one.p50_ms for one in latencies), median(one.p99_ms for one in latencies))
