"""Rates: how fast the simulation runs and how soon it finds a broker out, how fast histories are checked, how fast the
broker takes records, and what the lossy file system costs.

Rates depend on the machine, so what can be compared is printed side by side: simulated time against CPU time, time to
bug against a model checker's, checking against the size of the history, the broker with `acks=all` against `acks=1`,
appends to a disk that forgets against appends to one that does not. Rates of the simulation, the checkers and the
broker are the best of a few rounds: other work on the machine can only make a round slower.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PARTS: Final = ("simulation", "bugs", "checking", "broker", "disk")
_ROUNDS: Final = 3
_RECORDS: Final = {100: 1_000_000, 1_000: 300_000}
"""Record size in bytes → how many of them are produced in a round: a second's worth or so."""
_QUIET: Final = {"log_level": 2}
"""librdkafka reports brokers that go away, which they all do at the end."""
_TOPIC: Final = "bench"


def bench(console: Console, *, parts: tuple[str, ...] = PARTS, largest: int = 100_000_000) -> int:
    """Measure `parts` and print their tables; 0 when all could be measured, 3 otherwise."""
    measures: Mapping[str, Callable[[], Table]] = {
        "simulation": simulation,
        "bugs": lambda: bugs(console),
        "checking": lambda: checking(largest),
        "broker": broker,
        "disk": disk,
    }
    failed = False
    for part in parts:
        try:
            console.print(measures[part]())
        except (ImportError, RuntimeError, OSError) as error:
            failed = True
            console.print(f"{part}: cannot be measured: {error}", style="red", markup=False)
        console.print()
    return 3 if failed else 0


def simulation() -> Table:
    """The default run, by seed: simulated seconds per CPU second, without and with what follows the run."""
    from harness.run import run_in_simulation
    from harness.spec import Spec

    drawn = _table("simulation: default run", "seed", "simulated", "CPU", "simulated per CPU second", "with checking")
    best = 0.0
    for seed in range(_ROUNDS):
        began = time.process_time()
        outcome = run_in_simulation(Spec(seed=seed))
        whole = time.process_time() - began
        if outcome.failure:
            raise RuntimeError(outcome.failure)
        ratio = outcome.time_s / outcome.cpu_seconds
        best = max(best, ratio)
        drawn.add_row(
            str(seed),
            f"{outcome.time_s:.1f} s",
            f"{outcome.cpu_seconds:.2f} s",
            f"{ratio:.0f}×",
            f"{outcome.time_s / whole:.0f}×",
        )
    drawn.caption = f"best {best:.0f}×"
    return drawn


def bugs(console: Console) -> Table:
    """Seeds and CPU seconds until each flaw is first found, over disjoint ranges of seeds."""
    from harness.bench_bugs import RANGES, hunts

    drawn = _table(
        f"time to bug: {RANGES} ranges of seeds",
        "flaw",
        "seeds: median, worst",
        "CPU: median, worst",
        "TLC",
        "TLC / median",
    )
    with console.status("hunting") as status:
        for hunt in hunts(status.update):
            missed = f"; {hunt.missed} ranges without" if hunt.missed else ""
            drawn.add_row(
                hunt.flaw.name,
                f"{median(hunt.seeds):.0f}, {max(hunt.seeds)}{missed}",
                f"{hunt.median_seconds:.1f} s, {max(hunt.seconds):.1f} s",
                f"{hunt.flaw.tlc_seconds:.1f} s",
                f"{hunt.flaw.tlc_seconds / hunt.median_seconds:.1f}×",
            )
    drawn.caption = "the full protocol withstood the same stories on as many seeds"
    return drawn


def checking(largest: int) -> Table:
    """Histories from a seeded generator, up to `largest` operations, each checked on one core."""
    from harness.bench_checking import SIZES, bench_checking

    drawn = _table("checking: linearizability of one partition", "operations", "CPU", "operations per second", "memory")
    for measured in bench_checking(size for size in SIZES if size <= largest):
        drawn.add_row(
            f"{measured.operations:,}",
            f"{measured.cpu_seconds:.2f} s",
            f"{measured.operations_per_second / 1e6:.1f} million",
            f"{measured.history_bytes / 1e9:.2f} GB of history + {measured.working_bytes / 1e9:.2f} GB",
        )
    return drawn


def broker() -> Table:
    """Produce throughput of three brokers on loopback, by record size and acks, with confluent-kafka."""
    from harness.loopback import LoopbackCluster

    drawn = _table(
        "broker: produce on loopback, three replicas", "record", "acks", "records per second", "MB per second", ""
    )
    with TemporaryDirectory(prefix="faultline-bench-") as directory, LoopbackCluster(Path(directory)) as cluster:
        _create_topic(cluster.bootstrap)
        for size in _RECORDS:
            rates = {
                acks: max(_produce(cluster.bootstrap, size, acks) for _ in range(_ROUNDS)) for acks in ("1", "all")
            }
            for acks, rate in rates.items():
                compared = "" if acks == "1" else f"{rate / rates['1']:.2f}× of acks=1"
                drawn.add_row(f"{size} bytes", acks, f"{rate:,.0f}", f"{rate * size / 1e6:.1f}", compared)
    drawn.caption = "one client, one thread: with small records the client is the slower end"
    return drawn


def disk() -> Table:
    """Appends through the lossy file system against appends straight to the disk, in pairs, by size."""
    from harness.bench_lossyfs import SIZES, bench_lossyfs

    drawn = _table("disk: appends without sync", "append", "direct", "lossy", "median of pairs", "undisturbed")
    for measured in map(bench_lossyfs, SIZES):
        drawn.add_row(
            f"{measured.append_bytes // 1024} KiB",
            f"{median(measured.direct_us):.1f} µs",
            f"{median(measured.lossy_us):.1f} µs",
            f"{measured.ratio:.2f}×",
            f"{measured.undisturbed_ratio:.2f}×",
        )
    return drawn


def _produce(bootstrap: str, size: int, acks: str) -> float:
    """Records per second until the last one is acknowledged."""
    from confluent_kafka import Producer

    failures: list[str] = []

    def delivered(error: Any, message: Any) -> None:
        if error is not None:
            failures.append(str(error))

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": acks,
            "enable.idempotence": acks == "all",
            "linger.ms": 5,
            **_QUIET,
            "queue.buffering.max.messages": 2 * _RECORDS[size],
            "queue.buffering.max.kbytes": 1 << 20,
        }
    )
    value = b"x" * size
    producer.list_topics(_TOPIC, timeout=30)
    began = time.perf_counter()
    for number in range(_RECORDS[size]):
        producer.produce(_TOPIC, value, on_delivery=delivered)
        if number % 1000 == 0:
            producer.poll(0)
    left = producer.flush(120)
    took = time.perf_counter() - began
    if failures or left:
        raise RuntimeError(f"{len(failures)} records failed and {left} were not acknowledged: {failures[:1]}")
    return _RECORDS[size] / took


def _create_topic(bootstrap: str) -> None:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap, **_QUIET})
    (created,) = admin.create_topics([NewTopic(_TOPIC, num_partitions=6, replication_factor=3)]).values()
    try:
        created.result(30)
    except KafkaException as error:
        if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
            raise RuntimeError(str(error)) from None


def _table(title: str, *headings: str) -> Table:
    from rich.table import Table

    drawn = Table(
        title=title, title_justify="left", caption_justify="left", box=None, pad_edge=False, header_style="dim"
    )
    for heading in headings:
        drawn.add_column(heading, justify="right")
    return drawn


if __name__ == "__main__":
    from harness.cli import main

    sys.exit(main(["bench", *sys.argv[1:]]))
