"""Replica logs, read from the data directories that a run collected.

The files are Kafka's own, so the same reader serves every system under test: below `nodes/<node>/data/` a directory
`<topic>-<partition>` a replica, in it segments `<20-digit base offset>.log` of v2 record batches, and beside the
directories `replication-offset-checkpoint` with the high watermarks: a version line, a count line, then
`topic partition offset` lines. Topics whose names begin with `__` are the system's own and are left out, and so are
directories Kafka has marked (`….-delete`, `….-future`).

A replica is read as its broker would recover it: batch by batch, up to the first that is torn or corrupt. A node
that was down when its files were collected may have such a tail; its log then ends before it, and its row in
REPLICA_ENDS names the damage. So it does where a batch begins below the end of the one before it, or below its segment:
no log takes such a batch, and who looks for its offsets does not find them. It is read all the same.

A log starts at the offset its node traced, or at the offset in Kafka's `log-start-offset-checkpoint`, but not before
its first segment. Records below the start, in the same segment, are read as well.

The high watermark of a replica is the last one its node traced, or else the one it last checkpointed, never above the
log's end; -1 when neither exists. Beside the segments lies `leader-epoch-checkpoint`, where each leader epoch begins: a
version line, a count line, then `epoch offset` lines.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from checkers.tables import DAMAGED_CHECKPOINT, REPLICA_ENDS, REPLICAS
from images.wire import batch
from results.errors import StoreError
from results.run.node_files import FileTree

CHECKPOINT = "replication-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
EPOCHS = "leader-epoch-checkpoint"
_REPLICA = re.compile(r"(?P<topic>[A-Za-z0-9._-]+)-(?P<partition>\d+)")
_SEGMENT = re.compile(r"\d{20}\.log")


@dataclass(frozen=True, slots=True)
class ReplicaLogs:
    """Every replica's log: its records in REPLICAS, its ends in REPLICA_ENDS."""

    records: pa.Table
    ends: pa.Table


@dataclass(frozen=True, slots=True)
class ReplicaDirectory:
    """The directory of one replica's log."""

    node: str
    topic: str
    partition: int
    data: FileTree
    """The data directory of its node."""
    directory: FileTree


def read_nodes(nodes: FileTree, trace: pa.Table | None = None, left_out: Collection[str] = ()) -> ReplicaLogs:
    """Read every replica below `nodes`, ordered by node, topic and partition; empty tables when there is none.

    `trace` has later high watermarks than the checkpoints; replicas of the topics `left_out` are not read.
    """
    records: dict[str, list[object]] = {name: [] for name in REPLICAS.names}
    ends: dict[str, list[object]] = {name: [] for name in REPLICA_ENDS.names}
    traced = _traced_high_watermarks(trace) if trace is not None else {}
    starts = _traced_log_starts(trace) if trace is not None else {}
    try:
        for replica in find_replicas(nodes, left_out):
            start, end, unread_bytes, damage = _read_log(replica, records)
            place = (replica.node, replica.topic, replica.partition)
            moved = starts.get(place)
            if moved is None:
                moved = read_checkpoint(replica.data / LOG_STARTS).get(place[1:], 0)
            start = max(start, moved)
            end = max(start, end)
            known = traced.get(place)
            if known is None:
                known = read_checkpoint(replica.data / CHECKPOINT).get(place[1:], -1)
            epochs = read_epoch_checkpoint(replica.directory / EPOCHS)
            row = (*place, start, end, min(known, end), unread_bytes, damage, epochs)
            for name, value in zip(REPLICA_ENDS.names, row, strict=True):
                ends[name].append(value)
    except OSError as error:
        raise StoreError.of("read the replica logs in", str(nodes), error) from error
    return ReplicaLogs(pa.table(records, schema=REPLICAS), pa.table(ends, schema=REPLICA_ENDS))


def fingerprints(nodes: FileTree) -> dict[str, str]:
    """Node → a hash of all that `read_nodes` reads of it, for each node with a replica. Raises StoreError."""
    digests: dict[str, Any] = {}
    try:
        for replica in find_replicas(nodes):
            data, directory = replica.data, replica.directory
            if replica.node not in digests:
                digests[replica.node] = hashlib.blake2b(digest_size=16)
                _add_files(digests[replica.node], "", (data / CHECKPOINT, data / LOG_STARTS))
            _add_files(digests[replica.node], "", (directory,))
            _add_files(digests[replica.node], f"{directory.name}/", (*_segments(directory), directory / EPOCHS))
    except OSError as error:
        raise StoreError.of("read the replica logs in", str(nodes), error) from error
    return {node: digest.hexdigest() for node, digest in digests.items()}


def _add_files(digest: Any, below: str, files: Iterable[FileTree]) -> None:
    for file in files:
        contents = file.read_bytes() if file.is_file() else b""
        digest.update(f"{below}{file.name} {len(contents)};".encode())
        digest.update(contents)


def find_replicas(nodes: FileTree, left_out: Collection[str] = ()) -> Iterator[ReplicaDirectory]:
    """The replicas below `nodes`, ordered by node, topic and partition, without those of the topics `left_out`."""
    replicas = []
    for node in _inside(nodes):
        data = node / "data"
        for directory in _inside(data):
            match = _REPLICA.fullmatch(directory.name)
            if match is None or match["topic"].startswith("__") or match["topic"] in left_out:
                continue
            if directory.is_dir():
                replica = ReplicaDirectory(node.name, match["topic"], int(match["partition"]), data, directory)
                replicas.append(replica)
    yield from sorted(replicas, key=lambda replica: (replica.node, replica.topic, replica.partition))


def _inside(tree: FileTree) -> Iterable[FileTree]:
    return tree.iterdir() if tree.is_dir() else ()


def read_checkpoint(path: FileTree) -> dict[tuple[str, int], int]:
    """(topic, partition) → offset from a checkpoint file of Kafka's; empty when it is missing or damaged."""
    try:
        lines = _lines(path)
    except FileNotFoundError:
        return {}
    try:
        version, count = int(lines[0]), int(lines[1])
        rows = [line.split(" ") for line in lines[2:]]
        if version != 0 or count != len(rows):
            return {}
        return {(topic, int(partition)): int(offset) for topic, partition, offset in rows}
    except (IndexError, ValueError):
        return {}


def _lines(file: FileTree) -> list[str]:
    return file.read_bytes().decode(errors="replace").splitlines()


def read_epoch_checkpoint(path: FileTree) -> str:
    """A `leader-epoch-checkpoint` as `epoch_checkpoint` in REPLICA_ENDS has it. To Kafka a file without a count, which
    it creates before it has entries, has none."""
    try:
        lines = _lines(path)
    except FileNotFoundError:
        return ""
    try:
        version, count, *rows = [[int(word) for word in line.split()] for line in (*lines, *["0", "0"][len(lines) :])]
    except ValueError:
        return DAMAGED_CHECKPOINT
    whole = version == [0] and count == [len(rows)]
    sound = whole and all(len(row) == 2 and 0 <= min(row) and max(row) < 1 << 63 for row in rows)
    return json.dumps(rows) if sound else DAMAGED_CHECKPOINT


def _read_log(replica: ReplicaDirectory, columns: dict[str, list[object]]) -> tuple[int, int, int, str]:
    """Add the replica's records to `columns`. Returns where its log starts and ends, how many bytes lie behind the
    last intact batch, or in batches out of place, and what is wrong with them: `torn`, `corrupt`, `disordered` or
    nothing."""
    segments = _segments(replica.directory)
    start = end = _base_offset(segments[0]) if segments else 0
    misplaced_bytes = 0
    for number, segment in enumerate(segments):
        data = segment.read_bytes()
        whole = 0
        try:
            for header, payload in batch.iterate(data):
                batch.check(payload)
                _add(replica, header, payload, columns)
                if header.base_offset < max(end, _base_offset(segment)):
                    misplaced_bytes += header.size
                end = max(end, header.next_offset)
                whole += header.size
        except batch.CorruptBatch:
            pass
        if whole < len(data):
            later = [len(each.read_bytes()) for each in segments[number + 1 :]]
            torn = not any(later) and not _has_whole_batch_behind(data[whole:])
            return start, end, len(data) - whole + sum(later), "torn" if torn else "corrupt"
    return start, end, misplaced_bytes, "disordered" if misplaced_bytes else ""


def _segments(directory: FileTree) -> list[FileTree]:
    segments = (file for file in directory.iterdir() if _SEGMENT.fullmatch(file.name))
    return sorted(segments, key=lambda file: file.name)


def _base_offset(segment: FileTree) -> int:
    return int(segment.name.removesuffix(".log"))


def _has_whole_batch_behind(rest: bytes) -> bool:
    """Whether an intact batch follows the damaged one at the beginning of `rest`."""
    try:
        batches = [payload for _, payload in batch.iterate(rest)][1:]
        return any(batch.check(payload) for payload in batches)
    except batch.CorruptBatch:
        return False


def _add(replica: ReplicaDirectory, header: batch.Header, payload: bytes, columns: dict[str, list[object]]) -> None:
    if header.is_control:
        return
    for offset, value in _values(header, payload):
        sequence = (header.base_sequence + offset - header.base_offset) % batch.SEQUENCE_MODULUS
        row = (
            replica.node,
            replica.topic,
            replica.partition,
            offset,
            header.leader_epoch,
            value,
            header.producer_id,
            header.producer_epoch,
            sequence if header.base_sequence >= 0 else -1,
            header.base_offset,
        )
        for name, item in zip(REPLICAS.names, row, strict=True):
            columns[name].append(item)


def _values(header: batch.Header, payload: bytes) -> list[tuple[int, int | None]]:
    """(offset, value) of each record of an intact batch. Records that cannot be read have no value."""
    try:
        return [(record.offset, _number(record.value)) for record in batch.records(payload)]
    except batch.CorruptBatch:
        return [(offset, None) for offset in range(header.base_offset, header.next_offset)]


def _number(value: bytes | None) -> int | None:
    """The workload's value: an int64 in ASCII decimal, with any zeros in front; None for anything else."""
    if value is None or not re.fullmatch(rb"-?0{0,4000}\d{1,19}", value):
        return None
    number = int(value)
    return number if -(1 << 63) <= number < 1 << 63 else None


def _traced_high_watermarks(trace: pa.Table) -> dict[tuple[str, str, int], int]:
    """(node, topic, partition) → the last high watermark traced there, lowered by later truncations."""
    kinds = pa.array(["high_watermark", "follower_high_watermark", "log_recovered", "truncated"])
    rows = trace.filter(pc.is_in(trace["kind"], value_set=kinds)).select(
        ["node", "topic", "partition", "kind", "high_watermark", "offset"]
    )
    last: dict[tuple[str, str, int], int] = {}
    for node, topic, partition, kind, high_watermark, offset in zip(
        *(column.to_pylist() for column in rows.columns), strict=True
    ):
        place = (node, topic, partition)
        last[place] = min(last.get(place, high_watermark), offset) if kind == "truncated" else high_watermark
    return last


def _traced_log_starts(trace: pa.Table) -> dict[tuple[str, str, int], int]:
    """(node, topic, partition) → where its log starts, as traced last."""
    kinds = pa.array(["log_start", "log_recovered", "truncated"])
    rows = trace.filter(pc.is_in(trace["kind"], value_set=kinds))
    last: dict[tuple[str, str, int], int] = {}
    for row in rows.select(["node", "topic", "partition", "kind", "offset", "detail"]).to_pylist():
        start = row["offset"]
        if row["kind"] == "truncated":
            start = json.loads(row["detail"] or "{}").get("log_start")
        if start is not None:
            last[row["node"], row["topic"], row["partition"]] = start
    return last
