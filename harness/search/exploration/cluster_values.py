"""The state of a cluster in an exploration, as plain values that compare, hash and pickle.

Numbers that only rise would make the states endless, so partition epochs are relative: the newest one that the
controller has committed is 0, the one before it -1. Partition epochs of different brokers are never compared, only
those of one broker with the controller's, so each broker counts back over the updates that it has not read.
"""

from __future__ import annotations

import uuid
from typing import Final, NamedTuple

from images.broker.metadata.image import PartitionImage
from images.broker.replication.partition import Partition, PartitionRegistration, ProposeIsr

TOPIC: Final = "explored"
TOPIC_ID: Final = uuid.UUID(int=1)


class LogRecord(NamedTuple):
    """A record in a log. Records of one epoch at one offset have different numbers unless they are the same record."""

    epoch: int
    number: int


class MetadataUpdate(NamedTuple):
    """A committed change of the metadata, as a broker reads it."""

    registration: PartitionRegistration
    active: tuple[tuple[int, int], ...]
    """Id and broker epoch of the brokers that may be in an ISR."""


class BrokerState(NamedTuple):
    """One broker: its replica, and what it has sent and not yet read."""

    partition: Partition
    records: tuple[LogRecord, ...] = ()
    broker_epoch: int = 0
    """The broker epoch of its running process."""
    fetched_epoch: int = -1
    """The leader epoch in which a fetch of this follower was answered last."""
    active: tuple[tuple[int, int], ...] = ()
    """The active brokers in the metadata that a leader has read; followers do not need it."""
    unread: tuple[MetadataUpdate, ...] = ()
    """Updates that this broker has yet to read, oldest first. Those that would change nothing are left out."""
    proposal: ProposeIsr | None = None
    """The AlterPartition that this leader sends until it is answered."""


class RegisteredBroker(NamedTuple):
    """A broker as the controller has it."""

    id: int
    epoch: int
    fenced: bool = False
    shutting_down: bool = False


class ControllerState(NamedTuple):
    """The controller's committed metadata."""

    brokers: tuple[RegisteredBroker, ...]
    partition: PartitionImage

    @property
    def active(self) -> tuple[tuple[int, int], ...]:
        """Id and broker epoch of the brokers that may be in an ISR."""
        return tuple((it.id, it.epoch) for it in self.brokers if not it.fenced and not it.shutting_down)


class ClusterHistory(NamedTuple):
    """What the promises and the bounds of a scope need of the past."""

    committed: tuple[LogRecord, ...] = ()
    """The records that lay below the high watermark of a leader at some time."""
    appended: int = 0
    """Records that producers have appended so far."""
