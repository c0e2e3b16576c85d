"""Clients of other libraries record the same history as the native one, and claim no more than they know.

Each library is played against a real broker process on loopback.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from random import Random
from typing import Any

import pytest

from checkers.clients import positions
from checkers.linearizability import checker as linearizability
from checkers.verdict import Validity
from harness.cluster.loopback import LoopbackCluster
from harness.cluster.systems import SYSTEMS
from harness.errors import EnvironmentUnavailable
from harness.runner.client_processes import programs
from harness.runner.client_processes.driven_clients import DrivenLibrary
from harness.spec import loads
from harness.yaml_document import SpecError
from tests.clients.requirements import missing
from workloads.clients.library import BurstAppendingClient, LibraryError
from workloads.clients.native import AdminClient, Client, Delivery, OffsetOutOfRangeError, Truncation
from workloads.history import Recorder
from workloads.registry import WORKLOADS
from workloads.workload import WorkloadSettings

KILL_AFTER = 10
LIMIT_S = 300.0
"""For a busy machine."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackCluster]:
    directory = tmp_path_factory.mktemp("cluster")
    with LoopbackCluster(directory, brokers=1, controllers=1, settings={"min.insync.replicas": "1"}) as started:
        yield started


@pytest.fixture(scope="module", params=["librdkafka", "java"])
def library(request: pytest.FixtureRequest) -> tuple[str, tuple[str, ...]]:
    """Its name and the command of its process."""
    try:
        return request.param, programs.command(request.param, SYSTEMS["broker"])
    except EnvironmentUnavailable as error:
        missing(str(error))


def settings(cluster: LoopbackCluster, topic: str, **others: Any) -> WorkloadSettings:
    node = cluster.layout.brokers[0]
    return WorkloadSettings(
        bootstrap=((node.host, node.port),), topic=topic, partitions=1, replication_factor=1, **others
    )


def with_library(
    library: tuple[str, tuple[str, ...]],
    settings: WorkloadSettings,
    test: Callable[[DrivenLibrary], Awaitable[None]],
    cluster: LoopbackCluster | None = None,
) -> None:
    """Run a test with the library's process, and with its topic on the cluster."""

    async def main() -> None:
        clients = DrivenLibrary(*library, settings, Random)
        admin = Client(settings.bootstrap, "admin", Random(1))
        try:
            if cluster is not None:
                await AdminClient(admin).create_topic(settings.topic, 1, 1, {}, LIMIT_S)
                await AdminClient(admin).wait_for_leaders(settings.topic, 1, LIMIT_S)
            await clients.start()
            await test(clients)
        finally:
            await admin.close()
            await clients.close()

    asyncio.run(main())


async def append(producer: BurstAppendingClient, value: bytes) -> Delivery:
    """Append one record to partition 0."""
    deliveries: list[tuple[int, Delivery]] = []
    await producer.append(0, [value], deliveries.extend)
    ((_, delivery),) = deliveries
    return delivery


def test_the_history_of_a_library_is_that_of_a_log_across_a_killed_broker(
    cluster: LoopbackCluster, library: tuple[str, tuple[str, ...]]
) -> None:
    wanted = settings(
        cluster, f"{library[0]}-history", rate=40.0, delivery_timeout_ms=300_000, set_up_timeout_ms=300_000
    )

    async def main() -> Recorder:
        loop, acknowledged = asyncio.get_running_loop(), asyncio.Event()
        recorder = Recorder(
            None,
            lambda: round(loop.time() * 1e9),
            lambda _: acknowledged.set() if recorder.count("append", "ok") >= KILL_AFTER else None,
        )
        clients = DrivenLibrary(*library, wanted, Random)
        workload = WORKLOADS["append"](wanted, recorder, Random, clients)

        async def kill() -> None:
            await acknowledged.wait()
            cluster.kill("b1")
            cluster.start("b1")

        try:
            await workload.set_up()
            await asyncio.gather(workload.run(loop.time() + 4), kill())
            assert await workload.final_reads(loop.time() + LIMIT_S)
        finally:
            await workload.close()
        return recorder

    history = asyncio.run(main()).to_table()
    outcomes = Counter((row["kind"], row["phase"], row["outcome"]) for row in history.to_pylist())
    assert outcomes["append", "main", "ok"] >= KILL_AFTER
    assert outcomes["append", "main", "fail"] == 0, "whatever was sent when the broker was killed may be in its log"
    for verdict in (linearizability.check_partition(history), positions.check_partition(history)):
        assert verdict.validity is Validity.VALID, verdict


def test_records_that_share_a_batch_are_answered_each_by_itself(
    cluster: LoopbackCluster, library: tuple[str, tuple[str, ...]]
) -> None:
    patience = {"request_timeout_ms": 30_000, "delivery_timeout_ms": 300_000, "linger_ms": 5, "batch_records": 20}
    wanted = settings(cluster, f"{library[0]}-batches", **patience)
    values = [b"%d" % value for value in range(50)]

    async def test(clients: DrivenLibrary) -> None:
        producer = clients.producer("producer")
        huge = b"9" * 2_000_000
        outcomes: dict[int, Delivery] = {}
        async with asyncio.timeout(LIMIT_S):
            await producer.append(0, [*values[:25], huge, *values[25:]], outcomes.update)
        assert outcomes.pop(25).outcome == "fail"
        assert [outcomes[place].base_offset for place in sorted(outcomes)] == list(range(50))
        consumer = clients.consumer("consumer")
        consumer.assign([(wanted.topic, 0)])
        read: list[bytes | None] = []
        async with asyncio.timeout(LIMIT_S):
            while len(read) < len(values):
                read += [record.value for fetched in await consumer.poll(1.0) for record in fetched.records]
        assert read == values

    with_library(library, wanted, test, cluster)


def test_an_append_that_a_library_gives_up_may_have_happened(
    cluster: LoopbackCluster, library: tuple[str, tuple[str, ...]]
) -> None:
    """The broker is paused and not killed: to a connection that is refused a library may send nothing at all, and then
    it knows that nothing happened."""
    patience = {"request_timeout_ms": 500, "delivery_timeout_ms": 1_000, "metadata_max_age_ms": 600_000}
    wanted = settings(cluster, f"{library[0]}-gives-up", **patience)

    async def test(clients: DrivenLibrary) -> None:
        producer = clients.producer("producer")
        async with asyncio.timeout(LIMIT_S):
            while (await append(producer, b"1")).outcome != "ok":
                pass  # a busy machine may take longer than the delivery timeout
        os.kill(cluster.pids["b1"], signal.SIGSTOP)  # a connection that stays: the record can be sent
        given_up = await append(producer, b"2")
        assert (given_up.outcome, given_up.error) == ("info", "timeout")
        pending = asyncio.create_task(append(producer, b"3"))
        await asyncio.sleep(0)
        await producer.close()
        assert (await pending).outcome == "info"

    try:
        with_library(library, wanted, test, cluster)
    finally:
        os.kill(cluster.pids["b1"], signal.SIGCONT)


def test_a_record_that_the_library_refuses_to_take_certainly_did_not_happen(
    cluster: LoopbackCluster, library: tuple[str, tuple[str, ...]]
) -> None:
    wanted = settings(cluster, f"{library[0]}-refused", request_timeout_ms=30_000, delivery_timeout_ms=300_000)

    async def test(clients: DrivenLibrary) -> None:
        producer = clients.producer("producer")
        refused = await append(producer, b"1" * 2_000_000)
        assert refused.outcome == "fail"
        assert "TOO_LARGE" in str(refused.error)
        assert (await append(producer, b"2")).base_offset == 0

    with_library(library, wanted, test, cluster)


def test_a_consumer_says_that_its_position_was_deleted_and_reads_on_from_the_start_of_the_log(
    cluster: LoopbackCluster, library: tuple[str, tuple[str, ...]]
) -> None:
    wanted = settings(cluster, f"{library[0]}-deleted", request_timeout_ms=30_000, delivery_timeout_ms=300_000)

    async def test(clients: DrivenLibrary) -> None:
        producer = clients.producer("producer")
        for value in range(6):
            await append(producer, b"%d" % value)
        admin = Client(wanted.bootstrap, "deleting", Random(1))
        try:
            await AdminClient(admin).delete_records(wanted.topic, 0, 4, LIMIT_S)
        finally:
            await admin.close()
        asked: list[int] = []
        consumer = clients.consumer("consumer", lambda topic, partition, position: asked.append(position) or 0)
        consumer.assign([(wanted.topic, 0)])
        errors, values = [], []
        async with asyncio.timeout(LIMIT_S):
            while len(values) < 2:
                for fetched in await consumer.poll(1.0):
                    values += [record.value for record in fetched.records]
                    if fetched.error is not None:
                        errors.append(fetched.error)
                        assert await consumer.return_to_log(wanted.topic, 0)
        assert errors == ["OFFSET_OUT_OF_RANGE"]
        assert values == [b"4", b"5"]
        assert (asked[0], asked[-1]) == (0, 4)
        assert (await consumer.end_offset(wanted.topic, 0)).offset == 6

    with_library(library, wanted, test, cluster)


TRUNCATED = """
import json, sys
print("{}", flush=True)
position, truncated = None, False
for line in sys.stdin:
    command = json.loads(line)
    if command["do"] == "assign":
        position = 0
    elif command["do"] == "seek":
        position = command["offset"]
    elif command["do"] == "ends":
        print(json.dumps({"id": command["id"], "beginning": 1, "end": 9}), flush=True)
    elif command["do"] == "poll":
        polled = [{"partition": 0, "offsets": [position], "values": ["7"]}]
        if position == 0:
            polled.append({"partition": 0, "truncated": True, "offset": KNOWN, "epoch": KNOWN})
        print(json.dumps({"id": command["id"], "polled": polled}), flush=True)
    elif command["do"] == "close":
        print(json.dumps({"id": command["id"]}), flush=True)
"""


@pytest.mark.parametrize(
    ("known", "reset", "positions"),
    [(3, "earliest", [0, 1, 3]), (None, "earliest", [0, 1, 1]), (None, "latest", [0, 1, 9]), (3, "none", [0, 1])],
)
def test_after_a_truncation_the_position_moves_by_the_policy_and_the_history_has_it(
    known: int | None, reset: Any, positions: list[int]
) -> None:
    argv = (sys.executable, "-c", TRUNCATED.replace("KNOWN", str(known)))
    wanted = WorkloadSettings(bootstrap=(("127.0.0.1", 1),), auto_offset_reset=reset)
    asked: list[int] = []
    reported: list[Truncation] = []

    async def test(clients: DrivenLibrary) -> None:
        consumer = clients.consumer(
            "consumer",
            lambda topic, partition, position: asked.append(position) or 0,
            lambda topic, partition, truncation: reported.append(truncation),
        )
        consumer.assign([(wanted.topic, 0)])
        first, second = await consumer.poll(1.0)
        assert ([record.offset for record in first.records], second.records) == ([0], ())
        if reset == "none":
            with pytest.raises(OffsetOutOfRangeError):
                await consumer.poll(1.0)
        else:
            await consumer.poll(1.0)

    with_library(("java", argv), wanted, test)
    assert asked == positions
    (truncation,) = reported
    assert truncation.position.offset == 1
    assert (truncation.divergence.offset if truncation.divergence else None) == known


def test_a_process_that_ends_by_itself_is_an_error_with_its_last_line() -> None:
    wanted = WorkloadSettings(bootstrap=(("127.0.0.1", 1),))

    async def test(clients: DrivenLibrary) -> None:
        with pytest.raises(LibraryError, match=r"their process ended with status 1: out of order$"):
            await append(clients.producer("producer"), b"1")

    argv = (sys.executable, "-c", "print('{}', flush=True); input(); raise SystemExit('out of order')")
    with_library(("java", argv), wanted, test)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("environment: sim", "clients.library: java needs real sockets; choose native, or an environment: docker, ssh"),
        ("workload: groups", "workload: clients.library java does not have members of a group; native does"),
        ("recency: strict", "recency: clients.library java does not have polls that prove where the log ends"),
        ("without: [consumer.validate_position]", "without: clients.library java does not have the switch"),
        ("clients: {operations: [poll 0]}", "clients.operations: clients.library java does not have a script"),
        ("clients: {delivery_timeout: 1s}", "clients.delivery_timeout: 1 s is less than linger and request_timeout"),
    ],
)
def test_a_library_is_refused_what_it_does_not_have(text: str, line: str) -> None:
    values = text if text.startswith("clients") else f"{text}\nclients: {{}}"
    spec = values.replace("clients: {", "clients: {library: java, ").replace(", }", "}")
    with pytest.raises(SpecError) as refused:
        loads(spec if "environment" in text else f"environment: docker\n{spec}")
    assert line in str(refused.value)
