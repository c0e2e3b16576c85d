"""Clients that come and go, partitions that lie idle, bursts that fill batches: in running clusters."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkers.evidence import RunEvidence
from checkers.verdict import Validity
from harness.runner.run import run_in_simulation
from harness.spec import parse
from harness.yaml_document import SpecError
from results.run.directory import RunDirectory
from workloads.clients.batching import BatchingProducer
from workloads.lifetimes import WrittenPartitions


def recorded(store: Path, **fields: Any) -> RunEvidence:
    """A short run without faults, which must be valid, and what it recorded."""
    outcome = run_in_simulation(
        parse({"time_limit": 8, "faults": "none", "seed": 3, "controllers": 1, **fields}), store
    )
    assert not outcome.failure
    assert {verdict.checker: verdict.validity for verdict in outcome.verdicts} == {
        verdict.checker: Validity.VALID for verdict in outcome.verdicts
    }
    assert outcome.directory is not None
    return RunDirectory.open(outcome.directory).load()


def operations(evidence: RunEvidence, kind: str) -> list[dict[str, Any]]:
    return [row for row in evidence.history.to_pylist() if row["kind"] == kind and row["phase"] == "main"]


def test_producers_and_consumers_begin_and_end_in_the_middle_of_a_run(tmp_path: Path) -> None:
    clients = {"producers": 2, "consumers": 2, "producer_life": 1, "consumer_life": 1, "consumer_rest": 0.5, "rate": 60}
    evidence = recorded(tmp_path, time_limit=5, clients=clients)
    appends = operations(evidence, "append")
    producers = {row["process"] for row in appends}
    assert len(producers) > 5
    assert len(appends) == pytest.approx(60 * 5, rel=0.2), "the rate stays"
    assert {row["error"] for row in appends if row["outcome"] != "ok"} <= {"closed"}
    first_poll = {row["process"]: row["offset"] for row in reversed(operations(evidence, "poll"))}
    assert len(first_poll) > 4
    assert set(first_poll.values()) == {0}, "every consumer begins at the start"
    assert not producers & set(first_poll)


def test_a_producer_that_dies_leaves_its_open_appends_with_the_outcome_that_is_known(tmp_path: Path) -> None:
    clients = {"producers": 3, "rate": 400, "producer_life": 0.3, "batch": 5, "linger": 0.05, "pipeline": 20}
    evidence = recorded(tmp_path, time_limit=3, clients=clients)
    closed = Counter(row["outcome"] for row in operations(evidence, "append") if row["error"] == "closed")
    assert closed["fail"] > 0, "of a batch that was never sent"
    assert closed["info"] > 0, "of a batch that was under way"


def test_members_of_a_group_live_as_long_as_the_spec_says(tmp_path: Path) -> None:
    members = []
    for life in (1, 60):
        clients = {"consumer_life": life, "consumer_rest": 0.2, "session_timeout": 1.5, "rate": 5}
        evidence = recorded(tmp_path, workload="groups", time_limit=8, clients=clients)
        members.append(len({row["process"] for row in operations(evidence, "assign")}))
    assert members[0] > members[1] + 3


def test_idle_partitions_are_not_written_to_before_the_end_and_others_in_one_stretch(tmp_path: Path) -> None:
    clients = {"idle_partitions": 1, "written_share": 0.25, "rate": 80}
    evidence = recorded(tmp_path, partitions=4, clients=clients)
    times_s: dict[int, list[float]] = {}
    for row in operations(evidence, "append"):
        times_s.setdefault(row["partition"], []).append(row["invoked_ns"] / 1e9)
    assert set(times_s) == {0, 1, 2}
    written = [(row["phase"], row["partition"]) for row in evidence.history.to_pylist() if row["kind"] == "append"]
    assert ("main", 3) not in written
    assert ("final", 3) in written
    assert max(times_s[0]) - min(times_s[0]) > 7
    assert all(max(times_s[number]) - min(times_s[number]) <= 0.25 * 8 for number in (1, 2))
    assert {row["partition"] for row in evidence.replica_ends.to_pylist()} == {0, 1, 2, 3}


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_bursts_fill_batches(tmp_path: Path, compression: str) -> None:
    clients = {"burst": 50, "batch": 50, "pipeline": 100, "compression": compression, "rate": 60}
    evidence = recorded(tmp_path, clients=clients)
    records = Counter((row["node"], row["partition"], row["batch_base"]) for row in evidence.replicas.to_pylist())
    assert max(records.values()) == 50
    assert len(operations(evidence, "append")) == pytest.approx(60 * 8, rel=0.4), "the rate stays"


def test_a_spec_leaves_at_least_one_partition_to_write_to() -> None:
    with pytest.raises(SpecError, match=r"clients\.idle_partitions: 2 leaves none of 2 partitions"):
        parse({"clients": {"idle_partitions": 2}})
    with pytest.raises(SpecError, match=r"clients\.producer_life: 0.01 s is neither 0 nor at least 0.1 s"):
        parse({"clients": {"producer_life": 0.01}})
    with pytest.raises(SpecError, match=r"clients\.consumer_rest: 0.1 s is less than 0.2 s"):
        parse({"clients": {"consumer_rest": 0.1}})


@given(
    seed=st.integers(0, 1000),
    partitions=st.integers(1, 6),
    idle=st.integers(0, 5),
    share=st.floats(0, 1),
    part=st.floats(0, 1, exclude_max=True),
)
def test_some_partition_is_always_written_to_and_none_that_is_idle(
    seed: int, partitions: int, idle: int, share: float, part: float
) -> None:
    idle = min(idle, partitions - 1)
    written = WrittenPartitions.drawn(Random(seed), partitions, idle, share, 10.0, 70.0)
    now = written.at(10.0 + part * 60.0)
    assert now[0] == 0
    assert set(now) <= set(range(partitions - idle))
    assert all(10.0 <= from_s and until_s <= 70.0 + 1e-9 for from_s, until_s in written.stretches[1:]) or share == 1


def test_a_batch_that_was_never_sent_fails_when_its_producer_closes() -> None:
    class NeverSending:
        def append(self, partition: int, values: object) -> asyncio.Future[Any]:
            raise AssertionError("a batch was sent")

        async def close(self) -> None:
            """Nothing is open."""

    async def scenario() -> None:
        producer = BatchingProducer(NeverSending(), 10, 60.0)  # type: ignore[arg-type]
        appends = [asyncio.create_task(producer.append(0, b"1")) for _ in range(3)]
        await asyncio.sleep(0)
        await producer.close()
        deliveries = [await append for append in appends]
        assert {(each.outcome, each.error, each.base_offset) for each in deliveries} == {("fail", "closed", None)}

    asyncio.run(scenario())
