"""The metadata log of a controller process: acknowledged changes are on disk, and every reader sees the same."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from images.broker.controller_node import ControllerNode
from images.broker.metadata.image import ClusterImage, RegisterBroker
from images.broker.ports import NodePorts
from images.broker.raft.log import DIRECTORY, KafkaMetadataLog, decode_records
from images.broker.raft.node import RaftNode
from images.broker.rules import Rules
from images.broker.runtime.fatal_error import FatalError
from images.broker.runtime.files import RealFiles
from images.trace import TraceEvent
from images.wire.batch import iterate
from images.wire.connection import ConnectionLost
from tests.broker.controller.running_controller import CONFIG, Node, run, running

# ---- the metadata partition ------------------------------------------------------------------------------------------


def test_a_fetch_waits_for_the_next_change_and_is_answered_as_it_commits(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as node:
            reader = await node.connect()
            waiting = asyncio.ensure_future(node.fetch(1, wait_s=300.0, client=reader))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            await node.register(1)
            answer = await asyncio.wait_for(waiting, 60.0)
            assert answer.high_watermark == 2
            ((header, batch),) = iterate(answer.records)
            assert (header.base_offset, [type(record) for record in decode_records(batch)]) == (1, [RegisterBroker])
            reader.close()

    run(scenario)


def test_a_fetch_with_nothing_new_is_answered_empty_when_its_wait_is_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as node:
            await node.register(1)
            loop = asyncio.get_running_loop()
            began = loop.time()
            answer = await node.fetch(2, wait_s=0.1)
            assert 0.09 < loop.time() - began < 2.0
            assert (answer.error_code, answer.records or b"", answer.high_watermark) == (ErrorCode.none, b"", 2)
            assert (await node.fetch(0, wait_s=0.05, min_bytes=1 << 20)).records, "too little is better than nothing"

    run(scenario)


@pytest.mark.parametrize(
    ("offset", "of", "error"),
    [
        (9, {}, ErrorCode.offset_out_of_range),
        (-1, {}, ErrorCode.offset_out_of_range),
        (0, {"topic_id": uuid.UUID(int=2)}, ErrorCode.unknown_topic_id),
        (0, {"partition": 1}, ErrorCode.unknown_topic_or_partition),
    ],
)
def test_a_fetch_that_cannot_be_served_is_refused_at_once(
    tmp_path: Path, offset: int, of: dict[str, Any], error: ErrorCode
) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as node:
            answer = await asyncio.wait_for(node.fetch(offset, wait_s=300.0, **of), 60.0)
            assert answer.error_code is error

    run(scenario)


def test_a_small_limit_gives_the_log_batch_by_batch(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as node:
            for broker in (1, 2, 3):
                await node.register(broker)
            offsets = []
            for offset in range(3):
                answer = await node.fetch(offset, max_bytes=1)
                offsets.append([header.base_offset for header, _ in iterate(answer.records)])
            assert offsets == [[0], [1], [2]]

    run(scenario)


# ---- the log ---------------------------------------------------------------------------------------------------------


def test_a_change_is_there_whole_or_not_at_all_wherever_its_write_was_torn(tmp_path: Path) -> None:
    async def write() -> tuple[ClusterImage, ClusterImage, int]:
        async with running(tmp_path / "whole") as node:
            await node.start_broker(1)
            await node.start_broker(2)
            for name in ("a", "b", "c"):
                await node.create_topic(name, 1, 2)
            before = await node.image()
            written = sum(len(batch) for _, batch in iterate((await node.fetch(0)).records))
            await node.beat(1, before.brokers[1].epoch, want_fence=True)
            return before, await node.image(), written

    before, after, written = asyncio.run(write())
    assert after.offset - before.offset == 4, "three partitions and a broker change together"
    content = next((tmp_path / "whole" / DIRECTORY).glob("*.log")).read_bytes()
    found = []
    for size in [*range(written, len(content), 37), len(content) - 1, len(content)]:
        torn = tmp_path / f"torn-{size}"
        (torn / DIRECTORY).mkdir(parents=True)
        (torn / DIRECTORY / f"{0:020}.log").write_bytes(content[:size])
        node_ports = NodePorts(RealFiles(torn), Random(1), [].append, [].append)
        log = KafkaMetadataLog(node_ports, 1 << 20, Rules())
        found.append(log.image(log.end))
        log.close()
    assert found[:-1] == [before] * (len(found) - 1)
    assert found[-1] == after


def test_a_controller_knows_at_its_start_that_what_its_latest_snapshot_stands_for_is_committed(tmp_path: Path) -> None:
    """Also where its log goes on from the older one."""

    async def scenario() -> None:
        node_ports = NodePorts(RealFiles(tmp_path), Random(1), [].append, [].append)
        log = KafkaMetadataLog(node_ports, 1 << 20, Rules(), 1)
        for broker in range(6):
            log.append(log.encode_batch([RegisterBroker(broker, "a", "h", 9092)], 1, 0))
            if log.end in (2, 4):
                log.snapshot_and_trim(log.end)
        log.close()
        again = KafkaMetadataLog(node_ports, 1 << 20, Rules(), 1)
        raft = RaftNode(CONFIG, node_ports, again, FatalError(), lambda: None)
        assert (again.start, again.end) == (2, 6)
        assert (raft.state.high_watermark, raft.high_watermark_at_election) == (4, 4)

    run(scenario)


def test_an_answer_is_given_only_when_the_change_is_synced_and_a_failed_sync_ends_the_node(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = Node(tmp_path)
        running = asyncio.ensure_future(node.controller.run(node.stopping))
        await node.serving.wait()
        node.connection = await node.connect()
        await node.register(1)
        reader = await node.connect()
        waiting = asyncio.ensure_future(node.fetch(2, wait_s=300.0, client=reader))
        node.files.broken = True
        with pytest.raises(ConnectionLost):
            await node.register(2)
        with pytest.raises(OSError, match="the disk has failed"):
            await running
        with pytest.raises(ConnectionLost):
            await waiting
        assert [event.broker for event in node.trace if event.kind == "broker_registered"] == [1]

    run(scenario)


def test_a_controller_that_cannot_write_its_trace_ends_too(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = Node(tmp_path)

        def trace(event: TraceEvent) -> None:
            if event.kind == "broker_registered":
                raise OSError(28, "No space left on device")

        node.controller = ControllerNode(CONFIG, replace(node.node_ports, trace=trace))
        running = asyncio.ensure_future(node.controller.run(node.stopping))
        await node.serving.wait()
        node.connection = await node.connect()
        with pytest.raises(ConnectionLost):
            await node.register(1)
        with pytest.raises(OSError, match="No space left"):
            await running

    run(scenario)


def test_a_controller_told_to_stop_closes_its_log_cleanly(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = Node(tmp_path)
        running = asyncio.ensure_future(node.controller.run(node.stopping))
        await node.serving.wait()
        node.stopping.set()
        await running
        assert (tmp_path / DIRECTORY / "clean-shutdown").exists()

    run(scenario)


def test_nothing_is_decided_or_shown_while_a_change_is_being_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, begun, free = RaftNode.append, asyncio.Event(), asyncio.Event()

    async def slow(self: RaftNode, *given: Any) -> None:
        begun.set()
        await free.wait()
        await append(self, *given)

    monkeypatch.setattr(RaftNode, "append", slow)

    async def scenario() -> None:
        async with running(tmp_path) as node:
            clients = [await node.connect() for _ in range(4)]
            rivals = [
                asyncio.ensure_future(node.register(1, incarnation, client=client))
                for incarnation, client in enumerate(clients)
            ]
            await begun.wait()
            assert (await node.fetch(0)).high_watermark == 1
            free.set()
            answers = [await rival for rival in rivals]
            assert {answer.error_code for answer in answers} == {ErrorCode.none}, "none of them has a session yet"
            assert [answer.broker_epoch for answer in answers] == [1, 2, 3, 4]
            assert (await node.fetch(0)).high_watermark == 5
            for client in clients:
                client.close()

    run(scenario)
