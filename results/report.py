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
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import yaml

from checkers.evidence import RunEvidence
from checkers.verdict import Validity, Verdict, worst
from results import figures
from results.rundir import RunDirectory, Status

PARTITIONS_MAX = 12
"""Partitions drawn; the others are named in a line."""
_ORDER = {Validity.INVALID: 0, Validity.UNKNOWN: 1, Validity.VALID: 2}
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"


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

    @property
    def validity(self) -> Validity:
        """The verdict of the run."""
        return worst(verdict.validity for verdict in self.verdicts)


def write_report(run: RunDirectory, evidence: RunEvidence | None = None) -> Path:
    """Write `report.html` into the run directory, from what is there, and return its path.

    `evidence` saves loading it again. StoreError when the directory cannot be read or written.
    """
    spec = run.path / "spec.yaml"
    subject = Subject(
        path=run.path,
        status=run.status(),
        spec_text=run.read_spec_text() if spec.exists() else "",
        digest=run.digest(),
        gaps=run.gaps(),
        verdicts=tuple(run.verdicts()),
        evidence=evidence if evidence is not None else run.load(),
    )
    run.write_report(render(subject))
    return run.report_path


def render(subject: Subject) -> str:
    """The whole page."""
    body = "\n".join(
        (
            _header(subject),
            _checks(subject),
            _operations(subject.evidence),
            _partitions(subject.evidence),
            _faults(subject.evidence.faults),
            _recovery(subject),
            _bring_back(subject),
        )
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{escape(subject.validity.value)} · {escape(subject.path.resolve().name)} · Faultline</title>
<link rel="icon" href="data:,">
<style>
{_asset("results", "report.css")}</style>
</head>
<body>
<main>
{body}
</main>
<script>{_asset("plotly", "package_data/plotly.min.js")}</script>
<script>
{_asset("results", "report.js")}</script>
</body>
</html>
"""


# ---- sections --------------------------------------------------------------------------------------------------------


def _header(subject: Subject) -> str:
    validity = subject.validity.value
    status = subject.status
    digest = f"{subject.digest[:16]}…" if subject.digest and len(subject.digest) > 17 else subject.digest
    facts = {
        "run": subject.path.resolve().name,
        "seed": status.seed,
        **{name: value for name, value in _spec_facts(subject.spec_text).items() if name not in ("seed", "name")},
        "started": status.started.replace("T", " ").replace("+00:00", " UTC"),
        "digest": digest or "none",
    }
    title = f"{status.name or 'run'}, seed {status.seed}"
    return f"""<header class="{validity}">
<div class="headline"><span class="pill">{validity}</span><h1>{escape(title)}</h1></div>
<p>{_sentence(subject)}</p>
{_listed(subject.gaps)}
{_definitions(facts)}
</header>"""


def _sentence(subject: Subject) -> str:
    verdicts = subject.verdicts
    if not verdicts:
        return "This run has not been checked."
    failed = [verdict.checker for verdict in verdicts if verdict.validity is Validity.INVALID]
    unsure = [verdict.checker for verdict in verdicts if verdict.validity is Validity.UNKNOWN]
    words = []
    if failed:
        words.append(f"{len(failed)} of {_count(len(verdicts), 'check')} found a promise broken: {', '.join(failed)}.")
    if unsure:
        words.append(f"Undecided: {', '.join(unsure)}.")
    if not words:
        words.append(f"All {_count(len(verdicts), 'check')} passed: every promise checked was kept.")
    history = subject.evidence.history
    faults = subject.evidence.faults
    bit = pc.sum(faults["bit"]).as_py() or 0
    words.append(f"{_count(history.num_rows, 'operation')}, {_count(faults.num_rows, 'fault')} of which {bit} bit.")
    return escape(" ".join(words))


def _checks(subject: Subject) -> str:
    if not subject.verdicts:
        return ""
    rows = []
    for verdict in sorted(subject.verdicts, key=lambda verdict: _ORDER[verdict.validity]):
        validity = verdict.validity.value
        findings = "".join(
            f'<div class="finding"><span class="kind">{escape(finding.kind)}</span>'
            f"{_place(finding.topic, finding.partition)}"
            + "".join(f"<p>{escape(line)}</p>" for line in finding.lines)
            + "</div>"
            for finding in verdict.findings
        )
        rows.append(
            f'<tr class="{validity}"><td><span class="pill {validity}">{validity}</span></td>'
            f'<td class="name">{escape(verdict.checker)}</td><td>{findings}{_figures(verdict.figures)}</td></tr>'
        )
    return _section("Checks", _table(("verdict", "check", "what it found"), rows, "checks"))


def _operations(evidence: RunEvidence) -> str:
    if not evidence.history.num_rows:
        return _section("Operations", '<p class="dim">No operation was recorded.</p>')
    caption = (
        "Faults as they came, appends a second by outcome, and how long each append took. "
        "A pale fault bar did not bite. Dragging zooms every figure of this page, a double click undoes it."
    )
    return _section("Operations", _plot(figures.operations(evidence), caption) + _counts(evidence.history))


def _counts(history: pa.Table) -> str:
    counts: dict[str, dict[str, int]] = {}
    grouped = history.select(["kind", "outcome"]).group_by(["kind", "outcome"]).aggregate([([], "count_all")])
    for row in grouped.to_pylist():
        counts.setdefault(row["kind"], {})[row["outcome"]] = row["count_all"]
    rows = [
        f'<tr><td class="name">{escape(kind)}</td>'
        + "".join(f'<td class="number">{_number(of_kind.get(outcome, 0))}</td>' for outcome in figures.OUTCOMES)
        + "</tr>"
        for kind, of_kind in sorted(counts.items())
    ]
    return _table(("operation", *figures.OUTCOMES), rows, "counts")


def _partitions(evidence: RunEvidence) -> str:
    drawn = []
    left_out = []
    for number, (name, figure) in enumerate(figures.partitions(evidence)):
        if number < PARTITIONS_MAX:
            drawn.append(f"<h3>{escape(name)}</h3>{_plot(figure, '')}")
        else:
            left_out.append(name)
    if not drawn:
        return _section("Partitions", '<p class="dim">The system under test keeps no protocol trace to draw from.</p>')
    caption = (
        "Lanes: a thick bar is the leader, a thin one a member of the ISR, as the controller committed it. Below: how "
        "many were in sync (dotted: min.insync.replicas), the high watermark as leaders held it, and how far each "
        "replica's log ended above it (not yet committed) or below it (behind)."
    )
    more = f'<p class="dim">Not drawn: {escape(", ".join(left_out))}.</p>' if left_out else ""
    return _section("Leaders, in-sync replicas and logs", f'<p class="dim">{caption}</p>' + "".join(drawn) + more)


def _faults(faults: pa.Table) -> str:
    if not faults.num_rows:
        return _section("Faults", '<p class="dim">Nothing was broken in this run.</p>')
    rows = []
    for fault in faults.sort_by("started_ns").to_pylist():
        ended = f"{fault['ended_ns'] / 1e9:.2f}" if fault["ended_ns"] is not None else "the end"
        swatch = f'<span class="swatch" style="background:{figures.family_colour(fault["family"])}"></span>'
        note = f'<p class="dim">{escape(fault["note"])}</p>' if fault["note"] else ""
        rows.append(
            f'<tr class="{"bit" if fault["bit"] else "missed"}">'
            f'<td class="name">{swatch}{escape(fault["fault"])}</td><td>{escape(", ".join(fault["nodes"]))}</td>'
            f'<td class="span">{fault["started_ns"] / 1e9:.2f} – {ended}</td>'
            f"<td>{'yes' if fault['bit'] else 'no'}</td>"
            f"<td>{_figures(_measured(fault['evidence']))}{note}</td></tr>"
        )
    caption = "What the environment measured while each fault lasted; a fault that measured nothing did not bite."
    return _section(
        "Faults",
        f'<p class="dim">{caption}</p>' + _table(("fault", "nodes", "seconds", "bit", "evidence"), rows),
    )


def _recovery(subject: Subject) -> str:
    recovery = dict(subject.evidence.recovery)
    available = [verdict for verdict in subject.verdicts if verdict.checker == "availability" and verdict.figures]
    if not recovery and not available:
        return ""
    parts = []
    if recovery:
        waiting = recovery.pop("waiting_for", None) or []
        plain = {name: value for name, value in recovery.items() if not isinstance(value, list | dict)}
        parts.append(_definitions({name.replace("_", " "): _plain(value) for name, value in plain.items()}))
        if waiting:
            parts.append("<p>Still waiting for:</p>" + _listed(str(item) for item in waiting))
    for verdict in available:
        facts = {name.replace("_", " "): _plain(value) for name, value in verdict.figures.items()}
        parts.append(_definitions(facts))
    return _section("Recovery and availability", "".join(parts))


def _bring_back(subject: Subject) -> str:
    place = shlex.quote(str(subject.path))
    parts = []
    if subject.spec_text:
        parts.append("<p>Run it again, the same in every byte, and compare:</p>" if subject.digest else "<p>Again:</p>")
        parts.append(_command("replay", f"faultline replay {place}"))
    parts.append("<p>Judge what was recorded once more:</p>")
    parts.append(_command("check", f"faultline check {place}"))
    if subject.digest:
        parts.append(f'<p class="dim">Digest of the run: <code>{escape(subject.digest)}</code></p>')
    if subject.spec_text:
        parts.append(f"<details><summary>The complete spec</summary><pre>{escape(subject.spec_text)}</pre></details>")
    if subject.status.facts:
        parts.append(
            "<details><summary>What the runner noted</summary>"
            + _definitions({name.replace("_", " "): _plain(value) for name, value in subject.status.facts.items()})
            + "</details>"
        )
    return _section("Bring it back", "".join(parts))


# ---- pieces ----------------------------------------------------------------------------------------------------------


def _section(title: str, content: str) -> str:
    return f"<section>\n<h2>{escape(title)}</h2>\n{content}\n</section>"


def _table(heads: Sequence[str], rows: Iterable[str], kind: str = "") -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join(rows)
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead>'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def _plot(figure: figures.Figure, caption: str) -> str:
    note = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    height = int(figure["layout"]["height"])
    return (
        f'<figure>{note}<div class="plot" style="height:{height}px"></div>'
        f'<script type="application/json">{figures.to_json(figure)}</script></figure>'
    )


def _definitions(facts: Mapping[str, Any]) -> str:
    items = "".join(
        f"<div><dt>{escape(str(name))}</dt><dd>{escape(str(value))}</dd></div>"
        for name, value in facts.items()
        if value not in ("", None)
    )
    return f"<dl>{items}</dl>"


def _listed(items: Iterable[str]) -> str:
    listed = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f"<ul>{listed}</ul>" if listed else ""


def _figures(values: Mapping[str, Any]) -> str:
    shown = "".join(
        f"<span>{escape(name.replace('_', ' '))} <b>{escape(_plain(value))}</b></span>"
        for name, value in values.items()
    )
    return f'<div class="figures">{shown}</div>' if shown else ""


def _command(name: str, command: str) -> str:
    return (
        f'<div class="command"><pre id="{name}">{escape(command)}</pre>'
        f'<button type="button" data-copies="{name}">Copy</button></div>'
    )


def _place(topic: str, partition: int) -> str:
    if not topic:
        return ""
    return f' <span class="dim">{escape(topic)}{f"-{partition}" if partition >= 0 else ""}</span>'


def _measured(evidence: str) -> dict[str, Any]:
    """A fault's evidence summed over its nodes; the numbers a node stand in the tables."""
    values = json.loads(evidence) if evidence else {}
    return {name: value for name, value in values.items() if name != "nodes"}


def _spec_facts(text: str) -> dict[str, Any]:
    """What stands on the top level of the spec, lists joined and nested values left to the spec itself."""
    try:
        values = yaml.safe_load(text) if text else {}
    except yaml.YAMLError:
        return {}
    if not isinstance(values, dict):
        return {}
    facts: dict[str, Any] = {}
    for name, value in values.items():
        name = str(name).replace("_", " ")
        if isinstance(value, list):
            plain = [str(item) for item in value if isinstance(item, str | int | float)]
            if plain and len(plain) == len(value):
                facts[name] = ", ".join(plain)
        elif not isinstance(value, dict):
            facts[name] = _plain(value)
    return facts


def _plain(value: Any) -> str:
    """A value as people write it: yes and no, numbers with their thousands apart and no needless digits."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return ""
    if isinstance(value, int | float):
        return _number(value)
    if isinstance(value, list | tuple):
        return ", ".join(_plain(item) for item in value)
    return str(value)


def _number(value: float) -> str:
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value):,}".replace(",", "\u202f") if abs(value) >= 10_000 else str(int(value))
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.1f}".replace(",", "\u202f")


def _count(number: int, noun: str) -> str:
    return f"{_number(number)} {noun}" + ("" if number == 1 else "s")


def _asset(package: str, name: str) -> str:
    return files(package).joinpath(name).read_text(encoding="utf-8")
