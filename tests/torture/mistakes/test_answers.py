"""Mistakes in what brokers answer to clients, each played by a running cluster: a checker finds it in the answer,
whether or not it did any harm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12.response import MetadataResponsePartition

from images.broker.apis import cluster, topics
from images.broker.broker_node import BrokerNode
from images.broker.groups import shard
from images.broker.groups.records import OffsetAndMetadata
from images.broker.metadata.image import ClusterImage, PartitionImage
from images.broker.replication import become_leader_or_follower
from images.broker.replication.partition import Limits, Partition, PartitionStep
from images.broker.replication.replica import Replica
from images.wire.field_values import NO_EPOCH
from tests.simulation.applied_mistake import replace_in
from tests.torture.mistakes.mistake import Fault, Patch, PlayedMistake


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
    right = shard.encode_offset

    def encode(group: str, topic: str, partition: int, value: OffsetAndMetadata | None) -> tuple[bytes, bytes | None]:
        return right(group, topic, partition, value and value._replace(**lost))

    patch.setattr(shard, "encode_offset", encode)


def _no_committed_epoch(patch: Patch) -> None:
    """The record of a committed offset has no leader epoch."""
    _records_without(patch, leader_epoch=-1)


def _no_committed_text(patch: Patch) -> None:
    """The record of a committed offset has no text."""
    _records_without(patch, metadata="")


def _reads_of_before(patch: Patch) -> None:
    """A leader that is elected again counts its reads anew, and what its followers have confirmed of those before."""
    right = become_leader_or_follower._lead

    def lead(before: Partition, updated: Partition, now_ms: int, limits: Limits) -> PartitionStep:
        step = right(before, updated, now_ms, limits)
        leadership, earlier = step.partition.leader_state, before.leadership
        if earlier is None:
            return step
        followers = tuple(earlier.follower(each.id) or each for each in leadership.followers)
        counted = leadership._replace(read_index=0, followers=followers)
        return step._replace(partition=step.partition._replace(leadership=counted))

    patch.setattr(become_leader_or_follower, "_lead", lead)


def _serves_unready(patch: Patch) -> None:
    """A broker serves clients once it is registered."""
    right = BrokerNode._register

    async def register(self: BrokerNode) -> None:
        await right(self)
        self._metadata_applied.set()

    patch.setattr(BrokerNode, "_register", register)


def _asked_in_any_epoch(patch: Patch) -> None:
    """Who asks for an offset may know another leader epoch."""
    right = Replica.check_leader

    def check_leader(self: Replica, api: str, leader_epoch: int) -> ErrorCode:
        return right(self, api, leader_epoch if api == "fetch" else NO_EPOCH)

    patch.setattr(Replica, "check_leader", check_leader)


def _epoch_errors_exchanged(patch: Patch) -> None:
    """A request of an earlier leader epoch is refused as of one that is not known yet, and the other way round."""
    older, newer = "requested < partition.leader_epoch", "requested > partition.leader_epoch"
    replace_in(patch, "images.broker.replication.leader:check_epoch", older, newer)


_RESPONSE = "images.broker.apis.produce_fetch:_fetch_response"


def _refused_once(patch: Patch) -> None:
    """A session tells of an error or a divergence once, and then leaves the partition out as one with nothing new."""
    replace_in(patch, _RESPONSE, "context.incremental and empty", "context.incremental and not result.records")


def _new_for_other_ends_alone(patch: Patch) -> None:
    """A session leaves out a partition whose log starts elsewhere, as long as its high watermark is the same."""
    replace_in(
        patch, _RESPONSE, "result.high_watermark, result.log_start, records", "result.high_watermark, 0, records"
    )


def _refused_as_nothing_new(patch: Patch) -> None:
    """An error is answered as if the partition had nothing new."""
    replace_in(patch, _RESPONSE, "error_code=result.error", "error_code=NO_ERROR")


def _below_an_offset_alone(patch: Patch) -> None:
    """DeleteRecords has to name an offset."""
    function = "images.broker.replication.log_start:delete_records"
    replace_in(patch, function, "bound if offset == TO_HIGH_WATERMARK else offset", by="offset")


KILLS = {"faults": ["kill"], "seed": 3}
GROUPS = KILLS | {"workload": "groups"}
ALL_RESTART: Fault = {"at": "3s", "for": "1s", "fault": "kill", "nodes": ["brokers"]}
SLOW: Fault = {"at": "3.5s", "for": "6s", "fault": "packets", "nodes": ["controllers"], "against": ["brokers"]}
MOVED: Fault = {"at": "2s", "for": "7s", "fault": "move-leadership", "moves": 6, "patience_ms": 1000}
LATE: Fault = {"at": "2s", "for": "7s", "fault": "packets", "channel": "metadata", "nodes": ["b1"], "delay_ms": 400}
"""Clients hear from others that b1 leads again before b1 has heard that it had been deposed."""
ALL_COMMITTED: Fault = {"at": 3, "for": 3, "fault": "delete-records", "stalled": True}
DELETIONS: Sequence[Fault] = [{"at": at, "fault": "delete-records"} for at in (3, 5, 7)]
TAKEN_AWAY: Fault = {"at": "3s", "for": "3s", "fault": "reassign"}
"""The leader epoch rises, and the leader stays."""

MISTAKES = (
    PlayedMistake("metadata-misstated", _isr_of_all_replicas, world=KILLS, said="isr"),
    PlayedMistake("metadata-misstated", _nobody_offline, world=KILLS, said="offline"),
    PlayedMistake("metadata-told-early", _serves_unready, [ALL_RESTART, SLOW | {"delay_ms": 200}]),
    PlayedMistake("query-of-another-epoch", _asked_in_any_epoch, [MOVED, LATE], {"seed": 2, "consumers": 3}),
    PlayedMistake("refusal-untold", _refused_once, [MOVED, LATE], {"seed": 2, "consumers": 3}, said="nothing is new"),
    PlayedMistake("refusal-untold", _refused_as_nothing_new, [MOVED, LATE], {"seed": 2, "consumers": 3}),
    PlayedMistake("log-start-untold", _new_for_other_ends_alone, DELETIONS, {"rate": 5}),
    PlayedMistake("deletion-refused-wrongly", _below_an_offset_alone, [ALL_COMMITTED]),
    PlayedMistake("request-refused-otherwise", _epoch_errors_exchanged, [MOVED, LATE], {"seed": 2, "consumers": 3}),
    PlayedMistake(
        "latest-unconfirmed", _reads_of_before, [TAKEN_AWAY], {"seed": 2}, said="of which no fetch had confirmed"
    ),
    PlayedMistake("committed-otherwise", _no_committed_epoch, world=GROUPS),
    PlayedMistake("committed-otherwise", _no_committed_text, world=GROUPS),
)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_wrong_answer_is_found_where_it_is_given(mistake: PlayedMistake, monkeypatch: Patch) -> None:
    mistake.check_found(monkeypatch)
