"""Rules of recorded values, beyond those that `tests/damage` breaks in recorded runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from checkers.evidence import CheckSettings, EvidencePart, RunEvidence
from images import trace
from results.run.recorded_values import Misrecorded, conform, settings_of, validated
from tests.checkers import small_evidence
from tests.checkers.small_histories import append, poll
from workloads.history import SCHEMA as HISTORY


def history(**changes: Any) -> RunEvidence:
    """An append and a poll, with other values in the row of the append."""
    rows = small_evidence.history([append(7, 1, 2, 0), poll(0, 3, 4, 7)]).to_pylist()
    return RunEvidence(history=pa.Table.from_pylist([rows[0] | changes, rows[1]], HISTORY))


def reasons(evidence: RunEvidence) -> list[str]:
    return [gap.reason for gap in validated(evidence).gaps]


def test_the_table_of_trace_events_lists_every_kind_there_is() -> None:
    lines = (trace.__doc__ or "").split("\n------------------------  ")[1].split("\n\n")[0].splitlines()[1:]
    assert {line.split()[0] for line in lines if not line.startswith(" ")} == trace.KINDS


def test_sound_evidence_has_no_gap_and_stays_as_it_is() -> None:
    assert validated(history()) == history()


@pytest.mark.parametrize(
    ("topic", "partition", "reasons_expected"),
    [
        ("side", 0, []),
        ("side#2", 0, []),
        ("__consumer_offsets", 4, []),
        ("side#2", 3, []),
        ("side#2", -1, ["partition -1 is none of the 0 of side#2"]),
        ("sides", 0, ["topic 'sides' is not the run's, t"]),
    ],
)
def test_a_trace_has_the_topic_of_the_run_the_systems_own_and_those_that_faults_create(
    topic: str, partition: int, reasons_expected: list[str]
) -> None:
    event = small_evidence.event(1, "b1", "resigned", topic=topic, partition=partition)
    settings = CheckSettings(topic="t", partitions=2, side_topics=("side",))
    assert reasons(RunEvidence(trace=small_evidence.trace(event), settings=settings)) == reasons_expected


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"index": -1}, "index -1 is negative"),
        ({"index": 9}, "operation 9 was invoked before the one before it"),
        ({"completed_ns": 0}, "operation 0 completed before it was invoked"),
        ({"completed_ns": None}, "operation 0 has an outcome, and no completion"),
        ({"kind": "end_offset", "completed_ns": None}, "operation 0 is a read without a completion"),
        ({"phase": "warm-up"}, "phase 'warm-up' is unknown"),
        ({"outcome": "maybe"}, "outcome 'maybe' is unknown"),
        ({"value": None}, "append 0 has no value"),
        ({"offsets": [1], "values": [1]}, "operation 0 returned records"),
        ({"offsets": [1], "values": []}, "operation 0 has not as many values as offsets"),
        ({"partition": -1}, "partition -1 is none"),
        ({"invoked_ns": -4}, "operation 0 was invoked before the run began"),
    ],
)
def test_a_history_that_no_recorder_writes_is_left_out(changes: dict[str, Any], reason: str) -> None:
    evidence = validated(history(**changes))
    assert [gap.part for gap in evidence.gaps] == [EvidencePart.HISTORY]
    assert evidence.gaps[0].reason.startswith(reason)
    assert evidence.history.num_rows == 0


def test_an_append_acknowledged_without_an_offset_is_for_a_checker_to_find() -> None:
    assert reasons(history(offset=None)) == []


def test_a_run_that_was_read_to_its_end_covers_what_it_had_recorded_by_then() -> None:
    run = replace(history(), recovery={"final_reads": True, "recorded": {"history": 3}})
    assert reasons(run)[0] == "2 rows are left of at least 3"
    assert reasons(replace(run, recovery={"recorded": {"history": 3}})) == []


@pytest.mark.parametrize(
    ("recovery", "reason"),
    [
        ({"seconds": 1 << 70}, f"seconds is {1 << 70}, no time of a run"),
        ({"healing_seconds": -1e30}, "healing_seconds is -1e+30, no time of a run"),
        ({"limit_seconds": float("nan")}, "limit_seconds is nan, no time of a run"),
        ({"unhealed": [3]}, "unhealed is [3], which is no list of texts"),
        ({"vanished": {"x": 1}}, "vanished is {'x': 1}, which is not its type"),
        ({"vanished": [{"node": "b1"}]}, "the vanished machine {'node': 'b1'} lacks node, time_ns"),
        ({"requests": [{"change": "create"}]}, "the administrator's request {'change': 'create'} lacks change, topic"),
        ({"crashes": [{"node": "b1", "time_ns": 1 << 70, "error": ""}]}, "a time of the crash {'node': 'b1', "),
    ],
)
def test_a_recovery_that_no_recorder_writes_is_left_out(recovery: dict[str, Any], reason: str) -> None:
    evidence = validated(replace(history(), recovery=recovery))
    assert [gap.part for gap in evidence.gaps] == [EvidencePart.RECOVERY]
    assert evidence.gaps[0].reason.startswith(reason)


def test_topic_partitions_and_nodes_are_those_of_the_settings() -> None:
    settings = CheckSettings(topic="t", partitions=1, controllers=1)
    assert reasons(replace(history(), settings=settings)) == []
    assert reasons(replace(history(partition=1), settings=settings)) == ["partition 1 is none of the 1 of t"]
    event = small_evidence.event(1, "b4", "resigned")
    run = RunEvidence(trace=small_evidence.trace(event), settings=settings)
    assert reasons(run) == ["node 'b4' is not of the cluster"]


@pytest.mark.parametrize("text", ["{", "7", "[7]", "[[0]]", "[[0, -1]]", '[[0, "1"]]', f"[[0, {1 << 63}]]", "[" * 9000])
def test_an_epoch_checkpoint_that_no_recorder_writes_is_left_out(text: str) -> None:
    replicas, ends = small_evidence.logs(b1=[(0, 7)])
    for sound in ("", "[]", "damaged", "[[0, 0], [3, 1]]"):
        assert reasons(RunEvidence(replicas=replicas, replica_ends=small_evidence.checkpointed(ends, b1=sound))) == []
    wrong = RunEvidence(replicas=replicas, replica_ends=small_evidence.checkpointed(ends, b1=text))
    assert reasons(wrong) == ["the epoch checkpoint of t-0 on b1 is no list of epochs and offsets"]


@pytest.mark.parametrize(
    "changes",
    [
        {"acks": "all"},
        {"acks": True},
        {"brokers": 0},
        {"groups": 1},
        {"recency": "lax"},
        {"time_limit_ns": 1 << 70},
        {"script_topics": "spare"},
        {"script_topics": [7]},
    ],
)
def test_settings_of_another_type_or_value_are_refused(changes: dict[str, Any]) -> None:
    good = CheckSettings().to_json()
    assert settings_of(good) == CheckSettings()
    assert settings_of(good | {"script_topics": ["spare"]}) == CheckSettings(script_topics=("spare",))
    with pytest.raises(Misrecorded, match=next(iter(changes))):
        settings_of(good | changes)


def test_a_table_conforms_when_its_columns_hold_the_same_values_in_another_type() -> None:
    table = history().history
    wide = table.cast(
        pa.schema([field.with_type(pa.int64()) if field.name == "process" else field for field in HISTORY])
    )
    assert conform(wide, HISTORY).equals(table)
    overflowing = wide.set_column(1, "process", pa.array([1 << 40, 1]))
    with pytest.raises(Misrecorded, match="process"):
        conform(overflowing, HISTORY)
    with pytest.raises(Misrecorded, match="is trace, not history"):
        conform(table.replace_schema_metadata({"faultline.table": "trace"}), HISTORY)
