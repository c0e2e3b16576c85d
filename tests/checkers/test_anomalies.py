"""Every anomaly is found by its checker in recorded runs; `python -m tests.checkers.anomalies` plays many more."""

from __future__ import annotations

import pytest

from tests.checkers.anomalies.anomaly import Anomaly
from tests.checkers.anomalies.catalogue import ANOMALIES
from tests.checkers.anomalies.recorded_runs import RecordedRun, record

RUNS = 4


@pytest.fixture(scope="module")
def runs() -> list[RecordedRun]:
    """A few runs of both workloads."""
    return [record(number) for number in range(RUNS)]


@pytest.mark.parametrize("anomaly", ANOMALIES, ids=lambda anomaly: anomaly.name)
def test_a_checker_finds_an_anomaly_at_a_random_place(anomaly: Anomaly, runs: list[RecordedRun]) -> None:
    injections = 0
    for number, run in enumerate(runs):
        if run.permits_losses or run.verdicts.get(anomaly.checker) != "valid":
            continue
        injection = anomaly.injected(run.evidence, number)
        if injection is not None:
            injections += 1
            verdict = anomaly.verdict(injection)
            assert anomaly.is_found(injection, verdict), f"{run.name}: {injection.line}: {verdict}"
    assert injections


def test_anomalies_have_names_of_their_own() -> None:
    names = [anomaly.name for anomaly in ANOMALIES]
    assert len(set(names)) == len(names)
