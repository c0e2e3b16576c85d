"""Steps of an administrator in a script."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from nemesis.fields import FieldError
from nemesis.nemesis import Injection, Nemesis
from nemesis.ports import DONE
from nemesis.registry import FAMILIES, FAULTS
from nemesis.schedule import parse_script
from results.run.deviations import fault_deviations
from tests.nemesis.fake_cluster import FakeCluster
from tests.workloads.virtual_time import run

SCRIPT = [
    {"at": 1, "fault": "place-replicas", "partition": 0, "nodes": ["b2", "b1"], "id": "placed"},
    {"when": {"healed": "placed"}, "fault": "alter-config", "key": "min.insync.replicas", "value": "1"},
]


def test_an_administrator_asks_for_what_the_script_says_until_it_is_done_and_undoes_nothing() -> None:
    cluster = FakeCluster()
    cluster.answers = ["REQUEST_TIMED_OUT", "INVALID_REPLICA_ASSIGNMENT"]
    records: list[Injection] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        await Nemesis(cluster, parse_script(SCRIPT), Random(1), records.append, "t").run(loop.time() + 20)

    run(scenario())
    assert cluster.calls == ["reassign t-0 b2 b1"] * 3 + ["configure t min.insync.replicas=1"]
    last = {record.number: record for record in records}
    assert last[0].nodes == ("b2", "b1")
    assert all(record.took_effect and "not done" not in record.note for record in last.values())


def test_a_reassignment_is_cancelled_and_a_refusal_may_be_left_at_that() -> None:
    """With `for` a request is repeated no longer than so."""
    cluster = FakeCluster()
    cluster.answers = ["REQUEST_TIMED_OUT", DONE, *["INVALID_REPLICA_ASSIGNMENT"] * 100]
    records: list[Injection] = []
    script = [
        {"at": 1, "fault": "cancel-placement", "id": "first"},
        {"after": "first", "for": 0.4, "fault": "cancel-placement"},
    ]

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        await Nemesis(cluster, parse_script(script), Random(1), records.append, "t").run(loop.time() + 20)

    run(scenario())
    assert cluster.calls == ["reassign t-0 cancel"] * 3
    last = {record.number: record for record in records}
    assert last[0].took_effect
    assert not last[1].took_effect
    assert "not done: INVALID_REPLICA_ASSIGNMENT" in last[1].note
    assert [*fault_deviations("cancel-placement", last[0].detail)] == []
    told = ["cancel-placement failed: INVALID_REPLICA_ASSIGNMENT"]
    assert [*fault_deviations("cancel-placement", last[1].detail)] == told


def test_what_is_refused_to_the_end_is_told() -> None:
    cluster = FakeCluster()
    cluster.answers = ["INVALID_CONFIG"] * 100
    records: list[Injection] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        await Nemesis(cluster, parse_script(SCRIPT[:1]), Random(1), records.append, "t").run(loop.time() + 5)

    run(scenario())
    assert not records[-1].took_effect
    assert "not done: INVALID_CONFIG" in records[-1].note
    assert {record.family for record in records} == {"administrator"}
    assert not {"administrator", "observe"} & FAMILIES.keys()


def test_the_steps_of_an_administrator_read_back_as_they_are_and_no_random_schedule_draws_them() -> None:
    schedule = parse_script(SCRIPT)
    assert parse_script(schedule.to_script()) == schedule
    assert not {"place-replicas", "cancel-placement", "alter-config", "observe"} & FAULTS.keys()
    with pytest.raises(FieldError, match=r"faults\[0\].nodes: missing"):
        parse_script([{"at": 1, "fault": "place-replicas"}])
