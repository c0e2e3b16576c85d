"""A node's log: shown from its end, walked to its beginning, searched."""

from __future__ import annotations

from pathlib import Path

from results.pages.browsing.node_logs import LINES, excerpt


def test_a_log_is_shown_from_its_end_and_can_be_walked_to_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    path.write_text("".join(f"line {number}\n" for number in range(1, 2 * LINES + 11)))
    last = excerpt(path, "", None)
    assert (last.lines[0][0], last.lines[-1]) == (LINES + 11, (2 * LINES + 10, f"line {2 * LINES + 10}"))
    assert last.earlier == 11
    before = excerpt(path, "", last.earlier)
    assert (before.lines[0][0], before.later) == (11, LINES + 11)
    assert excerpt(path, "", before.earlier).lines[0][0] == 1


def test_only_the_lines_that_hold_the_words_are_shown_with_their_own_numbers(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    path.write_bytes(b"one\nELECTED b1\n\xff\xfe\nelected b2 of " + b"x" * 100_000 + b"\nlast\n")
    passage = excerpt(path, "Elected", None)
    assert [number for number, _ in passage.lines] == [2, 4]
    assert passage.lines[1][1].endswith(" … (cut)")
    assert excerpt(path, "last", None).lines == ((5, "last"),)


def test_what_comes_before_in_a_searched_log_are_the_lines_before_that_hold_the_words(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    path.write_text("".join(f"{'hit' if number % 10 == 0 else 'line'} {number}\n" for number in range(1, 25 * LINES)))
    last = excerpt(path, "hit", None)
    before = excerpt(path, "hit", last.earlier)
    assert [before.lines[-1][0], last.lines[0][0]] == [last.lines[0][0] - 10, 15 * LINES]
    first = excerpt(path, "hit", before.earlier)
    assert (first.lines[0][0], first.earlier, first.later) == (10, None, 10 * LINES + 10)
