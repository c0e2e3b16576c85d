"""A broker registers, shuts down in control, and stops without loss when it cannot write."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Awaitable, Callable
from errno import EIO, ENOSPC
from pathlib import Path
from typing import Any

import pytest
from kio.schema.broker_heartbeat.v1.request import BrokerHeartbeatRequest
from kio.schema.broker_registration.v3.request import BrokerRegistrationRequest
from kio.schema.fetch.v16.request import FetchRequest
from kio.schema.metadata.v12.request import MetadataRequest

from images.broker.apis.produce_fetch import ProduceFetchApis
from images.broker.broker_node import BrokerNode, Superseded
from images.broker.controller.channel import ControllerChannel
from images.broker.replication.replica_manager import HIGH_WATERMARKS, ReplicaManager
from images.broker.runtime.fatal_error import FatalError
from images.broker.runtime.files import RealFile
from images.broker.runtime.shutdown_mark import (
    CLEAN_SHUTDOWN,
    ShutdownMark,
    leave_clean_shutdown,
    take_clean_shutdown,
)
from images.broker.runtime.trace_file import TraceFile
from images.trace import TraceEvent
from images.wire.connection import Connection, ConnectionLost
from tests.broker.small_cluster import FULL, Cluster


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(120):
            await scenario()

    asyncio.run(limited())


async def failure_of(life: asyncio.Task[None]) -> BaseException:
    """The exception that ends the broker, out of its groups."""
    await asyncio.wait((life,))
    error = life.exception()
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    assert error is not None
    return error


def test_in_a_cluster_of_one_broker_that_crashed_every_partition_is_led_and_topics_are_created(tmp_path: Path) -> None:
    """KafkaJS creates no topic while any partition of the cluster has no leader."""

    async def scenario() -> None:
        cluster = Cluster(tmp_path)
        async with cluster.controlled():
            async with cluster.broker():
                await cluster.create_topic()
                first = await cluster.produce(b"before the crash")
            async with cluster.broker():
                await cluster.create_topic("later")
                second = await cluster.produce(b"after the crash")
                request = MetadataRequest(topics=None, include_topic_authorized_operations=False)
                topics = (await cluster.call(request)).topics
                assert [[p.leader_id for p in topic.partitions] for topic in topics] == [[1], [1]]
        assert (first.base_offset, second.base_offset) == (0, 1)
        assert cluster.told("registered")[-1].detail["clean"] is False

    run(scenario)


def test_a_broker_starts_over_once_its_node_id_is_registered_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that ended has registered late: without a new life the broker that lives would be gone for good. It
    waits for the session of the other, leaves no file of its earlier life open, and serves what it has."""
    call = ControllerChannel.call
    silent = asyncio.Event()

    async def until_silent(self: ControllerChannel, request: Any, extra_timeout_s: float = 0.0) -> Any:
        if silent.is_set() and isinstance(request, BrokerHeartbeatRequest):
            await asyncio.sleep(3600)
        return await call(self, request, extra_timeout_s)

    monkeypatch.setattr(ControllerChannel, "call", until_silent)
    abandon, superseded = ReplicaManager.abandon, asyncio.Event()

    def abandoned(self: ReplicaManager) -> None:
        abandon(self)
        superseded.set()

    monkeypatch.setattr(ReplicaManager, "abandon", abandoned)

    def open_files() -> list[Path]:
        links = (Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd"))
        return sorted(link.readlink() for link in links if link.is_symlink() and tmp_path in link.readlink().parents)

    async def scenario() -> None:
        cluster = Cluster(tmp_path)
        async with cluster.controlled(), cluster.broker() as (life, stopping):
            await cluster.create_topic()
            await cluster.produce(b"first")
            before = open_files()
            silent.set()
            while True:
                try:
                    await cluster.register_silent(1)
                    break
                except AssertionError:
                    await asyncio.sleep(0.05)
            await superseded.wait()
            silent.clear()
            assert (await cluster.produce(b"second")).base_offset == 1
            assert len(cluster.told("registered")) == 2
            assert open_files() == before
            stopping.set()
            await life
        (line,) = (line for line in cluster.lines if line.startswith("starts over: "))
        assert line.startswith("starts over: broker 1 is registered anew, with broker epoch ")

    run(scenario)


def test_a_superseded_broker_that_is_to_stop_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has not registered again, so it leaves no claim to have shut down cleanly."""
    check = BrokerNode._check_registration

    def superseded(self: BrokerNode) -> None:
        check(self)
        if stopping.is_set():
            raise Superseded("broker 1 is registered anew")

    monkeypatch.setattr(BrokerNode, "_check_registration", superseded)
    stopping = asyncio.Event()

    async def scenario() -> None:
        nonlocal stopping
        cluster = Cluster(tmp_path)
        async with cluster.controlled(), cluster.broker() as (life, stopping):
            await cluster.create_topic()
            stopping.set()
            await life
        assert not cluster.files.exists(CLEAN_SHUTDOWN)
        assert cluster.lines[-1] == "stopped before the controller had registered this broker"

    run(scenario)


def test_a_broker_listens_only_once_it_has_read_the_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, it would answer that there are no topics."""
    call, read = ControllerChannel.call, asyncio.Event()

    async def no_metadata_yet(self: ControllerChannel, request: Any, extra_timeout_s: float = 0.0) -> Any:
        if isinstance(request, FetchRequest):
            await read.wait()
        return await call(self, request, extra_timeout_s)

    async def scenario() -> None:
        cluster = Cluster(tmp_path)
        async with cluster.controlled():
            async with cluster.broker():
                await cluster.create_topic()
            monkeypatch.setattr(ControllerChannel, "call", no_metadata_yet)
            async with cluster.broker():
                while len(cluster.told("registered")) < 2:
                    with pytest.raises(ConnectionLost):
                        await Connection.open("127.0.0.1", cluster.ports[1], "test", 5.0)
                    await asyncio.sleep(0.01)
                with pytest.raises(ConnectionLost):
                    await Connection.open("127.0.0.1", cluster.ports[1], "test", 5.0)
                read.set()
                request = MetadataRequest(topics=None, include_topic_authorized_operations=False)
                assert [topic.name for topic in (await cluster.call(request)).topics] == ["t"]

    run(scenario)


# --- leaving ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epoch", [-1, 17])
def test_a_broker_that_is_not_registered_yet_can_be_stopped_and_its_last_end_counts(tmp_path: Path, epoch: int) -> None:
    async def scenario() -> None:
        cluster = Cluster(tmp_path)
        if epoch >= 0:
            leave_clean_shutdown(cluster.files, ShutdownMark(epoch))
        async with cluster.broker() as (life, stopping):
            while not cluster.lines:  # noqa: ASYNC110  (no event announces a line)
                await asyncio.sleep(0.01)
            assert not cluster.files.exists(CLEAN_SHUTDOWN), "a crash now must not pass for a clean end"
            stopping.set()
            async with asyncio.timeout(60):
                await life
        assert take_clean_shutdown(cluster.files).broker_epoch == epoch

    run(scenario)


@pytest.mark.parametrize("unheard", [1, 2])
def test_a_process_gets_the_broker_epoch_of_which_the_one_before_never_heard_and_the_next_one_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unheard: int
) -> None:
    """It would be registered as not cleanly shut down, and leave the ELR with all that it holds."""
    call, granted = ControllerChannel.call, []

    async def without_answer(self: ControllerChannel, request: Any, extra_timeout_s: float = 0.0) -> Any:
        answer = await call(self, request, extra_timeout_s)
        if isinstance(request, BrokerRegistrationRequest):
            granted.append((request.incarnation_id, answer.broker_epoch))
            if 1 < len(granted) <= 1 + unheard:
                await asyncio.sleep(3600)
        return answer

    monkeypatch.setattr(ControllerChannel, "call", without_answer)

    async def scenario() -> None:
        cluster = Cluster(tmp_path)
        async with cluster.controlled():
            for life in range(3 + unheard):
                async with cluster.broker() as (ended, stopping):
                    while len(granted) <= life:  # noqa: ASYNC110  (no event announces an answer)
                        await asyncio.sleep(0.01)
                    if not 0 < life <= unheard:
                        await cluster.create_topic()
                    stopping.set()
                    await ended
        first, *same, last = granted
        assert len({first, last, *same}) == 3, "one registration for all that had no answer and the one that had"
        assert [event.broker_epoch for event in cluster.told("registered")] == [first[1], same[0][1], last[1]]
        assert all(event.detail["clean"] for event in cluster.told("registered")[1:])

    run(scenario)


def test_a_stopped_broker_has_a_clean_shutdown(tmp_path: Path) -> None:
    async def scenario() -> None:
        cluster = Cluster(tmp_path)
        async with cluster.controlled():
            for _ in range(2):
                async with cluster.broker() as (life, stopping):
                    await cluster.create_topic()
                    await cluster.produce(b"a")
                    stopping.set()
                    await life
        assert [event.detail["clean"] for event in cluster.told("registered")] == [False, True]
        assert [event.detail["handover"] for event in cluster.told("clean_shutdown")] == ["let_go"] * 2
        assert cluster.told("log_recovered")[-1].log_end == 1

    run(scenario)


def test_a_broker_gives_up_the_claim_of_a_shutdown_that_was_not_the_last_one(tmp_path: Path) -> None:
    """Refused again and again, it would never be registered. What it has is served as after a crash."""

    async def scenario() -> None:
        cluster = Cluster(tmp_path)
        async with cluster.controlled():
            async with cluster.broker() as (life, stopping):
                await cluster.create_topic()
                await cluster.produce(b"a")
                stopping.set()
                await life
            leave_clean_shutdown(cluster.files, ShutdownMark(0))
            async with cluster.broker() as (life, stopping):
                assert (await cluster.produce(b"b")).base_offset == 1
        assert [event.detail["clean"] for event in cluster.told("registered")] == [False, False]
        assert "not registered yet: stale_broker_epoch" in cluster.lines

    run(scenario)


@pytest.mark.parametrize("rule_on", [True, False])
def test_a_broker_that_cannot_sync_its_log_claims_a_clean_shutdown_exactly_without_the_rule(
    tmp_path: Path, rule_on: bool
) -> None:
    async def scenario() -> None:
        cluster = Cluster(tmp_path)
        cluster.rules_off = "" if rule_on else "clean_claim_after_flush"
        async with cluster.controlled():
            async with cluster.broker() as (life, stopping):
                await cluster.create_topic()
                await cluster.produce(b"a")
                cluster.files.unsyncable, cluster.files.sync_errno = ".log", ENOSPC
                stopping.set()
                await asyncio.wait((life,))
                failure = await failure_of(life) if rule_on else life.exception()
                assert (failure is not None) is rule_on
                if isinstance(failure, OSError):
                    assert failure.errno == ENOSPC, "a stop that a full disk interrupts says so"
            assert cluster.files.exists(CLEAN_SHUTDOWN) is not rule_on
            cluster.files.unsyncable = "nothing"
            async with cluster.broker():
                await cluster.produce(b"b")
        assert [event.detail["clean"] for event in cluster.told("registered")] == [False, not rule_on]

    run(scenario)


def test_a_broker_does_not_wait_for_a_silent_controller_longer_than_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = ControllerChannel.call

    async def silent(self: ControllerChannel, request: Any, extra_timeout_s: float = 0.0) -> Any:
        if getattr(request, "want_shut_down", False):
            await asyncio.sleep(3600)
        return await call(self, request, extra_timeout_s)

    monkeypatch.setattr(ControllerChannel, "call", silent)

    async def scenario() -> None:
        cluster = Cluster(tmp_path)
        async with cluster.controlled(), cluster.broker() as (life, stopping):
            await cluster.create_topic()
            stopping.set()
            async with asyncio.timeout(60):
                await life
        assert "leaving without having handed everything over" in cluster.lines[-2]
        assert [event.detail["handover"] for event in cluster.told("clean_shutdown")] == ["timed_out"]
        assert cluster.files.exists(CLEAN_SHUTDOWN)

    run(scenario)


# --- failing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["t-0", HIGH_WATERMARKS])
def test_a_full_disk_ends_the_broker_with_one_error_and_loses_nothing_acknowledged(tmp_path: Path, where: str) -> None:
    async def scenario() -> None:
        cluster = Cluster(tmp_path)
        async with cluster.controlled():
            async with cluster.broker() as (life, _):
                await cluster.create_topic()
                assert (await cluster.produce(b"a")).base_offset == 0
                lines_before = len(cluster.lines)
                cluster.files.full_for = where
                if where == "t-0":
                    with pytest.raises(ConnectionLost):
                        await cluster.produce(b"b")
                assert await failure_of(life) is FULL
                assert cluster.lines[lines_before:] == []
                assert not cluster.files.exists(CLEAN_SHUTDOWN)
            cluster.files.full_for = "nothing"
            async with cluster.broker():
                assert (await cluster.produce(b"b")).base_offset == 1

    run(scenario)


def test_a_full_disk_at_recovery_ends_the_broker_and_costs_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        cluster = Cluster(tmp_path)
        async with cluster.controlled():
            async with cluster.broker():
                await cluster.create_topic()
                for _ in range(3):
                    await cluster.produce(bytes(900))
            cluster.files.full_for = ".snapshot"
            async with cluster.broker() as (life, _):
                assert await failure_of(life) is FULL
            cluster.files.full_for = "nothing"
            async with cluster.broker():
                assert (await cluster.produce(b"b")).base_offset == 3

    run(scenario)


def test_a_bug_in_answering_ends_the_broker_rather_than_one_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(self: ProduceFetchApis, request: Any) -> Any:
        raise LookupError("out of reason")

    monkeypatch.setattr(ProduceFetchApis, "produce", broken)

    async def scenario() -> None:
        cluster = Cluster(tmp_path)
        async with cluster.controlled(), cluster.broker() as (life, _):
            await cluster.create_topic()
            with pytest.raises(ConnectionLost):
                await cluster.produce(b"a")
            assert isinstance(await failure_of(life), LookupError)

    run(scenario)


def test_an_error_that_follows_while_the_node_ends_is_not_reported() -> None:
    """One write for each partition fails when the disk is full; the log then ends with the line about the first."""
    reports: list[dict[str, Any]] = []

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, report: reports.append(report))
        fatal_error = FatalError()
        waiting = asyncio.create_task(fatal_error.wait())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait((waiting,))
        fatal_error.set(OSError(ENOSPC, "No space left on device"))
        del fatal_error
        gc.collect()

    run(scenario)
    assert reports == []


def test_a_node_with_a_fatal_error_answers_nobody_and_handles_no_request() -> None:
    """Between a sync that failed and the end of the process there is time for what was queued."""
    handled: list[str] = []

    async def scenario() -> None:
        fatal_error = FatalError()
        released = asyncio.Event()

        async def handler(request: Any) -> str:
            handled.append(request)
            await released.wait()
            return "answered"

        guarded: Any = fatal_error.guard(handler)
        requests = [asyncio.ensure_future(guarded("before"))]
        await asyncio.sleep(0)
        fatal_error.set(OSError(EIO, "a sync failed"))
        released.set()
        requests.append(asyncio.ensure_future(guarded("after")))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not any(request.done() for request in requests)
        for request in requests:
            request.cancel()

    run(scenario)
    assert handled == ["before"]


def test_a_fatal_disk_error_names_its_file() -> None:
    with pytest.raises(OSError, match=r"No space left on device: '/dev/full'"):
        RealFile(Path("/dev/full")).append(b"a")


def test_a_trace_that_cannot_be_written_names_its_file() -> None:
    with TraceFile(Path("/dev/full")) as trace, pytest.raises(OSError, match=r"No space left on device: '/dev/full'"):
        trace.append(TraceEvent("node_started"))
