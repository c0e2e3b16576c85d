"""What a leader tells of its log: offsets by time, the earliest one, and where leader epochs end; and retention by the
timestamps of its records."""

from __future__ import annotations

import pytest

from checkers.evidence import CheckSettings
from tests.checkers.protocol.test_protocol_replicas import BORN, NODES, Event, kinds, log_start
from tests.checkers.small_evidence import event

EARLIEST, NEWEST = -2, -3
SETTINGS = CheckSettings(retention_bytes=100, retention_ms=1_000)


def stamped(at: int, timestamp_ms: int, epoch: int = 1, node: str = "b1") -> Event:
    detail = {"crc": 7 + at, "timestamp": timestamp_ms}
    return event(2, node, "appended", detail, offset=at, log_end=at + 2, leader=1, leader_epoch=epoch)


def told(asked: int, offset: int, epoch: int = 1, high_watermark: int = 6) -> Event:
    detail = {"asked": asked, "timestamp": asked, "epoch": epoch}
    place = {"offset": offset, "log_end": 8, "high_watermark": high_watermark}
    return event(5, "b1", "offset_told", detail, leader=1, leader_epoch=1, **place)


def earlier(asked: int, offset: int) -> Event:
    return told(asked, offset) | {"detail": f'{{"asked": {asked}, "timestamp": {asked - 1}, "epoch": 1}}'}


def newest(offset: int, timestamp_ms: int, high_watermark: int = 6, epoch: int = 1) -> Event:
    detail = {"asked": NEWEST, "timestamp": timestamp_ms, "epoch": epoch}
    place = {"offset": offset, "log_end": 8, "high_watermark": high_watermark}
    return event(5, "b1", "offset_told", detail, leader=1, leader_epoch=1, **place)


def epoch_end(asked: int, epoch: int, end: int) -> Event:
    detail = {"asked": asked, "epoch": epoch}
    return event(5, "b1", "epoch_end_told", detail, offset=end, log_end=8, leader=1, leader_epoch=1)


def latest_asked(requested: int) -> Event:
    return event(5, "b1", "latest_asked", {"read": 1, "requested": requested}, leader=1, leader_epoch=1)


def asked_in(requested: int, row: Event) -> Event:
    return row | {"detail": row["detail"][:-1] + f', "requested": {requested}}}'}


def expired(to: int, now_ms: int) -> Event:
    row = log_start(4, "b1", to, "retention_ms")
    return row | {"detail": f'{{"before": 0, "reason": "retention_ms", "now_ms": {now_ms}}}'}


HIGH = event(3, "b1", "high_watermark", offset=0, high_watermark=6, members=[1, 2, 3], leader_epoch=1)
TIMES_MS = ((0, 3_000), (2, 9_000), (4, 5_000), (6, 8_000))
BATCHES = [*BORN, *(stamped(*batch, node=node) for node in NODES for batch in TIMES_MS), HIGH]
"""The logs: four batches of two records, whose timestamps fall and rise; the last one is not committed."""
FROM_THREE = [*BATCHES, log_start(4, "b1", 3, "retention_bytes")]
LEADS_FROM_EIGHT = [
    *BATCHES,
    event(4, "b1", "became_leader", offset=8, log_end=8, members=[1], leader=1, leader_epoch=1),
]

RIGHT = {
    "the first record of the first batch that is not older": [*BATCHES, told(4_000, 2)],
    "another record of that batch, whose records may be younger": [*BATCHES, told(4_000, 3)],
    "none where all are older": [*BATCHES, told(9_001, -1, epoch=-1)],
    "none where the first one is not committed": [*BATCHES, told(4_000, -1, epoch=-1, high_watermark=2)],
    "of the batch in which the log starts a record from there on": [*FROM_THREE, told(9_000, 3)],
    "none of that batch, if only those below are not older": [*FROM_THREE, told(9_000, -1, epoch=-1)],
    "the next batch in place of that one": [*FROM_THREE, told(5_000, 4)],
    "the newest record": [*BATCHES, newest(2, 9_000)],
    "no newest record where it is not committed": [*BATCHES, newest(-1, -1, high_watermark=2, epoch=-1)],
    "the newest of the batch in which the log starts": [*FROM_THREE, newest(3, 9_000)],
    "the newest one behind that batch": [*FROM_THREE, newest(6, 8_000, high_watermark=8)],
    "none once it knows all that may be committed": [*LEADS_FROM_EIGHT, told(9_001, -1, epoch=-1, high_watermark=8)],
    "the start as the earliest offset": [*FROM_THREE, told(EARLIEST, 3)],
    "where an epoch ends": [*BORN, stamped(0, 1, epoch=0), stamped(2, 2), epoch_end(0, 0, 2)],
    "where its own epoch ends": [*BATCHES, epoch_end(1, 1, 8)],
    "nothing of a later epoch": [*BATCHES, epoch_end(2, -1, -1)],
    "whoever asks the leader of its epoch": [*BATCHES, latest_asked(1), asked_in(1, told(4_000, 2))],
    "whoever knows no leader epoch": [*BATCHES, latest_asked(-1), asked_in(-1, epoch_end(1, 1, 8))],
}
WRONG = {
    "a batch is passed over": ([*BATCHES, told(4_000, 6, high_watermark=8)], "offset-misstated"),
    "a batch that is older": ([*BATCHES, told(4_000, 0)], "offset-misstated"),
    "none, although there is one": ([*BATCHES, told(4_000, -1, epoch=-1)], "offset-misstated"),
    "an offset above the high watermark": ([*BATCHES, told(4_000, 2, high_watermark=2)], "offset-misstated"),
    "another record than the newest": ([*BATCHES, newest(4, 5_000)], "offset-misstated"),
    "the last record in place of the newest": ([*BATCHES, newest(6, 8_000, high_watermark=8)], "offset-misstated"),
    "no newest record, although there is one": ([*BATCHES, newest(-1, -1, epoch=-1)], "offset-misstated"),
    "the newest one above the high watermark": ([*BATCHES, newest(2, 9_000, high_watermark=2)], "offset-misstated"),
    "the newest one with another timestamp": ([*BATCHES, newest(2, 9_001)], "offset-misstated"),
    "a timestamp before the time asked for": ([*BATCHES, earlier(4_000, 2)], "offset-misstated"),
    "none before it knows what is committed": (
        [*LEADS_FROM_EIGHT, told(9_001, -1, epoch=-1, high_watermark=7)],
        "none-told-early",
    ),
    "an offset below the start": ([*FROM_THREE, told(4_000, 2)], "offset-misstated"),
    "another leader epoch than that of the record": ([*BATCHES, told(4_000, 2, epoch=2)], "offset-misstated"),
    "the start before": ([*FROM_THREE, told(EARLIEST, 0)], "offset-misstated"),
    "another earliest offset": ([*FROM_THREE, told(EARLIEST, 2)], "offset-misstated"),
    "where another epoch ends": (
        [*BORN, stamped(0, 1, epoch=0), stamped(2, 2), epoch_end(0, 1, 4)],
        "divergence-misstated",
    ),
    "another end of its own epoch": ([*BATCHES, epoch_end(1, 1, 6)], "divergence-misstated"),
    "an end of an epoch above its own": ([*BATCHES, epoch_end(2, 1, 8)], "divergence-misstated"),
    "whoever asks the leader before it": ([*BATCHES, asked_in(0, epoch_end(1, 1, 8))], "query-of-another-epoch"),
    "whoever asks the leader after it": ([*BATCHES, asked_in(2, told(4_000, 2))], "query-of-another-epoch"),
    "a read of the latest offset of another leader": ([*BATCHES, latest_asked(2)], "query-of-another-epoch"),
}


@pytest.mark.parametrize("events", RIGHT.values(), ids=RIGHT)
def test_a_leader_may_answer(events: list[Event]) -> None:
    assert kinds(events) == []


@pytest.mark.parametrize(("events", "kind"), WRONG.values(), ids=WRONG)
def test_a_leader_never_answers(events: list[Event], kind: str) -> None:
    assert kinds(events) == [kind]


def test_retention_waits_for_the_youngest_timestamp_of_what_it_deletes() -> None:
    assert kinds([*BATCHES, expired(4, 10_001)], settings=SETTINGS) == []
    assert kinds([*BATCHES, expired(4, 10_000)], settings=SETTINGS) == ["retention-unfounded"]
    assert kinds([*BATCHES, expired(2, 4_001)], settings=SETTINGS) == []
