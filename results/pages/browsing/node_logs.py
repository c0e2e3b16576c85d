"""The log of a node as text: one page of it at a time, or only the lines that contain some words.

The file is read line by line and never as a whole, a long line is cut, and bytes that are not UTF-8 are replaced.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from results.errors import StoreError

LINES = 1000
"""Lines on a page."""
LINE_CHARACTERS = 2000


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Some lines of a log, each with its number from 1."""

    lines: tuple[tuple[int, str], ...]
    earlier: int | None
    """The line to begin at for what comes before; None when these are the first."""
    later: int | None


def excerpt(path: Path, words: str, begin: int | None) -> Excerpt:
    """The lines from number `begin` on, or the last ones, of those that hold `words`. StoreError when unreadable."""
    try:
        with open(path, "rb") as file:
            fitting = _fitting(file, words.lower())
            if begin is None:
                last = list(deque(fitting, maxlen=2 * LINES))
                before, lines, later = last[:-LINES], last[-LINES:], None
            else:
                passed: deque[tuple[int, str]] = deque(maxlen=LINES)
                lines = list(islice(_from(begin, fitting, passed), LINES + 1))
                before, later = list(passed), lines[LINES][0] if len(lines) > LINES else None
            return Excerpt(tuple(lines[:LINES]), before[0][0] if before else None, later)
    except OSError as error:
        raise StoreError.of("read", path, error) from error


def _from(begin: int, lines: Iterator[tuple[int, str]], passed: deque[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """The lines from number `begin` on; those before it are `passed`."""
    for line in lines:
        if line[0] < begin:
            passed.append(line)
        else:
            yield line


def _fitting(file: BinaryIO, words: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(_beginnings(file), 1):
        text = line.decode(errors="replace").rstrip("\r\n")
        if words in text.lower():
            yield number, text if len(text) <= LINE_CHARACTERS else f"{text[:LINE_CHARACTERS]} … (cut)"


def _beginnings(file: BinaryIO) -> Iterator[bytes]:
    """The beginning of each line: a line of any length takes no more memory than that."""
    while part := file.readline(4 * LINE_CHARACTERS):
        yield part
        while part and not part.endswith(b"\n"):
            part = file.readline(4 * LINE_CHARACTERS)
