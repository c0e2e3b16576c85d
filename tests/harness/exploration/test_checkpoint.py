"""The checkpoint of an exploration: a killed one goes on from its last whole level, as if nothing had happened."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.cli import exploring
from harness.cli.main import main
from harness.search.exploration.breadth_first import explore
from harness.search.exploration.scope import Scope
from harness.search.quorum_exploration.breadth_first import explore as explore_quorum
from harness.search.quorum_exploration.scope import QuorumScope
from harness.search.state_space import checkpoint as checkpoints
from harness.search.state_space.breadth_first import ExplorationProgress, ExplorationResult, LostShard
from harness.search.state_space.checkpoint import SearchCheckpoint
from images.broker.truncation_protocol import TruncationProtocol
from results.errors import StoreError

SMALL = Scope(replicas=2, records=1, isr_changes_in_flight=True)
SEARCHES: dict[str, Callable[..., ExplorationResult]] = {
    "sound": partial(explore, SMALL, schedules=True),
    "broken": partial(explore, replace(SMALL, protocol=TruncationProtocol.KIP279)),
    "as in a run": partial(explore, replace(SMALL, protocol=TruncationProtocol.KIP279, as_in_a_run=True)),
    "controllers": partial(explore_quorum, QuorumScope(epochs=1, in_flight=())),
}


class Killed(Exception):
    """Ends an exploration as a signal would."""


def killed_at(depth: int, begun: list[int] | None = None) -> Callable[[ExplorationProgress], None]:
    """Ends the exploration in a level; `begun` is told of each that it begins."""

    def end(progress: ExplorationProgress) -> None:
        if begun is not None:
            begun.append(progress.depth)
        if progress.depth == depth:
            raise Killed

    return end


def figures(result: ExplorationResult) -> Any:
    return result._replace(seconds=0.0, cpu_seconds=0.0, memory_mb=0)


@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES.keys())
def test_an_exploration_that_is_killed_in_one_level_after_the_other_ends_as_an_undisturbed_one(
    search: Callable[..., ExplorationResult], tmp_path: Path
) -> None:
    whole = search(1)
    assert whole.depth > 3
    for depth in range(1, whole.depth):
        begun: list[int] = []
        with pytest.raises(Killed):
            search(1, killed_at(depth, begun), checkpoint=SearchCheckpoint(tmp_path, ""))
        assert begun == [depth - 1, depth]
    assert figures(search(1, checkpoint=SearchCheckpoint(tmp_path, ""))) == figures(whole)
    assert figures(search(1, checkpoint=SearchCheckpoint(tmp_path, ""))) == figures(whole)


def test_an_exploration_goes_on_in_another_number_of_processes(tmp_path: Path) -> None:
    search = SEARCHES["sound"]
    with pytest.raises(Killed):
        search(1, killed_at(6), checkpoint=SearchCheckpoint(tmp_path, ""))
    with pytest.raises(Killed):
        search(2, killed_at(9), checkpoint=SearchCheckpoint(tmp_path, ""))
    assert figures(search(1, checkpoint=SearchCheckpoint(tmp_path, ""))) == figures(search(1))


@pytest.mark.parametrize("written", ["put", "put_json"])
def test_a_level_that_is_not_whole_does_not_count(
    written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search, calls = SEARCHES["sound"], iter(range(100))
    write = getattr(checkpoints, written)

    def on_a_full_disk(*arguments: Any, **options: Any) -> None:
        if next(calls) == 8:
            raise StoreError("cannot write: No space left on device")
        write(*arguments, **options)

    with monkeypatch.context() as patches:
        patches.setattr(checkpoints, written, on_a_full_disk)
        with pytest.raises(StoreError, match="No space left"):
            search(1, checkpoint=SearchCheckpoint(tmp_path, ""))
    begun: list[ExplorationProgress] = []
    assert figures(search(1, begun.append, checkpoint=SearchCheckpoint(tmp_path, ""))) == figures(search(1))
    assert begun[0].depth == {"put": 3, "put_json": 7}[written]


def test_what_a_killed_exploration_left_half_written_is_removed(tmp_path: Path) -> None:
    search, others = SEARCHES["sound"], {"states-of-mind", ".notes.part"}
    with pytest.raises(Killed):
        search(1, killed_at(3), checkpoint=SearchCheckpoint(tmp_path, ""))
    for name in {"states-00002", ".states-00004.77.part", ".level-00004.77.part", *others}:
        (tmp_path / name).touch()
    with pytest.raises(Killed):
        search(1, killed_at(4), checkpoint=SearchCheckpoint(tmp_path, ""))
    levels = {f"level-0000{depth}" for depth in range(5)}
    assert {path.name for path in tmp_path.iterdir()} == {"search.json", "states-00004", *levels, *others}


def test_a_checkpoint_that_is_damaged_or_of_another_search_is_refused_in_a_line(tmp_path: Path) -> None:
    search = SEARCHES["sound"]
    with pytest.raises(Killed):
        search(1, killed_at(3), checkpoint=SearchCheckpoint(tmp_path, "this"))
    with pytest.raises(StoreError, match="of another scope or of other sources"):
        search(1, checkpoint=SearchCheckpoint(tmp_path, "that"))
    for name, words in {
        "level-00001": "is damaged",
        "states-00003": "is damaged",
        "search.json": "is not the checkpoint of an exploration|is not JSON",
    }.items():
        file = tmp_path / name
        contents = file.read_bytes()
        for damaged in (contents[:-3], b"{}\n" if name != "search.json" else b'{"of": "this"}'):
            file.write_bytes(damaged)
            with pytest.raises(StoreError, match=words):
                search(1, checkpoint=SearchCheckpoint(tmp_path, "this"))
        file.write_bytes(contents)
    assert search(1, checkpoint=SearchCheckpoint(tmp_path, "this")).violation is None


def test_one_exploration_at_a_time_has_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with SearchCheckpoint(tmp_path, "").locked():
        assert main(["explore", "two-replicas", "--checkpoint", str(tmp_path)]) == 3
    line = f"faultline: {tmp_path}: another exploration is going on with this checkpoint\n"
    assert capsys.readouterr().err == line


def test_a_checkpoint_that_is_a_file_is_refused_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "notes"
    file.write_text("notes")
    assert main(["explore", "two-replicas", "--checkpoint", str(file)]) == 3
    assert capsys.readouterr().err == f"faultline: {file}: is not a directory\n"


@pytest.fixture
def in_the_foreground() -> Iterator[None]:
    """The tests may run in the background, where a shell has SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("in_the_foreground")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_exploration_names_the_command_that_goes_on(
    number: signal.Signals, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was given, with every option: the checkpoint is of no other scope, and the files are wanted, too."""
    begun: list[int] = []

    class Interrupting(exploring._LevelProgress):
        def __call__(self, progress: ExplorationProgress) -> None:
            begun.append(progress.depth)
            if begun == [0, 1, 2, 3]:
                signal.raise_signal(number)

    monkeypatch.setattr(exploring, "_LevelProgress", Interrupting)
    folder, off = str(tmp_path / "the levels"), ("--without", "maximal_isr", "--without", "eligible_leader_replicas")
    given = ["explore", "two-replicas", "--protocol", "kip320", "--jobs", "1", "--checkpoint", folder, *off, "--json"]
    assert main(given) == 130
    line = capsys.readouterr().err
    assert line.startswith("interrupted; go on with: faultline explore two-replicas ")
    again = shlex.split(line.partition(": ")[2])[1:]
    assert sorted(again) == sorted(given)
    assert main(again) == 1
    assert begun[:5] == [0, 1, 2, 3, 3]


@pytest.mark.usefixtures("in_the_foreground")
def test_an_interrupted_exploration_without_a_checkpoint_says_no_more(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(exploring._LevelProgress, "__call__", interrupted)
    assert main(["explore", "two-replicas", "--jobs", "1"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.usefixtures("in_the_foreground")
def test_an_interruption_is_told_also_where_it_has_ended_a_process_of_the_exploration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: Any) -> None:
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise LostShard("a process of the exploration has ended before its end")

    monkeypatch.setattr(exploring._LevelProgress, "__call__", lost)
    assert main(["explore", "two-replicas", "--jobs", "1", "--checkpoint", str(tmp_path)]) == 130
    assert capsys.readouterr().err.startswith("interrupted; go on with: faultline explore two-replicas --jobs 1 ")
