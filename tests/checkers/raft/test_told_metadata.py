"""What brokers tell clients of the cluster, held against the metadata that they have applied."""

from __future__ import annotations

from typing import Any

import pytest

from checkers.raft.cluster_metadata import cluster_metadata_findings
from tests.checkers import small_evidence

Event = dict[str, Any]
OFFSETS = "__consumer_offsets"


def broker(offset: int, kind: str, number: int) -> Event:
    return small_evidence.event(offset, "c1", f"broker_{kind}", {}, broker=number, broker_epoch=number, offset=offset)


def decided(offset: int, topic: str = "t", partition: int = 0, leader: int = 1) -> Event:
    detail = {"elr": [2], "last_known_elr": [], "replicas": [2, 1], "min_isr": 2, "reason": "created"}
    place = {"topic": topic, "partition": partition, "leader": leader, "leader_epoch": 0, "partition_epoch": 0}
    return small_evidence.event(offset, "c1", "partition_changed", detail, members=[1], offset=offset, **place)


def configured(offset: int, topic: str, topic_id: str) -> Event:
    detail = {"name": topic, "id": topic_id, "config": {}}
    return small_evidence.event(offset, "c1", "topic_configured", detail, topic="", partition=-1, offset=offset)


def applied(end: int) -> Event:
    return small_evidence.event(20, "b1", "metadata_applied", offset=0, log_end=end)


PARTITION = {
    "partition": 0,
    "error": "none",
    "leader": 1,
    "leader_epoch": 0,
    "replicas": [2, 1],
    "isr": [1],
    "offline": [2],
    "elr": [2],
    "last_known_elr": [],
}
TOPIC = ["t", "none", "id-1", [PARTITION]]
UNKNOWN = ["t", "unknown_topic_or_partition", "None", []]


def told(*topics: list[Any], asked: list[str] | None = None, brokers: list[int] | None = None) -> Event:
    detail = {"asked": asked, "topics": list(topics), "brokers": [1] if brokers is None else brokers}
    return small_evidence.event(21, "b1", "metadata_told", detail)


def coordinator(group: str, leader: int, error: str = "none") -> Event:
    return small_evidence.event(21, "b1", "coordinators_told", {"groups": {group: [leader, error]}}, topic="")


def kinds(*events: Event) -> list[str]:
    findings = cluster_metadata_findings(small_evidence.trace(*events), whole=False)
    return [finding.kind for finding in findings]


BORN = [
    broker(1, "registered", 1),
    broker(2, "registered", 2),
    broker(3, "unfenced", 1),
    configured(5, "t", "id-1"),
    decided(5),
]


def test_an_answer_of_what_was_applied_is_right() -> None:
    assert kinds(*BORN, applied(5), told(TOPIC)) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"error": "leader_not_available"},
        {"leader": 2},
        {"leader_epoch": 1},
        {"replicas": [1, 2]},
        {"isr": [1, 2]},
        {"offline": []},
        {"elr": []},
        {"last_known_elr": [2]},
        {"partition": 1},
    ],
)
def test_a_partition_is_told_as_it_was_decided(wrong: dict[str, Any]) -> None:
    assert kinds(*BORN, applied(5), told(["t", "none", "id-1", [PARTITION | wrong]])) == ["metadata-misstated"]


def test_an_answer_without_eligible_leader_replicas_says_nothing_of_them() -> None:
    partition = {name: value for name, value in PARTITION.items() if "elr" not in name}
    assert kinds(*BORN, applied(5), told(["t", "none", "id-1", [partition]])) == []


def test_a_broker_is_held_to_what_it_had_applied_and_not_to_what_others_decided_since() -> None:
    newer = decided(6, leader=-1)
    assert kinds(*BORN, newer, applied(5), told(TOPIC)) == []
    assert kinds(*BORN, newer, applied(6), told(TOPIC)) == ["metadata-misstated"]
    assert kinds(*BORN, applied(4), told(UNKNOWN)) == []


def test_before_its_process_has_applied_anything_a_broker_tells_nothing() -> None:
    started = small_evidence.event(20, "b1", "node_started")
    assert kinds(*BORN, applied(5), started, told()) == ["metadata-told-early"]


def test_a_broker_whose_start_the_trace_lacks_is_held_to_nothing_before_it_has_applied_anything() -> None:
    assert kinds(*BORN, told()) == []


def test_a_topic_exists_with_its_id_or_is_unknown() -> None:
    assert kinds(*BORN, applied(5), told(UNKNOWN)) == ["metadata-misstated"]
    assert kinds(*BORN, applied(5), told(["t", "none", "id-2", [PARTITION]])) == ["metadata-misstated"]
    assert kinds(*BORN, applied(4), told(TOPIC)) == ["metadata-misstated"]


def test_a_topic_that_is_made_anew_has_another_id() -> None:
    deleted = small_evidence.event(6, "c1", "partition_deleted", offset=6)
    anew = [*BORN, deleted, configured(7, "t", "id-2"), decided(7, "t#2")]
    assert kinds(*anew, applied(6), told(UNKNOWN)) == []
    assert kinds(*anew, applied(7), told(["t", "none", "id-2", [PARTITION]])) == []
    assert kinds(*anew, applied(7), told(TOPIC)) == ["metadata-misstated"]


def test_every_topic_that_was_asked_for_is_in_the_answer() -> None:
    assert kinds(*BORN, applied(5), told(asked=[])) == []
    assert kinds(*BORN, applied(5), told(asked=["t"])) == ["metadata-misstated"]
    assert kinds(*BORN, applied(5), told()) == ["metadata-misstated"]
    assert kinds(*BORN, applied(4), told()) == []


@pytest.mark.parametrize("brokers", [[], [1, 2]])
def test_the_unfenced_brokers_are_told(brokers: list[int]) -> None:
    assert kinds(*BORN, applied(5), told(TOPIC, brokers=brokers)) == ["metadata-misstated"]


@pytest.mark.parametrize(
    ("group", "leader", "error", "right"),
    [
        ("group", 1, "none", True),  # "group".hashCode() is 98629247
        ("group", 2, "none", False),
        ("group", -1, "coordinator_not_available", False),
        ("groups", -1, "coordinator_not_available", True),  # -1237460524, without its sign 910023124
        ("groups", 1, "none", False),
    ],
)
def test_a_groups_coordinator_leads_the_partition_of_its_hash(group: str, leader: int, error: str, right: bool) -> None:
    offsets = [decided(6, OFFSETS, 0, leader=-1), decided(6, OFFSETS, 1, leader=1)]
    findings = kinds(*BORN, *offsets, applied(6), coordinator(group, leader, error))
    assert findings == ([] if right else ["metadata-misstated"])


def test_of_an_offsets_topic_that_the_trace_has_in_part_nothing_is_said() -> None:
    assert kinds(*BORN, decided(6, OFFSETS, 1), applied(6), coordinator("group", 1)) == []


def test_without_the_offsets_topic_there_is_no_coordinator() -> None:
    assert kinds(*BORN, applied(5), coordinator("group", -1, "coordinator_not_available")) == []
    assert kinds(*BORN, applied(5), coordinator("group", 1)) == ["metadata-misstated"]
