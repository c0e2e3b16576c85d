"""A reader finds exactly the rows that the recorder wrote, whenever the run dies."""

from __future__ import annotations

from pathlib import Path

import pytest

from workloads.history import SCHEMA, Recorder, read_jsonl


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += 10
        return self.now


def write_a_history(recorder: Recorder) -> None:
    first = recorder.invoke(0, "append", "t", 1, value=7)
    poll = recorder.invoke(1, "poll", "t", 1, phase="final", offset=0)
    second = recorder.invoke(0, "append", "t", 0, value=8)
    recorder.invoke(0, "append", "t", 0, value=9)
    recorder.complete(second, "info", error="timeout")
    recorder.complete(poll, "ok", offsets=[0, 1], values=[7, 5], leader_epoch=3)
    recorder.complete(first, "ok", offset=0)


def test_a_history_reads_back_row_by_row(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    recorder = Recorder(path, Clock())
    write_a_history(recorder)
    table = read_jsonl(path)
    assert table.schema.equals(SCHEMA, check_metadata=True)
    assert table.to_pylist() == [
        row(0, 0, "append", "main", 1, 10, 70, "ok", value=7, offset=0),
        row(1, 1, "poll", "final", 1, 20, 60, "ok", offset=0, offsets=[0, 1], values=[7, 5], leader_epoch=3),
        row(2, 0, "append", "main", 0, 30, 50, "info", value=8, error="timeout"),
        row(3, 0, "append", "main", 0, 40, None, "info", value=9),
    ]


def row(index: int, process: int, kind: str, phase: str, partition: int, invoked: int, completed: int | None,
        outcome: str, **columns: object) -> dict[str, object]:  # fmt: skip
    known: dict[str, object] = dict.fromkeys(SCHEMA.names)
    known.update(index=index, process=process, kind=kind, phase=phase, topic="t", partition=partition)
    known.update(invoked_ns=invoked, completed_ns=completed, outcome=outcome, **columns)
    return known


def test_memory_and_file_hold_the_same_history(tmp_path: Path) -> None:
    in_file, in_memory = Recorder(tmp_path / "h.jsonl", Clock()), Recorder(None, Clock())
    write_a_history(in_file)
    write_a_history(in_memory)
    assert in_file.to_table().equals(in_memory.to_table())


def test_a_history_truncated_at_any_byte_reads_back_up_to_its_last_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    write_a_history(Recorder(path, Clock()))
    written = path.read_bytes()
    for size in range(len(written)):
        path.write_bytes(written[:size])
        invoked = sum(b'"kind"' in line for line in written[:size].split(b"\n")[:-1])
        assert read_jsonl(path).num_rows == invoked


def test_an_append_is_written_at_its_invocation_and_a_read_at_its_completion(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    recorder = Recorder(path, Clock())
    poll = recorder.invoke(0, "poll", "t", 0, offset=0)
    assert read_jsonl(path).num_rows == 0
    append = recorder.invoke(0, "append", "t", 0, value=1)
    assert read_jsonl(path).column("outcome").to_pylist() == ["info"]
    recorder.discard(poll)
    with pytest.raises(ValueError, match="is of kind append"):
        recorder.discard(append)
    assert recorder.open_appends == 1


def test_what_is_recorded_together_is_in_the_file_once_that_has_ended(tmp_path: Path) -> None:
    path, alone = tmp_path / "together.jsonl", tmp_path / "alone.jsonl"
    write_a_history(Recorder(alone, Clock()))
    recorder = Recorder(path, Clock())
    with recorder.together():
        write_a_history(recorder)
        assert path.read_bytes() == b""
    assert path.read_bytes() == alone.read_bytes()
    recorder.invoke(0, "append", "t", 0, value=10)
    assert read_jsonl(path).num_rows == 5


def test_nothing_completes_twice() -> None:
    recorder = Recorder(None, Clock())
    index = recorder.invoke(0, "append", "t", 0, value=1)
    recorder.complete(index, "fail", error="NOT_ENOUGH_REPLICAS")
    with pytest.raises(KeyError):
        recorder.complete(index, "ok", offset=3)
    assert recorder.count("append", "fail") == 1
    assert recorder.count("append", "ok") == 0


def test_damage_before_the_last_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    write_a_history(Recorder(path, Clock()))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"\0\0\0\n" + b"".join(lines[1:]))
    with pytest.raises(ValueError, match="line 2 is damaged"):
        read_jsonl(path)
    path.write_bytes(b'{"index":0,"completed_ns":3,"outcome":"ok"}\n')
    with pytest.raises(ValueError, match="never invoked"):
        read_jsonl(path)


def test_an_operation_that_is_invoked_or_ends_twice_is_named(tmp_path: Path) -> None:
    """As when a line has the index of another operation: its own would seem never to have ended."""
    path, recorder = tmp_path / "history.jsonl", Recorder(tmp_path / "history.jsonl", Clock())
    for value in (1, 2):
        recorder.invoke(0, "append", "t", 0, value=value)
    for index in (0, 1):
        recorder.complete(index, "ok", offset=index)
    whole = path.read_bytes()
    first, second, *_ = lines = whole.splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], lines[2].replace(b'"index":0', b'"index":1'), lines[3]]))
    with pytest.raises(ValueError, match="line 4 completes operation 1, which had ended"):
        read_jsonl(path)
    path.write_bytes(first + second.replace(b'"index":1', b'"index":0') + b"".join(lines[2:]))
    with pytest.raises(ValueError, match="line 2 invokes operation 0, which was invoked"):
        read_jsonl(path)


def test_a_line_lost_anywhere_but_at_the_end_is_named(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    write_a_history(Recorder(path, Clock()))
    lines = path.read_bytes().splitlines(keepends=True)
    for number in range(1, len(lines)):
        path.write_bytes(b"".join([*lines[: number - 1], *lines[number:]]))
        with pytest.raises(ValueError, match=f"line {number} is missing"):
            read_jsonl(path)


def test_an_empty_history_is_a_table_without_rows(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.touch()
    assert read_jsonl(path).num_rows == 0
    assert Recorder(None, Clock()).to_table().schema.equals(SCHEMA)
