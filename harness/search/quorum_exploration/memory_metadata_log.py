"""The metadata log of a controller in memory: the shipped `KafkaMetadataLog` without files, and without snapshots."""

from __future__ import annotations

from harness.search.exploration.memory_log import MemoryLog
from harness.search.quorum_exploration.quorum_values import Records
from images.broker.log.leader_epochs import EpochCache
from images.broker.raft.log import KafkaMetadataLog
from images.broker.raft.values import ElectionState, SnapshotId
from images.broker.rules import Rules

_NEVER = 1 << 60


class _UnsyncedLog(MemoryLog):
    """A log in memory, where a flush does nothing: `Durability` says what survives a power loss."""

    def flush(self) -> None:
        """See `Log.flush`."""


class MemoryMetadataLog(KafkaMetadataLog):
    """The log and the election state of a controller."""

    def __init__(self, records: Records, epochs: EpochCache, stored: ElectionState, rules: Rules) -> None:
        self._rules = rules
        self._log = self._memory = _UnsyncedLog(records, epochs)
        self._bytes_between_snapshots = _NEVER
        self._bytes_since_snapshot = 0
        self.stored = stored

    @classmethod
    def recovered(cls, records: Records, stored: ElectionState, rules: Rules) -> MemoryMetadataLog:
        """The log that is opened after a restart that has left these records."""
        return cls(records, MemoryLog.recovered(records).epochs, stored, rules)

    @property
    def snapshots(self) -> tuple[SnapshotId, ...]:
        """None."""
        return ()

    @property
    def records(self) -> Records:
        """All records."""
        return self._memory.records

    def read_election_state(self) -> ElectionState:
        """See `KafkaMetadataLog.read_election_state`."""
        return self.stored

    def write_election_state(self, election_state: ElectionState) -> None:
        """See `KafkaMetadataLog.write_election_state`."""
        self.stored = election_state
