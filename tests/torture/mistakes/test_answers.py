"""Mistakes in what brokers answer to clients, each played by a running cluster: a checker finds it in the answer,
whether or not it did any harm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from kio.schema.metadata.v12.response import MetadataResponsePartition

from harness.runner.run import run_in_simulation
from harness.spec import Spec, parse
from images.broker.apis import cluster, topics
from images.broker.groups import shard
from images.broker.groups.records import OffsetAndMetadata
from images.broker.metadata.image import ClusterImage, PartitionImage

Patch = pytest.MonkeyPatch


def _isr_of_all_replicas(patch: Patch) -> None:
    """Metadata tells the replicas as ISR."""
    right = cluster._partition

    def told(image: ClusterImage, partition: PartitionImage) -> MetadataResponsePartition:
        return replace(right(image, partition), isr_nodes=partition.replicas)

    patch.setattr(cluster, "_partition", told)


def _nobody_offline(patch: Patch) -> None:
    """Replicas on fenced brokers are not told as offline."""
    for module in (cluster, topics):
        patch.setattr(module, "offline_replicas", lambda image, partition: ())


def _records_without(patch: Patch, **lost: int | str) -> None:
    """The record of a committed offset has not all that was committed."""
    right = shard.encode_offset

    def encode(group: str, topic: str, partition: int, value: OffsetAndMetadata | None) -> tuple[bytes, bytes | None]:
        return right(group, topic, partition, value and value._replace(**lost))

    patch.setattr(shard, "encode_offset", encode)


MISTAKES: dict[str, tuple[str, str, Callable[[Patch], None]]] = {
    "the ISR is all replicas": ("append", "raft: metadata-misstated", _isr_of_all_replicas),
    "nobody is offline": ("append", "raft: metadata-misstated", _nobody_offline),
    "no committed epoch": ("groups", "groups: committed-otherwise", partial(_records_without, leader_epoch=-1)),
    "no committed text": ("groups", "groups: committed-otherwise", partial(_records_without, metadata="")),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_answer_is_found_where_it_is_given(mistake: str, monkeypatch: Patch) -> None:
    workload, found, make = MISTAKES[mistake]
    spec = parse({"workload": workload, "faults": ["kill"], "seed": 3, "time_limit": "10s"})
    sound = _findings(spec)
    make(monkeypatch)
    assert _findings(spec) - sound == {found}


def _findings(spec: Spec) -> set[str]:
    return {f"{each.checker}: {finding.kind}" for each in run_in_simulation(spec).verdicts for finding in each.findings}
