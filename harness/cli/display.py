"""The display of a run: progress while it goes on, and a summary at its end.

On a terminal the progress is one block that is redrawn in place; elsewhere a line is printed whenever a new stage
begins. The summary is the same for a run just made, and for one that is checked again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from time import perf_counter  # by name: the simulation, which this looks into, refuses the module's
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from checkers import loss
from checkers.evidence import CheckSettings
from checkers.verdict import Validity, Verdict, worst
from harness.runner.outcome import Outcome, Progress
from harness.spec import Spec
from results.explanation.stories import explained
from results.explanation.story import Story
from results.headline import headline

_REDRAW_S = 0.1
_SHOWN = {
    "availability": ("acks_share", "unavailable_seconds_longest", "append_ms_p50", "append_ms_p99", "append_ms_max"),
}
"""Figures worth a line in the summary, of a checker that has many; verdict.json and the report have all."""
_COLOURS = {Validity.VALID: "green", Validity.UNKNOWN: "yellow", Validity.INVALID: "bold red"}
_MARKS = {Validity.VALID: "✓", Validity.UNKNOWN: "?", Validity.INVALID: "✗"}


class LiveProgress(Live):
    """Shows a run's progress while it is entered; called by the runner."""

    def __init__(self, console: Console, spec: Spec) -> None:
        super().__init__(console=console, auto_refresh=False, transient=True)
        self._spec = spec
        self._stage = ""
        self._drawn_s = 0.0

    def __call__(self, progress: Progress) -> None:
        """Show the progress; redrawn at most ten times a second."""
        new_stage = progress.stage != self._stage
        self._stage = progress.stage
        if not self.console.is_terminal:
            if new_stage:
                self.console.print(f"{progress.time_s:8.3f} s  {progress.stage}", highlight=False)
            return
        now_s = perf_counter()
        if new_stage or now_s - self._drawn_s >= _REDRAW_S:
            self._drawn_s = now_s
            self.update(_progress(progress, self._spec), refresh=True)


def _progress(progress: Progress, spec: Spec) -> RenderableType:
    head = Text.assemble(
        (f"{progress.stage:<16}", "bold"),
        f"{progress.time_s:7.1f} s of about {spec.time_limit_s:g} s   seed {spec.seed}",
    )
    counts = progress.operations
    appends = Text(
        f"appends {counts.get(('append', 'ok'), 0)} ok, {counts.get(('append', 'fail'), 0)} fail, "
        f"{counts.get(('append', 'info'), 0)} unknown, {progress.open_appends} open   "
        f"polls {counts.get(('poll', 'ok'), 0)}   end offsets {counts.get(('end_offset', 'ok'), 0)}"
    )
    faults = Text("\n".join(f"⚡ {fault}" for fault in progress.faults) or "no active fault", style="dim")
    return Group(head, appends, faults)


def summary(
    console: Console,
    verdicts: Sequence[Verdict],
    settings: CheckSettings,
    stories: Sequence[Story] = (),
    *,
    deviations: Sequence[str],
    outcome: Outcome | None = None,
) -> None:
    """Print the deviations of a run from its script, its verdicts, the stories of what was violated or else
    the findings, and the headline of a run with these
    settings; with an `outcome` also faults and operations."""
    if outcome is not None:
        console.print(_faults(outcome))
        console.print(_run_line(outcome), highlight=False)
    for line in deviations:
        console.print(f"note: {line}", style="yellow", soft_wrap=True, highlight=False)
    console.print(verdict_table(verdicts))
    for story in stories:
        console.print(_story(story), soft_wrap=True)
    for verdict in verdicts:
        for finding in verdict.findings if verdict.validity is not Validity.VALID else ():
            if stories and explained(finding, verdict):
                continue
            place = f" {finding.topic}-{finding.partition}" if finding.topic else ""
            title = f"{_MARKS[verdict.validity]} {verdict.checker}: {finding.kind}{place}"
            console.print(Text(title, style=_COLOURS[verdict.validity]))
            for line in finding.lines:
                console.print(Text(f"    {line}"), soft_wrap=True)
    losses = next((verdict.figures for verdict in verdicts if verdict.checker == loss.NAME), {})
    if lost := sum(losses.get(figure, 0) for figure in loss.LOST_FIGURES):
        console.print(f"lost.csv in the run directory lists all {lost:.0f} lost records, by value and offset")
    answer = worst(verdict.validity for verdict in verdicts)
    console.print(Text(headline(verdicts, settings), style=_COLOURS[answer]))


def _story(story: Story) -> Text:
    title, *lines = story.lines()
    text = Text.assemble((f"{_MARKS[Validity.INVALID]} {title}", _COLOURS[Validity.INVALID]))
    for line in lines:
        text.append(f"\n    {line}")
    return text


def verdict_table(verdicts: Iterable[Verdict]) -> Table:
    """One row for each checker."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("checker", "verdict", "figures"):
        table.add_column(heading)
    for verdict in verdicts:
        style = _COLOURS[verdict.validity]
        table.add_row(
            verdict.checker, Text(f"{_MARKS[verdict.validity]} {verdict.validity}", style=style), _figures(verdict)
        )
    return table


def _figures(verdict: Verdict) -> str:
    shown = _SHOWN.get(verdict.checker, tuple(verdict.figures))
    return "  ".join(f"{name} {_number(verdict.figures[name])}" for name in shown if verdict.figures.get(name))


def _number(value: float) -> str:
    whole = float(value).is_integer() or abs(value) >= 999.5  # `.3g` would write it as a power of ten
    return f"{value:.0f}" if whole else f"{value:.3g}"


def _faults(outcome: Outcome) -> RenderableType:
    if not outcome.injections:
        return Text("no fault was injected", style="dim")
    families: dict[str, list[Any]] = {}
    for injection in outcome.injections:
        families.setdefault(injection.family, []).append(injection)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("fault", "injected", "took effect", "evidence"):
        table.add_column(heading)
    for family, injections in families.items():
        effective = sum(injection.took_effect for injection in injections)
        totals: dict[str, float] = {}
        for injection in injections:
            for name, value in injection.evidence.items():
                if not isinstance(value, Mapping):
                    totals[name] = (
                        max(totals.get(name, 0), value) if name == "offset_ms" else totals.get(name, 0) + value
                    )
        evidence = "  ".join(f"{name} {_number(value)}" for name, value in totals.items() if value)
        injected = sum(injection.injected for injection in injections)
        table.add_row(family, str(injected), Text(str(effective), style="" if effective else "yellow"), evidence)
    return table


def _run_line(outcome: Outcome) -> str:
    counts = outcome.operations
    parts = [
        "appends " + ", ".join(f"{counts.get(('append', end), 0)} {end}" for end in ("ok", "fail", "info")),
        f"polls {counts.get(('poll', 'ok'), 0)}",
        f"end offsets {counts.get(('end_offset', 'ok'), 0)}",
    ]
    if outcome.recovery.get("recovered"):
        parts.append(f"recovered in {outcome.recovery['seconds']:.1f} s")
    elif outcome.recovery:
        parts.append("not recovered")
    if outcome.cpu_seconds:
        parts.append(f"{outcome.time_s:.0f} s in {outcome.cpu_seconds:.2f} s of CPU")
    return " · ".join(parts)
