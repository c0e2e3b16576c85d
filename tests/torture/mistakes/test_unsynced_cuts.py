"""A broker that appends behind a cut of its log which is not on disk: the check of the log finds it at once, and a
power loss in the right moment makes it a loss of committed records (docs/hunt.md, "Bugs that it found")."""

from __future__ import annotations

import pytest

from images.broker.log.log import Log
from tests.torture.mistakes.mistake import Fault, Patch, PlayedMistake


def _appended_behind_unsynced_cuts(patch: Patch) -> None:
    """A log goes on behind a cut, in the same segment or another one, without having synced it."""
    patch.setattr(Log, "_sync_cut", lambda _: None)


CUT_OFF: Fault = {"at": 2, "for": 4, "fault": "partition", "nodes": ["b1"]}

THERE_AND_BACK: list[Fault] = [
    {
        "at": 0,
        "for": 4,
        "fault": "packets",
        "nodes": ["brokers"],
        "against": ["controllers"],
        "delay_ms": 44,
        "channel": "metadata",
    },
    {
        "at": 0.587,
        "for": 3.413,
        "fault": "move-leadership",
        "partition": 2,
        "moves": 3,
        "cut": True,
        "patience_ms": 1000,
    },
    {"at": 1.466, "for": 0.391, "fault": "kill", "nodes": ["b1", "b3"]},
    {"at": 2.466, "for": 1.534, "fault": "kill", "nodes": ["brokers"]},
    {"at": 3.466, "for": 0.247, "fault": "failing-sync", "nodes": ["b2"], "failing_syncs": 2, "keep": "prefix"},
]
"""b2 leads in epoch 1 with records that are never committed, cuts them for those of epoch 0, and these are committed in
later epochs that have no records. A power loss takes from b2 alone what it had not synced. When all brokers have been
down, the greatest log of the LastKnownELR is to lead."""
WORLD = {
    "seed": 2917868802,
    "time_limit": "4s",
    "recovery_limit": "30s",
    "brokers": 4,
    "partitions": 4,
    "replication_factor": 4,
    "consumers": 0,
    "end_offset_readers": 0,
    "clients": {
        "batch": 50,
        "burst": 5,
        "linger": 0.3,
        "compression": "snappy",
        "in_flight": 1,
        "delivery_timeout": 3,
        "request_timeout": 3,
        "fetch_bytes": 100,
        "consumer_life": 20,
        "consumer_rest": 8,
        "time_readers": 1,
        "clock_error": 5,
    },
    "settings": {
        "broker.session.timeout.ms": "1000",
        "replica.fetch.wait.max.ms": "50",
        "replica.high.watermark.checkpoint.interval.ms": "100",
        "controller.quorum.fetch.timeout.ms": "500",
        "controller.quorum.request.timeout.ms": "1000",
        "metadata.log.segment.bytes": "65536",
        "segment.bytes": "16384",
        "segment.ms": "10000",
        "replica.fetch.response.max.bytes": "3000",
        "controller.quorum.fetch.snapshot.max.bytes": "100",
        "producer.id.expiration.ms": "1800000",
        "faultline.producer.id.block.size": "1",
        "max.incremental.fetch.session.cache.slots": "2",
        "unclean.recovery.strategy": "balanced",
    },
}

MISTAKES = (
    PlayedMistake("cut-left-unsynced", _appended_behind_unsynced_cuts, [CUT_OFF]),
    PlayedMistake("candidate-incomplete", _appended_behind_unsynced_cuts, THERE_AND_BACK, WORLD),
)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_an_append_behind_an_unsynced_cut_is_found(mistake: PlayedMistake, monkeypatch: Patch) -> None:
    mistake.check_found(monkeypatch)
