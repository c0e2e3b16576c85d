"""`faultline bench`: the tables of all measurements."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import TYPE_CHECKING, Final

from harness.exit_codes import NOT_CARRIED_OUT, VALID

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PARTS: Final = ("simulation", "bugs", "checking", "pipeline", "clients", "broker", "disk")
_ROUNDS: Final = 3


def bench(console: Console, *, parts: tuple[str, ...] = PARTS, largest: int = 100_000_000) -> int:
    """Measure `parts` and print their tables; 0 when all could be measured, 3 otherwise."""
    measures: Mapping[str, Callable[[], Table]] = {
        "simulation": simulation,
        "bugs": lambda: bugs(console),
        "checking": lambda: checking(largest),
        "pipeline": lambda: pipeline(console, largest),
        "clients": lambda: clients(console),
        "broker": lambda: broker(console),
        "disk": disk,
    }
    failed = False
    for part in parts:
        try:
            console.print(measures[part]())
        except (ImportError, RuntimeError, OSError) as error:
            failed = True
            console.print(f"{part}: cannot be measured: {error}", style="red")
        console.print()
    return NOT_CARRIED_OUT if failed else VALID


def simulation() -> Table:
    """The default run, by seed: simulated seconds per CPU second, without and with checking."""
    from harness.runner.run import run_in_simulation
    from harness.spec import Spec

    table = _table("simulation: default run", "seed", "simulated", "CPU", "simulated per CPU second", "with checking")
    best = 0.0
    for seed in range(_ROUNDS):
        began = time.process_time()
        outcome = run_in_simulation(Spec(seed=seed))
        whole = time.process_time() - began
        if outcome.failure:
            raise RuntimeError(outcome.failure)
        ratio = outcome.time_s / outcome.cpu_seconds
        best = max(best, ratio)
        table.add_row(
            str(seed),
            f"{outcome.time_s:.1f} s",
            f"{outcome.cpu_seconds:.2f} s",
            f"{ratio:.0f}×",
            f"{outcome.time_s / whole:.0f}×",
        )
    table.caption = f"best {best:.0f}×"
    return table


def clients(console: Console) -> Table:
    """Appends recorded in a second: by the harness alone, and of each library against Kafka in Docker."""
    from harness.bench.clients import LIBRARIES, harness_alone, on_kafka

    table = _table(
        "clients: 100-byte records, 3 partitions, acks=all", "clients", "appends a second", "in a CPU second"
    )
    per_second, per_cpu_second = harness_alone()
    table.add_row("none: the harness alone", f"{per_second:,.0f}", f"{per_cpu_second:,.0f}")
    for library in LIBRARIES:
        console.print(f"{library}: three runs against Kafka in Docker", style="dim")
        try:
            table.add_row(f"{library}, Kafka", f"{on_kafka(library):,.0f}", "")
        except RuntimeError as error:
            table.add_row(f"{library}, Kafka", f"not measured: {error}", "")
    return table


def bugs(console: Console) -> Table:
    """Seeds and CPU seconds until each flaw is first found, over disjoint ranges of seeds."""
    from harness.bench.bugs import RANGES, searches

    table = _table(
        f"time to bug: {RANGES} ranges of seeds",
        "flaw",
        "seeds: median, worst",
        "CPU: median, worst",
        "TLC",
        "TLC / median",
    )
    with console.status("searching") as status:
        for search in searches(status.update):
            missed = f"; {search.missed} ranges without" if search.missed else ""
            table.add_row(
                search.flaw.name,
                f"{median(search.seeds):.0f}, {max(search.seeds)}{missed}",
                f"{search.median_seconds:.1f} s, {max(search.seconds):.1f} s",
                f"{search.flaw.tlc_seconds:.1f} s",
                f"{search.flaw.tlc_seconds / search.median_seconds:.1f}×",
            )
    table.caption = "the full protocol was valid in every run in which a flaw was found"
    return table


def checking(largest: int) -> Table:
    """Histories from a seeded generator, up to `largest` operations, each checked on one core."""
    from harness.bench.checking import SIZES, measure

    table = _table("checking: linearizability of one partition", "operations", "CPU", "operations per second", "memory")
    for measured in measure(size for size in SIZES if size <= largest):
        table.add_row(
            f"{measured.operations:,}",
            f"{measured.cpu_seconds:.2f} s",
            f"{measured.operations_per_second / 1e6:.1f} million",
            f"{measured.history_bytes / 1e9:.2f} GB of history + {measured.working_bytes / 1e9:.2f} GB",
        )
    return table


def pipeline(console: Console, largest: int) -> Table:
    """Stored runs from a seeded generator, up to `largest` operations in all, checked and summarised by Spark."""
    from harness.bench.pipeline import CORES, SIZES, measure
    from results.store.spark import SparkUnavailable

    table = _table(
        f"pipeline: stored runs checked on Spark, {CORES} cores",
        *("operations", "runs", "stored", "time", "CPU", "operations per second", "memory"),
    )
    try:
        with console.status("checking stored runs"):
            for measured in measure(tuple(size for size in SIZES if size <= largest)):
                table.add_row(
                    f"{measured.operations:,}",
                    str(measured.runs),
                    f"{measured.stored_bytes / 1e9:.2f} GB",
                    f"{measured.seconds:.1f} s",
                    f"{measured.cpu_seconds:.1f} s",
                    f"{measured.operations / measured.seconds / 1e6:.2f} million",
                    f"{measured.memory_bytes / 2**30:.2f} GiB",
                )
    except SparkUnavailable as error:
        raise RuntimeError(str(error)) from None
    table.caption = "memory is that of Java and all Python processes together"
    return table


def broker(console: Console) -> Table:
    """Produce throughput and latency of three brokers on loopback, by record size and partitions."""
    from rich.progress import Progress

    from harness.bench.broker import KAFKA_ALONE_MS, ROUNDS, STEPS, LatencyPercentiles, measure, medians

    table = _table(
        f"broker: produce on loopback, three replicas, acks=all, idempotent, linger 5 ms; medians of {ROUNDS} rounds",
        "record",
        "partitions",
        "records/s",
        "Kafka 4.1.1",
        "in 16 KiB batches",
        "CPU of all nodes",
        "at half of Kafka's rate",
        "one at a time",
        "linger 0",
    )
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("starting a cluster", total=STEPS)
        load = os.getloadavg()[0]
        measured = measure(lambda done, what: progress.update(task, completed=done, description=what))

    def shown(latencies: list[LatencyPercentiles]) -> str:
        middle = medians(latencies)
        return f"{middle.p50_ms:.1f}, {middle.p99_ms:.1f} ms"

    for one in measured:
        table.add_row(
            f"{one.setting.record_bytes} bytes",
            str(one.setting.partitions),
            f"{median(one.rates):,.0f}",
            one.setting.kafka,
            f"{median(one.rates_small_batches):,.0f}",
            f"{median(one.broker_us):.2f} µs a record",
            shown(one.paced),
            shown(one.alone),
            shown(one.alone_no_linger),
        )
    others = [share for one in measured for share in one.others_share]
    low, high = KAFKA_ALONE_MS
    table.caption = (
        f"latencies: p50, p99; Kafka's p50 one at a time was {low} to {high} ms\n"
        f"load before: {load:.1f} on {os.cpu_count()} processors, of which others took {min(others):.0%} to "
        f"{max(others):.0%} while throughput was measured"
    )
    return table


def disk() -> Table:
    """Appends through the lossy file system against appends straight to the disk, in pairs, by size."""
    from harness.bench.lossyfs import SIZES, measure

    table = _table("disk: appends without sync", "append", "direct", "lossy", "median of pairs", "undisturbed")
    for measured in map(measure, SIZES):
        table.add_row(
            f"{measured.append_bytes // 1024} KiB",
            f"{median(measured.direct_us):.1f} µs",
            f"{median(measured.lossy_us):.1f} µs",
            f"{measured.ratio:.2f}×",
            f"{measured.undisturbed_ratio:.2f}×",
        )
    return table


def _table(title: str, *headings: str) -> Table:
    from rich.table import Table

    table = Table(
        title=title, title_justify="left", caption_justify="left", box=None, pad_edge=False, header_style="dim"
    )
    for heading in headings:
        table.add_column(heading, justify="right")
    return table
