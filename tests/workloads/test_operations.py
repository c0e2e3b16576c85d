"""Scripted operations: their texts, and the client that carries them out in a running cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import faultline
from checkers.verdict import Validity
from harness.runner.run import run_in_simulation
from harness.spec import Spec, loads, parse
from harness.yaml_document import SpecError
from images.wire.batch import Compression, iterate
from workloads.operations import OperationError, operation_text, parse_operation

TEXTS = (
    "produce 10 to 0",
    "produce 10 to 0 by second",
    "poll 1",
    "poll 1 until 7",
    "seek 0 to 3",
    "seek 0 to 3 in epoch 2",
    "seek 0 back 5s",
    "seek 0 back 500ms",
    "commit 0",
    "resume 1",
    "create topic spare",
    "create topic spare with 3 partitions",
    "delete topic spare",
)


@pytest.mark.parametrize("text", TEXTS)
def test_an_operation_reads_back_as_its_text(text: str) -> None:
    assert operation_text(parse_operation(text, 2)) == text


@pytest.mark.parametrize(
    "text",
    [
        "produce 1",
        "produce ten to 0",
        "poll 2",
        "commit",
        "",
        7,
        "seek 0 to 99999999999",
        "seek 0 back 5",
        "seek 0 back 9999999999s",
        "seek 2 back 5s",
        "create topic",
        "create topic Spare",
        "create topic spare with 0 partitions",
        "create topic spare with 101 partitions",
        "delete topic",
    ],
)
def test_a_text_that_is_no_operation_is_refused(text: object) -> None:
    with pytest.raises(OperationError):
        parse_operation(text, 2)


def spec(faults: Any = "none", **clients: Any) -> Spec:
    return parse(
        {"seed": 3, "time_limit": 12, "faults": faults, "clients": {"producers": 0, "consumers": 0, **clients}}
    )


def test_a_script_appends_reads_commits_and_resumes(tmp_path: Any) -> None:
    operations = [
        "produce 10 to 0",
        "poll 0 until 10",
        "commit 0",
        "produce 3 to 0",
        "seek 0 to 0",
        "resume 0",
        "poll 0",
    ]
    outcome = run_in_simulation(spec(operations=operations), tmp_path)
    assert outcome.directory is not None
    history = faultline.history(outcome.directory)
    script = history[history["phase"] == "main"]
    assert list(script[script["kind"] == "append"]["offset"]) == list(range(13))
    assert outcome.validity is Validity.VALID, outcome.verdicts
    commits = script[script["kind"] == "commit"]
    assert set(commits["offset"]) == {10}
    assert list(commits["outcome"])[-1] == "ok"
    assert list(script[script["kind"] == "assign"]["offset"]) == [10]
    assert script[script["kind"] == "poll"].iloc[-1]["offset"] == 10


def test_records_of_a_batch_follow_each_other(tmp_path: Any) -> None:
    outcome = run_in_simulation(spec(batch=4, linger="5ms", operations=["produce 10 to 0"]), tmp_path)
    assert outcome.directory is not None
    appends = faultline.history(outcome.directory).query("kind == 'append'")
    assert list(appends["offset"]) == list(range(10))
    assert (appends["completed_ns"] // 1_000_000).nunique() == 3  # three answers, each within a millisecond


@pytest.mark.parametrize("compression", Compression)
def test_records_are_stored_as_their_producer_compressed_them_and_read_back(
    tmp_path: Path, compression: Compression
) -> None:
    clients = {"batch": 10, "compression": compression.name.lower()}
    outcome = run_in_simulation(spec(**clients, operations=["produce 10 to 0", "poll 0 until 10"]), tmp_path)
    assert outcome.directory is not None
    assert outcome.validity is Validity.VALID
    (log,) = outcome.directory.glob("nodes/b1/data/faultline-0/*.log")
    assert [header.attributes for header, _ in iterate(log.read_bytes())] == [compression]
    (appended,) = faultline.history(outcome.directory).query("kind == 'poll' and phase == 'main'")["values"]
    assert list(appended) == list(range(10))


def test_a_named_producer_is_a_process_of_its_own(tmp_path: Any) -> None:
    outcome = run_in_simulation(spec(operations=["produce 2 to 0", "produce 2 to 0 by second"]), tmp_path)
    assert outcome.directory is not None
    appends = faultline.history(outcome.directory).query("kind == 'append'")
    assert list(appends["offset"]) == [0, 1, 2, 3]
    first, _, second, _ = appends["process"]
    assert list(appends["process"]) == [first, first, second, second]
    assert first != second


def test_a_seek_back_in_time_goes_to_the_first_record_that_is_not_older_or_to_the_end(tmp_path: Any) -> None:
    operations = [
        "produce 3 to 0",
        {"do": "produce 2 to 0", "at": 5},
        "seek 0 back 2s",
        "poll 0",
        {"do": "seek 0 back 1s", "at": 9},
        "commit 0",
    ]
    outcome = run_in_simulation(spec(operations=operations), tmp_path)
    assert outcome.directory is not None
    assert outcome.validity is Validity.VALID, outcome.verdicts
    script = faultline.history(outcome.directory).query("phase == 'main'")
    assert list(script[script["kind"] == "poll"]["offset"]) == [3]
    assert set(script[script["kind"] == "commit"]["offset"]) == {5}


def test_a_poll_that_cannot_go_on_without_a_reset_is_not_performed_until_a_seek(tmp_path: Any) -> None:
    operations = ["produce 3 to 0", "seek 0 to 50", "poll 0", "poll 0 until 60", "seek 0 to 0", "poll 0 until 3"]
    outcome = run_in_simulation(spec(operations=operations, auto_offset_reset="none"), tmp_path)
    assert outcome.validity is Validity.VALID, (outcome.failure, outcome.verdicts)
    reason = "was not performed: the log does not have the position: faultline-0 at 50"
    assert outcome.deviations == (
        f"poll 0 (clients.operations[2]) {reason}",
        f"poll 0 until 60 (clients.operations[3]) {reason}",
    )
    polls = faultline.history(outcome.directory).query("kind == 'poll' and phase == 'main'")
    assert list(polls["offsets"].iloc[-1]) == [0, 1, 2]


def test_a_topic_is_created_and_deleted_while_its_brokers_and_controllers_fail(tmp_path: Any) -> None:
    operations = [
        "create topic kept with 2 partitions",
        {"do": "create topic gone", "at": 2},
        {"do": "delete topic gone", "at": 4},
        "delete topic gone",
        "create topic again",
        {"do": "delete topic again", "at": 8},
        "create topic again",
    ]
    script = [
        {"at": 1, "for": 5, "fault": "kill", "nodes": ["b3"]},
        {"at": 1.5, "for": 2, "fault": "kill", "nodes": ["controller"]},
    ]
    outcome = run_in_simulation(spec(faults=script, operations=operations), tmp_path)
    assert outcome.directory is not None
    assert outcome.validity is Validity.VALID, outcome.verdicts
    for broker in ("b1", "b2", "b3"):
        data = outcome.directory / "nodes" / broker / "data"
        replicas = {path.name for path in data.iterdir() if not path.name.startswith(("__", "faultline"))}
        assert replicas >= {"kept-0", "kept-1", "again-0"}
        assert "gone-0" not in replicas
    reasons = [
        operation["reason"] for operation in json.loads((outcome.directory / "script.json").read_text())["operations"]
    ]
    assert "UNKNOWN_TOPIC_OR_PARTITION" in reasons.pop(3)
    assert not any(reasons)


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ({"library": "guess"}, "clients.library: 'guess' is not one of native"),
        ({"in_flight": 6}, "in_flight: 6 is not between 1 and 5"),
        ({"operations": ["dance"]}, r"clients.operations\[0\]: 'dance' is not an operation"),
        ({"operations": [{"do": "commit 0", "when": {"elected": "b9"}}]}, r"operations\[0\].when.elected: 'b9'"),
        ({"operations": ["delete topic faultline"]}, r"operations\[0\]: faultline is the topic of the run"),
        ({"operations": [{"do": "commit 0", "on": 3}]}, r"operations\[0\].on: unknown field"),
        ({"batches": 3}, "clients.batches: unknown field"),
    ],
)
def test_clients_that_make_no_sense_are_refused_with_their_field(clients: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        spec(**clients)


def test_a_spec_with_a_script_reads_back_as_itself() -> None:
    whole = spec(operations=["produce 1 to 0", {"do": "commit 0", "when": {"acknowledged": 1}, "id": "c"}], batch=2)
    assert loads(whole.to_yaml()) == whole


def test_a_field_given_twice_is_refused() -> None:
    with pytest.raises(SpecError, match=r"clients.producers: is given a second time"):
        parse({"producers": 2, "clients": {"producers": 3}})
