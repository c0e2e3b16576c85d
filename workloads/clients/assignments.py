"""Subscriptions and assignments, which the members of a group exchange through the coordinator, in Kafka's formats.

Version 0 of ConsumerProtocolSubscription (topics, user data) and ConsumerProtocolAssignment (partitions by topic, user
data), which members of any client read; of later versions only the fields of version 0 are read. Partitions are
assigned by Kafka's `range` assignor, in the order of the members' ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Final

from workloads.history import TopicPartition

RANGE: Final = "range"
_VERSION: Final = 0
_SHORT, _INT = Struct(">h"), Struct(">i")
_NO_USER_DATA: Final = _INT.pack(-1)


class UnreadableAssignment(ValueError):
    """Bytes that are no subscription or assignment."""


def encode_subscription(topics: tuple[str, ...], user_data: bytes | None = None) -> bytes:
    """Encode the topics that a member subscribes to, with what it tells the leader beside."""
    told = _NO_USER_DATA if user_data is None else _INT.pack(len(user_data)) + user_data
    return b"".join((_SHORT.pack(_VERSION), _INT.pack(len(topics)), *map(_string, topics), told))


def decode_subscription(content: bytes) -> tuple[str, ...]:
    """The topics that a member subscribes to. Raises UnreadableAssignment."""
    try:
        (count,), at = _INT.unpack_from(content, 2), 6
        topics = []
        for _ in range(count):
            topic, at = _read_string(content, at)
            topics.append(topic)
    except (StructError, UnicodeDecodeError) as error:
        raise UnreadableAssignment(f"no subscription: {error}") from error
    return tuple(topics)


def encode_assignment(partitions: tuple[TopicPartition, ...]) -> bytes:
    """Encode the partitions assigned to a member."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    parts = [_SHORT.pack(_VERSION), _INT.pack(len(by_topic))]
    for topic, numbers in by_topic.items():
        parts += [_string(topic), _INT.pack(len(numbers)), *map(_INT.pack, numbers)]
    return b"".join((*parts, _NO_USER_DATA))


def decode_assignment(content: bytes) -> tuple[TopicPartition, ...]:
    """The partitions assigned to a member; none if its assignment is empty. Raises UnreadableAssignment."""
    if not content:
        return ()
    try:
        (topics,), at = _INT.unpack_from(content, 2), 6
        partitions = []
        for _ in range(topics):
            topic, at = _read_string(content, at)
            (count,), at = _INT.unpack_from(content, at), at + 4
            for _ in range(count):
                partitions.append((topic, int(_INT.unpack_from(content, at)[0])))
                at += 4
    except (StructError, UnicodeDecodeError) as error:
        raise UnreadableAssignment(f"no assignment: {error}") from error
    return tuple(partitions)


def by_range(
    subscriptions: Mapping[str, tuple[str, ...]], partitions: Mapping[str, int]
) -> dict[str, tuple[TopicPartition, ...]]:
    """Member → its partitions: a contiguous range of each topic, one more for the first members if it is uneven."""
    assigned: dict[str, list[TopicPartition]] = {member: [] for member in sorted(subscriptions)}
    for topic in sorted(partitions):
        members = [member for member in assigned if topic in subscriptions[member]]
        first = 0
        for number, member in enumerate(members):
            share = partitions[topic] // len(members) + (number < partitions[topic] % len(members))
            assigned[member] += [(topic, partition) for partition in range(first, first + share)]
            first += share
    return {member: tuple(owned) for member, owned in assigned.items()}


def _string(text: str) -> bytes:
    content = text.encode()
    return _SHORT.pack(len(content)) + content


def _read_string(content: bytes, at: int) -> tuple[str, int]:
    (length,) = _SHORT.unpack_from(content, at)
    end = at + 2 + max(0, length)
    if end > len(content):
        raise StructError(f"a string of {length} bytes at {at} of {len(content)}")
    return content[at + 2 : end].decode(), end
