"""The broker answers as Apache Kafka does, but for the differences that have a reason."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.differential.broker import AT_ONCE, Broker
from tests.differential.cases.all_cases import MODULES
from tests.differential.differences import load_differences
from tests.differential.messages import Plain
from tests.differential.record import ANSWERS, OURS, load
from tests.differential.scene import CASES, play_all

KAFKA = load(ANSWERS)
RECORDED = load(OURS)
DIFFERENCES = load_differences()
EXPLAINED = {name for difference in DIFFERENCES for name in difference.cases}


def test_the_recorded_answers_are_those_of_the_cases() -> None:
    assert MODULES
    assert set(KAFKA) == set(CASES)
    assert len(CASES) > 300


def test_every_known_difference_has_a_reason_and_an_answer() -> None:
    assert set(RECORDED) == EXPLAINED
    reasons = {difference.reason for difference in DIFFERENCES}
    assert len(reasons) == len(DIFFERENCES)
    assert all(reason.endswith(".") for reason in reasons)


def test_every_answer_is_kafkas_or_the_explained_one(tmp_path: Path) -> None:
    """One test, since playing the cases takes a while: which worker of pytest would play them is not known. What is not
    as expected is played once more, one after another: on a busy machine some requests time out."""
    with Broker(tmp_path / "together") as broker:
        ours = play_all(broker, CASES, at_once=AT_ONCE)
    expected = {**KAFKA, **RECORDED}
    if others := [name for name in CASES if ours[name] != expected[name]]:
        with Broker(tmp_path / "alone") as broker:
            ours |= play_all(broker, others)
    gone = {name for name in EXPLAINED if ours[name] == KAFKA[name]}
    changed = {name for name in EXPLAINED - gone if ours[name] != RECORDED[name]}
    unexplained = {name for name, answer in ours.items() if answer != KAFKA[name]} - EXPLAINED
    assert not unexplained, f"differences without a reason:\n{_lines(unexplained, ours)}"
    assert not gone, f"reasons for differences that are gone: {', '.join(sorted(gone))}"
    assert not changed, f"other answers than those explained (`record --ours` writes them):\n{_lines(changed, ours)}"


def _lines(names: Iterable[str], ours: Mapping[str, Plain]) -> str:
    return "\n".join(
        f"{name}\n  Kafka:     {json.dumps(KAFKA[name], sort_keys=True)}\n"
        f"  Faultline: {json.dumps(ours[name], sort_keys=True)}"
        for name in sorted(names)
    )
