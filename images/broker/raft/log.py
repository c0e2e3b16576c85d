"""The metadata log of one controller on disk: batches, snapshots, election state, and the committed image.

One change is one batch. A batch is on disk when `append` returns; the quorum decides when it is committed. Beside the
log lies `quorum-state`, Kafka's file of that name: epoch, leader and vote of this controller.

The two newest snapshots are kept, and the log from the end of the older one on; what is below is deleted, so that the
log stays bounded. A replica that still reads the older snapshot when the next one is written reads it to its end and
goes on from there, one that lags a little finds what it lacks in the log, and a controller whose newest snapshot is
damaged replays the log from the older one. The first snapshot deletes nothing.

A snapshot takes effect in three steps, the first two durable before the next one: it is written; the log start advances
to the end of the one before; the snapshots below the log start are deleted. So a log that begins above 0 begins where a
snapshot ends, and a crash leaves snapshots too many at most. Opening the log finishes what a crash has cut short.

Opening reads the latest snapshot alone, and an older one only where that is damaged: whether the older one of two is
whole is not known before it is needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from errno import EIO

from images.broker.log.log import Log, OffsetOutOfRange
from images.broker.log.log_config import NEVER, LogConfig
from images.broker.metadata.image import ClusterImage, MetadataError, Record, decode, encode
from images.broker.metadata.image_trace import metadata_loaded
from images.broker.metadata.internal_topics import CLUSTER_METADATA_TOPIC
from images.broker.ports import NodePorts
from images.broker.raft.snapshots import MetadataSnapshots, decode_snapshot, encode_snapshot
from images.broker.raft.values import ElectionState, EpochAndOffset, LogView, SnapshotId
from images.broker.rules import Rules
from images.broker.runtime.files import TEMPORARY_SUFFIX, read_whole, write_durably
from images.wire import batch as batches
from images.wire.connection import MAX_FRAME_BYTES

DIRECTORY = f"{CLUSTER_METADATA_TOPIC}-0"
QUORUM_STATE = f"{DIRECTORY}/quorum-state"
_REPLAY_BYTES = 1 << 20
CHANGE_BYTES_MAX = MAX_FRAME_BYTES // 4
"""The largest change. A fetch gives whole batches, at least one: a batch that is larger than any frame would stop every
reader of the log. A change of one broker's partitions has room for 100,000 of them."""

__all__ = ["CHANGE_BYTES_MAX", "ChangeTooLarge", "KafkaMetadataLog", "OffsetOutOfRange"]


class ChangeTooLarge(Exception):
    """A change has more bytes than a batch of the metadata log may have."""


class KafkaMetadataLog:
    """Batches, snapshots and election state in one directory."""

    def __init__(
        self, node_ports: NodePorts, segment_bytes: int, rules: Rules, bytes_between_snapshots: int = 20 << 20
    ) -> None:
        """Open and recover the log. Raises OSError, CorruptBatch or MetadataError."""
        self._node_ports = node_ports
        self._files = node_ports.files
        self._rules = rules
        self._bytes_between_snapshots = bytes_between_snapshots
        self._bytes_since_snapshot = 0
        config = LogConfig(segment_bytes, flush_interval_messages=1 if rules.metadata_is_synced else NEVER)
        self._log = Log.open(node_ports.files, DIRECTORY, config, node_ports.log)
        if rules.metadata_is_synced:
            # Records that survived a crash unsynced count from now on, so they must be durable.
            self._log.flush()
        self._image = ClusterImage()
        self._snapshots = MetadataSnapshots(node_ports.files, DIRECTORY)
        self._damaged: list[SnapshotId] = []
        """Those that were passed over when the log was opened."""
        self._load_latest_snapshot()
        self._trim()
        self._bytes_since_snapshot = self._bytes_from(self.snapshot_end)

    # ---- the log -----------------------------------------------------------------------------------------------------

    @property
    def start(self) -> int:
        """Offset of the first record."""
        return self._log.start

    @property
    def end(self) -> int:
        """Offset after the last record."""
        return self._log.end

    @property
    def snapshots(self) -> tuple[SnapshotId, ...]:
        """The snapshots that are kept, the latest last."""
        return self._snapshots.ids

    @property
    def snapshot_end(self) -> int:
        """End of the latest snapshot, 0 without one: everything below is committed."""
        return self.snapshots[-1].end if self.snapshots else 0

    @property
    def last_entry(self) -> EpochAndOffset:
        """The end of the log: the log with the greater end is more up to date (Raft §5.4.1)."""
        last_epoch = self._log.last_batch_epoch
        if self._log.end == self._log.start:
            last_epoch = next((each.epoch for each in self.snapshots if each.end == self._log.end), last_epoch)
        return EpochAndOffset(max(0, last_epoch), self._log.end)

    @property
    def opening_detail(self) -> dict[str, object]:
        """The snapshots, what was deleted when the log was opened, and what its file has behind it, for the trace."""
        left_over = self._log.left_over.detail() if self._log.left_over is not None else {}
        behind, damaged = self._log.bytes_behind, [each.name for each in self._damaged]
        return {
            "snapshots": [each.end for each in self.snapshots],
            **left_over,
            **({"bytes_behind": behind} if behind else {}),
            **({"snapshots_damaged": damaged} if damaged else {}),
        }

    @property
    def view(self) -> LogView:
        """The log as `QuorumState` sees it."""
        return LogView(self._log.start, self._log.end, self._log.epochs, self.snapshots)

    def encode_batch(self, records: Sequence[Record], epoch: int, timestamp_ms: int) -> bytes:
        """Encode one change as one batch, which survives a crash as a whole or not at all. Raises ChangeTooLarge."""
        values = [encode(record) for record in records]
        batch = batches.build(values, timestamp_ms=timestamp_ms, leader_epoch=epoch, base_offset=self.end)
        if len(batch) > CHANGE_BYTES_MAX:
            raise ChangeTooLarge(f"a change of {len(batch)} bytes, at most {CHANGE_BYTES_MAX} fit the metadata log")
        return batch

    def append(self, batch: bytes) -> batches.Header:
        """Append a batch with base offset `end`; it is on disk when this returns. Raises CorruptBatch or OSError."""
        self._bytes_since_snapshot += len(batch)
        return self._log.append(batch)

    def begins_segment(self, offset: int) -> bool:
        """Whether the last segment, not being the only one, begins with the batch at `offset`."""
        return self._log.begins_segment(offset)

    def truncate(self, to: int) -> None:
        """Truncate the log to `to`. Raises OSError."""
        self._log.truncate(to)
        if self._rules.metadata_is_synced:
            self._log.flush()

    def read(self, offset: int, max_bytes: int, before: int) -> bytes:
        """Whole batches in [`offset`, `before`), at least one if there is one. Raises OffsetOutOfRange."""
        return self._log.read(offset, max_bytes, before)

    def close(self) -> None:
        """Release the files."""
        self._log.close(clean=True)

    # ---- what it adds up to ------------------------------------------------------------------------------------------

    def image(self, high_watermark: int) -> ClusterImage:
        """The image of all records below `high_watermark`, which are committed. Raises MetadataError for invalid
        records, and as `read_committed`."""
        for header, batch in self._batches(self._image.offset, high_watermark):
            self._image = self._image.apply_all(decode_records(batch), header.base_offset)
        return self._image

    def _batches(self, offset: int, end: int) -> Iterator[tuple[batches.Header, bytes]]:
        """All batches from `offset` to `end`. Raises as `read_committed`."""
        while offset < end:
            for header, batch in batches.iterate(self.read_committed(offset, end)):
                yield header, batch
                offset = header.next_offset

    def read_committed(self, offset: int, high_watermark: int) -> bytes:
        """Some whole batches from `offset`, below `high_watermark`, on. Raises MetadataError where the file lacks some
        of what was appended: as does that of a process that was ended in the middle of a callback, whose writes have no
        effect, and which would read forever."""
        data = self.read(offset, _REPLAY_BYTES, high_watermark)
        if next(batches.iterate(data), None) is None:
            raise MetadataError(f"the metadata log has no record at offset {offset}, below {high_watermark}")
        return data

    # ---- snapshots ---------------------------------------------------------------------------------------------------

    def snapshot_and_trim(self, high_watermark: int) -> bool:
        """Write a snapshot at `high_watermark` and delete the log below the one before it, once the log has grown by
        the configured bytes.

        Returns whether the log start has advanced. Raises OSError.
        """
        if self._bytes_since_snapshot < self._bytes_between_snapshots or high_watermark <= self.snapshot_end:
            return False
        snapshot = SnapshotId(high_watermark, self._log.epochs.epoch_at(high_watermark - 1))
        data = encode_snapshot(self.image(high_watermark), snapshot.epoch)
        self._write_snapshot(snapshot, data, decode_snapshot(data, snapshot))
        self._bytes_since_snapshot = 0
        start = self._log.start
        self._trim()
        return self._log.start > start

    def install_snapshot(self, snapshot: SnapshotId, data: bytes) -> None:
        """Replace the whole log, and all snapshots, by a snapshot of the leader (Raft's InstallSnapshot).

        The own snapshots go last: until the leader's is on the disk they are all that there is. Raises OSError;
        CorruptBatch or MetadataError, with nothing changed.
        """
        image = decode_snapshot(data, snapshot)
        self._write_snapshot(snapshot, data, image)
        self._log.truncate_fully_and_start_at(snapshot.end)
        self._snapshots.delete([each for each in self.snapshots if each != snapshot])
        self._begin_with(snapshot, image)
        self._bytes_since_snapshot = 0

    def read_snapshot(self, snapshot: SnapshotId) -> bytes | None:
        """The content of a snapshot; None if there is no such snapshot."""
        return self._snapshots.read(snapshot)

    def _write_snapshot(self, snapshot: SnapshotId, data: bytes, image: ClusterImage) -> None:
        """Write `data`, which is read as `image`."""
        self._snapshots.write(snapshot, data)
        written = metadata_loaded(image, snapshot.epoch)
        detail = {"log_start": self._log.start, **written.detail}
        self._node_ports.trace(written._replace(kind="metadata_snapshot", detail=detail))

    def _load_latest_snapshot(self) -> None:
        """Begin with the latest snapshot. One that is damaged is passed over, and deleted, if the log has the records
        that it stands for."""
        for snapshot in reversed(self.snapshots):
            try:
                image = decode_snapshot(self._snapshots.read(snapshot) or b"", snapshot)
            except (batches.CorruptBatch, MetadataError) as error:
                if not self._has_last_record_of(snapshot):
                    raise
                self._node_ports.log(f"the metadata log is read in place of the snapshot {snapshot.name}: {error}")
                self._damaged.append(snapshot)
                continue
            self._begin_with(snapshot, image)
            break
        self._snapshots.delete(self._damaged)
        if self.snapshot_end < self._log.start:
            raise MetadataError(f"the metadata log begins at offset {self._log.start}, which no snapshot reaches")

    def _begin_with(self, snapshot: SnapshotId, image: ClusterImage) -> None:
        """Begin with a snapshot. If the log lacks the last record of the snapshot, it is emptied and starts at its end;
        this finishes an install that a crash cut short."""
        log, self._image = self._log, image
        if log.start < snapshot.end and not self._has_last_record_of(snapshot):
            log.truncate_fully_and_start_at(snapshot.end)
        if not log.epochs.entries:
            log.assign_epoch(snapshot.epoch, snapshot.end)

    def _has_last_record_of(self, snapshot: SnapshotId) -> bool:
        """Whether the log has the last record that a snapshot stands for."""
        log = self._log
        return log.start < snapshot.end <= log.end and log.epochs.epoch_at(snapshot.end - 1) == snapshot.epoch

    def _trim(self) -> None:
        """Delete the log below the older of the two newest snapshots, then the snapshots below the log start."""
        self._log.advance_start(self.snapshots[-2].end if len(self.snapshots) > 1 else 0)
        self._snapshots.delete([each for each in self.snapshots if each.end < self._log.start])

    def _bytes_from(self, offset: int) -> int:
        """Bytes of the batches from `offset` on."""
        return sum(len(batch) for _, batch in self._batches(offset, self.end))

    # ---- the vote ----------------------------------------------------------------------------------------------------

    def read_election_state(self) -> ElectionState:
        """The stored election state. Raises OSError if the file is damaged."""
        data = read_whole(self._files, QUORUM_STATE)
        if data is None:
            return ElectionState()
        try:
            content = json.loads(data)
            return ElectionState(content["leaderEpoch"], content["leaderId"], content["votedId"])
        except (ValueError, KeyError, TypeError):
            if not self._rules.vote_is_synced:
                return ElectionState()
            raise OSError(EIO, "not a quorum state", QUORUM_STATE) from None

    def write_election_state(self, election_state: ElectionState) -> None:
        """Store the election state; it survives a power loss on return. Raises OSError."""
        content = {
            "leaderId": election_state.leader,
            "leaderEpoch": election_state.epoch,
            "votedId": election_state.voted_for,
            "data_version": 0,
        }
        data = json.dumps(content).encode()
        if self._rules.vote_is_synced:
            write_durably(self._files, QUORUM_STATE, data)
            return
        file = self._files.open(QUORUM_STATE + TEMPORARY_SUFFIX)
        file.truncate(0)
        file.append(data)
        file.close()
        self._files.rename(QUORUM_STATE + TEMPORARY_SUFFIX, QUORUM_STATE)


def decode_records(batch: bytes) -> list[Record]:
    """The records of one metadata batch. Raises CorruptBatch or MetadataError."""
    return [decode(record.value or b"") for record in batches.records(batch)]
