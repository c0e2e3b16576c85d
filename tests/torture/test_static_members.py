"""A broker that lets a static member return before the record of that is committed, as the prototype once did: what
random runs see of it. docs/found-by-reading.md says in how many."""

from __future__ import annotations

from typing import Any, Final

import pytest

from checkers.verdict import Validity
from harness.environments.mistakes import Mistake
from harness.runner.run import run_in_simulation
from harness.spec import parse
from tests.simulation.applied_mistake import apply_mistake

RETURNS_UNCOMMITTED: Final = Mistake(
    "static_member_returns_uncommitted",
    "A static member that returns is answered at once.",
    "images.broker.groups.rebalance:_replace_static",
    replace="return GroupStep(waiting, (*fenced, stores), waiting_member_id=new.id)",
    by="return GroupStep(replaced, (*fenced, StoreGroup(group.generation)), "
    "answer=_join_answer(replaced, new)._replace(skip_assignment=True))",
)

SHORT_LIVED: Final = {
    "workload": "groups",
    "seed": 92000000,
    "time_limit": 10,
    "clients": {"static_members": 1.0, "consumer_life": 4.0},
}
EACH_CUT_OFF: Final = {
    "workload": "groups",
    "seed": 56,
    "time_limit": 26,
    "consumers": 4,
    "rate": 10,
    "clients": {"static_members": 1.0, "consumer_life": 2.0, "consumer_rest": 0.2, "session_timeout": 6},
    "faults": [
        {"at": at_s, "for": 4, "fault": "partition", "nodes": [broker]}
        for at_s, broker in ((4, "b1"), (11, "b2"), (18, "b3"))
    ],
}
"""Clients reach a broker that no other one reaches, and it coordinates the group until it hears that it is deposed."""


RETURNS_IN_VAIN: Final = {
    "workload": "groups",
    "seed": 91002136,
    "time_limit": 20,
    "vary": True,
    "clients": {"static_members": 1.0, "late_commits": 0.0, "consumer_life": 4.0},
}
"""A member that a new coordinator has loaded is told its partitions again, after the record of another one that returns
was refused. `protocol` took that for the only record of it."""


@pytest.mark.parametrize(
    "fields",
    [SHORT_LIVED, EACH_CUT_OFF, RETURNS_IN_VAIN],
    ids=["short-lived", "each broker cut off", "returns in vain"],
)
def test_the_broker_lets_a_static_member_return_once_that_is_committed(fields: dict[str, Any]) -> None:
    outcome = run_in_simulation(parse(dict(fields)))
    assert outcome.validity is Validity.VALID, outcome.verdicts


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (SHORT_LIVED, {"assignment-told-early"}),
        (EACH_CUT_OFF, {"assignment-told-early", "fenced-commit"}),
    ],
    ids=["short-lived", "each broker cut off"],
)
def test_a_return_that_is_not_committed_is_found(
    fields: dict[str, Any], expected: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the second run the next coordinator takes a commit of the member before it, which does not know that another
    one has its place."""
    apply_mistake(monkeypatch, RETURNS_UNCOMMITTED)
    outcome = run_in_simulation(parse(dict(fields)))
    assert {each.kind for verdict in outcome.verdicts for each in verdict.findings} >= expected
