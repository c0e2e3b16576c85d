"""Mistakes are patches of the broker that hold while they are applied, and that a spec names."""

from __future__ import annotations

import dis
from dataclasses import replace

import pytest

from checkers.verdict import Validity
from harness.environments.mistakes import MistakeError, applied, mistakes
from harness.runner.run import run_in_simulation
from harness.search.mutants.explorations import ScopeOfMutant, explored
from harness.spec import SpecError, loads, parse

EAGER = "sent_records_count_as_stored"
OF_TRUNCATION = ("epoch_cache_survives_truncation", "producers_survive_truncation")
"""Both patch `Log.truncate`."""


@pytest.mark.parametrize("name", mistakes())
def test_every_mistake_still_patches_its_function(name: str) -> None:
    mistake = mistakes()[name]
    function = mistake.function()
    before = function.__code__
    with applied((name,)):
        assert function.__code__.co_code != before.co_code or function.__code__.co_consts != before.co_consts
    assert function.__code__ is before
    assert mistake.says.endswith(".")


@pytest.mark.parametrize("names", [OF_TRUNCATION, OF_TRUNCATION[::-1]])
def test_two_mistakes_in_one_function_are_both_made_and_taken_back(names: tuple[str, str]) -> None:
    function = mistakes()[names[0]].function()
    before = function.__code__
    for _ in range(2):
        with applied(names):
            called = [instruction.argval for instruction in dis.get_instructions(function)]
            assert (called.count("truncate_end"), called.count("_rebuild_producers")) == (1, 0)
        assert function.__code__ is before
    with pytest.raises(MistakeError, match="0 times, not once"), applied((*names, names[0])):
        pass
    assert function.__code__ is before


def test_a_mistake_whose_text_is_gone_is_refused_by_name() -> None:
    mistake = replace(mistakes()[EAGER], replace="no such text")
    with pytest.raises(MistakeError, match=f"{EAGER}: .*_record_fetch contains 'no such text' 0 times, not once"):
        mistake.code()
    with pytest.raises(MistakeError, match="is not a function"):
        replace(mistake, target="images.broker.replication.leader:Missing.method").function()


def test_an_exploration_with_a_mistake_breaks_a_promise_and_leaves_the_broker_as_it_was() -> None:
    task = ScopeOfMutant(EAGER, "two-replicas", mistakes=(EAGER,))
    assert "committed" in explored(task).broken
    assert mistakes()[EAGER].function().__code__.co_filename.endswith("leader.py")


def test_a_run_has_the_mistakes_of_its_spec() -> None:
    small = {"seed": 1, "time_limit": "2s", "partitions": 1, "controllers": 1, "rate": 5, "faults": "none"}
    majority = run_in_simulation(parse({**small, "mistakes": ["high_watermark_of_a_majority"]}))
    assert majority.validity is Validity.INVALID
    assert run_in_simulation(parse(small)).validity is not Validity.INVALID


def test_a_spec_keeps_its_mistakes_and_refuses_those_that_cannot_be() -> None:
    spec = parse({"mistakes": [EAGER]})
    assert loads(spec.to_yaml()).mistakes == (EAGER,)
    assert "mistakes" not in parse({}).to_yaml()
    with pytest.raises(SpecError, match="mistakes: 'no_such' is not one of high_watermark_of_a_majority, "):
        parse({"mistakes": ["no_such"]})
    with pytest.raises(SpecError, match="mistakes: only brokers in the simulation are patched, not those of docker"):
        parse({"mistakes": [EAGER], "environment": "docker"})
