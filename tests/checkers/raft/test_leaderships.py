"""When a leader of the quorum has to find out that its majority has left it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from checkers.evidence import RunEvidence
from checkers.raft.checker import check
from checkers.raft.leaderships import leadership_findings
from checkers.tables import FaultTimes
from tests.checkers import small_evidence
from tests.checkers.small_evidence import S

Event = dict[str, Any]

LIMIT_S = 5.0
"""With a fetch timeout of 1 s and two other controllers: two timeouts, and one and a half for each of the others."""


def role(time_s: float, node: str, kind: str, epoch: int) -> Event:
    detail = {"fetch_timeout_ms": 1_000} if kind == "leader" else {}
    return small_evidence.event(time_s, node, f"quorum_{kind}", detail, leader_epoch=epoch)


ELECTED = [*(role(0, node, "recovered", 0) for node in ("c1", "c2", "c3")), role(1, "c1", "leader", 1)]
DEPOSED = [*ELECTED, role(10, "c2", "leader", 2)]


def kinds(*events: Event, **struck: Any) -> list[str]:
    wrong_timers, stalls = (FaultTimes(struck.get(kind, {})) for kind in ("wrong_timers", "stalls"))
    found = leadership_findings(small_evidence.trace(*events), 3, wrong_timers, stalls)
    return [finding.kind for finding in found]


@pytest.mark.parametrize("kind", ["resigned", "follower", "unattached", "voted", "candidate", "recovered"])
@pytest.mark.parametrize("late_s", [-0.1, 0.1])
def test_a_leader_finds_out_that_its_majority_has_left(kind: str, late_s: float) -> None:
    found = kinds(*DEPOSED, role(10 + LIMIT_S + late_s, "c1", kind, 2))
    assert found == (["led-without-quorum"] if late_s > 0 else [])


def test_a_leader_that_nobody_follows_yet_may_be_left_as_long_as_no_other_is_elected() -> None:
    assert kinds(*ELECTED, role(90, "c1", "resigned", 1)) == []
    assert kinds(*ELECTED, role(90, "c1", "resigned", 1), role(100, "c2", "leader", 2)) == []


def test_a_process_that_may_not_have_run_finds_out_later() -> None:
    late = [*DEPOSED, role(30, "c1", "resigned", 1)]
    assert kinds(*late, stalls={"c1": [(12 * S, 28 * S)]}) == []
    assert kinds(*late, stalls={"c1": [(26 * S, 28 * S), (12 * S, 17 * S), (11 * S, 21.5 * S)]}) == []
    assert kinds(*late, stalls={"c1": [(2 * S, 3 * S)], "c2": [(12 * S, 28 * S)]}) == ["led-without-quorum"]
    assert kinds(*late, wrong_timers={"c1": [(12 * S, 13 * S)]}) == []
    assert kinds(*late, wrong_timers={"c1": [(2 * S, 3 * S)]}) == ["led-without-quorum"]


@pytest.mark.parametrize("stalled", [(12, 13), (15.1, 28), (10, 24.9)], ids=["a short stall", "before it", "after it"])
def test_a_stall_does_not_excuse_a_leadership_that_went_on_too_long_without_one(stalled: tuple[float, float]) -> None:
    began_s, ended_s = stalled
    times = {"c1": [(began_s * S, ended_s * S)]}
    assert kinds(*DEPOSED, role(30, "c1", "resigned", 1), stalls=times) == ["led-without-quorum"]


def test_a_process_that_has_ended_in_a_fault_may_take_long_to_start_again() -> None:
    stalls = {"c1": [(11 * S, 13 * S)]}
    assert kinds(*DEPOSED, role(30, "c1", "recovered", 1), stalls=stalls) == []


@pytest.mark.parametrize(("node", "right"), [("c1", True), ("c2", False)])
def test_a_process_that_has_traced_that_it_did_not_run_finds_out_later(node: str, right: bool) -> None:
    roles = [
        each | {"offset": 0, "log_end": 0, "high_watermark": 0} for each in (*DEPOSED, role(30, "c1", "resigned", 1))
    ]
    late = [*roles, small_evidence.stalled(30.001, node, 18)]
    found = {finding.kind for finding in check(RunEvidence(trace=small_evidence.trace(*late))).findings}
    assert ("led-without-quorum" not in found) is right


@pytest.mark.parametrize("end", ["resigned", "follower", "unattached"])
def test_a_leader_on_a_busy_machine_finds_out_later(end: str) -> None:
    found_out = role(30, "c1", end, 2)
    assert kinds(*DEPOSED, found_out) == ["led-without-quorum"]
    assert kinds(*DEPOSED, found_out | {"detail": json.dumps({"check_overdue_ms": 250})}) == []
