"""Mistakes with the expiry of producers: whom a replica forgets, by which time, and whom it keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.simulation.applied_mistake import replace_in
from tests.torture.mistakes.mistake import Fault, Patch, PlayedMistake

_STATE = "images.broker.log.producer_state:"
_EXPIRED = "{producer: state for producer, state in table.items() if now_ms - state.timestamp_ms < expiration_ms}"
_SWEEP = "images.broker.replication.replica_manager:ReplicaManager.expire_producers"


def _time_of_first_batch(patch: Patch) -> None:
    """A producer expires by the time of the first batch that is known of it, however many follow."""
    replace_in(patch, _STATE + "record", "batch), timestamp_ms))", by="batch), state.timestamp_ms))")


def _renewed_by_the_sixth(patch: Patch) -> None:
    """A further batch does not renew the time of its producer as long as fewer than five are known."""
    time_ms = "timestamp_ms if len(state.batches) == BATCHES_KEPT else state.timestamp_ms"
    replace_in(patch, _STATE + "record", "batch), timestamp_ms))", by=f"batch), {time_ms}))")


def _by_the_newest_of_all(patch: Patch) -> None:
    """No producer expires as long as another one sends."""
    newest = "max((each.timestamp_ms for each in table.values()), default=0)"
    replace_in(patch, _STATE + "without_expired", _EXPIRED, by=_EXPIRED.replace("state.timestamp_ms", newest))


def _leaders_alone_forget(patch: Patch) -> None:
    """Followers keep what the leader forgets."""
    replicas = "in self._replicas.values():"
    leaders = "in [each for each in self if each.state.role is ReplicaRole.LEADER]:"
    replace_in(patch, _SWEEP, replicas, by=leaders)


def _one_at_a_time(patch: Patch) -> None:
    """Of several producers that have expired one is forgotten."""
    oldest = "min(table, key=lambda each: table[each].timestamp_ms, default=None)"
    kept = _EXPIRED.replace("if now_ms", f"if producer != {oldest} or now_ms")
    replace_in(patch, _STATE + "without_expired", _EXPIRED, by=kept)


def _by_the_timers(patch: Patch) -> None:
    """The age of a batch is found by a clock that is ahead of the one that it is stamped by."""
    replace_in(patch, _SWEEP, "self._node_ports.now_ms()", by="self._node_ports.now_ms() + 600")


def _snapshot_of_the_oldest(patch: Patch) -> None:
    """A snapshot has of all producers the time of the one that is idle for the longest time."""
    oldest = "min(each.timestamp_ms for each in table.values())"
    replace_in(patch, _STATE + "to_snapshot", "state.timestamp_ms", by=oldest)


SETTINGS = {"producer.id.expiration.ms": "2000", "producer.id.expiration.check.interval.ms": "200"}
COMING_AND_GOING: Mapping[str, Any] = {
    "time_limit": "14s",
    "producers": 4,
    "clients": {"producer_life": 2, "delivery_timeout": 1.5, "request_timeout": 0.7},
    "settings": SETTINGS,
}
"""Producers end after about two seconds each, and others take their places."""
RESTARTED: list[Fault] = [{"at": 3, "for": 0.5, "fault": "controlled-restart", "nodes": ["b2"]}]

THERE_AND_BACK: Fault = {"at": "2s", "fault": "there-and-back"}

MISTAKES = (
    PlayedMistake("producer-state-wrong", _time_of_first_batch, [THERE_AND_BACK], said="from which it expires"),
    PlayedMistake("producer-expired-early", _time_of_first_batch, world=COMING_AND_GOING),
    PlayedMistake("producer-expired-early", _renewed_by_the_sixth, world=COMING_AND_GOING | {"rate": 3}),
    PlayedMistake("producer-expiration-overdue", _by_the_newest_of_all, world=COMING_AND_GOING),
    PlayedMistake("producer-expiration-overdue", _leaders_alone_forget, world=COMING_AND_GOING),
    PlayedMistake("producer-expiration-overdue", _one_at_a_time, world=COMING_AND_GOING, said="and kept one"),
    PlayedMistake("producer-expired-early", _by_the_timers, world=COMING_AND_GOING, said="by a clock that read"),
    PlayedMistake("producer-state-wrong", _snapshot_of_the_oldest, RESTARTED, COMING_AND_GOING),
)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_with_the_expiry_of_producers_is_found(mistake: PlayedMistake, monkeypatch: Patch) -> None:
    mistake.check_found(monkeypatch)
