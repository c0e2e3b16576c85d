"""When nodes were down: by what ended their process, up to its next start; and which faults kept them down."""

from __future__ import annotations

from dataclasses import replace

import pytest

from checkers.evidence import CheckSettings, RunEvidence
from results.figures import faults as drawn_faults
from results.run.downtime import Downtime, downtimes, nodes_kept_down
from tests.checkers import small_evidence
from workloads.columns import NEVER

S = small_evidence.S


def struck(name: str, node: str, since_s: float, until_s: float | None, killed: int) -> dict[str, object]:
    measured = {"killed": killed, "nodes": {node: {"down_ns": round(since_s * S), "killed": killed}}}
    return small_evidence.fault(name, [node], since_s, until_s, measured, bit=bool(killed))


KILLED = small_evidence.faults(struck("kill", "b3", 5, 5.2, 1), struck("power-loss", "b3", 5.1, 9, 0))
STARTED = small_evidence.trace(
    small_evidence.event(0, "b3", "node_started"), small_evidence.event(9.1, "b3", "node_started")
)


def test_a_node_is_down_until_it_starts_again() -> None:
    evidence = RunEvidence(trace=STARTED, faults=KILLED)
    assert downtimes(evidence) == (Downtime("b3", 5 * S, round(9.1 * S)),)
    never = small_evidence.trace(small_evidence.event(0, "b3", "node_started"))
    assert downtimes(replace(evidence, trace=never)) == (Downtime("b3", 5 * S, NEVER),)


def test_a_node_that_one_fault_ends_twice_is_down_twice() -> None:
    measured = {"nodes": {"b3": {"down_ns": 2 * S, "loss_ns": 6 * S}}}
    faults = small_evidence.faults(small_evidence.fault("short-life", ["b3"], 1, 9, measured))
    trace = small_evidence.trace(*(small_evidence.event(at_s, "b3", "node_started") for at_s in (0, 5, 8)))
    assert downtimes(RunEvidence(trace=trace, faults=faults)) == (
        Downtime("b3", 2 * S, 5 * S),
        Downtime("b3", 6 * S, 8 * S),
    )


def test_a_process_that_ended_by_itself_is_down() -> None:
    crashed = {"crashes": [{"node": "b3", "time_ns": 4 * S}]}
    assert downtimes(RunEvidence(trace=STARTED, recovery=crashed)) == (Downtime("b3", 4 * S, round(9.1 * S)),)


def test_a_node_with_an_event_before_its_next_start_is_not_down() -> None:
    went_on = small_evidence.trace(
        small_evidence.event(5.15, "b3", "metadata_applied"), small_evidence.event(9.1, "b3", "node_started")
    )
    assert downtimes(RunEvidence(trace=went_on, faults=KILLED)) == ()
    unordered = CheckSettings(has_trace=False)
    assert downtimes(RunEvidence(trace=STARTED, faults=KILLED, settings=unordered)) == ()


@pytest.mark.parametrize(("until_s", "kept"), [(9.0, ("b3",)), (5.15, ()), (None, ("b3",))])
def test_a_fault_keeps_a_node_down_that_outlasts_what_ended_it(until_s: float | None, kept: tuple[str, ...]) -> None:
    table = small_evidence.faults(struck("kill", "b3", 5, 5.2, 1), struck("power-loss", "b3", 5.1, until_s, 0))
    assert nodes_kept_down(table) == [(), kept]
    later = small_evidence.faults(struck("kill", "b3", 5, 5.2, 1), struck("power-loss", "b3", 6, 9, 0))
    assert nodes_kept_down(later) == [(), ()], "nobody knows what it met"


def test_a_fault_that_kept_a_node_down_is_drawn_as_one_with_an_effect() -> None:
    kill, cut = drawn_faults.injected(KILLED, 20)
    assert (kill.had_effect, cut.had_effect, cut.took_effect) == (True, True, False)
    (bar,) = [bar for bar in drawn_faults.bars([kill, cut]) if bar["y"] == ["power-loss"]]
    assert bar["marker"]["opacity"] == [1.0]
    assert "kept b3 down" in bar["hovertext"][0]
