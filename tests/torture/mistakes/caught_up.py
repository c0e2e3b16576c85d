"""Mistakes of a leader about who is caught up."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from images.broker.replication import leader
from images.broker.replication.partition import Follower, Partition, ReplicaFetch


def caught_up(partition: Partition, now_ms: int, whom: Callable[[Follower], bool]) -> Partition:
    """The partition, whose leader takes some followers for caught up now."""
    if partition.leadership is None:
        return partition
    followers = (
        follower._replace(caught_up_ms=now_ms) if whom(follower) else follower
        for follower in partition.leadership.followers
    )
    return partition._replace(leadership=partition.leadership._replace(followers=tuple(followers)))


def caught_up_by_any_fetch(patch: pytest.MonkeyPatch) -> None:
    """A leader takes a follower for caught up whenever that fetches, from whatever offset."""
    right = leader._record_fetch

    def record_fetch(partition: Partition, fetch: ReplicaFetch, now_ms: int) -> Partition:
        return caught_up(right(partition, fetch, now_ms), now_ms, lambda follower: follower.id == fetch.replica)

    patch.setattr(leader, "_record_fetch", record_fetch)
