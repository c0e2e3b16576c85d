"""Mistakes in what brokers answer to clients, each played by a running cluster: a checker finds it in the answer,
whether or not it did any harm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from kio.schema.metadata.v12.response import MetadataResponsePartition

from harness.runner.run import run_in_simulation
from harness.spec import Spec, parse
from images.broker.apis import cluster, topics
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


MISTAKES: dict[str, Callable[[Patch], None]] = {
    "raft: metadata-misstated, ISR": _isr_of_all_replicas,
    "raft: metadata-misstated, offline": _nobody_offline,
}


@pytest.mark.parametrize("found", MISTAKES)
def test_a_wrong_answer_is_found_where_it_is_given(found: str, monkeypatch: Patch) -> None:
    spec = parse({"faults": ["kill"], "seed": 3, "time_limit": "10s"})
    sound = _findings(spec)
    MISTAKES[found](monkeypatch)
    assert _findings(spec) - sound == {found.partition(",")[0]}


def _findings(spec: Spec) -> set[str]:
    return {f"{each.checker}: {finding.kind}" for each in run_in_simulation(spec).verdicts for finding in each.findings}
