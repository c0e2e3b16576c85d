"""What a power loss takes from a controller's disk, asked of the shipped `KafkaMetadataLog` on a simulated disk.

Each kind of write is made once, then the power goes and all that is not synced is gone: what is still there is synced
before the call returns.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from harness.simulation.storage.disk import SimDisk
from harness.simulation.storage.files import SimFiles
from images.broker.metadata.image import LeaderChange
from images.broker.ports import NodePorts
from images.broker.raft.log import KafkaMetadataLog
from images.broker.raft.values import ElectionState
from images.broker.rules import Rules
from nemesis.ports import KeepUnsynced

_SEGMENT_BYTES = 1 << 20


class Durability(NamedTuple):
    """Which writes are on disk when the call returns."""

    appends: bool
    truncations: bool
    openings: bool
    """Whether a log that was found unsynced is synced by opening it."""
    votes: bool


def durability(rules: Rules) -> Durability:
    """What is synced under these rules."""
    vote = ElectionState(1, -1, 1)
    return Durability(
        appends=_left_by(rules, _append).end == 1,
        truncations=_left_by(rules, _append_and_truncate).end == 0,
        openings=_left_by(rules, _append_without_sync_and_open).end == 1,
        votes=_left_by(rules, lambda disk, under: _opened(disk, under).write_election_state(vote)).read_election_state()
        == vote,
    )


def _left_by(rules: Rules, write: Callable[[SimDisk, Rules], None]) -> KafkaMetadataLog:
    """The log that a power loss leaves of a new one after `write`."""
    disk = SimDisk()
    _opened(disk, rules).close()
    write(disk, rules)
    disk.lose_power(KeepUnsynced.NOTHING, Random(0))
    return _opened(disk, rules)


def _append(disk: SimDisk, rules: Rules) -> None:
    log = _opened(disk, rules)
    log.append(log.encode_batch([LeaderChange(1, 1)], 1, 0))


def _append_and_truncate(disk: SimDisk, rules: Rules) -> None:
    _append(disk, Rules())
    _opened(disk, rules).truncate(0)


def _append_without_sync_and_open(disk: SimDisk, rules: Rules) -> None:
    _append(disk, Rules().without(["metadata_is_synced"]))
    _opened(disk, rules)


def _opened(disk: SimDisk, rules: Rules) -> KafkaMetadataLog:
    ports = NodePorts(SimFiles(disk), Random(0), lambda event: None, lambda line: None, now_ms=lambda: 0)
    return KafkaMetadataLog(ports, _SEGMENT_BYTES, rules)
