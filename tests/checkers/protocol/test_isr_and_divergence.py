"""Promises about the ISR that a leader counts, the reads that its followers confirm, where it finds that logs part, and
replicas of deleted topics."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from tests.checkers.protocol.test_protocol_replicas import (
    BORN,
    COPIED,
    MOVED,
    Event,
    appended,
    decided,
    follower_high_watermark,
    kinds,
    leads,
    log_start,
)
from tests.checkers.small_evidence import event

LED = {"leader": 1, "leader_epoch": 1}


def proposed(time_s: float, *members: int, partition_epoch: int = 1) -> Event:
    place = {"members": list(members), "offset": 0, "partition_epoch": partition_epoch}
    return event(time_s, "b1", "isr_proposed", {}, **place, **LED)


def counted(time_s: float, partition_epoch: int, isr: Sequence[int], **in_flight: Sequence[int]) -> Event:
    detail = {"unresolved": [], **in_flight}
    return event(time_s, "b1", "isr_counted", detail, members=list(isr), partition_epoch=partition_epoch, **LED)


def rolled_back(time_s: float, error: str = "ineligible_replica") -> Event:
    detail = {"error": error, "rolled_back": True}
    return event(time_s, "b1", "isr_rejected", detail, members=[1, 2], partition_epoch=1, **LED)


def moved(time_s: float, *quorum: int, partition_epoch: int = 1) -> Event:
    place = {"offset": 0, "high_watermark": 5, "members": list(quorum), "partition_epoch": partition_epoch}
    return event(time_s, "b1", "high_watermark", **place, **LED)


def sent(time_s: float) -> Event:
    return event(time_s, "b1", "alter_partition_sent", members=[1, 2, 3], partition_epoch=1, broker_epoch=11, **LED)


def answered(time_s: float, error: str, **detail: int) -> Event:
    detail_of = {"error": error, **detail}
    return event(time_s, "b1", "alter_partition_answered", detail_of, members=[1, 2, 3], partition_epoch=1, **LED)


def opened(time_s: float, *, start: int, end: int, high_watermark: int) -> Event:
    return event(time_s, "b1", "log_recovered", {}, offset=start, log_end=end, high_watermark=high_watermark)


def led_with(time_s: float, *, end: int, high_watermark: int) -> Event:
    return leads(time_s, "b1", 2, end) | {"detail": json.dumps({"high_watermark": high_watermark})}


def followed_with(time_s: float, *, end: int, high_watermark: int) -> Event:
    place = {"leader": 2, "leader_epoch": 2, "partition_epoch": 1}
    return event(time_s, "b1", "became_follower", log_end=end, high_watermark=high_watermark, **place)


def asked(time_s: float, read: int, epoch: int = 1) -> Event:
    return event(time_s, "b1", "latest_asked", {"read": read}, leader=1, leader_epoch=epoch)


def fetch_answered(time_s: float, connection: int = 4, epoch: int = 1) -> Event:
    detail = {"replica": 2, "connection": connection}
    return event(time_s, "b1", "fetch_answered", detail, leader=1, leader_epoch=epoch)


def confirmed(time_s: float, read: int, connection: int = 4, epoch: int = 1) -> Event:
    detail = {"replica": 2, "connection": connection, "read": read}
    return event(time_s, "b1", "reads_confirmed", detail, leader=1, leader_epoch=epoch)


def fetched(time_s: float, offset: int, last_epoch: int) -> Event:
    detail = {"replica": 2, "requested": 3, "last_epoch": last_epoch, "broker_epoch": 12}
    return event(time_s, "b1", "fetch_accepted", detail, offset=offset, log_end=4, leader=1, leader_epoch=3)


def diverging(fetched_epoch: int, fetched_offset: int, epoch: int, end: int) -> Event:
    detail = {"replica": 2, "epoch": epoch, "fetched": [fetched_epoch, fetched_offset]}
    return event(5, "b1", "diverging", detail, offset=end, leader=1, leader_epoch=4)


def applied(time_s: float, end: int) -> Event:
    return event(time_s, "b2", "metadata_applied", offset=0, log_end=end)


SMALL = [*COPIED, decided(2.5, 1, 1, 1, (1, 2), reason="alter_partition")]
"""b1 leads with the ISR {b1, b2}."""
JOINING = [*SMALL, proposed(3, 1, 2, 3)]
FORKED = [*BORN, appended(2, "b1", 0, 2), appended(2, "b1", 2, 4, epoch=3), leads(3, "b1", 4, 4)]
"""b1 leads in leader epoch 4; its log has two records of epoch 1 and two of epoch 3."""
RETAINED_ALL = [*COPIED, MOVED, log_start(3, "b1", 5, "retention_bytes")]
DELETED = [*COPIED, event(3, "c1", "partition_deleted", offset=110)]


def cut(node: str, end: int, to: int, high_watermark: int = 0, **detail: object) -> Event:
    place = {"leader": 1, "leader_epoch": 2, "partition_epoch": 1, "high_watermark": high_watermark}
    return event(5, node, "truncated", detail, offset=to, log_end=end, **place)


EMPTY_REPLICA = [event(0.5, "b2", "log_recovered", {}, offset=0, log_end=0, high_watermark=0), applied(1, 50)]

KEPT = {
    "a broker deletes the replicas of a topic when it applies its end": [
        *EMPTY_REPLICA,
        event(3, "c1", "partition_deleted", offset=110),
        applied(4, 110),
        event(4, "b2", "replica_deleted"),
        applied(5, 112),
    ],
    "a follower cuts its log by the answer of a leader that has another topic of the name": [
        *COPIED,
        event(3, "c1", "partition_deleted", offset=110),
        event(3, "b1", "replica_deleted"),
        cut("b2", 5, 3, answer=[1, 3]),
    ],
    "a follower begins anew behind its log's end, where its leader's starts": [
        *RETAINED_ALL,
        cut("b3", 4, 5, log_start=5),
    ],
    "a leader without records takes a fetch from the end of its log": [
        *RETAINED_ALL,
        fetched(4, 5, 1) | {"log_end": 5},
    ],
    "a leader does not know the epoch of its last deleted record": [
        *RETAINED_ALL,
        cut("b1", 5, 3, log_start=3),
        fetched(6, 3, 0) | {"log_end": 3},
    ],
    "a leader counts whom it has proposed": [*JOINING, counted(4, 1, (1, 2), proposed=(1, 2, 3)), moved(5, 1, 2, 3)],
    "a change that was given up may still be made": [*JOINING, counted(4, 1, (1, 2), unresolved=(3,))],
    "newer metadata ends a change": [
        *JOINING,
        decided(4, 2, 1, 1, (1, 2)),
        counted(5, 2, (1, 2)),
        moved(6, 1, 2, partition_epoch=2),
    ],
    "a change that is rolled back counts no more": [*JOINING, rolled_back(4), moved(5, 1, 2)],
    "a leader goes by the ISR that it has read of": [*SMALL[:-1], moved(2.2, 1, 2, 3, partition_epoch=0), SMALL[-1]],
    "a change is sent again until it is answered": [*JOINING, sent(4), answered(5, "not_controller"), sent(6)],
    "a refused change is proposed again": [
        *JOINING,
        sent(4),
        answered(5, "ineligible_replica"),
        proposed(6, 1, 2, 3),
        sent(6),
    ],
    "a change is taken back that is certainly not made": [
        *JOINING,
        sent(4),
        answered(5, "lost", sent=False),
        sent(6),
        answered(7, "ineligible_replica"),
        rolled_back(7),
    ],
    "a granted change has a new partition epoch": [
        *JOINING,
        sent(4),
        answered(5, "none", partition_epoch=2),
        decided(6, 2, 1, 1, (1, 2, 3), reason="alter_partition"),
    ],
    "a fetch confirms the reads before the answer that it follows": [
        *COPIED,
        asked(3, 1),
        fetch_answered(4),
        asked(4.5, 2),
        confirmed(5, 1),
    ],
    "a follower's log is a prefix of its leader's": [*FORKED, fetched(4, 4, 3)],
    "a leader names the greatest epoch that both may have": [*FORKED, diverging(2, 3, 1, 2)],
    "a leader names its last epoch": [*FORKED, diverging(3, 9, 3, 4)],
    "a follower cuts off what its leader does not have": [*COPIED, appended(3, "b2", 5, 7), cut("b2", 7, 5)],
    "a follower cuts off another record": [
        *COPIED,
        appended(3, "b2", 5, 6),
        appended(4, "b1", 5, 6, epoch=2, crc=9),
        cut("b2", 6, 5, answer=[1, 5]),
    ],
    "a follower without an answer cuts to its high watermark": [*COPIED, MOVED, cut("b2", 5, 3, high_watermark=3)],
    "a broker acts on what it has applied": [
        *SMALL,
        applied(4, 100),
        follower_high_watermark(5, "b2", 0) | {"partition_epoch": 0, **LED},
        applied(6, 101),
        follower_high_watermark(7, "b2", 0) | {"partition_epoch": 1, **LED},
    ],
    "a broker follows a deleted topic until it reads of its end": [*DELETED, applied(4, 109), MOVED],
}
BROKEN = {
    "a leader forgets whom it has proposed": ([*JOINING, moved(5, 1, 2)], "quorum-not-maximal-isr"),
    "a leader waits for one that is in no ISR": ([*SMALL, moved(5, 1, 2, 3)], "quorum-not-maximal-isr"),
    "a leader counts another ISR than was decided": ([*SMALL, counted(4, 1, (1, 2, 3))], "acted-on-undecided"),
    "newer metadata does not end a change": (
        [*JOINING, decided(4, 2, 1, 1, (1, 2)), counted(5, 2, (1, 2), proposed=(1, 2, 3))],
        "isr-change-kept",
    ),
    "a change that was given up outlives newer metadata": (
        [*JOINING, decided(4, 2, 1, 1, (1, 2)), counted(5, 2, (1, 2), unresolved=(3,))],
        "isr-change-kept",
    ),
    "a change is taken back although a request with it may arrive": (
        [*JOINING, sent(4), answered(5, "lost", sent=True), sent(6), answered(7, "ineligible_replica"), rolled_back(7)],
        "isr-change-taken-back-early",
    ),
    "a change is taken back that may have been made before": (
        [*JOINING, sent(4), answered(5, "invalid_update_version"), rolled_back(5, "invalid_update_version")],
        "isr-change-taken-back-early",
    ),
    "a leader forgets a request that may arrive when a later one is lost for sure": (
        [*JOINING, sent(4), answered(5, "lost", sent=True), sent(6), answered(7, "lost", sent=False, certain=True)],
        "isr-change-taken-for-certain",
    ),
    "a refused change is sent again": (
        [*JOINING, sent(4), answered(5, "ineligible_replica"), sent(6)],
        "isr-change-sent-again",
    ),
    "a granted change is one that nobody has decided": (
        [*JOINING, sent(4), answered(5, "none", partition_epoch=2)],
        "isr-answer-undecided",
    ),
    "a granted change has the partition epoch of before": (
        [*JOINING, sent(4), answered(5, "none", partition_epoch=1)],
        "partition-epoch-stood",
    ),
    "a fetch confirms a read that began after the answer that it follows": (
        [*COPIED, asked(3, 1), fetch_answered(4), asked(4.5, 2), confirmed(5, 2)],
        "read-confirmed-early",
    ),
    "a fetch on another connection confirms a read": (
        [*COPIED, asked(3, 1), fetch_answered(4), confirmed(5, 1, connection=6)],
        "read-confirmed-early",
    ),
    "a fetch confirms a read by the answer of an earlier leadership": (
        [*COPIED, asked(3, 1), fetch_answered(4), leads(5, "b1", 3, 5), confirmed(6, 1, epoch=3)],
        "read-confirmed-early",
    ),
    "a leader takes the position of a log that differs": ([*FORKED, fetched(4, 4, 2)], "fetch-of-another-log"),
    "a leader takes a position behind its own log": (
        [*FORKED, fetched(4, 9, 1) | {"log_end": 5}],
        "fetch-of-another-log",
    ),
    "a leader names an epoch that it does not have": ([*FORKED, diverging(2, 3, 2, 2)], "divergence-misstated"),
    "a leader names another end of an epoch": ([*FORKED, diverging(2, 3, 1, 1)], "divergence-misstated"),
    "a broker goes on with the replica of a deleted topic": (
        [*DELETED, applied(4, 110), follower_high_watermark(5, "b2", 0)],
        "deleted-topic-served",
    ),
    "a broker keeps the replica of a deleted topic": (
        [*EMPTY_REPLICA, event(3, "c1", "partition_deleted", offset=110), applied(4, 110), applied(5, 112)],
        "deleted-replica-kept",
    ),
    "a broker acts on what an applied decision has changed": (
        [*SMALL, applied(4, 101), follower_high_watermark(5, "b2", 0) | {"partition_epoch": 0, **LED}],
        "decision-not-taken-over",
    ),
    "a follower goes on with a high watermark that no leader had": (
        [*COPIED, follower_high_watermark(4, "b2", 5) | {"leader": 1}],
        "high-watermark-unfounded",
    ),
    "a leader's epoch starts below the end of its log": (
        [*COPIED, leads(4, "b1", 2, 5) | {"offset": 4}],
        "leader-epoch-not-entered",
    ),
    "a leader takes its epoch to start below the end of its log": (
        [*COPIED, leads(3, "b1", 2, 5), event(4, "b1", "isr_proposed", {}, offset=3, leader=1, leader_epoch=2)],
        "isr-proposal-behind",
    ),
    "a follower cuts off what its leader has": (
        [*COPIED, cut("b2", 5, 3, high_watermark=3, answer=[1, 5])],
        "truncation-needless",
    ),
    "a follower begins anew where its log ends": ([*RETAINED_ALL, cut("b2", 5, 5, log_start=5)], "producers-forgotten"),
    "a follower cuts the last record, which its leader has deleted": (
        [*RETAINED_ALL, cut("b2", 5, 4, answer=[1, 4])],
        "truncation-needless",
    ),
    "a leader takes a fetch of a log that ends where its own starts, with another record": (
        [*RETAINED_ALL, fetched(4, 5, 2) | {"log_end": 5}],
        "fetch-of-another-log",
    ),
    "a follower cuts its log without a need": ([*COPIED, cut("b2", 5, 3)], "truncation-needless"),
    "a follower that goes by answers cuts its log to its high watermark": (
        [*COPIED, fetched(3, 4, 1), cut("b2", 5, 3, high_watermark=3)],
        "truncation-needless",
    ),
    "a leader takes a fetch from below its own log": ([*RETAINED_ALL, fetched(4, 3, -1)], "fetch-of-another-log"),
    "records come behind the end of a log": ([*COPIED, appended(3, "b2", 7, 9)], "records-out-of-place"),
    "records come once more": ([*COPIED, appended(3, "b1", 0, 5)], "records-out-of-place"),
    "a log comes back with a hole": (
        [*COPIED, event(4, "b2", "log_recovered", {"holes": [[2, 3]]}, offset=0, log_end=5)],
        "log-with-hole",
    ),
    "a follower that lacks its leader's deletions joins the ISR": (
        [
            *COPIED,
            MOVED,
            log_start(4, "b1", 4, "retention_bytes"),
            event(5, "b1", "isr_proposed", {"positions": {"3": 5}}, offset=0, high_watermark=5, members=[1, 2, 3]),
        ],
        "isr-proposal-behind",
    ),
}


@pytest.mark.parametrize("events", KEPT.values(), ids=KEPT.keys())
def test_a_promise_that_is_kept(events: Sequence[Event]) -> None:
    assert kinds(events) == []


@pytest.mark.parametrize(("events", "kind"), BROKEN.values(), ids=BROKEN.keys())
def test_a_promise_that_is_broken(events: Sequence[Event], kind: str) -> None:
    assert kinds(events) == [kind]


@pytest.mark.parametrize(("named", "seen"), [(12, True), (11, False)])
def test_a_leader_has_seen_the_log_of_the_life_that_it_proposes(named: int, seen: bool) -> None:
    """A late fetch of the life before has it proposed in that, which the controllers refuse."""
    detail = {"positions": {"3": 5}, "epochs": {"1": 1, "3": named}}
    events = [
        *COPIED,
        MOVED,
        log_start(4, "b1", 4, "retention_bytes"),
        event(4.5, "c1", "broker_registered", broker=3, broker_epoch=12, offset=113),
        event(5, "b1", "isr_proposed", detail, offset=0, high_watermark=5, members=[1, 2, 3]),
    ]
    assert ("isr-proposal-behind" in kinds(events)) == seen


def test_a_log_that_ends_before_its_start_does_not_go_on_there() -> None:
    moved_start = [*COPIED, MOVED, log_start(3, "b1", 4, "retention_bytes")]
    assert "log-end-below-start" in kinds([*moved_start, opened(4, start=4, end=2, high_watermark=4)])
    assert "log-end-below-start" not in kinds([*moved_start, opened(4, start=4, end=4, high_watermark=4)])


def test_a_checkpoint_of_the_high_watermark_may_outlive_the_records_and_does_not_count_then() -> None:
    shorter = [*COPIED, MOVED, opened(4, start=0, end=3, high_watermark=5)]
    assert "high-watermark-above-log-end" in kinds([*shorter, led_with(5, end=3, high_watermark=5)])
    assert "high-watermark-above-log-end" not in kinds([*shorter, led_with(5, end=3, high_watermark=3)])
    assert "high-watermark-above-log-end" in kinds([*shorter, followed_with(5, end=3, high_watermark=5)])
    assert "high-watermark-above-log-end" not in kinds([*shorter, followed_with(5, end=3, high_watermark=3)])
