"""Readiness: the words for what is missing in a broker's metadata."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from harness.cluster.readiness import Expected, missing_of_topic


@dataclass(frozen=True)
class _Partition:
    replica_nodes: tuple[int, ...] = (1, 2, 3)
    isr_nodes: tuple[int, ...] = (1, 2, 3)
    leader_id: int = 1
    partition_index: int = 0


@dataclass(frozen=True)
class _Topic:
    partitions: tuple[_Partition, ...]
    name: str = "t"
    error_code: int = 0


@pytest.mark.parametrize(
    ("partition", "missing"),
    [
        (_Partition(), []),
        (_Partition(leader_id=-1), ["no leader of t-0"]),
        (_Partition(isr_nodes=(3, 1)), ["t-0 with ISR {1, 3} of 3 replicas"]),
        (
            _Partition(replica_nodes=(1, 2, 3, 4)),
            ["t-0 with replicas {1, 2, 3, 4}, so that its reassignment is not complete"],
        ),
        (_Partition(replica_nodes=(1, 2), isr_nodes=(1, 2)), ["t-0 with ISR {1, 2} of 3 replicas"]),
    ],
    ids=["whole", "no leader", "out of sync", "reassigned still", "a replica less"],
)
def test_what_keeps_a_partition_from_being_whole_is_told(partition: _Partition, missing: list[str]) -> None:
    assert missing_of_topic([_Topic((partition,))], Expected("t", 1, 3)) == missing


def test_missing_partitions_and_topics_are_told() -> None:
    assert missing_of_topic([_Topic((_Partition(),))], Expected("t", 2, 3)) == ["1 of 2 partitions of t"]
    assert missing_of_topic([], Expected("t", 1, 3)) == ["no topic t"]
