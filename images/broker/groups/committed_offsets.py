"""The committed offsets that a coordinator has of its groups: those that count, and the changes that are in its log
above the high watermark and do not count yet. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from images.broker.groups.records import OffsetAndMetadata, OffsetRecord, TopicPartition
from images.broker.replication.replica_results import AppendResult


class UncommittedChange(NamedTuple):
    """A change of a group's offsets that is in the log above the high watermark."""

    append_result: AppendResult
    group: str
    offsets: tuple[tuple[TopicPartition, OffsetAndMetadata], ...] | None
    """None deletes all offsets of the group."""


class CommittedOffsets:
    """Those of one shard."""

    def __init__(self) -> None:
        self._of_groups: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
        self._uncommitted: deque[UncommittedChange] = deque()

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups that have had any that count."""
        return tuple(self._of_groups)

    def of(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Those of a group that count."""
        return dict(self._of_groups.get(group, {}))

    def uncommitted_of(self, group: str) -> list[UncommittedChange]:
        """The changes of a group that do not count yet, in log order."""
        return [change for change in self._uncommitted if change.group == group]

    def replay(self, record: OffsetRecord) -> None:
        """A record of the log that is loaded."""
        key = TopicPartition(record.topic, record.partition)
        if record.value is None:
            self._of_groups.get(record.group, {}).pop(key, None)
        else:
            self._of_groups.setdefault(record.group, {})[key] = record.value

    def delete_group(self, group: str) -> None:
        """The group has none any more."""
        self._of_groups.pop(group, None)

    def append(self, change: UncommittedChange) -> None:
        """A change is in the log."""
        self._uncommitted.append(change)

    def commit(self, high_watermark: int | None) -> None:
        """The changes below the high watermark count from now on; None: all of them."""
        while self._uncommitted:
            change = self._uncommitted[0]
            if high_watermark is not None and change.append_result.end > high_watermark:
                return
            self._uncommitted.popleft()
            if change.offsets is None:
                self.delete_group(change.group)
            else:
                self._of_groups.setdefault(change.group, {}).update(change.offsets)

    def forget(self, is_gone: Callable[[TopicPartition, OffsetAndMetadata], bool]) -> list[tuple[str, TopicPartition]]:
        """Forget the offsets of topics that are gone, also those that do not count yet. Returns the group and the
        partition of each."""
        gone: dict[tuple[str, TopicPartition], None] = {}
        for group, offsets in self._of_groups.items():
            for key in [key for key, value in offsets.items() if is_gone(key, value)]:
                del offsets[key]
                gone[group, key] = None
        for place, change in enumerate(self._uncommitted):
            if change.offsets is not None:
                gone |= {(change.group, key): None for key, value in change.offsets if is_gone(key, value)}
                kept = tuple(each for each in change.offsets if not is_gone(*each))
                self._uncommitted[place] = change._replace(offsets=kept)
        return list(gone)
