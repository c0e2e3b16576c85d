"""A coordinator that takes late commits: of an earlier generation of a member that it knows, or while the generation is
not assigned yet. docs/found-by-reading.md says in how many random runs it is found."""

from __future__ import annotations

from typing import Final

import pytest

from checkers.verdict import Validity
from harness.environments.mistakes import Mistake
from harness.runner.run import run_in_simulation
from harness.spec import parse
from tests.simulation.applied_mistake import apply_mistake

EARLIER_TAKEN: Final = Mistake(
    "earlier_generation_taken",
    "A coordinator takes a request of a member that it knows with the number of an earlier generation.",
    "images.broker.groups.rebalance:check_member",
    replace="if caller.generation != group.generation:",
    by="if caller.generation > group.generation:",
)
UNASSIGNED_TAKEN: Final = Mistake(
    "commit_taken_unassigned",
    "A coordinator takes commits while the members of the generation wait for their partitions.",
    "images.broker.groups.membership:_commit_error",
    replace="if error is ErrorCode.none and group.state is GroupState.COMPLETING:",
    by="if False:",
)
LATE: Final = {
    "workload": "groups",
    "seed": 3,
    "time_limit": 15,
    "consumers": 3,
    "partitions": 3,
    "faults": "none",
    "clients": {"late_commits": 1.0, "consumer_life": 4.0},
}
ON_TIME: Final = {**LATE, "clients": {"consumer_life": 4.0}}


def test_late_commits_are_refused_by_the_broker() -> None:
    outcome = run_in_simulation(parse(dict(LATE)))
    assert outcome.validity is Validity.VALID, outcome.verdicts


@pytest.mark.parametrize(
    ("mistake", "expected"),
    [
        (EARLIER_TAKEN, {"stale-commit", "commit-not-fenced"}),
        (UNASSIGNED_TAKEN, {"commit-not-fenced"}),
    ],
    ids=["of an earlier generation", "before the assignment"],
)
def test_a_late_commit_that_is_taken_is_found_and_without_late_commits_it_is_not(
    mistake: Mistake, expected: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    apply_mistake(monkeypatch, mistake)
    late = run_in_simulation(parse(dict(LATE)))
    assert {each.kind for verdict in late.verdicts for each in verdict.findings} >= expected
    assert run_in_simulation(parse(dict(ON_TIME))).validity is Validity.VALID
