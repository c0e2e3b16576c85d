"""What is asked of the controller and what it answers, as plain values; Kafka's messages are `controller_messages`'."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from images.broker.metadata.image import TopicImage


@dataclass(frozen=True, slots=True)
class Registration:
    """A broker introduces itself. `previous_epoch` is what it stored at a clean shutdown, -1 without one."""

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
    """What the broker is to the cluster once the step is committed."""

    error: ErrorCode
    caught_up: bool = False
    fenced: bool = True
    should_shut_down: bool = False


@dataclass(frozen=True, slots=True)
class ProducerIdsAnswer:
    """Ids from `first` on, `count` of them."""

    error: ErrorCode
    first: int = -1
    count: int = 0


@dataclass(frozen=True, slots=True)
class TopicResult:
    """What became of one topic to create or delete; `topic` as it is (or was) when that went well."""

    name: str | None
    error: ErrorCode
    message: str | None = None
    topic: TopicImage | None = None
    topic_id: uuid.UUID | None = None


@dataclass(frozen=True, slots=True)
class PartitionResult:
    """What became of a wish about one partition."""

    topic: str
    index: int
    error: ErrorCode = ErrorCode.none
    message: str | None = None
