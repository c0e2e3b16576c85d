"""Promises about requests that a broker refuses: with the error of the first check that they fail, and no other ones.
And of a broker that is no replica no fetch is taken."""

from __future__ import annotations

import pytest

from tests.checkers.protocol.test_protocol_replicas import COPIED, MOVED, Event, decided, follows, leads, log_start
from tests.checkers.protocol.test_protocol_requests import UNFENCED, fetched, found
from tests.checkers.small_evidence import event


def turned_away(error: str, replica: int = -1, *, by: str = "b1", requested: int = 1, **fetch: int) -> Event:
    """A request that `by` refuses, which knows b1 as the leader in leader epoch 1; of a replica a fetch."""
    detail = {"api": "fetch", "requested": requested, "error": error, "replica": replica}
    if replica >= 0:
        detail |= {"broker_epoch": fetch.get("life", 12), "last_epoch": fetch.get("last_epoch", 1)}
    place = {"leader": 1, "leader_epoch": 1, "partition_epoch": fetch.get("partition_epoch", 0)}
    return event(5, by, "request_fenced", detail, offset=fetch.get("offset", 5), log_end=5, **place)


REMOVED = [*UNFENCED, decided(3.8, 1, 1, 2, (1, 2), (1, 2), reason="reassignment"), leads(3.9, "b1", 2, 5, 1)]
"""Broker 3 is no replica any more."""
RAISED = [*COPIED, MOVED, log_start(3, "b1", 4, "retention_bytes")]
SECOND = {"leader_epoch": 2, "partition_epoch": 1}
TURNED_AWAY_RIGHTLY = {
    "of an earlier leader epoch": [*COPIED, turned_away("fenced_leader_epoch", requested=0)],
    "of a later leader epoch": [*COPIED, turned_away("unknown_leader_epoch", 2, requested=2)],
    "of an earlier leader epoch, by a follower": [*COPIED, turned_away("fenced_leader_epoch", by="b2", requested=0)],
    "by a follower": [*COPIED, *(turned_away("not_leader_or_follower", by="b2", requested=epoch) for epoch in (1, -1))],
    "by one that is elected, and has not begun to lead": [
        decided(1, 0, 1, 1, (1, 2, 3), reason="created"),
        turned_away("not_leader_or_follower"),
    ],
    "by one that does not lead any more": [
        *COPIED,
        decided(3.8, 1, 2, 2, (1, 2, 3)),
        follows(3.9, "b1", 2, 2, 1),
        turned_away("not_leader_or_follower", requested=2) | {"leader": 2, "leader_epoch": 2, "partition_epoch": 1},
    ],
    "of no replica": [*REMOVED, turned_away("unknown_leader_epoch", 3, requested=2) | SECOND],
    "of no replica, by an old protocol": [*REMOVED, turned_away("not_leader_or_follower", 3, requested=-1) | SECOND],
    "of an earlier life": [*UNFENCED, turned_away("not_leader_or_follower", 3, life=4)],
    "of an earlier life, as its fetches before tell": [
        *COPIED,
        fetched(4, 3) | {"partition_epoch": 0},
        turned_away("not_leader_or_follower", 3, life=4),
    ],
    "of an earlier life, as its fetches in the leadership before tell": [
        *COPIED,
        fetched(4, 3) | {"partition_epoch": 0},
        decided(4.3, 1, 1, 2, (1, 2, 3)),
        leads(4.6, "b1", 2, 5, 1),
        turned_away("not_leader_or_follower", 3, requested=-1, life=4) | SECOND,
    ],
    "below the start of the log": [*RAISED, turned_away("offset_out_of_range", 2, offset=3)],
    "above the end of the log, without an epoch": [
        *COPIED,
        turned_away("offset_out_of_range", 2, offset=6, last_epoch=-1),
    ],
    "after a record of a leader epoch to come": [*COPIED, turned_away("offset_out_of_range", 2, last_epoch=2)],
}
TURNED_AWAY_WRONGLY = {
    "of an earlier leader epoch, as of a later one": [*COPIED, turned_away("unknown_leader_epoch", requested=0)],
    "of a later leader epoch, as of an earlier one": [*COPIED, turned_away("fenced_leader_epoch", 2, requested=2)],
    "of another leader epoch, for the role": [*COPIED, turned_away("not_leader_or_follower", by="b2", requested=0)],
    "by one that leads, as in a leadership before": [
        *COPIED,
        decided(3.8, 1, 1, 2, (1, 2, 3)),
        leads(3.9, "b1", 2, 5, 1),
        turned_away("unknown_leader_epoch", 2, requested=2),
    ],
    "by one that leads, as by a follower": [*COPIED, turned_away("not_leader_or_follower") | {"leader": 2}],
    "of the same leader epoch": [*COPIED, turned_away("fenced_leader_epoch", requested=1)],
    "of the same leader epoch, a fetch": [*COPIED, turned_away("fenced_leader_epoch", 2, requested=1)],
    "without an epoch, by a follower": [*COPIED, turned_away("unknown_leader_epoch", by="b2", requested=-1)],
    "of a client, by the leader": [*COPIED, turned_away("not_leader_or_follower")],
    "of a replica, as of none": [*UNFENCED, turned_away("unknown_leader_epoch", 3)],
    "of the life that is known": [*UNFENCED, turned_away("not_leader_or_follower", 3)],
    "of a life that is known, without telling it": [*UNFENCED, turned_away("not_leader_or_follower", 3, life=-1)],
    "where the log starts": [*RAISED, turned_away("offset_out_of_range", 2, offset=4)],
    "where the log ends": [*COPIED, turned_away("offset_out_of_range", 2, last_epoch=-1)],
    "above the end of the log, with an epoch": [*COPIED, turned_away("offset_out_of_range", 2, offset=6)],
}


@pytest.mark.parametrize("events", TURNED_AWAY_RIGHTLY.values(), ids=TURNED_AWAY_RIGHTLY)
def test_a_request_may_be_refused(events: list[Event]) -> None:
    assert found(events) == set()


@pytest.mark.parametrize("events", TURNED_AWAY_WRONGLY.values(), ids=TURNED_AWAY_WRONGLY)
def test_a_request_is_refused_with_the_error_of_the_first_check_that_it_fails(events: list[Event]) -> None:
    assert found(events) == {"request-refused-otherwise"}


@pytest.mark.parametrize(
    ("offset", "last_epoch", "right"), [(3, 1, True), (4, 1, False), (5, -1, False), (6, -1, True), (5, 2, True)]
)
def test_a_consumer_is_out_of_range_where_the_log_has_no_place_for_it(
    offset: int, last_epoch: int, right: bool
) -> None:
    place = {"offset": offset, "log_end": 5, "leader": 1, "leader_epoch": 1}
    events = [*RAISED, event(5, "b1", "consumer_moved", {"first": -1, "last_epoch": last_epoch}, **place)]
    assert found(events) == (set() if right else {"request-refused-otherwise"})


def test_a_fetch_of_a_broker_that_is_no_replica_is_no_position() -> None:
    assert found([*REMOVED, fetched(4, 3, requested=2, epoch=2) | SECOND]) == {"fetch-of-no-replica"}
    assert found([*REMOVED, fetched(4, 2, requested=2, epoch=2) | SECOND]) == set()
    unread = [*COPIED, decided(3.8, 1, 1, 2, (1, 2), (1, 2), reason="reassignment")]
    assert found([*unread, fetched(4, 3) | {"partition_epoch": 0}]) == set(), "the leader has not read of that yet"
