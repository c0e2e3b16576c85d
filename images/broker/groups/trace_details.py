"""What a coordinator's trace says of its groups and their offsets."""

from __future__ import annotations

from collections.abc import Mapping

from images.broker.groups.group import Group
from images.broker.groups.records import OffsetAndMetadata, TopicPartition


def offsets_by_name(offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[str, int]:
    """Offsets by the name of the partition."""
    return {f"{key.topic}-{key.partition}": value.offset for key, value in sorted(offsets.items())}


def waiting_for(group: Group) -> dict[str, object]:
    """The state of a group, and the answers that its members wait for."""
    waits = {member.id: "join" if member.joining else "sync" if member.syncing else "" for member in group.members}
    return {"state": str(group.state), "generation": group.generation, "storing": group.storing, "members": waits}
