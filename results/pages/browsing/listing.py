"""Runs and suites as entries of a list, read from the small files of run directories or from the tables.

The small files of a run directory are untrusted: links and pipes in their place are not read, and values that make no
sense are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from checkers.verdict import checker_name
from results.atomic_files import json_object
from results.explanation.stories import NEAREST_FIRST
from results.store import tables
from results.store.schema import MESSAGE, SIGNATURES
from results.suites import FAILURE_OUTCOMES, MUTANT_FOUND, OUTCOMES, mutant_cells, outcome_alone, outcome_of

ORDER = {outcome: place for place, outcome in enumerate(OUTCOMES)}
"""The worst first. A mutant is to be found: neither of its outcomes is a failure, as on the page of its suite."""
LISTED = ("runs", "verdicts")
"""The tables that lists are made from."""


@dataclass(frozen=True, slots=True)
class RunEntry:
    """A run in a list."""

    suite: str
    """The first suite it is stored in; empty without one."""
    run: str
    has_directory: bool
    spec: str
    cell: str
    """Of its suite; empty for a directory."""
    seed: str
    validity: str
    """Of a stored run its outcome (`results.suites`), as on the page of its suite; of a directory its verdict,
    FAILED or NOT_CHECKED, as on its own page."""
    started: str
    version: str
    problem: str
    """The first thing wrong with it, in a line: the signature of its first story, or, where none was told, a finding;
    empty when nothing is."""

    @property
    def failed(self) -> bool:
        """Whether it is a failure."""
        return self.validity in FAILURE_OUTCOMES

    def fits(self, terms: Iterable[re.Pattern[str]]) -> bool:
        """Whether the entry contains all of the `search_terms`."""
        began = re.sub("[-:]", "", self.started)  # as in names
        seed = f"seed {self.seed}"
        text = " ".join((self.suite, self.run, self.spec, seed, self.validity, began, self.version, self.problem))
        return all(term.search(text.lower()) for term in terms)


def search_terms(find: str) -> list[re.Pattern[str]]:
    """The words of a search, in lower case: `seed 7` is one of them, and a number, also of a seed in a name, is a
    whole one: 7 is not 17. From the year on, the beginning of a date stands for all that begin so: `202611` or
    `2026-11`."""
    return [re.compile(_pattern(word)) for word in re.findall(r"seed \d+(?!\S)|\S+", " ".join(find.lower().split()))]


def _pattern(word: str) -> str:
    escaped = re.escape(word)
    pattern = rf"(?<!\d){escaped}(?!\d)" if re.fullmatch(r"(\S*seed ?)?\d+", word) else escaped
    if re.fullmatch(r"\d{4}-?\d{0,2}-?\d{0,2}(t[\d:]*)?", word):
        pattern += rf"|(?<!\d)(?={re.sub('[-:]', '', word)})\d{{8}}t\d{{6}}"
    return pattern


@dataclass(frozen=True, slots=True)
class SuiteEntry:
    """A suite in a list."""

    name: str
    validities: tuple[str, ...]
    started: str
    """Start time of its first run."""
    versions: tuple[str, ...]
    worst: str
    """`invalid` where a mutant was not found, else the worst outcome of its runs that are failures, else `valid`."""

    @classmethod
    def of(cls, name: str, runs: Sequence[RunEntry], mutants: Set[str]) -> SuiteEntry:
        """The suite of these runs; `mutants` are its cells that are to be found."""
        found = {run.cell for run in runs if run.validity == MUTANT_FOUND}
        failures = [run.validity for run in runs if run.failed]
        return cls(
            name,
            tuple(run.validity for run in runs),
            min(run.started for run in runs),
            tuple(sorted({run.version for run in runs})),
            "invalid" if not found.issuperset(mutants) else min(failures, key=ORDER.__getitem__, default="valid"),
        )


@dataclass(frozen=True, slots=True)
class StoreListing:
    """The entries of the tables, and the files left out."""

    entries: list[RunEntry]
    mutants: Mapping[str, Set[str]]
    """Suite → its cells with a rule switched off."""
    damaged: tuple[tables.DamagedFile, ...]


def by_failure(entries: Iterable[RunEntry]) -> list[RunEntry]:
    """Failures first, the newest first among equals."""
    newest = sorted(entries, key=lambda entry: (entry.started, entry.run), reverse=True)
    return sorted(newest, key=lambda entry: ORDER[entry.validity])


def directory_entry(path: Path, suite: str) -> RunEntry:
    """From the small files alone, which are a stranger's and may hold anything."""
    status, verdict = _object(path / "status.json"), _object(path / "verdict.json")
    state = str(status.get("state", "unknown"))
    validity = verdict.get("validity")
    problem = _first_signature(_object(path / "stories.json")) or _first_finding(verdict.get("checks"))
    if state != "finished":
        problem = _not_finished(state, status.get("message") or status.get("stage"))
    return RunEntry(
        suite=suite,
        run=path.name,
        has_directory=True,
        spec=str(status.get("name", "")),
        cell="",
        seed=str(status.get("seed", "")),
        validity=outcome_alone(state, validity if validity in ("invalid", "valid", None) else "unknown"),
        started=str(status.get("started", "")),
        version=str(status.get("version", "")),
        problem=problem,
    )


def listed(store: Path) -> StoreListing:
    read = {name: tables.read(store, name) for name in LISTED}
    verdicts = read["verdicts"].table
    findings = _first_findings(verdicts.filter(pc.not_equal(verdicts["validity"], "valid")).to_pylist())
    names = ["suite", "run", "name", "cell", "seed", "validity", "started", "version", "state", "facts"]
    runs = read["runs"].table.select(names)
    mutants = {suite: mutant_cells(store, suite) for suite in pc.unique(runs["suite"]).to_pylist()}
    entries = [
        _stored_entry(row, findings.get((row["suite"], row["run"]), ""), outcome_of(row, mutants[row["suite"]]))
        for row in runs.to_pylist()
    ]
    return StoreListing(entries, mutants, tables.damaged_in(read.values()))


def _stored_entry(row: Mapping[str, Any], problem: str, outcome: str) -> RunEntry:
    facts = json_object(row["facts"])
    return RunEntry(
        suite=row["suite"],
        run=row["run"],
        has_directory=False,
        spec=row["name"],
        cell=row["cell"],
        seed=str(row["seed"]),
        validity=outcome,
        started=row["started"],
        version=row["version"],
        problem=(_stored_signature(facts) or problem)
        if row["state"] == "finished"
        else _not_finished(row["state"], facts.get(MESSAGE)),
    )


def _not_finished(state: str, reason: object) -> str:
    return f"{state}: {reason or ''}".rstrip(": ")


def _first_findings(verdicts: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], str]:
    first_findings: dict[tuple[str, str], str] = {}
    for row in sorted(verdicts, key=_nearness):
        if (row["suite"], row["run"]) in first_findings:
            continue
        try:
            findings = json.loads(row["findings"])
        except ValueError:
            findings = []
        first_findings[row["suite"], row["run"]] = _first_finding([{**row, "findings": findings}])
    return first_findings


def _nearness(check: Mapping[str, Any]) -> tuple[int, int]:
    """The worst checks first, and from the inside of the protocol outwards."""
    name = checker_name(str(check.get("checker", "")))
    nearest = NEAREST_FIRST.index(name) if name in NEAREST_FIRST else len(NEAREST_FIRST)
    return ORDER.get(str(check.get("validity")), 1), nearest


def _first_signature(stories: Mapping[str, Any]) -> str:
    """Of the first story of a `stories.json`; empty where there is none."""
    told = stories.get("stories")
    first = told[0] if isinstance(told, list) and told else {}
    signature = first.get("signature") if isinstance(first, dict) else ""
    return signature if isinstance(signature, str) else ""


def _stored_signature(facts: Mapping[str, Any]) -> str:
    """The same from the facts of a stored run."""
    signatures = facts.get(SIGNATURES)
    first = signatures[0] if isinstance(signatures, list) and signatures else ""
    return first if isinstance(first, str) else ""


def _first_finding(checks: object) -> str:
    """`loss: lost-append` of the worst check that is not valid, of those the nearest to the protocol; whatever does not
    look like a check is passed over."""
    known = [check for check in checks if isinstance(check, dict)] if isinstance(checks, list) else []
    wrong = [check for check in known if check.get("validity") in ("invalid", "unknown")]
    for check in sorted(wrong, key=_nearness):
        findings = check.get("findings")
        first = findings[0] if isinstance(findings, list) and findings else {}
        kind = first.get("kind", "") if isinstance(first, dict) else ""
        return f"{checker_name(check.get('checker', ''))}: {kind}".rstrip(": ")
    return ""


def _object(path: Path) -> dict[str, Any]:
    """The JSON object in a plain file; an empty one when there is none to be had."""
    if path.is_symlink() or not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
