"""The journal: an interrupted session is resumed, and comes to the same result without making a run twice."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from harness.shrinking.journal import TRIALS, CannotResumeShrinking, TrialJournal
from harness.shrinking.passes import Reproducer, Sighting
from harness.shrinking.shrinker import Shrinker, Shrunk
from harness.spec import Spec, parse
from results.errors import StoreError

SUBJECT = {"spec": "a"}
START = parse(
    {"faults": [{"at": 1.5 * number, "for": 1.25, "fault": "pause", "nodes": ["leader/0"]} for number in range(9)]}
)
SEEN = Sighting(
    frozenset(range(9)), {0: {"leader/0": ["b2"]}}, {3: 4.5}, finding_s=31.5, digest="ab12", lines=("a line",)
)


class Predicate:
    """Three faults fail. Counts the runs."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, spec: Spec) -> Sighting | None:
        self.runs += 1
        return SEEN if len(spec.script) >= 3 else None


def _shrink(directory: Path, predicate: Predicate, *, resume: bool, runs: int | None = None) -> Shrunk:
    journal = TrialJournal(directory, SUBJECT, resume=resume)
    return Shrinker(
        Reproducer(START, SEEN),
        journal.remembering(predicate),
        exhausted=lambda _: runs is not None and predicate.runs >= runs,
    ).shrink()


@pytest.mark.parametrize("cut", [1, 4, 9])
def test_a_session_cut_short_and_resumed_ends_as_one_that_was_not(tmp_path: Path, cut: int) -> None:
    whole, first, second = Predicate(), Predicate(), Predicate()
    result = _shrink(tmp_path / "whole", whole, resume=False)
    assert result.complete
    assert not _shrink(tmp_path / "cut", first, resume=False, runs=cut).complete
    assert _shrink(tmp_path / "cut", second, resume=True) == result
    assert first.runs + second.runs == whole.runs, "no run is made twice"


def test_a_line_that_was_cut_short_is_left_aside(tmp_path: Path) -> None:
    result = _shrink(tmp_path, first := Predicate(), resume=False)
    path = tmp_path / TRIALS
    path.write_text(path.read_text(encoding="utf-8")[:-9], encoding="utf-8")
    assert _shrink(tmp_path, second := Predicate(), resume=True) == result
    assert (first.runs > 1, second.runs) == (True, 1)
    assert _shrink(tmp_path, third := Predicate(), resume=True) == result
    assert third.runs == 0, "the journal is whole again"


def test_a_result_is_not_lost_to_a_session_that_begins_anew(tmp_path: Path) -> None:
    result = _shrink(tmp_path, Predicate(), resume=False)
    with pytest.raises(CannotResumeShrinking, match="has an earlier result: go on with --resume, or remove it"):
        TrialJournal(tmp_path, SUBJECT, resume=False)
    assert _shrink(tmp_path, Predicate(), resume=True) == result


def test_a_journal_that_cannot_be_written_anew_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _shrink(tmp_path, Predicate(), resume=False)
    before = (tmp_path / TRIALS).read_text()

    def full(path: Path, data: str, **_: object) -> int:
        with path.open("w") as file:
            file.write(data[:9])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(StoreError, match="No space left"):
        TrialJournal(tmp_path, SUBJECT, resume=True)
    assert [path.name for path in tmp_path.iterdir()] == [TRIALS]
    assert (tmp_path / TRIALS).read_text() == before


def test_a_journal_of_another_subject_is_refused(tmp_path: Path) -> None:
    TrialJournal(tmp_path, {"spec": "b"}, resume=False)
    with pytest.raises(CannotResumeShrinking, match="another run, or with other sources"):
        TrialJournal(tmp_path, SUBJECT, resume=True)
    with pytest.raises(CannotResumeShrinking, match="nothing to resume"):
        TrialJournal(tmp_path / "none", SUBJECT, resume=True)


def test_a_sighting_is_read_as_it_was_written(tmp_path: Path) -> None:
    related = replace(SEEN, same_finding=False)
    TrialJournal(tmp_path, SUBJECT, resume=False).remembering(lambda spec: related)(START)
    assert TrialJournal(tmp_path, SUBJECT, resume=True).remembering(lambda spec: None)(START) == related
