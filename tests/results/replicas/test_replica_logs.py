"""Replica logs are read as their broker would recover them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from checkers.tables import TRACE
from images.wire import batch
from results.run.json_lines import fill
from results.run.replica_logs import fingerprints, read_checkpoint, read_nodes


def _replica(nodes: Path, node: str, name: str, segments: dict[int, bytes]) -> Path:
    directory = nodes / node / "data" / name
    directory.mkdir(parents=True)
    for base, data in segments.items():
        (directory / f"{base:020}.log").write_bytes(data)
    return directory


def _batch(base: int, *values: bytes, epoch: int = 0, sequence: int = -1) -> bytes:
    producer = 9 if sequence >= 0 else -1
    return batch.build(
        values,
        timestamp_ms=1,
        producer_id=producer,
        producer_epoch=0 if producer >= 0 else -1,
        base_sequence=sequence,
        leader_epoch=epoch,
        base_offset=base,
    )


def _trace(*rows: dict[str, object]) -> pa.Table:
    columns = {name: [row.get(name) for row in rows] for name in TRACE.names}
    return fill(pa.table(columns, schema=pa.schema([field.with_nullable(True) for field in TRACE])), TRACE)


def test_records_of_every_segment_are_read_with_their_epoch_and_sequence(tmp_path: Path) -> None:
    _replica(
        tmp_path,
        "b1",
        "my-topic-1",
        {0: _batch(0, b"10", b"-11", sequence=5), 2: _batch(2, b"12", epoch=3) + _batch(3, b"hello", epoch=4)},
    )
    logs = read_nodes(tmp_path)
    assert logs.ends.to_pylist() == [
        {"node": "b1", "topic": "my-topic", "partition": 1, "log_start": 0, "log_end": 4, "high_watermark": -1}
        | {"unread_bytes": 0, "damage": "", "epoch_checkpoint": ""}
    ]
    rows = logs.records.to_pylist()
    assert [(row["offset"], row["leader_epoch"], row["value"], row["sequence"], row["batch_base"]) for row in rows] == [
        (0, 0, 10, 5, 0),
        (1, 0, -11, 6, 0),
        (2, 3, 12, -1, 2),
        (3, 4, None, -1, 3),
    ]


def test_sequence_numbers_start_again_after_the_largest(tmp_path: Path) -> None:
    _replica(tmp_path, "b1", "t-0", {0: _batch(0, b"1", b"2", sequence=(1 << 31) - 1)})
    assert read_nodes(tmp_path).records["sequence"].to_pylist() == [(1 << 31) - 1, 0]


def test_a_log_ends_before_its_first_torn_or_corrupt_batch(tmp_path: Path) -> None:
    sound, next_batch = _batch(0, b"1"), _batch(1, b"2")
    corrupt = next_batch[:-1] + bytes([next_batch[-1] ^ 1])
    _replica(tmp_path, "b1", "t-0", {0: sound + next_batch[:-3]})
    _replica(tmp_path, "b2", "t-0", {0: sound + corrupt, 2: _batch(2, b"3")})
    _replica(tmp_path, "b3", "t-0", {0: sound + b"\x00" * 100})
    _replica(tmp_path, "b4", "t-0", {7: b""})
    _replica(tmp_path, "b5", "t-0", {0: sound + corrupt})
    _replica(tmp_path, "b6", "t-0", {0: sound + corrupt + _batch(2, b"3")})
    logs = read_nodes(tmp_path)
    assert logs.ends["log_end"].to_pylist() == [1, 1, 1, 7, 1, 1]
    assert logs.records["value"].to_pylist() == [1, 1, 1, 1, 1]
    size = len(next_batch)
    assert logs.ends["unread_bytes"].to_pylist() == [size - 3, 2 * size, 100, 0, size, 2 * size]
    assert logs.ends["damage"].to_pylist() == ["torn", "corrupt", "torn", "", "torn", "corrupt"]


def test_a_batch_below_the_end_of_the_one_before_it_or_below_its_segment_is_out_of_place(tmp_path: Path) -> None:
    first, second, third = (_batch(offset, b"1") for offset in range(3))
    _replica(tmp_path, "b1", "t-0", {0: first + third + second})
    _replica(tmp_path, "b2", "t-0", {0: first, 2: second + third})
    _replica(tmp_path, "b3", "t-0", {0: first + second, 1: second + third})
    _replica(tmp_path, "b4", "t-0", {0: first, 2: third})
    logs = read_nodes(tmp_path)
    assert logs.ends["log_end"].to_pylist() == [3, 3, 3, 3]
    assert logs.ends["damage"].to_pylist() == ["disordered", "disordered", "disordered", ""]
    assert logs.ends["unread_bytes"].to_pylist() == [len(second), len(second), len(second), 0]


def test_system_topics_and_marked_directories_are_left_out(tmp_path: Path) -> None:
    for name in ("__cluster_metadata-0", "t-0.deadbeef-delete", "t-0.deadbeef-future", "lost+found"):
        _replica(tmp_path, "b1", name, {0: _batch(0, b"1")})
    assert read_nodes(tmp_path).ends.num_rows == 0


def test_nodes_without_any_data_give_empty_tables(tmp_path: Path) -> None:
    assert read_nodes(tmp_path / "missing").records.num_rows == 0


def test_the_high_watermark_is_the_last_traced_else_the_checkpointed_and_never_above_the_log(tmp_path: Path) -> None:
    for node in ("b1", "b2", "b3", "b4"):
        _replica(tmp_path, node, "t-0", {0: _batch(0, b"1") + _batch(1, b"2")})
        if node != "b4":
            (tmp_path / node / "data" / "replication-offset-checkpoint").write_text("0\n1\nt 0 1\n")
    trace = _trace(
        {"node": "b1", "topic": "t", "partition": 0, "kind": "high_watermark", "high_watermark": 2, "offset": 1},
        {"node": "b3", "topic": "t", "partition": 0, "kind": "follower_high_watermark", "high_watermark": 9},
        {"node": "b3", "topic": "t", "partition": 0, "kind": "truncated", "high_watermark": 9, "offset": 5},
    )
    assert read_nodes(tmp_path, trace).ends["high_watermark"].to_pylist() == [2, 1, 2, -1]


@pytest.mark.parametrize("text", ["", "0\n", "1\n0\n", "0\n2\nt 0 1\n", "0\n1\nt zero 1\n", "0\n1\nt 0\n"])
def test_a_damaged_checkpoint_tells_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "replication-offset-checkpoint"
    path.write_text(text)
    assert read_checkpoint(path) == {}


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("0\n2\n0 0\n3 17\n", "[[0, 0], [3, 17]]"),
        ("", "[]"),
        ("0\n0\n", "[]"),
        ("0\n2\n0 0\n", "damaged"),
        ("0\n1\n0\n", "damaged"),
        ("0\n1\n0 zero\n", "damaged"),
        ("0\n1\n0 -1\n", "damaged"),
        ("1\n1\n0 0\n", "damaged"),
        ("0\n", "[]"),
        ("1\n", "damaged"),
    ],
)
def test_the_epoch_checkpoint_is_read_as_kafka_reads_it(tmp_path: Path, text: str, read: str) -> None:
    _replica(tmp_path, "b1", "t-0", {0: _batch(0, b"1")})
    before = fingerprints(tmp_path)
    assert read_nodes(tmp_path).ends["epoch_checkpoint"].to_pylist() == [""]
    (tmp_path / "b1" / "data" / "t-0" / "leader-epoch-checkpoint").write_text(text)
    assert read_nodes(tmp_path).ends["epoch_checkpoint"].to_pylist() == [read]
    assert (fingerprints(tmp_path) == before) is not bool(text), "the hashes of what was collected cover it"


def test_a_log_starts_where_that_was_traced_else_checkpointed_but_not_before_its_first_segment(tmp_path: Path) -> None:
    for node in ("b1", "b2", "b3", "b4"):
        _replica(tmp_path, node, "t-0", {3: _batch(3, b"1", b"2", b"3")})
    for node in ("b1", "b2", "b3"):
        (tmp_path / node / "data" / "log-start-offset-checkpoint").write_text("0\n1\nt 0 4\n", encoding="utf-8")
    place = {"topic": "t", "partition": 0}
    trace = _trace(
        {"node": "b1", "kind": "log_start", "offset": 5, **place},
        {"node": "b3", "kind": "log_start", "offset": 5, **place},
        {"node": "b3", "kind": "truncated", "offset": 9, "detail": '{"log_start": 2}', **place},
        {"node": "b4", "kind": "log_start", "offset": 5, **place},
        {"node": "b4", "kind": "truncated", "offset": 9, "detail": "{}", **place},
        {"node": "b4", "kind": "log_recovered", "offset": 8, "high_watermark": 8, **place},
    )
    logs = read_nodes(tmp_path, trace)
    assert logs.ends["log_start"].to_pylist() == [5, 4, 3, 8]
    assert logs.ends["log_end"].to_pylist() == [6, 6, 6, 8]
    assert logs.records.num_rows == 12, "what shares a segment with the start is read all the same"
