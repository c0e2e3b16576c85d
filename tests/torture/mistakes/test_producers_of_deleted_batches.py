"""A follower whose log ends where its new leader's starts: it keeps its producers, as the leader knows the epoch of the
record before. Forgotten, the retry of a deleted batch would be appended once more where the follower leads."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from images.broker.replication.fetcher import Fetcher
from images.wire.field_values import NO_EPOCH
from tests.simulation.applied_mistake import replace_in
from tests.torture.mistakes.kafkas_epochs import epoch_of_next_record_kept
from tests.torture.mistakes.mistake import Fault, Patch, PlayedMistake


def _always_begun_anew(patch: Patch) -> None:
    """A follower that ends where its new leader's log starts begins anew."""
    target, fits = "images.broker.replication.replica:Replica.replicate", "self.on_fit(sent_offset, sent_epoch)"
    ends_there = "leader_log_start == self.log.end > self.log.start and self.fetched_epoch != sent_epoch"
    anew = "self._apply(log_start.truncate_fully_and_start_at(self.state, self.log.end))"
    replace_in(patch, target, fits, f"({anew} if {ends_there} else None); {fits}")


def _epoch_not_asked(patch: Patch) -> None:
    """A follower begins anew without asking for the epoch of its leader's last deleted record."""
    right = Fetcher._leader_start

    async def leader_start(self: Fetcher, state: object) -> object:
        start = await right(self, state)  # type: ignore[arg-type]
        return start and start._replace(epoch=NO_EPOCH)

    patch.setattr(Fetcher, "_leader_start", leader_start)


def _epoch_at_start_taken(patch: Patch) -> None:
    """It takes the epoch of the leader's first record for that of the record before."""
    target = "images.broker.replication.fetcher:Fetcher._leader_start"
    replace_in(patch, target, "below.end < start.offset", "below.end >= 0")


RETRIED_LATE = {
    "seed": 8,
    "time_limit": "36s",
    "recovery_limit": "10s",
    "producers": 2,
    "rate": 4,
    "clients": {"in_flight": 1, "pipeline": 1, "request_timeout": 0.7, "delivery_timeout": 35},
}
RETRIED_AT_ANOTHER: Sequence[Fault] = [
    {"at": 5, "for": 25, "fault": "partition", "shape": "one-way", "nodes": ["b1"], "channel": "client"},
    {"at": 6.5, "for": 8, "fault": "partition", "shape": "one-way", "nodes": ["b1"], "against": ["b3"]},
    {"at": 6.5, "for": 8, "fault": "partition", "shape": "one-way", "nodes": ["b3"], "against": ["b1"]},
    {"at": 7, "for": 1, "fault": "delete-records"},
    {"at": 8, "for": 25, "fault": "partition", "shape": "one-way", "nodes": ["b2"], "channel": "client"},
    {"at": 9, "for": 16, "fault": "pause", "nodes": ["b1"]},
    {"at": 18, "for": 15, "fault": "pause", "nodes": ["b2"]},
]
"""The producers hear nothing of what b1 and b2 have answered. All of it is deleted, b1 is paused, b3 follows b2, and
then b2 is paused: b3 leads, and is sent the batches again. It had them."""

RETRIED_UNHEARD = {
    "time_limit": "16s",
    "recovery_limit": "30s",
    "clients": {
        "producers": 0,
        "consumers": 0,
        "end_offset_readers": 0,
        "request_timeout": 0.7,
        "delivery_timeout": 15,
        "operations": [{"do": "produce 1 to 0"}, {"do": "poll 0"}],
    },
    "settings": {
        "broker.session.timeout.ms": "1000",
        "replica.lag.time.max.ms": "60000",
        "retention.ms": "1500",
        "log.retention.check.interval.ms": "300",
    },
}
COMMITTED_UNHEARD: Sequence[Fault] = [
    {
        "when": {"log_end": {"node": "b1", "at_least": 1}},
        "for": "10s",
        "fault": "partition",
        "shape": "isolate",
        "channel": "client",
        "nodes": ["b1", "b2"],
    },
    {
        "when": {"high_watermark": {"at_least": 1, "node": "b1"}},
        "until": {"elected": "b2"},
        "fault": "partition",
        "shape": "leader-only",
        "nodes": ["b3"],
    },
    {"when": {"log_start_moved": {"node": "b2"}}, "for": "2s", "fault": "kill", "nodes": ["b1"], "id": "first"},
    {"when": {"injected": "first"}, "fault": "place-replicas", "nodes": ["b3", "b2", "b1"]},
    {
        "after": "first",
        "when": {"isr": {"has": "b1", "at_least": 3}},
        "then_after": "300ms",
        "for": "3s",
        "fault": "kill",
        "nodes": ["b2"],
    },
]
"""b3 has the one record, does not hear that it is committed, and follows b2, which has deleted it. Then b3 leads, and
the producer, who has heard nothing, sends the record again."""

WIPED: Sequence[Fault] = [
    {"at": 1, "for": 1, "fault": "kill", "nodes": ["b1"]},
    {"when": {"log_start_moved": {"node": "b1"}}, "for": "1s", "fault": "wipe-disk", "nodes": ["b3"]},
]
"""b2 leads after b1. Then b3 loses its disk, and begins where the log of b2 starts."""
DELETING = {
    "time_limit": "14s",
    "recovery_limit": "20s",
    "settings": {"retention.ms": "1500", "log.retention.check.interval.ms": "300", "segment.bytes": "1024"},
}

MISTAKES = (
    PlayedMistake("producers-forgotten", _always_begun_anew, RETRIED_AT_ANOTHER, RETRIED_LATE),
    PlayedMistake("producers-forgotten", _always_begun_anew, COMMITTED_UNHEARD, RETRIED_UNHEARD),
    PlayedMistake("epoch-cache-wrong", epoch_of_next_record_kept, COMMITTED_UNHEARD, RETRIED_UNHEARD),
    PlayedMistake("epoch-cache-wrong", _epoch_not_asked, WIPED, DELETING),
    PlayedMistake("epoch-cache-wrong", _epoch_at_start_taken, WIPED, DELETING),
)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_with_the_epoch_before_a_log_start_is_found(mistake: PlayedMistake, monkeypatch: Patch) -> None:
    mistake.check_found(monkeypatch)
