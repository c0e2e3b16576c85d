"""The report of one run: a single HTML file for people.

It holds everything it needs, plotly.js included, and asks the network for nothing; its content security policy
forbids it to. It reads in this order: the verdict and what was run; every check, failures first, each with the
operations involved; faults, operations and latency over time; who led, who was in sync and where each log ended, a
figure a partition; what every fault is known to have done; availability and recovery; how to bring the run back.

Everything that comes from the run (names, values, error texts, the spec) is escaped. What is missing because the run
was cut short is said at the top, not left to be noticed.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import yaml

from checkers import availability
from checkers.evidence import RunEvidence
from checkers.verdict import Finding, Validity, Verdict, worst
from results.figures import operations, partitions
from results.figures.faults import family_colour
from results.number_format import counted, spaced
from results.pages import page
from results.run.directory import RunDirectory, Status

PARTITIONS_MAX = 12
"""Partitions drawn; the others are named in a line."""
FINDINGS_OPEN = 5
"""Findings of one check that are shown at once."""
_LATENCY = re.compile(r"(?P<operation>\w+)_ms_(?P<statistic>p\d+|max)")
_ORDER = {Validity.INVALID: 0, Validity.UNKNOWN: 1, Validity.VALID: 2}


@dataclass(frozen=True, slots=True)
class Subject:
    """All that a report is drawn from."""

    path: Path
    status: Status
    spec_text: str
    digest: str | None
    gaps: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    evidence: RunEvidence
    whole: bool = True
    """Whether `evidence` is there; else only the verdicts and their figures are kept."""
    commands: tuple[tuple[str, str], ...] = ()
    """What brings it back, each after words that say so; empty for a run directory, of which that is known."""

    @property
    def validity(self) -> Validity:
        """The verdict of the run."""
        return worst(verdict.validity for verdict in self.verdicts)


def write_report(run: RunDirectory, evidence: RunEvidence | None = None) -> Path:
    """Write `report.html` into the run directory, from what is there, and return its path.

    `evidence` saves loading it again. StoreError when the directory cannot be read or written.
    """
    run.write_report(render(subject_of(run, evidence)))
    return run.report_path


def subject_of(run: RunDirectory, evidence: RunEvidence | None = None) -> Subject:
    """What the report of a run directory is drawn from. StoreError when it cannot be read."""
    spec = run.path / "spec.yaml"
    return Subject(
        path=run.path,
        status=run.status(),
        spec_text=run.read_spec_text() if spec.exists() else "",
        digest=run.digest(),
        gaps=run.gaps(),
        verdicts=tuple(run.verdicts()),
        evidence=evidence if evidence is not None else run.load(),
    )


def render(subject: Subject) -> str:
    """The whole page."""
    return page.frame(f"{subject.validity.value} · {subject.path.resolve().name} · Faultline", body(subject))


def body(subject: Subject, beside: str = "") -> str:
    """The page's sections; `beside`, which is HTML, comes after the faults."""
    evidence = subject.evidence
    recorded = (_operations(evidence), _partitions(evidence), _faults(evidence.faults), beside)
    sections = (_header(subject), _checks(subject), *(recorded if subject.whole else ()))
    return "\n".join((*sections, _recovery(subject), _bring_back(subject)))


# ---- sections --------------------------------------------------------------------------------------------------------


def _header(subject: Subject) -> str:
    validity, status, digest = subject.validity.value, subject.status, subject.digest
    facts = {
        "run": subject.path.resolve().name,
        "seed": status.seed,
        **{name: value for name, value in _spec_facts(subject.spec_text).items() if name not in ("seed", "name")},
        "faultline": status.version,
        "started": status.started.replace("T", " ").replace("+00:00", " UTC"),
        "digest": "none" if digest is None else digest if len(digest) < 20 else f"{digest[:16]}…",
    }
    title = f"{status.name or 'run'}, seed {status.seed}"
    return f"""<header class="{validity}">
<div class="headline"><span class="pill">{validity}</span><h1>{escape(title)}</h1></div>
<p>{escape(_sentence(subject))}</p>
{page.bullets(subject.gaps)}
{page.definitions(facts)}
</header>"""


def _sentence(subject: Subject) -> str:
    verdicts = subject.verdicts
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
    if not subject.whole:
        return " ".join(words)
    done = counted(subject.evidence.history.num_rows, "operation")
    faults = subject.evidence.faults
    bit = pc.sum(faults["bit"]).as_py() or 0
    words.append(f"{done}, {counted(faults.num_rows, 'fault')} of which {bit} bit.")
    return " ".join(words)


def _checks(subject: Subject) -> str:
    if not subject.verdicts:
        return ""
    rows = []
    for verdict in sorted(subject.verdicts, key=lambda verdict: _ORDER[verdict.validity]):
        validity = verdict.validity.value
        figures = {name: value for name, value in verdict.figures.items() if not _LATENCY.fullmatch(name)}
        rows.append(
            f'<tr class="{validity}"><td><span class="pill {validity}">{validity}</span></td>'
            f'<td class="name">{escape(verdict.checker)}</td>'
            f"<td>{_findings(verdict)}{page.measures(figures)}</td></tr>"
        )
    return page.section("Checks", page.table(("verdict", "check", "what it found"), rows, "checks"))


def _findings(verdict: Verdict) -> str:
    """The first few in the open; what a check merely notes, though it passed, is folded away."""
    shown = 0 if verdict.validity is Validity.VALID else FINDINGS_OPEN
    rest = verdict.findings[shown:]
    noun = "note" if verdict.validity is Validity.VALID else "more finding"
    folded = page.folded(counted(len(rest), noun), "".join(map(_finding, rest))) if rest else ""
    return "".join(map(_finding, verdict.findings[:shown])) + folded


def _finding(finding: Finding) -> str:
    where = finding.topic + (f"-{finding.partition}" if finding.partition >= 0 else "") if finding.topic else ""
    lines = "".join(f"<p>{escape(line)}</p>" for line in finding.lines)
    return (
        f'<div class="finding"><span class="kind">{escape(finding.kind)}</span> '
        f'<span class="dim">{escape(where)}</span>{lines}</div>'
    )


def _operations(evidence: RunEvidence) -> str:
    if not evidence.history.num_rows:
        return page.section("Operations", page.note("No operation was recorded."))
    caption = (
        "Faults as they came, appends a second by outcome, and how long each append took. "
        "A pale fault bar did not bite. Dragging zooms every figure of this page, a double click undoes it."
    )
    return page.section("Operations", page.plot(operations.draw(evidence), caption), _counts(evidence.history))


def _counts(history: pa.Table) -> str:
    counts: dict[str, dict[str, int]] = {}
    grouped = history.select(["kind", "outcome"]).group_by(["kind", "outcome"]).aggregate([([], "count_all")])
    for row in grouped.to_pylist():
        counts.setdefault(row["kind"], {})[row["outcome"]] = row["count_all"]
    rows = [
        page.number_row(kind, (of_kind.get(outcome, 0) for outcome in operations.OUTCOMES))
        for kind, of_kind in sorted(counts.items())
    ]
    return page.table(("operation", *operations.OUTCOMES), rows, "numbers")


def _partitions(evidence: RunEvidence) -> str:
    figures = list(partitions.draw(evidence))
    if not figures:
        return page.section("Partitions", page.note("There is no protocol trace to draw from."))
    caption = (
        "Lanes: a thick bar is the leader, a thin one a member of the ISR, as the controller committed it. Below: how "
        "many were in sync (dotted: min.insync.replicas), the high watermark as leaders held it, and how far each "
        "replica's log ended above it (not yet committed) or below it (behind)."
    )
    drawn = (f"<h3>{escape(name)}</h3>{page.plot(figure)}" for name, figure in figures[:PARTITIONS_MAX])
    left_out = ", ".join(name for name, _ in figures[PARTITIONS_MAX:])
    return page.section(
        "Leaders, in-sync replicas and logs",
        page.note(caption),
        *drawn,
        page.note(f"Not drawn: {left_out}." if left_out else ""),
    )


def _faults(faults: pa.Table) -> str:
    if not faults.num_rows:
        return page.section("Faults", page.note("Nothing was broken in this run."))
    rows = []
    for fault in faults.sort_by("started_ns").to_pylist():
        ended = f"{fault['ended_ns'] / 1e9:.2f}" if fault["ended_ns"] is not None else "the end"
        swatch = f'<span class="swatch" style="background:{family_colour(fault["family"])}"></span>'
        bit = "yes" if fault["bit"] else "no"
        rows.append(
            f'<tr class="bit-{bit}"><td class="name">{swatch}{escape(fault["fault"])}</td>'
            f"<td>{escape(', '.join(fault['nodes']))}</td>"
            f'<td class="span">{fault["started_ns"] / 1e9:.2f} – {ended}</td>'
            f'<td data-head="bit">{bit}</td>'
            f"<td>{page.measures(_measured(fault['evidence']))}{page.note(fault['note'])}</td></tr>"
        )
    return page.section(
        "Faults",
        page.note("What the environment measured while each fault lasted; one that measured nothing did not bite."),
        page.table(("fault", "nodes", "seconds", "bit", "evidence"), rows, "checks"),
    )


def _recovery(subject: Subject) -> str:
    recovery = subject.evidence.recovery
    facts = {name: value for name, value in recovery.items() if not isinstance(value, list | dict)}
    waiting = [str(item) for item in recovery.get("waiting_for") or ()]
    available = next((verdict for verdict in subject.verdicts if verdict.checker == availability.NAME), None)
    parts = [page.definitions(facts)]
    if waiting:
        parts += ["<p>Still waiting for:</p>", page.bullets(waiting)]
    if available is not None:
        figures = available.figures
        parts.append(page.definitions({name: value for name, value in figures.items() if not _LATENCY.fullmatch(name)}))
        parts.append(_latencies(dict(figures)))
    return page.section("Recovery and availability", *parts) if any(parts) else ""


def _latencies(figures: dict[str, float]) -> str:
    """A row an operation from figures named like `append_ms_p50`."""
    rows: dict[str, dict[str, float]] = {}
    for name, value in figures.items():
        if match := _LATENCY.fullmatch(name):
            rows.setdefault(match["operation"], {})[match["statistic"]] = value
    heads = list(dict.fromkeys(statistic for row in rows.values() for statistic in row))
    written = [page.number_row(spaced(name), map(row.get, heads)) for name, row in rows.items()]
    return page.table(("latency, ms", *heads), written, "numbers") if rows else ""


def _bring_back(subject: Subject) -> str:
    commands = subject.commands or _commands(subject)
    parts = [
        f"<p>{escape(words)}</p>{page.command(f'command-{number}', line)}"
        for number, (words, line) in enumerate(commands)
    ]
    if subject.digest:
        parts.append(f'<p class="dim">Digest of the run: <code>{escape(subject.digest)}</code></p>')
    if subject.spec_text:
        parts.append(page.folded("The complete spec", f"<pre>{escape(subject.spec_text)}</pre>"))
    if subject.status.facts:
        parts.append(page.folded("What the runner noted", page.definitions(subject.status.facts)))
    return page.section("Bring it back", *parts)


def _commands(subject: Subject) -> list[tuple[str, str]]:
    place = shlex.quote(str(subject.path))
    judge = ("Judge what was recorded once more:", f"faultline check {place}")
    if not subject.spec_text:
        return [judge]
    again = "Run it again, the same in every byte, and compare:" if subject.digest else "Run it again:"
    return [(again, f"faultline replay {place}"), judge]


# ---- what sections read ----------------------------------------------------------------------------------------------


def _measured(evidence: str) -> dict[str, Any]:
    """A fault's evidence summed over its nodes; the numbers a node stand in the tables."""
    values = json.loads(evidence) if evidence else {}
    return {name: value for name, value in values.items() if name != "nodes"}


def _spec_facts(text: str) -> dict[str, Any]:
    """What stands on the top level of the spec; nested values are left to the spec itself."""
    try:
        values = yaml.safe_load(text) if text else {}
    except yaml.YAMLError:
        return {}
    if not isinstance(values, dict):
        return {}
    return {str(name): value for name, value in values.items() if not _nested(value) and value != []}


def _nested(value: object) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(item, dict | list) for item in value))
