"""The claims of the pages hold. `make docs` writes the generated parts anew."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from checkers.evidence import EvidencePart
from checkers.registry import CHECKERS, RESTS_ON
from harness import exit_codes
from harness.cluster.systems import SYSTEMS
from harness.environments.mistakes import mistakes
from harness.incidents import tried
from harness.incidents.incident import library, load_incident
from harness.incidents.measurements import Measurement, read_measurements
from harness.incidents.schema import first_sentence
from harness.spec import loads
from images.broker.rules import DESCRIPTIONS, NAMES
from nemesis.registry import FAMILIES, FAULTS
from results.situations.situation import PARTITION_WORD, REPLICA_WORD
from tests.docs import fault_table, mutant_tables, spec_tables
from tests.docs.rules_in_runs import shown_by
from tests.harness.hunt import comparison, finding, searches
from tests.harness.shrinking import campaign
from tests.results.explanation import flaws
from tests.systems import campaign as kafka_campaign
from tests.systems.side_by_side import page as side_by_side
from tests.systems.side_by_side.runs import load as load_pairs
from tests.systems.side_by_side.runs import newest as newest_rows
from workloads import history
from workloads.clients.consumer_rules import DESCRIPTIONS as CONSUMER_RULES

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join("|" + "|".join(cell if cell == "---" else f" {cell} " for cell in line) + "|\n" for line in lines)


def _faults() -> str:
    rows = [
        (
            f"`{name}`",
            f"`{fault.family.name}`" + ("" if fault.family.fair else ", by name only"),
            first_sentence(fault),
            " or ".join(measured.replace("_", " ") for measured in fault.proof),
        )
        for name, fault in FAULTS.items()
    ]
    return _table(("fault", "family", "what it does", "evidence that it took effect"), rows)


def _rules() -> str:
    found_by = shown_by()
    return _table(
        ("rule", "protects", "source", "its absence is found by"),
        [
            (f"`{rule.name}`", rule.protects, rule.source, found_by[rule.name])
            for rule in (*DESCRIPTIONS, *CONSUMER_RULES)
        ],
    )


def _rests_on() -> str:
    rows = [(f"`{name}`", *("×" if part in RESTS_ON[name] else "" for part in EvidencePart)) for name in CHECKERS]
    return _table(("check", *EvidencePart), rows)


def _incidents() -> str:
    measurements = read_measurements(ROOT / "docs" / "incident-measurements.json")
    rows = []
    for name in library():
        incident = load_incident(name)
        variants = ", ".join(f"`{variant.name}`" for variant in incident.variants)
        measured = measurements.get(name, Measurement())
        seconds = "—" if measured.cpu_seconds is None else f"{measured.cpu_seconds:g}"
        tries = ", ".join(str(measured.docker_tries[each.name]) for each in incident.variants if incident.docker_tries)
        command = f"`faultline incident run {name}`"
        rows.append((f"{incident.title} ({incident.source})", variants, command, seconds, tries))
    return _table(("what happened", "variants", "command", "CPU seconds", "tries in Docker"), rows)


def _kafka_incidents() -> str:
    outcomes = tried.read_outcomes(ROOT / "docs" / "kafka-incidents.json")
    head = ("incident", "variant", "release", "verdicts", "as expected", "acknowledged records lost, by try")
    return _table(head, [(f"`{name}`", *rest) for name, *rest in tried.rows(outcomes)])


def _letters() -> str:
    words = {"partition": PARTITION_WORD, "replica": REPLICA_WORD}
    rows = [
        (word, subject, "; ".join(f"`{letter}` {meaning or 'nothing to say'}" for letter, meaning in letters.items()))
        for word, places in words.items()
        for subject, letters in places.items()
    ]
    return _table(("word", "place", "letters"), rows)


SHRINKING = ROOT / "docs" / "shrinking-measurements.jsonl"
KAFKA_RUNS = ROOT / "docs" / "kafka-runs.jsonl"
HUNTING = ROOT / "docs" / "hunt-measurements.jsonl"
HUNT_FINDS = ROOT / "docs" / "hunt-finds.jsonl"
SIDE_BY_SIDE = ROOT / "docs" / "side-by-side.jsonl"


GENERATED: dict[tuple[str, str], Callable[[], str]] = {
    ("docs/faults.md", "faults"): _faults,
    ("README.md", "incidents"): _incidents,
    ("docs/shrinking.md", "shrinking"): lambda: campaign.table(campaign.read_rows(SHRINKING)) + "\n",
    ("docs/hunt.md", "hunt-ranges"): lambda: comparison.table(searches.read_rows(HUNTING)),
    ("docs/hunt.md", "hunt-finds"): lambda: finding.table(searches.read_rows(HUNT_FINDS)),
    ("docs/hunt.md", "hunt-finds-before"): lambda: finding.table_before(searches.read_rows(HUNT_FINDS)),
    ("docs/explained-flaws.md", "flaws"): flaws.passages,
    ("docs/mutants.md", "mistakes"): lambda: _table(
        ("mistake", "how the broker is wrong", "patched"),
        [(f"`{name}`", each.says, f"`{each.target}`") for name, each in mistakes().items()],
    ),
    ("docs/mutants.md", "mutants-state"): mutant_tables.state,
    ("docs/mutants.md", "mutants-found"): lambda: _table(mutant_tables.FOUND, mutant_tables.found()),
    ("docs/mutants.md", "mutants-figures"): lambda: _table(mutant_tables.FIGURES, mutant_tables.medians()),
    ("docs/rules.md", "rules"): _rules,
    ("docs/kafka.md", "faults-by-system"): lambda: _table(fault_table.HEAD, fault_table.rows()),
    ("docs/kafka.md", "kafka-incidents"): _kafka_incidents,
    ("docs/kafka.md", "kafka-runs"): lambda: _table(
        kafka_campaign.RUNS, list(kafka_campaign.table(kafka_campaign.read_rows(KAFKA_RUNS)))
    ),
    ("docs/kafka.md", "kafka-families"): lambda: _table(
        kafka_campaign.TOTALS, list(kafka_campaign.totals(kafka_campaign.read_rows(KAFKA_RUNS)))
    ),
    ("docs/kafka.md", "side-by-side"): lambda: side_by_side.part(
        load_pairs(), newest_rows(SIDE_BY_SIDE), side_by_side.read_reasons(), _table
    ),
    ("docs/situations.md", "letters"): _letters,
    ("docs/evidence.md", "rests-on"): _rests_on,
    ("docs/specs.md", "spec-fields"): lambda: _table(("field", "default", "meaning"), spec_tables.spec_fields()),
    ("docs/specs.md", "client-fields"): lambda: _table(("field", "default", "meaning"), spec_tables.client_fields()),
    ("docs/specs.md", "worlds"): lambda: _table(("dimension", "default", "also drawn"), spec_tables.worlds()),
    ("docs/faults.md", "fault-fields"): lambda: _table(
        ("fault", "fields", "ends by itself"), spec_tables.fault_fields()
    ),
    ("docs/specs.md", "conditions"): lambda: _table(
        ("condition", "fields", "it holds when", "outside of the simulation"), spec_tables.conditions()
    ),
}
"""Page and part → its content. It is made by the test: most processes collect these tests and run none of them."""


@pytest.mark.parametrize(("page", "part"), GENERATED)
def test_a_generated_table_says_what_the_code_says(page: str, part: str) -> None:
    content = GENERATED[page, part]()
    path = ROOT / page
    text = path.read_text(encoding="utf-8")
    match = re.search(rf"(<!-- {part}: written by `make docs` -->\n)(.*?)(<!-- /{part} -->)", text, re.DOTALL)
    assert match is not None
    if os.environ.get("FAULTLINE_WRITE_DOCS"):
        path.write_text(text[: match.end(1)] + content + text[match.start(3) :], encoding="utf-8")
        return
    assert match[2] == content, f"{page} is behind the code; run `make docs`"


def test_every_spec_whose_verdicts_differ_between_the_systems_has_a_reason() -> None:
    mistakes = side_by_side.mistakes(load_pairs(), newest_rows(SIDE_BY_SIDE), side_by_side.read_reasons())
    assert list(mistakes) == []


def test_the_absence_of_every_rule_is_found_in_a_running_cluster() -> None:
    assert [rule for rule, found_by in shown_by().items() if not found_by] == []


def test_every_command_of_the_readme_is_one_and_every_command_is_in_the_readme() -> None:
    helped = subprocess.run(
        [sys.executable, "-m", "harness", "--help"], capture_output=True, text=True, cwd=ROOT, check=True
    )
    commands = set(re.findall(r"^    (\w+)  ", helped.stdout, re.MULTILINE))
    assert commands == set(re.findall(r"^\| `faultline (\w+)", README, re.MULTILINE))


def test_every_fault_family_is_in_the_readme() -> None:
    table = README.split("## Faults")[1].split("##")[0]
    rows = re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE)
    assert sorted(name for row in rows for name in re.findall(r"`([\w-]+)`", row)) == sorted(FAMILIES)


def test_the_exit_codes_of_the_readme_are_those_of_the_command() -> None:
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", README, re.MULTILINE)}
    assert codes == {
        exit_codes.VALID,
        exit_codes.INVALID,
        exit_codes.UNKNOWN,
        exit_codes.NOT_CARRIED_OUT,
        exit_codes.BAD_USAGE,
    }


def test_every_checker_is_in_the_readme_and_nothing_else_is_said_to_be_checked() -> None:
    checked = README.split("## What is checked")[1].split("##")[0]
    named = set(re.findall(r"^- `([\w-]+)`|(?<=\. )`([\w-]+)`:", checked, re.MULTILINE))
    assert {first or second for first, second in named} == {*CHECKERS, "processes"}


def test_the_spec_of_the_readme_can_be_run() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    spec = loads(text)
    assert spec.seed == 7
    assert len(list(spec.script)) == 2
    assert spec.without == ("maximal_isr",)


def test_the_default_release_of_kafka_is_the_newest_that_was_tried() -> None:
    tried = re.findall(r"^\| (\d+)\.(\d+)\.(\d+) \|", (ROOT / "docs/kafka-versions.md").read_text(), re.MULTILINE)
    newest = max(tuple(map(int, release)) for release in tried)
    assert SYSTEMS["kafka"].version == ".".join(map(str, newest))


def test_every_make_target_that_a_page_names_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for page in PAGES:
        named = set(re.findall(r"(?:`|^    )make ([a-z]+)", page.read_text(encoding="utf-8"), re.MULTILINE))
        assert named <= targets, page


def test_every_column_and_kind_of_the_history_is_on_its_page() -> None:
    page = (ROOT / "docs" / "history.md").read_text(encoding="utf-8")
    named = {name for row in re.findall(r"^\| (`.*)", page, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    assert {*history.SCHEMA.names, *get_args(history.HistoryKind)} <= named


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for link in re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page}: {link}"


def _anchors(page: Path) -> set[str]:
    """Of the headings of a page, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    heads = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", head) for head in re.findall(r"^#+ (.*)$", text, re.MULTILINE)]
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_links_to_a_heading_find_it() -> None:
    lost = []
    for page in PAGES:
        for link, anchor in re.findall(r"\]\((?!https?://)([^)#]*)#([^)]+)\)", page.read_text(encoding="utf-8")):
            if anchor not in _anchors(page.parent / link if link else page):
                lost.append(f"{page.relative_to(ROOT)}: {link}#{anchor}")
    assert lost == []


def test_every_dependency_has_a_sentence() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    names = {re.split(r"[><=~!\[ ]", line)[0].lower() for line in asked}
    rows = re.findall(
        r"^\| ([^|]+) \| [^|]+\. \|", (ROOT / "docs/dependencies.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert {name.strip().lower() for row in rows for name in row.split(",")} == names
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").lower().splitlines()
    assert names <= {pin.split("==")[0] for pin in pins}


def test_every_scenario_named_is_a_test_and_every_rule_has_what_notices_that_it_is_off() -> None:
    page = (ROOT / "docs/scenarios.md").read_text(encoding="utf-8")
    code = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "tests").rglob("test_*.py")))
    named = set(re.findall(r"`(test_\w+)`", page))
    assert named - set(re.findall(r"def (test_\w+)\(", code)) == set()
    assert len(named) > 40
    rules = re.findall(r"^\| `([\w.]+)` \|", page, re.MULTILINE)
    assert rules == [*NAMES, *(rule.name for rule in CONSUMER_RULES)], "all of them, in their order"
