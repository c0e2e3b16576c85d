"""The report of one run: a single HTML file.

The file holds everything it needs, plotly.js included, and loads nothing from the network; its content security policy
forbids it to. Its order: the verdict and the spec; the stories of what was violated, cause first, each with a
space-time diagram; every check, failures first, each with the operations involved;
faults, operations and latency over time; leaders, in-sync replicas and log ends, one figure per partition; the measured
effect of every fault; recovery and availability; the commands that reproduce the run.

The template escapes everything that comes from the run (names, values, error texts, the spec). Parts missing from an
interrupted run are listed at the top.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import yaml
from markupsafe import Markup

from checkers.clients import availability
from checkers.evidence import RunEvidence
from checkers.verdict import Validity, Verdict, worst
from results.explanation.stories import explain
from results.explanation.story import SEEN, Story
from results.figures import operations, partitions, spacetime
from results.figures.canvas import Figure
from results.figures.faults import family_colour
from results.figures.findings import RED_LINES, marked
from results.headline import remarks
from results.number_format import counted
from results.pages import page
from results.run.deviations import deviations
from results.run.directory import RunDirectory
from results.run.downtime import nodes_kept_down
from results.run.status import Status
from results.run.stored_yaml import parse
from results.suites import FAILED, outcome_alone

PARTITIONS_MAX = 12
"""Partitions drawn; the others are named in a line."""
FINDINGS_OPEN = 5
"""Findings of one check that are shown at once."""
_LATENCY = re.compile(r"(?P<operation>\w+)_ms_(?P<statistic>p\d+|max)")
_LIMIT_END_S = 1e9
_ORDER = {Validity.INVALID: 0, Validity.UNKNOWN: 1, Validity.VALID: 2}


@dataclass(frozen=True, slots=True)
class Subject:
    """The contents of a report."""

    path: Path
    status: Status
    spec_text: str
    digest: str | None
    gaps: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    evidence: RunEvidence
    operations: tuple[Mapping[str, Any], ...] = ()
    """What became of each scripted operation."""
    whole: bool = True
    """False when only the verdicts and their figures are stored."""
    commands: tuple[tuple[str, str], ...] = ()
    """Commands that reproduce the run, each with an introduction; empty for a run directory."""

    @property
    def validity(self) -> str:
        """The verdict of the run, or FAILED or NOT_CHECKED."""
        verdict = worst(verdict.validity for verdict in self.verdicts).value if self.verdicts else None
        return outcome_alone(self.status.state, verdict)


def write_report(run: RunDirectory, evidence: RunEvidence | None = None) -> Path:
    """Write `report.html` into the run directory, from what is there, and return its path.

    `evidence` saves loading it again. StoreError when the directory cannot be read or written.
    """
    run.write_report(render(subject_of(run, evidence)))
    return run.report_path


def subject_of(run: RunDirectory, evidence: RunEvidence | None = None) -> Subject:
    """The contents of a run directory's report. StoreError when it cannot be read."""
    spec = run.path / "spec.yaml"
    return Subject(
        path=run.path,
        status=run.status(),
        spec_text=run.read_spec_text() if spec.exists() else "",
        digest=run.digest(),
        gaps=run.gaps(),
        verdicts=tuple(run.verdicts()),
        evidence=evidence if evidence is not None else run.load(),
        operations=tuple(run.script()),
    )


def render(subject: Subject) -> str:
    """The whole page, as one file."""
    return page.frame(f"{subject.validity} · {subject.path.resolve().name} · Faultline", body(subject))


def body(subject: Subject, beside: Markup | None = None) -> Markup:
    """The page's sections; `beside` comes after the faults."""
    evidence = subject.evidence
    stories = explain(subject.verdicts, evidence) if subject.whole else ()
    drawn = (
        [(name, marked(figure, stories, name)) for name, figure in partitions.draw(evidence)] if subject.whole else []
    )
    return page.render(
        "report.html",
        validity=subject.validity,
        title=f"{subject.status.name or 'run'}, seed {subject.status.seed}",
        sentence=_sentence(subject),
        gaps=subject.gaps,
        deviations=deviations(evidence.faults, subject.operations),
        scripted=subject.operations,
        facts=_facts(subject),
        checks=_checks(subject.verdicts),
        whole=subject.whole,
        stories=[_story(story, evidence) for story in stories],
        red_lines=RED_LINES if stories else "",
        operations=_operations(evidence, stories) if subject.whole and evidence.history.num_rows else None,
        outcomes=operations.OUTCOMES,
        operation_counts=_operation_counts(evidence.history),
        partitions=drawn[:PARTITIONS_MAX],
        partitions_left_out=[name for name, _ in drawn[PARTITIONS_MAX:]],
        faults=_faults(evidence.faults),
        beside=beside or "",
        **_recovery(subject),
        commands=subject.commands or _commands(subject),
        digest=subject.digest,
        spec_text=subject.spec_text,
        runner_facts=dict(subject.status.facts),
    )


# ---- values of the template ------------------------------------------------------------------------------------------


def _facts(subject: Subject) -> dict[str, Any]:
    status, digest = subject.status, subject.digest
    spec = {name: value for name, value in _spec_facts(subject.spec_text).items() if name not in ("seed", "name")}
    return {
        "run": subject.path.resolve().name,
        "seed": str(status.seed),  # to be copied: no quantity
        **spec,
        "faultline": status.version,
        "started": status.started.replace("T", " ").replace("+00:00", " UTC"),
        "digest": "none" if digest is None else digest if len(digest) < 20 else f"{digest[:16]}…",
    }


def _sentence(subject: Subject) -> str:
    verdicts = subject.verdicts
    if subject.validity == FAILED:
        return "This run could not be carried out."
    if not verdicts:
        return "This run has not been checked."
    checks = counted(len(verdicts), "check")
    failed = [verdict.checker for verdict in verdicts if verdict.validity is Validity.INVALID]
    unsure = [verdict.checker for verdict in verdicts if verdict.validity is Validity.UNKNOWN]
    words = []
    if failed:
        words.append(f"{len(failed)} of {checks} found a promise broken: {', '.join(failed)}.")
    if unsure:
        words.append(f"Undecided: {', '.join(unsure)}.")
    if not words:
        words.append(f"All {checks} passed: every promise checked was kept.")
    words += [f"{remark[0].upper()}{remark[1:]}." for remark in remarks(verdicts, subject.evidence.settings)]
    if not subject.whole:
        return " ".join(words)
    done = counted(subject.evidence.history.num_rows, "operation")
    faults = subject.evidence.faults
    effective = pc.sum(faults["bit"]).as_py() or 0
    words.append(f"{done}, {counted(faults.num_rows, 'fault')} of which {effective} took effect.")
    return " ".join(words)


def _operations(evidence: RunEvidence, stories: Sequence[Story]) -> Figure:
    return marked(operations.draw(evidence), stories)


def _story(story: Story, evidence: RunEvidence) -> dict[str, Any]:
    """A story, with its diagram; the lines that say what the checks saw are folded under the others."""
    title, *lines = story.lines()
    return {
        "title": title,
        "lines": [line for line in lines if not line.startswith(SEEN)],
        "time_ns": story.time_ns,
        "signature": str(story.signature),
        "consequences": story.consequences,
        "diagram": spacetime.draw(evidence, story),
    }


def _checks(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """The checks, worst first: the first findings of a failed check are shown, the rest and mere notes are folded."""
    return [
        {
            "validity": verdict.validity.value,
            "name": verdict.checker,
            "shown": verdict.findings[: _shown(verdict)],
            "folded": verdict.findings[_shown(verdict) :],
            "noun": "note" if verdict.validity is Validity.VALID else "more finding",
            "figures": _without_latencies(verdict.figures),
        }
        for verdict in sorted(verdicts, key=lambda verdict: _ORDER[verdict.validity])
    ]


def _shown(verdict: Verdict) -> int:
    return 0 if verdict.validity is Validity.VALID else FINDINGS_OPEN


def _without_latencies(figures: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in figures.items() if not _LATENCY.fullmatch(name)}


def _operation_counts(history: pa.Table) -> list[tuple[str, list[int]]]:
    """(operation, number of each outcome)."""
    counts: dict[str, dict[str, int]] = {}
    grouped = history.select(["kind", "outcome"]).group_by(["kind", "outcome"]).aggregate([([], "count_all")])
    for row in grouped.to_pylist():
        counts.setdefault(row["kind"], {})[row["outcome"]] = row["count_all"]
    return [(kind, [row.get(outcome, 0) for outcome in operations.OUTCOMES]) for kind, row in sorted(counts.items())]


def _faults(faults: pa.Table) -> list[dict[str, Any]]:
    rows = faults.sort_by("started_ns")
    return [
        {
            "name": fault["fault"],
            "colour": family_colour(fault["family"]),
            "nodes": fault["nodes"],
            "span": f"{fault['started_ns'] / 1e9:.2f} – {_end(fault['ended_ns'])}",
            "effect": "yes" if fault["bit"] else f"kept {', '.join(kept_down)} down" if kept_down else "no",
            "evidence": _measured(fault["evidence"]),
            "note": fault["note"],
        }
        for fault, kept_down in zip(rows.to_pylist(), nodes_kept_down(rows), strict=True)
    ]


def _end(ended_ns: int | None) -> str:
    return "the end" if ended_ns is None else f"{ended_ns / 1e9:.2f}"


def _recovery(subject: Subject) -> dict[str, Any]:
    recovery = subject.evidence.recovery
    figures = next((verdict.figures for verdict in subject.verdicts if verdict.checker == availability.NAME), None)
    heads, latencies = _latencies(figures or {})
    return {
        "recovery": {name: value for name, value in recovery.items() if not isinstance(value, list | dict)},
        "waiting": [str(item) for item in recovery.get("waiting_for") or ()],
        "availability": None if figures is None else _without_latencies(figures),
        "latency_heads": heads,
        "latencies": latencies,
    }


def _latencies(figures: Mapping[str, float]) -> tuple[list[str], list[tuple[str, list[float | None]]]]:
    """Statistics, and a row per operation, from figures with names like `append_ms_p50`."""
    rows: dict[str, dict[str, float]] = {}
    for name, value in figures.items():
        if match := _LATENCY.fullmatch(name):
            rows.setdefault(match["operation"], {})[match["statistic"]] = value
    heads = list(dict.fromkeys(statistic for row in rows.values() for statistic in row))
    return heads, [(name, [row.get(head) for head in heads]) for name, row in rows.items()]


def _commands(subject: Subject) -> list[tuple[str, str]]:
    place = shlex.quote(str(subject.path))
    check = ("Check the recorded evidence again:", f"faultline check {place}")
    if not subject.spec_text:
        return [check]
    again = "Run it again, the same in every byte, and compare:" if subject.digest else "Run it again:"
    return [(again, f"faultline replay {place}"), check]


def _measured(evidence: str) -> dict[str, Any]:
    """A fault's evidence summed over its nodes; the numbers a node stand in the tables."""
    values = json.loads(evidence) if evidence else {}
    return {name: value for name, value in values.items() if name != "nodes"}


def _spec_facts(text: str) -> dict[str, Any]:
    """The top-level values of the spec, without nested ones; limits with their unit."""
    try:
        values = parse(text) if text else {}
    except yaml.YAMLError:
        return {}
    if not isinstance(values, dict):
        return {}
    plain = {str(name): value for name, value in values.items() if not _nested(value) and value != []}
    return {name: f"{value:g} s" if _is_limit(name, value) else value for name, value in plain.items()}


def _is_limit(name: str, value: object) -> bool:
    """Whether it is a time in seconds, and none of hundreds of digits, which no float can hold."""
    return name.endswith("_limit") and isinstance(value, int | float) and abs(value) < _LIMIT_END_S


def _nested(value: object) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(item, dict | list) for item in value))
