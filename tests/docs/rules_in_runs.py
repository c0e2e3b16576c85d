"""The runs of whole clusters that show a rule: mutants of the suite `torture`, kept specs, scenarios, and incidents.

A scenario shows a rule if a test in one of `RUNNING` switches it off, by its name in the test or its parameters. Tests
of state machines and single replicas are elsewhere, and do not count. An incident shows a rule if one of its variants
switches it off and is to be invalid.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from checkers.verdict import Validity
from harness.incidents.incident import library, load_incident
from harness.search.mutants.mutant import GUARDED_BY
from harness.suites.plan import load as load_suite
from harness.suites.plan import without
from images.broker.rules import NAMES
from workloads.clients import consumer_rules

TESTS = Path(__file__).parents[1]
EVERY_RULE = (*NAMES, *consumer_rules.NAMES)
RUNNING = ("scenarios/test_*.py", "torture/test_*.py", "broker/test_broker_node.py")
"""Tests that run brokers and controllers, most of them in simulation."""
KEPT_SPECS = "test_a_mutant_is_found_where_the_full_protocol_stands"


def runs_by_rule() -> dict[str, list[str]]:
    """The tests that play a whole cluster without a rule, by rule."""
    runs: dict[str, list[str]] = {rule: [] for rule in EVERY_RULE}
    for path in sorted((TESTS / "torture/regressions").glob("*.yaml")):
        for rule in filter(None, (path.stem, GUARDED_BY.get(path.stem))):
            runs[rule].append(KEPT_SPECS)
    for path in (path for pattern in RUNNING for path in sorted(TESTS.glob(pattern))):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for rule in dict.fromkeys(_rules_named(node)):
                    runs[rule].append(node.name)
    return runs


def _rules_named(test: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(test):
        if isinstance(node, ast.Constant) and node.value in EVERY_RULE:
            yield str(node.value)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "ConsumerRules":
            yield from (consumer_rules.PREFIX + str(keyword.arg) for keyword in node.keywords)


def incidents_by_rule() -> dict[str, list[str]]:
    """The shipped incidents with a variant that is invalid without the rule, by rule."""
    incidents: dict[str, list[str]] = {rule: [] for rule in EVERY_RULE}
    for name in library():
        invalid = [each for each in load_incident(name).variants if each.expect.verdict is Validity.INVALID]
        for rule in dict.fromkeys(rule for variant in invalid for rule in variant.spec.without):
            incidents[rule].append(name)
    return incidents


def shown_by() -> dict[str, str]:
    """For each rule, in a few words: found by torture, by scripts, or else by incidents, in a running cluster. Empty if
    by none."""
    mutants, runs, incidents = load_suite("torture").mutants, runs_by_rule(), incidents_by_rule()
    words = {}
    for rule in EVERY_RULE:
        if without(rule) in mutants:
            words[rule] = "`make torture`"
        else:
            names = dict.fromkeys(runs[rule] or [f"incident {name}" for name in incidents[rule]])
            words[rule] = ", ".join(f"`{name}`" for name in names)
    return words
