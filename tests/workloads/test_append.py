"""The append workload records exactly what happened."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from images.wire.batch import build
from tests.workloads.scripted_cluster import (
    APPEND,
    DROP_AFTER,
    DROP_BEFORE,
    TOPIC,
    ScriptedCluster,
    Step,
    answer,
)
from tests.workloads.virtual_time import run
from workloads.append import AppendWorkload
from workloads.clients.delivery import Delivery
from workloads.history import Recorder, read_jsonl
from workloads.registry import WORKLOADS
from workloads.workload import SetUpError, Workload, WorkloadSettings


def with_workload(
    test: Callable[[ScriptedCluster, Workload], Awaitable[None]], *, exists: bool = True, **settings: Any
) -> list[dict[str, Any]]:
    """The history of a test, row by row."""

    async def main() -> list[dict[str, Any]]:
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        recorder = Recorder(None, lambda: round((loop.time() - begun_s) * 1e9))
        async with ScriptedCluster(brokers=2, partitions=2) as cluster:
            cluster.topic_exists = exists
            workload = WORKLOADS["append"](
                WorkloadSettings(bootstrap=cluster.addresses, topic=TOPIC, partitions=2, **settings),
                recorder,
                lambda name: Random(f"3 {name}"),
            )
            try:
                await test(cluster, workload)
            finally:
                await workload.close()
        rows: list[dict[str, Any]] = recorder.to_table().to_pylist()
        return rows

    return run(main())


async def run_for(workload: Workload, seconds: float) -> None:
    await workload.run(asyncio.get_running_loop().time() + seconds)


async def read_back(workload: Workload, seconds: float = 30.0) -> bool:
    return await workload.final_reads(asyncio.get_running_loop().time() + seconds)


def test_a_run_without_faults_appends_at_its_rate_and_reads_everything_back_twice() -> None:
    logs: list[list[int]] = []

    async def test(cluster: ScriptedCluster, workload: Workload) -> None:
        await run_for(workload, 30)
        assert await read_back(workload)
        logs.extend(log.values() for log in cluster.logs)

    rows = with_workload(test, rate=20.0, producers=3, consumers=2, end_offset_readers=1)
    appends = [row for row in rows if row["kind"] == "append"]
    assert 500 < len(appends) < 700
    assert {row["outcome"] for row in rows} == {"ok"}
    assert sorted(row["value"] for row in appends) == sorted(logs[0] + logs[1]) == list(range(len(appends)))
    assert sorted({row["process"] for row in appends}) == [0, 1, 2]
    for row in appends:
        assert logs[row["partition"]][row["offset"]] == row["value"]
    for process, phase in [(3, "main"), (4, "main"), (6, "final")]:
        for partition in (0, 1):
            polls = [
                row for row in rows if (row["kind"], row["process"], row["partition"]) == ("poll", process, partition)
            ]
            assert {row["phase"] for row in polls} == {phase}
            read = [value for row in polls for value in row["values"]]
            missing = logs[partition][len(read) :]
            assert read + missing == logs[partition]
            assert len(missing) < 5 if phase == "main" else not missing
            assert all(row["offset"] == row["offsets"][0] for row in polls)
    ends = [row for row in rows if row["kind"] == "end_offset"]
    assert 50 <= len([row for row in ends if row["phase"] == "main"]) <= 75
    assert [row["offset"] for row in ends if row["phase"] == "final"] == [len(log) for log in logs]
    assert [row["index"] for row in rows] == sorted(row["index"] for row in rows)
    assert [row["invoked_ns"] for row in rows] == sorted(row["invoked_ns"] for row in rows)


@pytest.mark.parametrize("life_ms", [0, 1_000])
def test_the_first_append_of_a_run_with_rare_bursts_comes_in_the_middle_at_the_latest(life_ms: int) -> None:
    """Seed 5000318 of varied runs of 10 s recorded no operation: its producer drew more than ten seconds, of bursts
    every four."""

    async def test(cluster: ScriptedCluster, workload: Workload) -> None:
        await run_for(workload, 10)

    rows = with_workload(test, rate=0.2, producers=2, burst=20, pipeline=20, producer_life_ms=life_ms)
    appends = [row for row in rows if row["kind"] == "append"]
    assert {round(row["invoked_ns"] / 1e9, 1) for row in appends} == {5.0}
    assert len({row["process"] for row in appends}) == 1
    assert len(appends) == 20


def test_an_append_that_may_have_happened_is_recorded_as_info() -> None:
    logs: list[list[int]] = []

    async def test(cluster: ScriptedCluster, workload: Workload) -> None:
        random = Random(1)
        troubles = [answer(19), answer(7), DROP_AFTER, DROP_BEFORE, answer(20, append=True), Step(delay_s=2.0)]
        cluster.script.extend(random.choice(troubles) if random.random() < 0.5 else APPEND for _ in range(300))
        cluster.fetch_errors.extend([6, 1, 78])
        cluster.list_errors.extend([78, 74])
        await run_for(workload, 20)
        cluster.script.clear()
        assert await read_back(workload)
        logs.extend(log.values() for log in cluster.logs)

    rows = with_workload(test, rate=30.0, delivery_timeout_ms=2_000, request_timeout_ms=1_000)
    outcomes = {row["outcome"] for row in rows if row["kind"] == "append"}
    assert {"ok", "info"} <= outcomes
    for row in rows:
        assert (row["error"] is None) == (row["outcome"] == "ok")
        if row["kind"] == "append":
            in_log = row["value"] in logs[row["partition"]]
            assert in_log or row["outcome"] != "ok"
            assert not in_log or row["outcome"] != "fail"
        else:
            assert row["outcome"] in ("ok", "fail")
    errors = {row["error"] for row in rows if row["kind"] == "poll"}
    assert {"NOT_LEADER_OR_FOLLOWER", "OFFSET_OUT_OF_RANGE", "OFFSET_NOT_AVAILABLE"} <= errors


def test_no_append_is_invoked_after_the_end_and_every_one_completes() -> None:
    async def test(cluster: ScriptedCluster, workload: Workload) -> None:
        cluster.otherwise = Step(append=False, delay_s=1000)
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        await run_for(workload, 5)
        assert loop.time() - begun_s < 5 + 3 + 1.5 + 0.5

    rows = with_workload(test, delivery_timeout_ms=3_000)
    appends = [row for row in rows if row["kind"] == "append"]
    assert all(row["completed_ns"] is not None and row["outcome"] in ("info", "fail") for row in appends)
    assert all(row["invoked_ns"] <= 5e9 for row in appends)


def test_an_unavailable_partition_does_not_stop_appends_to_the_other() -> None:
    async def test(cluster: ScriptedCluster, workload: Workload) -> None:
        cluster.leaders[0] = (9, 5)
        await run_for(workload, 10)

    rows = with_workload(test, rate=20.0)
    ok = [row for row in rows if row["kind"] == "append" and row["outcome"] == "ok"]
    assert len(ok) > 120
    assert {row["partition"] for row in ok} == {1}


def test_final_reads_that_cannot_finish_say_so_in_time() -> None:
    async def test(cluster: ScriptedCluster, workload: Workload) -> None:
        await run_for(workload, 2)
        cluster.leaders[1] = (9, 5)
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        assert not await read_back(workload, 4)
        assert loop.time() - begun_s < 4.5

    with_workload(test)


async def append_finally(workload: Workload, seconds: float = 10.0) -> tuple[str, ...]:
    return await workload.final_appends(asyncio.get_running_loop().time() + seconds)


def test_final_appends_reach_every_partition_and_are_read_back() -> None:
    async def test(cluster: ScriptedCluster, workload: Workload) -> None:
        await run_for(workload, 2)
        assert await read_back(workload)
        assert await append_finally(workload) == ()

    rows = [row for row in with_workload(test, idle_partitions=1, acks=0) if row["phase"] == "final"]
    appended = {row["partition"]: row for row in rows if row["kind"] == "append"}
    assert {partition: row["outcome"] for partition, row in appended.items()} == {0: "ok", 1: "ok"}
    read = [value for row in rows if row["kind"] == "poll" for value in row["values"]]
    assert {row["value"] for row in appended.values()} <= set(read)


@pytest.mark.parametrize(("step", "error"), [(answer(19), "NOT_ENOUGH_REPLICAS"), (answer(56), "KAFKA_STORAGE_ERROR")])
def test_a_partition_that_takes_no_final_append_is_named(step: Step, error: str) -> None:
    async def test(cluster: ScriptedCluster, workload: Workload) -> None:
        await run_for(workload, 2)
        assert await read_back(workload)
        cluster.otherwise = step
        assert await append_finally(workload, 3) == (f"{TOPIC}-0: {error}", f"{TOPIC}-1: {error}")

    with_workload(test)


def test_a_record_that_settings_forbid_is_no_refusal() -> None:
    async def test(cluster: ScriptedCluster, workload: Workload) -> None:
        await run_for(workload, 2)
        assert await read_back(workload)
        cluster.otherwise = answer(10)
        assert await append_finally(workload, 3) == ()

    rows = with_workload(test)
    assert {row["error"] for row in rows if row["kind"] == "append" and row["phase"] == "final"} == {
        "MESSAGE_TOO_LARGE"
    }


def test_final_reads_return_what_arrives_while_another_partition_returns_to_its_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values: list[int] = []

    async def test(cluster: ScriptedCluster, workload: Workload) -> None:
        await run_for(workload, 5)
        values.extend(cluster.logs[0].values())
        cluster.logs[1].start = cluster.logs[1].end  # retention has deleted all of it
        fetch, list_offsets = cluster._fetch, cluster._list_offsets

        async def later(broker: int, request: Any) -> Any:
            await asyncio.sleep(0.05 if broker == cluster.leaders[0][0] else 0.0)
            return await fetch(broker, request)

        async def slowly(broker: int, request: Any) -> Any:
            await asyncio.sleep(0.1)
            return await list_offsets(broker, request)

        monkeypatch.setattr(cluster, "_fetch", later)
        monkeypatch.setattr(cluster, "_list_offsets", slowly)
        assert await read_back(workload)

    rows = with_workload(test, consumers=0)
    finally_read = [value for row in rows if row["phase"] == "final" for value in row["values"] or ()]
    assert values
    assert sorted(finally_read) == sorted(values)


def test_empty_polls_are_recorded_with_the_setting_for_it() -> None:
    async def test(cluster: ScriptedCluster, workload: Workload) -> None:
        await run_for(workload, 5)

    empty = [row for row in with_workload(test, record_empty_polls=True, rate=0.5) if row["offsets"] == []]
    assert len(empty) > 10
    assert not [row for row in with_workload(test, rate=0.5) if row["offsets"] == []]


def test_no_producer_keeps_its_connections_beyond_its_life() -> None:
    still_open: list[int] = []

    async def test(cluster: ScriptedCluster, workload: Workload) -> None:
        await run_for(workload, 10)
        assert isinstance(workload, AppendWorkload)
        clients = workload._clients
        still_open.extend(sum(not each.closed for each in client._connections.values()) for client in clients)

    with_workload(test, producer_life_ms=500, rate=20, consumers=0, end_offset_readers=0)
    assert len(still_open) > 20
    assert sum(map(bool, still_open)) <= 2, "those of the producers that live at the end"


def test_a_record_that_was_not_written_here_is_recorded_as_such() -> None:
    async def test(cluster: ScriptedCluster, workload: Workload) -> None:
        cluster.logs[0].append(build([b"17", b"seventeen", b""], timestamp_ms=0), 0)
        assert await read_back(workload)

    polls = [row for row in with_workload(test) if row["kind"] == "poll"]
    assert [row["values"] for row in polls] == [[17, None, None]]


def test_the_same_streams_give_the_same_history() -> None:
    async def test(cluster: ScriptedCluster, workload: Workload) -> None:
        cluster.script.extend([APPEND] * 20 + [answer(7), DROP_AFTER] * 5)
        await run_for(workload, 5)
        await read_back(workload)

    assert with_workload(test) == with_workload(test)


def test_set_up_creates_the_topic_after_retries() -> None:
    async def test(cluster: ScriptedCluster, workload: Workload) -> None:
        cluster.create_script.extend([answer(41), answer(38), answer(7), DROP_BEFORE, DROP_AFTER])
        await workload.set_up()
        assert cluster.topic_exists

    assert with_workload(test, exists=False) == []


def test_set_up_refuses_a_topic_that_exists_and_one_that_cannot_be_created() -> None:
    async def there_before(cluster: ScriptedCluster, workload: Workload) -> None:
        with pytest.raises(SetUpError, match="create topic t: TOPIC_ALREADY_EXISTS"):
            await workload.set_up()

    async def impossible(cluster: ScriptedCluster, workload: Workload) -> None:
        cluster.create_script.append(answer(37))
        with pytest.raises(SetUpError, match="INVALID_PARTITIONS"):
            await workload.set_up()

    async def never(cluster: ScriptedCluster, workload: Workload) -> None:
        cluster.create_script.extend([answer(38)] * 1000)
        with pytest.raises(SetUpError, match=r"not done in 2\.0 s; the last answer: INVALID_REPLICATION_FACTOR"):
            await workload.set_up()

    with_workload(there_before)
    with_workload(impossible, exists=False)
    with_workload(never, exists=False, set_up_timeout_ms=2_000)


@pytest.mark.parametrize(
    ("field", "value"), [("acks", 2), ("rate", 0), ("partitions", 0), ("max_in_flight", 6), ("consumers", -1)]
)
def test_a_setting_out_of_range_is_refused_by_name(field: str, value: int) -> None:
    with pytest.raises(ValueError, match=field):
        WorkloadSettings(bootstrap=(("b1", 9092),), **{field: value})


class AcknowledgingLibrary:
    """A library whose producers fail the first record of a burst and acknowledge the others, and remember the history
    as it was when they were given it."""

    def __init__(self, path: Path) -> None:
        self.invoked: list[list[int]] = []
        """The values of appends without completion, at each burst."""
        self.bursts: list[list[bytes]] = []
        self._path = path

    def producer(self, name: str) -> AcknowledgingLibrary:
        return self

    async def append(
        self, partition: int, values: Sequence[bytes], on_delivery: Callable[[Sequence[tuple[int, Delivery]]], None]
    ) -> None:
        rows = read_jsonl(self._path).to_pylist()
        self.invoked.append([row["value"] for row in rows if row["completed_ns"] is None])
        self.bursts.append([*values])
        await asyncio.sleep(0.01)
        on_delivery([(place, Delivery("ok", place)) for place in range(1, len(values))])
        await asyncio.sleep(0.01)
        on_delivery([(0, Delivery("info", error="timeout"))])

    async def close(self) -> None:
        pass


def test_a_burst_of_a_library_is_in_the_history_before_the_library_has_it(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    library = AcknowledgingLibrary(path)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        settings = WorkloadSettings(
            bootstrap=(("127.0.0.1", 1),),
            producers=1,
            consumers=0,
            end_offset_readers=0,
            partitions=1,
            rate=100.0,
            burst=4,
            pipeline=6,
            record_bytes=3,
        )
        recorder = Recorder(path, lambda: round(loop.time() * 1e9))
        workload = WORKLOADS["append"](settings, recorder, Random, library)  # type: ignore[arg-type]
        await workload.run(loop.time() + 1)
        assert recorder.open_appends == 0

    run(main())
    assert library.bursts[0] == [b"000", b"001", b"002", b"003"]
    assert len(library.bursts) > 3
    for burst, invoked in zip(library.bursts, library.invoked, strict=True):
        assert [int(value) for value in burst] == invoked[-len(burst) :]
        assert len(invoked) <= 6
    history = read_jsonl(path).to_pylist()
    outcomes = {row["value"]: (row["outcome"], row["offset"], row["error"]) for row in history}
    for burst in library.bursts:
        first, *others = (outcomes[int(value)] for value in burst)
        assert first == ("info", None, "timeout")
        assert others == [("ok", place, None) for place in range(1, len(burst))]
