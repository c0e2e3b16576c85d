"""The progress of many runs: a bar on a terminal, and a line every half a minute elsewhere."""

from __future__ import annotations

from time import monotonic
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn

_LINE_S: Final = 30.0


class ProgressBar:
    """Shown while it is entered; `update` says how far the work is."""

    def __init__(self, console: Console, name: str, total: float, words: str, *more_columns: ProgressColumn) -> None:
        self._console = console
        self._printed_s = monotonic()
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[words]}", markup=False),
            TimeElapsedColumn(),
            *more_columns,
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(name, total=total, words=words)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def update(self, completed: float, total: float, words: str) -> None:
        """So much of `total` is done, in `words`, too."""
        self._bar.update(self._task, completed=completed, total=total, words=words)
        now_s = monotonic()
        if not self._console.is_terminal and now_s - self._printed_s >= _LINE_S:
            self._printed_s = now_s
            self._console.print(words, highlight=False)

    def found(self, what: str, causes: tuple[str, ...]) -> None:
        """A line that stays: the first run that finds a mutant."""
        self._console.print(f"found: {what}: {'; '.join(causes)}", soft_wrap=True, highlight=False)
