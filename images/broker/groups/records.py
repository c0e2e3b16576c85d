"""Records of `__consumer_offsets`, in Kafka's formats.

The key of a record starts with a two-byte version, which also gives its kind; the value starts with a version of its
own, and a null value is a tombstone. Everything is big-endian; strings have a two-byte length, bytes a four-byte one,
-1 for null.

kind            key                                          value
--------------  -------------------------------------------  --------------------------------------------------------
offset commit   1: group, topic, partition (int32)           3: offset (int64), leader epoch (int32), metadata,
                                                             commit time (int64, ms)
                                                             4: the same and the topic's id, of the topic that the
                                                             offset was committed for
group           2: group                                     3: protocol type, generation (int32), protocol, leader,
                                                             time of the state (int64, ms), members: id, group instance
                                                             id, client id, client host, rebalance timeout (int32, ms),
                                                             session timeout (int32, ms), subscription (bytes),
                                                             assignment (bytes)

A string of more than 32,767 bytes in UTF-8 has no place in them, though the flexible versions of requests can carry
one: `storable` tells it before anything of it gets into a group.

Version 4 is flexible: the length of its string is a varint and one more than that of the string, and the topic's id is
the tagged field 0. An offset without an id has version 3.

A group record with members and without a leader says that a generation begins; Kafka writes none then.

These versions are the only ones written and read. Every Kafka since 2.3 reads version 3, and every one since 3.5
version 4; a release that does not know the topic id skips it. Of a member's protocols only the chosen one is stored, as
in Kafka: after a fail-over its group can agree on no other until its members join again.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple
from uuid import UUID

from images.broker.groups.group import ClassicGroupMember, Group
from images.wire.codec import Malformed, decode_varint, encode_varint

_OFFSET_KEY, _GROUP_KEY = 1, 2
_OFFSET_VALUE, _OFFSET_VALUE_WITH_TOPIC_ID, _GROUP_VALUE = 3, 4, 3
_TOPIC_ID_TAG, _TOPIC_ID_BYTES = 0, 16
_SHORT, _INT, _LONG = Struct(">h"), Struct(">i"), Struct(">q")

STRING_BYTES_MAX = (1 << 15) - 1
"""Length of the longest string that a record can hold, in UTF-8."""


class TopicPartition(NamedTuple):
    """A partition whose offsets are committed."""

    topic: str
    partition: int


class OffsetAndMetadata(NamedTuple):
    """A committed offset."""

    offset: int
    leader_epoch: int = -1
    """Leader epoch of the record before the offset, as far as the committing client knows."""
    metadata: str = ""
    commit_ms: int = 0
    topic_id: UUID | None = None
    """The topic that it was committed for; None in a record without one."""


class OffsetRecord(NamedTuple):
    """`group` committed an offset of `topic`-`partition`; None is a tombstone."""

    group: str
    topic: str
    partition: int
    value: OffsetAndMetadata | None


class GroupRecord(NamedTuple):
    """State of `group` after a rebalance; None is a tombstone."""

    group: str
    value: Group | None


class UnreadableRecord(ValueError):
    """A record of an unknown kind or version."""


def partition_for(group: str, partitions: int) -> int:
    """The partition of `__consumer_offsets` whose leader coordinates `group`: Java's hash of the name, without its sign
    bit. Kafka takes the absolute value, so groups of negative hashes are elsewhere there."""
    code = 0
    units = group.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        code = (31 * code + int.from_bytes(units[at : at + 2])) & 0xFFFFFFFF
    return (code & 0x7FFFFFFF) % partitions


def storable(*texts: str | None) -> bool:
    """Whether records can hold these strings."""
    return all(text is None or len(text.encode()) <= STRING_BYTES_MAX for text in texts)


def encode_offset(
    group: str, topic: str, partition: int, value: OffsetAndMetadata | None
) -> tuple[bytes, bytes | None]:
    """Key and value of an offset record."""
    key = _SHORT.pack(_OFFSET_KEY) + _string(group) + _string(topic) + _INT.pack(partition)
    if value is None:
        return key, None
    content = _LONG.pack(value.offset) + _INT.pack(value.leader_epoch)
    if value.topic_id is None:
        content += _string(value.metadata) + _LONG.pack(value.commit_ms)
        return key, _SHORT.pack(_OFFSET_VALUE) + content
    content += _compact_string(value.metadata) + _LONG.pack(value.commit_ms)
    tagged = b"".join(encode_varint(number) for number in (1, _TOPIC_ID_TAG, _TOPIC_ID_BYTES)) + value.topic_id.bytes
    return key, _SHORT.pack(_OFFSET_VALUE_WITH_TOPIC_ID) + content + tagged


def encode_group(group: Group, time_ms: int) -> tuple[bytes, bytes]:
    """Key and value of a group record."""
    parts = [
        _SHORT.pack(_GROUP_VALUE),
        _string(group.protocol_type),
        _INT.pack(group.generation),
        _string(group.protocol),
        _string(group.leader),
        _LONG.pack(time_ms),
        _INT.pack(len(group.members)),
    ]
    for member in group.members:
        parts += [
            _string(member.id),
            _string(member.instance_id),
            _string(member.client_id),
            _string(member.client_host),
            _INT.pack(member.rebalance_timeout_ms),
            _INT.pack(member.session_timeout_ms),
            _bytes(member.metadata_for(group.protocol)),
            _bytes(member.assignment),
        ]
    return _SHORT.pack(_GROUP_KEY) + _string(group.id), b"".join(parts)


def encode_group_gone(group: str) -> tuple[bytes, None]:
    """Key and value of a group tombstone."""
    return _SHORT.pack(_GROUP_KEY) + _string(group), None


def decode(key: bytes | None, value: bytes | None) -> OffsetRecord | GroupRecord:
    """The record with this key and value. Raises UnreadableRecord."""
    try:
        reader = _Reader(key or b"")
        kind = reader.int16()
        if kind == _OFFSET_KEY:
            group, topic, partition = reader.text(), reader.text(), reader.int32()
            return OffsetRecord(group, topic, partition, None if value is None else _offset(_Reader(value)))
        if kind == _GROUP_KEY:
            group = reader.text()
            return GroupRecord(group, None if value is None else _group(group, _Reader(value)))
    except (struct.error, UnicodeDecodeError, Malformed) as error:
        raise UnreadableRecord(f"not a coordinator's record: {error}") from error
    raise UnreadableRecord(f"a record whose key has the unknown version {kind}")


def _offset(reader: _Reader) -> OffsetAndMetadata:
    if reader.version(_OFFSET_VALUE, _OFFSET_VALUE_WITH_TOPIC_ID) == _OFFSET_VALUE:
        return OffsetAndMetadata(reader.int64(), reader.int32(), reader.text(), reader.int64())
    value = OffsetAndMetadata(reader.int64(), reader.int32(), reader.compact_text(), reader.int64())
    topic_id = reader.tagged_fields().get(_TOPIC_ID_TAG)
    return value if topic_id is None else value._replace(topic_id=_topic_id(topic_id))


def _topic_id(content: bytes) -> UUID | None:
    if len(content) != _TOPIC_ID_BYTES:
        raise UnreadableRecord(f"a topic id of {len(content)} bytes")
    return UUID(bytes=content) if any(content) else None


def _group(name: str, reader: _Reader) -> Group:
    reader.version(_GROUP_VALUE)
    protocol_type, generation = reader.text(), reader.int32()
    protocol, leader = reader.string(), reader.string()
    reader.int64()
    members: list[ClassicGroupMember] = []
    for _ in range(reader.int32()):
        member_id, instance = reader.text(), reader.string()
        client_id, client_host = reader.text(), reader.text()
        rebalance_ms, session_ms = reader.int32(), reader.int32()
        subscription, assignment = reader.blob(), reader.blob()
        members.append(
            ClassicGroupMember(
                member_id,
                instance_id=instance,
                client_id=client_id,
                client_host=client_host,
                session_timeout_ms=session_ms,
                rebalance_timeout_ms=rebalance_ms,
                protocols=((protocol or "", subscription),),
                assignment=assignment,
            )
        )
    return Group.stored(name, protocol_type, generation, protocol, leader, members)


def _string(text: str | None) -> bytes:
    if text is None:
        return _SHORT.pack(-1)
    content = text.encode()
    return _SHORT.pack(len(content)) + content


def _compact_string(text: str) -> bytes:
    content = text.encode()
    return encode_varint(len(content) + 1) + content


def _bytes(content: bytes) -> bytes:
    return _INT.pack(len(content)) + content


class _Reader:
    """Reads fields in order. Raises struct.error if the bytes end too early."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def _take(self, size: int) -> bytes:
        taken = self._content[self._at : self._at + size]
        if size < 0 or len(taken) < size:
            raise struct.error(f"{len(self._content)} bytes are too few")
        self._at += size
        return taken

    def version(self, *known: int) -> int:
        actual = self.int16()
        if actual not in known:
            expected = " or ".join(str(version) for version in known)
            raise UnreadableRecord(f"a value of version {actual}, expected {expected}")
        return actual

    def int16(self) -> int:
        return int(_SHORT.unpack(self._take(2))[0])

    def int32(self) -> int:
        return int.from_bytes(self._take(4), signed=True)

    def int64(self) -> int:
        return int(_LONG.unpack(self._take(8))[0])

    def string(self) -> str | None:
        length = self.int16()
        return None if length == -1 else self._take(length).decode()

    def text(self) -> str:
        return self.string() or ""

    def varint(self) -> int:
        value, self._at = decode_varint(self._content, self._at)
        return value

    def compact_text(self) -> str:
        return self._take(self.varint() - 1).decode()

    def tagged_fields(self) -> dict[int, bytes]:
        """The contents of the tagged fields, by tag."""
        fields: dict[int, bytes] = {}
        for _ in range(self.varint()):
            tag = self.varint()
            fields[tag] = self._take(self.varint())
        return fields

    def blob(self) -> bytes:
        length = self.int32()
        return b"" if length == -1 else self._take(length)


Records = Sequence[tuple[bytes, bytes | None]]
"""Keys and values of one batch."""
