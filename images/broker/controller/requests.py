"""Requests to the controller and its responses, as plain values; `messages.py` translates Kafka's messages."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from images.broker.metadata.image import TopicImage


@dataclass(frozen=True, slots=True)
class Registration:
    """A broker registers. `previous_epoch` is the broker epoch stored at a clean shutdown, -1 without one."""

    id: int
    incarnation: str
    host: str
    port: int
    previous_epoch: int = -1


@dataclass(frozen=True, slots=True)
class RegistrationAnswer:
    """The broker epoch granted, -1 with an error."""

    error: ErrorCode
    broker_epoch: int = -1


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A broker is alive. `metadata_offset` is the offset of the last metadata record it has applied."""

    id: int
    epoch: int
    metadata_offset: int
    want_fence: bool = False
    want_shut_down: bool = False


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """State of the broker once the change is committed."""

    error: ErrorCode
    caught_up: bool = False
    fenced: bool = True
    should_shut_down: bool = False


@dataclass(frozen=True, slots=True)
class ProducerIdsAnswer:
    """A block of `count` producer ids from `first` on."""

    error: ErrorCode
    first: int = -1
    count: int = 0


@dataclass(frozen=True, slots=True)
class TopicResult:
    """Result of a change of one topic, or of the configuration of one broker; `topic` is its image on success."""

    name: str | None
    error: ErrorCode
    message: str | None = None
    topic: TopicImage | None = None
    topic_id: uuid.UUID | None = None


@dataclass(frozen=True, slots=True)
class PartitionResult:
    """Result of one partition in a request."""

    topic: str
    index: int
    error: ErrorCode = ErrorCode.none
    message: str | None = None
