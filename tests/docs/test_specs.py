"""The language of specs: the examples of docs/specs.md, and the schema for editors, which says what the reader says."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from random import Random
from typing import Any

import jsonschema
import pytest
import yaml

from harness.incidents.incident import KAFKA, LIBRARY, read_incident
from harness.incidents.schema import field_descriptions, incident_schema, spec_descriptions
from harness.spec import loads
from harness.yaml_document import SpecError, parse_document
from nemesis.registry import FAMILIES

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "docs" / "spec.schema.json"
EXAMPLES = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/specs.md").read_text(encoding="utf-8"), re.DOTALL)
SHIPPED = sorted(
    path
    for folder in (ROOT / "examples/specs", ROOT / "examples/incidents", LIBRARY, KAFKA)
    for path in folder.glob("*.yaml")
)
VALIDATOR = jsonschema.Draft202012Validator(incident_schema())


def errors(values: Any) -> list[str]:
    return [error.message for error in VALIDATOR.iter_errors(values)]


def test_the_shipped_schema_is_the_one_that_the_command_prints() -> None:
    text = json.dumps(incident_schema(), indent=1, ensure_ascii=False) + "\n"
    if os.environ.get("FAULTLINE_WRITE_DOCS"):
        SCHEMA.write_text(text, encoding="utf-8")
    jsonschema.Draft202012Validator.check_schema(incident_schema())
    assert SCHEMA.read_text(encoding="utf-8") == text, "docs/spec.schema.json is behind the code; run `make docs`"


def test_a_description_goes_on_in_the_next_line_of_the_comment() -> None:
    text = "    one: 1     # first\n               # and more\n    two: 2     # second\n"
    assert field_descriptions(text, 4) == {"one": "first and more", "two": "second"}
    assert spec_descriptions()["channels"].endswith("above 0 one kind may be slow throughout, too")


def test_the_examples_of_the_page_are_specs_and_incidents() -> None:
    assert len(EXAMPLES) >= 4
    for text in EXAMPLES:
        assert errors(yaml.safe_load(text)) == []
        if "expect:" in text:
            assert len(read_incident(parse_document(text, ""), "example").variants) == 2
        else:
            assert loads(text).seed >= 0


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_the_schema_takes_every_shipped_spec_and_incident(path: Path) -> None:
    assert errors(yaml.safe_load(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("family", FAMILIES)
def test_the_schema_takes_every_drawn_schedule(family: str) -> None:
    spec = loads(f"faults: [{family}]\nbrokers: 4\ntime_limit: 600s\n")
    schedule = spec.schedule(("b1", "b2", "b3", "b4"), ("c1", "c2", "c3"), Random(1))
    assert len(schedule) > 0
    assert errors({"faults": schedule.to_script()}) == []


def test_the_schema_takes_a_complete_spec() -> None:
    assert errors(yaml.safe_load(loads(EXAMPLES[1]).to_yaml())) == []


@pytest.mark.parametrize(
    "text",
    [
        "without: maximal_isr , ack_after_high_watermark,",
        "without: ''",
        "faults: ' kill , pause'",
        "faults: all",
        "faults: none",
        "vary: [clients.batch, segment.bytes]",
        "clients: {in_flight: 5, written_share: 0}",
    ],
)
def test_what_the_reader_takes_in_one_text_the_schema_takes_too(text: str) -> None:
    loads(text)
    assert errors(yaml.safe_load(text)) == []


@pytest.mark.parametrize(
    "text",
    [
        "brokers: many",
        "brokers: 0",
        "broker: 3",
        "environment: mars",
        "workload: guess",
        "time_limit: soon",
        "acks: 2",
        "without: [gravity]",
        "without: maximal_isr, gravity",
        "vary: clients.batch, segment.bytes",
        "faults: kill, quake",
        "faults: kill,",
        "clients: {in_flight: 6}",
        "clients: {written_share: 1.5}",
        "settings: {min.insync.replicas: [2]}",
        "faults: [quake]",
        "faults: [{at: 5s, for: 1s, fault: quake}]",
        "faults: [{at: 5s, fault: kill}]",
        "faults: [{for: 5s, fault: kill}]",
        "faults: [{at: 5s, for: 1s, fault: kill, keep: torn}]",
        "faults: [{at: 5s, for: 1s, fault: power-loss, keep: half}]",
        "faults: [{at: 5s, for: 1s, fault: kill, id: 7 up}]",
        "faults: [{when: {elects: b2}, for: 1s, fault: kill}]",
        "faults: [{when: {elected: b2, restarted: b2}, for: 1s, fault: kill}]",
        "faults: [{when: {isr: {}}, for: 1s, fault: kill}]",
        "faults: [{when: {log_end: b2}, for: 1s, fault: kill}]",
        "faults: [{when: {all: []}, for: 1s, fault: kill}]",
        "clients: {batches: 2}",
        "clients: {isolation: total}",
        "clients: {operations: [dance]}",
        "clients: {operations: [{when: {elected: b2}}]}",
        "clients: {operations: [{do: commit 0, for: 1s}]}",
    ],
)
def test_what_the_reader_refuses_in_a_field_the_schema_refuses_too(text: str) -> None:
    with pytest.raises(SpecError):
        loads(text)
    assert errors(yaml.safe_load(text)) != []


@pytest.mark.parametrize(
    "text",
    [
        "expect: {verdict: fine}",
        "expect: {check: luck}",
        "expect: {figures: {loss.lost: some}}",
        "expect: {figures: {lost: '>= 1'}}",
        "expect: {about: {place: 1}}",
        "title: [7]\nexpect: {verdict: valid}",
        "variants: {}",
        "variants: {one: {brokers: many, expect: {verdict: valid}}}",
        "expect: {verdict: valid}\ndocker: {tries: many}",
    ],
)
def test_what_the_reader_refuses_in_an_incident_the_schema_refuses_too(text: str) -> None:
    with pytest.raises(SpecError):
        read_incident(parse_document(text, ""), "wrong")
    assert errors(yaml.safe_load(text)) != []
